/* The states of a range's blocks, and what an access is allowed in each. Under the lock of unified memory. */
#include "uvm/va_range.h"

uint32_t scuda_fetches;
static _Atomic uint32_t arrivals; /* counts the fetches that have ended */
static uint32_t watchers;         /* of that */

uint64_t scuda_va_range_bytes(const struct va_range *a, uint32_t first, uint32_t blocks) {
  uint64_t from = (uint64_t)first * BLOCK, bytes = (uint64_t)blocks * BLOCK;
  return from + bytes > a->pages.bytes ? a->pages.bytes - from : bytes;
}

void scuda_va_range_mark(struct va_range *a, uint32_t first, uint32_t blocks, uint8_t s) {
  memset(a->state + first, s, blocks);
  if (s == AWAY) return;
  if (first < a->low) a->low = first;
  if (first + blocks > a->high) a->high = first + blocks;
  atomic_store(&scuda_uvm.work_left, 1);
  if (a->open) return;
  a->open = 1;
  a->next_open = scuda_uvm.opened;
  scuda_uvm.opened = a;
}

/* What the program writes in every round is allowed for that at once: no second fault of ours follows the first, nor
 * one of the kernel's for each page. */
int scuda_va_range_written(const struct va_range *a, uint32_t b) { return a->thrashing[b].wrote >= SCUDA_OFTEN; }

/* The copy of read-mostly memory that lies here outlives kernels: of it the server sends only blocks of 4 KiB that they
 * changed. */
enum way scuda_va_range_way(const struct va_range *a, uint32_t first) {
  return scuda_advice_at(&a->advices, (uint64_t)first * BLOCK)->read_mostly && a->mirror ? FETCH_CHANGES : FETCH;
}

/* ---- blocks that are on their way ---- */

struct scuda_fetch scuda_fetch_claim(struct va_range *a, struct scuda_stretch s, int write) {
  scuda_va_range_mark(a, s.first, s.count, BUSY);
  a->fetching++;
  scuda_fetches++;
  return (struct scuda_fetch){
    a, s.first, s.count, (uint64_t)s.first * BLOCK, scuda_va_range_bytes(a, s.first, s.count),
        scuda_va_range_way(a, s.first), write
  };
}

void scuda_fetch_settle(const struct scuda_fetch *f, uint8_t first, uint8_t rest) {
  scuda_va_range_mark(f->range, f->first, 1, first);
  if (f->blocks > 1) scuda_va_range_mark(f->range, f->first + 1, f->blocks - 1, rest);
  f->range->fetching--;
  if (!--scuda_fetches && scuda_uvm.lost) scuda_uvm_cut_off();
  atomic_fetch_add(&arrivals, 1);
  if (watchers) scuda_futex_wake(&arrivals, INT32_MAX);
}

void scuda_fetch_await(void) {
  uint32_t seen = atomic_load(&arrivals);
  watchers++;
  scuda_unlock(&scuda_uvm.lock);
  scuda_futex_wait(&arrivals, seen, 0);
  scuda_lock(&scuda_uvm.lock);
  watchers--;
}

/* ---- accesses ---- */

int32_t scuda_blocks_allow(struct va_range *a, struct scuda_stretch s, uint8_t state) {
  uint64_t from = (uint64_t)s.first * BLOCK, bytes = scuda_va_range_bytes(a, s.first, s.count);
  uint8_t was = a->state[s.first];
  int32_t r = CUDA_SUCCESS;
  if (was == state) {
    if (scuda_va_range_lost(a) || scuda_pages_allow(&a->pages, from, bytes, state == DIRTY))
      scuda_pages_wake(&a->pages, from, bytes);
    return CUDA_SUCCESS;
  }
  scuda_va_range_mark(a, s.first, s.count, state);
  if (was == FRESH) {
    r = scuda_pages_hold(&a->pages, from, bytes);
    memset(a->file + s.first, HELD, s.count);
  }
  if (!r)
    r = was == CLEAN ? scuda_pages_unlock(&a->pages, from, bytes) :
        scuda_pages_allow(&a->pages, from, bytes, state == DIRTY);
  if (r) scuda_va_range_mark(a, s.first, s.count, AWAY);
  return r;
}
