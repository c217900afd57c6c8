/* libcupti.so.12 and .13: CUPTI for programs whose GPU is at a server. What kineto, XLA's tracer and Triton's proton
 * use of it works; the rest is exported and refused by name. In a process without a session of scuda every call goes to
 * the program's own CUPTI (entry.c).
 *
 * Records of calls are made here, where the calls are. What the GPUs did, servers keep until they are asked (work.c).
 *
 * Locks: none is held while code of the program's is called, but for its clock. Whoever holds fetch_lock (work.c) may
 * take the others, of which none is held while another is taken.
 */
#ifndef SCUDA_CUPTI_H
#define SCUDA_CUPTI_H
#include "base/common.h"
#include "base/profile.h"
#include "gen/wire_gen.h"
#include "cupti_gen.h"

#include <pthread.h>
#include <string.h>

#define CUPTI_EXPORT __attribute__((visibility("default")))

typedef long (*cupti_fn)(long, long, long, long, long, long, long, long);
struct cupti_function { const char *name; cupti_fn own; };
struct cupti_name { int32_t value; const char *name; };
extern const struct cupti_function cupti_functions[CUPTI_FUNCTIONS];
extern const struct cupti_name cupti_results[];
extern const char *const cupti_driver_names[CUPTI_DRIVER_IDS], *const cupti_runtime_names[CUPTI_RUNTIME_IDS];
extern const uint16_t cupti_driver_ids[]; /* by the front's index of an exported function */
extern const uint32_t cupti_driver_exports;
extern const int cupti_major;             /* of the library: 12, 13 */

extern const char *const cupti_kind_names[], *const cupti_resource_names[], *const cupti_attribute_names[];

/* ---- where a call goes (entry.c) ---- */
cupti_fn cupti_route(uint32_t function, const void *caller);
void *cupti_driver_function(const char *name); /* of the front; NULL: it has none of the name */
int cupti_refused(_Atomic uint8_t *said, const char *name); /* CUPTI_ERROR_NOT_SUPPORTED, which is logged once */
extern const struct scuda_profile_table *cupti_front; /* once a call has come to us */

/* ---- threads (calls.c) ---- */
enum { CUPTI_EXTERNAL_KINDS = CUPTI_EXTERNAL_CORRELATION_KIND_SIZE, CUPTI_NESTED = 8 };
enum { CUPTI_CALLED = 1, CUPTI_RECORDED = 2, CUPTI_NEW = 4 }; /* of a call: told. NEW: what it gives did not exist */
struct cupti_stack { uint64_t *ids; uint32_t depth, room; };
struct cupti_thread {
  uint32_t number;             /* the kernel's; 0: not asked yet */
  uint32_t inside;             /* in code of the program's that we called, or in a thread of ours: none is recorded */
  uint32_t calling;            /* of these, by the program's functions for buffers, or by a callback */
  uint32_t depth;              /* runtime calls that are going on */
  struct { const uint64_t *record; uint64_t began; uint32_t correlation, told; } runtime[CUPTI_NESTED];
  struct cupti_stack external[CUPTI_EXTERNAL_KINDS];
  struct cupti_range { const char *domain; uint32_t id; } *ranges; /* that NVTX began and has not ended (nvtx.c) */
  uint32_t range_count, range_room;
};
struct cupti_thread *cupti_self(void);
/* 1 before a function of the program's is called, -1 behind it: what it calls meanwhile is not the program's work. */
static inline void cupti_program(struct cupti_thread *t, int by) {
  t->inside += (uint32_t)by;
  t->calling += (uint32_t)by;
}
uint32_t cupti_thread_id(void);    /* as the program wants threads numbered */
extern const struct scuda_profiler cupti_profiler;
uint64_t cupti_real(void);     /* ns since 1970 */
uint64_t cupti_now(void);      /* the same, or as the program's clock has it */
/* A call's argument; those before it have eight bytes each. */
static inline uint64_t cupti_argument(const struct scuda_profiled *c, int n) {
  uint64_t v = 0;
  if (c->params) memcpy(&v, (const uint8_t *)c->params + 8 * n, 8);
  return v;
}

/* ---- who is called back for what (callback.c) ---- */
enum { CUPTI_DOMAINS = CUPTI_CB_DOMAIN_SIZE, CUPTI_IDS = 1024 };
_Static_assert((int)CUPTI_DRIVER_IDS <= (int)CUPTI_IDS && (int)CUPTI_RUNTIME_IDS <= (int)CUPTI_IDS, "callback ids");
/* Callback ids of the domain NVTX, in CUPTI's order. Those of NVTX's domains, names and resources come behind. */
enum {
  CUPTI_NVTX_MARK_A = 1, CUPTI_NVTX_MARK_W, CUPTI_NVTX_MARK_EX, CUPTI_NVTX_START_A, CUPTI_NVTX_START_W,
  CUPTI_NVTX_START_EX, CUPTI_NVTX_END, CUPTI_NVTX_PUSH_A, CUPTI_NVTX_PUSH_W, CUPTI_NVTX_PUSH_EX, CUPTI_NVTX_POP,
  CUPTI_NVTX_IDS
};
extern const char *const cupti_nvtx_names[CUPTI_NVTX_IDS];
extern _Atomic uint8_t cupti_called[CUPTI_DOMAINS][CUPTI_IDS];
extern _Atomic uint32_t cupti_callbacks;   /* how many are enabled */
void cupti_call_back(uint32_t domain, uint32_t id, const void *data);

/* ---- activities (activity.c) ---- */
enum { CUPTI_KINDS = CUPTI_ACTIVITY_KIND_COUNT };
extern _Atomic uint8_t cupti_active[CUPTI_KINDS];
extern _Atomic uint8_t cupti_failed_waits;         /* are recorded as well */
extern _Atomic uint8_t cupti_chosen[2][CUPTI_IDS]; /* of driver, runtime: 1 recorded, 2 not, whatever the kind says */
typedef uint64_t (*cupti_clock)(void);
extern cupti_clock _Atomic cupti_program_clock;    /* NULL: ns since 1970 */
void cupti_write(const void *record, uint32_t bytes);
void cupti_lost(uint64_t records);
void cupti_came(void);            /* there is a record of a call, and no lock is held: a buffer may be asked for */
int cupti_deliver(uint32_t least); /* hands over what there is, if so many bytes; 0: there was less */
uint32_t cupti_work_kinds(void);   /* of the GPU's work that are recorded: WIRE_PROFILE_… */
void cupti_update(void);           /* what is recorded or called back for has changed */
static inline int cupti_kernels(void) {
  return cupti_active[CUPTI_ACTIVITY_KIND_KERNEL] || cupti_active[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL];
}
/* Whether a call is of the form in which stream 0 is the thread's own. */
static inline uint32_t cupti_per_thread(const struct scuda_profiled *c) {
  const char *form = strrchr(c->name, '_');
  return form && !strcmp(form, "_ptsz");
}
static inline int cupti_recorded(int runtime, uint32_t id) {
  uint8_t chosen = id < CUPTI_IDS ? cupti_chosen[runtime][id] : 0;
  return chosen ? chosen == 1 : cupti_active[runtime ? CUPTI_ACTIVITY_KIND_RUNTIME : CUPTI_ACTIVITY_KIND_DRIVER];
}

/* ---- the program's objects (objects.c) ---- */
void cupti_objects_enter(struct scuda_profiled *, uint32_t id);
void cupti_objects_leave(const struct scuda_profiled *, uint32_t id); /* of calls that went well */
void cupti_objects_update(void);
void cupti_objects_dump(uint32_t kind);    /* records of those that there are */
int cupti_ids_of(uint64_t context, uint64_t stream, struct scuda_profile_ids *); /* context 0: the stream's; 0: none */
void cupti_event_numbers(uint64_t event, uint32_t *id, uint64_t *recorded);
uint32_t cupti_launched_number(uint64_t exec); /* for records; 0: the server's records have it */

/* ---- the GPU's work (work.c) ---- */
const char *cupti_intern(const char *text, size_t n); /* for records: it is never forgotten */
struct cupti_origin {          /* of work: the call that it came with */
  uint32_t correlation, thread;
  uint64_t began;              /* cupti_real */
  uint8_t source, target;      /* of a copy: enum profile_memory of the pointers that the program gave; 0: not known */
  uint8_t async;
  uint8_t peers;               /* from GPU to GPU, whose numbers are in ends: of the source, of the target */
  struct scuda_profile_ids ends[2];
  uint32_t graph;              /* the number of the executable graph that was launched; 0: as the server says */
};
void cupti_came_from(const struct cupti_origin *);
/* a call that waited has returned: for a stream, 0: for all of the context */
void cupti_waited(uint32_t correlation, uint32_t thread, const struct scuda_profile_ids *of, uint64_t end);
void cupti_work_wanted(uint32_t kinds);    /* of wire.spec's profile; has a thread fetch it */
int cupti_numbers(void);                   /* all servers say the numbers of graphs that its records have */
void cupti_work_check(void);               /* servers are told what is wanted, where they were not yet */
void cupti_fetch(uint32_t all);            /* what the servers have becomes records */
extern _Atomic uint32_t cupti_period;      /* ms between deliveries; 0: as buffers fill */
#endif
