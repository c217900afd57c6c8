/* Denying a large stretch of unified memory takes as long as sending a good part of it: threads of ours do it piece by
 * piece, in order, so that what is denied can be sent meanwhile. */
#ifndef SCUDA_UNMAP_H
#define SCUDA_UNMAP_H
#include "uvm/pager.h"

struct scuda_unmap { const struct scuda_pages *pages; uint64_t from, bytes; int shared; };  /* shared: others help */

/* One at a time. */
void scuda_unmap_begin(struct scuda_unmap *d, const struct scuda_pages *p, uint64_t from, uint64_t bytes);
void scuda_unmap_await(struct scuda_unmap *d, uint64_t to);  /* until everything before this offset is denied */
#endif
