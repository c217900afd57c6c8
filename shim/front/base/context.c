/* What is known of contexts and of the streams in them, without a question: a slot's state, and what the calling thread
 * has current. */
#include "base/base.h"

int32_t scuda_context_of(uint64_t ctx, struct scuda_slot **slot) {
  if (!ctx) ctx = scuda_thread()->current;
  struct scuda_slot *s = scuda_slot_of(ctx, KIND_CUcontext);
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  *slot = s;
  return s->flags & SCUDA_CTX_DEAD ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

void scuda_context_begins(struct scuda_slot *s) {
  static _Atomic uint64_t lives;
  s->data = (void *)(uintptr_t)(atomic_fetch_add(&lives, 1) + 1);
}

int32_t scuda_no_context(void) {
  struct scuda_slot *s = scuda_slot_of(scuda_thread()->current, KIND_CUcontext);
  return s && s->data && !scuda_context_usable(scuda_thread()->current) ? CUDA_ERROR_CONTEXT_IS_DESTROYED :
         CUDA_ERROR_INVALID_CONTEXT;
}

int32_t scuda_context_sound(void) {
  struct scuda_slot *s;
  int32_t r = scuda_context_of(0, &s);
  return r ? r : s->sticky;
}

int32_t scuda_current_device(void) {
  struct scuda_slot *s;
  if (SCUDA_LIKELY(!scuda_context_of(0, &s))) return s->device;
  int32_t first = scuda_server_gpu(scuda_server());
  return first < 0 ? 0 : first;
}

int32_t scuda_usable_anywhere(uint64_t stream) {
  int32_t r = scuda_check(stream, KIND_CUstream);
  if (r) return r;
  return scuda_header_context(scuda_thread()) ? CUDA_SUCCESS : scuda_no_context();
}

int32_t scuda_usable(uint64_t stream) {
  if (SCUDA_UNLIKELY(scuda_several()) && scuda_elsewhere_of(stream)) return CUDA_ERROR_INVALID_HANDLE;
  return scuda_usable_anywhere(stream);
}

uint64_t scuda_stream_key(uint64_t stream, uint32_t ptds) {
  if (stream == 2 || (!stream && ptds)) return ~(uint64_t)scuda_thread()->ordinal;
  return stream ? stream : 1;
}
