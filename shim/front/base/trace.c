/* What `scuda trace` (SCUDA_TRACE=FILE) and the client's metrics (SCUDA_METRICS=ADDRESS) ask for: how often each
 * operation was sent, and how long the program's threads stood still for it. The trace is written as JSON at the
 * process's end; operations by their numbers, which the command line names. */
#define _GNU_SOURCE
#include "base/base.h"
#include "base/events.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_WIRE = WIRE_FIRST_OP };
_Atomic uint64_t scuda_managed_stats[SCUDA_MANAGED_STATS];
static struct scuda_counts counts = {.managed = (const uint64_t *)scuda_managed_stats};
static const char *const kinds[SCUDA_COUNT_KINDS] = {"sent", "answer", "data", "queue", "module"};
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
  const char *name = getenv("SCUDA_TRACE"), *metrics = getenv("SCUDA_METRICS");
  if (name && *name && strlen(name) < sizeof file - 16) strcpy(file, name);
  int timeline = scuda_events_open("gpu");
  if (!*file && !(metrics && *metrics) && !timeline) return;
  began = scuda_trace_now();
  owner = getpid();
  scuda_tracing = 1;
  scuda_shared.counts = &counts;
}

static void add(uint64_t *to, uint64_t n) { __atomic_fetch_add(to, n, __ATOMIC_RELAXED); }

void scuda_trace_note(uint32_t kind, uint32_t op, uint64_t since, uint64_t bytes) {
  uint32_t i = op < SCUDA_COUNT_CUDA ? op : op >= FIRST_WIRE && op < FIRST_WIRE + SCUDA_COUNT_WIRE ? op - FIRST_WIRE +
               SCUDA_COUNT_CUDA : 0;
  struct scuda_count *c = &counts.of[kind][i];
  add(&c->n, 1);
  add(&c->bytes, bytes);
  if (!since) return;
  uint64_t now = scuda_trace_now(), ns = now - since;
  struct event_wait e = {.event.kind = EVENT_WAIT, .why = kind, .op = op, .began = since, .ended = now, .bytes = bytes};
  scuda_event(&e, sizeof e, NULL, 0);
  uint64_t most = __atomic_load_n(&c->most, __ATOMIC_RELAXED);
  add(&c->ns, ns);
  while (most < ns && !__atomic_compare_exchange_n(&c->most, &most, ns, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

void scuda_trace_error(int32_t result) {
  if (scuda_tracing)
    add(&counts.errors[result >= 0 && result < SCUDA_COUNT_ERRORS ? result : SCUDA_COUNT_ERRORS - 1], 1);
}

static void put(FILE *f, const char **sep, const char *kind, uint32_t op, const struct scuda_count *c) {
  uint64_t n = __atomic_load_n(&c->n, __ATOMIC_RELAXED);
  if (!n) return;
  fprintf(f, "%s\n  {\"kind\": \"%s\", \"op\": %u, \"n\": %llu, \"ns\": %llu, \"most\": %llu, \"bytes\": %llu}", *sep,
          kind, op, (unsigned long long)n, (unsigned long long)__atomic_load_n(&c->ns, __ATOMIC_RELAXED),
          (unsigned long long)__atomic_load_n(&c->most, __ATOMIC_RELAXED),
          (unsigned long long)__atomic_load_n(&c->bytes, __ATOMIC_RELAXED));
  *sep = ",";
}

void scuda_trace_end(void) {
  if (!scuda_tracing || !*file || owner != getpid()) return;
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
  for (uint32_t k = 0; k < SCUDA_COUNT_KINDS; k++)
    for (uint32_t i = 0; i < SCUDA_COUNT_CUDA + SCUDA_COUNT_WIRE; i++)
      put(f, &sep, kinds[k], i < SCUDA_COUNT_CUDA ? i : i - SCUDA_COUNT_CUDA + FIRST_WIRE, &counts.of[k][i]);
  put(f, &sep, "outage", 0, &scuda_shared.outages);
  fprintf(f, "\n]");
  static const char *const stats[SCUDA_MANAGED_STATS] = {"faults", "to_host", "to_device", "pushed", "pinned"};
  for (int i = 0; i < SCUDA_MANAGED_STATS; i++)
    fprintf(f, "%s\"%s\": %llu", i ? ", " : ",\n \"managed\": {", stats[i],
            (unsigned long long)atomic_load(&scuda_managed_stats[i]));
  fprintf(f, "}}\n");
  fclose(f);
}
