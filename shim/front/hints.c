/* What programs say of unified memory: where it is wanted, how it is used, that what is there is not needed any more. */
#include "managed.h"

static int32_t prefetch(uint64_t p, uint64_t bytes, int32_t device, uint64_t stream, uint32_t ptds) {
  int32_t r = scuda_usable(stream);
  if (r) return r;
  if (device != CU_DEVICE_CPU && !scuda_device_ok(device)) return CUDA_ERROR_INVALID_DEVICE;
  struct scuda_advice *a = scuda_managed_advice(p, bytes);
  if (!a) return CUDA_ERROR_INVALID_VALUE;
  a->prefetched = device;
  if (device == CU_DEVICE_CPU) scuda_managed_want(p, bytes);
  scuda_managed_advised();
  return device == CU_DEVICE_CPU ? CUDA_SUCCESS : scuda_managed_acquire(stream, ptds);
}


static int32_t located(struct scuda_bytes8 where, int32_t *device) {
  struct scuda_location l;
  memcpy(&l, &where, sizeof l);
  switch (l.type) {
  case CU_MEM_LOCATION_TYPE_DEVICE:
    *device = l.id;
    return scuda_device_ok(l.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  case CU_MEM_LOCATION_TYPE_HOST:
  case CU_MEM_LOCATION_TYPE_HOST_NUMA:
  case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
    *device = CU_DEVICE_CPU;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

int32_t scuda_hand_cuMemPrefetchAsync(uint64_t p, uint64_t bytes, int32_t device, uint64_t stream, uint32_t ptds) { return prefetch(p, bytes, device, stream, ptds); }
int32_t scuda_hand_cuMemPrefetchAsync_v2(uint64_t p, uint64_t bytes, struct scuda_bytes8 where, uint32_t flags, uint64_t stream, uint32_t ptds) {
  int32_t device, r = located(where, &device);
  if (flags) r = CUDA_ERROR_INVALID_VALUE;
  return r ? r : prefetch(p, bytes, device, stream, ptds);
}

static int32_t advise(uint64_t p, uint64_t bytes, int32_t advice, int32_t device) {
  struct scuda_slot *context;
  int32_t r = scuda_context_of(0, &context);
  if (r) return r;
  int names = advice >= CU_MEM_ADVISE_SET_PREFERRED_LOCATION && advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
  if (names && device != CU_DEVICE_CPU && !scuda_device_ok(device)) return CUDA_ERROR_INVALID_DEVICE;
  struct scuda_advice *a = scuda_managed_advice(p, bytes);
  if (!a) return CUDA_ERROR_INVALID_VALUE;
  uint64_t bit = device == CU_DEVICE_CPU ? 1ull << 63 : 1ull << (device & 63);
  switch (advice) {
  case CU_MEM_ADVISE_SET_READ_MOSTLY: a->read_mostly = 1; break;
  case CU_MEM_ADVISE_UNSET_READ_MOSTLY: a->read_mostly = 0; break;
  case CU_MEM_ADVISE_SET_PREFERRED_LOCATION: a->preferred = device; break;
  case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: a->preferred = CU_DEVICE_INVALID; break;
  case CU_MEM_ADVISE_SET_ACCESSED_BY: a->accessed_by |= bit; break;
  case CU_MEM_ADVISE_UNSET_ACCESSED_BY: a->accessed_by &= ~bit; break;
  default: r = CUDA_ERROR_INVALID_VALUE;
  }
  scuda_managed_advised();
  return r;
}

int32_t scuda_hand_cuMemAdvise(uint64_t p, uint64_t bytes, int32_t advice, int32_t device) { return advise(p, bytes, advice, device); }
int32_t scuda_hand_cuMemAdvise_v2(uint64_t p, uint64_t bytes, int32_t advice, struct scuda_bytes8 where) {
  int32_t device = 0, kind, r = CUDA_SUCCESS;
  memcpy(&kind, &where, sizeof kind);
  if (kind < CU_MEM_LOCATION_TYPE_INVALID || kind > CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) return CUDA_ERROR_INVALID_VALUE;
  if (advice != CU_MEM_ADVISE_SET_READ_MOSTLY && advice != CU_MEM_ADVISE_UNSET_READ_MOSTLY && advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION) r = located(where, &device);
  return r ? r : advise(p, bytes, advice, device);
}

int32_t scuda_hand_cuMemRangeGetAttribute(void *data, uint64_t size, int32_t attribute, uint64_t p, uint64_t bytes) {
  if (!data || !size || size % 4) return CUDA_ERROR_INVALID_VALUE;
  const struct scuda_advice *a = scuda_managed_advice(p, bytes);
  if (!a) return CUDA_ERROR_INVALID_VALUE;
  struct scuda_advice advice = *a;
  scuda_managed_advised();
  int32_t *out = data, device;
  switch (attribute) {
  case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
    *out = (int32_t)advice.read_mostly;
    return size == 4 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
  case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
    *out = attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION ? advice.preferred : advice.prefetched;
    return size == 4 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
    for (uint64_t i = 0; i < size / 4; i++) out[i] = CU_DEVICE_INVALID;
    for (uint64_t i = 0, bit = 0; bit < 64 && i < size / 4; bit++)
      if (advice.accessed_by >> bit & 1) out[i++] = bit == 63 ? CU_DEVICE_CPU : (int32_t)bit;
    return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
  case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
  case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
  case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
    if (size != 4) return CUDA_ERROR_INVALID_VALUE;
    device = attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE || attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID ? advice.preferred : advice.prefetched;
    if (attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID || attribute == CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID) *out = device < 0 ? 0 : device;
    else *out = device == CU_DEVICE_INVALID ? CU_MEM_LOCATION_TYPE_INVALID : device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

int32_t scuda_hand_cuMemRangeGetAttributes(void **data, uint64_t *sizes, int32_t *attributes, uint64_t n, uint64_t p, uint64_t bytes) {
  if (!data || !sizes || !attributes || !n) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = CUDA_SUCCESS;
  for (uint64_t i = 0; i < n && !r; i++) r = scuda_hand_cuMemRangeGetAttribute(data[i], sizes[i], attributes[i], p, bytes);
  return r;
}

/* ---- batches ---- */

/* Location i is that of the ranges from index[i] to the next one's. */
static int32_t batch(const uint64_t *p, const uint64_t *sizes, uint64_t n, const struct scuda_bytes8 *where, const uint64_t *index, uint64_t places, uint64_t flags, uint64_t stream, uint32_t ptds, int discard, int fetch) {
  int32_t r = scuda_usable(stream), device = 0;
  if (r) return r;
  if (!p || !sizes || !n || flags || stream == 1 || (!stream && !ptds)) return CUDA_ERROR_INVALID_VALUE; /* the legacy stream is not for batches */
  if (fetch && (!where || !index || !places || places > n || index[0])) return CUDA_ERROR_INVALID_VALUE;
  for (uint64_t i = 0; fetch && i < places && !r; i++) {
    if (i && (index[i] <= index[i - 1] || index[i] >= n)) r = CUDA_ERROR_INVALID_VALUE;
    else r = located(where[i], &device);
  }
  for (uint64_t i = 0; i < n && !r; i++) {
    if (!scuda_managed_advice(p[i], sizes[i])) r = CUDA_ERROR_INVALID_VALUE; /* before anything is done */
    else scuda_managed_advised();
  }
  int quiet = scuda_stream_capturing(stream, ptds); /* a hint, which a graph does not keep */
  for (uint64_t i = 0; discard && !quiet && i < n && !r; i++) r = scuda_managed_discard(p[i], sizes[i]);
  for (uint64_t i = 0, at = 0; fetch && i < n && !r; i++) {
    if (at + 1 < places && index[at + 1] == i) at++;
    r = located(where[at], &device);
    if (!r) r = prefetch(p[i], sizes[i], device, stream, ptds);
  }
  return r;
}

int32_t scuda_hand_cuMemPrefetchBatchAsync(uint64_t *p, uint64_t *sizes, uint64_t n, void *where, uint64_t *index, uint64_t places, uint64_t flags, uint64_t stream, uint32_t ptds) {
  return batch(p, sizes, n, where, index, places, flags, stream, ptds, 0, 1);
}
int32_t scuda_hand_cuMemDiscardBatchAsync(uint64_t *p, uint64_t *sizes, uint64_t n, uint64_t flags, uint64_t stream, uint32_t ptds) {
  return batch(p, sizes, n, NULL, NULL, 0, flags, stream, ptds, 1, 0);
}
int32_t scuda_hand_cuMemDiscardAndPrefetchBatchAsync(uint64_t *p, uint64_t *sizes, uint64_t n, void *where, uint64_t *index, uint64_t places, uint64_t flags, uint64_t stream, uint32_t ptds) {
  return batch(p, sizes, n, where, index, places, flags, stream, ptds, 1, 1);
}
