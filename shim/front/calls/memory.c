/* Device allocations and pinned host memory: the tables of both, and what can be answered from them. Pinned memory is
 * ordinary memory here; what it means (copies that return at once, addresses that are known) is kept by the table. */
#define _GNU_SOURCE
#include "base/server.h"
#include "calls/calls.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

/* ---- device memory ---- */

void scuda_post_cuMemAlloc_v2(uint64_t *p, uint64_t bytes) { scuda_device_range_add(*p, bytes, SCUDA_RANGE_ALLOC, 0); }

void scuda_post_cuMemAllocPitch_v2(uint64_t *p, uint64_t *pitch, uint64_t width, uint64_t height, uint32_t element) {
  (void)width;
  (void)element;
  if (p && pitch) scuda_device_range_add(*p, *pitch * height, SCUDA_RANGE_ALLOC, 0);
}

/* What is allocated while something captures may be a node of a graph. */
static uint32_t graphs(void) { return atomic_load(&scuda_captures) ? SCUDA_RANGE_GRAPH : 0; }

void scuda_post_cuMemAllocAsync(uint64_t *p, uint64_t bytes, uint64_t stream) {
  (void)stream;
  scuda_device_range_add(*p, bytes, SCUDA_RANGE_OTHER | graphs(), 0);
}

/* ---- memory that the driver would keep elsewhere than on a GPU ---- */

int32_t scuda_elsewhere(uint32_t i, int32_t type, const struct CUmemLocation_st *l) {
  if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) return scuda_refuse(i, PART_managed_pool);
  if (l && l->type >= CU_MEM_LOCATION_TYPE_HOST && l->type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
    return scuda_refuse(i, PART_server_host);
  return CUDA_SUCCESS;
}

int scuda_pre_cuMemCreate(uint64_t *handle, uint64_t bytes, const void *prop, uint64_t flags, int32_t *r) {
  (void)handle, (void)bytes, (void)flags;
  const struct CUmemAllocationProp_st *p = prop;
  return p && (*r = scuda_elsewhere(I_cuMemCreate, p->type, &p->location)) != CUDA_SUCCESS;
}
int scuda_pre_cuMemPoolCreate(uint64_t *pool, const void *props, int32_t *r) {
  (void)pool;
  const struct CUmemPoolProps_st *p = props;
  return p && (*r = scuda_elsewhere(I_cuMemPoolCreate, p->allocType, &p->location)) != CUDA_SUCCESS;
}
int scuda_pre_cuMemGetDefaultMemPool(uint64_t *pool, void *location, int32_t type, int32_t *r) {
  (void)pool;
  return (*r = scuda_elsewhere(I_cuMemGetDefaultMemPool, type, location)) != CUDA_SUCCESS;
}
int scuda_pre_cuMemGetMemPool(uint64_t *pool, void *location, int32_t type, int32_t *r) {
  (void)pool;
  return (*r = scuda_elsewhere(I_cuMemGetMemPool, type, location)) != CUDA_SUCCESS;
}
int scuda_pre_cuMemSetMemPool(void *location, int32_t type, uint64_t pool, int32_t *r) {
  (void)pool;
  return (*r = scuda_elsewhere(I_cuMemSetMemPool, type, location)) != CUDA_SUCCESS;
}

void scuda_post_cuMemAllocFromPoolAsync(uint64_t *p, uint64_t bytes, uint64_t pool, uint64_t stream) {
  (void)pool;
  (void)stream;
  scuda_device_range_add(*p, bytes, SCUDA_RANGE_OTHER | graphs(), 0);
}

void scuda_post_cuMemMap(uint64_t p, uint64_t bytes, uint64_t offset, uint64_t handle, uint64_t flags) {
  (void)offset;
  (void)flags;
  scuda_device_range_add(p, bytes, SCUDA_RANGE_OTHER | SCUDA_RANGE_HANDLE |
                         (scuda_allocation_shared(handle) ? SCUDA_RANGE_SHARED : 0), handle);
}

void scuda_post_cuMemUnmap(uint64_t p, uint64_t bytes) {
  struct scuda_range r; /* one call may unmap several mappings that lie side by side */
  for (uint64_t at = p; at < p + bytes; at = r.start + r.bytes)
    if (!scuda_ranges_remove(&scuda_device_ranges, at, &r)) break;
}

void scuda_post_cuMemFree_v2(uint64_t p) { scuda_ranges_remove(&scuda_device_ranges, p, NULL); }

/* A graph's memory can be freed between a launch and the graph's own free node, and a capture frees only what it
 * allocated: the driver says so at the call. */
int scuda_pre_cuMemFreeAsync(uint64_t p, uint64_t stream, uint32_t ptds, int32_t *r) {
  (void)stream, (void)ptds, (void)r;
  if (atomic_load(&scuda_captures)) return 2;
  const struct scuda_range range = scuda_range_of(p, SCUDA_AS_GPU);
  return range.flags && range.start == p && !(range.flags & SCUDA_RANGE_GRAPH) ? 0 : 2;
}
void scuda_post_cuMemFreeAsync(uint64_t p, uint64_t stream) {
  (void)stream;
  scuda_ranges_remove(&scuda_device_ranges, p, NULL);
}

int scuda_pre_cuMemGetAddressRange_v2(uint64_t *base, uint64_t *bytes, uint64_t p, int32_t *result) {
  const struct scuda_range r = scuda_range_of(p, SCUDA_AS_GPU);
  if (!(r.flags & SCUDA_RANGE_ALLOC)) return 0;
  if (base) *base = r.start;
  if (bytes) *bytes = r.bytes;
  *result = CUDA_SUCCESS;
  return 1;
}

/* ---- sets and copies on the device: those that may be wrong are sent with a request for an answer, so that the error
 * comes at the call ---- */

#define ANSWER_UNLESS(ok) ((void)r, (ok) ? 0 : 2)

/* Pinned memory is an operand like any other: what the GPU works on is its mirror, as in a launch. */
static int32_t bring(uint64_t p, uint64_t stream, uint32_t ptds) {
  if (!scuda_in_pinned_space(p)) return CUDA_SUCCESS;
  struct scuda_visit v;
  struct scuda_named n = {0};
  if (stream > 2) scuda_name_object(&n, stream);
  int32_t r = scuda_visit_named(&v, &n, "");
  if (r) return r;
  scuda_use_pinned(p);
  scuda_visit_end(v);
  return scuda_mapped_upload(stream, ptds);
}

/* What set memory that the program can touch is done when it returns. */
static int touchable(uint64_t p, const struct scuda_range *at) {
  return scuda_in_pinned_space(p) || scuda_range_is_managed(at);
}
static int32_t settled(int32_t r, uint32_t ptds) {
  uint64_t key = scuda_stream_key(SCUDA_LEGACY_STREAM, ptds);
  if (!r) r = scuda_wire_cuStreamSynchronize(SCUDA_LEGACY_STREAM, ptds);
  if (!r) scuda_mapped_download(key), scuda_managed_settled(key);
  return r;
}

int scuda_set_how(const struct scuda_range *at, uint64_t stream, uint32_t ptds, int right, int32_t *r) {
  right = right ? 0 : 2;
  if (SCUDA_LIKELY(scuda_gpu_count < 2)) return right;
  if (!scuda_range_is_device(at) || scuda_range_is_managed(at)) return right;
  const struct scuda_slot *s = stream > 2 ? scuda_slot_of(stream, KIND_CUstream) : NULL;
  const struct scuda_slot *c = scuda_slot_of(s ? s->context : scuda_thread()->current, KIND_CUcontext);
  if (!c || (stream > 2 && !s) || c->device == at->device) return right;
  const int together = scuda_gpus[c->device].server == scuda_gpus[at->device].server;
  if (together || scuda_stream_capturing(stream, ptds)) return 2;
  *r = CUDA_ERROR_INVALID_VALUE;
  return 1;
}

#define SET(name, type, width) \
  static int set_##name(const struct scuda_range *at, uint64_t p, uint64_t n) { \
    return p % width == 0 && n <= UINT64_MAX / width && scuda_range_covers(at, p, n * width); \
  } \
  int scuda_pre_cuMemset##name##_v2(uint64_t p, type value, uint64_t n, uint32_t ptds, int32_t *r) { \
    if ((*r = bring(p, SCUDA_LEGACY_STREAM, ptds))) return 1; \
    const struct scuda_range at = scuda_range_of(p, SCUDA_AS_GPU); \
    const int how = scuda_set_how(&at, SCUDA_LEGACY_STREAM, ptds, set_##name(&at, p, n), r); \
    if (how == 1 || !touchable(p, &at)) return how; \
    *r = settled(scuda_wire_cuMemset##name##_v2(p, value, n, ptds | SCUDA_ANSWER), ptds); \
    return 1; \
  } \
  int scuda_pre_cuMemset##name##Async(uint64_t p, type value, uint64_t n, uint64_t stream, uint32_t ptds, \
                                      int32_t *r) { \
    (void)value; \
    if ((*r = bring(p, stream, ptds))) return 1; \
    const struct scuda_range at = scuda_range_of(p, SCUDA_AS_GPU); \
    return scuda_set_how(&at, stream, ptds, set_##name(&at, p, n), r); \
  }
SET(D8, uint8_t, 1)
SET(D16, uint16_t, 2)
SET(D32, uint32_t, 4)

#define SET_2D(name, type, size) \
  static int set_##name(const struct scuda_range *at, uint64_t p, uint64_t pitch, uint64_t width, uint64_t height) { \
    return p % size == 0 && pitch % size == 0 && width <= UINT32_MAX && height <= UINT32_MAX && \
           pitch <= UINT32_MAX && width * size <= pitch && scuda_range_covers(at, p, pitch * height); \
  } \
  int scuda_pre_cuMemset##name##_v2(uint64_t p, uint64_t pitch, type value, uint64_t width, uint64_t height, \
                                    uint32_t ptds, int32_t *r) { \
    if (height > UINT32_MAX) return *r = CUDA_ERROR_INVALID_VALUE, 1; /* the driver would never come to an end */ \
    if ((*r = bring(p, SCUDA_LEGACY_STREAM, ptds))) return 1; \
    const struct scuda_range at = scuda_range_of(p, SCUDA_AS_GPU); \
    const int how = scuda_set_how(&at, SCUDA_LEGACY_STREAM, ptds, set_##name(&at, p, pitch, width, height), r); \
    if (how == 1 || !touchable(p, &at)) return how; \
    *r = settled(scuda_wire_cuMemset##name##_v2(p, pitch, value, width, height, ptds | SCUDA_ANSWER), ptds); \
    return 1; \
  } \
  int scuda_pre_cuMemset##name##Async(uint64_t p, uint64_t pitch, type value, uint64_t width, uint64_t height, \
                                      uint64_t stream, uint32_t ptds, int32_t *r) { \
    (void)value; \
    if (height > UINT32_MAX) return *r = CUDA_ERROR_INVALID_VALUE, 1; \
    if ((*r = bring(p, stream, ptds))) return 1; \
    const struct scuda_range at = scuda_range_of(p, SCUDA_AS_GPU); \
    return scuda_set_how(&at, stream, ptds, set_##name(&at, p, pitch, width, height), r); \
  }
SET_2D(D2D8, uint8_t, 1)
SET_2D(D2D16, uint16_t, 2)
SET_2D(D2D32, uint32_t, 4)

int scuda_pre_cuMemcpyDtoDAsync_v2(uint64_t dst, uint64_t src, uint64_t bytes, uint64_t stream, uint32_t ptds,
                                   int32_t *r) {
  if ((*r = bring(dst, stream, ptds)) || (*r = bring(src, stream, ptds))) return 1;
  if (SCUDA_UNLIKELY(scuda_several()) && scuda_between(dst, src, bytes, stream, ptds, r)) return 1;
  return ANSWER_UNLESS(scuda_on_device(dst, bytes) && scuda_on_device(src, bytes));
}

int scuda_pre_cuMemcpyDtoD_v2(uint64_t dst, uint64_t src, uint64_t bytes, uint32_t ptds, int32_t *r) {
  int how = scuda_pre_cuMemcpyDtoDAsync_v2(dst, src, bytes, SCUDA_LEGACY_STREAM, ptds, r);
  if (how == 1 || !scuda_in_pinned_space(dst)) return how;
  *r = settled(scuda_wire_cuMemcpyDtoD_v2(dst, src, bytes, ptds | SCUDA_ANSWER), ptds);
  return 1;
}

static int32_t contexts(uint64_t to, uint64_t from) {
  struct scuda_slot *s;
  int32_t r = to ? scuda_context_of(to, &s) : CUDA_SUCCESS;
  return r || !from ? r : scuda_context_of(from, &s);
}

/* Unified memory is of the copy's server by now, whatever context it was made in. Without a stream such a copy comes
 * behind all that there is, and before all that follows. */
static int copy_managed_peer(uint64_t dst, uint64_t to, uint64_t src, uint64_t from, uint64_t bytes, uint64_t stream,
                             uint32_t ptds, int serial, int32_t *r) {
  if (!to || !from || scuda_slot_server(to) == scuda_slot_server(from) ||
      (!scuda_is_managed(dst) && !scuda_is_managed(src))) return 0;
  struct scuda_named n = {0};
  struct scuda_visit v;
  scuda_name_address(&n, dst);
  scuda_name_address(&n, src);
  scuda_name_object(&n, stream);
  if ((*r = scuda_visit_named(&v, &n, "a copy"))) return 1;
  if (serial) *r = scuda_wire_cuCtxSynchronize(0);
  if (!*r) *r = scuda_wire_cuMemcpyDtoDAsync_v2(dst, src, bytes, stream, ptds | SCUDA_ANSWER);
  if (!*r && serial) *r = scuda_wire_cuStreamSynchronize(stream, ptds);
  scuda_visit_end(v);
  return 1;
}

int scuda_pre_cuMemcpyPeer(uint64_t dst, uint64_t to, uint64_t src, uint64_t from, uint64_t bytes, uint32_t ptds,
                           int32_t *r) {
  if ((*r = contexts(to, from))) return 1;
  int how = scuda_pre_cuMemcpyDtoD_v2(dst, src, bytes, ptds, r);
  if (how == 1 || SCUDA_LIKELY(!scuda_several())) return how;
  return copy_managed_peer(dst, to, src, from, bytes, SCUDA_LEGACY_STREAM, ptds, 1, r) ? 1 : how;
}

int scuda_pre_cuMemcpyPeerAsync(uint64_t dst, uint64_t to, uint64_t src, uint64_t from, uint64_t bytes, uint64_t stream,
                                uint32_t ptds, int32_t *r) {
  if ((*r = contexts(to, from))) return 1;
  if (SCUDA_UNLIKELY(scuda_several()) && (scuda_between(dst, src, bytes, stream, ptds, r) ||
                                          copy_managed_peer(dst, to, src, from, bytes, stream, ptds, 0, r))) return 1;
  return scuda_pre_cuMemcpyDtoD_v2(dst, src, bytes, ptds, r);
}

/* ---- pinned host memory ---- */

/* Pinned memory lies where a server can have device memory at the same address: far from where processes have their
 * libraries and heaps. Addresses are handed out upwards, and again from the start when the area has been gone
 * through. */
enum { HUGE_PAGE = 2 << 20 };
static _Atomic uint64_t pinned_top; /* above everything that was handed out so far */
static void *pinned_map(uint64_t size) {
  static scuda_lock_t lock;
  static uint64_t next = SCUDA_PINNED_FIRST;
  const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
  void *at = MAP_FAILED;
  int huge = size >= HUGE_PAGE;
  scuda_lock(&lock);
  for (int tries = 0; tries < 64 && at == MAP_FAILED && size < SCUDA_PINNED_END - SCUDA_PINNED_FIRST; tries++) {
    if (huge) next = (next + HUGE_PAGE - 1) & ~(uint64_t)(HUGE_PAGE - 1);
    if (size > SCUDA_PINNED_END - next) next = SCUDA_PINNED_FIRST;
    at = mmap((void *)(uintptr_t)next, size, prot, flags | MAP_FIXED_NOREPLACE, -1, 0);
    /* a kernel before 4.17 took the address as a hint */
    if (at != MAP_FAILED && (uint64_t)(uintptr_t)at != next) break;
    if (at == MAP_FAILED && errno != EEXIST) break;
    next += at == MAP_FAILED ? 1ull << 30 : size;
    if (next > atomic_load(&pinned_top)) atomic_store(&pinned_top, next);
  }
  scuda_unlock(&lock);
  if (at == MAP_FAILED) at = mmap(NULL, size, prot, flags, -1, 0);
  /* it is wanted in memory as a whole, and copied as a whole */
  if (at != MAP_FAILED && huge) madvise(at, size, MADV_HUGEPAGE);
  return at;
}

/* Parameters hold the same addresses again and again, those of memory that was freed among them. So pages in which
 * nothing is left to be mapped for kernels are remembered, each with how much pinned memory there had been before it
 * was looked at: only memory that comes later can change that. Of several servers it is not enough that one has it
 * mapped. */
enum { PAGE_BITS = 12, PAGES_MAX = 256 };
static _Atomic uint64_t pages[PAGES_MAX];
static _Atomic uint32_t arrivals;
static inline int nothing_left(uint64_t p, uint32_t count) {
  uint64_t page = (p - SCUDA_PINNED_FIRST) >> PAGE_BITS;
  return atomic_load_explicit(&pages[page % PAGES_MAX], memory_order_relaxed) == (page << 32 | count);
}
static void remember(uint64_t p, uint32_t count) {
  uint64_t page = (p - SCUDA_PINNED_FIRST) >> PAGE_BITS;
  if (scuda_ranges_all(&scuda_host_ranges, p & ~((1ull << PAGE_BITS) - 1), 1 << PAGE_BITS, SCUDA_RANGE_MAPPED))
    atomic_store_explicit(&pages[page % PAGES_MAX], page << 32 | count, memory_order_relaxed);
}
static int add_pinned(const struct scuda_range *r) {
  int added = scuda_ranges_add(&scuda_host_ranges, r);
  atomic_fetch_add(&arrivals, 1);
  return added;
}

static int32_t host_alloc(void **p, uint64_t bytes, uint32_t flags) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  struct scuda_slot *s;
  int32_t result = scuda_context_of(0, &s);
  if (!result) result = s->sticky;
  if (result) return result;
  if (flags & ~7u) return CUDA_ERROR_INVALID_VALUE;
  *p = NULL;
  if (atomic_load(&scuda_captures)) { /* what device memory is refused for, other memory is as well */
    uint64_t probe;
    if ((result = scuda_wire_cuMemAlloc_v2(&probe, 1, SCUDA_ANSWER)) ||
        (result = scuda_wire_cuMemFree_v2(probe, SCUDA_ANSWER))) return result;
  }
  if (!bytes) return CUDA_SUCCESS;
  uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), size = (bytes + page - 1) & ~(page - 1);
  if (size < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  void *at = pinned_map(size);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  /* owner keeps the flags that the program gave */
  struct scuda_range r = {(uint64_t)(uintptr_t)at, bytes, scuda_thread()->current, flags, SCUDA_RANGE_OWNED, s->device};
  if (!add_pinned(&r)) {
    munmap(at, size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  scuda_core.pin(at, bytes);
  *p = at;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuMemHostAlloc(void **p, uint64_t bytes, uint32_t flags) { return host_alloc(p, bytes, flags); }
int32_t scuda_hand_cuMemAllocHost_v2(void **p, uint64_t bytes) { return host_alloc(p, bytes, 0); }

static void synchronize_all(void) {
  struct scuda_thread *t = scuda_thread();
  const uint64_t current = t->current;
  for (uint64_t context = 0; (context = scuda_context_behind(context));) {
    t->current = context;
    scuda_wire_cuCtxSynchronize(0);
  }
  t->current = current;
}

/* An operation of a GPU may still use the memory, in whichever context. Natively freeing it waits, so it does here. */
static void quiesce(struct scuda_range *r) {
  int mapped = r->flags & SCUDA_RANGE_MAPPED, capturing = atomic_load(&scuda_captures) != 0;
  int busy = __atomic_load_n(&scuda_shared.transfers_pending, __ATOMIC_ACQUIRE) ||
             scuda_core.overlaps((void *)(uintptr_t)r->start, r->bytes) == 1 ||
             (mapped && atomic_load(&scuda_mapped_launched));
  if (busy && !capturing) synchronize_all();
  if (mapped) scuda_unmap_host(r->start);
}

int32_t scuda_hand_cuMemFreeHost(void *p) {
  uint64_t start = (uint64_t)(uintptr_t)p;
  if (!p) return CUDA_SUCCESS;
  struct scuda_range r = scuda_range_of(start, SCUDA_AS_HOST);
  if (r.start != start || !(r.flags & SCUDA_RANGE_OWNED)) return CUDA_ERROR_INVALID_VALUE;
  const struct scuda_slot *context = scuda_slot(r.context);
  if (context && context->sticky) return context->sticky; /* as natively, it stays until the process ends */
  quiesce(&r);
  if (!scuda_ranges_remove(&scuda_host_ranges, start, &r)) return CUDA_ERROR_INVALID_VALUE;
  scuda_core.pin(p, 0);
  uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  munmap(p, (r.bytes + page - 1) & ~(page - 1));
  return CUDA_SUCCESS;
}

int scuda_host_reaches(uint64_t start, uint64_t bytes) {
  unsigned char present[4096];
  uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end = start + bytes;
  if (end < start) return 0;
  for (uint64_t at = start & ~(page - 1), step; at < end; at += step) {
    step = (end - at + page - 1) / page * page;
    if (step > sizeof present * page) step = sizeof present * page;
    if (mincore((void *)(uintptr_t)at, step, present) && errno == ENOMEM) return 0;
  }
  return 1;
}

/* Memory, and not a device's: the kernel reads it for others. */
static int is_ordinary(void *p) {
  char byte;
  struct iovec here = {&byte, 1}, there = {p, 1};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

int32_t scuda_hand_cuMemHostRegister_v2(void *p, uint64_t bytes, uint32_t flags) {
  if (!p || !bytes || flags & ~15u) return CUDA_ERROR_INVALID_VALUE;
  struct scuda_slot *s;
  int32_t result = scuda_context_of(0, &s);
  if (!result) result = s->sticky;
  if (result) return result;
  uint64_t start = (uint64_t)(uintptr_t)p;
  if (start + bytes < start) return CUDA_ERROR_INVALID_VALUE;
  if (scuda_ranges_overlap(&scuda_host_ranges, start, bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (!scuda_host_reaches(start, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (flags & CU_MEMHOSTREGISTER_IOMEMORY)
    return is_ordinary(p) ? CUDA_ERROR_INVALID_VALUE : scuda_refuse(I_cuMemHostRegister_v2, PART_io_memory);
  struct scuda_range r = {start, bytes, scuda_thread()->current, flags, SCUDA_RANGE_REGISTERED, s->device};
  if (!add_pinned(&r)) return CUDA_ERROR_OUT_OF_MEMORY;
  scuda_core.pin(p, bytes);
  return CUDA_SUCCESS;
}
int32_t scuda_hand_cuMemHostRegister(void *p, uint64_t bytes, uint32_t flags) {
  return scuda_hand_cuMemHostRegister_v2(p, bytes, flags & 3);
}

int32_t scuda_hand_cuMemHostUnregister(void *p) {
  uint64_t start = (uint64_t)(uintptr_t)p;
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  struct scuda_range r = scuda_range_of(start, SCUDA_AS_HOST);
  if (r.start != start || !(r.flags & SCUDA_RANGE_REGISTERED)) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  quiesce(&r);
  scuda_core.pin(p, 0);
  scuda_ranges_remove(&scuda_host_ranges, start, NULL);
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuMemHostGetFlags(uint32_t *flags, void *p) {
  const struct scuda_range r = scuda_range_of((uint64_t)(uintptr_t)p, SCUDA_AS_HOST);
  if (!flags || !r.flags) return CUDA_ERROR_INVALID_VALUE;
  /* Under unified addressing every allocation is portable and mapped; the driver reports the mapping. */
  *flags = (uint32_t)r.owner | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

/* Kernels see the memory once it has been asked for. Threads may do so at once: a range is mapped once. */
int32_t scuda_mapped_address(struct scuda_range *r, uint64_t p, uint64_t *device) {
  static scuda_lock_t lock; /* who maps has it */
  int32_t result = CUDA_SUCCESS;
  /* of several servers this may be the first that has it */
  uint64_t base = r->flags & SCUDA_RANGE_MAPPED ? scuda_mapped_base(r->start) : 0;
  if (!base) {
    scuda_lock(&lock);
    base = scuda_mapped_base(r->start);
    if (!base) result = scuda_map_host(r->start, r->bytes, &base);
    if (!result) {
      r->flags |= SCUDA_RANGE_MAPPED;
      scuda_ranges_add(&scuda_host_ranges, r);
    }
    scuda_unlock(&lock);
    if (result) return result;
  }
  *device = base + (p - r->start);
  return CUDA_SUCCESS;
}

/* Unified addressing lets a program pass the address of pinned memory to a kernel without having asked for anything.
 * Each of several servers has mappings of its own. */
void scuda_use_pinned(uint64_t p) {
  uint32_t count = atomic_load(&arrivals);
  if (SCUDA_LIKELY(nothing_left(p, count))) return;
  struct scuda_range r = scuda_range_of(p, SCUDA_AS_HOST);
  uint64_t device;
  int several = scuda_several();
  if (r.flags && (!(r.flags & SCUDA_RANGE_MAPPED) || SCUDA_UNLIKELY(several))) scuda_mapped_address(&r, p, &device);
  else if (!several) remember(p, count);
}

/* The same for all addresses at multiples of 8 in what a kernel gets, as arguments or by a copy: a structure in device
 * memory may point to pinned memory. Those that come another way are not seen. Four half words at once are compared
 * with the upper half of such an address; where there was one, the next block likely has some too. */
void scuda_use_pinned_in(const void *data, uint64_t bytes) {
  enum { BLOCK = 1024 };
  typedef uint32_t half __attribute__((vector_size(16)));
  const uint32_t upper = (uint32_t)(SCUDA_PINNED_FIRST >> 32),
      same = ~(uint32_t)((SCUDA_PINNED_END - SCUDA_PINNED_FIRST - 1) >> 32);
  const half mask = {0, same, 0, same}, wanted = {1, upper, 1, upper};
  const uint8_t *p = data;
  uint64_t span = atomic_load_explicit(&pinned_top, memory_order_relaxed);
  if (!span) return;
  span -= SCUDA_PINNED_FIRST;
  uint32_t count = atomic_load(&arrivals);
  int some = 0;
  for (uint64_t n, i; bytes >= 8; bytes -= n, p += n) {
    n = bytes < BLOCK ? bytes : BLOCK;
    i = 0;
    if (!some) {
      half found = {0}, x;
      for (; i + sizeof x <= n; i += sizeof x) {
        memcpy(&x, p + i, sizeof x);
        found |= (half)((x & mask) == wanted);
      }
      if (found[1] | found[3]) i = 0;
    }
    some = 0;
    for (uint64_t v; i + 8 <= n; i += 8) {
      memcpy(&v, p + i, 8);
      if (SCUDA_LIKELY(v - SCUDA_PINNED_FIRST >= span)) continue;
      some = 1;
      if (SCUDA_UNLIKELY(!nothing_left(v, count))) scuda_use_pinned(v);
    }
  }
}

int32_t scuda_device_mirror(uint64_t p, uint64_t *device) {
  struct scuda_range r = scuda_range_of(p, SCUDA_AS_HOST);
  return r.flags ? scuda_mapped_address(&r, p, device) : CUDA_ERROR_INVALID_VALUE;
}

uint64_t scuda_kernel_address(uint64_t p) {
  struct scuda_range r = scuda_range_of(p, SCUDA_AS_HOST);
  uint64_t device;
  return r.flags && !scuda_mapped_address(&r, p, &device) ? device : p;
}

int32_t scuda_hand_cuMemHostGetDevicePointer_v2(uint64_t *device, void *p, uint32_t flags) {
  struct scuda_range r = scuda_range_of((uint64_t)(uintptr_t)p, SCUDA_AS_HOST);
  if (!device || flags || !r.flags) return CUDA_ERROR_INVALID_VALUE;
  return scuda_mapped_address(&r, (uint64_t)(uintptr_t)p, device);
}

/* ---- attributes of pools ---- */

/* Pool attributes are 4 or 8 bytes; the wire carries 8. */
static int pool_attribute_is_int(int32_t attribute) {
  return attribute == CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES ||
         attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC ||
         attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

int32_t scuda_hand_cuMemPoolGetAttribute(uint64_t pool, int32_t attribute, void *value) {
  uint64_t word = 0;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = scuda_wire_cuMemPoolGetAttribute(pool, attribute, &word, 0);
  if (!r) memcpy(value, &word, pool_attribute_is_int(attribute) ? 4 : 8);
  return r;
}

int32_t scuda_hand_cuMemPoolSetAttribute(uint64_t pool, int32_t attribute, void *value) {
  uint64_t word = 0;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  memcpy(&word, value, pool_attribute_is_int(attribute) ? 4 : 8);
  return scuda_wire_cuMemPoolSetAttribute(pool, attribute, &word, 0);
}
