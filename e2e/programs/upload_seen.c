// A synchronous upload is seen by work on any stream afterwards. (Natively that is not promised for pageable memory,
// and now and then it is not so.)
#include "check.h"

int main(int argc, char **argv) {
  start(argc, argv);
  CUfunction add = function(load("kernels.ptx"), "vector_add");
  CUstream t;
  CK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
  int n = 1024;
  float x[1024], y[1024];
  CUdeviceptr a, b;
  CK(cuMemAlloc(&a, sizeof x));
  CK(cuMemAlloc(&b, sizeof x));
  for (int round = 0; round < 200; round++) {
    for (int i = 0; i < n; i++) x[i] = (float)(i + round);
    CK(cuMemcpyHtoD(a, x, sizeof x));
    CK(LAUNCH(add, 4, 256, 0, t, &a, &a, &b, &n));
    CK(cuMemcpyDtoHAsync(y, b, sizeof y, t));
    CK(cuStreamSynchronize(t));
    for (int i = 0; i < n; i++) CHECK(y[i] == 2.f * (i + round), "round %d: [%d] = %g", round, i, y[i]);
  }
  puts("uploads are seen");
  return 0;
}
