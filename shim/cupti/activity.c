/* The activity API: which kinds are recorded, and how records get to the program. A record is first kept in chunks of
 * our own; it is copied into the program's buffers without any lock held, by a thread of ours or by who flushes. */
#include "cupti.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Atomic uint8_t cupti_active[CUPTI_KINDS], cupti_chosen[2][CUPTI_IDS], cupti_failed_waits;
cupti_clock _Atomic cupti_program_clock;
typedef void (*requested_fn)(uint8_t **buffer, size_t *bytes, size_t *most);
typedef void (*completed_fn)(uint64_t context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid);
static requested_fn _Atomic requested;
static completed_fn _Atomic completed;

enum { CHUNK = 64 << 10, MOST = 64 << 20 /* bytes kept for a program that takes none */ };
struct chunk { struct chunk *next; uint32_t used; _Alignas(8) uint8_t bytes[CHUNK]; };
static struct chunk *first, *last;
static size_t kept;
static int fresh; /* among them are some that are not about the library itself */
static _Atomic uint64_t dropped;
static uint32_t delivering;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t delivered = PTHREAD_COND_INITIALIZER;

/* ---- records on their way ---- */

void cupti_lost(uint64_t records) { atomic_fetch_add(&dropped, records); }

void cupti_write(const void *record, uint32_t bytes) {
  uint32_t kind;
  memcpy(&kind, record, sizeof kind);
  pthread_mutex_lock(&lock);
  struct chunk *c = last;
  if (!c || c->used + bytes > CHUNK) {
    c = kept < MOST ? malloc(sizeof *c) : NULL;
    if (c) {
      c->next = NULL;
      c->used = 0;
      if (last) last->next = c;
      else first = c;
      last = c;
    }
  }
  if (c) {
    memcpy(c->bytes + c->used, record, bytes);
    c->used += bytes;
    kept += bytes;
    fresh |= kind != CUPTI_ACTIVITY_KIND_OVERHEAD;
  }
  pthread_mutex_unlock(&lock);
  if (!c) cupti_lost(1);
}

/* A record's bytes, by its kind; 0: there are none of it. */
static uint32_t bytes_of(uint32_t kind) {
  switch (kind) {
  case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(struct CUpti_ActivityMemcpy6);
  case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(struct CUpti_ActivityMemset4);
  case CUPTI_ACTIVITY_KIND_KERNEL:
  case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(struct CUpti_ActivityKernel11);
  case CUPTI_ACTIVITY_KIND_DRIVER:
  case CUPTI_ACTIVITY_KIND_RUNTIME: return sizeof(struct CUpti_ActivityAPI);
  case CUPTI_ACTIVITY_KIND_DEVICE: return sizeof(struct CUpti_ActivityDevice6);
  case CUPTI_ACTIVITY_KIND_CONTEXT: return sizeof(struct CUpti_ActivityContext4);
  case CUPTI_ACTIVITY_KIND_STREAM: return sizeof(struct CUpti_ActivityStream);
  case CUPTI_ACTIVITY_KIND_CUDA_EVENT: return sizeof(struct CUpti_ActivityCudaEvent2);
  case CUPTI_ACTIVITY_KIND_MEMORY2: return sizeof(struct CUpti_ActivityMemory4);
  case CUPTI_ACTIVITY_KIND_MEMCPY2: return sizeof(struct CUpti_ActivityMemcpyPtoP4);
  case CUPTI_ACTIVITY_KIND_GRAPH_TRACE: return sizeof(struct CUpti_ActivityGraphTrace2);
  case CUPTI_ACTIVITY_KIND_NAME: return sizeof(struct CUpti_ActivityName);
  case CUPTI_ACTIVITY_KIND_MARKER: return sizeof(struct CUpti_ActivityMarker2);
  case CUPTI_ACTIVITY_KIND_OVERHEAD: return sizeof(struct CUpti_ActivityOverhead3);
  case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: return sizeof(struct CUpti_ActivitySynchronization2);
  case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return sizeof(struct CUpti_ActivityExternalCorrelation);
  }
  return 0;
}

/* A buffer of the program's. One is asked for when something is switched on, and kept until there are records: tools
 * take what has not asked them for a buffer to have nothing, and do not flush it. Behind a flush the next one is asked
 * for when there is a record again: PyTorch drops what a flush gave it where it has given no buffer since. */
struct target { uint8_t *buffer; size_t bytes, used, most, records; };
static struct target at_hand;
static int asking;
static _Atomic int flushed; /* and no record has come since */
static int recording(void);

static void give_back(struct target *t) {
  completed_fn done = completed;
  if (t->buffer && done) done(0, 0, t->buffer, t->bytes, t->used);
  *t = (struct target){0};
}

/* Room for a record; 0: the program gives none. */
static int room(struct target *t, uint32_t bytes) {
  if (t->buffer && t->used + bytes <= t->bytes && (!t->most || t->records < t->most)) return 1;
  give_back(t);
  requested_fn want = requested;
  if (want) want(&t->buffer, &t->bytes, &t->most);
  if (t->buffer && t->bytes >= bytes) return 1;
  give_back(t); /* it is too small, or none */
  return 0;
}

/* What the library itself has cost the program. */
static void overhead(uint32_t kind, uint64_t began) {
  if (!cupti_active[CUPTI_ACTIVITY_KIND_OVERHEAD]) return;
  struct CUpti_ActivityOverhead3 o = {.kind = CUPTI_ACTIVITY_KIND_OVERHEAD, .start = began, .end = cupti_now(),
                                      .overheadKind = kind, .objectKind = CUPTI_ACTIVITY_OBJECT_THREAD};
  uint32_t ids[] = {(uint32_t)getpid(), cupti_thread_id()};
  memcpy(o.objectId, ids, sizeof ids);
  cupti_write(&o, sizeof o);
}

static void ask_buffer(int wanted) {
  struct cupti_thread *self = cupti_self();
  pthread_mutex_lock(&lock);
  requested_fn want = wanted && completed && !at_hand.buffer && !asking ? requested : NULL;
  asking |= want != NULL;
  pthread_mutex_unlock(&lock);
  if (!want) return;
  atomic_store(&flushed, 0);
  uint64_t began = cupti_now();
  struct target t = {0};
  cupti_program(self, 1);
  want(&t.buffer, &t.bytes, &t.most);
  cupti_program(self, -1);
  pthread_mutex_lock(&lock);
  at_hand = t;
  asking = 0;
  pthread_mutex_unlock(&lock);
  overhead(CUPTI_ACTIVITY_OVERHEAD_ACTIVITY_BUFFER_REQUEST, began);
}

/* A flush leaves nothing of the program's here. */
static void return_buffer(void) {
  struct cupti_thread *self = cupti_self();
  pthread_mutex_lock(&lock);
  struct target t = at_hand;
  at_hand = (struct target){0};
  pthread_mutex_unlock(&lock);
  cupti_program(self, 1);
  give_back(&t);
  cupti_program(self, -1);
}

/* One at a time, so that records come in their order. Who is called back cannot wait for that. */
static int deliver(uint32_t least) {
  struct cupti_thread *self = cupti_self();
  pthread_mutex_lock(&lock);
  while (delivering && !self->calling) pthread_cond_wait(&delivered, &lock);
  struct chunk *list = first;
  struct target t = {0};
  int enough = list && kept >= least && requested && completed;
  if (enough) {
    t = at_hand;
    at_hand = (struct target){0};
    first = last = NULL;
    kept = 0;
    fresh = 0;
    delivering++;
  }
  pthread_mutex_unlock(&lock);
  if (!enough) return 0;
  uint64_t began = cupti_now();
  int full = 0;
  cupti_program(self, 1);
  while (list) {
    struct chunk *c = list;
    for (uint32_t at = 0, n; at < c->used; at += n) {
      uint32_t kind;
      memcpy(&kind, c->bytes + at, sizeof kind);
      n = bytes_of(kind);
      if (full || !room(&t, n)) {
        full = 1;
        cupti_lost(1);
        continue;
      }
      memcpy(t.buffer + t.used, c->bytes + at, n);
      t.used += n;
      t.records++;
    }
    list = c->next;
    free(c);
  }
  give_back(&t);
  cupti_program(self, -1);
  overhead(CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH, began);
  pthread_mutex_lock(&lock);
  delivering--;
  pthread_cond_broadcast(&delivered);
  pthread_mutex_unlock(&lock);
  return 1;
}

void cupti_came(void) {
  if (SCUDA_UNLIKELY(atomic_load_explicit(&flushed, memory_order_relaxed))) ask_buffer(1);
}

/* There may be more to come, also where nothing is recorded any more. */
int cupti_deliver(uint32_t least) {
  int some = deliver(least);
  pthread_mutex_lock(&lock);
  int waiting = flushed && fresh;
  pthread_mutex_unlock(&lock);
  ask_buffer(some || waiting);
  return some;
}

/* What others deliver is with the program, too. */
static void await_others(void) {
  if (cupti_self()->calling) return;
  pthread_mutex_lock(&lock);
  while (delivering) pthread_cond_wait(&delivered, &lock);
  pthread_mutex_unlock(&lock);
}

int own_cuptiActivityFlushAll(uint32_t flags) {
  (void)flags; /* whatever has ended is handed over, also without force */
  if (!requested || !completed) return CUPTI_ERROR_INVALID_OPERATION;
  cupti_fetch(1);
  deliver(0);
  await_others();
  return_buffer();
  atomic_store(&flushed, recording());
  return CUPTI_SUCCESS;
}
int own_cuptiActivityFlush(uint64_t context, uint32_t stream, uint32_t flags) {
  (void)context, (void)stream;
  return own_cuptiActivityFlushAll(flags);
}

int own_cuptiActivityFlushPeriod(uint32_t ms) {
  cupti_period = ms;
  return CUPTI_SUCCESS;
}

int own_cuptiActivityRegisterCallbacks(requested_fn request, completed_fn complete) {
  if (!request || !complete) return CUPTI_ERROR_INVALID_PARAMETER;
  requested = request;
  completed = complete;
  ask_buffer(recording());
  return CUPTI_SUCCESS;
}

int own_cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record) {
  uint32_t kind;
  if (!buffer || !record) return CUPTI_ERROR_INVALID_PARAMETER;
  uint8_t *next = buffer;
  if (*record) {
    memcpy(&kind, *record, sizeof kind);
    if (!bytes_of(kind)) return CUPTI_ERROR_INVALID_KIND;
    next = *record + bytes_of(kind);
  }
  if (next < buffer || next + sizeof kind > buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  memcpy(&kind, next, sizeof kind);
  if (!bytes_of(kind)) return CUPTI_ERROR_INVALID_KIND;
  *record = next;
  return CUPTI_SUCCESS;
}

int own_cuptiActivityGetNumDroppedRecords(uint64_t context, uint32_t stream, size_t *records) {
  (void)context, (void)stream;
  if (!records) return CUPTI_ERROR_INVALID_PARAMETER;
  *records = atomic_exchange(&dropped, 0);
  return CUPTI_SUCCESS;
}

/* ---- what is recorded ---- */

uint32_t cupti_work_kinds(void) {
  uint32_t work = 0;
  if (cupti_kernels()) work |= WIRE_PROFILE_KERNELS;
  if (cupti_active[CUPTI_ACTIVITY_KIND_MEMCPY] || cupti_active[CUPTI_ACTIVITY_KIND_MEMCPY2])
    work |= WIRE_PROFILE_COPIES;
  if (cupti_active[CUPTI_ACTIVITY_KIND_MEMSET]) work |= WIRE_PROFILE_MEMSETS;
  if (cupti_active[CUPTI_ACTIVITY_KIND_GRAPH_TRACE]) work |= WIRE_PROFILE_GRAPHS;
  return work;
}

void cupti_update(void) {
  int calls = atomic_load(&cupti_callbacks) != 0;
  uint32_t work = cupti_work_kinds(), count = 0;
  static const uint8_t of_calls[] = {
    CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, CUPTI_ACTIVITY_KIND_DEVICE, CUPTI_ACTIVITY_KIND_CONTEXT,
    CUPTI_ACTIVITY_KIND_STREAM, CUPTI_ACTIVITY_KIND_CUDA_EVENT, CUPTI_ACTIVITY_KIND_MEMORY2};
  calls |= work != 0;
  for (size_t i = 0; i < sizeof of_calls; i++) calls |= cupti_active[of_calls[i]];
  cupti_objects_update();
  uint32_t *flags = cupti_front->flags(&count);
  for (uint32_t id = 1; id < CUPTI_RUNTIME_IDS && id < count; id++) {
    int told = cupti_recorded(1, id) || cupti_called[CUPTI_CB_DOMAIN_RUNTIME_API][id];
    __atomic_store_n(&flags[id], told, __ATOMIC_RELAXED);
    calls |= told;
  }
  for (uint32_t id = 1; id < CUPTI_DRIVER_IDS && !calls; id++) calls = cupti_recorded(0, id);
  cupti_front->attach(calls ? &cupti_profiler : NULL);
  cupti_work_wanted(work);
}

static int enable(uint32_t kind, int on) {
  if (!kind || kind >= CUPTI_KINDS) return CUPTI_ERROR_INVALID_KIND;
  if (!bytes_of(kind)) { /* what cannot be switched on is off */
    static _Atomic uint8_t said[CUPTI_KINDS];
    return on ? cupti_refused(&said[kind], cupti_kind_names[kind]) : CUPTI_SUCCESS;
  }
  cupti_active[kind] = (uint8_t)on;
  cupti_update();
  if (on) ask_buffer(1);
  return CUPTI_SUCCESS;
}

static int recording(void) {
  for (int kind = 0; kind < CUPTI_KINDS; kind++)
    if (cupti_active[kind]) return 1;
  return 0;
}

int own_cuptiActivityEnable(uint32_t kind) { return enable(kind, 1); }
int own_cuptiActivityEnableAndDump(uint32_t kind) {
  int r = enable(kind, 1);
  if (!r && requested && completed) cupti_objects_dump(kind);
  return r;
}
int own_cuptiActivityEnableContext(uint64_t context, uint32_t kind) {
  (void)context;
  return enable(kind, 1);
}
int own_cuptiActivityDisable(uint32_t kind) { return enable(kind, 0); }
int own_cuptiActivityDisableContext(uint64_t context, uint32_t kind) {
  (void)context;
  return enable(kind, 0);
}

static int choose(int runtime, uint32_t id, int on) {
  if (!id || id >= CUPTI_IDS) return CUPTI_ERROR_INVALID_PARAMETER;
  cupti_chosen[runtime][id] = on ? 1 : 2;
  cupti_update();
  return CUPTI_SUCCESS;
}
int own_cuptiActivityEnableDriverApi(uint32_t id, uint8_t on) { return choose(0, id, on); }
int own_cuptiActivityEnableRuntimeApi(uint32_t id, uint8_t on) { return choose(1, id, on); }

int own_cuptiActivityEnableAllSyncRecords(uint8_t on) {
  cupti_failed_waits = on != 0;
  return CUPTI_SUCCESS;
}

/* Fields that stay empty here: they can be switched off alone. */
#define WITHOUT(name) \
  int own_##name(uint8_t on) { \
    static _Atomic uint8_t said; \
    return on ? cupti_refused(&said, #name) : CUPTI_SUCCESS; \
  }
WITHOUT(cuptiActivityEnableLatencyTimestamps)
WITHOUT(cuptiActivityEnableLaunchAttributes)
WITHOUT(cuptiActivityEnableCudaEventDeviceTimestamps)
WITHOUT(cuptiActivityEnableAllocationSource)

int own_cuptiActivityConfigureUnifiedMemoryCounter(const void *config, uint32_t count) {
  return config && count ? CUPTI_ERROR_UM_PROFILING_NOT_SUPPORTED : CUPTI_ERROR_INVALID_PARAMETER;
}

int own_cuptiActivityRegisterTimestampCallback(cupti_clock clock) {
  cupti_program_clock = clock;
  return CUPTI_SUCCESS;
}

/* ---- attributes: sizes and places of buffers that we do not have; what was set is said again ---- */

enum { ATTRIBUTES = CUPTI_ACTIVITY_ATTR_USER_DEFINED_RECORDS /* that, and what is behind it, changes records */ };
enum { ATTRIBUTE_BYTES = 8 };
static uint8_t attributes[ATTRIBUTES][ATTRIBUTE_BYTES];

static int attribute_refused(uint32_t attribute) {
  static _Atomic uint8_t said[CUPTI_ACTIVITY_ATTR_COUNT];
  if (attribute >= CUPTI_ACTIVITY_ATTR_COUNT) return CUPTI_ERROR_INVALID_PARAMETER;
  return cupti_refused(&said[attribute], cupti_attribute_names[attribute]);
}

int own_cuptiActivitySetAttribute(uint32_t attribute, size_t *bytes, const void *value) {
  if (!bytes || !value) return CUPTI_ERROR_INVALID_PARAMETER;
  if (attribute >= ATTRIBUTES) return attribute_refused(attribute);
  memcpy(attributes[attribute], value, *bytes < ATTRIBUTE_BYTES ? *bytes : ATTRIBUTE_BYTES);
  return CUPTI_SUCCESS;
}
int own_cuptiActivityGetAttribute(uint32_t attribute, size_t *bytes, void *value) {
  if (!bytes || !value) return CUPTI_ERROR_INVALID_PARAMETER;
  if (attribute >= ATTRIBUTES) return attribute_refused(attribute);
  if (*bytes > ATTRIBUTE_BYTES) *bytes = ATTRIBUTE_BYTES;
  memcpy(value, attributes[attribute], *bytes);
  return CUPTI_SUCCESS;
}

/* ---- ids of the program's own ---- */

int own_cuptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id) {
  if (!kind || kind >= CUPTI_EXTERNAL_KINDS) return CUPTI_ERROR_INVALID_PARAMETER;
  struct cupti_stack *s = &cupti_self()->external[kind];
  if (s->depth == s->room) {
    uint32_t more = s->room ? 2 * s->room : 16;
    uint64_t *ids = realloc(s->ids, more * sizeof *ids);
    if (!ids) return CUPTI_ERROR_OUT_OF_MEMORY;
    s->ids = ids;
    s->room = more;
  }
  s->ids[s->depth++] = id;
  return CUPTI_SUCCESS;
}

int own_cuptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t *last_id) {
  if (!kind || kind >= CUPTI_EXTERNAL_KINDS) return CUPTI_ERROR_INVALID_PARAMETER;
  struct cupti_stack *s = &cupti_self()->external[kind];
  if (!s->depth) return CUPTI_ERROR_QUEUE_EMPTY;
  uint64_t id = s->ids[--s->depth];
  if (last_id) *last_id = id;
  return CUPTI_SUCCESS;
}

/* As if nothing had been enabled. What was recorded goes to the program before. */
int own_cuptiFinalize(void) {
  if (requested && completed) own_cuptiActivityFlushAll(1);
  for (uint32_t k = 0; k < CUPTI_KINDS; k++) cupti_active[k] = 0;
  for (uint32_t d = 0; d < CUPTI_DOMAINS; d++)
    for (uint32_t id = 0; id < CUPTI_IDS; id++)
      if (atomic_exchange(&cupti_called[d][id], 0)) atomic_fetch_sub(&cupti_callbacks, 1);
  memset((void *)cupti_chosen, 0, sizeof cupti_chosen);
  cupti_failed_waits = 0;
  cupti_update();
  atomic_store(&flushed, 0);
  return_buffer();
  return CUPTI_SUCCESS;
}
