/* What the GPUs did. Each server keeps it, by its clock and under the ids that the program's calls have here; it is
 * fetched by who flushes, and by a thread that runs only while something is recorded.
 *
 * Times: a question with its answer says how the clocks stand to each other, to half the time that both were on
 * their way. Some are asked in a row each time, for the sake of the quickest. Then what cannot be is put right: no work
 * begins before the call that it came with, and none ends after the return of a wait that was for it. */
#define _GNU_SOURCE
#include "cupti.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

_Atomic uint32_t cupti_period;
enum { FETCH_MS = 100, ANSWER = 1 << 20, SAMPLES = 8, DRIFT = 50 /* ppm */, STREAMS = 256, MUCH = 256 << 10 };

/* ---- where work came from, and who waited for it ---- */

enum { ORIGINS = 1 << 16, WAITS = 1 << 10 };
static struct cupti_origin *origins;
static struct wait { uint64_t end; uint32_t correlation, thread, stream, context; } waits[WAITS];
static uint32_t wait_count;
static pthread_mutex_t origin_lock = PTHREAD_MUTEX_INITIALIZER;

/* The calls in a runtime call have its id: the first began first, and one of them says what is copied. */
void cupti_came_from(const struct cupti_origin *o) {
  pthread_mutex_lock(&origin_lock);
  if (!origins) origins = calloc(ORIGINS, sizeof *origins);
  if (origins) {
    struct cupti_origin *at = &origins[o->correlation % ORIGINS], was = *at;
    *at = *o;
    if (was.correlation == o->correlation) {
      at->began = was.began;
      if (!at->graph) at->graph = was.graph;
      if (!at->source && !at->peers) {
        at->source = was.source;
        at->target = was.target;
        at->async = was.async;
        at->peers = was.peers;
        memcpy(at->ends, was.ends, sizeof at->ends);
      }
    }
  }
  pthread_mutex_unlock(&origin_lock);
}

void cupti_waited(uint32_t correlation, uint32_t thread, const struct scuda_profile_ids *of, uint64_t end) {
  pthread_mutex_lock(&origin_lock);
  waits[wait_count++ % WAITS] = (struct wait){end, correlation, thread, of->stream, of->context};
  pthread_mutex_unlock(&origin_lock);
}

/* Where the search for a wait goes on: a thread's waits end in their order, and a stream's work comes mostly in its. */
enum { PLACES = 64 };
static struct { uint32_t thread, stream, correlation, at; } places[PLACES];

/* The call that work came with, and when it had ended at the latest: when the thread's first wait for it returned. The
 * lock is held. */
static struct cupti_origin origin_of(const struct wire_profile_record *r, uint64_t now, uint64_t *latest) {
  struct cupti_origin o = {0};
  *latest = now;
  if (origins) o = origins[r->correlation % ORIGINS];
  if (o.correlation != r->correlation) return (struct cupti_origin){0};
  uint32_t oldest = wait_count < WAITS ? 0 : wait_count - WAITS, i = oldest, n = (o.thread ^ r->stream) % PLACES;
  if (places[n].thread == o.thread && places[n].stream == r->stream &&
      (int32_t)(o.correlation - places[n].correlation) >= 0 && (int32_t)(places[n].at - oldest) > 0)
    i = places[n].at;
  for (; i != wait_count; i++) {
    const struct wait *w = &waits[i % WAITS];
    if (w->thread != o.thread || (w->stream ? w->stream != r->stream : w->context != r->context)) continue;
    if ((int32_t)(w->correlation - o.correlation) <= 0) continue;
    if (w->end < *latest) *latest = w->end;
    break;
  }
  places[n].thread = o.thread;
  places[n].stream = r->stream;
  places[n].correlation = o.correlation;
  places[n].at = i;
  return o;
}

/* ---- clocks; under fetch_lock ---- */

static struct server {
  int64_t offset;              /* its clock less ours */
  struct { int64_t least, most; uint64_t at; } known; /* where that lies between; at 0: nothing is known */
  const char **by_id;          /* names, as it numbers them */
  uint32_t ids;
  uint32_t told;               /* what it records */
  uint64_t lost;               /* records */
} servers[SCUDA_PROFILE_SERVERS];
static struct { uint64_t real, program; } before, latest_pair; /* the program's clock beside ours */
#define EACH_SERVER(i) for (uint32_t i = UINT32_MAX; cupti_front->next(&i);)

/* Our clock less CLOCK_MONOTONIC: of some tries the one that nobody came between. */
static int64_t since_monotonic(void) {
  int64_t shift = 0;
  uint64_t shortest = UINT64_MAX;
  for (int i = 0; i < 3; i++) {
    struct timespec t;
    uint64_t a = cupti_real();
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t b = cupti_real();
    if (b - a >= shortest) continue;
    shortest = b - a;
    shift = (int64_t)(a + shortest / 2 - (uint64_t)t.tv_sec * 1000000000u - (uint64_t)t.tv_nsec);
  }
  return shift;
}

/* The server looked at its clock when it had the question in hand, and when it answered. What was known before is true
 * still, but for a drift; unless a clock was set. */
static void note_clock(struct server *s, const struct wire_profile_records *head,
                       const struct scuda_profile_times *times) {
  uint64_t shift = (uint64_t)since_monotonic(), asked = times->sent + shift, answered = times->came + shift;
  int64_t least = (int64_t)(head->now - answered), most = (int64_t)(head->now - head->held - asked);
  if (s->known.at) {
    int64_t away = (int64_t)(answered - s->known.at) * DRIFT / 1000000;
    int64_t was = s->known.least - away, be = s->known.most + away;
    int64_t low = was > least ? was : least, high = be < most ? be : most;
    if (low <= high) {
      least = low;
      most = high;
    }
  }
  s->known.least = least;
  s->known.most = most;
  s->known.at = answered;
  s->offset = least + (most - least) / 2;
  uint64_t a = cupti_real(), program = cupti_now(), b = cupti_real();
  latest_pair.real = a + (b - a) / 2;
  latest_pair.program = program;
  if (!before.real) before = latest_pair;
}

/* A time of ours as the program's clock has it. */
static uint64_t to_program(uint64_t real) {
  if (!cupti_program_clock) return real;
  double rate = latest_pair.real > before.real ?
                (double)(latest_pair.program - before.program) / (double)(latest_pair.real - before.real) : 1;
  double away = (double)(int64_t)(real - latest_pair.real) * rate;
  return latest_pair.program + (uint64_t)(int64_t)away;
}

/* ---- names, which are never forgotten ---- */

enum { NAMES = 1 << 12 };
static struct name { struct name *next; char text[]; } *names[NAMES];
static pthread_mutex_t name_lock = PTHREAD_MUTEX_INITIALIZER;

const char *cupti_intern(const char *text, size_t n) {
  uint32_t h = 2166136261u;
  for (size_t i = 0; i < n; i++) h = (h ^ (uint8_t)text[i]) * 16777619u;
  pthread_mutex_lock(&name_lock);
  struct name **list = &names[h % NAMES], *e = *list;
  while (e && (strncmp(e->text, text, n) || e->text[n])) e = e->next;
  if (!e && (e = malloc(sizeof *e + n + 1))) {
    memcpy(e->text, text, n);
    e->text[n] = 0;
    e->next = *list;
    *list = e;
  }
  pthread_mutex_unlock(&name_lock);
  return e ? e->text : "";
}

static const char *name_of(const struct server *s, uint32_t id) {
  return id && id <= s->ids && s->by_id[id - 1] ? s->by_id[id - 1] : "";
}

static void keep_name(struct server *s, uint32_t id, const char *text, size_t n) {
  if (!id || id > s->ids + 1) return; /* they come in their order */
  if (id > s->ids) {
    const char **more = realloc(s->by_id, (s->ids + 1) * sizeof *more);
    if (!more) return;
    s->by_id = more;
    s->ids++;
  }
  s->by_id[id - 1] = cupti_intern(text, n);
}

/* ---- records ---- */

/* What was recorded while its kind was enabled is written also when it no longer is. */
static uint32_t _Atomic kernel_kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL; /* as the program enabled them */
static _Atomic int copies_wanted = 1, peers_wanted;

/* Of work in a graph: as we number what was launched, where the server does not say its numbers. */
static uint32_t graph_of(const struct wire_profile_record *r, const struct cupti_origin *o) {
  return r->graph && o->graph ? o->graph : r->graph;
}

static void write_kernel(const struct wire_profile_record *r, const struct cupti_origin *o, const char *name,
                         uint64_t start, uint64_t end) {
  static int64_t grids;
  struct CUpti_ActivityKernel11 k = {
    .kind = kernel_kind,
    .registersPerThread = (uint16_t)r->registers, .start = start, .end = end, .completed = end, .deviceId = r->device,
    .contextId = r->context, .streamId = r->stream, .gridX = r->grid[0], .gridY = r->grid[1], .gridZ = r->grid[2],
    .blockX = r->block[0], .blockY = r->block[1], .blockZ = r->block[2], .staticSharedMemory = r->static_shared,
    .dynamicSharedMemory = r->dynamic_shared, .correlationId = r->correlation, .gridId = (uint64_t)++grids,
    .name = (uintptr_t)name, .graphNodeId = r->node, .graphId = graph_of(r, o)};
  cupti_write(&k, sizeof k);
}

/* By the kinds of memory at both ends; managed memory counts as the device's. */
static uint8_t copy_kind(uint8_t source, uint8_t target) {
  enum { HOST, DEVICE, ARRAY };
  static const uint8_t places[] = {DEVICE, HOST, HOST, DEVICE, ARRAY, DEVICE};
  static const uint8_t kinds[3][3] = {
    [HOST] = {CUPTI_ACTIVITY_MEMCPY_KIND_HTOH, CUPTI_ACTIVITY_MEMCPY_KIND_HTOD, CUPTI_ACTIVITY_MEMCPY_KIND_HTOA},
    [DEVICE] = {CUPTI_ACTIVITY_MEMCPY_KIND_DTOH, CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, CUPTI_ACTIVITY_MEMCPY_KIND_DTOA},
    [ARRAY] = {CUPTI_ACTIVITY_MEMCPY_KIND_ATOH, CUPTI_ACTIVITY_MEMCPY_KIND_ATOD, CUPTI_ACTIVITY_MEMCPY_KIND_ATOA}};
  return source < sizeof places && target < sizeof places ? kinds[places[source]][places[target]] :
         CUPTI_ACTIVITY_MEMCPY_KIND_UNKNOWN;
}

static void write_peers(const struct wire_profile_record *r, const struct cupti_origin *o, uint64_t start,
                        uint64_t end) {
  struct CUpti_ActivityMemcpyPtoP4 m = {
    .kind = CUPTI_ACTIVITY_KIND_MEMCPY2, .copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_PTOP, .srcKind = (uint8_t)r->source,
    .dstKind = (uint8_t)r->target, .flags = o->async ? CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC : 0, .bytes = r->bytes,
    .start = start, .end = end, .deviceId = r->device, .contextId = r->context, .streamId = r->stream,
    .srcDeviceId = o->ends[0].device, .srcContextId = o->ends[0].context, .dstDeviceId = o->ends[1].device,
    .dstContextId = o->ends[1].context, .correlationId = r->correlation, .graphNodeId = r->node,
    .graphId = graph_of(r, o)};
  if (peers_wanted) cupti_write(&m, sizeof m);
}

static int is_host(uint32_t kind) {
  return kind == WIRE_PROFILE_MEMORY_PAGEABLE || kind == WIRE_PROFILE_MEMORY_PINNED;
}

static void write_copy(const struct wire_profile_record *r, const struct cupti_origin *o, uint64_t start,
                       uint64_t end) {
  /* at the server the program's memory is the server's pinned memory */
  uint8_t source = o->source && r->source != WIRE_PROFILE_MEMORY_DEVICE ? o->source : (uint8_t)r->source,
          target = o->target && r->target != WIRE_PROFILE_MEMORY_DEVICE ? o->target : (uint8_t)r->target;
  int devices = o->peers || (o->source == WIRE_PROFILE_MEMORY_DEVICE && o->target == WIRE_PROFILE_MEMORY_DEVICE);
  if (devices && is_host(r->source) != is_host(r->target)) {
    /* from one server to another: each GPU copies between its memory and ours */
    source = is_host(r->source) ? WIRE_PROFILE_MEMORY_PAGEABLE : (uint8_t)r->source;
    target = is_host(r->target) ? WIRE_PROFILE_MEMORY_PAGEABLE : (uint8_t)r->target;
  } else if (o->peers) {
    write_peers(r, o, start, end);
    return;
  }
  if (!copies_wanted) return;
  struct CUpti_ActivityMemcpy6 m = {
    .kind = CUPTI_ACTIVITY_KIND_MEMCPY, .copyKind = copy_kind(source, target), .srcKind = source, .dstKind = target,
    .flags = o->async ? CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC : 0, .bytes = r->bytes, .start = start, .end = end,
    .deviceId = r->device, .contextId = r->context, .streamId = r->stream, .correlationId = r->correlation,
    .runtimeCorrelationId = r->correlation, .graphNodeId = r->node, .graphId = graph_of(r, o), .copyCount = 1};
  cupti_write(&m, sizeof m);
}

static void write_memset(const struct wire_profile_record *r, const struct cupti_origin *o, uint64_t start,
                         uint64_t end) {
  struct CUpti_ActivityMemset4 m = {
    .kind = CUPTI_ACTIVITY_KIND_MEMSET, .value = r->value, .bytes = r->bytes, .start = start, .end = end,
    .deviceId = r->device, .contextId = r->context, .streamId = r->stream, .correlationId = r->correlation,
    .memoryKind = (uint16_t)r->target, .graphNodeId = r->node, .graphId = graph_of(r, o)};
  cupti_write(&m, sizeof m);
}

static void write_graph(const struct wire_profile_record *r, const struct cupti_origin *o, uint64_t start,
                        uint64_t end) {
  struct CUpti_ActivityGraphTrace2 g = {
    .kind = CUPTI_ACTIVITY_KIND_GRAPH_TRACE, .correlationId = r->correlation, .start = start, .end = end,
    .deviceId = r->device, .graphId = graph_of(r, o), .contextId = r->context, .streamId = r->stream,
    .endDeviceId = r->device, .endContextId = r->context};
  cupti_write(&g, sizeof g);
}

/* Of a batch: by how much the server's clock is wrong at least, in whichever direction. */
static int64_t wrong(const struct server *s, const struct wire_profile_record *r, uint32_t n, uint64_t now) {
  int64_t early = 0, late = 0;
  pthread_mutex_lock(&origin_lock);
  for (uint32_t i = 0; i < n; i++) {
    uint64_t latest;
    struct cupti_origin o = origin_of(&r[i], now, &latest);
    int64_t before_call = (int64_t)(o.began - (r[i].start - (uint64_t)s->offset)),
            after_wait = (int64_t)(r[i].end - (uint64_t)s->offset - latest);
    if (o.correlation && before_call > early) early = before_call;
    if (o.correlation && after_wait > late) late = after_wait;
  }
  pthread_mutex_unlock(&origin_lock);
  return early >= late ? early : -late;
}

/* What ended at the server before other work of the stream began did so here, also if the offset has changed
 * meanwhile. */
static struct { uint64_t server, here; uint32_t stream; } ends[STREAMS];

static void keep_order(const struct wire_profile_record *r, uint64_t *start, uint64_t *end) {
  uint32_t i = r->stream % STREAMS;
  if (ends[i].stream == r->stream && ends[i].server <= r->start && *start < ends[i].here) {
    *start = ends[i].here;
    if (*end < *start) *end = *start;
  }
  if (ends[i].stream == r->stream && ends[i].server > r->end) return;
  ends[i].stream = r->stream;
  ends[i].server = r->end;
  ends[i].here = *end;
}

static void write_work(const struct server *s, const struct wire_profile_record *r, uint64_t now) {
  uint64_t start = r->start - (uint64_t)s->offset, end = r->end - (uint64_t)s->offset, latest;
  pthread_mutex_lock(&origin_lock);
  struct cupti_origin o = origin_of(r, now, &latest);
  pthread_mutex_unlock(&origin_lock);
  if (o.correlation) {
    if (end > latest) end = latest;
    if (start > end) start = end;
    if (start < o.began) start = o.began;
    if (end < start) end = start;
  }
  keep_order(r, &start, &end);
  start = to_program(start);
  end = to_program(end);
  switch (r->kind) {
  case WIRE_PROFILE_KERNELS: write_kernel(r, &o, name_of(s, r->name), start, end); break;
  case WIRE_PROFILE_COPIES: write_copy(r, &o, start, end); break;
  case WIRE_PROFILE_GRAPHS: write_graph(r, &o, start, end); break;
  case WIRE_PROFILE_MEMSETS: write_memset(r, &o, start, end); break;
  }
}

/* ---- fetching ---- */

static uint32_t _Atomic wanted, unsettled;
static _Atomic int numbers = -1; /* all servers say them; -1: they were not asked */
static _Atomic int running;
static pthread_mutex_t fetch_lock = PTHREAD_MUTEX_INITIALIZER;

/* One answer's; not 0: there is more. Under fetch_lock. */
static int take(struct server *s, const uint8_t *p, uint32_t bytes, const struct scuda_profile_times *times) {
  const struct wire_profile_records *head = (const void *)p;
  const uint8_t *end = p + bytes;
  uint64_t answered = cupti_real();
  note_clock(s, head, times);
  if (head->lost > s->lost) {
    cupti_lost(head->lost - s->lost);
    s->lost = head->lost;
  }
  p += sizeof *head;
  for (uint32_t i = 0; i < head->names; i++) {
    const struct wire_profile_name *n = (const void *)p;
    if (end - p < (long)sizeof *n || (uint64_t)(end - p) - sizeof *n < ((uint64_t)n->bytes + 7) / 8 * 8) return 0;
    keep_name(s, n->id, (const char *)(n + 1), n->bytes);
    p += sizeof *n + (n->bytes + 7) / 8 * 8;
  }
  const struct wire_profile_record *r = (const void *)p;
  if ((uint64_t)(end - p) / sizeof *r < head->records) return 0;
  int64_t by = wrong(s, r, head->records, answered);
  s->offset -= by;
  for (uint32_t i = 0; i < head->records; i++) write_work(s, &r[i], answered);
  return head->more && head->records;
}

/* How the clocks stand to each other. Under fetch_lock. */
static void ask_clock(uint32_t server) {
  for (int i = 0; i < SAMPLES && servers[server].told; i++) {
    struct wire_profile_records head;
    struct scuda_profile_times times;
    uint32_t got = 0;
    if (cupti_front->serves() != 2 || cupti_front->read(server, &head, sizeof head, 0, &got, &times)) return;
    note_clock(&servers[server], &head, &times);
  }
}

/* all: of copies, too, that may go on. Under fetch_lock. */
static void fetch(uint32_t server, uint32_t all) {
  static uint8_t *answer;
  if (!answer && !(answer = malloc(ANSWER))) return;
  int more = servers[server].told != 0;
  ask_clock(server);
  while (more) {
    struct scuda_profile_times times;
    uint32_t got = 0;
    if (cupti_front->serves() != 2 || cupti_front->read(server, answer, ANSWER, all, &got, &times)) return;
    more = take(&servers[server], answer, got, &times);
  }
}

void cupti_fetch(uint32_t all) {
  struct cupti_thread *self = cupti_self();
  self->inside++;
  pthread_mutex_lock(&fetch_lock);
  EACH_SERVER(i) fetch(i, all);
  pthread_mutex_unlock(&fetch_lock);
  self->inside--;
}

static void nap(uint32_t ms) {
  struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
  nanosleep(&t, NULL);
}

static void *run(void *nothing) {
  cupti_self()->inside = 1;
  uint64_t delivered = cupti_real();
  do {
    while (wanted && cupti_front->serves() == 2) {
      nap(FETCH_MS);
      cupti_fetch(0);
      uint32_t period = cupti_period;
      int due = period && cupti_real() - delivered >= (uint64_t)period * 1000000;
      if (cupti_deliver(due ? 0 : MUCH)) delivered = cupti_real();
    }
    atomic_store(&running, 0);
  } while (wanted && cupti_front->serves() == 2 && !atomic_exchange(&running, 1));
  return nothing;
}

static void start_thread(void) {
  sigset_t all, old;
  pthread_t id;
  pthread_attr_t a;
  if (atomic_exchange(&running, 1)) return;
  sigfillset(&all);
  pthread_attr_init(&a);
  pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  if (pthread_create(&id, &a, run, NULL)) atomic_store(&running, 0); /* then flushes alone fetch */
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  pthread_attr_destroy(&a);
}

/* Tells a server what is wanted. Gives whether it says numbers. Under fetch_lock. */
static int tell(uint32_t server, uint32_t kinds, int about_numbers) {
  static _Atomic int said;
  struct server *s = &servers[server];
  uint32_t kept = 0;
  uint64_t clock = 0;
  fetch(server, 1); /* it forgets what it has */
  int32_t r = cupti_front->control(server, kinds | (about_numbers ? WIRE_PROFILE_NUMBERS : 0), &kept, &clock);
  s->lost = 0;
  s->ids = 0;
  s->told = r ? 0 : kept & ~(uint32_t)WIRE_PROFILE_NUMBERS;
  s->known.at = 0;
  if (kinds && kinds != s->told && !atomic_exchange(&said, 1))
    cupti_front->log(SCUDA_WARN, r ? "the server does not record profiles: they have the program's calls alone" :
                     "the server cannot tell what its GPU does: profiles have the program's calls alone");
  return !r && kept & WIRE_PROFILE_NUMBERS;
}

/* Tells all what is wanted, and asks for their clocks a few times. Under fetch_lock. */
static void settle(uint32_t kinds, int about_numbers) {
  int all = 1;
  uint32_t told = 0;
  EACH_SERVER(i) {
    all &= tell(i, kinds, about_numbers);
    told |= servers[i].told;
  }
  if (about_numbers) numbers = all;
  if (!told) return;
  before.real = 0;
  memset(ends, 0, sizeof ends);
  EACH_SERVER(i) ask_clock(i);
  start_thread();
}

void cupti_work_check(void) {
  if (SCUDA_LIKELY(!unsettled)) return;
  struct cupti_thread *self = cupti_self();
  self->inside++;
  pthread_mutex_lock(&fetch_lock);
  if (unsettled && cupti_front->serves() == 2) {
    unsettled = 0;
    settle(wanted, wanted && numbers < 0);
  }
  pthread_mutex_unlock(&fetch_lock);
  self->inside--;
}

int cupti_numbers(void) {
  if (SCUDA_LIKELY(numbers >= 0)) return numbers;
  struct cupti_thread *self = cupti_self();
  self->inside++;
  pthread_mutex_lock(&fetch_lock);
  if (numbers < 0 && cupti_front->serves() == 2) {
    unsettled = 0;
    settle(wanted, 1);
  }
  pthread_mutex_unlock(&fetch_lock);
  self->inside--;
  return numbers > 0;
}

void cupti_work_wanted(uint32_t kinds) {
  if (cupti_kernels())
    kernel_kind = cupti_active[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL] ? CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL :
                  CUPTI_ACTIVITY_KIND_KERNEL;
  if (kinds & WIRE_PROFILE_COPIES) {
    int more = (wanted & WIRE_PROFILE_COPIES) != 0; /* of which some may not have been fetched yet */
    copies_wanted = cupti_active[CUPTI_ACTIVITY_KIND_MEMCPY] || (more && copies_wanted);
    peers_wanted = cupti_active[CUPTI_ACTIVITY_KIND_MEMCPY2] || (more && peers_wanted);
  }
  if (atomic_exchange(&wanted, kinds) == kinds) return;
  unsettled = 1;
  cupti_work_check();
}
