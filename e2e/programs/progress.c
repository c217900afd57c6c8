// What a program may conclude about finished work, and from what. Every question below has one right answer natively,
// whenever it is asked.
#include "check.h"

#include <pthread.h>
#include <sched.h>

enum { STREAMS = 4, ROUNDS = 150, WORDS = 1 << 10 };
static _Atomic int ran;

static void CUDA_CB host_function(void *user) { *(int *)user = 1; ran++; }

// An event is complete when anything behind it is known to be: a copy's end, a host function, another event, a wait.
static void conclusions(void) {
  CUstream s;
  CUevent first, last;
  CUdeviceptr d;
  unsigned *pinned, word = 0;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuEventCreate(&first, CU_EVENT_DISABLE_TIMING));
  CK(cuEventCreate(&last, CU_EVENT_DISABLE_TIMING));
  CK(cuMemAlloc(&d, 4 * WORDS));
  CK(cuMemAllocHost((void **)&pinned, 4 * WORDS));
  for (int i = 1; i <= ROUNDS; i++) {
    CK(cuMemsetD32Async(d, (unsigned)i, WORDS, s));
    CK(cuEventRecord(first, s));
    int r = (int)cuEventQuery(first);
    if (r && r != CUDA_ERROR_NOT_READY) CK(r);
    switch (i % 6) {
    case 0:
      CK(cuMemcpyDtoH(&word, d, 4)); // waits for the legacy stream only, which s does not belong to
      CK(cuStreamSynchronize(s));
      break;
    case 1:
      pinned[WORDS - 1] = 0;
      CK(cuMemcpyDtoHAsync(pinned, d, 4 * WORDS, s));
      while (((volatile unsigned *)pinned)[WORDS - 1] != (unsigned)i) sched_yield();
      break;
    case 2: {
      volatile int done = 0;
      CK(cuLaunchHostFunc(s, host_function, (void *)&done));
      while (!done) sched_yield();
      break;
    }
    case 3:
      CK(cuEventRecord(last, s));
      while ((r = (int)cuEventQuery(last)) == CUDA_ERROR_NOT_READY) {}
      CK(r);
      break;
    case 4:
      while ((r = (int)cuStreamQuery(s)) == CUDA_ERROR_NOT_READY) {}
      CK(r);
      break;
    case 5:
      CK(cuCtxSynchronize());
      break;
    }
    CK(cuEventQuery(first));
    CK(cuEventSynchronize(first));
  }
  // A new recording is new work.
  CK(cuMemcpyDtoH(&word, d, 4));
  CK(cuStreamSynchronize(s));
  CK(cuStreamQuery(s));
  CK(cuStreamQuery(0));
  CK(cuStreamSynchronize(0));
  CK(cuEventDestroy(first));
  CK(cuEventDestroy(last));
  CK(cuStreamDestroy(s));
  CK(cuMemFree(d));
  CK(cuMemFreeHost(pinned));
}

// While a host function holds the stream, nothing behind it is complete, whoever asks and how often.
static _Atomic int hold;
static void CUDA_CB wait_here(void *user) {
  (void)user;
  while (hold) sched_yield();
}
static void held(void) {
  CUstream s, other;
  CUevent e, before;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CK(cuEventCreate(&e, 0));
  CK(cuEventCreate(&before, 0));
  for (int i = 0; i < 20; i++) {
    hold = 1;
    CK(cuEventRecord(before, s));
    CK(cuLaunchHostFunc(s, wait_here, NULL));
    CK(cuEventRecord(e, s));
    CK(cuEventSynchronize(before));
    for (int k = 0; k < 300; k++) {
      CHECK(cuEventQuery(e) == CUDA_ERROR_NOT_READY, "an event behind a waiting host function");
      CHECK(cuStreamQuery(s) == CUDA_ERROR_NOT_READY, "a stream with a waiting host function");
      CK(cuEventQuery(before));
      CK(cuStreamQuery(other));
      CK(cuStreamSynchronize(other));
    }
    hold = 0;
    if (i & 1) CK(cuStreamSynchronize(s));
    else
      while (cuEventQuery(e)) {}
    CK(cuEventQuery(e));
    if (i & 1) CK(cuStreamQuery(s));
  }
  CK(cuEventDestroy(e));
  CK(cuEventDestroy(before));
  CK(cuStreamDestroy(s));
  CK(cuStreamDestroy(other));
}

// What waited for an event is complete, so the event is.
static void across(void) {
  CUstream s[2];
  CUevent a, b;
  int r;
  for (int i = 0; i < 2; i++) CK(cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING));
  CK(cuEventCreate(&a, CU_EVENT_DISABLE_TIMING));
  CK(cuEventCreate(&b, CU_EVENT_DISABLE_TIMING));
  CUdeviceptr d;
  CK(cuMemAlloc(&d, 1 << 20));
  for (int i = 0; i < 3 * ROUNDS; i++) {
    CK(cuMemsetD32Async(d, 1, 1 << 18, s[i & 1]));
    CK(cuEventRecord(b, s[i & 1]));
    CK(cuStreamWaitEvent(s[~i & 1], b, 0));
    CK(cuEventRecord(a, s[~i & 1]));
    if ((r = (int)cuEventQuery(b)) && r != CUDA_ERROR_NOT_READY) CK(r);
    while ((r = (int)cuEventQuery(a)) == CUDA_ERROR_NOT_READY) {}
    CK(r);
    CK(cuEventQuery(b));
  }
  CK(cuMemFree(d));
  CK(cuEventDestroy(a));
  CK(cuEventDestroy(b));
  for (int i = 0; i < 2; i++) CK(cuStreamDestroy(s[i]));
}

// Threads that record, ask and destroy at the same time; handles are reused.
static void *worker(void *user) {
  unsigned seed = (unsigned)(size_t)user;
  CK(cuCtxSetCurrent(context));
  CUdeviceptr d;
  CK(cuMemAlloc(&d, 4 * WORDS));
  for (int i = 0; i < ROUNDS; i++) {
    CUstream s;
    CUevent e;
    CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    CK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    unsigned *got = malloc(4 * WORDS);
    for (int k = 0; k < 3; k++) {
      unsigned value = seed * 1000003u + (unsigned)(i * 3 + k);
      CK(cuMemsetD32Async(d, value, WORDS, s));
      CK(cuEventRecord(e, s));
      int r;
      while ((r = (int)cuEventQuery(e)) == CUDA_ERROR_NOT_READY) {}
      CK(r);
      CK(cuMemcpyDtoHAsync(got, d, 4 * WORDS, s));
      CK(cuStreamSynchronize(s));
      CHECK(got[0] == value && got[WORDS - 1] == value, "data after a finished event");
    }
    free(got);
    CK(cuEventDestroy(e));
    CK(cuStreamDestroy(s));
  }
  CK(cuMemFree(d));
  return NULL;
}

// Big copies, which may take several connections: contents, order, and threads at once.
static void *big(void *user) {
  size_t n = (5 << 20) + 4099 * (size_t)user;
  CK(cuCtxSetCurrent(context));
  CUstream s;
  CUdeviceptr d;
  unsigned char *up = malloc(n), *want = malloc(n), *down = malloc(n), *pinned;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuMemAlloc(&d, n));
  CK(cuMemAllocHost((void **)&pinned, n));
  for (int round = 0; round < 8; round++) {
    fill(want, n, (uint64_t)round * 8 + (size_t)user);
    memcpy(up, want, n);
    memset(want, 0xee, 100);
    memset(down, 0, n);
    CK(cuMemcpyHtoDAsync(d, up, n, s));
    CK(cuMemsetD8Async(d, 0xee, 100, s));
    memset(up, 0x55, 4096); // the copy was pageable: its source is ours again
    if (round & 1) {
      CK(cuMemcpyDtoHAsync(pinned, d, n, s));
      CK(cuStreamSynchronize(s));
      memcpy(down, pinned, n);
    } else {
      CK(cuStreamSynchronize(s));
      CK(cuMemcpyDtoH(down, d, n));
    }
    for (size_t i = 0; i < n; i += 4096) { // says where the first wrong byte is
      size_t m = n - i < 4096 ? n - i : 4096;
      if (memcmp(down + i, want + i, m))
        while (down[i] == want[i]) i++;
      CHECK(down[i] == want[i], "byte %zu of %zu in round %d: %d, want %d", i, n, round, down[i], want[i]);
    }
    memcpy(pinned, down, n);
    pinned[n - 1] ^= 1;
    CK(cuMemcpyHtoDAsync(d, pinned, n, s));
    CK(cuMemcpyDtoHAsync(down, d, n, s));
    CK(cuStreamSynchronize(s));
    CHECK(!memcmp(down, pinned, n), "there and back");
  }
  CK(cuMemFree(d));
  CK(cuMemFreeHost(pinned));
  CK(cuStreamDestroy(s));
  free(up);
  free(want);
  free(down);
  return NULL;
}

static void threads(void *(*f)(void *)) {
  pthread_t t[STREAMS];
  for (size_t i = 0; i < STREAMS; i++) pthread_create(&t[i], NULL, f, (void *)(i + 1));
  for (size_t i = 0; i < STREAMS; i++) pthread_join(t[i], NULL);
}

int main(int argc, char **argv) {
  start(argc, argv);
  conclusions();
  held();
  across();
  threads(worker);
  threads(big);
  return 0;
}
