/* Calls through function pointers whose types are known to the Go side only. */
#ifndef SCUDA_REAL_TRAMPOLINE_H
#define SCUDA_REAL_TRAMPOLINE_H
#include <stdint.h>

#define SCUDA_REAL_WORDS \
  uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3, uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, \
  uint64_t a8, uint64_t a9, uint64_t a10, \
      uint64_t a11, uint64_t a12, uint64_t a13, uint64_t a14, uint64_t a15

/* Integer and pointer arguments. A callee with fewer parameters ignores the rest: the caller owns the argument area.
 * They are passed one by one and not as an array, since Go would put an array on its heap for each call. */
uint64_t scuda_real_call(void *fn, SCUDA_REAL_WORDS);
/* The same with up to two float arguments, which travel in registers of their own, in order among themselves. */
uint64_t scuda_real_call_float(void *fn, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3, float f0, float f1);
/* (pointer, structure of 64 bytes by value, integer): the cuIpcOpen… functions. */
uint64_t scuda_real_call_blob64(void *fn, uint64_t out, const void *blob, uint64_t flags);
/* Like scuda_real_call, with the first argument replaced by a copy of the 128 bytes there, aligned to 128, which is
 * copied back. */
uint64_t scuda_real_call_tensor(void *fn, SCUDA_REAL_WORDS);
/* Enqueues the Go function behind handle with cuLaunchHostFunc. */
uint64_t scuda_real_launch_host(void *fn, uint64_t stream, uintptr_t handle);
/* What runs the Go function behind a handle; for graph nodes. */
uintptr_t scuda_real_host_entry(void);
/* Opens a library for good; the error text lives until the next call on this thread. */
void *scuda_real_open(const char *path, const char **error);
void *scuda_real_symbol(void *library, const char *name);
#endif
