/* What a program said of the pages of a range: where they are best, where it asked for them, who uses them how. Pages
 * of which the same was said lie in one stretch, so a range has few; nothing is kept of one of which nothing was said.
 * It holds no lock and moves nothing. */
#ifndef SCUDA_ADVICE_H
#define SCUDA_ADVICE_H
#include "base/base.h"

enum { CU_DEVICE_CPU = -1, CU_DEVICE_INVALID = -2 };

struct scuda_advice {
  struct CUmemLocation_st preferred, prefetched;  /* zero: none */
  uint64_t accessed_by, read_mostly;             /* a bit for each GPU's ordinal, the highest for the CPU; 0 or 1 */
};

struct scuda_advised { uint64_t from; struct scuda_advice is; }; /* until the next one begins */
struct scuda_advices { struct scuda_advised *list; uint32_t count; };

const struct scuda_advice *scuda_advice_at(const struct scuda_advices *all, uint64_t offset);
/* What holds for all of [from, to): where its pages differ, nothing. preferred and prefetched: the same as devices, for
 * which all the host is one place. */
struct scuda_advice scuda_advice_of(const struct scuda_advices *all, uint64_t from, uint64_t to, int32_t *preferred,
                                    int32_t *prefetched);
/* Makes [from, to) stretches of their own, *first to *end - 1; 0: no memory. When they are changed, the other. */
int scuda_advice_cut(struct scuda_advices *all, uint64_t from, uint64_t to, uint32_t *first, uint32_t *end);
void scuda_advice_join(struct scuda_advices *all);
int32_t scuda_location_device(struct CUmemLocation_st p);  /* an ordinal, CU_DEVICE_CPU or CU_DEVICE_INVALID */
#endif
