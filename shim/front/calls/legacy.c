/* Launches as CUDA 3 had them: the shape of the block, the shared memory and the parameters are set on the function
 * beforehand. */
#include "calls/calls.h"

#include <stdlib.h>

enum { PARAMS_MAX = 4096 };
struct legacy {
  struct legacy *next;
  const struct scuda_func *of;
  uint64_t handle;
  uint32_t block[3], shared, bytes;
  uint8_t params[PARAMS_MAX];
};
static struct legacy *all;
static scuda_lock_t lock;

/* What was set on a function. The lock is held after a success. */
static int32_t find(uint64_t function, struct legacy **out) {
  const struct scuda_func *f = scuda_func(function);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  scuda_lock(&lock);
  struct legacy *l = all;
  while (l && l->handle != function) l = l->next;
  if (!l && (l = calloc(1, sizeof *l))) {
    l->next = all;
    all = l;
  }
  if (!l) {
    scuda_unlock(&lock);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  /* new, or the handle names another function by now */
  if (l->of != f) *l = (struct legacy){.next = l->next, .of = f, .handle = function, .block = {1, 1, 1}};
  *out = l;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuFuncSetBlockShape(uint64_t f, int32_t x, int32_t y, int32_t z) {
  struct legacy *l;
  if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = find(f, &l);
  if (r) return r;
  l->block[0] = (uint32_t)x;
  l->block[1] = (uint32_t)y;
  l->block[2] = (uint32_t)z;
  scuda_unlock(&lock);
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuFuncSetSharedSize(uint64_t f, uint32_t bytes) {
  struct legacy *l;
  int32_t r = bytes <= INT32_MAX ? find(f, &l) : CUDA_ERROR_INVALID_VALUE;
  if (r) return r;
  l->shared = bytes;
  scuda_unlock(&lock);
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuParamSetSize(uint64_t f, uint32_t bytes) {
  struct legacy *l;
  int32_t r = find(f, &l);
  if (r) return r;
  l->bytes = bytes; /* the launch looks at it */
  scuda_unlock(&lock);
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuParamSetv(uint64_t f, int32_t offset, void *from, uint32_t bytes) {
  struct legacy *l;
  if (!from || offset < 0 || (uint64_t)offset + bytes > PARAMS_MAX) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = find(f, &l);
  if (r) return r;
  memcpy(l->params + offset, from, bytes);
  scuda_unlock(&lock);
  return CUDA_SUCCESS;
}
int32_t scuda_hand_cuParamSeti(uint64_t f, int32_t offset, uint32_t value) {
  return scuda_hand_cuParamSetv(f, offset, &value, sizeof value);
}
int32_t scuda_hand_cuParamSetf(uint64_t f, int32_t offset, float value) {
  return scuda_hand_cuParamSetv(f, offset, &value, sizeof value);
}

int32_t scuda_hand_cuLaunchGridAsync(uint64_t f, int32_t width, int32_t height, uint64_t stream) {
  struct legacy *l, now;
  if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = find(f, &l);
  if (r) return r;
  now = *l;
  scuda_unlock(&lock);
  if (now.bytes > PARAMS_MAX) return CUDA_ERROR_INVALID_VALUE;
  uint64_t bytes = now.bytes;
  void *extra[] = {(void *)LAUNCH_PARAM_BUFFER_POINTER, now.params, (void *)LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   (void *)LAUNCH_PARAM_END};
  return scuda_hand_cuLaunchKernel(f, (uint32_t)width, (uint32_t)height, 1, now.block[0], now.block[1], now.block[2],
                                   now.shared, stream, NULL, extra, 0);
}
int32_t scuda_hand_cuLaunchGrid(uint64_t f, int32_t width, int32_t height) {
  return scuda_hand_cuLaunchGridAsync(f, width, height, 0);
}
int32_t scuda_hand_cuLaunch(uint64_t f) { return scuda_hand_cuLaunchGridAsync(f, 1, 1, 0); }
