// Streams, events, timing, callbacks and host functions.
#include "check.h"
#include <pthread.h>
#include <sched.h>

static int order[16], ordered;
static void CUDA_CB host(void *user) { order[__atomic_fetch_add(&ordered, 1, __ATOMIC_SEQ_CST)] = (int)(intptr_t)user; }
static void CUDA_CB callback(CUstream s, CUresult status, void *user) {
  (void)s;
  order[__atomic_fetch_add(&ordered, 1, __ATOMIC_SEQ_CST)] = (int)(intptr_t)user + (int)status;
}

// held keeps a stream busy until the program lets it go, however long it takes to look.
static int let_go;
static void CUDA_CB held(void *unused) {
  (void)unused;
  while (!__atomic_load_n(&let_go, __ATOMIC_ACQUIRE)) sched_yield();
}

int main(int argc, char **argv) {
  start(argc, argv);
  CUmodule m = load("kernels.ptx");
  CUfunction spin = function(m, "spin"), add = function(m, "vector_add");
  CUstream a, b, low;
  CUevent e, begin, end, plain;
  int least, greatest, priority;
  unsigned flags;
  CK(cuCtxGetStreamPriorityRange(&least, &greatest));
  CHECK(greatest <= least, "priorities %d … %d", least, greatest);
  CK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  CK(cuStreamCreate(&b, CU_STREAM_DEFAULT));
  CK(cuStreamCreateWithPriority(&low, CU_STREAM_NON_BLOCKING, greatest));
  CK(cuStreamGetPriority(low, &priority));
  CHECK(priority == greatest, "priority %d", priority);
  CK(cuStreamGetFlags(a, &flags));
  CHECK(flags == CU_STREAM_NON_BLOCKING, "flags %u", flags);
  CUcontext c;
  CK(cuStreamGetCtx(a, &c));
  CHECK(c == context, "the stream belongs to another context");
  CK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  CK(cuEventCreate(&begin, CU_EVENT_DEFAULT));
  CK(cuEventCreate(&end, CU_EVENT_BLOCKING_SYNC));
  CK(cuEventCreate(&plain, CU_EVENT_DEFAULT));

  // Busy, then not.
  long long cycles = 30000000;
  CK(cuEventQuery(plain)); // never recorded: complete
  CK(cuEventRecord(begin, a));
  CK(LAUNCH(spin, 1, 1, 0, a, &cycles));
  CK(cuLaunchHostFunc(a, held, NULL));
  CK(cuEventRecord(end, a));
  WANT(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
  WANT(cuEventQuery(end), CUDA_ERROR_NOT_READY);
  CK(cuStreamQuery(b)); // another stream is idle
  __atomic_store_n(&let_go, 1, __ATOMIC_RELEASE);
  CK(cuEventSynchronize(end));
  CK(cuEventQuery(end));
  CK(cuStreamQuery(a));
  float ms = 0;
  CK(cuEventElapsedTime(&ms, begin, end));
  CHECK(ms > 0.5f && ms < 20000, "the kernel took %g ms", ms);
  WANT(cuEventElapsedTime(&ms, begin, e), CUDA_ERROR_INVALID_HANDLE);
  printf("busy, then done\n");

  // b waits for a's event.
  enum { N = 1 << 16 };
  int n = N;
  float *x = malloc(N * 4), *y = malloc(N * 4);
  for (int i = 0; i < N; i++) x[i] = (float)i;
  CUdeviceptr d, f;
  CK(cuMemAlloc(&d, N * 4));
  CK(cuMemAlloc(&f, N * 4));
  CK(cuMemcpyHtoD(d, x, N * 4));
  CK(LAUNCH(spin, 1, 1, 0, a, &cycles));
  CK(LAUNCH(add, N / 256, 256, 0, a, &d, &d, &d, &n)); // doubles
  CK(cuEventRecord(e, a));
  CK(cuStreamWaitEvent(low, e, 0));
  CK(LAUNCH(add, N / 256, 256, 0, low, &d, &d, &f, &n)); // doubles again
  CK(cuMemcpyDtoHAsync(y, f, N * 4, low));
  CK(cuStreamSynchronize(low));
  for (int i = 0; i < N; i++) CHECK(y[i] == 4.f * i, "event order: [%d] = %g", i, y[i]);
  printf("event order ok\n");

  // The legacy default stream waits for blocking streams and they for it.
  CK(LAUNCH(spin, 1, 1, 0, b, &cycles));
  CK(LAUNCH(add, N / 256, 256, 0, b, &f, &f, &f, &n));  // 8
  CK(LAUNCH(add, N / 256, 256, 0, 0, &f, &f, &d, &n));  // 16, on the default stream
  CK(LAUNCH(add, N / 256, 256, 0, b, &d, &d, &d, &n));  // 32, on b
  CK(cuStreamSynchronize(b));
  CK(cuMemcpyDtoH(y, d, N * 4));
  for (int i = 0; i < N; i++) CHECK(y[i] == 32.f * i, "default stream order: [%d] = %g", i, y[i]);
  printf("default stream order ok\n");

  // The per-thread default stream.
  CK(LAUNCH(add, N / 256, 256, 0, CU_STREAM_PER_THREAD, &d, &d, &d, &n));
  CK(cuMemcpyDtoHAsync(y, d, N * 4, CU_STREAM_PER_THREAD));
  CK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  for (int i = 0; i < N; i++) CHECK(y[i] == 64.f * i, "per-thread stream: [%d] = %g", i, y[i]);

  // Host functions and callbacks run in stream order.
  for (int i = 0; i < 4; i++) {
    CK(LAUNCH(add, 1, 32, 0, a, &d, &d, &d, &n));
    if (i % 2) CK(cuStreamAddCallback(a, callback, (void *)(intptr_t)(10 + i), 0));
    else CK(cuLaunchHostFunc(a, host, (void *)(intptr_t)(10 + i)));
  }
  CK(cuStreamSynchronize(a));
  CHECK(ordered == 4, "%d of 4 callbacks ran before the stream was done", ordered);
  for (int i = 0; i < 4; i++) CHECK(order[i] == 10 + i, "callback %d came as number %d", order[i], i);
  printf("host functions ok\n");

  // Destroying a busy stream or event lets its work finish.
  CK(LAUNCH(spin, 1, 1, 0, a, &cycles));
  CK(LAUNCH(add, 1, 32, 0, a, &d, &d, &f, &n));
  CK(cuEventRecord(e, a));
  CK(cuEventDestroy(e));
  CK(cuStreamDestroy(a));
  CK(cuCtxSynchronize());
  CK(cuMemcpyDtoH(y, f, 4));

  // Who waits for the context waits for the work of destroyed streams, also of those that the default stream does not
  // wait for.
  CK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  CK(cuEventCreate(&e, 0));
  CK(LAUNCH(spin, 1, 1, 0, a, &cycles));
  CK(cuEventRecord(e, a));
  CK(cuStreamDestroy(a));
  CK(cuCtxSynchronize());
  CK(cuEventQuery(e));
  printf("streams ok\n");
  return 0;
}
