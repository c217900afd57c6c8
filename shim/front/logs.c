/* The driver's log, the profiler's switches, and user objects. */
#include "front.h"

#include <stdio.h>

/* The file is the program's, so the lines come here. */
int32_t scuda_hand_cuLogsDumpToFile(uint32_t *iterator, const char *path, uint32_t flags) {
  static char text[25601]; /* the most that the driver keeps, and a NUL */
  static scuda_lock_t lock;
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  scuda_lock(&lock);
  uint64_t bytes = sizeof text - 1;
  int32_t r = scuda_wire_cuLogsDumpToMemory(iterator, text, &bytes, flags, 0);
  if (!r) {
    text[bytes < sizeof text ? bytes : sizeof text - 1] = 0;
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0) r = CUDA_ERROR_INVALID_VALUE;
    if (f && fclose(f)) r = CUDA_ERROR_INVALID_VALUE;
  }
  scuda_unlock(&lock);
  return r;
}

/* No profiler is attached to the driver that runs the kernels; then these do nothing natively either. */
static int32_t switch_profiler(void) { return scuda_thread()->current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
int32_t scuda_hand_cuProfilerStart(void) { return switch_profiler(); }
int32_t scuda_hand_cuProfilerStop(void) { return switch_profiler(); }

/* The destructor is a function of the program; it runs here when the last reference is gone. */
int32_t scuda_hand_cuUserObjectCreate(uint64_t *object, void *ptr, void *destroy, uint32_t references, uint32_t flags) {
  if (!object || !destroy || !references || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
  uint64_t handle = scuda_slot_new(KIND_CUuserObject);
  if (!handle) return CUDA_ERROR_OUT_OF_MEMORY;
  struct wire_user_object m = {handle, scuda_core.hostfn(destroy, ptr, 0, 0, 0), references, flags};
  int32_t r = scuda_simple(OP_USER_OBJECT, SCUDA_ANSWER, &m, sizeof m);
  if (r) {
    scuda_slot_free(handle);
    return r;
  }
  *object = handle;
  return CUDA_SUCCESS;
}
