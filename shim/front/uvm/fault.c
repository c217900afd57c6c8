/* The program's side of unified memory: an access that is not allowed waits for the GPU's work, and brings what it
 * needs. What to bring and what to ask for ahead is decided here, by the block's state; then one function does it:
 * scuda_fetch_now for what the GPU has, scuda_blocks_allow for what is here.
 *
 * The order in which it happens is what keeps the program, the GPU and our threads apart:
 * 1. The GPU's work that may use the range has ended before a state is looked at for good. The lock is let go during
 *    that wait, so everything is looked up anew after it.
 * 2. A block is BUSY, and the range in the list of those that a launch looks at, before the lock is let go for its
 *    bytes. A launch, a free and a discard wait for what is BUSY.
 * 3. The windows ahead are queued before the fault's own bytes are waited for.
 * 4. A block gets its new state before its accesses are allowed, or is BUSY until they are: the program's next launch
 *    looks without the lock.
 * 5. Bytes arrive in the open view or elsewhere, and only then is an access of the block allowed. The block is settled
 *    last, under the lock.
 * 6. Once something has failed nothing is fetched any more, and the memory is cut off when the last fetch has ended, as
 *    that one still writes to the pages. */
#include "uvm/va_range.h"
#include "uvm/work.h"

/* Brings what an access of a block wants that is not here, or not allowed as it is wanted; under the lock. CUresult. */
static int32_t serve(struct va_range *a, uint32_t b, int write) {
  const uint8_t was = a->state[b];
  /* somebody else's fault brought it, or the kernel took the page out of its tables since (reclaim does) */
  const int here = scuda_va_range_lost(a) || was == DIRTY || (was == CLEAN && !write);
  const int away = was == AWAY && !here, brought = away || (was == READY && !here);
  struct scuda_run *run;
  struct scuda_stretch s[1 + SCUDA_AHEAD_MAX] = {{b, 1}};
  struct scuda_fetch f[1 + SCUDA_AHEAD_MAX];
  uint32_t ahead = 0;
  if (!here) s[0] = scuda_residency_fault(a->state, a->blocks, b, brought ? &a->fetches : &a->unlocks, &run);
  if (brought) {
    /* While there is work kernels may still change what would come. Of a page with variables only they come. */
    if (!atomic_load(&scuda_work_pending) && !a->extents)
      ahead = scuda_residency_ahead(a->state, a->blocks, run, s + 1, scuda_fetch_room());
    scuda_thrashing_run(a->thrashing, s[0], run, s + 1, ahead);
    write |= scuda_va_range_written(a, b);
    for (uint32_t i = away ? 0 : 1; i <= ahead; i++)
      f[i] = scuda_fetch_claim(a, s[i], i ? scuda_va_range_written(a, s[i].first) : write);
    scuda_fetch_queue(f + 1, ahead);
  }
  return away ? scuda_fetch_now(f) : scuda_blocks_allow(a, s[0], here ? was : write ? DIRTY : CLEAN);
}

int scuda_uvm_fault(uint64_t address, int write) {
  int32_t r = CUDA_SUCCESS;
  struct va_range *a;
  uint32_t b = 0;
  scuda_lock(&scuda_uvm.lock);
  for (int waited = 0; (a = scuda_va_range_at(address)) != NULL;) {
    b = (uint32_t)((address - a->pages.start) / BLOCK);
    const uint8_t was = a->state[b];
    if (was == BUSY || (scuda_va_range_lost(a) && scuda_fetches)) {
      scuda_fetch_await();
    } else if (was == AWAY && !waited && atomic_load(&scuda_work_pending) && !scuda_va_range_lost(a)) {
      if ((r = scuda_uvm_quiet(a))) break;
      waited = 1;
    } else {
      break;
    }
  }
  if (!a) {
    scuda_unlock(&scuda_uvm.lock);
    return 0;
  }
  count(SCUDA_FAULTS, 1);
  if (!r) r = serve(a, b, write);
  if (r) scuda_uvm_lose(a, r);
  scuda_unlock(&scuda_uvm.lock);
  return 1;
}
