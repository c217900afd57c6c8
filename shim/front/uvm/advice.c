#include "uvm/advice.h"
#include "gen/cuda_gen.h"

#include <stdlib.h>
#include <string.h>

int32_t scuda_location_device(struct CUmemLocation_st p) {
  return p.type == CU_MEM_LOCATION_TYPE_DEVICE ? p.id : p.type ? CU_DEVICE_CPU : CU_DEVICE_INVALID;
}

static int same(const void *a, const void *b, size_t n) { return !memcmp(a, b, n); }

static uint32_t stretch(const struct scuda_advices *all, uint64_t offset) { /* that an offset lies in */
  uint32_t low = 0, high = all->count;
  while (high - low > 1) {
    uint32_t middle = low + (high - low) / 2;
    if (all->list[middle].from <= offset) low = middle;
    else high = middle;
  }
  return low;
}

const struct scuda_advice *scuda_advice_at(const struct scuda_advices *all, uint64_t offset) {
  static const struct scuda_advice none;
  return all->count ? &all->list[stretch(all, offset)].is : &none;
}

struct scuda_advice scuda_advice_of(const struct scuda_advices *all, uint64_t from, uint64_t to, int32_t *preferred,
                                    int32_t *prefetched) {
  struct scuda_advice of = *scuda_advice_at(all, from);
  *preferred = scuda_location_device(of.preferred);
  *prefetched = scuda_location_device(of.prefetched);
  for (uint32_t i = stretch(all, from) + 1; i < all->count && all->list[i].from < to; i++) {
    const struct scuda_advice *next = &all->list[i].is;
    if (scuda_location_device(next->preferred) != *preferred) *preferred = CU_DEVICE_INVALID;
    if (scuda_location_device(next->prefetched) != *prefetched) *prefetched = CU_DEVICE_INVALID;
    if (!same(&next->preferred, &of.preferred, sizeof of.preferred)) of.preferred = (struct CUmemLocation_st){0};
    if (!same(&next->prefetched, &of.prefetched, sizeof of.prefetched)) of.prefetched = (struct CUmemLocation_st){0};
    of.accessed_by &= next->accessed_by;
    of.read_mostly &= next->read_mostly;
  }
  return of;
}

/* The stretch that begins at an offset, which lies in the first ones or behind all. */
static uint32_t begin(struct scuda_advices *all, uint64_t offset) {
  uint32_t i = stretch(all, offset);
  if (all->list[i].from == offset) return i;
  memmove(all->list + i + 2, all->list + i + 1, (all->count - i - 1) * sizeof *all->list);
  all->list[i + 1] = (struct scuda_advised){offset, all->list[i].is};
  all->count++;
  return i + 1;
}

int scuda_advice_cut(struct scuda_advices *all, uint64_t from, uint64_t to, uint32_t *first, uint32_t *end) {
  struct scuda_advised *more = realloc(all->list, (all->count + 3) * sizeof *more);
  if (!more) return 0;
  all->list = more;
  if (!all->count) more[all->count++] = (struct scuda_advised){0};
  *first = begin(all, from);
  *end = begin(all, to);
  return 1;
}

void scuda_advice_join(struct scuda_advices *all) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < all->count; i++)
    if (!n || !same(&all->list[i].is, &all->list[n - 1].is, sizeof all->list->is)) all->list[n++] = all->list[i];
  all->count = n;
}
