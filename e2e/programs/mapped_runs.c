// Launches that follow each other without a wait see what the program wrote to pinned memory before each of them: in a
// row, of several threads, streams and GPUs, in graphs, beside captures and waits, and before the memory goes.
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>

enum { N = 600, THREADS = 4, WORDS = 2048 /* two blocks */ };

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
  // to[at] = *from
  ".visible .entry take(.param .u64 from, .param .u64 to, .param .u32 at) {\n.reg .u64 %f, %t, %o; .reg .u32 %x, %i;\n"
  "ld.param.u64 %f, [from]; ld.param.u64 %t, [to]; ld.param.u32 %i, [at];\nld.volatile.global.u32 %x, [%f]; "
  "mul.wide.u32 %o, %i, 4; add.u64 %t, %t, %o; st.global.u32 [%t], %x; ret;\n}\n";

static struct gpu { CUcontext context; CUfunction take; } gpus[2];

static void use(int i) { CK(cuCtxSetCurrent(gpus[i].context)); }

static void launch(int gpu, CUstream s, volatile uint32_t *from, CUdeviceptr to, uint32_t at) {
  CK(LAUNCH(gpus[gpu].take, 1, 1, 0, s, &from, &to, &at));
}

static uint32_t *pinned(size_t words) {
  uint32_t *p;
  CK(cuMemHostAlloc((void **)&p, 4 * words, CU_MEMHOSTALLOC_PORTABLE));
  memset(p, 0, 4 * words);
  return p;
}

static CUstream stream(void) {
  CUstream s;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  return s;
}

static CUdeviceptr results(void) {
  CUdeviceptr p;
  CK(cuMemAlloc(&p, 4 * N));
  CK(cuMemsetD32(p, 0, N));
  CK(cuCtxSynchronize()); // for streams that do not wait for the legacy one
  return p;
}

// Before launch i the word was i + 1, and it only grew.
static void check(CUdeviceptr from, const char *what) {
  uint32_t got[N];
  CK(cuMemcpyDtoH(got, from, sizeof got));
  for (uint32_t i = 0; i < N; i++) CHECK(got[i] > i && got[i] <= N, "%s: launch %u saw %u", what, i, got[i]);
}

// The word lies at the end of a range of so many words.
static void in_a_row(int gpu, size_t words, const char *what) {
  use(gpu);
  volatile uint32_t *p = pinned(words), *word = p + words - 1;
  CUdeviceptr to = results();
  CUstream s = stream();
  for (uint32_t i = 0; i < N; i++) {
    *word = i + 1;
    launch(gpu, s, word, to, i);
  }
  CK(cuStreamSynchronize(s));
  check(to, what);
  CK(cuMemFree(to));
  CK(cuMemFreeHost((void *)p));
  CK(cuStreamDestroy(s));
}

// Two streams in turns, of which each waits for the other.
static void over_streams(void) {
  use(0);
  volatile uint32_t *p = pinned(WORDS);
  CUdeviceptr to = results();
  CUstream s[2] = {stream(), NULL};
  CUevent e;
  CK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  for (uint32_t i = 0; i < N; i++) {
    p[0] = i + 1;
    launch(0, s[i % 2], p, to, i);
    CK(cuEventRecord(e, s[i % 2]));
    CK(cuStreamWaitEvent(s[1 - i % 2], e, 0));
  }
  CK(cuCtxSynchronize());
  check(to, "streams");
  CK(cuEventDestroy(e));
  CK(cuStreamDestroy(s[0]));
  CK(cuMemFree(to));
  CK(cuMemFreeHost((void *)p));
}

// The same GPU's or two GPUs' kernels, in turns, of the same memory.
static void over_gpus(void) {
  volatile uint32_t *p;
  CUdeviceptr to[2];
  CUstream s[2];
  for (int g = 0; g < 2; g++) {
    use(g);
    if (!g) p = pinned(WORDS);
    to[g] = results();
    s[g] = stream();
  }
  for (uint32_t i = 0; i < N; i++)
    for (int g = 0; g < 2; g++) {
      use(g);
      p[WORDS - 1] = i + 1;
      launch(g, s[g], p + WORDS - 1, to[g], i);
    }
  for (int g = 0; g < 2; g++) {
    use(g);
    CK(cuStreamSynchronize(s[g]));
    check(to[g], g ? "the second GPU" : "the first GPU");
    CK(cuMemFree(to[g]));
    CK(cuStreamDestroy(s[g]));
  }
  CK(cuMemFreeHost((void *)p));
}

// Graphs in a row; and launches while another stream is captured, which is about to launch as well.
static void in_graphs(void) {
  use(0);
  volatile uint32_t *p = pinned(WORDS);
  CUdeviceptr to = results(), other = results();
  CUstream s = stream(), captured = stream();
  CUgraph g;
  CUgraphExec x;
  CK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
  for (uint32_t i = 0; i < N; i++) {
    p[0] = i + 1;
    launch(0, s, p, to, i);
    if (i == N / 2) launch(0, captured, p + 1, other, 0);
  }
  CK(cuStreamEndCapture(captured, &g));
  CK(cuGraphInstantiateWithFlags(&x, g, 0));
  CK(cuStreamSynchronize(s));
  check(to, "beside a capture");
  for (uint32_t i = 0, got[8]; i < 8; i++) {
    for (uint32_t k = 0; k < 20; k++) {
      p[1] = 20 * i + k + 1;
      CK(cuGraphLaunch(x, s));
    }
    CK(cuMemcpyDtoHAsync(&got[i], other, 4, s));
    CK(cuStreamSynchronize(s));
    CHECK(got[i] == 20 * (i + 1), "a graph saw %u, not %u", got[i], 20 * (i + 1));
  }
  CK(cuGraphExecDestroy(x));
  CK(cuGraphDestroy(g));
  CK(cuStreamDestroy(s));
  CK(cuStreamDestroy(captured));
  CK(cuMemFree(to));
  CK(cuMemFree(other));
  CK(cuMemFreeHost((void *)p));
}

// Each thread has a word in the same block and a stream of its own; another thread writes for it. What a wait of one
// brings back leaves alone what others wrote meanwhile.
static volatile uint32_t *shared;
static struct writer { _Atomic uint32_t want, done; } writers[THREADS];

static void *write_for(void *number) {
  struct writer *w = &writers[(intptr_t)number];
  for (uint32_t i = 1; i <= N; i++) {
    while (atomic_load(&w->want) < i) {}
    shared[(intptr_t)number] = i;
    atomic_store(&w->done, i);
  }
  return NULL;
}

static void *launch_in_turn(void *number) {
  const intptr_t me = (intptr_t)number;
  use(0);
  CUdeviceptr to = results();
  CUstream s = stream();
  pthread_t other;
  CHECK(!pthread_create(&other, NULL, write_for, number), "a thread");
  for (uint32_t i = 0; i < N; i++) {
    atomic_store(&writers[me].want, i + 1);
    while (atomic_load(&writers[me].done) <= i) {}
    launch(0, s, shared + me, to, i);
    volatile uint32_t *beside = shared + WORDS / 2 + me;
    CHECK(*beside == i, "thread %d wrote %u, and finds %u", (int)me, i, *beside);
    *beside = i + 1;
    if (i % 50 == 25 + me) CK(cuStreamSynchronize(s)); // brings back what kernels wrote, which is nothing
  }
  pthread_join(other, NULL);
  CK(cuStreamSynchronize(s));
  check(to, "a thread");
  CK(cuMemFree(to));
  CK(cuStreamDestroy(s));
  return NULL;
}

static void of_threads(void) {
  pthread_t threads[THREADS];
  use(0);
  shared = pinned(WORDS);
  for (intptr_t i = 0; i < THREADS; i++)
    CHECK(!pthread_create(&threads[i], NULL, launch_in_turn, (void *)i), "a thread");
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  CK(cuMemFreeHost((void *)shared));
}

// The memory goes while kernels have not used it yet, which natively waits for them.
static void freed(void) {
  use(0);
  CUdeviceptr to = results();
  CUstream s = stream();
  for (uint32_t i = 0; i < N / 10; i++) {
    volatile uint32_t *p = pinned(WORDS);
    for (uint32_t k = 0; k < 10; k++) {
      p[k % 3 * 500] = 10 * i + k + 1;
      launch(0, s, p + k % 3 * 500, to, 10 * i + k);
    }
    CK(cuMemFreeHost((void *)p));
  }
  check(to, "freed");
  CK(cuMemFree(to));
  CK(cuStreamDestroy(s));
}

int main(int argc, char **argv) {
  start(argc, argv);
  int count;
  CUmodule m;
  CK(cuDeviceGetCount(&count));
  for (int g = 0; g < 2; g++) {
    CK(cuDevicePrimaryCtxRetain(&gpus[g].context, g ? count - 1 : 0));
    use(g);
    CK(cuModuleLoadData(&m, ptx));
    gpus[g].take = function(m, "take");
  }
  for (int g = 0; g < 2; g++) {
    in_a_row(g, WORDS, "in a row");
    in_a_row(g, 64 * 1024, "in a row, large");
  }
  over_streams();
  over_gpus();
  in_graphs();
  of_threads();
  freed();
  printf("each launch saw what was written before it\n");
  return 0;
}
