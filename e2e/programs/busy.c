// busy FOLDER MIB: takes memory and keeps the GPU busy with kernels until standard input ends.
#include "check.h"
#include <poll.h>

int main(int argc, char **argv) {
  start(argc, argv);
  CUdeviceptr d;
  CUfunction spin;
  CK(cuMemAlloc(&d, strtoul(argv[2], NULL, 10) << 20));
  spin = function(load("kernels.ptx"), "spin");
  CUevent done[8]; // so many kernels ahead: a GPU has work also while this program gets no processor
  for (int i = 0; i < 8; i++) CK(cuEventCreate(&done[i], CU_EVENT_DISABLE_TIMING));
  long long cycles = 100000000; // a twentieth of a second
  printf("busy\n");
  fflush(stdout);
  int n = 0;
  do {
    if (n >= 8) CK(cuEventSynchronize(done[n % 8]));
    CK(LAUNCH(spin, 1, 1, 0, NULL, &cycles));
    CK(cuEventRecord(done[n++ % 8], NULL));
  } while (poll(&(struct pollfd){.fd = 0, .events = POLLIN}, 1, 0) == 0);
  return 0;
}
