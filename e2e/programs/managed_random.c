// Random programs on unified memory against a plain model: every byte that the CPU reads must be what the model has.
// Each thread has ranges and a stream of its own, to which some are attached, or to the CPU, and what one thread does
// moves the pages of all. Arguments: the folder of kernels, the first seed, the number of programs.
#include "managed.h"
#include <pthread.h>
#include <unistd.h>

enum { RANGES = 6, LARGEST = 300000, KERNEL_LARGEST = 20000, STEPS = 40, THREADS = 3 };

static CUdevice device;

struct range { unsigned char *p, *model; size_t bytes; };
struct worker { uint64_t seed, state; int busy; CUstream stream; struct range range[RANGES]; unsigned char *host; };

static uint64_t next(struct worker *w, uint64_t below) { // xorshift*
  w->state ^= w->state >> 12, w->state ^= w->state << 25, w->state ^= w->state >> 27;
  return (w->state * 2685821657736338717ull >> 16) % below;
}

static struct range *some(struct worker *w) {
  struct range *r = &w->range[next(w, RANGES)];
  if (r->p) return r;
  r->bytes = next(w, 3) ? 1 + next(w, LARGEST) : 1 + next(w, 5000);
  r->p = managed(r->bytes);
  r->model = calloc(1, r->bytes);
  return r;
}
static size_t stretch(struct worker *w, const struct range *r, size_t most, size_t *from) {
  *from = next(w, r->bytes);
  size_t n = next(w, 4) ? 1 + next(w, 300) : r->bytes; // mostly short ones
  if (n > r->bytes - *from) n = r->bytes - *from;
  return n < most ? n : most;
}
static void settle(struct worker *w) { // the CPU may touch the memory only then
  if (w->busy) CK(next(w, 4) ? cuStreamSynchronize(w->stream) : cuCtxSynchronize());
  w->busy = 0;
}
static void compare(struct worker *w, const struct range *r, const unsigned char *got, size_t from, size_t n,
                    const char *what) {
  for (size_t i = 0; i < n; i++)
    CHECK(got[i] == r->model[from + i], "seed %llu: %s: byte %zu of %zu at %p is %u, want %u",
          (unsigned long long)w->seed, what, from + i, r->bytes, (void *)r->p, got[i], r->model[from + i]);
}

static void change(struct worker *w, struct range *r, unsigned long long from, unsigned long long n) { // a kernel
  unsigned a = (unsigned)next(w, 256) | 1, b = (unsigned)next(w, 256);
  CK(LAUNCH(mixer, 4, 64, 0, w->stream, &r->p, &from, &n, &a, &b)); // few threads: a simulated GPU's time
  for (size_t i = from; i < from + n; i++) r->model[i] = (unsigned char)(r->model[i] * a + b);
  w->busy = 1;
}

static void step(struct worker *w) {
  struct range *r = some(w), *q;
  size_t from, at, n = stretch(w, r, LARGEST, &from);
  int advice;
  switch (next(w, 16)) {
  case 0: case 1: // the CPU reads
    settle(w);
    compare(w, r, r->p + from, from, n, "read");
    break;
  case 2: case 3: // and writes
    settle(w);
    for (size_t i = 0; i < n; i++) r->p[from + i] = r->model[from + i] = (unsigned char)next(w, 256);
    break;
  case 4: case 5: case 6:
    change(w, r, from, n < KERNEL_LARGEST ? n : KERNEL_LARGEST);
    break;
  case 7: // copies from and to the host's memory
    fill(w->host, n, w->state);
    CK(cuMemcpyHtoDAsync(dev(r->p) + from, w->host, n, w->stream));
    memcpy(r->model + from, w->host, n);
    w->busy = 1;
    break;
  case 8:
    CK(cuMemcpyDtoHAsync(w->host, dev(r->p) + from, n, w->stream));
    CK(cuStreamSynchronize(w->stream));
    w->busy = 0;
    compare(w, r, w->host, from, n, "copy to the host");
    break;
  case 9: // and between ranges
    q = some(w);
    if (q == r) break;
    at = next(w, q->bytes);
    if (n > q->bytes - at) n = q->bytes - at;
    CK(next(w, 2) ? cuMemcpyDtoDAsync(dev(q->p) + at, dev(r->p) + from, n, w->stream) :
       cuMemcpyAsync(dev(q->p) + at, dev(r->p) + from, n, w->stream));
    memcpy(q->model + at, r->model + from, n);
    w->busy = 1;
    break;
  case 10:
    at = next(w, 256);
    CK(cuMemsetD8Async(dev(r->p) + from, (unsigned char)at, n, w->stream));
    memset(r->model + from, (int)at, n);
    w->busy = 1;
    break;
  case 11:
    if (next(w, 2)) CK(prefetch(dev(r->p) + from, n, next(w, 2) ? device : CU_DEVICE_CPU, w->stream));
    w->busy = 1;
    break;
  case 12: // of some pages
    advice = 1 + (int)next(w, 6); // set and unset: read mostly, preferred location, accessed by
    CK(advise(dev(r->p) + from, n, (CUmem_advise)advice, next(w, 2) ? device : CU_DEVICE_CPU));
    break;
  case 15: // calls that name it take it all the same
    settle(w);
    CK(cuStreamAttachMemAsync(w->stream, dev(r->p), 0, (unsigned)CU_MEM_ATTACH_GLOBAL << next(w, 3)));
    w->busy = 1;
    break;
  case 14: // to and fro, for a while, now and then without the CPU
    if (next(w, 3)) break;
    for (uint64_t rounds = 2 + next(w, 40); rounds--;) {
      change(w, r, from, n < 300 ? n : 300);
      settle(w);
      if (!next(w, 10)) continue;
      if (next(w, 4)) compare(w, r, r->p + from, from, n < 300 ? n : 300, "to and fro");
      at = next(w, r->bytes);
      if (next(w, 2)) r->p[at] = r->model[at] = (unsigned char)next(w, 256);
      if (next(w, 2)) r->p[from] = r->model[from] = (unsigned char)next(w, 256);
    }
    break;
  case 13: // what is freed has been read to the end before
    if (next(w, 2)) break;
    settle(w);
    compare(w, r, r->p, 0, r->bytes, "the end");
    release(r->p);
    free(r->model);
    memset(r, 0, sizeof *r);
    break;
  }
}

static void *run(void *arg) {
  struct worker *w = arg;
  CK(cuCtxSetCurrent(context));
  CK(cuStreamCreate(&w->stream, CU_STREAM_NON_BLOCKING));
  w->host = malloc(LARGEST);
  for (int i = 0; i < STEPS; i++) step(w);
  CK(cuStreamSynchronize(w->stream));
  for (int i = 0; i < RANGES; i++) {
    struct range *r = &w->range[i];
    if (!r->p) continue;
    compare(w, r, r->p, 0, r->bytes, "at last");
    release(r->p);
    free(r->model);
  }
  CK(cuStreamDestroy(w->stream));
  free(w->host);
  return NULL;
}

int main(int argc, char **argv) {
  start_managed(argc, argv);
  uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, programs = argc > 3 ? strtoull(argv[3], NULL, 10) : 20;
  CK(cuDeviceGet(&device, 0));
  /* First those of one thread, for which blocks come with waits: once several have given work at the same time that is
   * over. */
  const uint64_t begin = seed;
  for (uint64_t i = 0; i < 2 * programs; i++) {
    int threads = i < programs ? 1 : THREADS;
    seed = begin + i % programs;
    if ((seed % 4 == 0) != (threads > 1)) continue;
    struct worker w[THREADS];
    pthread_t t[THREADS];
    memset(w, 0, sizeof w);
    for (int i = 0; i < threads; i++) {
      w[i].seed = seed, w[i].state = seed * 0x9E3779B97F4A7C15ull + (uint64_t)i * 77 + 1;
      CHECK(!pthread_create(&t[i], NULL, run, &w[i]), "no thread");
    }
    for (int i = 0; i < threads; i++) pthread_join(t[i], NULL);
  }
  printf("%llu programs\n", (unsigned long long)programs);
  return 0;
}
