/* The connection, or the context, is lost: what the GPU has cannot be fetched any more, and whoever accesses it has to
 * be told. What other servers have goes on. */
#include "uvm/va_range.h"

void scuda_uvm_cut_off(void) {
  for (struct va_range *a = scuda_uvm.ranges; a; a = a->next) {
    if (a->lost || !scuda_va_range_lost(a)) continue;
    a->lost = 1;
    if (scuda_several()) scuda_pages_cut(&a->pages);
    else scuda_pages_lose(&a->pages);
  }
}

void scuda_uvm_lose(const struct va_range *a, int32_t result) {
  if (scuda_va_range_lost(a)) return;
  scuda_uvm.lost |= 1u << scuda_va_range_server(a);
  scuda_log(SCUDA_ERROR,
            "unified memory cannot be fetched any more (CUresult %d: the connection to the server, or the context, is "
            "lost); the program gets SIGBUS where it touches it", result);
  if (!scuda_fetches) scuda_uvm_cut_off(); /* else the last one does: they write to the pages */
}
