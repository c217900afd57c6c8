/* Fetching: brings blocks from the GPU, for a fault that waits, and ahead of a program that goes through a range (by
 * threads of ours). */
#define _GNU_SOURCE
#include "uvm/va_range.h"

#include <sys/mman.h>

enum { WINDOW_BYTES = SCUDA_WINDOW_MAX * SCUDA_BLOCK, FETCHERS = 4, FETCHES_MAX = 32 };

static struct scuda_fetch queue[FETCHES_MAX];
static uint32_t queued;        /* those that no fetcher has taken yet, the oldest first */
static _Atomic uint32_t asked; /* counts what was queued */

/* Brings blocks and allows them but for the first bytes. Pages that the file has are written where they are. Of a few
 * others nothing is to be seen but the time until the first can be used: they are made while the bytes are on their
 * way. Many are made of what arrived elsewhere, which is the least work. */
static int32_t bring(const struct scuda_fetch *f, uint8_t *staging, uint64_t denied) {
  const struct scuda_pages *p = &f->range->pages;
  const struct extent *e = f->range->extents;
  uint8_t *file = f->range->file + f->first;
  int some = f->way == FETCH_CHANGES || e, seen = 1;
  for (uint32_t i = 0; i < f->blocks; i++) some |= file[i], seen &= file[i] == OPENED;
  if (denied > f->bytes) denied = f->bytes;
  int made = !some && !denied && f->blocks < SCUDA_NODE_MAX; /* less than goes in bulk */
  some |= made;
  struct scuda_uvm_self self;
  int32_t r = scuda_uvm_begin(&self, f->range->home);
  if (!r && some && !seen && !made) r = scuda_pages_open(p, f->from, f->bytes);
  while (!r) {
    struct scuda_migration m;
    scuda_migrate_start(&m, f, e, self.stream, some ? p->open + f->from : staging, 0);
    int32_t opened = made ? scuda_pages_open(p, f->from, f->bytes) : CUDA_SUCCESS;
    r = scuda_migrate_end(&m);
    if (!r) r = opened;
    if (!e || !(e = e->next)) break;
  }
  scuda_uvm_end(&self);
  memset(file, some ? OPENED : HELD, f->blocks);
  if (!r && denied && !some) r = scuda_pages_put(p, f->from, denied, staging);
  if (r || f->bytes == denied) return r;
  return some ? scuda_pages_allow(p, f->from + denied, f->bytes - denied, f->write) :
         scuda_pages_fill(p, f->from + denied, f->bytes - denied, staging + denied, f->write);
}

/* Where blocks arrive whose pages the file does not have yet; NULL: no memory. */
static uint8_t *new_staging(void) {
  void *p = mmap(NULL, WINDOW_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return NULL;
  madvise(p, WINDOW_BYTES, MADV_HUGEPAGE);
  scuda_core.pin(p, WINDOW_BYTES);
  return p;
}

int32_t scuda_fetch_now(const struct scuda_fetch *f) {
  static uint8_t *staging;
  if (!staging) staging = new_staging();
  scuda_unlock(&scuda_uvm.lock); /* so that the fetchers go on meanwhile */
  int32_t r = staging ? bring(f, staging, 0) : CUDA_ERROR_OUT_OF_MEMORY;
  scuda_lock(&scuda_uvm.lock);
  uint8_t state = r ? AWAY : f->write ? DIRTY : CLEAN;
  scuda_fetch_settle(f, state, state);
  return r;
}

/* ---- fetchers: threads that bring what a run of faults will want next ---- */

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
    struct scuda_fetch f = queue[0];
    memmove(queue, queue + 1, --queued * sizeof *queue);
    scuda_unlock(&scuda_uvm.lock);
    /* the first block stays denied: the fault there says how far the program is */
    int32_t r = bring(&f, staging, BLOCK);
    scuda_lock(&scuda_uvm.lock);
    if (r) scuda_uvm_lose(f.range, r);
    scuda_fetch_settle(&f, r ? AWAY : READY, r ? AWAY : f.write ? DIRTY : CLEAN);
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

uint32_t scuda_fetch_room(void) {
  return scuda_fetches < FETCHES_MAX && fetchers() ? FETCHES_MAX - scuda_fetches : 0;
}

void scuda_fetch_queue(const struct scuda_fetch *f, uint32_t n) {
  if (!n) return;
  memcpy(queue + queued, f, n * sizeof *f);
  queued += n;
  atomic_fetch_add(&asked, 1);
  scuda_futex_wake(&asked, (int)n);
}

int scuda_fetch_cancel(struct va_range *a) {
  for (uint32_t i = queued; i-- > 0;) {
    if (queue[i].range != a) continue;
    struct scuda_fetch f = queue[i];
    memmove(queue + i, queue + i + 1, (--queued - i) * sizeof *queue);
    scuda_fetch_settle(&f, AWAY, AWAY);
  }
  if (!a->fetching) return 0;
  scuda_fetch_await();
  return 1;
}
