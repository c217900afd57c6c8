// endless FOLDER: what a program sees of a server's limits. It takes more memory than it may have, then starts a kernel
// that takes longer than it may, and waits for it.
#include "check.h"

int main(int argc, char **argv) {
  start(argc, argv);
  CUdeviceptr d;
  size_t total, free, has;
  CUdevice device;
  CK(cuDeviceGet(&device, 0));
  CK(cuDeviceTotalMem(&total, device));
  CK(cuMemGetInfo(&free, &has));
  printf("%zu %zu %d MiB\n", total >> 20, has >> 20, free <= has);
  CK(cuMemAlloc(&d, 24 << 20));
  printf("too much %d\n", cuMemAlloc(&d, 24 << 20));
  CUfunction spin = function(load("kernels.ptx"), "spin");
  long long cycles = 1LL << 60;
  CK(LAUNCH(spin, 1, 1, 0, NULL, &cycles));
  printf("waiting %d\n", cuCtxSynchronize());
  printf("later %d\n", cuMemAlloc(&d, 4));
  return 0;
}
