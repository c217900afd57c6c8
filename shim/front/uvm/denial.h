/* Denying a large stretch of unified memory takes as long as sending a good part of it: threads of ours do it piece by piece, in order, so that what
 * is denied can be sent meanwhile. */
#ifndef SCUDA_DENIAL_H
#define SCUDA_DENIAL_H
#include "uvm/pager.h"

struct scuda_denial { const struct scuda_pages *pages; uint64_t from, bytes; int shared; };  /* shared: others help */

/* One at a time. */
void scuda_denial_begin(struct scuda_denial *d, const struct scuda_pages *p, uint64_t from, uint64_t bytes);
void scuda_denial_await(struct scuda_denial *d, uint64_t to);  /* until everything before this offset is denied */
#endif
