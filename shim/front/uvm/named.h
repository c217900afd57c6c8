/* The addresses of unified memory that a call was given, in whatever structures: every word may be one. */
#ifndef SCUDA_NAMED_H
#define SCUDA_NAMED_H
#include <stdint.h>

enum { SCUDA_NAMED_FEW = 16 };  /* for more, memory is taken */
struct scuda_addresses { uint64_t *list; uint32_t count, room; uint64_t few[SCUDA_NAMED_FEW]; };

/* To be done without a lock: what was given may itself lie in unified memory, and reading it be a fault. CUresult;
 * after a success ... */
int32_t scuda_named_gather(struct scuda_addresses *n, const void *given, uint64_t bytes);
void scuda_named_forget(struct scuda_addresses *n); /* ... this */
#endif
