// turns FOLDER: waits for SIGUSR1, then launches kernels, up to 16 ahead of the GPU, until standard
// input ends. It prints "done N" whenever the GPU has done four more, and says at the end whether all have run.
#include "check.h"
#include <poll.h>
#include <signal.h>

enum { each = 4, ahead = 4 };

int main(int argc, char **argv) {
  int got;
  sigset_t begin;
  sigemptyset(&begin);
  sigaddset(&begin, SIGUSR1);
  sigprocmask(SIG_BLOCK, &begin, NULL);
  start(argc, argv);
  CUdeviceptr out;
  CUevent done[ahead];
  CUfunction count = function(load("kernels.ptx"), "globals");
  CK(cuMemAlloc(&out, 16));
  for (int i = 0; i < ahead; i++) CK(cuEventCreate(&done[i], CU_EVENT_DISABLE_TIMING));
  int first, last; // the kernel counts on from some number
  CK(LAUNCH(count, 1, 1, 0, NULL, &out));
  CK(cuMemcpyDtoH(&first, out, 4));
  printf("ready\n");
  sigwait(&begin, &got);
  int n = 0;
  for (struct pollfd p = {.fd = 0, .events = POLLIN}; poll(&p, 1, 0) == 0; n++) {
    if (n >= ahead) {
      CK(cuEventSynchronize(done[n % ahead]));
      printf("done %d\n", (n - ahead + 1) * each);
    }
    for (int i = 0; i < each; i++) CK(LAUNCH(count, 1, 1, 0, NULL, &out));
    CK(cuEventRecord(done[n % ahead], NULL));
  }
  CK(cuMemcpyDtoH(&last, out, 4));
  printf("all %d of %d\n", last - first, n * each);
  return last - first == n * each ? 0 : 1;
}
