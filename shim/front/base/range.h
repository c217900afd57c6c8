/* Tables of address ranges, and what an address is: unified memory, memory of the device, pinned memory of the host. */
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
  /* device: unified memory (managed.c). The bits from SEEN on are the servers that were given an address of it, those
   * from SCUDA_SERVER_SHIFT on the one that has its pages. */
  SCUDA_RANGE_MANAGED = 32,
  SCUDA_RANGE_HANDLE = 64,     /* device: mapped; owner is the handle of the physical memory */
  SCUDA_RANGE_SHARED = 128,    /* device: other processes have it as well (order.c) */
  SCUDA_RANGE_GRAPH = 256,     /* device: of a graph, perhaps: only the driver knows when it can be freed */
  SCUDA_RANGE_SEEN = 1 << 12
};

struct scuda_ranges {
  scuda_lock_t lock;
  struct scuda_range *list;  /* sorted by start, disjoint */
  uint32_t count, cap;
};
int scuda_ranges_add(struct scuda_ranges *t, const struct scuda_range *r);  /* 0: no memory */
int scuda_ranges_find(struct scuda_ranges *t, uint64_t p, struct scuda_range *out);
int scuda_ranges_overlap(struct scuda_ranges *t, uint64_t p, uint64_t bytes);
/* All ranges that reach into [p, p + bytes) have the flag. */
int scuda_ranges_all(struct scuda_ranges *t, uint64_t p, uint64_t bytes, uint32_t flag);
int scuda_ranges_remove(struct scuda_ranges *t, uint64_t start, struct scuda_range *out);  /* by its exact start */
void scuda_ranges_mark(struct scuda_ranges *t, int (*which)(const struct scuda_range *, uint64_t), uint64_t arg,
                       uint32_t flags);
/* Clears and sets flags of the range that holds an address; gives those that it had, 0: there is none. */
uint32_t scuda_ranges_change(struct scuda_ranges *t, uint64_t p, uint32_t clear, uint32_t set);
/* an address in a range with the flag is among them */
int scuda_ranges_any(struct scuda_ranges *t, const uint8_t *words, uint64_t bytes, uint32_t flag);
void scuda_ranges_remove_if(struct scuda_ranges *t, int (*gone)(const struct scuda_range *, uint64_t), uint64_t arg);
extern struct scuda_ranges scuda_managed_ranges, scuda_device_ranges, scuda_host_ranges;

/* What a call takes an address for. */
enum {
  SCUDA_AS_MANAGED = 1, SCUDA_AS_DEVICE = 2, SCUDA_AS_HOST = 4,
  SCUDA_AS_GPU = SCUDA_AS_MANAGED | SCUDA_AS_DEVICE,
  SCUDA_AS_ANY = SCUDA_AS_GPU | SCUDA_AS_HOST
};
/* What an address is, by one look-up: flags say what (0: nothing that is known here), device where it is at home. The
 * numbers of the server's addresses and of this process's are not kept apart, so an address may be in several ranges.
 * Unified memory comes first: it has its address on both sides, and lies on pages with the device's variables. Memory
 * of the device comes before pinned memory of the host, which the program registered by chance where the server has
 * something; a call that is told that it is the host's asks for that alone. */
static inline int scuda_ranges_hold(struct scuda_ranges *t, uint64_t p, struct scuda_range *r) {
  return __atomic_load_n(&t->count, __ATOMIC_RELAXED) && scuda_ranges_find(t, p, r);
}
static inline struct scuda_range scuda_range_of(uint64_t p, uint32_t as) {
  struct scuda_range r = {0};
  if (as & SCUDA_AS_MANAGED && SCUDA_UNLIKELY(scuda_ranges_hold(&scuda_managed_ranges, p, &r))) return r;
  if (as & SCUDA_AS_DEVICE && scuda_ranges_hold(&scuda_device_ranges, p, &r)) return r;
  if (as & SCUDA_AS_HOST) scuda_ranges_hold(&scuda_host_ranges, p, &r);
  return r;
}
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

void scuda_device_range_add(uint64_t start, uint64_t bytes, uint32_t flags, uint64_t owner);
/* All of [p, p + bytes) lies in this range of the GPU's, which the next command uses. */
static inline int scuda_range_covers(const struct scuda_range *r, uint64_t p, uint64_t bytes) {
  scuda_range_used(r);
  return scuda_range_holds(r, p, bytes);
}
static inline int scuda_on_device(uint64_t p, uint64_t bytes) {
  struct scuda_range r = scuda_range_of(p, SCUDA_AS_GPU);
  return scuda_range_covers(&r, p, bytes);
}
static inline int scuda_is_pinned(const void *p, uint64_t bytes) {
  struct scuda_range r = scuda_range_of((uint64_t)(uintptr_t)p, SCUDA_AS_HOST);
  return scuda_range_holds(&r, (uint64_t)(uintptr_t)p, bytes);
}
void scuda_ranges_forget_context(uint64_t ctx);
void scuda_ranges_forget_owner(uint64_t owner);
#endif
