// What functions of CUPTI answer that are given nothing: cupti_exports KERNELS LIBRARY NAME... Before that it asks for
// the driver's private tables as Nsight and NVIDIA's own CUPTI do.
#include "check.h"

#include <dlfcn.h>

int main(int argc, char **argv) {
  CHECK(argc > 3, "cupti_exports KERNELS LIBRARY NAME...");
  start(argc, argv);
  void *library = dlopen(argv[2], RTLD_NOW);
  CHECK(library, "%s", dlerror());
  static const uint8_t tables[][16] = {{0x7c, 0xb6, 0x3f, 0x9b}, {0xd7, 0xbd, 0x8a, 0xf8}};
  for (int i = 0; i < 4; i++) {
    const void *table = &i;
    CHECK(cuGetExportTable(&table, (const CUuuid *)tables[i % 2]) && !table, "a private table of the driver's");
  }
  for (int i = 3; i < argc; i++) {
    int (*f)(long, long, long, long, long, long, long, long) =
        (int (*)(long, long, long, long, long, long, long, long))dlsym(library, argv[i]);
    CHECK(f, "no %s", argv[i]);
    printf("%s %d\n", argv[i], f(0, 0, 0, 0, 0, 0, 0, 0));
  }
  return 0;
}
