/* A range of unified memory and its blocks, as the two parts that handle it see them: managed.c, which decides, and migrate.c, which moves bytes. */
#ifndef SCUDA_VA_RANGE_H
#define SCUDA_VA_RANGE_H
#include "uvm/managed.h"
#include "uvm/thrashing.h"
#include "uvm/pager.h"
#include "uvm/residency.h"

enum { BLOCK = SCUDA_BLOCK, FRESH = SCUDA_FRESH, AWAY = SCUDA_AWAY, BUSY = SCUDA_BUSY, READY = SCUDA_READY, CLEAN = SCUDA_CLEAN, DIRTY = SCUDA_DIRTY };
enum { HELD = 1, OPENED };  /* the file has the block's pages; and they are in the open view's tables */

struct extent { struct extent *next; uint64_t from, to; }; /* offsets */

struct va_range {
  struct va_range *next, *next_open;
  struct scuda_pages pages;
  uint64_t asked, context;
  uint32_t attachment, made_for;            /* what it is attached to, and was at first */
  uint64_t attached, giver;                 /* keys: the stream of CU_MEM_ATTACH_SINGLE; the one whose work was given it in spite of its attachment */
  uint64_t wanted;                          /* the number of the call that takes it */
  uint32_t held;                            /* an object that kernels use has its address */
  uint32_t blocks, mirror, open;            /* mirror: the server has memory of ours for it; open: it is in the list */
  struct extent *extents;                   /* of pages with __managed__ variables: what the server has there; else NULL, for all */
  uint32_t low, high;                       /* blocks that are not AWAY lie between */
  uint32_t coming, flights;                 /* blocks that are to come with the next wait, or more; windows that are asked for */
  struct scuda_runs fetches, unlocks;
  struct scuda_advices advices;
  struct scuda_thrashing *thrashing;                /* of a block: what becomes of it round after round; ... */
  uint8_t *file;                            /* ... what is known of its pages */
  uint8_t state[];
};

static inline uint64_t bytes_of(const struct va_range *a, uint32_t first, uint32_t count) {
  uint64_t from = (uint64_t)first * BLOCK, bytes = (uint64_t)count * BLOCK;
  return from + bytes > a->pages.bytes ? a->pages.bytes - from : bytes;
}

static inline void count(int stat, uint64_t n) { atomic_fetch_add_explicit(&scuda_managed_stats[stat], n, memory_order_relaxed); }

/* ---- migrate.c; results are CUresult, and what fails is said in the log ---- */

enum way { SEND, FETCH, FETCH_CHANGES };
enum { SOON = 1, PUSH = 2, NEW = 4 }; /* how a fetch is done: it ends with a later one of the stream; with a wait, not for a fault; to pages that are made meanwhile */

/* How blocks from the first one on are fetched. */
enum way scuda_va_range_way(const struct va_range *a, uint32_t first);
/* Migrates blocks between the open view and the server, but for what no variable of the range lies in. */
int32_t scuda_va_range_migrate(struct va_range *a, uint32_t first, uint32_t blocks, enum way way, int how);
/* Migrates the bytes [from, to) of a range between `here` and the server, in a stream of the current context. */
int32_t scuda_va_range_migrate_bytes(struct va_range *a, uint64_t from, uint64_t to, uint64_t stream, uint8_t *here, enum way way, int how);
int32_t scuda_va_range_arrive(const struct va_range *a); /* what was sent has arrived: any stream may use it */
#endif
