// Pinned memory that kernels of two servers use, in turns and at once: several_pinned KERNELS
// Device 0 is the first server's, and the last device the second's.
#include "check.h"
#include <unistd.h>

enum { N = 1024, LARGE = 40000, BIG = 8 << 20 };

struct gpu {
  CUcontext context;
  CUstream stream;
  CUfunction add;
  CUdeviceptr far;
} gpus[2];

static void use(int i) { CK(cuCtxSetCurrent(gpus[i].context)); }

static void sum(int i, float *a, float *b, float *c, int n) {
  CUdeviceptr d[3] = {(CUdeviceptr)(uintptr_t)a, (CUdeviceptr)(uintptr_t)b, (CUdeviceptr)(uintptr_t)c};
  CK(LAUNCH(gpus[i].add, (n + 255) / 256, 256, 0, gpus[i].stream, &d[0], &d[1], &d[2], &n));
}

// What one GPU made, the other one uses, with what the program changes between.
static void in_turns(int home, int n) {
  float *p[3];
  use(home);
  for (int i = 0; i < 3; i++) CK(cuMemHostAlloc((void **)&p[i], 4 * n, CU_MEMHOSTALLOC_PORTABLE));
  for (int i = 0; i < n; i++) p[0][i] = i, p[1][i] = 1, p[2][i] = 0;
  for (int round = 0; round < 6; round++) {
    int on = round % 2;
    use(on);
    sum(on, p[0], p[1], p[0], n); // one more each time
    if (round == 2) CK(cuCtxSynchronize());
    else CK(cuStreamSynchronize(gpus[on].stream));
    for (int i = 0; i < n; i++) {
      float want = i + 1 + round + 10 * round;
      CHECK(p[0][i] == want, "home %d, round %d: element %d is %f, not %f", home, round, i, p[0][i], want);
      p[0][i] += 10;
    }
  }
  use(!home);
  for (int i = 0; i < 3; i++) CK(cuMemFreeHost(p[i]));
}

// Each GPU writes a part of a range while the other one writes another, and the program a third.
static void at_once(void) {
  float *a, *c;
  use(0);
  CK(cuMemHostAlloc((void **)&a, 4 * N, 0));
  CK(cuMemHostAlloc((void **)&c, 12 * N, 0));
  for (int i = 0; i < N; i++) a[i] = i + 1, c[i] = c[N + i] = c[2 * N + i] = 0;
  for (int i = 0; i < 2; i++) {
    use(i);
    sum(i, a, a, c + i * N, N);
  }
  for (int i = 0; i < N; i++) c[2 * N + i] = 7;
  CK(cuStreamSynchronize(gpus[0].stream)); // of a server that is not the current context's
  for (int i = 0; i < N; i++) CHECK(c[i] == 2 * i + 2, "the first GPU: element %d is %f", i, c[i]);
  CK(cuStreamSynchronize(gpus[1].stream));
  for (int i = 0; i < N; i++)
    CHECK(c[i] == 2 * i + 2 && c[N + i] == 2 * i + 2 && c[2 * N + i] == 7, "element %d: %f %f %f", i, c[i], c[N + i],
          c[2 * N + i]);
  CK(cuMemFreeHost(a));
  CK(cuMemFreeHost(c));
}

// An event tells of the other server's work, and a set is in a stream of it.
static void events(void) {
  float *p;
  CUevent e;
  use(1);
  CK(cuEventCreate(&e, 0));
  CK(cuMemHostAlloc((void **)&p, 4 * N, 0));
  for (int i = 0; i < N; i++) p[i] = i;
  sum(1, p, p, p, N);
  CK(cuEventRecord(e, gpus[1].stream));
  use(0);
  CK(cuEventSynchronize(e));
  for (int i = 0; i < N; i++) CHECK(p[i] == 2 * i, "behind the event: element %d is %f", i, p[i]);
  CK(cuMemsetD32Async((CUdeviceptr)(uintptr_t)p, 0, N, gpus[1].stream));
  CK(cuStreamSynchronize(gpus[1].stream));
  for (int i = 0; i < N; i++) CHECK(p[i] == 0, "behind the set: element %d is %f", i, p[i]);
  CK(cuMemFreeHost(p));
  use(1);
  CK(cuEventDestroy(e));
}

static void slow(void *nothing) {
  (void)nothing;
  usleep(20000);
}

// Memory is freed by one server's context while a copy from the other one's GPU is under way to it.
static void freed_early(void) {
  for (int i = 0; i < 2; i++) {
    void *p;
    use(!i);
    CK(cuMemHostAlloc(&p, BIG, CU_MEMHOSTALLOC_PORTABLE));
    use(i);
    CK(cuLaunchHostFunc(gpus[i].stream, slow, NULL));
    CK(cuMemcpyDtoHAsync(p, gpus[i].far, BIG, gpus[i].stream));
    use(!i);
    CK(cuMemFreeHost(p));
    use(i);
    CK(cuStreamSynchronize(gpus[i].stream));
  }
}

// A kernel waits for what the program writes before it asks for a copy. The copy waits for the kernel, so the flag goes
// ahead of it: the copy is of the other GPU's memory, or of both, in the kernel's stream.
static void flags(int home) {
  const int away = !home;
  CUmodule m;
  CUdeviceptr p;
  use(home);
  CK(cuModuleLoadData(&m, await_ptx()));
  CUfunction await = function(m, "await");
  volatile uint32_t *flag;
  float *host = malloc(BIG), *back = malloc(BIG);
  CK(cuMemHostAlloc((void **)&flag, 4096, 0));
  p = (CUdeviceptr)(uintptr_t)flag;
  for (uint32_t round = 1; round <= 6; round++) {
    for (int i = 0; i < BIG / 4; i++) host[i] = (float)i + (float)round;
    flag[0] = 0;
    use(home);
    CK(LAUNCH(await, 1, 1, 0, gpus[home].stream, &p, &round));
    // what was there before the launch goes up, and the flag behind it
    WANT(cuStreamQuery(gpus[home].stream), CUDA_ERROR_NOT_READY);
    flag[0] = round;
    switch (round % 3) {
    case 0: CK(cuMemcpyHtoDAsync(gpus[away].far, host, BIG, gpus[home].stream)); break;
    case 1:
      CK(cuMemcpyHtoD(gpus[home].far, host, BIG)); // of no stream that the kernel is in
      CK(cuMemcpyDtoDAsync(gpus[away].far, gpus[home].far, BIG, gpus[home].stream));
      break;
    case 2:
      use(away);
      CK(cuMemcpyHtoD(gpus[away].far, host, BIG));
      CK(cuMemcpyPeerAsync(gpus[home].far, gpus[home].context, gpus[away].far, gpus[away].context, BIG,
                           gpus[home].stream));
    }
    CK(cuStreamSynchronize(gpus[home].stream));
    CK(cuMemcpyDtoH(back, round % 3 == 2 ? gpus[home].far : gpus[away].far, BIG));
    CHECK(!memcmp(host, back, BIG), "round %u: the copy is another one", round);
  }
  CK(cuMemFreeHost((void *)flag));
  free(host), free(back);
}

int main(int argc, char **argv) {
  start(argc, argv);
  int count;
  CK(cuDeviceGetCount(&count));
  for (int i = 0; i < 2; i++) {
    CK(cuDevicePrimaryCtxRetain(&gpus[i].context, i ? count - 1 : 0));
    use(i);
    gpus[i].add = function(load("kernels.ptx"), "vector_add");
    CK(cuStreamCreate(&gpus[i].stream, CU_STREAM_NON_BLOCKING));
    CK(cuMemAlloc(&gpus[i].far, BIG));
  }
  for (int home = 0; home < 2; home++) {
    in_turns(home, N);
    in_turns(home, LARGE);
  }
  at_once();
  events();
  freed_early();
  for (int home = 0; home < 2; home++) flags(home);
  printf("pinned memory of two servers\n");
  return 0;
}
