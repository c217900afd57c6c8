/* Fetching: brings blocks from the GPU, for a fault that waits, and ahead of a program that goes through a range (by
 * threads of ours). */
#define _GNU_SOURCE
#include "uvm/va_range.h"

#include <sys/mman.h>

enum { WINDOW_BYTES = SCUDA_WINDOW_MAX * SCUDA_BLOCK, FETCHERS = 4, FETCHES_MAX = 32 };

uint32_t scuda_fetches;          /* windows that are asked for, of all ranges */
static _Atomic uint32_t arrivals;     /* counts those that came or were called off */
static uint32_t watchers;           /* of that */

static void cut_off(void) {
  for (struct va_range *a = scuda_uvm.ranges; a; a = a->next) scuda_pages_lose(&a->pages);
}

void scuda_uvm_lose(int32_t result) {
  if (scuda_uvm.lost) return;
  scuda_uvm.lost = 1;
  scuda_log(SCUDA_ERROR,
            "unified memory cannot be fetched any more (CUresult %d: the connection to the server, or the context, is lost); the program gets SIGBUS where it touches it", result);
  if (!scuda_fetches) cut_off(); /* else the last one does: they write to the pages */
}

/* ---- fetchers: threads that bring what a run of faults will want next ---- */

static struct fetch {
  struct va_range *range; uint32_t first, blocks; uint64_t context, stream; enum way way; int write;
} queue[FETCHES_MAX];
static uint32_t queued;             /* those that no fetcher has taken yet, the oldest first */
static _Atomic uint32_t asked;      /* counts what was queued */

static void settle_fetch(const struct fetch *f, uint8_t state) {
  scuda_va_range_mark(f->range, f->first, f->blocks, state);
  f->range->fetching--;
  if (!--scuda_fetches && scuda_uvm.lost) cut_off();
  atomic_fetch_add(&arrivals, 1);
  if (watchers) scuda_futex_wake(&arrivals, INT32_MAX);
}

/* Brings a window and allows it but for the first bytes. Pages that the file has are written where they are. Of a few
 * others nothing is to be seen but the time until the first can be used: they are made while the bytes are on their
 * way. Many are made of what arrived elsewhere, which is the least work. *how: what is known of the blocks' pages
 * then. */
static int32_t bring(const struct fetch *f, uint8_t *staging, uint64_t denied, uint8_t *how) {
  struct va_range *a = f->range;
  const uint8_t *file = a->file + f->first;
  uint64_t from = (uint64_t)f->first * BLOCK, bytes = scuda_va_range_bytes(a, f->first, f->blocks);
  int some = f->way == FETCH_CHANGES, seen = 1;
  for (uint32_t i = 0; i < f->blocks; i++) some |= file[i], seen &= file[i] == OPENED;
  if (denied > bytes) denied = bytes;
  int made = !some && !denied && f->blocks < SCUDA_NODE_MAX; /* less than goes in bulk */
  some |= made;
  *how = some ? OPENED : HELD;
  struct scuda_self self = scuda_self_begin(f->context);
  int32_t r = some && !seen && !made ? scuda_pages_open(&a->pages, from, bytes) : CUDA_SUCCESS;
  if (!r)
    r = scuda_va_range_migrate_bytes(a, from, from + bytes, f->stream, some ? a->pages.open + from : staging, f->way,
                                     made ? NEW : 0);
  scuda_self_end(self);
  if (!r && denied && !some) r = scuda_pages_put(&a->pages, from, denied, staging);
  if (r || bytes == denied) return r;
  return some ? scuda_pages_allow(&a->pages, from + denied, bytes - denied, f->write) :
         scuda_pages_fill(&a->pages, from + denied, bytes - denied, staging + denied, f->write);
}

/* Where a window arrives whose pages the file does not have yet; NULL: no memory. */
static uint8_t *new_staging(void) {
  void *p = mmap(NULL, WINDOW_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return NULL;
  madvise(p, WINDOW_BYTES, MADV_HUGEPAGE);
  scuda_core.pin(p, WINDOW_BYTES);
  return p;
}

static void *run_fetcher(void *staging) {
  scuda_lock(&scuda_uvm.lock);
  for (;;) {
    uint32_t seen = atomic_load(&asked);
    if (!queued) {
      scuda_unlock(&scuda_uvm.lock);
      scuda_futex_wait(&asked, seen, 0);
      scuda_lock(&scuda_uvm.lock);
      continue;
    }
    struct fetch f = queue[0];
    memmove(queue, queue + 1, --queued * sizeof *queue);
    scuda_unlock(&scuda_uvm.lock);
    uint8_t how;
    /* the first block stays denied: the fault there says how far the program is */
    int32_t r = bring(&f, staging, BLOCK, &how);
    scuda_lock(&scuda_uvm.lock);
    memset(f.range->file + f.first, how, f.blocks);
    if (!r) {
      if (f.blocks > 1) scuda_va_range_mark(f.range, f.first + 1, f.blocks - 1, f.write ? DIRTY : CLEAN);
      f.blocks = 1;
    } else {
      scuda_uvm_lose(r);
    }
    settle_fetch(&f, r ? AWAY : READY);
  }
  return NULL;
}

static int fetchers(void) { /* how many there are */
  static int running = -1;
  if (running >= 0) return running;
  for (running = 0; running < FETCHERS; running++) {
    uint8_t *staging = new_staging();
    if (!staging || scuda_thread_start(run_fetcher, staging)) break; /* one mapping is lost; fewer threads do as well */
  }
  return running;
}

void scuda_fetch_ahead(struct va_range *a, struct scuda_run *run) {
  struct scuda_stretch ahead[SCUDA_AHEAD_MAX];
  struct fetch f = {.range = a, .context = a->context};
  if (a->extents || scuda_uvm.lost || scuda_fetches >= FETCHES_MAX || !fetchers() ||
      scuda_uvm_stream(a->context, &f.stream)) return;
  uint32_t n = scuda_residency_ahead(a->state, a->blocks, run, ahead, FETCHES_MAX - scuda_fetches);
  for (uint32_t i = 0; i < n; i++) {
    f.first = ahead[i].first;
    f.blocks = ahead[i].count;
    f.way = scuda_va_range_way(a, f.first);
    f.write = scuda_va_range_written(a, f.first);
    scuda_va_range_mark(a, f.first, f.blocks, BUSY);
    if (f.blocks <= SCUDA_NODE_MAX) scuda_thrashing_fault(a->thrashing + f.first, f.blocks);
    a->fetching++;
    scuda_fetches++;
    queue[queued++] = f;
  }
  if (!n) return;
  atomic_fetch_add(&asked, 1);
  scuda_futex_wake(&asked, (int)n);
}

/* Waits, without the lock, until something has come. */
void scuda_fetch_await(void) {
  uint32_t seen = atomic_load(&arrivals);
  watchers++;
  scuda_unlock(&scuda_uvm.lock);
  scuda_futex_wait(&arrivals, seen, 0);
  scuda_lock(&scuda_uvm.lock);
  watchers--;
}

/* Calls off what no fetcher has begun; 1: there is more, and something of it has come by now. */
int scuda_fetch_cancel(struct va_range *a) {
  for (uint32_t i = queued; i-- > 0;) {
    if (queue[i].range != a) continue;
    struct fetch f = queue[i];
    memmove(queue + i, queue + i + 1, (--queued - i) * sizeof *queue);
    settle_fetch(&f, AWAY);
  }
  if (!a->fetching) return 0;
  scuda_fetch_await();
  return 1;
}

/* Brings blocks that the GPU has, and allows them: without the lock, so that the fetchers go on meanwhile. */
int32_t scuda_fetch_now(struct va_range *a, uint32_t first, uint32_t n, int write) {
  static uint8_t *staging;
  struct fetch f = {a, first, n, a->context, 0, scuda_va_range_way(a, first), write};
  if (!staging && !(staging = new_staging())) return CUDA_ERROR_OUT_OF_MEMORY;
  int32_t r = scuda_uvm_stream(a->context, &f.stream);
  if (r) return r;
  scuda_va_range_mark(a, first, n, BUSY);
  a->fetching++;
  scuda_fetches++;
  scuda_unlock(&scuda_uvm.lock);
  uint8_t how;
  r = bring(&f, staging, 0, &how);
  scuda_lock(&scuda_uvm.lock);
  memset(a->file + first, how, n);
  settle_fetch(&f, r ? AWAY : write ? DIRTY : CLEAN);
  return r;
}

/* A page with variables: only they come. */
int32_t scuda_fetch_parts(struct va_range *a, uint32_t first, uint32_t n, int write) {
  uint64_t from = (uint64_t)first * BLOCK, bytes = scuda_va_range_bytes(a, first, n);
  int32_t r = scuda_pages_hold(&a->pages, from, bytes);
  if (!r) r = scuda_va_range_migrate(a, first, n, FETCH, 0);
  return r ? r : scuda_pages_allow(&a->pages, from, bytes, write);
}
