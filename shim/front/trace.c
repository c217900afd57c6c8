/* What `scuda trace` asks for (SCUDA_TRACE=FILE): how often each operation was sent, and how long the program's threads stood still for it. Written
 * as JSON at the process's end; operations by their numbers, which the command line names. */
#define _GNU_SOURCE
#include "front.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { CUDA_OPS = 1024, WIRE_OPS = 256, FIRST_WIRE = 0xF000 };
struct count { _Atomic uint64_t n, ns, most, bytes; };
static struct count counts[SCUDA_TRACE_KINDS][CUDA_OPS + WIRE_OPS];
static const char *const kinds[SCUDA_TRACE_KINDS] = {"sent", "answer", "data", "queue", "module"};
int scuda_tracing;
static char file[4096];
static uint64_t began;
static pid_t owner;

uint64_t scuda_trace_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void scuda_trace_setup(void) {
  const char *name = getenv("SCUDA_TRACE");
  if (!name || !*name || strlen(name) >= sizeof file - 16) return;
  strcpy(file, name);
  began = scuda_trace_now();
  owner = getpid();
  scuda_tracing = 1;
}

void scuda_trace_note(uint32_t kind, uint32_t op, uint64_t since, uint64_t bytes) {
  uint32_t i = op < CUDA_OPS ? op : op >= FIRST_WIRE && op < FIRST_WIRE + WIRE_OPS ? op - FIRST_WIRE + CUDA_OPS : 0;
  struct count *c = &counts[kind][i];
  atomic_fetch_add_explicit(&c->n, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&c->bytes, bytes, memory_order_relaxed);
  if (!since) return;
  uint64_t ns = scuda_trace_now() - since, most = atomic_load_explicit(&c->most, memory_order_relaxed);
  atomic_fetch_add_explicit(&c->ns, ns, memory_order_relaxed);
  while (most < ns && !atomic_compare_exchange_weak(&c->most, &most, ns)) {
  }
}

void scuda_trace_end(void) {
  if (!scuda_tracing || owner != getpid()) return;
  scuda_tracing = 0;
  char name[sizeof file + 32];
  snprintf(name, sizeof name, "%s.%d", file, (int)owner);
  FILE *f = fopen(name, "we");
  if (!f) {
    scuda_log(SCUDA_WARN, "cannot write the trace %s", name);
    return;
  }
  fprintf(f, "{\"pid\": %d, \"ns\": %llu, \"counts\": [", (int)owner, (unsigned long long)(scuda_trace_now() - began));
  const char *sep = "";
  for (uint32_t k = 0; k < SCUDA_TRACE_KINDS; k++)
    for (uint32_t i = 0; i < CUDA_OPS + WIRE_OPS; i++) {
      struct count *c = &counts[k][i];
      if (!c->n) continue;
      fprintf(f, "%s\n  {\"kind\": \"%s\", \"op\": %u, \"n\": %llu, \"ns\": %llu, \"most\": %llu, \"bytes\": %llu}", sep, kinds[k],
              i < CUDA_OPS ? i : i - CUDA_OPS + FIRST_WIRE, (unsigned long long)c->n, (unsigned long long)c->ns, (unsigned long long)c->most,
              (unsigned long long)c->bytes);
      sep = ",";
    }
  fprintf(f, "\n]}\n");
  fclose(f);
}
