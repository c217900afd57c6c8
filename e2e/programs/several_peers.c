// Copies between the first GPU and the last one, to and fro, from several threads: several_peers KERNELS [ROUNDS]. With
// 0 rounds until its input ends.
#include "check.h"
#include <poll.h>
#include <pthread.h>

enum { THREADS = 3, MOST = 5 << 20 };

static CUcontext contexts[2];
static int rounds = 12;

static void use(int on) { CK(cuCtxSetCurrent(contexts[on])); }

static unsigned next(unsigned *x) { return *x ^= *x << 13, *x ^= *x >> 17, *x ^= *x << 5; }

static size_t some(unsigned *x) { // bytes: a few, or many
  const unsigned kind = next(x) % 4;
  return 1 + next(x) % (kind == 0 ? 64 : kind == 1 ? 70000 : MOST);
}

static int goes_on(int round) {
  struct pollfd input = {0, POLLIN, 0};
  return rounds ? round < rounds : !poll(&input, 1, 0);
}

static void *work(void *number) {
  unsigned x = 77 + (unsigned)(uintptr_t)number;
  CUdeviceptr p[2];
  CUstream stream[2];
  unsigned char *data = malloc(MOST), *got = malloc(MOST);
  for (int i = 0; i < 2; i++) {
    use(i);
    CK(cuMemAlloc(&p[i], MOST));
    CK(cuStreamCreate(&stream[i], i ? CU_STREAM_NON_BLOCKING : 0));
  }
  for (int k = 0; goes_on(k); k++) {
    const int from = next(&x) % 2, to = !from, form = next(&x) % 4;
    const size_t bytes = some(&x), a = next(&x) % (MOST - bytes + 1), b = next(&x) % (MOST - bytes + 1);
    fill(data, bytes, x);
    use(from);
    CK(cuMemcpyHtoDAsync(p[from] + a, data, bytes, stream[from]));
    CUstream on = stream[next(&x) % 2];
    if (form == 0 || form == 3 || on != stream[from]) CK(cuStreamSynchronize(stream[from]));
    switch (form) {
    case 0: CK(cuMemcpyPeer(p[to] + b, contexts[to], p[from] + a, contexts[from], bytes)); break;
    case 1: CK(cuMemcpyPeerAsync(p[to] + b, contexts[to], p[from] + a, contexts[from], bytes, on)); break;
    case 2: CK(cuMemcpyAsync(p[to] + b, p[from] + a, bytes, on)); break;
    default: CK(cuMemcpyDtoD(p[to] + b, p[from] + a, bytes));
    }
    // no copy on the device waits for its end
    CK(form == 1 || form == 2 ? cuStreamSynchronize(on) : cuCtxSynchronize());
    use(to);
    memset(got, 0, bytes);
    CK(cuMemcpyDtoH(got, p[to] + b, bytes));
    CHECK(!memcmp(data, got, bytes), "thread %d, round %d, form %d: %zu bytes differ", (int)(uintptr_t)number, k, form,
          bytes);
  }
  for (int i = 0; i < 2; i++) {
    use(i);
    CK(cuMemFree(p[i]));
    CK(cuStreamDestroy(stream[i]));
  }
  free(data), free(got);
  return NULL;
}

int main(int argc, char **argv) {
  start(argc, argv);
  if (argc > 2) rounds = atoi(argv[2]);
  int count;
  CK(cuDeviceGetCount(&count));
  for (int i = 0; i < 2; i++) CK(cuDevicePrimaryCtxRetain(&contexts[i], i ? count - 1 : 0));
  pthread_t threads[THREADS];
  for (uintptr_t i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], NULL, work, (void *)i), "no thread");
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  // a context that ends takes its place among the connections along, and the next one gets it
  CUcontext own;
  CUdeviceptr there, here;
  unsigned char data[3000], got[3000];
  for (int k = 0; k < 2; k++) {
    CK(cuCtxCreate(&own, 0, count - 1));
    CK(cuMemAlloc(&there, sizeof data));
    fill(data, sizeof data, k);
    CK(cuMemcpyHtoD(there, data, sizeof data));
    use(0);
    CK(cuMemAlloc(&here, sizeof data));
    CK(cuMemcpyPeer(here, contexts[0], there, own, sizeof data));
    CK(cuCtxSynchronize());
    CK(cuMemcpyDtoH(got, here, sizeof data));
    CHECK(!memcmp(data, got, sizeof data), "from a context of its own: bytes differ");
    CK(cuMemFree(here));
    CK(cuCtxDestroy(own));
  }
  printf("copied between two GPUs\n");
  return 0;
}
