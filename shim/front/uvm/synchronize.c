/* Waits for the GPU's work, before the program goes on with memory that the work may use. */
#include "uvm/va_range.h"
#include "uvm/work.h"

int32_t scuda_uvm_synchronize(uint64_t context, uint64_t key) {
  if (key == SCUDA_NO_STREAM) return CUDA_SUCCESS;
  struct scuda_self self = scuda_self_begin(context);
  int32_t r = CUDA_ERROR_INVALID_HANDLE;
  if (scuda_slot_of(key, KIND_CUstream)) r = scuda_wire_cuStreamSynchronize(key, 0);
  if (r == CUDA_ERROR_INVALID_HANDLE) { /* it is not known, or has ended: its work is among all there is */
    r = scuda_wire_cuCtxSynchronize(0);
    for (uint32_t i = 0;; i++) {
      scuda_lock(&scuda_uvm.lock);
      uint64_t other = scuda_work_place(i);
      scuda_unlock(&scuda_uvm.lock);
      if (!other) break;
      scuda_thread()->current = other;
      if (other != context) scuda_wire_cuCtxSynchronize(0); /* a failure there is told there */
    }
  }
  scuda_self_end(self);
  return r;
}

int32_t scuda_uvm_quiet(struct va_range *a) {
  uint64_t context = a->home, giver = a->giver;
  uint64_t attached = a->attachment == CU_MEM_ATTACH_SINGLE ? a->attached : SCUDA_NO_STREAM;
  if (__atomic_load_n(&scuda_shared.hosting, __ATOMIC_ACQUIRE) || atomic_load(&scuda_captures)) return CUDA_SUCCESS;
  int all = a->attachment == CU_MEM_ATTACH_GLOBAL;
  if (all && !atomic_exchange(&scuda_work_pending, 0)) return CUDA_SUCCESS;
  a->giver = SCUDA_NO_STREAM;
  scuda_unlock(&scuda_uvm.lock);
  int32_t r = scuda_uvm_synchronize(context, all ? SCUDA_ALL_STREAMS : attached);
  if (!r && !all && giver != attached) r = scuda_uvm_synchronize(context, giver);
  scuda_lock(&scuda_uvm.lock);
  return r;
}
