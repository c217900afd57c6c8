// A kernel that writes to an address that is not there: 700, sticky, for this process alone.
#include "check.h"

int main(int argc, char **argv) {
  start(argc, argv);
  CUfunction f = function(load("kernels.ptx"), "fault");
  CUdeviceptr bad = 0, d;
  CUstream s;
  int v, active;
  unsigned flags;
  CK(cuStreamCreate(&s, 0));
  CK(cuMemAlloc(&d, 64));
  CK(LAUNCH(f, 1, 1, 0, s, &bad));
  SHOW(cuStreamSynchronize(s));
  SHOW(cuMemAlloc(&d, 64));
  SHOW(cuMemcpyDtoH(&v, d, 4));
  SHOW(cuStreamSynchronize(s));
  SHOW(cuStreamQuery(s));
  SHOW(LAUNCH(f, 1, 1, 0, s, &bad));
  SHOW(cuCtxSynchronize());
  SHOW(cuMemFree(d));
  SHOW(cuDevicePrimaryCtxGetState(0, &flags, &active));
  return 0;
}
