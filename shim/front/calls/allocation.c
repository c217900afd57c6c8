/* Physical memory of virtual memory management. Its handles are numbers of the server's driver, which follows whatever
 * it is given, so the front remembers which there are and how often each must be released. */
#include "calls/calls.h"

static struct scuda_ranges handles; /* start: the handle, owner: how many releases */
static scuda_lock_t lock;

static void count(uint64_t handle, int more) {
  struct scuda_range r = {.start = handle, .bytes = 1};
  scuda_lock(&lock);
  if (!scuda_ranges_remove(&handles, handle, &r)) r.owner = 0;
  r.owner += (uint64_t)(int64_t)more;
  if (r.owner) scuda_ranges_add(&handles, &r);
  scuda_unlock(&lock);
}

void scuda_allocation_came(uint64_t handle) { count(handle, 1); }

int32_t scuda_allocation_check(uint64_t handle) {
  struct scuda_range r;
  return scuda_ranges_find(&handles, handle, &r) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Other processes have it from now on, where it is mapped and where it will be. */
static int is(const struct scuda_range *r, uint64_t handle) { return r->start == handle; }
static int maps(const struct scuda_range *r, uint64_t handle) {
  return r->flags & SCUDA_RANGE_HANDLE && r->owner == handle;
}
void scuda_allocation_share(uint64_t handle) {
  scuda_ranges_mark(&handles, is, handle, SCUDA_RANGE_SHARED);
  scuda_ranges_mark(&scuda_device_ranges, maps, handle, SCUDA_RANGE_SHARED);
}
int scuda_allocation_shared(uint64_t handle) {
  struct scuda_range r;
  return scuda_ranges_find(&handles, handle, &r) && r.flags & SCUDA_RANGE_SHARED;
}

void scuda_post_cuMemCreate(uint64_t *handle, uint64_t size, const void *properties, uint64_t flags) {
  (void)size, (void)properties, (void)flags;
  scuda_allocation_came(*handle);
}
void scuda_post_cuMemRetainAllocationHandle(uint64_t *handle, void *address) {
  (void)address;
  scuda_allocation_came(*handle);
}
int scuda_pre_cuMemRelease(uint64_t handle, int32_t *r) {
  return (*r = scuda_allocation_check(handle)) != CUDA_SUCCESS;
}
void scuda_post_cuMemRelease(uint64_t handle) {
  count(handle, -1);
  scuda_shared_object_gone();
}
int scuda_pre_cuMemGetAllocationPropertiesFromHandle(void *properties, uint64_t handle, int32_t *r) {
  (void)properties;
  return (*r = scuda_allocation_check(handle)) != CUDA_SUCCESS;
}
int scuda_pre_cuMemMap(uint64_t p, uint64_t bytes, uint64_t offset, uint64_t handle, uint64_t flags, int32_t *r) {
  (void)p, (void)bytes, (void)offset, (void)flags;
  return (*r = scuda_allocation_check(handle)) != CUDA_SUCCESS;
}
