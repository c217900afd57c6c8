/* Unified memory, as the other parts of the front see it (managed.c). */
#ifndef SCUDA_MANAGED_H
#define SCUDA_MANAGED_H
#include "uvm/advice.h"
#include "base/base.h"
#include "base/range.h"

/* Names are bytes in which every word may be an address. */
extern _Atomic uint32_t scuda_managed_count;  /* ranges of unified memory */
static inline int scuda_managed_some(void) {
  return atomic_load_explicit(&scuda_managed_count, memory_order_relaxed) != 0;
}
/* a call's work takes what it names */
int32_t scuda_managed_named(const void *names, uint64_t bytes, uint64_t stream, uint32_t ptds);
/* launches take what an object names; CUresult */
int32_t scuda_managed_held(const void *names, uint64_t bytes);
/* Between the two the thread works on the library's own behalf in a context, and the stream of ours there is the one
 * that it named last. The second is needed after a failure as well. */
struct scuda_uvm_self { struct scuda_self self; uint64_t stream; uint32_t server; };
int32_t scuda_uvm_begin(struct scuda_uvm_self *s, uint64_t context);
int32_t scuda_uvm_enter(struct scuda_uvm_self *s, uint64_t context); /* likewise, without a stream */
void scuda_uvm_end(const struct scuda_uvm_self *s);
static inline int scuda_is_managed(uint64_t p) { return scuda_range_of(p, SCUDA_AS_MANAGED).flags != 0; }
/* Before work of a stream: what the program wrote in the memory that it takes goes up, and the GPU owns that. A copy or
 * set takes what it names. A kernel takes what is attached to all or to its stream, and, whatever it is attached to,
 * what its parameters name or objects hold that kernels use. */
enum scuda_reach { SCUDA_NAMED, SCUDA_REACHABLE, SCUDA_EVERYTHING };
int32_t scuda_managed_take(enum scuda_reach reach, const void *names, uint64_t bytes, uint64_t stream, uint32_t ptds);
/* memory that is attached to it is attached to what it was at first */
void scuda_managed_stream_ends(uint64_t stream);
/* after a wait for the GPU: for a stream, SCUDA_ALL_STREAMS, or SCUDA_NO_STREAM */
void scuda_managed_settled(uint64_t key);
int32_t scuda_managed_variable(uint64_t address, uint64_t bytes);  /* a __managed__ variable of a module */
/* What was said of the range that holds all of [p, p + bytes), and where in it that begins; NULL: there is none. Locked
 * until ... */
struct scuda_advices *scuda_managed_advices(uint64_t p, uint64_t bytes, uint64_t *from);
void scuda_managed_advised(void);                                      /* ... this */
/* between the two: its preferred location has changed */
void scuda_managed_heed(uint64_t p, uint64_t bytes);
void scuda_managed_want(uint64_t p, uint64_t bytes);                   /* between the two: the CPU will read it */
int32_t scuda_managed_discard(uint64_t p, uint64_t bytes);             /* nobody will read what is there */
void scuda_managed_end(void);  /* says what was moved; the process ends */
void scuda_managed_full(uint64_t bytes);  /* says that an allocation does not fit */
void scuda_managed_forget_context(uint64_t context);

/* ---- several servers (home.c) ---- */

/* A range belongs to one server at a time. From when a call has taken what it uses until it is over, it has the turn:
 * nobody moves a range to another server meanwhile. */
void scuda_managed_enter(void);
void scuda_managed_leave_turn(void);  /* also where the thread has no turn */
static inline int32_t scuda_managed_over(int32_t r) {  /* at the end of a call that takes */
  if (SCUDA_UNLIKELY(scuda_several())) scuda_managed_leave_turn();
  return r;
}
/* The context will end: ranges of others go back to where they were made. */
void scuda_managed_leave_context(uint64_t context);
/* a prefetch to a GPU, which need not be the stream's server's; CUresult */
int32_t scuda_managed_prefetch(uint64_t p, int32_t device, uint64_t stream, uint32_t ptds);
/* Bytes go to an address of the server that the thread's commands are for: the addresses in them are known to kernels
 * there from then on. later: what will be uploaded is not known yet. */
void scuda_managed_uploads(uint64_t to, const void *data, uint64_t bytes, int later);
/* the same, of a server, from any thread */
void scuda_managed_uploaded(uint32_t server, uint64_t to, const void *data, uint64_t bytes);
/* Bytes go from a server to another one, and nobody looks at them: kernels of the second then know all that those of
 * the first do. */
void scuda_managed_carries(uint32_t from, uint32_t to);
/* what grows when a server was found to know another address */
uint64_t scuda_managed_sightings(void);
#endif
