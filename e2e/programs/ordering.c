// A copy from pinned memory whose source is still being written by earlier work of the GPU's streams sends what was
// written.
#include "check.h"
#include <pthread.h>
#include <unistd.h>

static unsigned char *pin;
enum { N = 1 << 20 };
static void CUDA_CB writes(void *user) {
  usleep(20000);
  memset(pin, (int)(intptr_t)user, N);
}

static int seen;
static void CUDA_CB reads(void *user) {
  (void)user;
  seen = pin[0] == pin[N - 1] ? pin[N - 1] : -1;
}

static CUfunction spin;
static CUevent event;
static void *launches(void *cycles) {
  CK(cuCtxSetCurrent(context));
  CK(LAUNCH(spin, 1, 1, 0, 0, cycles));
  return NULL;
}

int main(int argc, char **argv) {
  start(argc, argv);
  CUmodule m = load("kernels.ptx");
  spin = function(m, "spin");
  CUstream s, t;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
  CK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  unsigned char *got = malloc(N);
  CUdeviceptr a, b;
  CK(cuMemAllocHost((void **)&pin, N));
  CK(cuMemAlloc(&a, N));
  CK(cuMemAlloc(&b, N));
  long long cycles = 30000000;

  for (int round = 0; round < 5; round++) {
    // A copy to the host, then an upload from the same pinned buffer.
    memset(pin, 0x11, N);
    CK(cuMemsetD8Async(a, 0x20 + round, N, s));
    CK(LAUNCH(spin, 1, 1, 0, s, &cycles));
    CK(cuMemcpyDtoHAsync(pin, a, N, s));
    CK(cuMemcpyHtoDAsync(b, pin, N, s));
    CK(cuStreamSynchronize(s));
    CK(cuMemcpyDtoH(got, b, N));
    for (int i = 0; i < N; i++) CHECK(got[i] == 0x20 + round, "copy, then upload: [%d] = %02x", i, got[i]);

    // The same over two streams and an event; the upload takes a part.
    memset(pin, 0x11, N);
    CK(LAUNCH(spin, 1, 1, 0, s, &cycles));
    CK(cuMemcpyDtoHAsync(pin, a, N, s));
    CK(cuEventRecord(event, s));
    CK(cuStreamWaitEvent(t, event, 0));
    CK(cuMemcpyHtoDAsync(b, pin + 1000, 5000, t));
    CK(cuMemcpyDtoHAsync(got, b, 5000, t));
    CK(cuStreamSynchronize(t));
    for (int i = 0; i < 5000; i++) CHECK(got[i] == 0x20 + round, "over two streams: [%d] = %02x", i, got[i]);

    // A host function writes the source.
    memset(pin, 0x11, N);
    CK(LAUNCH(spin, 1, 1, 0, s, &cycles));
    CK(cuLaunchHostFunc(s, writes, (void *)(intptr_t)(0x40 + round)));
    CK(cuMemcpyHtoDAsync(b, pin, N, s));
    CK(cuStreamSynchronize(s));
    CK(cuMemcpyDtoH(got, b, N));
    for (int i = 0; i < N; i++) CHECK(got[i] == 0x40 + round, "host function, then upload: [%d] = %02x", i, got[i]);
  }
  printf("pinned order ok\n");

  // Whatever tells the program that a download is done, the bytes are there: an event waited for or asked about, the
  // stream, another stream behind the event, the context, a host function behind the copy.
  for (int round = 0; round < 18; round++) {
    int want = 0x60 + round;
    CUresult r;
    memset(pin, 0x11, N);
    CK(cuMemsetD8Async(a, want, N, s));
    if (round / 6 % 2) CK(LAUNCH(spin, 1, 1, 0, s, &cycles));
    CK(cuMemcpyDtoHAsync(pin, a, N, s));
    CK(cuEventRecord(event, s));
    switch (round % 6) {
    case 0: CK(cuEventSynchronize(event)); break;
    case 1:
      while ((r = cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {
      }
      CK(r);
      break;
    case 2:
      while ((r = cuStreamQuery(s)) == CUDA_ERROR_NOT_READY) {
      }
      CK(r);
      break;
    case 3:
      CK(cuStreamWaitEvent(t, event, 0));
      CK(cuStreamSynchronize(t));
      break;
    case 4: CK(cuCtxSynchronize()); break;
    case 5:
      seen = 0;
      CK(cuLaunchHostFunc(s, reads, NULL));
      CK(cuStreamSynchronize(s));
      CHECK(seen == want, "round %d: the host function saw %02x, not %02x", round, seen, want);
      break;
    }
    for (int i = 0; i < N; i++)
      CHECK(pin[i] == want, "round %d: told that the download is done, but [%d] = %02x, not %02x", round, i, pin[i],
            want);
    CK(cuStreamSynchronize(s));
  }
  printf("downloads ok\n");

  // Thread A launches, thread B synchronises: B's wait covers A's launch.
  pthread_t thread;
  CUevent begin;
  CK(cuEventCreate(&begin, CU_EVENT_DEFAULT));
  for (int round = 0; round < 5; round++) {
    CK(cuEventRecord(begin, 0));
    pthread_create(&thread, NULL, launches, &cycles);
    pthread_join(thread, NULL);
    CK(cuEventRecord(event, 0));
    CK(cuCtxSynchronize());
    CK(cuEventQuery(event));
  }
  printf("threads ok\n");
  printf("ordering ok\n");
  return 0;
}
