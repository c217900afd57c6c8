// 300 threads in one client, each with a stream of its own, all at once.
#include "check.h"
#include <pthread.h>

enum { THREADS = 300, N = 256, ROUNDS = 5 };
static CUfunction saxpy;
static pthread_barrier_t barrier;

static void *work(void *arg) {
  int id = (int)(intptr_t)arg;
  CUstream s;
  CUdeviceptr x;
  float host[N], back[N];
  CK(cuCtxSetCurrent(context));
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuMemAlloc(&x, sizeof host));
  pthread_barrier_wait(&barrier);
  for (int i = 0; i < ROUNDS; i++) {
    for (int k = 0; k < N; k++) host[k] = id * 1000 + i * 10 + k;
    CK(cuMemcpyHtoDAsync(x, host, sizeof host, s));
    CK(cuMemcpyDtoHAsync(back, x, sizeof back, s));
    CK(cuStreamSynchronize(s));
    CHECK(!memcmp(host, back, sizeof host), "thread %d, round %d", id, i);
  }
  CK(cuMemFree(x));
  CK(cuStreamDestroy(s));
  return NULL;
}

int main(int argc, char **argv) {
  start(argc, argv);
  pthread_t t[THREADS];
  pthread_barrier_init(&barrier, NULL, THREADS);
  for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&t[i], NULL, work, (void *)(intptr_t)i), "thread %d", i);
  for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
  printf("%d threads right\n", THREADS);
  return 0;
}
