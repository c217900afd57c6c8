/* Statistics of unified memory, and what is said of them. */
#include "uvm/managed.h"
#include "uvm/pager.h"

static unsigned long long stat(int i) { return atomic_load_explicit(&scuda_managed_stats[i], memory_order_relaxed); }

void scuda_managed_end(void) {
  if (scuda_pager_started())
    scuda_log(SCUDA_INFO,
              "unified memory: %llu faults, %llu bytes fetched, %llu bytes sent, %llu bytes came with waits, "
              "%llu times a thrashing block was pinned", stat(SCUDA_FAULTS),
              stat(SCUDA_DOWN), stat(SCUDA_UP), stat(SCUDA_PUSHED), stat(SCUDA_PINNED));
}

/* Natively such an allocation succeeds, and the driver moves what does not fit. */
void scuda_managed_full(uint64_t bytes) {
  static _Atomic int said;
  uint64_t left = 0, total = 0;
  scuda_wire_cuMemGetInfo_v2(&left, &total, 0);
  scuda_log(atomic_exchange(&said, 1) ? SCUDA_DEBUG : SCUDA_WARN,
            "unified memory: no room for %llu bytes, the GPU has %llu of %llu left; all of a range is kept there, "
            "so free some, ask for less, or use a larger GPU",
            (unsigned long long)bytes, (unsigned long long)left, (unsigned long long)total);
}
