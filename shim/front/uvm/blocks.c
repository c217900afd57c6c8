/* What is known of the blocks of a range. All of it is read and changed under the lock of unified memory. */
#include "uvm/va_range.h"

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
