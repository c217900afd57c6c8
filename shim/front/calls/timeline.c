#define _GNU_SOURCE
#include "calls/timeline.h"
#include "calls/profile.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  FIRST_MS = 10,               /* the machine begins to note when bytes come a moment after it was told to */
  EVERY_MS = 100, SAMPLES = 8, ANSWER = 256 << 10,
  KINDS = WIRE_PROFILE_KERNELS | WIRE_PROFILE_COPIES | WIRE_PROFILE_MEMSETS | WIRE_PROFILE_COMMANDS | WIRE_PROFILE_TURNS
};

/* Held over a question to the server and the keeping of its answer, which so are in one order. Guards theirs, kept. */
static scuda_lock_t lock;
/* of a server: kinds that a profiler of the program's wants, not 0: it asks; and what the server records */
static uint32_t theirs[SCUDA_SERVERS], kept[SCUDA_SERVERS];
static uint8_t *answer;
static _Atomic uint8_t named[4096]; /* by function: its name was told */

/* Not those that a profiler gives, which count from 1. */
uint32_t scuda_timeline_correlation(void) {
  static _Atomic uint32_t last;
  return atomic_fetch_add(&last, 1) | 1u << 31;
}

static void tell_name(uint32_t function, const char *name) {
  struct event_name n = {.event.kind = EVENT_NAME, .function = function};
  scuda_event(&n, sizeof n, name, (uint32_t)strlen(name));
}

void scuda_timeline_called(const struct scuda_profiled *c) {
  uint64_t now = scuda_events_now();
  if (c->function < sizeof named && !atomic_exchange(&named[c->function], 1))
    tell_name(c->function, scuda_exports[c->function].name);
  struct event_call e = {.event.kind = EVENT_CALL, .function = c->function, .correlation = c->correlation,
                         .began = c->entered, .ended = now, .result = c->result};
  struct scuda_profile_ids ids = {0};
  if (!c->result && c->function == I_cuCtxSynchronize) {
    scuda_profile_ids(c->context, UINT64_MAX, 0, &ids);
    e.stream = UINT32_MAX;
    e.context = ids.context;
  }
  if (c->function == I_cuStreamSynchronize || c->function == I_cuStreamSynchronize_ptsz) {
    /* of the last context that was asked about */
    static struct { _Atomic uint64_t context; _Atomic uint32_t id; } legacy;
    int per_thread = c->function == I_cuStreamSynchronize_ptsz;
    uint64_t stream;
    memcpy(&stream, c->params, sizeof stream);
    int is_legacy = stream == 1 || (!stream && !per_thread);
    if (is_legacy && c->context && atomic_load(&legacy.context) == c->context) {
      ids.stream = atomic_load(&legacy.id);
    } else if (!c->result) {
      scuda_profile_ids(c->context, stream, (uint32_t)per_thread, &ids);
      if (is_legacy && ids.stream) {
        atomic_store(&legacy.context, 0);
        atomic_store(&legacy.id, ids.stream);
        atomic_store(&legacy.context, c->context);
      }
    }
    e.stream = ids.stream;
  }
  scuda_event(&e, sizeof e, NULL, 0);
}

/* Those of a thread that have begun. One whose begin was not told is not told at all. */
enum { NESTED = 4 };
static __thread struct { const uint64_t *record; uint64_t began; } runtime[NESTED];

void scuda_timeline_runtime(uint32_t id, const uint64_t *record) {
  static _Atomic uint8_t told[SCUDA_RUNTIME_FLAGS];
  uint64_t now = scuda_events_now();
  int i = 0, ends = record[RUNTIME_SITE] >> 32 != 0;
  if (id >= SCUDA_RUNTIME_FLAGS) return;
  while (i < NESTED && runtime[i].record != (ends ? record : NULL)) i++;
  if (i == NESTED) {
    if (!ends) memset(runtime, 0, sizeof runtime); /* calls that did not return: their threads' stacks were unwound */
    return;
  }
  runtime[i].record = ends ? NULL : record;
  if (!ends) {
    runtime[i].began = now;
    return;
  }
  if (!atomic_exchange(&told[id], 1)) {
    const char *name = (const char *)(uintptr_t)record[RUNTIME_NAME];
    tell_name(EVENTS_RUNTIME + id, name ? name : "a call of the runtime");
  }
  struct event_call e = {.event.kind = EVENT_RUNTIME, .function = EVENTS_RUNTIME + id, .began = runtime[i].began,
                         .ended = now};
  if (record[RUNTIME_RESULT]) memcpy(&e.result, (const void *)(uintptr_t)record[RUNTIME_RESULT], sizeof e.result);
  scuda_event(&e, sizeof e, NULL, 0);
}

/* ---- what a server recorded; the lock is held ---- */

static int32_t control(uint32_t server, uint32_t wanted, uint32_t *got, uint64_t *now) {
  struct event_control e = {.event.kind = EVENT_CONTROL, .event.server = (uint16_t)server, .wanted = wanted,
                            .asked = scuda_events_now()};
  int32_t r = scuda_profile_control(server, wanted, &e.kept, &e.server);
  e.answered = scuda_events_now();
  if (r) e.kept = 0;
  kept[server] = e.kept;
  scuda_event(&e, sizeof e, NULL, 0);
  *got = e.kept;
  *now = e.server;
  return r;
}

static int32_t fetch(uint32_t server, void *to, uint32_t bytes, uint32_t all, uint32_t *got,
                     struct scuda_profile_times *times) {
  int32_t r = scuda_profile_read(server, to, bytes, all, got, times);
  struct event_read e = {.event.kind = EVENT_READ, .event.server = (uint16_t)server, .length = r ? 0 : *got,
                         .asked = times->sent, .answered = times->came};
  if (!r) scuda_event(&e, sizeof e, to, *got);
  return r;
}

static void fetch_all(uint32_t server, uint32_t all) {
  const struct wire_profile_records *head = (const void *)answer;
  struct scuda_profile_times times;
  uint32_t got = 0, more = 1;
  while (more && kept[server] && scuda_serving() && !fetch(server, answer, ANSWER, all, &got, &times))
    more = head->more && head->records;
}

/* How the clocks stand to each other: some questions in a row, of which the first wakes who has gone to sleep. */
static void ask_clock(uint32_t server) {
  struct scuda_profile_times times;
  uint32_t got = 0;
  for (int i = 0; i < SAMPLES && kept[server] && scuda_serving(); i++)
    if (fetch(server, answer, sizeof(struct wire_profile_records), 0, &got, &times)) return;
}

static void tell_traffic(void) {
  uint64_t n[4] = {0};
  scuda_core.figures(n);
  struct event_traffic e = {.event.kind = EVENT_TRAFFIC, .time = scuda_events_now(), .sent = n[0], .received = n[1],
                            .sent_rdma = n[2], .received_rdma = n[3]};
  scuda_event(&e, sizeof e, NULL, 0);
}

/* ---- what a profiler asks ---- */

int32_t scuda_timeline_control(uint32_t server, uint32_t kinds, uint32_t *got, uint64_t *now) {
  uint32_t all = 0;
  scuda_lock(&lock);
  fetch_all(server, 1); /* what is kept is forgotten */
  int32_t r = control(server, kinds | KINDS, &all, now);
  theirs[server] = r ? 0 : kinds & ~(uint32_t)WIRE_PROFILE_NUMBERS;
  scuda_unlock(&lock);
  *got = all & kinds;
  return r;
}

/* The profiler gets what it wants, which may be less than what there is. */
int32_t scuda_timeline_read(uint32_t server, void *to, uint32_t bytes, uint32_t all, uint32_t *got,
                            struct scuda_profile_times *times) {
  scuda_lock(&lock);
  int32_t r = fetch(server, to, bytes, all, got, times);
  uint32_t wanted = theirs[server];
  scuda_unlock(&lock);
  if (r) return r;
  struct wire_profile_records *head = to;
  struct wire_profile_record *from = scuda_profile_records(to, *got), *put = from;
  if (!from) return scuda_bad_reply("a profile's records");
  for (uint32_t i = 0; i < head->records; i++)
    if (from[i].kind & wanted) *put++ = from[i];
  head->records = (uint32_t)(put - from);
  *got = (uint32_t)((uint8_t *)put - (uint8_t *)to);
  return r;
}

/* ---- the thread ---- */

static void look(uint32_t all) {
  scuda_lock(&lock);
  for (uint32_t server = UINT32_MAX; scuda_profile_next(&server);) {
    if (!theirs[server] || all) fetch_all(server, all);
    if (!theirs[server]) ask_clock(server);
  }
  scuda_unlock(&lock);
  tell_traffic();
}

static void *run(void *nothing) {
  for (long ms = FIRST_MS; scuda_serving(); ms = EVERY_MS) {
    const struct timespec t = {0, ms * 1000000};
    nanosleep(&t, NULL);
    if (scuda_serving()) look(0);
  }
  return nothing;
}

static void tell_connecting(uint64_t began) {
  struct event_wait w = {.event.kind = EVENT_WAIT, .why = SCUDA_COUNT_KINDS, .op = OP_cuInit, .began = began,
                         .ended = scuda_events_now()};
  struct event_call c = {.event.kind = EVENT_CALL, .function = I_cuInit, .correlation = scuda_timeline_correlation(),
                         .began = began, .ended = w.ended};
  tell_name(I_cuInit, scuda_exports[I_cuInit].name);
  scuda_event(&w, sizeof w, NULL, 0);
  scuda_event(&c, sizeof c, NULL, 0);
}

void scuda_timeline_begins(uint64_t connecting) {
  static _Atomic int begun;
  uint32_t least = KINDS; /* that each server records */
  if (!scuda_events_on() || atomic_exchange(&begun, 1)) return;
  tell_connecting(connecting);
  scuda_profile_all_runtime();
  scuda_lock(&lock);
  answer = malloc(ANSWER);
  for (uint32_t server = UINT32_MAX; answer && scuda_profile_next(&server);) {
    uint32_t got = 0;
    uint64_t now = 0;
    if (!control(server, KINDS, &got, &now)) ask_clock(server);
    least &= got;
  }
  scuda_unlock(&lock);
  if (!answer) least = 0;
  if (least != KINDS)
    scuda_log(SCUDA_WARN, least ? "the server cannot tell what its GPU does: the timeline has no kernels" :
              "the server does not record profiles: the timeline has the program's calls and waits alone");
  tell_traffic();
  if (!answer || scuda_thread_start(run, NULL)) scuda_log(SCUDA_WARN, "no thread for the timeline: it has calls alone");
}

void scuda_timeline_ends(void) {
  if (!scuda_events_on()) return;
  if (scuda_serving() && answer) look(1);
  scuda_events_end();
}
