/* Pinned memory that kernels use: the server has device memory for it, at the same address where that can be had
 * (registered memory may lie where the worker has something else). Blocks that the program changed (against a shadow
 * copy) go up before a launch, and what kernels changed comes back with the next call that waits for the GPU (of large
 * ranges the server sends the blocks that differ from what it sent before). Only ranges that a program asked for, or
 * whose addresses it passed to a kernel, cost anything. Comparing finds what network cards and disks wrote into the
 * memory too, which page tables do not tell. Each server whose kernels use a range has a copy and a shadow of its own:
 * what the kernels of one changed is to the others what the program changed.
 *
 * The core's sender compares, when it takes launches from the ring: once for all that it sends together, and what
 * changed goes ahead of them. So all that was written before any of these calls is there before its kernel starts.
 * What was written later may be, too, as natively. Uploads travel on streams of ours, one a context. All later work
 * waits for them, and they for each other alone, as a kernel may wait for any of them.
 *
 * Locks, in the order in which they are taken: making, downloads, then the ring's, the sender's, lock, marks. Nobody
 * waits for the sender or for an answer while he holds one of the last two. */
#include "base/server.h"
#include "calls/calls.h"

#include <stdlib.h>

enum { BLOCK = 4096, RUN_MAX = 65536 };

/* like, for each block: the shadow is equal to that of the block before it. sent: all of it, once, so that the server's
 * is ours; until then the shadow says nothing. end: the position of the command that ends it. low, high: where what is
 * incoming may differ from the shadow already. */
struct mapped {
  struct mapped *next;
  uint64_t start, bytes, device;
  uint8_t *shadow, *incoming, *like;
  int sent;
  uint32_t server;
  _Atomic uint64_t end;
  uint64_t low, high;
};

/* A download whose bytes are on their way, from a position on. What goes up behind that may be in them or not: before
 * is what the shadow was of such blocks. failed: there was no memory for that. */
struct before { struct before *next; uint64_t at, bytes; uint8_t shadow[]; };
struct pending {
  struct pending *next;
  struct mapped *of;
  _Atomic uint64_t begin;
  struct before *before;
  int failed;
};
static scuda_lock_t lock;          /* guards what follows, up to marks, and all that lies behind it */
static struct mapped *list;        /* loses ranges only under downloads as well */
static struct pending *pendings;
static uint64_t moves;             /* counts what came down or was mapped */
/* what is compared next, of an upload that has begun. first: what blocks alike are compared with; flags: all that
 * changed in the range are flags */
static struct { struct mapped *m; uint64_t at; const uint8_t *first; int flags; } next;

static scuda_lock_t downloads;     /* there is one at a time; it guards what is incoming, but for bytes that come */

static scuda_lock_t making, marks; /* one thread at a time makes a stream of ours; guards what follows */
/* Of each server. on: the streams on which kernels may have written since what they wrote was last fetched; others:
 * there are more than fit. context: of the last launch. */
enum { ON_MAX = 16 };
static struct launches {
  uint64_t on[ON_MAX];
  uint32_t on_count;
  int others;
  uint64_t context;
} launches[SCUDA_SERVERS];
/* The stream of ours in a context, which its launches' uploads take; of the context's life. There is one for each
 * context's handle, and none goes. The front and its life are read without the lock. */
struct own_stream { struct own_stream *next; uint64_t context; _Atomic uint64_t life, stream; };
static struct own_stream *_Atomic own_streams;

_Atomic uint32_t scuda_mapped_launched; /* a bit for each server on which there is any */
static _Atomic uint32_t ending;         /* threads that wait for launches that have no mark any more */
enum { AHEAD_MAX = 65536 };
_Atomic uint32_t scuda_mapped_count;

static uint32_t server_of(uint64_t stream) {
  return SCUDA_UNLIKELY(scuda_several()) && stream > 2 && scuda_slot(stream) ? scuda_slot_server(stream) :
         scuda_server();
}
static int launched_on(uint32_t server) { return atomic_load(&scuda_mapped_launched) >> server & 1; }

/* Until the visit ends the thread's commands are for the server. */
static struct scuda_visit visit(uint32_t server) {
  const struct scuda_thread *t = scuda_thread();
  if (SCUDA_LIKELY(!scuda_several())) return (struct scuda_visit){t->current, t->server};
  scuda_lock(&marks);
  uint64_t context = launches[server].context;
  scuda_unlock(&marks);
  return scuda_visit(server, context);
}

static struct own_stream *own_stream(uint64_t context) {
  struct own_stream *o = atomic_load_explicit(&own_streams, memory_order_acquire);
  while (o && o->context != context) o = o->next;
  return o;
}

static int has_stream(uint64_t context, uint64_t life) {
  const struct own_stream *o = own_stream(context);
  return o && atomic_load_explicit(&o->life, memory_order_relaxed) == life;
}

/* Makes sure that uploads for launches in a context, which has that life, have their stream. */
static int32_t make_stream(uint64_t context, uint64_t life) {
  struct scuda_uvm_self self;
  uint64_t stream = 0;
  int32_t r = scuda_uvm_enter(&self, context);
  /* not the one for unified memory, whose copies may be behind a kernel that waits */
  if (!r) r = scuda_wire_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING, 0);
  if (!r) r = scuda_wire_cuStreamSynchronize(stream, 0); /* uploads pass what is in the ring */
  scuda_uvm_end(&self);
  if (r) return r;
  scuda_lock(&marks);
  struct own_stream *o = own_stream(context);
  if (o) {
    atomic_store(&o->stream, stream);
    atomic_store(&o->life, life);
  } else if ((o = malloc(sizeof *o))) {
    *o = (struct own_stream){atomic_load(&own_streams), context, life, stream};
    atomic_store_explicit(&own_streams, o, memory_order_release);
  } else {
    r = CUDA_ERROR_OUT_OF_MEMORY;
  }
  scuda_unlock(&marks);
  return r;
}

static int32_t ready(uint64_t context) {
  uint64_t life = scuda_context_life(context);
  if (SCUDA_LIKELY(!life || has_stream(context, life))) return CUDA_SUCCESS;
  scuda_lock(&making);
  int32_t r = has_stream(context, life) ? CUDA_SUCCESS : make_stream(context, life);
  scuda_unlock(&making);
  return r;
}

static uint64_t block_bytes(const struct mapped *m, uint64_t at) {
  return m->bytes - at < BLOCK ? m->bytes - at : BLOCK;
}

/* The shadow's bytes from a place on have changed. */
static void shadowed(struct mapped *m, uint64_t from, uint64_t bytes) {
  for (uint64_t at = from / BLOCK * BLOCK; at < m->bytes && at < from + bytes + BLOCK; at += BLOCK)
    m->like[at / BLOCK] = at && !memcmp(m->shadow + at, m->shadow + at - BLOCK, block_bytes(m, at));
}

/* Whether a block is to be sent. Comparing takes as long as memory takes to give what is compared. Of equal
 * blocks, such as those that nobody has written yet, the first one's shadow serves for all: it stays in the nearest
 * cache. For blocks in their order; *first is NULL for the first. */
static int differs(const struct mapped *m, uint64_t at, const uint8_t **first) {
  if (SCUDA_UNLIKELY(!m->sent)) return 1;
  if (!*first || !m->like[at / BLOCK]) *first = m->shadow + at;
  return memcmp((const uint8_t *)(uintptr_t)m->start + at, *first, block_bytes(m, at)) != 0;
}

int32_t scuda_map_host(uint64_t start, uint64_t bytes, uint64_t *device_address) {
  struct mapped *m = malloc(sizeof *m);
  uint8_t *shadow = calloc(1, 2 * bytes + (bytes + BLOCK - 1) / BLOCK);
  struct wire_host_map request = {start, bytes};
  struct wire_global_info reply = {0};
  struct scuda_cmd c;
  int32_t r = m && shadow ? scuda_begin(&c, OP_HOST_MAP, SCUDA_ANSWER, sizeof request) : CUDA_ERROR_OUT_OF_MEMORY;
  if (!r) {
    memcpy(c.payload, &request, sizeof request);
    r = scuda_call(&c, &reply, sizeof reply, NULL);
  }
  if (r) {
    free(m);
    free(shadow);
    return r;
  }
  *m = (struct mapped){NULL, start, bytes, reply.address, shadow, shadow + bytes, shadow + 2 * bytes, 0, c.server,
                      UINT64_MAX, bytes, 0};
  scuda_lock(&lock);
  m->next = list;
  list = m;
  moves++;
  scuda_unlock(&lock);
  atomic_fetch_add(&scuda_mapped_count, 1);
  *device_address = reply.address;
  return CUDA_SUCCESS;
}

uint64_t scuda_mapped_base(uint64_t start) {
  uint64_t device = 0;
  uint32_t server = scuda_server();
  scuda_lock(&lock);
  for (struct mapped *m = list; m && !device; m = m->next)
    if (m->start == start && m->server == server) device = m->device;
  scuda_unlock(&lock);
  return device;
}

/* The command that ends it has been sent: launches behind it do not know it any more. Those before it do. */
static void end_mapping(struct mapped *m) {
  struct wire_host_unmap request = {m->start, m->bytes};
  struct scuda_cmd c;
  struct scuda_visit v = visit(m->server);
  if (!scuda_begin(&c, OP_HOST_UNMAP, SCUDA_ANSWER, sizeof request)) {
    memcpy(c.payload, &request, sizeof request);
    atomic_store(&m->end, c.begin);
    scuda_call(&c, NULL, 0, NULL);
  }
  scuda_visit_end(v);
}

void scuda_unmap_host(uint64_t start) {
  for (struct mapped *m;;) {
    scuda_lock(&downloads);
    scuda_lock(&lock);
    for (m = list; m && m->start != start;) m = m->next;
    scuda_unlock(&lock);
    if (m) {
      end_mapping(m);
      scuda_lock(&lock);
      struct mapped **at = &list;
      while (*at != m) at = &(*at)->next;
      *at = m->next;
      moves++;
      scuda_unlock(&lock);
    }
    scuda_unlock(&downloads);
    if (!m) return;
    atomic_fetch_sub(&scuda_mapped_count, 1);
    free(m->shadow); /* and incoming, and like */
    free(m);
  }
}

/* Small ranges are fetched whole: that is not slower, and can be the wait for the stream itself. */
static int by_changes(const struct mapped *m) { return m->bytes > AHEAD_MAX; }

/* Keeps what the shadow is for downloads whose bytes are older than what will be in it. Says whether there are any. */
static int keep_before(struct mapped *m, uint64_t from, uint64_t bytes, uint64_t position) {
  uint64_t at = from / BLOCK * BLOCK, end = from + bytes;
  int kept = 0;
  end = end + BLOCK - 1 < m->bytes ? (end + BLOCK - 1) / BLOCK * BLOCK : m->bytes;
  for (struct pending *p = pendings; p; p = p->next) {
    if (SCUDA_LIKELY(p->of != m || atomic_load(&p->begin) >= position)) continue;
    struct before *b = malloc(sizeof *b + (end - at));
    kept = 1;
    if (!b) {
      p->failed = 1;
      continue;
    }
    b->next = p->before;
    b->at = at;
    b->bytes = end - at;
    memcpy(b->shadow, m->shadow + at, end - at);
    p->before = b;
  }
  return kept;
}

/* Has a stretch sent. What is incoming is always what the server thinks that we have. While it is on its way that
 * cannot be changed, and the server is not told. */
static void take(struct mapped *m, uint64_t from, uint64_t bytes, struct scuda_mapped_upload *u) {
  uint8_t *to = m->shadow + from;
  int late = keep_before(m, from, bytes, u->position);
  memcpy(to, (const void *)(uintptr_t)(m->start + from), bytes);
  shadowed(m, from, bytes);
  if (by_changes(m) && !late) memcpy(m->incoming + from, to, bytes);
  if (late && from < m->low) m->low = from / BLOCK * BLOCK;
  if (late && from + bytes > m->high) m->high = from + bytes;
  u->dst = m->device + from;
  u->bytes = bytes;
  u->data = to;
  u->flags = SCUDA_COPY_SYNC | SCUDA_COPY_AHEAD | (by_changes(m) && !late ? SCUDA_COPY_MIRROR : 0);
  if (SCUDA_UNLIKELY(scuda_several())) scuda_managed_uploaded(u->server, u->dst, to, bytes);
  if (SCUDA_UNLIKELY(scuda_tracing)) scuda_trace_note(SCUDA_COUNT_SENT, OP_COPY_H2D, 0, bytes);
}

/* The next run of blocks that the program changed, from next.at on. */
static int next_run(const struct mapped *m, uint64_t *from, uint64_t *bytes) {
  for (*bytes = 0; next.at < m->bytes;) {
    uint64_t n = block_bytes(m, next.at);
    int changed = differs(m, next.at, &next.first);
    if (changed && !*bytes) *from = next.at;
    if (changed) *bytes += n;
    next.at += n;
    if (*bytes && (!changed || *bytes >= RUN_MAX || next.at == m->bytes)) {
      next.first = m->shadow + (next.at - n); /* the one before may be of the run */
      return 1;
    }
  }
  return 0;
}

/* The next stretch of bytes, from at on, that the program changed; 0: there is none. */
static uint64_t next_change(const struct mapped *m, uint64_t *at) {
  const uint8_t *now = (const uint8_t *)(uintptr_t)m->start;
  while (*at + 8 <= m->bytes && scuda_word(now + *at) == scuda_word(m->shadow + *at)) *at += 8;
  while (*at < m->bytes && now[*at] == m->shadow[*at]) ++*at;
  uint64_t end = *at;
  while (end < m->bytes && now[end] != m->shadow[end]) end++;
  return end - *at;
}

/* Whether the program changed it, and no more than flags. */
static int has_flags(const struct mapped *m) {
  enum { MOST = 16 };
  uint64_t at, n, changes = 0;
  if (by_changes(m) || !m->sent || !memcmp((const void *)(uintptr_t)m->start, m->shadow, m->bytes)) return 0;
  for (at = 0; changes <= MOST && (n = next_change(m, &at)); at += n) changes++;
  return changes > 0 && changes <= MOST;
}

static int next_flag(const struct mapped *m, uint64_t *from, uint64_t *bytes) {
  if (!next.at) next.flags = has_flags(m);
  if (!next.flags || !(*bytes = next_change(m, &next.at))) return 0;
  *from = next.at;
  next.at += *bytes;
  return 1;
}

/* The core's sender asks again and again until there is no more. The lock is held meanwhile. */
int32_t scuda_mapped_next(struct scuda_mapped_upload *u) {
  if (!u->begun) {
    const struct own_stream *o = own_stream(u->context);
    if (!o) return 0; /* the context cannot be used, and so the launch neither */
    u->stream = atomic_load(&o->stream);
    u->begun = 1;
    scuda_lock(&lock);
    next.m = list;
    next.at = 0;
    next.first = NULL;
  }
  for (struct mapped *m; (m = next.m); next.m = m->next, next.at = 0, next.first = NULL) {
    uint64_t from = 0, bytes = 0;
    if (m->server != u->server || atomic_load(&m->end) < u->position) continue;
    if (u->only_flags ? next_flag(m, &from, &bytes) : next_run(m, &from, &bytes)) {
      take(m, from, bytes, u);
      return 1;
    }
    if (!u->only_flags) m->sent = 1;
  }
  scuda_unlock(&lock);
  return 0;
}

static void mark(uint32_t server, uint64_t context, uint64_t stream) {
  struct launches *s = &launches[server];
  uint32_t i = 0;
  scuda_lock(&marks);
  if (context) s->context = context;
  while (i < s->on_count && s->on[i] != stream) i++;
  if (i == ON_MAX) s->others = 1;
  else if (i == s->on_count) s->on[s->on_count++] = stream;
  if (!launched_on(server)) atomic_fetch_or(&scuda_mapped_launched, 1u << server);
  scuda_unlock(&marks);
}

static void unmark(uint32_t server, uint64_t stream) {
  struct launches *s = &launches[server];
  scuda_lock(&marks);
  if (stream == SCUDA_ALL_STREAMS) s->on_count = 0, s->others = 0;
  for (uint32_t i = 0; i < s->on_count; i++)
    if (s->on[i] == stream) s->on[i] = s->on[--s->on_count];
  if (!s->on_count && !s->others) atomic_fetch_and(&scuda_mapped_launched, ~(1u << server));
  scuda_unlock(&marks);
}

/* All kernels that may have written were launched on the stream. */
static int only_on(uint32_t server, uint64_t stream) {
  const struct launches *s = &launches[server];
  scuda_lock(&marks);
  int only = s->on_count == 1 && s->on[0] == stream && !s->others;
  scuda_unlock(&marks);
  return only;
}

static uint64_t context_of(uint64_t stream) {
  const struct scuda_slot *s = stream > 2 ? scuda_slot(stream) : NULL;
  return s ? s->context : scuda_thread()->current;
}

int32_t scuda_mapped_upload(uint64_t stream, uint32_t ptds) {
  if (SCUDA_LIKELY(!atomic_load_explicit(&scuda_mapped_count, memory_order_relaxed))) return CUDA_SUCCESS;
  /* the graph's launch will send what is there by then */
  if (scuda_stream_capturing(stream, ptds)) return CUDA_SUCCESS;
  uint64_t context = context_of(stream);
  uint32_t server = server_of(stream);
  int32_t r = ready(context);
  if (!r) r = scuda_core.mapped(server, context, 0);
  if (!r) mark(server, context, scuda_stream_key(stream, ptds));
  return r;
}

int32_t scuda_mapped_before(uint64_t stream, uint32_t ptds, uint32_t *how) {
  if (SCUDA_LIKELY(!atomic_load_explicit(&scuda_mapped_count, memory_order_relaxed))) return CUDA_SUCCESS;
  if (scuda_stream_capturing(stream, ptds)) return CUDA_SUCCESS; /* the graph's launch will be one */
  *how |= SCUDA_MAPPED;
  return ready(scuda_thread()->current);
}

/* Behind the launch: who waits for the stream before it was sent may find that nothing is left to be fetched. */
void scuda_mapped_sent(uint64_t stream, uint32_t ptds) {
  if (scuda_stream_capturing(stream, ptds)) return;
  mark(server_of(stream), context_of(stream), scuda_stream_key(stream, ptds));
}

static int can_upload(uint64_t context) { return context && has_stream(context, scuda_context_life(context)); }

/* A context in which there has been a launch on the server, and which has not ended. The kernel that waits may be one
 * of another context, as all reach the range. */
static uint64_t context_on(uint32_t server) {
  const struct scuda_thread *t = scuda_thread();
  if (SCUDA_LIKELY(can_upload(t->current) && scuda_slot_server(t->current) == server)) return t->current;
  for (const struct own_stream *o = atomic_load(&own_streams); o; o = o->next)
    if (can_upload(o->context) && scuda_slot_server(o->context) == server) return o->context;
  return 0;
}

/* A kernel may wait for the program to write to such memory, as it can natively. What the program wrote since goes up
 * past it, exactly the bytes that changed, as the kernel may write others beside them. Only flags do: large ranges, and
 * more changes than those of flags, wait for the next launch. */
static void publish(uint32_t server) {
  const uint64_t context = context_on(server);
  if (!context) return;
  scuda_lock(&lock);
  const struct mapped *m = list;
  while (m && (m->server != server || !has_flags(m))) m = m->next;
  scuda_unlock(&lock);
  if (m) scuda_core.mapped(server, context, 1);
}

void scuda_mapped_publish(void) {
  if (SCUDA_LIKELY(!atomic_load_explicit(&scuda_mapped_count, memory_order_relaxed)) ||
      atomic_load(&scuda_captures)) return;
  for (uint32_t server = 0; server < scuda_servers; server++) {
    if (!launched_on(server) && !atomic_load(&ending)) continue;
    publish(server);
  }
}

static void pending_begins(struct pending *p, struct mapped *m) {
  *p = (struct pending){pendings, m, UINT64_MAX, NULL, 0};
  pendings = p;
}

static void pending_ends(struct pending *p) {
  struct pending **at = &pendings;
  while (*at != p) at = &(*at)->next;
  *at = p->next;
}

static void forget_before(struct pending *p) {
  for (struct before *b; (b = p->before); free(b)) p->before = b->next;
}

static const struct before *covering(const struct before *b, uint64_t at) {
  while (b && at - b->at >= b->bytes) b = b->next;
  return b;
}

/* Whether a byte is one that went up from here while the download was on its way. */
static int is_ours(const struct before *b, uint64_t at, uint8_t byte) {
  while ((b = covering(b, at)) && b->shadow[at - b->at] != byte) b = b->next;
  return b != NULL;
}

/* What kernels changed, which is what differs from the shadow, goes to the program's memory; what the program changed
 * meanwhile stays. Where something went up meanwhile the shadow stays, too: it says what the server has. */
static void merge(struct mapped *m, const struct pending *p, uint64_t low, uint64_t high) {
  uint8_t *now = (uint8_t *)(uintptr_t)m->start;
  for (uint64_t at = low; at < high; at += BLOCK) {
    uint64_t n = high - at < BLOCK ? high - at : BLOCK;
    if (!memcmp(m->incoming + at, m->shadow + at, n)) continue;
    const struct before *before = covering(p->before, at);
    for (uint64_t i = at; i < at + n; i++) {
      if (m->incoming[i] == m->shadow[i] || (before && is_ours(before, i, m->incoming[i]))) continue;
      now[i] = m->incoming[i];
      if (!before) m->shadow[i] = m->incoming[i];
    }
    if (!before) shadowed(m, at, n);
  }
}

/* Small ranges come whole, of large ones what the server finds changed. */
static int32_t request(struct mapped *m, struct pending *p, struct wire_changes *reply) {
  uint32_t transfer = scuda_core.transfer(m->incoming, m->bytes, scuda_thread_word(), 0);
  struct wire_copy_d2h whole = {m->device, m->bytes, 0, transfer, 0};
  struct wire_host_changes changes = {m->start, 0, m->bytes, 0, transfer, 0};
  struct scuda_cmd c;
  int32_t r = by_changes(m) ? scuda_begin(&c, OP_HOST_CHANGES, SCUDA_ANSWER, sizeof changes) :
              scuda_begin(&c, OP_COPY_D2H, SCUDA_ANSWER | SCUDA_OWN, sizeof whole);
  if (r) return r;
  if (by_changes(m)) memcpy(c.payload, &changes, sizeof changes);
  else memcpy(c.payload, &whole, sizeof whole);
  atomic_store(&p->begin, c.begin);
  *reply = (struct wire_changes){.low = by_changes(m) ? m->bytes : 0, .high = by_changes(m) ? 0 : m->bytes};
  return by_changes(m) ? scuda_call(&c, reply, sizeof *reply, NULL) : scuda_call(&c, NULL, 0, NULL);
}

static int32_t fetch(struct mapped *m) {
  struct pending p;
  struct wire_changes reply = {.low = m->bytes};
  scuda_lock(&lock);
  int sent = m->sent;
  uint64_t low = m->low, high = m->high;
  if (sent) {
    pending_begins(&p, m);
    m->low = m->bytes;
    m->high = 0;
  }
  scuda_unlock(&lock);
  if (!sent) return CUDA_SUCCESS; /* no launch since it was mapped: nobody can have written it */
  int32_t r = request(m, &p, &reply);
  scuda_lock(&lock);
  pending_ends(&p);
  if (!r && p.failed) r = CUDA_ERROR_OUT_OF_MEMORY;
  if (reply.low < low) low = reply.low;
  if (reply.high > high && reply.high <= m->bytes) high = reply.high;
  if (!r) merge(m, &p, low, high);
  scuda_unlock(&lock);
  forget_before(&p);
  return r;
}

/* The server's ranges, but for one. A range that is mapped meanwhile has nothing to be fetched. */
static void fetch_all(uint32_t server, const struct mapped *but) {
  scuda_lock(&lock);
  struct mapped *m = list;
  moves++;
  scuda_unlock(&lock);
  for (int32_t r = CUDA_SUCCESS; m && !r; m = m->next)
    if (m->server == server && m != but) r = fetch(m);
}

static void download(uint32_t server, uint64_t finished) {
  struct scuda_visit v = visit(server);
  scuda_lock(&downloads);
  unmark(server, finished);
  fetch_all(server, NULL);
  scuda_unlock(&downloads);
  scuda_visit_end(v);
}

/* Of an event that was waited for nobody knows here on which server it was recorded. */
void scuda_mapped_download(uint64_t finished) {
  if (SCUDA_LIKELY(!atomic_load_explicit(&scuda_mapped_count, memory_order_relaxed)) ||
      !atomic_load(&scuda_mapped_launched)) return;
  uint32_t own = server_of(finished == SCUDA_ALL_STREAMS || finished == SCUDA_NO_STREAM ? 0 : finished);
  for (uint32_t server = 0; server < scuda_servers; server++)
    if (launched_on(server) && (server == own || finished == SCUDA_NO_STREAM)) download(server, finished);
}

/* Waits for the stream by copying a range on it, which saves the copy's own round trip, where all kernels that may have
 * written were launched there. Nothing is locked meanwhile: what the stream waits for may be behind another thread's
 * launch. */
int scuda_mapped_synchronize(uint64_t stream, uint32_t ptds, int32_t *r) {
  if (!atomic_load(&scuda_mapped_count) || atomic_load(&scuda_captures) || scuda_usable(stream)) return 0;
  uint64_t seen = 0, key = scuda_stream_key(stream, ptds);
  uint32_t server = server_of(stream);
  struct wire_copy_d2h head = {.stream = stream, .flags = SCUDA_COPY_SYNC};
  struct pending p;
  struct scuda_cmd c;
  uint8_t *copy = NULL;
  scuda_lock(&lock);
  struct mapped *m = list;
  while (m && (m->server != server || atomic_load(&m->end) != UINT64_MAX)) m = m->next;
  if (m && m->sent && m->bytes <= AHEAD_MAX && only_on(server, key) && (copy = malloc(m->bytes))) {
    atomic_fetch_add(&ending, 1);
    unmark(server, key);
    head.bytes = m->bytes;
    head.src = m->device;
    seen = moves;
    pending_begins(&p, m);
  }
  scuda_unlock(&lock);
  if (!copy) return 0;
  struct scuda_visit v = visit(server);
  head.transfer = scuda_core.transfer(copy, head.bytes, scuda_thread_word(), 0);
  *r = scuda_begin(&c, OP_COPY_D2H, ptds | SCUDA_ANSWER | SCUDA_OWN, sizeof head);
  if (!*r) {
    memcpy(c.payload, &head, sizeof head);
    atomic_store(&p.begin, c.begin);
    *r = scuda_call(&c, NULL, 0, NULL);
  }
  atomic_fetch_sub(&ending, 1);
  if (!*r) scuda_stream_idle(stream, ptds);
  scuda_lock(&downloads);
  scuda_lock(&lock);
  pending_ends(&p);
  int late = *r || moves != seen || p.failed; /* what came is not the last word */
  if (!late) {
    memcpy(m->incoming, copy, head.bytes);
    merge(m, &p, 0, head.bytes);
  }
  scuda_unlock(&lock);
  if (late) mark(server, 0, key);
  else fetch_all(server, m);
  scuda_unlock(&downloads);
  scuda_visit_end(v);
  forget_before(&p);
  free(copy);
  if (late && !*r) download(server, key);
  return 1;
}
