// Threads that end while their streams work on: behind an upload, a kernel and a download, a callback hands the result
// to another thread, which looks at it and frees everything while other streams' callbacks have yet to run.
#include "check.h"
#include <pthread.h>

enum { THREADS = 8, ROUNDS = 6, N = 100000 };
static CUcontext ctx;
static CUfunction add;
static struct job { int id; pthread_t ended; CUstream s; CUdeviceptr d; float *h; int wrong; } jobs[THREADS];

static void *look(void *p) {
  struct job *j = p;
  CK(cuCtxSetCurrent(ctx));
  j->wrong = 0;
  for (int i = 0; i < N; i++) j->wrong += j->h[i] != 2 * (float)(i % 1000 + j->id);
  CK(cuMemFree(j->d));
  CK(cuMemFreeHost(j->h));
  CK(cuStreamDestroy(j->s));
  return NULL;
}

static void done(CUstream s, CUresult r, void *p) {
  struct job *j = p;
  CHECK(r == CUDA_SUCCESS && s == j->s, "callback with %d", (int)r);
  CHECK(!pthread_create(&j->ended, NULL, look, j), "no thread");
}

static void *work(void *p) {
  struct job *j = p;
  CK(cuCtxSetCurrent(ctx));
  CK(cuStreamCreate(&j->s, CU_STREAM_DEFAULT));
  CK(cuMemAlloc(&j->d, N * sizeof(float)));
  CK(cuMemHostAlloc((void **)&j->h, N * sizeof(float), CU_MEMHOSTALLOC_PORTABLE));
  for (int i = 0; i < N; i++) j->h[i] = (float)(i % 1000 + j->id);
  CK(cuMemcpyHtoDAsync(j->d, j->h, N * sizeof(float), j->s));
  int n = N;
  CK(LAUNCH(add, (N + 255) / 256, 256, 0, j->s, &j->d, &j->d, &j->d, &n));
  CK(cuMemcpyDtoHAsync(j->h, j->d, N * sizeof(float), j->s));
  CK(cuStreamAddCallback(j->s, done, j, 0));
  return NULL;
}

int main(int argc, char **argv) {
  start(argc, argv);
  CK(cuCtxGetCurrent(&ctx));
  add = function(load("kernels.fatbin"), "vector_add");
  for (int round = 0; round < ROUNDS; round++) {
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++) {
      jobs[i].id = i;
      CHECK(!pthread_create(&t[i], NULL, work, &jobs[i]), "no thread");
    }
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    CK(cuCtxSynchronize());
    for (int i = 0; i < THREADS; i++) {
      pthread_join(jobs[i].ended, NULL);
      CHECK(!jobs[i].wrong, "round %d: %d elements of thread %d are wrong", round, jobs[i].wrong, i);
    }
  }
  printf("callbacks ok\n");
  return 0;
}
