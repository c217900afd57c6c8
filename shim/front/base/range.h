/* Tables of address ranges: what the program allocated on the device, and its pinned host memory. */
#ifndef SCUDA_RANGE_H
#define SCUDA_RANGE_H
#include "base/base.h"

struct scuda_ranges {
  scuda_lock_t lock;
  struct scuda_range *list;  /* sorted by start, disjoint */
  uint32_t count, cap;
};
int scuda_ranges_add(struct scuda_ranges *t, const struct scuda_range *r);  /* 0: no memory */
int scuda_ranges_find(struct scuda_ranges *t, uint64_t p, struct scuda_range *out);
int scuda_ranges_overlap(struct scuda_ranges *t, uint64_t p, uint64_t bytes);
int scuda_ranges_remove(struct scuda_ranges *t, uint64_t start, struct scuda_range *out);  /* by its exact start */
void scuda_ranges_mark(struct scuda_ranges *t, int (*which)(const struct scuda_range *, uint64_t), uint64_t arg, uint32_t flags);
int scuda_ranges_any(struct scuda_ranges *t, const uint8_t *words, uint64_t bytes, uint32_t flag);  /* an address in a range with the flag is among them */
void scuda_ranges_remove_if(struct scuda_ranges *t, int (*gone)(const struct scuda_range *, uint64_t), uint64_t arg);
extern struct scuda_ranges scuda_device_ranges, scuda_host_ranges;
#endif
