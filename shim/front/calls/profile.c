/* The front's side of a profiler: calls are told to it at both ends, the server is asked for what its GPU did. */
#include "base/server.h"
#include "calls/profile.h"
#include "calls/timeline.h"

#include <string.h>

static const struct scuda_profiler *_Atomic attached;
uint32_t scuda_runtime_flags[SCUDA_RUNTIME_FLAGS];
static uint32_t profiler_flags[SCUDA_RUNTIME_FLAGS]; /* the profiler's, where a timeline wants all */

int scuda_profile_enter(struct scuda_profiled *c, uint32_t function, const void *params) {
  const struct scuda_profiler *p = atomic_load(&attached);
  struct scuda_thread *t = scuda_thread();
  int timeline = scuda_events_on();
  if (!p && !timeline) return 0;
  memset(c, 0, sizeof *c);
  c->profiler = p;
  c->function = function;
  c->name = scuda_exports[function].name;
  c->params = params;
  c->context = t->current;
  c->before = t->correlation;
  if (p && !p->enter(c)) c->profiler = NULL;
  if (!c->profiler && !timeline) return 0;
  if (!c->profiler) c->correlation = scuda_timeline_correlation();
  if (timeline) c->entered = scuda_events_now();
  t->correlation = c->correlation;
  return 1;
}

int32_t scuda_profile_exit(struct scuda_profiled *c, int32_t result) {
  scuda_thread()->correlation = c->before;
  c->result = result;
  if (c->entered) scuda_timeline_called(c);
  if (c->profiler) c->profiler->exit(c);
  return result;
}

void scuda_profile_runtime(uint32_t id, void *record) {
  const struct scuda_profiler *p = atomic_load(&attached);
  int timeline = scuda_events_on();
  if (timeline) scuda_timeline_runtime(id, record);
  if (p && (!timeline || (id < SCUDA_RUNTIME_FLAGS && profiler_flags[id]))) p->runtime(id, record);
}

void scuda_profile_all_runtime(void) {
  for (int i = 0; i < SCUDA_RUNTIME_FLAGS; i++) {
    profiler_flags[i] |= scuda_runtime_flags[i];
    __atomic_store_n(&scuda_runtime_flags[i], 1, __ATOMIC_RELAXED);
  }
}

/* Between two modes of a session; another mode stays. */
static void change_mode(uint32_t from, uint32_t to) {
  atomic_compare_exchange_strong(&scuda_live.mode, &from, to);
}

void scuda_profile_begins(uint64_t connecting) {
  scuda_timeline_begins(connecting);
  if (atomic_load(&attached) || scuda_events_on()) change_mode(SCUDA_REMOTE, SCUDA_PROFILED);
}

int32_t scuda_profile_serves(void) {
  uint32_t mode = scuda_mode();
  return mode == SCUDA_REMOTE || mode == SCUDA_PROFILED ? 2 : mode == SCUDA_CONFIGURED;
}

/* A call that has begun ends with the profiler that it began with: a profiler is never unloaded. */
int32_t scuda_profile_attach(const struct scuda_profiler *profiler) {
  if (!scuda_profile_serves()) return CUDA_ERROR_NOT_INITIALIZED;
  const struct scuda_profiler *now = atomic_load(&attached);
  if (profiler && now && now != profiler) return CUDA_ERROR_NOT_PERMITTED; /* libcupti.so.12 and .13 are two */
  atomic_store(&attached, profiler);
  if (profiler) change_mode(SCUDA_REMOTE, SCUDA_PROFILED);
  else if (!scuda_events_on()) change_mode(SCUDA_PROFILED, SCUDA_REMOTE);
  return CUDA_SUCCESS;
}

uint32_t *scuda_profile_flags(uint32_t *count) {
  *count = SCUDA_RUNTIME_FLAGS;
  return scuda_events_on() ? profiler_flags : scuda_runtime_flags;
}

_Static_assert((int)SCUDA_PROFILE_SERVERS == (int)SCUDA_SERVERS, "servers of a program");

int scuda_profile_next(uint32_t *server) {
  return scuda_several() ? scuda_other_server(UINT32_MAX, server) : ++*server == 0;
}

/* A call of ours to a server, which may come from within a call of the program's. */
static int32_t ask(uint32_t server, uint32_t op, const void *payload, uint32_t bytes, void *reply, uint32_t cap,
                   uint32_t *got) {
  if (!scuda_boot.profiles) return CUDA_ERROR_NOT_FOUND; /* an older server does not know the command */
  struct scuda_visit v = scuda_visit(server, 0);
  struct scuda_self self = scuda_self_begin(scuda_thread()->current);
  struct scuda_cmd c;
  int32_t r = scuda_begin(&c, op, SCUDA_ANSWER, bytes);
  if (!r) {
    memcpy(c.payload, payload, bytes);
    r = scuda_call(&c, reply, cap, got);
  }
  scuda_self_end(self);
  scuda_visit_end(v);
  return r;
}

int32_t scuda_profile_control(uint32_t server, uint32_t kinds, uint32_t *kept, uint64_t *now) {
  struct wire_profile m = {.kinds = kinds};
  struct wire_profile_state state;
  uint32_t got = 0;
  int32_t r = ask(server, OP_PROFILE, &m, sizeof m, &state, sizeof state, &got);
  if (r) return r;
  if (got != sizeof state) return scuda_bad_reply("a profile");
  *kept = state.kinds;
  *now = state.now;
  return CUDA_SUCCESS;
}

struct wire_profile_record *scuda_profile_records(void *answer, uint32_t got) {
  struct wire_profile_records *head = answer;
  uint8_t *p = (uint8_t *)(head + 1), *end = (uint8_t *)answer + got;
  if (got < sizeof *head) return NULL;
  for (uint32_t i = 0; i < head->names; i++) {
    struct wire_profile_name n;
    if ((size_t)(end - p) < sizeof n) return NULL;
    memcpy(&n, p, sizeof n);
    if ((size_t)(end - p) - sizeof n < scuda_pad(n.bytes)) return NULL;
    p += sizeof n + scuda_pad(n.bytes);
  }
  struct wire_profile_record *first = (void *)p;
  return (size_t)(end - p) / sizeof *first < head->records ? NULL : first;
}

/* Of a graph's node the upper half is the number of its graph. */
static uint64_t unique_node(uint32_t server, uint64_t node) {
  return scuda_unique(server, node >> 32) << 32 | (uint32_t)node;
}

static uint32_t unique(uint32_t server, uint32_t number) {
  return number == UINT32_MAX ? number : (uint32_t)scuda_unique(server, number); /* CUPTI's word for none */
}

/* A server's record as the program sees things: CUDA_VISIBLE_DEVICES may choose and order devices. */
static void make_ours(uint32_t server, struct wire_profile_record *r) {
  r->device = (uint32_t)scuda_device_from(server, (int32_t)r->device);
  if (SCUDA_LIKELY(!scuda_several())) return;
  r->context = unique(server, r->context);
  r->stream = unique(server, r->stream);
  r->graph = unique(server, r->graph);
  r->node = unique_node(server, r->node);
}

int32_t scuda_profile_read(uint32_t server, void *to, uint32_t bytes, uint32_t all, uint32_t *got,
                           struct scuda_profile_times *times) {
  struct wire_profile_read m = {.bytes = bytes, .all = all};
  struct scuda_thread *t = scuda_thread();
  uint64_t sent = scuda_events_now(); /* another thread may send what is in the ring */
  t->came = 0;
  t->timed = 1;
  int32_t r = ask(server, OP_PROFILE_READ, &m, sizeof m, to, bytes, got);
  *times = (struct scuda_profile_times){sent, t->came ? t->came : scuda_events_now()};
  if (r) return r;
  struct wire_profile_record *records = scuda_profile_records(to, *got);
  if (!records) return scuda_bad_reply("a profile's records");
  for (uint32_t i = 0; i < ((struct wire_profile_records *)to)->records; i++) make_ours(server, &records[i]);
  return r;
}

int32_t scuda_profile_asked(uint32_t server, uint32_t kinds, uint32_t *kept, uint64_t *now) {
  return (scuda_events_on() ? scuda_timeline_control : scuda_profile_control)(server, kinds, kept, now);
}
int32_t scuda_profile_fetched(uint32_t server, void *to, uint32_t bytes, uint32_t all, uint32_t *got,
                              struct scuda_profile_times *times) {
  return (scuda_events_on() ? scuda_timeline_read : scuda_profile_read)(server, to, bytes, all, got, times);
}

void scuda_profile_ids(uint64_t context, uint64_t stream, uint32_t per_thread, struct scuda_profile_ids *ids) {
  *ids = (struct scuda_profile_ids){0};
  if (!context) context = scuda_thread()->current;
  struct scuda_slot *s = scuda_slot_of(context, KIND_CUcontext), *of = scuda_slot_of(stream, KIND_CUstream);
  uint64_t id = 0;
  if (!s || !scuda_serving() || !scuda_context_usable(context)) return;
  struct scuda_self self = scuda_self_begin(context);
  ids->device = (uint32_t)s->device;
  if (!scuda_hand_cuCtxGetId(context, &id)) ids->context = (uint32_t)id;
  if (of && of->id) ids->stream = (uint32_t)of->id;
  /* of a captured stream the question would end the capture */
  else if ((of || stream <= 2) && !atomic_load(&scuda_captures) &&
           !scuda_hand_cuStreamGetId(stream, &id, per_thread ? SCUDA_PTDS : 0)) {
    ids->stream = (uint32_t)id;
    if (of) of->id = id;
  }
  scuda_self_end(self);
}

const char *scuda_profile_kernel(uint64_t function) {
  void *name = NULL;
  return scuda_hand_cuFuncGetName(&name, function) ? NULL : name;
}

uint32_t scuda_profile_memory(uint64_t address, uint64_t *bytes) {
  struct scuda_range r = scuda_range_of(address, SCUDA_AS_ANY);
  if (bytes) *bytes = r.bytes;
  return scuda_range_is_managed(&r) ? WIRE_PROFILE_MEMORY_MANAGED :
         scuda_range_is_device(&r) ? WIRE_PROFILE_MEMORY_DEVICE :
         scuda_range_is_pinned(&r) ? WIRE_PROFILE_MEMORY_PINNED : WIRE_PROFILE_MEMORY_PAGEABLE;
}

/* Those that are being listed, in the thread that does. */
static __thread struct { uint64_t *pairs; uint32_t count, most; } listed;

static void list_slot(struct scuda_slot *s) {
  if (listed.count == listed.most) return;
  listed.pairs[2 * listed.count] = s->kind == KIND_CUcontext ? 0 : s->context;
  listed.pairs[2 * listed.count++ + 1] = (uint64_t)(uintptr_t)s;
}

uint32_t scuda_profile_objects(int streams, uint64_t *pairs, uint32_t most) {
  listed.pairs = pairs;
  listed.most = most;
  listed.count = 0;
  scuda_slots_of(UINT64_MAX, streams ? KIND_CUstream : KIND_CUcontext, list_slot);
  return listed.count;
}

/* Kept where the handle is ours: what the server mints, it uses again. */
int32_t scuda_profile_number(uint32_t kind, uint64_t object, uint64_t *number) {
  static const uint32_t kinds[] = {[WIRE_PROFILE_OBJECT_GRAPH] = KIND_CUgraph,
                                   [WIRE_PROFILE_OBJECT_EXEC] = KIND_CUgraphExec,
                                   [WIRE_PROFILE_OBJECT_NODE] = KIND_CUgraphNode};
  struct scuda_slot *s = scuda_slot_of(object, kinds[kind]);
  if (!s || !scuda_serving()) return CUDA_ERROR_INVALID_VALUE;
  int keep = kind != WIRE_PROFILE_OBJECT_NODE && object < scuda_shared.server_base;
  if (keep && s->id) {
    *number = s->id;
    return CUDA_SUCCESS;
  }
  struct wire_profile_number m = {.object = object, .kind = kind};
  struct wire_profile_numbered reply;
  uint32_t got = 0;
  uint32_t server = scuda_slot_server(object);
  int32_t r = ask(server, OP_PROFILE_NUMBER, &m, sizeof m, &reply, sizeof reply, &got);
  if (r) return r;
  if (got != sizeof reply) return scuda_bad_reply("a number");
  *number = kind == WIRE_PROFILE_OBJECT_NODE ? unique_node(server, reply.number) : scuda_unique(server, reply.number);
  if (keep) s->id = *number;
  return CUDA_SUCCESS;
}

void scuda_profile_log(int32_t level, const char *text) { scuda_log(level, "%s", text); }
