/* Pinned memory that kernels use: the server has device memory for it, at the same address where that can be had
 * (registered memory may lie where the worker has something else). Blocks that the program changed (against a shadow
 * copy) go up before a launch, and what kernels changed comes back with the next call that waits for the GPU (of large
 * ranges the server sends the blocks that differ from what it sent before). Only ranges that a program asked for, or
 * whose addresses it passed to a kernel, cost anything. Comparing finds what network cards and disks wrote into the
 * memory too, which page tables do not tell. */
#include "calls/calls.h"

#include <stdlib.h>

enum { BLOCK = 4096, RUN_MAX = 65536 };

/* sent: once, so that the server's is ours */
struct mapped { struct mapped *next; uint64_t start, bytes, device; uint8_t *shadow, *incoming; int sent; };
static struct mapped *list;
static scuda_lock_t lock;
/* The streams on which kernels may have written since what they wrote was last fetched; under the lock. */
enum { ON_MAX = 16 };
static uint64_t on[ON_MAX];
static uint32_t on_count;
static int on_others;              /* there are more than fit */
_Atomic uint32_t scuda_mapped_launched; /* whether there is any */
/* a context whose stream of ours has brought something up since its end was waited for; under the lock */
static uint64_t past;
static uint64_t moves;             /* counts what went up, came down or was mapped; under the lock */
enum { AHEAD_MAX = 65536 };
_Atomic uint32_t scuda_mapped_count;

/* What went up past other work is there before the next kernel starts, or before anything is fetched. */
static int32_t arrived(void) {
  struct scuda_uvm_self self;
  if (!past) return CUDA_SUCCESS;
  int32_t r = scuda_uvm_begin(&self, past);
  if (!r) r = scuda_wire_cuStreamSynchronize(self.stream, 0);
  past = 0;
  scuda_uvm_end(&self);
  return r;
}

int32_t scuda_map_host(uint64_t start, uint64_t bytes, uint64_t *device_address) {
  struct mapped *m = malloc(sizeof *m);
  uint8_t *shadow = malloc(2 * bytes);
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
  /* What lies in the new memory is unknown: everything differs from the shadow, so that the next launch sends it
   * all. */
  for (uint64_t i = 0; i < bytes; i++) shadow[i] = (uint8_t)~((const uint8_t *)(uintptr_t)start)[i];
  *m = (struct mapped){NULL, start, bytes, reply.address, shadow, shadow + bytes, 0};
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
  scuda_lock(&lock);
  for (struct mapped *m = list; m && !device; m = m->next)
    if (m->start == start) device = m->device;
  scuda_unlock(&lock);
  return device;
}

void scuda_unmap_host(uint64_t start) {
  scuda_lock(&lock);
  struct mapped **at = &list, *m;
  while ((m = *at) && m->start != start) at = &m->next;
  if (m) *at = m->next;
  moves++;
  scuda_unlock(&lock);
  if (!m) return;
  atomic_fetch_sub(&scuda_mapped_count, 1);
  struct wire_host_unmap request = {start, m->bytes};
  scuda_simple(OP_HOST_UNMAP, SCUDA_ANSWER, &request, sizeof request);
  free(m->shadow); /* and incoming */
  free(m);
}

/* Small ranges are fetched whole: that is not slower, and can be the wait for the stream itself. */
static int by_changes(const struct mapped *m) { return m->bytes > AHEAD_MAX; }

static int32_t upload_run(const struct mapped *m, uint64_t from, uint64_t bytes, uint64_t stream, uint32_t ptds,
                          uint32_t flags) {
  struct wire_copy_h2d head = {m->device + from, bytes, stream, flags | (by_changes(m) ? SCUDA_COPY_MIRROR : 0), 0};
  struct scuda_cmd c;
  uint32_t own = atomic_load(&scuda_captures) ? 0 : SCUDA_OWN; /* a capture's rules are for it as for the launch */
  int32_t r = scuda_begin(&c, OP_COPY_H2D, ptds | SCUDA_WORKS | own, sizeof head + bytes);
  if (r) return r;
  memcpy(c.payload, &head, sizeof head);
  moves++;
  memcpy(m->shadow + from, (const void *)(uintptr_t)(m->start + from), bytes);
  if (by_changes(m)) memcpy(m->incoming + from, m->shadow + from, bytes);
  scuda_put_struct(c.payload + sizeof head, m->shadow + from, bytes);
  return scuda_send(&c);
}

static void mark(uint64_t stream) {
  uint32_t i = 0;
  while (i < on_count && on[i] != stream) i++;
  if (i == ON_MAX) on_others = 1;
  else if (i == on_count) on[on_count++] = stream;
  atomic_store(&scuda_mapped_launched, 1);
}

static void unmark(uint64_t stream) {
  if (stream == SCUDA_ALL_STREAMS) on_count = 0, on_others = 0;
  for (uint32_t i = 0; i < on_count; i++)
    if (on[i] == stream) on[i] = on[--on_count];
  atomic_store(&scuda_mapped_launched, on_count || on_others);
}

int32_t scuda_mapped_upload(uint64_t stream, uint32_t ptds) {
  if (SCUDA_LIKELY(!atomic_load_explicit(&scuda_mapped_count, memory_order_relaxed))) return CUDA_SUCCESS;
  /* the graph's launch will send what is there by then */
  if (scuda_stream_capturing(stream, ptds)) return CUDA_SUCCESS;
  int32_t r = CUDA_SUCCESS;
  /* kernels on all streams are to see it; during a capture the form that makes them may be forbidden */
  uint32_t flags = atomic_load(&scuda_captures) ? 0 : SCUDA_COPY_SYNC;
  scuda_lock(&lock);
  r = arrived();
  for (struct mapped *m = list; m && !r; m = m->next) {
    const uint8_t *now = (const uint8_t *)(uintptr_t)m->start;
    uint64_t run = 0, run_bytes = 0;
    for (uint64_t at = 0; at < m->bytes && !r; at += BLOCK) {
      uint64_t n = m->bytes - at < BLOCK ? m->bytes - at : BLOCK;
      int differs = memcmp(now + at, m->shadow + at, n) != 0;
      if (differs && !run_bytes) run = at;
      if (differs) run_bytes += n;
      if (run_bytes && (!differs || run_bytes >= RUN_MAX || at + n == m->bytes)) {
        r = upload_run(m, run, run_bytes, stream, ptds, flags);
        run_bytes = 0;
      }
    }
    if (!r) m->sent = 1;
  }
  mark(scuda_stream_key(stream, ptds));
  scuda_unlock(&lock);
  return r;
}

/* The next stretch of bytes, from at on, that the program changed; 0: there is none. */
static uint64_t next_change(const struct mapped *m, uint64_t *at) {
  const uint8_t *now = (const uint8_t *)(uintptr_t)m->start;
  while (*at < m->bytes && now[*at] == m->shadow[*at]) ++*at;
  uint64_t end = *at;
  while (end < m->bytes && now[end] != m->shadow[end]) end++;
  return end - *at;
}

/* A kernel may wait for the program to write to such memory, as it can natively. What the program wrote since goes up
 * past it, exactly the bytes that changed, as the kernel may write others beside them. Only flags do: large ranges, and
 * more changes than those of flags, wait for the next launch. */
void scuda_mapped_publish(void) {
  enum { MOST = 16 };
  if (SCUDA_LIKELY(!atomic_load_explicit(&scuda_mapped_count, memory_order_relaxed)) ||
      !atomic_load(&scuda_mapped_launched) || atomic_load(&scuda_captures)) return;
  uint64_t context = scuda_thread()->current;
  if (!context) return;
  struct scuda_uvm_self self;
  int begun = 0;
  int32_t r = CUDA_SUCCESS;
  scuda_lock(&lock);
  for (struct mapped *m = list; m && !r; m = m->next) {
    uint64_t at, n, changes = 0;
    if (by_changes(m) || !m->sent || !memcmp((const void *)(uintptr_t)m->start, m->shadow, m->bytes)) continue;
    for (at = 0; changes <= MOST && (n = next_change(m, &at)); at += n) changes++;
    if (changes > MOST) continue;
    if (!begun++) r = scuda_uvm_begin(&self, context);
    for (at = 0; !r && (n = next_change(m, &at)); at += n) r = upload_run(m, at, n, self.stream, 0, 0);
    past = context;
  }
  scuda_unlock(&lock);
  if (begun) scuda_uvm_end(&self);
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

void scuda_mapped_download(uint64_t finished) {
  if (SCUDA_LIKELY(!atomic_load_explicit(&scuda_mapped_count, memory_order_relaxed)) ||
      !atomic_load(&scuda_mapped_launched)) return;
  scuda_lock(&lock);
  arrived();
  unmark(finished);
  moves++;
  for (struct mapped *m = list; m && !fetch(m); m = m->next) {
  }
  scuda_unlock(&lock);
}

/* Waits for the stream by copying a range on it, which saves the copy's own round trip, where all kernels that may have
 * written were launched there. Nothing is locked meanwhile: what the stream waits for may be behind another thread's
 * launch. */
int scuda_mapped_synchronize(uint64_t stream, uint32_t ptds, int32_t *r) {
  if (!atomic_load(&scuda_mapped_count) || atomic_load(&scuda_captures) || scuda_usable(stream)) return 0;
  uint64_t start = 0, bytes = 0, seen = 0, key = scuda_stream_key(stream, ptds);
  struct wire_copy_d2h head = {.stream = stream, .flags = SCUDA_COPY_SYNC};
  uint8_t *copy = NULL;
  scuda_lock(&lock);
  struct mapped *m = list;
  if (m && m->sent && !past && on_count == 1 && on[0] == key && !on_others && m->bytes <= AHEAD_MAX &&
      (copy = malloc(m->bytes))) {
    unmark(key);
    start = m->start;
    head.bytes = bytes = m->bytes;
    head.src = m->device;
    seen = moves;
  }
  scuda_unlock(&lock);
  if (!copy) return 0;
  head.transfer = scuda_core.transfer(copy, bytes, scuda_thread_word(), 0);
  *r = scuda_simple(OP_COPY_D2H, ptds | SCUDA_ANSWER | SCUDA_OWN, &head, sizeof head);
  if (!*r) scuda_stream_idle(stream, ptds);
  scuda_lock(&lock);
  int late = *r || moves != seen; /* what came is not the last word */
  if (late) mark(key);
  for (m = late ? NULL : list; m; m = m->next)
    if (m->start == start) {
      memcpy(m->incoming, copy, bytes);
      merge(m, 0, bytes);
    } else if (fetch(m)) {
      break;
    }
  moves++;
  scuda_unlock(&lock);
  free(copy);
  if (late && !*r) scuda_mapped_download(key);
  return 1;
}
