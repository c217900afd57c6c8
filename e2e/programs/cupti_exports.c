// What functions of CUPTI answer that are given nothing: cupti_exports KERNELS LIBRARY NAME...
#include "check.h"

#include <dlfcn.h>

int main(int argc, char **argv) {
  CHECK(argc > 3, "cupti_exports KERNELS LIBRARY NAME...");
  start(argc, argv);
  void *library = dlopen(argv[2], RTLD_NOW);
  CHECK(library, "%s", dlerror());
  for (int i = 3; i < argc; i++) {
    int (*f)(long, long, long, long, long, long, long, long) =
        (int (*)(long, long, long, long, long, long, long, long))dlsym(library, argv[i]);
    CHECK(f, "no %s", argv[i]);
    printf("%s %d\n", argv[i], f(0, 0, 0, 0, 0, 0, 0, 0));
  }
  return 0;
}
