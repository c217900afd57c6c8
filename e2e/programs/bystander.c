// Computes until its standard input ends; every result must be right. Prints "ready" after the first round.
#include "check.h"
#include <poll.h>

int main(int argc, char **argv) {
  start(argc, argv);
  CUmodule m = load("kernels.ptx");
  CUfunction add = function(m, "vector_add");
  enum { N = 10000 };
  int n = N;
  float *x = malloc(N * 4);
  CUdeviceptr d;
  CK(cuMemAlloc(&d, N * 4));
  long rounds = 0;
  struct pollfd in = {.fd = 0, .events = POLLIN};
  do {
    for (int i = 0; i < N; i++) x[i] = (float)(i + rounds % 100);
    CK(cuMemcpyHtoD(d, x, N * 4));
    CK(LAUNCH(add, (N + 255) / 256, 256, 0, 0, &d, &d, &d, &n));
    CK(cuMemcpyDtoH(x, d, N * 4));
    for (int i = 0; i < N; i++) CHECK(x[i] == 2.f * (i + rounds % 100), "round %ld: [%d] = %g", rounds, i, x[i]);
    if (!rounds++) printf("ready\n");
  } while (poll(&in, 1, 0) == 0);
  printf("bystander ok\n");
  return 0;
}
