/* The program's side of unified memory: an access that is not allowed waits for the GPU's work, and brings what it
 * needs. */
#include "uvm/va_range.h"
#include "uvm/work.h"

/* Waits for the work of all contexts; the result is that of one. */
int32_t scuda_uvm_finish(uint64_t context) {
  struct scuda_self self = scuda_self_begin(context);
  int32_t r = scuda_wire_cuCtxSynchronize(0);
  for (uint32_t i = 0;; i++) {
    scuda_lock(&scuda_uvm.lock);
    uint64_t other = scuda_work_place(i);
    scuda_unlock(&scuda_uvm.lock);
    if (!other) break;
    scuda_thread()->current = other;
    if (other != context) scuda_wire_cuCtxSynchronize(0); /* a failure there is told there */
  }
  scuda_self_end(self);
  return r;
}

/* Waits for the work of a stream, of whatever context; of all, where it is not known or has ended. */
static int32_t finish_stream(uint64_t context, uint64_t key) {
  if (key == SCUDA_NO_STREAM) return CUDA_SUCCESS;
  if (!scuda_slot_of(key, KIND_CUstream)) return scuda_uvm_finish(context);
  struct scuda_self self = scuda_self_begin(context);
  int32_t r = scuda_wire_cuStreamSynchronize(key, 0);
  scuda_self_end(self);
  return r == CUDA_ERROR_INVALID_HANDLE ? scuda_uvm_finish(context) : r;
}

/* Work that was given since the GPU was last known to have none, as far as it may use the memory, ends before the
 * program goes on with it: kernels and the program never work on it at once. Not within a host function, which a stream
 * waits for, nor during a capture, which a wait would end. The lock is let go meanwhile: other threads may have to give
 * the work that this work waits for. */
static int32_t quiet(struct va_range *a) {
  uint64_t context = a->context, attached = a->attachment == CU_MEM_ATTACH_SINGLE ? a->attached : SCUDA_NO_STREAM,
      giver = a->giver;
  if (__atomic_load_n(&scuda_shared.hosting, __ATOMIC_ACQUIRE) || atomic_load(&scuda_captures)) return CUDA_SUCCESS;
  int all = a->attachment == CU_MEM_ATTACH_GLOBAL;
  if (all && !atomic_exchange(&scuda_work_pending, 0)) return CUDA_SUCCESS;
  a->giver = SCUDA_NO_STREAM;
  scuda_unlock(&scuda_uvm.lock);
  int32_t r = all ? scuda_uvm_finish(context) : finish_stream(context, attached);
  if (!r && !all && giver != attached) r = finish_stream(context, giver);
  scuda_lock(&scuda_uvm.lock);
  return r;
}

/* What a fault brings may come with the waits from now on, unless the program goes through much of the range. */
static void note_thrashing(struct va_range *a, struct scuda_stretch s, struct scuda_run *run) {
  uint32_t end = s.first + s.count;
  if (run->window <= SCUDA_NODE_MAX) {
    scuda_thrashing_fault(a->thrashing + s.first, s.count);
  } else if (run->first < end) {
    scuda_thrashing_streams(a->thrashing + run->first, end - run->first);
    run->first = end;
  }
}

int scuda_uvm_fault(uint64_t address, int write) {
  struct va_range *a;
  uint8_t was;
  scuda_lock(&scuda_uvm.lock);
  for (int waited = 0;;) {
    if (!(a = scuda_va_range_at(address))) break;
    was = a->state[(address - a->pages.start) / BLOCK];
    if (was == BUSY || (scuda_uvm.lost && scuda_fetches)) {
      scuda_fetch_await();
    } else if (was == AWAY && !waited && atomic_load(&scuda_work_pending) && !scuda_uvm.lost) {
      int32_t r = quiet(a);
      if (r) scuda_uvm_lose(r);
      waited = 1;
    } else {
      break;
    }
  }
  if (!a) {
    scuda_unlock(&scuda_uvm.lock);
    return 0;
  }
  uint32_t b = (uint32_t)((address - a->pages.start) / BLOCK);
  count(SCUDA_FAULTS, 1);
  /* somebody else's fault brought it, or the kernel took the page out of its tables since (reclaim does) */
  if (scuda_uvm.lost || was == DIRTY || (was == CLEAN && !write)) {
    uint64_t bytes = scuda_va_range_bytes(a, b, 1);
    if (scuda_uvm.lost || scuda_pages_allow(&a->pages, (uint64_t)b * BLOCK, bytes, was == DIRTY))
      scuda_pages_wake(&a->pages, (uint64_t)b * BLOCK, bytes);
    scuda_unlock(&scuda_uvm.lock);
    return 1;
  }
  struct scuda_run *run;
  struct scuda_stretch s = scuda_residency_fault(a->state, a->blocks, b,
                                                 was == AWAY || was == READY ? &a->fetches : &a->unlocks, &run);
  uint64_t from = (uint64_t)s.first * BLOCK, bytes = scuda_va_range_bytes(a, s.first, s.count);
  if (was == AWAY || was == READY) {
    write |= scuda_va_range_written(a, b);
    note_thrashing(a, s, run);
    if (!atomic_load(&scuda_work_pending)) scuda_fetch_ahead(a, run); /* else kernels may still change it */
  }
  int32_t r = CUDA_SUCCESS;
  if (was == AWAY && !a->extents) {
    if ((r = scuda_fetch_now(a, s.first, s.count, write))) scuda_uvm_lose(r);
    scuda_unlock(&scuda_uvm.lock);
    return 1;
  }
  /* before the program can go on: its next launch looks at the list without the lock */
  scuda_va_range_mark(a, s.first, s.count, write ? DIRTY : CLEAN);
  if (was == AWAY) {
    r = scuda_fetch_parts(a, s.first, s.count, write);
  } else if (was == CLEAN) {
    r = scuda_pages_unlock(&a->pages, from, bytes);
  } else {
    if (was == FRESH) {
      r = scuda_pages_hold(&a->pages, from, bytes);
      memset(a->file + s.first, HELD, s.count);
    }
    if (!r) r = scuda_pages_allow(&a->pages, from, bytes, write);
  }
  if (r) {
    scuda_va_range_mark(a, s.first, s.count, AWAY);
    scuda_uvm_lose(r);
  }
  scuda_unlock(&scuda_uvm.lock);
  return 1;
}
