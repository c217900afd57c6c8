/* Pinned memory that kernels use: the server has device memory for it, at the same address where that can be had
 * (registered memory may lie where the worker has something else). Blocks that the program changed (against a shadow
 * copy) go up before a launch, and what kernels changed comes back with the next call that waits for the GPU (of large
 * ranges the server sends the blocks that differ from what it sent before). Only ranges that a program asked for, or
 * whose addresses it passed to a kernel, cost anything. Comparing finds what network cards and disks wrote into the
 * memory too, which page tables do not tell. Each server whose kernels use a range has a copy and a shadow of its own:
 * what the kernels of one changed is to the others what the program changed. */
#include "base/server.h"
#include "calls/calls.h"

#include <stdlib.h>

enum { BLOCK = 4096, RUN_MAX = 65536 };

/* like, for each block: the shadow is equal to that of the block before it. sent: all of it, once, so that the server's
 * is ours; until then the shadow says nothing */
struct mapped {
  struct mapped *next;
  uint64_t start, bytes, device;
  uint8_t *shadow, *incoming, *like;
  int sent;
  uint32_t server;
};
static struct mapped *list;
static scuda_lock_t lock;
/* Of each server; under the lock. on: the streams on which kernels may have written since what they wrote was last
 * fetched; others: there are more than fit. context: of the last launch. past: a context whose stream of ours has
 * brought something up since its end was waited for. */
enum { ON_MAX = 16 };
static struct launches {
  uint64_t on[ON_MAX];
  uint32_t on_count;
  int others;
  uint64_t context, past;
} launches[SCUDA_SERVERS];
_Atomic uint32_t scuda_mapped_launched; /* a bit for each server on which there is any */
static uint64_t moves;             /* counts what went up, came down or was mapped; under the lock */
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
  return scuda_visit(server, launches[server].context);
}

/* What went up past other work is there before the next kernel starts, or before anything is fetched. */
static int32_t arrived(struct launches *of) {
  struct scuda_uvm_self self;
  if (!of->past) return CUDA_SUCCESS;
  int32_t r = scuda_uvm_begin(&self, of->past);
  if (!r) r = scuda_wire_cuStreamSynchronize(self.stream, 0);
  of->past = 0;
  scuda_uvm_end(&self);
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
  *m = (struct mapped){NULL, start, bytes, reply.address, shadow, shadow + bytes, shadow + 2 * bytes, 0, c.server};
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

void scuda_unmap_host(uint64_t start) {
  for (struct mapped *m;;) {
    scuda_lock(&lock);
    struct mapped **at = &list;
    while ((m = *at) && m->start != start) at = &m->next;
    if (m) *at = m->next;
    moves++;
    scuda_unlock(&lock);
    if (!m) return;
    atomic_fetch_sub(&scuda_mapped_count, 1);
    struct wire_host_unmap request = {start, m->bytes};
    struct scuda_visit v = visit(m->server);
    scuda_simple(OP_HOST_UNMAP, SCUDA_ANSWER, &request, sizeof request);
    scuda_visit_end(v);
    free(m->shadow); /* and incoming, and like */
    free(m);
  }
}

/* Small ranges are fetched whole: that is not slower, and can be the wait for the stream itself. */
static int by_changes(const struct mapped *m) { return m->bytes > AHEAD_MAX; }

static int32_t upload_run(struct mapped *m, uint64_t from, uint64_t bytes, uint64_t stream, uint32_t ptds,
                          uint32_t flags) {
  struct wire_copy_h2d head = {m->device + from, bytes, stream, flags | (by_changes(m) ? SCUDA_COPY_MIRROR : 0), 0};
  struct scuda_cmd c;
  uint32_t own = atomic_load(&scuda_captures) ? 0 : SCUDA_OWN; /* a capture's rules are for it as for the launch */
  int32_t r = scuda_begin(&c, OP_COPY_H2D, ptds | SCUDA_WORKS | own, sizeof head + bytes);
  if (r) return r;
  memcpy(c.payload, &head, sizeof head);
  moves++;
  memcpy(m->shadow + from, (const void *)(uintptr_t)(m->start + from), bytes);
  shadowed(m, from, bytes);
  if (by_changes(m)) memcpy(m->incoming + from, m->shadow + from, bytes);
  scuda_put_struct(c.payload + sizeof head, m->shadow + from, bytes);
  r = scuda_send(&c);
  if (SCUDA_UNLIKELY(scuda_several())) scuda_managed_uploads(head.dst, m->shadow + from, bytes, 0);
  return r;
}

static void mark(uint32_t server, uint64_t stream) {
  struct launches *s = &launches[server];
  uint32_t i = 0;
  while (i < s->on_count && s->on[i] != stream) i++;
  if (i == ON_MAX) s->others = 1;
  else if (i == s->on_count) s->on[s->on_count++] = stream;
  atomic_fetch_or(&scuda_mapped_launched, 1u << server);
}

static void unmark(uint32_t server, uint64_t stream) {
  struct launches *s = &launches[server];
  if (stream == SCUDA_ALL_STREAMS) s->on_count = 0, s->others = 0;
  for (uint32_t i = 0; i < s->on_count; i++)
    if (s->on[i] == stream) s->on[i] = s->on[--s->on_count];
  if (!s->on_count && !s->others) atomic_fetch_and(&scuda_mapped_launched, ~(1u << server));
}

int32_t scuda_mapped_upload(uint64_t stream, uint32_t ptds) {
  if (SCUDA_LIKELY(!atomic_load_explicit(&scuda_mapped_count, memory_order_relaxed))) return CUDA_SUCCESS;
  /* the graph's launch will send what is there by then */
  if (scuda_stream_capturing(stream, ptds)) return CUDA_SUCCESS;
  int32_t r = CUDA_SUCCESS;
  /* kernels on all streams are to see it; during a capture the form that makes them may be forbidden */
  uint32_t flags = atomic_load(&scuda_captures) ? 0 : SCUDA_COPY_SYNC, server = server_of(stream);
  const struct scuda_slot *s = stream > 2 ? scuda_slot(stream) : NULL;
  scuda_lock(&lock);
  launches[server].context = s ? s->context : scuda_thread()->current;
  struct scuda_visit v = visit(server);
  r = arrived(&launches[server]);
  for (struct mapped *m = list; m && !r; m = m->next) {
    if (m->server != server) continue;
    const uint8_t *first = NULL;
    uint64_t run = 0, run_bytes = 0;
    for (uint64_t at = 0; at < m->bytes && !r; at += BLOCK) {
      uint64_t n = block_bytes(m, at);
      int changed = differs(m, at, &first);
      if (changed && !run_bytes) run = at;
      if (changed) run_bytes += n;
      if (run_bytes && (!changed || run_bytes >= RUN_MAX || at + n == m->bytes)) {
        r = upload_run(m, run, run_bytes, stream, ptds, flags);
        run_bytes = 0;
        first = m->shadow + at; /* the one before may be of the run */
      }
    }
    if (!r) m->sent = 1;
  }
  mark(server, scuda_stream_key(stream, ptds));
  scuda_visit_end(v);
  scuda_unlock(&lock);
  return r;
}

/* Another thread may have waited for the stream between the upload and the launch, and noted that nothing is left to be
 * fetched. */
void scuda_mapped_sent(uint64_t stream, uint32_t ptds) {
  if (scuda_stream_capturing(stream, ptds)) return;
  scuda_lock(&lock);
  mark(server_of(stream), scuda_stream_key(stream, ptds));
  scuda_unlock(&lock);
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

/* A kernel may wait for the program to write to such memory, as it can natively. What the program wrote since goes up
 * past it, exactly the bytes that changed, as the kernel may write others beside them. Only flags do: large ranges, and
 * more changes than those of flags, wait for the next launch. */
static void publish(uint32_t server, uint64_t context) {
  enum { MOST = 16 };
  struct scuda_uvm_self self;
  int begun = 0;
  int32_t r = CUDA_SUCCESS;
  scuda_lock(&lock);
  for (struct mapped *m = list; m && !r; m = m->next) {
    uint64_t at, n, changes = 0;
    if (m->server != server || by_changes(m) || !m->sent ||
        !memcmp((const void *)(uintptr_t)m->start, m->shadow, m->bytes)) continue;
    for (at = 0; changes <= MOST && (n = next_change(m, &at)); at += n) changes++;
    if (changes > MOST) continue;
    if (!begun++) r = scuda_uvm_begin(&self, context);
    for (at = 0; !r && (n = next_change(m, &at)); at += n) r = upload_run(m, at, n, self.stream, 0, 0);
    launches[server].past = context;
  }
  scuda_unlock(&lock);
  if (begun) scuda_uvm_end(&self);
}

void scuda_mapped_publish(void) {
  if (SCUDA_LIKELY(!atomic_load_explicit(&scuda_mapped_count, memory_order_relaxed)) ||
      !atomic_load(&scuda_mapped_launched) || atomic_load(&scuda_captures)) return;
  for (uint32_t server = 0; server < scuda_servers; server++) {
    if (!launched_on(server)) continue;
    struct scuda_visit v = visit(server);
    uint64_t context = scuda_thread()->current;
    if (context) publish(server, context);
    scuda_visit_end(v);
  }
}

/* What kernels changed, which is what differs from the shadow, goes to the program's memory; what the program changed
 * meanwhile stays. */
static void merge(struct mapped *m, uint64_t low, uint64_t high) {
  uint8_t *now = (uint8_t *)(uintptr_t)m->start;
  for (uint64_t at = low; at < high; at += BLOCK) {
    uint64_t n = high - at < BLOCK ? high - at : BLOCK;
    if (!memcmp(m->incoming + at, m->shadow + at, n)) continue;
    for (uint64_t i = at; i < at + n; i++)
      if (m->incoming[i] != m->shadow[i]) now[i] = m->shadow[i] = m->incoming[i];
    shadowed(m, at, n);
  }
}

static int32_t fetch_whole(struct mapped *m) {
  struct wire_copy_d2h head = {
    m->device, m->bytes, 0, scuda_core.transfer(m->incoming, m->bytes, scuda_thread_word(), 0), 0
  };
  int32_t r = scuda_simple(OP_COPY_D2H, SCUDA_ANSWER | SCUDA_OWN, &head, sizeof head);
  if (!r) merge(m, 0, m->bytes);
  return r;
}

static int32_t fetch(struct mapped *m) {
  if (!m->sent) return CUDA_SUCCESS; /* no launch since it was mapped: nobody can have written it */
  if (!by_changes(m)) return fetch_whole(m);
  struct wire_host_changes request = {
    m->start, 0, m->bytes, 0, scuda_core.transfer(m->incoming, m->bytes, scuda_thread_word(), 0), 0
  };
  struct wire_changes reply = {0};
  struct scuda_cmd c;
  int32_t r = scuda_begin(&c, OP_HOST_CHANGES, SCUDA_ANSWER, sizeof request);
  if (r) return r;
  memcpy(c.payload, &request, sizeof request);
  if (!(r = scuda_call(&c, &reply, sizeof reply, NULL)) && reply.high <= m->bytes) merge(m, reply.low, reply.high);
  return r;
}

static void download(uint32_t server, uint64_t finished) {
  struct scuda_visit v = visit(server);
  int32_t r = CUDA_SUCCESS;
  scuda_lock(&lock);
  arrived(&launches[server]);
  unmark(server, finished);
  moves++;
  for (struct mapped *m = list; m && !r; m = m->next)
    if (m->server == server) r = fetch(m);
  scuda_unlock(&lock);
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
  uint64_t start = 0, bytes = 0, seen = 0, key = scuda_stream_key(stream, ptds);
  uint32_t server = server_of(stream);
  const struct launches *of = &launches[server];
  struct wire_copy_d2h head = {.stream = stream, .flags = SCUDA_COPY_SYNC};
  uint8_t *copy = NULL;
  scuda_lock(&lock);
  struct mapped *m = list;
  while (m && m->server != server) m = m->next;
  if (m && m->sent && !of->past && of->on_count == 1 && of->on[0] == key && !of->others &&
      m->bytes <= AHEAD_MAX && (copy = malloc(m->bytes))) {
    unmark(server, key);
    start = m->start;
    head.bytes = bytes = m->bytes;
    head.src = m->device;
    seen = moves;
  }
  scuda_unlock(&lock);
  if (!copy) return 0;
  struct scuda_visit v = visit(server);
  head.transfer = scuda_core.transfer(copy, bytes, scuda_thread_word(), 0);
  *r = scuda_simple(OP_COPY_D2H, ptds | SCUDA_ANSWER | SCUDA_OWN, &head, sizeof head);
  if (!*r) scuda_stream_idle(stream, ptds);
  scuda_lock(&lock);
  int late = *r || moves != seen; /* what came is not the last word */
  if (late) mark(server, key);
  for (m = late ? NULL : list; m; m = m->next)
    if (m->server != server) {
      continue;
    } else if (m->start == start) {
      memcpy(m->incoming, copy, bytes);
      merge(m, 0, bytes);
    } else if (fetch(m)) {
      break;
    }
  moves++;
  scuda_unlock(&lock);
  scuda_visit_end(v);
  free(copy);
  if (late && !*r) download(server, key);
  return 1;
}
