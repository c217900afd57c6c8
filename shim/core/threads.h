// See threads.c.
#ifndef SCUDA_THREADS_H
#define SCUDA_THREADS_H
#include <stdint.h>

// Says whether so many threads can be started, as they have been; they wait until they are needed.
int scuda_threads_ready(int n);
extern uint32_t *scuda_threads_lost;
#endif
