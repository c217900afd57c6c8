// Opens the driver library by name, as PyTorch, CuPy and JAX do, and goes through cuGetProcAddress.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int (*init_fn)(unsigned);
typedef int (*count_fn)(int *);
typedef int (*proc_fn)(const char *, void **, int, uint64_t, int *);

int main(void) {
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
  return 0;
}
