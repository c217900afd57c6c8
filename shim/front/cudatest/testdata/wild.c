/* Allocates and frees unified memory of the library argv[1]. The fake core touches it in between, while the program
 * does not have it (FAKECORE_WILD). */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

int main(int argc, char **argv) {
  void *lib = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (!lib) return 2;
  uint64_t context, p;
  int r = ((int (*)(unsigned))dlsym(lib, "cuInit"))(0);
  if (!r) r = ((int (*)(uint64_t *, int))dlsym(lib, "cuDevicePrimaryCtxRetain"))(&context, 0);
  if (!r) r = ((int (*)(uint64_t))dlsym(lib, "cuCtxSetCurrent"))(context);
  if (!r) r = ((int (*)(uint64_t *, size_t, unsigned))dlsym(lib, "cuMemAllocManaged"))(&p, 1 << 20, 1);
  if (!r) r = ((int (*)(uint64_t))dlsym(lib, "cuMemFree_v2"))(p);
  printf("CUresult %d\n", r);
  return r != 0;
}
