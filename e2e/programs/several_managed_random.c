// Random programs on unified memory of two servers against a plain model, from one thread and from two:
// several_managed_random KERNELS [SEED PROGRAMS [COMMAND that ends the second server]]. With a command the first
// server's GPU goes on with what it has.
#include "several_managed.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

enum { RANGES = 4, LARGEST = 200000, KERNEL_LARGEST = 9000, STEPS = 40, THREADS = 2 };

struct worker {
  uint64_t seed, state;
  int busy[2];
  struct range range[RANGES];
  CUstream stream[2];
  unsigned char *host;
};

static uint64_t next(struct worker *w, uint64_t below) { // xorshift*
  w->state ^= w->state >> 12, w->state ^= w->state << 25, w->state ^= w->state >> 27;
  return (w->state * 2685821657736338717ull >> 16) % below;
}
static void settle_one(struct worker *w, int i) {
  if (w->busy[i]) CK(cuStreamSynchronize(w->stream[i]));
  w->busy[i] = 0;
}
static void settle(struct worker *w) { settle_one(w, 0), settle_one(w, 1); }
static void check_part(struct worker *w, struct range *r, size_t from, size_t n) {
  settle(w);
  for (size_t i = from; i < from + n; i++)
    CHECK(r->p[i] == r->model[i], "seed %llu: byte %zu of %zu is %d, not %d", (unsigned long long)w->seed, i, r->bytes,
          r->p[i], r->model[i]);
}

static void step(struct worker *w) {
  struct range *r = &w->range[next(w, RANGES)], *q = &w->range[next(w, RANGES)];
  int on = (int)next(w, 2);
  if (!r->p) *r = make((int)next(w, 2), next(w, 3) ? 1 + next(w, LARGEST) : 1 + next(w, 5000));
  if (!q->p) *q = make((int)next(w, 2), 1 + next(w, LARGEST));
  if (next(w, 4)) use(on);
  size_t from = next(w, r->bytes), n = next(w, 4) ? 1 + next(w, 300) : r->bytes;
  if (n > r->bytes - from) n = r->bytes - from;
  switch (next(w, 11)) {
  case 0: case 1:
    check_part(w, r, from, n);
    break;
  case 2:
    settle(w);
    for (size_t i = 0; i < n; i++) r->p[from + i] = r->model[from + i] = (unsigned char)next(w, 256);
    break;
  case 3: case 4: case 5: {
    unsigned long long at = from, few = n < KERNEL_LARGEST ? n : KERNEL_LARGEST;
    unsigned a = (unsigned)next(w, 256) | 1, b = (unsigned)next(w, 256);
    use(on);
    settle_one(w, !on);
    CK(LAUNCH(gpus[on].mix, 4, 64, 0, w->stream[on], &r->p, &at, &few, &a, &b));
    for (size_t i = at; i < at + few; i++) r->model[i] = (unsigned char)(r->model[i] * a + b);
    w->busy[on] = 1;
    break;
  }
  case 6: {
    size_t at = next(w, q->bytes);
    if (q == r) break;
    if (n > q->bytes - at) n = q->bytes - at;
    settle(w);
    CK(cuMemcpyAsync(dev(q->p) + at, dev(r->p) + from, n, w->stream[on]));
    memcpy(q->model + at, r->model + from, n);
    w->busy[on] = 1;
    break;
  }
  case 7:
    settle(w);
    memset(r->model + from, (int)n & 255, n);
    CK(cuMemsetD8Async(dev(r->p) + from, (unsigned char)n, n, w->stream[on]));
    w->busy[on] = 1;
    break;
  case 8:
    settle(w);
    fill(w->host, n, w->state);
    CK(next(w, 2) ? cuMemcpyHtoDAsync(dev(r->p) + from, w->host, n, w->stream[on]) :
       cuMemcpy(dev(r->p) + from, (CUdeviceptr)(uintptr_t)w->host, n));
    memcpy(r->model + from, w->host, n);
    CK(cuStreamSynchronize(w->stream[on]));
    break;
  case 9: {
    int to = (int)next(w, 3);
    settle_one(w, !on);
    use(on);
    if (to < 2 && next(w, 2)) CK(advise(dev(r->p) + from, n, (CUmem_advise)(1 + next(w, 6)), gpus[to].device));
    else CK(prefetch(dev(r->p) + from, n, to < 2 ? gpus[to].device : CU_DEVICE_CPU, w->stream[on]));
    w->busy[on] = 1;
    break;
  }
  case 10:
    if (next(w, 2)) break;
    check_part(w, r, 0, r->bytes);
    drop(r);
    memset(r, 0, sizeof *r);
    break;
  }
}

static void *run(void *arg) {
  struct worker *w = arg;
  w->host = malloc(LARGEST);
  for (int i = 0; i < 2; i++) {
    use(i);
    CK(cuStreamCreate(&w->stream[i], CU_STREAM_NON_BLOCKING));
  }
  for (int i = 0; i < STEPS; i++) step(w);
  for (int i = 0; i < RANGES; i++) {
    if (!w->range[i].p) continue;
    check_part(w, &w->range[i], 0, w->range[i].bytes);
    drop(&w->range[i]);
  }
  settle(w);
  for (int i = 0; i < 2; i++) CK(cuStreamDestroy(w->stream[i]));
  free(w->host);
  return NULL;
}

static void random_programs(uint64_t first, uint64_t programs) {
  for (uint64_t seed = first; seed < first + programs; seed++) {
    int threads = seed % 3 ? 1 : THREADS;
    struct worker w[THREADS] = {0};
    pthread_t t[THREADS];
    for (int i = 0; i < threads; i++) {
      w[i].seed = seed, w[i].state = seed * 0x9E3779B97F4A7C15ull + (uint64_t)i * 77 + 1;
      CHECK(!pthread_create(&t[i], NULL, run, &w[i]), "no thread");
    }
    for (int i = 0; i < threads; i++) pthread_join(t[i], NULL);
  }
}

// ---- the end of a server ----

static sigjmp_buf touched;
static void on_bus(int signal) {
  (void)signal;
  siglongjmp(touched, 1);
}

static void lost(const char *command) {
  enum { N = (1 << 19) + 4321 };
  struct range here = make(0, PART), gone = make(0, PART), back = make(1, N);
  put(&here, 0, PART, 1), put(&gone, 0, PART, 2), put(&back, 0, N, 3);
  mix_on(1, &gone, 0, PART, 3, 1);
  mix_on(1, &here, 0, PART, 3, 1);
  mix_on(1, &back, 0, N, 3, 1);
  after(0);
  mix_on(0, &here, 0, PART, 3, 1);
  mix_on(0, &back, 0, N, 5, 1);
  wait_for(0), wait_for(1);
  CHECK(system(command) == 0, "%s", command);
  CUresult r;
  use(1);
  while ((r = cuMemsetD8(gpus[1].plain, 1, 16)) == CUDA_SUCCESS) {}
  CHECK(r == CUDA_ERROR_DEVICE_UNAVAILABLE, "after the loss: %d", r);
  compare(&here, 0, PART, "what came back before the loss");
  compare(&back, 0, N, "what came from there before the loss");
  for (unsigned i = 0; i < 4; i++) {
    mix_on(0, &here, 0, PART, 5, i);
    mix_on(0, &back, i * 1000, PART, 5, i);
    wait_for(0);
    compare(&here, 0, PART, "after the loss");
    put(&back, 5, 5, (int)i);
  }
  unsigned long long from = 0, n = PART;
  unsigned a = 1, b = 1;
  use(0);
  WANT(LAUNCH(gpus[0].mix, 4, 64, 0, gpus[0].stream, &gone.p, &from, &n, &a, &b), CUDA_ERROR_DEVICE_UNAVAILABLE);
  struct sigaction bus = {.sa_handler = on_bus};
  sigaction(SIGBUS, &bus, NULL);
  if (!sigsetjmp(touched, 1)) FAIL("what is lost has %d", ((volatile unsigned char *)gone.p)[100]);
  mix_on(0, &back, 0, N, 3, 9);
  wait_for(0);
  compare(&back, 0, N, "after the fault");
  struct range new = make(0, PART);
  put(&new, 0, PART, 6);
  mix_on(0, &new, 0, PART, 3, 9);
  wait_for(0);
  compare(&new, 0, PART, "made after the loss");
  drop(&new), drop(&here), drop(&back);
  cuMemFree(dev(gone.p));
  printf("one server\n");
}

int main(int argc, char **argv) {
  start_two(argc, argv);
  uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, programs = argc > 3 ? strtoull(argv[3], NULL, 10) : 6;
  random_programs(seed, programs);
  printf("%llu programs\n", (unsigned long long)programs);
  if (argc > 4) lost(argv[4]);
  return 0;
}
