/* What the cases share: a process runs one of them against the recording core. */
#ifndef CASES_H
#define CASES_H
#define _GNU_SOURCE
#include <cuda.h>

#include "gen/cuda_gen.h"
#include "gen/wire_gen.h"
#include "recorder.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAIL(...) (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), \
                   fprintf(stderr, "\n"), exit(1))
#define WANT(call, want) do { \
    long long got_ = (long long)(call), want_ = (long long)(want); \
    if (got_ != want_) FAIL("%s: got %lld, want %lld", #call, got_, want_); \
  } while (0)
#define CK(call) WANT(call, 0)
enum { ANSWER = 1, PTDS = 2, BULK = 4 };

extern struct recorder *rec;
extern CUcontext ctx;
void init(void);                                 /* cuInit */
void start(void);                                /* and device 0's primary context */
const struct command *last(int op);              /* the last command, which must be of that operation */
uint32_t sent(void);
static inline uint64_t word(const struct command *c, int i) { uint64_t v; memcpy(&v, c->payload + 8 * i, 8); return v; }
int32_t server(const struct command *c, void *reply, uint32_t cap, uint32_t *len);
CUfunction kernel(void);
CUdeviceptr alloc(size_t n);
extern void *args[];                             /* of kernel() */

/* cases_launch.c */
void launch(void);
void launch_shaped(void);
void launch_refusals(void);
void launch_attributes(void);

/* cases_modules.c: modules, libraries, the linker, occupancy */
void modules(void);
void jit(void);
void names(void);
void occupancy(void);

/* cases_memory.c: copies, contexts, memory, handles */
void uploads(void);
void downloads(void);
void capture(void);
void rectangles(void);
void contexts(void);
void primary(void);
void pointers(void);
void progress(void);
void mapped(void);
void handles(void);
#endif
