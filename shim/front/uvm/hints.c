/* What programs say of unified memory: where it is wanted, how it is used, that what is there is not needed any
 * more. */
#define _GNU_SOURCE
#include "uvm/managed.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096 };

static int numa_node(int32_t id) { /* whether this machine has it */
  char name[64];
  snprintf(name, sizeof name, "/sys/devices/system/node/node%d", id);
  return !id || (id > 0 && !access(name, F_OK));
}

static int32_t located(struct scuda_bytes8 where, struct CUmemLocation_st *p) {
  memcpy(p, &where, sizeof *p);
  switch (p->type) {
  case CU_MEM_LOCATION_TYPE_DEVICE:
    return scuda_device_ok(p->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  case CU_MEM_LOCATION_TYPE_HOST:
    p->id = 0;
    return CUDA_SUCCESS;
  case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    return numa_node(p->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: {
    unsigned cpu, node = 0;
    syscall(SYS_getcpu, &cpu, &node, NULL);
    *p = (struct CUmemLocation_st){CU_MEM_LOCATION_TYPE_HOST_NUMA, (int32_t)node};
    return CUDA_SUCCESS;
  }
  }
  return CUDA_ERROR_INVALID_VALUE;
}

static int32_t located_device(int32_t device, struct CUmemLocation_st *p) {
  *p = device == CU_DEVICE_CPU ? (struct CUmemLocation_st){CU_MEM_LOCATION_TYPE_HOST, 0} :
       (struct CUmemLocation_st){CU_MEM_LOCATION_TYPE_DEVICE, device};
  return device == CU_DEVICE_CPU || scuda_device_ok(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

enum { PREFETCH }; /* among the kinds of advice: what was asked for is noted in the same way */

/* Notes what is said of the pages that hold some bytes. */
static int32_t say(uint64_t p, uint64_t bytes, int32_t advice, struct CUmemLocation_st where) {
  uint64_t from;
  uint32_t first, end;
  struct scuda_advices *all = scuda_managed_advices(p, bytes, &from);
  if (!all) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_advice_cut(all, from / PAGE * PAGE, (from + bytes + PAGE - 1) / PAGE * PAGE, &first, &end)) {
    scuda_managed_advised();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  uint64_t bit = where.type == CU_MEM_LOCATION_TYPE_DEVICE ? 1ull << (where.id & 63) : 1ull << 63;
  for (; first < end; first++) {
    struct scuda_advice *a = &all->list[first].is;
    switch (advice) {
    case PREFETCH: a->prefetched = where; break;
    case CU_MEM_ADVISE_SET_READ_MOSTLY: a->read_mostly = 1; break;
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY: a->read_mostly = 0; break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION: a->preferred = where; break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: a->preferred = (struct CUmemLocation_st){0}; break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY: a->accessed_by |= bit; break;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY: a->accessed_by &= ~bit; break;
    }
  }
  scuda_advice_join(all);
  if (advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION)
    scuda_managed_heed(p, bytes);
  if (advice == PREFETCH && scuda_location_device(where) == CU_DEVICE_CPU) scuda_managed_want(p, bytes);
  scuda_managed_advised();
  return CUDA_SUCCESS;
}

static int32_t prefetch(uint64_t p, uint64_t bytes, struct CUmemLocation_st where, uint64_t stream, uint32_t ptds) {
  int32_t r = say(p, bytes, PREFETCH, where);
  return r || scuda_location_device(where) == CU_DEVICE_CPU ? r : scuda_managed_prefetch(p, where.id, stream, ptds);
}

int32_t scuda_hand_cuMemPrefetchAsync(uint64_t p, uint64_t bytes, int32_t device, uint64_t stream, uint32_t ptds) {
  struct CUmemLocation_st where;
  int32_t r = scuda_usable(stream);
  if (!r) r = located_device(device, &where);
  return r ? r : prefetch(p, bytes, where, stream, ptds);
}
int32_t scuda_hand_cuMemPrefetchAsync_v2(uint64_t p, uint64_t bytes, struct scuda_bytes8 at, uint32_t flags,
                                         uint64_t stream, uint32_t ptds) {
  struct CUmemLocation_st where;
  int32_t r = scuda_usable(stream);
  if (!r) r = flags ? CUDA_ERROR_INVALID_VALUE : located(at, &where);
  return r ? r : prefetch(p, bytes, where, stream, ptds);
}

static int placeless(int32_t advice) {
  return advice == CU_MEM_ADVISE_SET_READ_MOSTLY || advice == CU_MEM_ADVISE_UNSET_READ_MOSTLY ||
         advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
}

static int32_t advisable(int32_t advice) {
  struct scuda_slot *context;
  int32_t r = scuda_context_of(0, &context);
  return r ? r : advice < CU_MEM_ADVISE_SET_READ_MOSTLY ||
         advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

int32_t scuda_hand_cuMemAdvise(uint64_t p, uint64_t bytes, int32_t advice, int32_t device) {
  struct CUmemLocation_st where = {0};
  int32_t r = advisable(advice);
  if (!r && !placeless(advice)) r = located_device(device, &where);
  return r ? r : say(p, bytes, advice, where);
}
int32_t scuda_hand_cuMemAdvise_v2(uint64_t p, uint64_t bytes, int32_t advice, struct scuda_bytes8 at) {
  struct CUmemLocation_st where;
  memcpy(&where, &at, sizeof where);
  int32_t r = advisable(advice);
  int most = advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
             advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY ? CU_MEM_LOCATION_TYPE_HOST :
             CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
  if (!r && (where.type < CU_MEM_LOCATION_TYPE_DEVICE || where.type > most)) r = CUDA_ERROR_INVALID_VALUE;
  /* also for a device that there is not, as the driver says here */
  if (!r && !placeless(advice) && located(at, &where)) r = CUDA_ERROR_INVALID_VALUE;
  return r ? r : say(p, bytes, advice, where);
}

int32_t scuda_hand_cuMemRangeGetAttribute(void *data, uint64_t size, int32_t attribute, uint64_t p, uint64_t bytes) {
  if (!data || !size || size % 4) return CUDA_ERROR_INVALID_VALUE;
  uint64_t from;
  const struct scuda_advices *all = scuda_managed_advices(p, bytes, &from);
  if (!all) return CUDA_ERROR_INVALID_VALUE;
  int32_t preferred, prefetched, *out = data;
  const struct scuda_advice of = scuda_advice_of(all, from, from + bytes, &preferred, &prefetched);
  scuda_managed_advised();
  if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) {
    for (uint64_t i = 0; i < size / 4; i++) out[i] = CU_DEVICE_INVALID;
    for (uint64_t i = 0, bit = 0; bit < 64 && i < size / 4; bit++)
      if (of.accessed_by >> bit & 1) out[i++] = bit == 63 ? CU_DEVICE_CPU : (int32_t)bit;
    return CUDA_SUCCESS;
  }
  if (size != 4) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
  case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: *out = (int32_t)of.read_mostly; return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION: *out = preferred; return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE: *out = of.preferred.type; return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID: *out = of.preferred.type ? of.preferred.id : CU_DEVICE_INVALID;
      return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION: *out = prefetched; return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE: *out = of.prefetched.type; return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      *out = of.prefetched.type ? of.prefetched.id : CU_DEVICE_INVALID; return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

int32_t scuda_hand_cuMemRangeGetAttributes(void **data, uint64_t *sizes, int32_t *attributes, uint64_t n, uint64_t p,
                                           uint64_t bytes) {
  if (!data || !sizes || !attributes || !n) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = CUDA_SUCCESS;
  for (uint64_t i = 0; i < n && !r; i++)
    r = scuda_hand_cuMemRangeGetAttribute(data[i], sizes[i], attributes[i], p, bytes);
  return r;
}

/* ---- batches ---- */

/* Location i is that of the ranges from index[i] to the next one's. */
static int32_t batch(const uint64_t *p, const uint64_t *sizes, uint64_t n, const struct scuda_bytes8 *where,
                     const uint64_t *index, uint64_t places, uint64_t flags, uint64_t stream, uint32_t ptds,
                     int discard, int fetch) {
  struct CUmemLocation_st place;
  uint64_t from;
  int32_t r = scuda_usable(stream);
  if (r) return r;
  /* the legacy stream is not for batches */
  if (!p || !sizes || !n || flags || stream == 1 || (!stream && !ptds)) return CUDA_ERROR_INVALID_VALUE;
  if (fetch && (!where || !index || !places || places > n || index[0])) return CUDA_ERROR_INVALID_VALUE;
  for (uint64_t i = 0; fetch && i < places && !r; i++) {
    if (i && (index[i] <= index[i - 1] || index[i] >= n)) r = CUDA_ERROR_INVALID_VALUE;
    else r = located(where[i], &place);
  }
  for (uint64_t i = 0; i < n && !r; i++) {
    if (!scuda_managed_advices(p[i], sizes[i], &from)) r = CUDA_ERROR_INVALID_VALUE; /* before anything is done */
    else scuda_managed_advised();
  }
  int quiet = scuda_stream_capturing(stream, ptds); /* a hint, which a graph does not keep */
  for (uint64_t i = 0; discard && !quiet && i < n && !r; i++) r = scuda_managed_discard(p[i], sizes[i]);
  for (uint64_t i = 0, at = 0; fetch && i < n && !r; i++) {
    if (at + 1 < places && index[at + 1] == i) at++;
    r = located(where[at], &place);
    if (!r) r = prefetch(p[i], sizes[i], place, stream, ptds);
  }
  return r;
}

int32_t scuda_hand_cuMemPrefetchBatchAsync(uint64_t *p, uint64_t *sizes, uint64_t n, void *where, uint64_t *index,
                                           uint64_t places, uint64_t flags, uint64_t stream, uint32_t ptds) {
  return batch(p, sizes, n, where, index, places, flags, stream, ptds, 0, 1);
}
int32_t scuda_hand_cuMemDiscardBatchAsync(uint64_t *p, uint64_t *sizes, uint64_t n, uint64_t flags, uint64_t stream,
                                          uint32_t ptds) {
  return batch(p, sizes, n, NULL, NULL, 0, flags, stream, ptds, 1, 0);
}
int32_t scuda_hand_cuMemDiscardAndPrefetchBatchAsync(uint64_t *p, uint64_t *sizes, uint64_t n, void *where,
                                                     uint64_t *index, uint64_t places, uint64_t flags, uint64_t stream,
                                                     uint32_t ptds) {
  return batch(p, sizes, n, where, index, places, flags, stream, ptds, 1, 1);
}
