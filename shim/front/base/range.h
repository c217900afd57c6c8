/* Tables of address ranges: what the program allocated on the device, and its pinned host memory. */
#ifndef SCUDA_RANGE_H
#define SCUDA_RANGE_H
#include "base/base.h"

struct scuda_range { uint64_t start, bytes, context, owner; uint32_t flags; int32_t device; };
enum {                         /* flags of a range */
  SCUDA_RANGE_ALLOC = 1,       /* device: cuMemAlloc */
  SCUDA_RANGE_OTHER = 2,       /* device: mapped, from a pool, or a module's variable (owner) */
  SCUDA_RANGE_OWNED = 4,       /* host: cuMemHostAlloc, unmapped when freed */
  SCUDA_RANGE_REGISTERED = 8,  /* host: cuMemHostRegister */
  SCUDA_RANGE_MAPPED = 16,     /* host: kernels may use it (mapped.c) */
  SCUDA_RANGE_MANAGED = 32,    /* device: unified memory (managed.c) */
  SCUDA_RANGE_HANDLE = 64,     /* device: mapped; owner is the handle of the physical memory */
  SCUDA_RANGE_SHARED = 128,    /* device: other processes have it as well (order.c) */
  SCUDA_RANGE_GRAPH = 256      /* device: of a graph, perhaps: only the driver knows when it can be freed */
};

struct scuda_ranges {
  scuda_lock_t lock;
  struct scuda_range *list;  /* sorted by start, disjoint */
  uint32_t count, cap;
};
int scuda_ranges_add(struct scuda_ranges *t, const struct scuda_range *r);  /* 0: no memory */
int scuda_ranges_find(struct scuda_ranges *t, uint64_t p, struct scuda_range *out);
int scuda_ranges_overlap(struct scuda_ranges *t, uint64_t p, uint64_t bytes);
int scuda_ranges_remove(struct scuda_ranges *t, uint64_t start, struct scuda_range *out);  /* by its exact start */
void scuda_ranges_mark(struct scuda_ranges *t, int (*which)(const struct scuda_range *, uint64_t), uint64_t arg,
                       uint32_t flags);
/* an address in a range with the flag is among them */
int scuda_ranges_any(struct scuda_ranges *t, const uint8_t *words, uint64_t bytes, uint32_t flag);
void scuda_ranges_remove_if(struct scuda_ranges *t, int (*gone)(const struct scuda_range *, uint64_t), uint64_t arg);
extern struct scuda_ranges scuda_device_ranges, scuda_host_ranges;

/* What an address is, by one look-up in both tables: flags say what (0: nothing that is
 * known here), device where it is at home. */
struct scuda_range scuda_range_of(uint64_t p);
static inline int scuda_range_is_device(const struct scuda_range *r) {
  return (r->flags & (SCUDA_RANGE_ALLOC | SCUDA_RANGE_OTHER)) != 0;
}
static inline int scuda_range_is_pinned(const struct scuda_range *r) {
  return (r->flags & (SCUDA_RANGE_OWNED | SCUDA_RANGE_REGISTERED)) != 0;
}
static inline int scuda_range_is_managed(const struct scuda_range *r) { return (r->flags & SCUDA_RANGE_MANAGED) != 0; }
/* The next command uses memory of the range: other processes may have to be told of it. */
static inline void scuda_range_used(const struct scuda_range *r) {
  if (SCUDA_UNLIKELY(r->flags & SCUDA_RANGE_SHARED)) scuda_thread()->shared = 1;
}
/* All of [p, p + bytes) lies in the range that p lies in. */
static inline int scuda_range_holds(const struct scuda_range *r, uint64_t p, uint64_t bytes) {
  return r->flags && bytes <= r->start + r->bytes - p;
}

/* Of the two tables: */
void scuda_device_range_add(uint64_t start, uint64_t bytes, uint32_t flags, uint64_t owner);
int scuda_on_device(uint64_t p, uint64_t bytes);  /* all of it lies in one known device range */
int scuda_is_pinned(const void *p, uint64_t bytes);
void scuda_ranges_forget_context(uint64_t ctx);
void scuda_ranges_forget_owner(uint64_t owner);
#endif
