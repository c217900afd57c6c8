// turns FOLDER BATCH: waits for SIGUSR1, then launches kernels until standard input ends, and says at the end whether
// all have run. Two threads launch a batch and wait for it, so behind what either waits for there is a batch of the
// other's: a program that gets no processor for a while has work for its GPU all the same.
#include "check.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>

enum { threads = 2 };

static int batch;
static CUfunction count;
static CUdeviceptr out;

static void *work(void *launched) {
  CUevent done;
  CK(cuCtxSetCurrent(context));
  CK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
  for (struct pollfd p = {.fd = 0, .events = POLLIN}; poll(&p, 1, 0) == 0; *(int *)launched += batch) {
    for (int i = 0; i < batch; i++) CK(LAUNCH(count, 1, 1, 0, NULL, &out));
    CK(cuEventRecord(done, NULL));
    CK(cuEventSynchronize(done));
  }
  return NULL;
}

int main(int argc, char **argv) {
  int got;
  sigset_t begin;
  sigemptyset(&begin);
  sigaddset(&begin, SIGUSR1);
  sigprocmask(SIG_BLOCK, &begin, NULL);
  start(argc, argv);
  batch = atoi(argv[2]);
  count = function(load("kernels.ptx"), "globals");
  CK(cuMemAlloc(&out, 16));
  int first, last; // the kernel counts on from some number
  CK(LAUNCH(count, 1, 1, 0, NULL, &out));
  CK(cuMemcpyDtoH(&first, out, 4));
  printf("ready\n");
  sigwait(&begin, &got);
  int launched[threads] = {0}, all = 0;
  pthread_t list[threads];
  for (int i = 0; i < threads; i++) pthread_create(&list[i], NULL, work, &launched[i]);
  for (int i = 0; i < threads; i++) pthread_join(list[i], NULL), all += launched[i];
  CK(cuMemcpyDtoH(&last, out, 4));
  printf("all %d of %d\n", last - first, all);
  return last - first == all ? 0 : 1;
}
