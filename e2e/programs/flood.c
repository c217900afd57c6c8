// The program outruns the server: four threads send far more commands than the ring holds, while a host function of
// another stream waits for them to have done so, a thread waits for that stream, and downloads and uploads go on.
// Nothing may wait for itself, and the program's memory must not grow.
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { THREADS = 4, COMMANDS = 15000, N = 1 << 20, LIMIT = 48 << 10 }; // LIMIT in KiB
static atomic_int sent;
static atomic_int released;

static long resident(void) { // KiB
  char line[256];
  long kib = 0;
  FILE *f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "VmRSS: %ld", &kib) == 1) break;
  if (f) fclose(f);
  return kib;
}

// Freeing memory waits for the host function; a driver that holds a lock meanwhile would keep the others from what that
// waits for.
static void await_all(void) {
  while (atomic_load(&sent) < THREADS * COMMANDS) usleep(100);
}

static void *flood(void *arg) {
  CUstream s;
  CUevent e;
  CUdeviceptr d;
  CK(cuCtxSetCurrent(context));
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  CK(cuMemAlloc(&d, 4096));
  for (int i = 0; i < COMMANDS; i++) {
    CK(cuMemsetD32Async(d, (unsigned)i, 1024, s));
    if (i % 8 == 0) CK(cuEventRecord(e, s));
    atomic_fetch_add(&sent, 1);
  }
  unsigned last = 0;
  CK(cuMemcpyDtoHAsync(&last, d, 4, s));
  CK(cuStreamSynchronize(s));
  CHECK(last == COMMANDS - 1, "the last memset: %u", last);
  await_all();
  CK(cuMemFree(d));
  CK(cuEventDestroy(e));
  CK(cuStreamDestroy(s));
  return arg;
}

static void CUDA_CB wait_for_all(void *user) {
  await_all();
  atomic_fetch_add((atomic_int *)user, 1);
}

static void *wait_for_stream(void *stream) {
  CK(cuCtxSetCurrent(context));
  CK(cuStreamSynchronize(stream));
  CHECK(atomic_load(&released) == 1, "the stream is done before its host function");
  return NULL;
}

static void *copy(void *arg) { // both ways, bigger than the ring's commands and in pieces
  CUstream s;
  CUdeviceptr d;
  char *up, *down;
  CK(cuCtxSetCurrent(context));
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuMemAlloc(&d, N));
  CK(cuMemAllocHost((void **)&up, N));
  CK(cuMemAllocHost((void **)&down, N));
  for (int round = 0; atomic_load(&sent) < THREADS * COMMANDS && round < 100; round++) {
    memset(up, round, N);
    CK(cuMemcpyHtoDAsync(d, up, N, s));
    CK(cuMemcpyDtoHAsync(down, d, N, s));
    CK(cuStreamSynchronize(s));
    CHECK(!memcmp(up, down, N), "copies of round %d", round);
  }
  await_all();
  CK(cuMemFreeHost(up));
  CK(cuMemFreeHost(down));
  CK(cuMemFree(d));
  return arg;
}

int main(int argc, char **argv) {
  start(argc, argv);
  CUstream blocked;
  pthread_t t[THREADS + 2];
  CK(cuStreamCreate(&blocked, CU_STREAM_NON_BLOCKING));
  CK(cuLaunchHostFunc(blocked, wait_for_all, &released));
  CK(cuMemAlloc(&(CUdeviceptr){0}, 4096));
  long before = resident();
  for (int i = 0; i < THREADS + 2; i++)
    CHECK(!pthread_create(&t[i], NULL, i < THREADS ? flood : i == THREADS ? wait_for_stream : copy,
                          i == THREADS ? (void *)blocked : NULL), "thread %d", i);
  for (int i = 0; i < THREADS + 2; i++) pthread_join(t[i], NULL);
  long grown = resident() - before;
  CHECK(grown < LIMIT, "the program has grown by %ld KiB", grown);
  puts("flood ok");
  return 0;
}
