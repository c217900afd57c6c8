// Opens the driver library by name, as PyTorch, CuPy and JAX do, and goes through cuGetProcAddress. With "again" it
// then closes the library, gives the library's threads the time to look at what is no longer there, and opens it again.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef int (*init_fn)(unsigned);
typedef int (*count_fn)(int *);
typedef int (*proc_fn)(const char *, void **, int, uint64_t, int *);

int main(int argc, char **argv) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    printf("dlopen: %s\n", dlerror());
    return 1;
  }
  init_fn init = (init_fn)dlsym(lib, "cuInit");
  proc_fn proc = (proc_fn)dlsym(lib, "cuGetProcAddress_v2");
  void *p = NULL;
  int status = -1, n = -1, r = init(0);
  printf("cuInit = %d\n", r);
  r = proc("cuDeviceGetCount", &p, 12000, 0, &status);
  printf("cuGetProcAddress = %d, status %d\n", r, status);
  if (p) {
    r = ((count_fn)p)(&n);
    printf("cuDeviceGetCount = %d, %d devices\n", r, n);
  }
  r = proc("cuNoSuchFunction", &p, 12000, 0, &status);
  printf("cuNoSuchFunction: %d, status %d, %s\n", r, status, p ? "an address" : "no address");
  for (int i = 0; argc > 1 && i < 3; i++) {
    if (dlclose(lib)) printf("dlclose: %s\n", dlerror());
    usleep(20000);
    lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    init = lib ? (init_fn)dlsym(lib, "cuInit") : NULL;
    printf("again: cuInit = %d\n", init ? init(0) : -1);
  }
  (void)argv;
  return 0;
}
