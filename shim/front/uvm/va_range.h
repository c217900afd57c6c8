/* A range of unified memory and its blocks, as the files that handle them see them (managed.c). */
#ifndef SCUDA_VA_RANGE_H
#define SCUDA_VA_RANGE_H
#include "uvm/managed.h"
#include "uvm/thrashing.h"
#include "uvm/pager.h"
#include "uvm/residency.h"

enum { BLOCK = SCUDA_BLOCK, FRESH = SCUDA_FRESH, AWAY = SCUDA_AWAY, BUSY = SCUDA_BUSY, READY = SCUDA_READY,
       CLEAN = SCUDA_CLEAN, DIRTY = SCUDA_DIRTY };
enum { HELD = 1, OPENED };  /* the file has the block's pages; and they are in the open view's tables */

struct extent { struct extent *next; uint64_t from, to; }; /* offsets */

struct va_range {
  struct va_range *next, *next_open;
  struct scuda_pages pages;
  uint64_t asked, context;
  uint32_t attachment, made_for;            /* what it is attached to, and was at first */
  /* keys: the stream of CU_MEM_ATTACH_SINGLE; the one whose work was given it in spite of its attachment */
  uint64_t attached, giver;
  uint64_t wanted;                          /* the number of the call that takes it */
  uint32_t held;                            /* an object that kernels use has its address */
  uint32_t blocks, mirror, open;            /* mirror: the server has memory of ours for it; open: it is in the list */
  /* of pages with __managed__ variables: what the server has there; else NULL, for all */
  struct extent *extents;
  uint32_t low, high;                       /* blocks that are not AWAY lie between */
  /* blocks that are to come with the next wait, or more; windows that are asked for */
  uint32_t coming, fetching;
  struct scuda_runs fetches, unlocks;
  struct scuda_advices advices;
  struct scuda_thrashing *thrashing;                /* of a block: what becomes of it round after round; ... */
  uint8_t *file;                            /* ... what is known of its pages */
  uint8_t state[];
};

/* What the files of unified memory share. */
struct scuda_uvm {
  /* guards the ranges, and all below but for the atomic words; held while blocks travel that no fetch brings */
  scuda_lock_t lock;
  struct va_range *ranges, *opened; /* opened: those in which some block may not be AWAY */
  /* opened is not empty, or its last blocks are on their way: read without the lock */
  _Atomic uint32_t work_left;
  /* ranges that are attached to less than all streams: without any, kernels take every range */
  _Atomic uint32_t restricted;
  uint32_t held;                    /* there are ranges whose addresses objects hold that kernels use, or were */
  int lost;                         /* nothing can be fetched any more */
};
extern struct scuda_uvm scuda_uvm;

static inline void count(int stat, uint64_t n) {
  atomic_fetch_add_explicit(&scuda_managed_stats[stat], n, memory_order_relaxed);
}

/* ---- managed.c; under the lock, but for the end ---- */

struct va_range *scuda_va_range_at(uint64_t p);
void scuda_va_range_attach(struct va_range *a, uint32_t attachment, uint64_t key);
/* The end of the range that holds an address; 0: there is none. */
uint64_t scuda_va_range_end(uint64_t address);

/* ---- blocks.c; under the lock ---- */

/* How blocks reach the other side. */
enum way { SEND, FETCH, FETCH_CHANGES };

/* The bytes of blocks: the last one of a range may be short. */
uint64_t scuda_va_range_bytes(const struct va_range *a, uint32_t first, uint32_t blocks);
/* Gives blocks a state. What has another one than AWAY is found by the next launch, which looks without the lock. */
void scuda_va_range_mark(struct va_range *a, uint32_t first, uint32_t blocks, uint8_t state);
/* What the program writes in every round is allowed for that at once. */
int scuda_va_range_written(const struct va_range *a, uint32_t block);
/* How blocks from the first one on are fetched. */
enum way scuda_va_range_way(const struct va_range *a, uint32_t first);

/* ---- fault.c ---- */

/* Serves an access that is not allowed (scuda_fault_fn). */
int scuda_uvm_fault(uint64_t address, int write);
/* Waits for the work of all contexts, without the lock; the result is that of one. */
int32_t scuda_uvm_finish(uint64_t context);

/* ---- take.c ---- */

struct scuda_named;
/* Gives the GPU the ranges that work of a stream may use, and waits until what it sent has arrived; takes the lock. */
int32_t scuda_uvm_acquire(enum scuda_reach reach, const struct scuda_named *n, uint64_t key);

/* ---- fetch.c; under the lock, which is let go of while something is awaited or brought ---- */

extern uint32_t scuda_fetches;  /* windows that are asked for, of all ranges */
/* Asks for what a run of faults will want next. */
void scuda_fetch_ahead(struct va_range *a, struct scuda_run *run);
/* Waits until some window has come, or was cancelled. */
void scuda_fetch_await(void);
/* Cancels what no thread of ours has begun; 1: there is more, and something of it has come by now. */
int scuda_fetch_cancel(struct va_range *a);
/* Brings blocks that the GPU has, and allows them. */
int32_t scuda_fetch_now(struct va_range *a, uint32_t first, uint32_t blocks, int write);
/* The same of pages with variables. */
int32_t scuda_fetch_parts(struct va_range *a, uint32_t first, uint32_t blocks, int write);
/* Nothing can be fetched any more: every access is a SIGBUS from now on. */
void scuda_uvm_lose(int32_t result);

/* ---- migrate.c; results are CUresult, and what fails is said in the log ---- */

/* how a fetch is done: it ends with a later one of the stream; with a wait, not for a fault; to pages that are made
 * meanwhile */
enum { SOON = 1, PUSH = 2, NEW = 4 };

/* Migrates blocks between the open view and the server, but for what no variable of the range lies in. */
int32_t scuda_va_range_migrate(struct va_range *a, uint32_t first, uint32_t blocks, enum way way, int how);
/* Migrates the bytes [from, to) of a range between `here` and the server, in a stream of the current context. */
int32_t scuda_va_range_migrate_bytes(struct va_range *a, uint64_t from, uint64_t to, uint64_t stream, uint8_t *here,
                                     enum way way, int how);
int32_t scuda_va_range_arrive(const struct va_range *a); /* what was sent has arrived: any stream may use it */
#endif
