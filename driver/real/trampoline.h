/* Calls through function pointers whose types are known to the Go side only. */
#ifndef SCUDA_REAL_TRAMPOLINE_H
#define SCUDA_REAL_TRAMPOLINE_H
#include <stdint.h>

/* Integer and pointer arguments (at most 16). A callee with fewer parameters ignores the rest: the caller owns the argument area. */
uint64_t scuda_real_call(void *fn, const uint64_t *args);
/* The same with up to two float arguments, which travel in registers of their own, in order among themselves. */
uint64_t scuda_real_call_float(void *fn, const uint64_t *args, float f0, float f1);
/* (pointer, structure of 64 bytes by value, integer): the cuIpcOpen… functions. */
uint64_t scuda_real_call_blob64(void *fn, uint64_t out, const void *blob, uint64_t flags);
/* Like scuda_real_call, with the first argument replaced by a copy of the 128 bytes there, aligned to 128, which is copied back. */
uint64_t scuda_real_call_tensor(void *fn, const uint64_t *args);
/* Enqueues the Go function behind handle with cuLaunchHostFunc. */
uint64_t scuda_real_launch_host(void *fn, uint64_t stream, uintptr_t handle);
/* Opens a library for good; the error text lives until the next call on this thread. */
void *scuda_real_open(const char *path, const char **error);
void *scuda_real_symbol(void *library, const char *name);
#endif
