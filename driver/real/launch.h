/* Launches that follow each other, made by one thread or by several. */
#ifndef SCUDA_REAL_LAUNCH_H
#define SCUDA_REAL_LAUNCH_H
#include <stdint.h>

/* cuda.Launch */
struct scuda_real_launch {
  void *function, *stream;
  void **params;
  uint32_t grid[3], block[3], shared;
  int32_t result;
  uint32_t thread, unused;
};

enum { SCUDA_REAL_LANES = 4 }; /* threads at most */

/* Calls launch (cuLaunchKernel) for each of n launches and stores their results. Up to `lanes` threads do so at once,
 * in the context that get (cuCtxGetCurrent) names and set (cuCtxSetCurrent) makes theirs, where the launches came from
 * several threads of the program and no stream from two of them: those of each thread are made in their order, and
 * between threads there is none. One process makes launches like that for one caller at a time; others make them
 * alone. */
void scuda_real_launch_all(uintptr_t launch, uintptr_t get, uintptr_t set, uintptr_t list, uint64_t n, uint32_t lanes);
#endif
