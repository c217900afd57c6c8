// busy FOLDER MIB: takes memory and keeps the GPU busy with kernels until standard input ends.
#include "check.h"
#include <poll.h>

int main(int argc, char **argv) {
  start(argc, argv);
  CUdeviceptr d;
  CUfunction spin;
  CK(cuMemAlloc(&d, strtoul(argv[2], NULL, 10) << 20));
  spin = function(load("kernels.ptx"), "spin");
  long long cycles = 100000000; // a twentieth of a second
  printf("busy\n");
  fflush(stdout);
  do {
    CK(LAUNCH(spin, 1, 1, 0, NULL, &cycles));
    CK(cuCtxSynchronize());
  } while (poll(&(struct pollfd){.fd = 0, .events = POLLIN}, 1, 0) == 0);
  return 0;
}
