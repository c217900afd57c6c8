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
  /* Of several servers (home.c): a context of the one that has the pages now; of each that has memory for it, that in
   * which it got that. lost: the program gets SIGBUS. */
  uint64_t home, backed[SCUDA_SERVERS];
  int lost;
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
  uint32_t lost;                    /* a bit for each server from which nothing can be fetched any more */
};
extern struct scuda_uvm scuda_uvm;

/* The server that has the range's pages. */
static inline uint32_t scuda_va_range_server(const struct va_range *a) {
  return SCUDA_LIKELY(!scuda_several()) ? 0 : scuda_slot_server(a->home);
}
static inline int scuda_va_range_lost(const struct va_range *a) {
  return SCUDA_UNLIKELY(scuda_uvm.lost) && scuda_uvm.lost >> scuda_va_range_server(a) & 1;
}

static inline void count(int stat, uint64_t n) {
  atomic_fetch_add_explicit(&scuda_managed_stats[stat], n, memory_order_relaxed);
}

/* ---- managed.c; under the lock, but for the end ---- */

struct va_range *scuda_va_range_at(uint64_t p);
void scuda_va_range_attach(struct va_range *a, uint32_t attachment, uint64_t key);
/* The end of the range that holds an address; 0: there is none. */
uint64_t scuda_va_range_end(uint64_t address);

/* ---- blocks.c; under the lock ---- */

/* How blocks are fetched: all of their bytes, or what kernels changed of them. */
enum way { FETCH, FETCH_CHANGES };

/* Blocks that are on their way here. Whoever has the structure has them to itself until it settles them. */
struct scuda_fetch {
  struct va_range *range;
  uint32_t first, blocks;
  uint64_t from, bytes;  /* the same as offsets in the range */
  enum way way;
  int write;             /* the program may write them at once */
};

/* The bytes of blocks: the last one of a range may be short. */
uint64_t scuda_va_range_bytes(const struct va_range *a, uint32_t first, uint32_t blocks);
/* Gives blocks a state. What has another one than AWAY is found by the next launch, which looks without the lock. */
void scuda_va_range_mark(struct va_range *a, uint32_t first, uint32_t blocks, uint8_t state);
/* What the program writes in every round is allowed for that at once. */
int scuda_va_range_written(const struct va_range *a, uint32_t block);
/* How blocks from the first one on are fetched. */
enum way scuda_va_range_way(const struct va_range *a, uint32_t first);

extern uint32_t scuda_fetches;  /* that have not ended, of all ranges */
/* Makes blocks that are AWAY busy. */
struct scuda_fetch scuda_fetch_claim(struct va_range *a, struct scuda_stretch s, int write);
/* A fetch has ended: the states of its first block and of the rest. */
void scuda_fetch_settle(const struct scuda_fetch *f, uint8_t first, uint8_t rest);
/* Waits, without the lock, until some fetch has ended. */
void scuda_fetch_await(void);

/* Gives blocks that are here, all in one state, another one, and allows what that allows. Where it is the one that they
 * have, the access comes again: it is allowed by now, or is to be a SIGBUS. CUresult. */
int32_t scuda_blocks_allow(struct va_range *a, struct scuda_stretch s, uint8_t state);

/* ---- fault.c ---- */

/* Serves an access that is not allowed (scuda_fault_fn). */
int scuda_uvm_fault(uint64_t address, int write);

/* ---- synchronize.c ---- */

/* Waits, without the lock, for the work of a stream, of whatever context; of all contexts, where the key is that of
 * none, or of one that has ended. The result is that of the stream or of the given context. */
int32_t scuda_uvm_synchronize(uint64_t context, uint64_t key);
/* Work that was given since the GPU was last known to have none, as far as it may use the range, ends before the
 * program goes on with it: kernels and the program never work on it at once. Not within a host function, which a stream
 * waits for, nor during a capture, which a wait would end. Under the lock, which is let go meanwhile: other threads may
 * have to give the work that this work waits for. */
int32_t scuda_uvm_quiet(struct va_range *a);

/* ---- take.c ---- */

struct scuda_addresses;
enum { SCUDA_EACH_SERVER = SCUDA_SERVERS };
/* Gives the GPU the ranges that work of a stream may use, and waits until what it sent has arrived; takes the lock. Of
 * several servers the one that does the work. */
int32_t scuda_uvm_acquire(enum scuda_reach reach, const struct scuda_addresses *n, uint64_t key, uint32_t server);
/* What is attached to the CPU, or to another stream, is not this stream's: whatever it has done when such memory is not
 * named is none of its business. */
static inline int scuda_va_range_attached_to(const struct va_range *a, uint64_t key) {
  return a->attachment == CU_MEM_ATTACH_GLOBAL || (a->attachment == CU_MEM_ATTACH_SINGLE && a->attached == key);
}
/* A round is over: all of the range is the GPU's, and nothing of it is open. */
void scuda_va_range_given(struct va_range *a);

/* ---- home.c ---- */

/* The server of the current context gets memory for the range at its address; what lies in it is unknown. CUresult. */
int32_t scuda_va_range_back(struct va_range *a);
/* The servers that have memory for it give it back; the first error. The range is forgotten already. */
int32_t scuda_va_range_unback(const struct va_range *a);
/* An object names ranges (a graph, a texture): its server has memory for them, or NOT_SUPPORTED. */
int32_t scuda_uvm_backed(const struct scuda_addresses *n);
/* A call uses ranges: those that it names, and for a kernel those of which its server may have an address otherwise.
 * They become the server's that the context is of. CUresult. */
int32_t scuda_uvm_move(enum scuda_reach reach, const struct scuda_addresses *n, uint64_t context, uint64_t stream,
                       uint32_t ptds);
/* A context of the server that carries a call out: that of its stream, of the GPU's memory that it names, else the
 * current one. */
uint64_t scuda_uvm_place(enum scuda_reach reach, const void *given, uint64_t bytes, uint64_t stream);
/* Kernels of a server may have an address of the range. */
int scuda_uvm_known(const struct va_range *a, uint32_t server);
/* Bytes go to a server: the addresses in them are known there. */
void scuda_uvm_sees(uint32_t server, const void *data, uint64_t bytes);

/* ---- fetch.c; under the lock, which is let go of while something is awaited or brought ---- */

uint32_t scuda_fetch_room(void);  /* how many fetches may be queued now */
/* Leaves fetches to threads of ours, which settle them. */
void scuda_fetch_queue(const struct scuda_fetch *f, uint32_t n);
/* Brings blocks, allows them, and settles them. */
int32_t scuda_fetch_now(const struct scuda_fetch *f);
/* Cancels what no thread of ours has begun; 1: there is more, and something of it has come by now. */
int scuda_fetch_cancel(struct va_range *a);

/* ---- lost.c; under the lock ---- */

/* Nothing of the range's server can be fetched any more: every access is a SIGBUS from now on, as soon as no fetch is
 * under way. */
void scuda_uvm_lose(const struct va_range *a, int32_t result);
void scuda_uvm_cut_off(void);     /* now */

/* ---- migrate.c; results are CUresult, and what fails is said in the log ---- */

/* how blocks are fetched: with a wait, not for a fault; it ends with a later fetch of the stream */
enum { PUSH = 1, SOON = 2 };

/* Bytes that were asked for. */
struct scuda_migration {
  struct scuda_cmd command;
  enum way way;
  int soon;
  uint64_t at, bytes;
  int32_t result;
};

/* Asks for a fetch's bytes (of an extent, where it is not NULL), in a stream of the current context. They come to
 * here, where the byte at the fetch's beginning goes. Until the end of the migration the thread may do other things. */
void scuda_migrate_start(struct scuda_migration *m, const struct scuda_fetch *f, const struct extent *e,
                         uint64_t stream, uint8_t *here, int how);
int32_t scuda_migrate_end(struct scuda_migration *m);  /* they are here; the result of both */
/* Fetches blocks into the open view, with a wait. */
int32_t scuda_migrate_push(struct va_range *a, uint32_t first, uint32_t blocks, enum way way, int how);
/* Sends blocks from the open view. */
int32_t scuda_migrate_send(struct va_range *a, uint32_t first, uint32_t blocks);
int32_t scuda_migrate_sent(const struct va_range *a); /* what was sent has arrived: any stream may use it */
#endif
