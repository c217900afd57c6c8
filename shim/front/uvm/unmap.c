#define _GNU_SOURCE
#include "uvm/unmap.h"
#include "base/base.h"

enum { PIECE = 8 << 20, PIECES = 64, LEAST = 4 * PIECE, HELPERS = 3 };

/* The stretch that is being denied. A helper that comes late finds no piece left: their numbers only grow. */
static struct { struct scuda_pages pages; uint64_t from, end, piece; } job;
static _Atomic uint64_t taken;          /* the next piece, in the numbers of all stretches; before... */
static _Atomic uint64_t last;           /* ... this one */
static uint64_t first;                  /* the number of the stretch's first piece */
static _Atomic uint32_t asked, done;    /* count stretches and pieces */
static _Atomic uint8_t denied[PIECES];
static int helpers = -1;

/* Takes a piece and denies it; 0: none is left. */
static int unmap_one(void) {
  uint64_t n = atomic_load(&taken);
  do {
    if (n >= atomic_load(&last)) return 0;
  } while (!atomic_compare_exchange_weak(&taken, &n, n + 1));
  uint64_t at = job.from + (n - first) * job.piece, bytes = job.end - at < job.piece ? job.end - at : job.piece;
  scuda_pages_unmap(&job.pages, at, bytes);
  atomic_store(&denied[n - first], 1);
  atomic_fetch_add(&done, 1);
  scuda_futex_wake(&done, 1);
  return 1;
}

static void *help(void *unused) {
  for (;;) {
    uint32_t seen = atomic_load(&asked);
    while (unmap_one()) {}
    scuda_futex_wait(&asked, seen, 0);
  }
  return unused;
}

static void start(void) {
  for (helpers = 0; helpers < HELPERS && !scuda_thread_start(help, NULL);) helpers++;
}

void scuda_unmap_begin(struct scuda_unmap *d, const struct scuda_pages *p, uint64_t from, uint64_t bytes) {
  *d = (struct scuda_unmap){p, from, bytes, bytes >= LEAST};
  if (d->shared && helpers < 0) start();
  if (!d->shared) {
    scuda_pages_unmap(p, from, bytes);
    return;
  }
  uint64_t piece = bytes / PIECES / PIECE * PIECE + PIECE, count = (bytes + piece - 1) / piece;
  job.pages = *p, job.from = from, job.end = from + bytes, job.piece = piece;
  first = atomic_load(&last);
  memset((void *)denied, 0, sizeof denied);
  atomic_store(&last, first + count); /* from here on they are taken */
  atomic_fetch_add(&asked, 1);
  scuda_futex_wake(&asked, helpers);
}

void scuda_unmap_await(struct scuda_unmap *d, uint64_t to) {
  if (d->shared) {
    uint64_t end = to < job.end ? to : job.end, pieces = end > job.from ? (end - job.from + job.piece - 1) / job.piece :
        0;
    for (uint64_t i = 0; i < pieces; i++) {
      for (;;) {
        uint32_t seen = atomic_load(&done);
        if (atomic_load(&denied[i])) break;
        if (!unmap_one()) scuda_futex_wait(&done, seen, 0);
      }
    }
  }
  scuda_pages_unmapped();
}
