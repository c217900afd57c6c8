// Unified memory that two GPUs and the CPU use in turn, whichever was current when it was made.
#include "check.h"

enum { N = 1 << 20 };

int main(int argc, char **argv) {
  start(argc, argv);
  CUcontext on[2] = {context};
  CUdevice second;
  CK(cuDeviceGet(&second, 1));
  CK(cuDevicePrimaryCtxRetain(&on[1], second));
  CUfunction mixer[2];
  unsigned char *m[2];
  for (int d = 0; d < 2; d++) {
    CK(cuCtxSetCurrent(on[d]));
    mixer[d] = function(load("managed.ptx"), "mix");
    CUdeviceptr p;
    CK(cuMemAllocManaged(&p, N, CU_MEM_ATTACH_GLOBAL));
    m[d] = (unsigned char *)(uintptr_t)p;
    memset(m[d], 1, N);
  }
  unsigned char model[2] = {1, 1};
  for (unsigned round = 0; round < 12; round++) {
    int d = round & 1, which = round >> 1 & 1;
    unsigned long long from = 0, n = N;
    unsigned a = 3, b = round;
    void *args[] = {&m[which], &from, &n, &a, &b};
    CK(cuCtxSetCurrent(on[d]));
    CK(cuLaunchKernel(mixer[d], 8, 1, 1, 256, 1, 1, 0, 0, args, NULL));
    model[which] = (unsigned char)(model[which] * 3 + round);
    if (round % 3) CK(cuCtxSynchronize());
    else CK(cuCtxSetCurrent(on[!d])); // not waited for, and the other GPU's context is current when the CPU looks
    for (int i = 0; i < N; i += 4095) CHECK(m[which][i] == model[which], "round %u: byte %d is %d, not %d", round, i, m[which][i], model[which]);
    if (round % 4 == 1) memset(m[!which], model[!which] = (unsigned char)(round * 7), N);
  }
  for (int d = 0; d < 2; d++) {
    CK(cuCtxSetCurrent(on[d]));
    CK(cuMemFree((CUdeviceptr)(uintptr_t)m[!d])); // freed where the other's is current
  }
  CK(cuDevicePrimaryCtxRelease(second));
  puts("two GPUs");
  return 0;
}
