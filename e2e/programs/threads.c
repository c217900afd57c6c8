// Many threads at once, each with its own stream, memory and modules.
#include "check.h"
#include <pthread.h>

static CUfunction add;
static void *work(void *arg) {
  int id = (int)(intptr_t)arg, n = 3000 + id;
  CUcontext c;
  CK(cuCtxGetCurrent(&c));
  CHECK(!c, "a new thread has a context");
  CUstream s;
  WANT(cuStreamCreate(&s, 0), CUDA_ERROR_INVALID_CONTEXT);
  CK(cuCtxSetCurrent(context));
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CUdeviceptr d;
  float *x = malloc(n * 4);
  CK(cuMemAlloc(&d, n * 4));
  for (int round = 0; round < 60; round++) {
    for (int i = 0; i < n; i++) x[i] = (float)(i % 100 + id);
    CK(cuMemcpyHtoDAsync(d, x, n * 4, s));
    for (int k = 0; k < 5; k++) CK(LAUNCH(add, (n + 255) / 256, 256, 0, s, &d, &d, &d, &n));
    CK(cuMemcpyDtoHAsync(x, d, n * 4, s));
    CK(cuStreamSynchronize(s));
    for (int i = 0; i < n; i++)
      CHECK(x[i] == 32.f * (i % 100 + id), "thread %d round %d: [%d] = %g", id, round, i, x[i]);
    if (round % 20 == 0) {
      CUmodule m = load("kernels.ptx");
      CK(cuModuleUnload(m));
    }
  }
  CK(cuMemFree(d));
  CK(cuStreamDestroy(s));
  free(x);
  return NULL;
}

static void *brief(void *arg) { // threads come and go
  (void)arg;
  CUdeviceptr d;
  CK(cuCtxSetCurrent(context));
  CK(cuMemAlloc(&d, 4096));
  CK(cuMemsetD8Async(d, 1, 4096, CU_STREAM_PER_THREAD));
  CK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  CK(cuMemFree(d));
  return NULL;
}

int main(int argc, char **argv) {
  start(argc, argv);
  CUmodule m = load("kernels.ptx");
  add = function(m, "vector_add");
  pthread_t t[8];
  for (int i = 0; i < 8; i++) pthread_create(&t[i], NULL, work, (void *)(intptr_t)i);
  for (int i = 0; i < 8; i++) pthread_join(t[i], NULL);
  for (int i = 0; i < 300; i++) {
    pthread_create(&t[0], NULL, brief, NULL);
    pthread_join(t[0], NULL);
  }
  printf("threads ok\n");
  return 0;
}
