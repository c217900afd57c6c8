/* Unified memory, as the other parts of the front see it (managed.c). */
#ifndef SCUDA_MANAGED_H
#define SCUDA_MANAGED_H
#include "front.h"

enum { CU_DEVICE_CPU = -1, CU_DEVICE_INVALID = -2 };
enum { SCUDA_MANAGED_FAULTS, SCUDA_MANAGED_DOWN, SCUDA_MANAGED_UP, SCUDA_MANAGED_FIGURES }; /* faults, bytes fetched, bytes sent */
extern _Atomic uint64_t scuda_managed_figures[SCUDA_MANAGED_FIGURES];
extern _Atomic uint32_t scuda_managed_count;  /* ranges */

int scuda_is_managed(uint64_t p);
/* Before work of a stream that may use managed memory: what the program wrote goes up, and the GPU owns it all. */
int32_t scuda_managed_acquire(uint64_t stream, uint32_t ptds);
void scuda_managed_settled(uint64_t key);     /* after a wait for the GPU: for a stream, SCUDA_ALL_STREAMS, or SCUDA_NO_STREAM */
int32_t scuda_managed_variable(uint64_t address, uint64_t bytes);  /* a __managed__ variable of a module */
void scuda_managed_forget_context(uint64_t context);
#endif
