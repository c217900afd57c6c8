/* Whose work the GPUs have, as far as unified memory is concerned: what may still use it, and whether a wait was for
 * all of it. But for the first function the caller holds the lock under which it acts on the answer. */
#ifndef SCUDA_WORK_H
#define SCUDA_WORK_H
#include <stdint.h>

extern _Atomic uint32_t scuda_work_pending;  /* the GPUs may have work */
/* This thread gives work, in its context, to a stream. 1: that is nothing new, else ... */
int scuda_work_known(uint64_t key);
void scuda_work_given(uint64_t key);         /* ... this notes it */
/* This thread has waited (for a stream, SCUDA_ALL_STREAMS, or SCUDA_NO_STREAM); 1: that was for all the work that there
 * can be. */
int scuda_work_over(uint64_t key);
void scuda_work_at(uint64_t context);          /* a context is given work, which need not be this thread's */
int scuda_work_alone(void);                  /* nobody but this thread has given work */
uint64_t scuda_work_place(uint32_t i);       /* contexts that were given work, also of other GPUs; 0: no more */
void scuda_work_forget(uint64_t context);
#endif
