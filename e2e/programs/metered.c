// Does a known number of everything that a client counts, says "ready", and waits for the end of its standard input.
#include "check.h"
#include <unistd.h>

int main(int argc, char **argv) {
  start(argc, argv);
  static char block[65536];
  CUdeviceptr d, shared;
  CK(cuMemAlloc(&d, sizeof block));
  for (int i = 0; i < 100; i++) CK(cuMemsetD8Async(d, (unsigned char)i, 64, 0));
  for (int i = 0; i < 10; i++) CK(cuMemcpyHtoD(d, block, sizeof block));
  for (int i = 0; i < 5; i++) CK(cuMemcpyDtoH(block, d, 4096));
  for (int i = 0; i < 3; i++) WANT(cuMemFree(12345), CUDA_ERROR_INVALID_VALUE);
  CK(cuMemAllocManaged(&shared, 1 << 20, CU_MEM_ATTACH_GLOBAL));
  volatile unsigned char *p = (unsigned char *)(uintptr_t)shared;
  p[0] = p[1 << 19] = 1;
  CK(cuMemsetD8(shared, 7, 1 << 20));
  CK(cuCtxSynchronize());
  CHECK(p[0] == 7 && p[1 << 19] == 7, "unified memory has %d and %d", p[0], p[1 << 19]);
  printf("ready\n");
  fflush(stdout);
  for (char c; read(0, &c, 1) > 0;) {}
  return 0;
}
