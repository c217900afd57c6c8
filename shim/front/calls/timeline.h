/* What `scuda trace --kernels` is told by the front: calls with their times, waits, what the server recorded, bytes by
 * transport. A thread of the front asks the servers from time to time. Where a profiler of the program's asks as well
 * (libcupti.so), what it gets is kept, and it is the one that asks. */
#ifndef SCUDA_TIMELINE_H
#define SCUDA_TIMELINE_H
#include "calls/calls.h"
#include "base/events.h"
#include "base/profile.h"

void scuda_timeline_begins(uint64_t connecting);  /* there is a session; since when cuInit had to make it */
void scuda_timeline_ends(void);                   /* it is about to end: what the server still has is fetched */
uint32_t scuda_timeline_correlation(void);
void scuda_timeline_called(const struct scuda_profiled *c);  /* at the end of a call */
void scuda_timeline_runtime(uint32_t id, const uint64_t *record);  /* before and after a call of CUDA's runtime */
/* The two questions of a profiler's, asked so that both get what they want. */
int32_t scuda_timeline_control(uint32_t server, uint32_t kinds, uint32_t *kept, uint64_t *now);
int32_t scuda_timeline_read(uint32_t server, void *to, uint32_t bytes, uint32_t all, uint32_t *got,
                            struct scuda_profile_times *);
#endif
