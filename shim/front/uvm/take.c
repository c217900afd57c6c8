/* The GPU's side of unified memory: work takes the ranges that it may use. What the program wrote in them goes up, and
 * its accesses are no longer allowed; after a wait for the GPU, blocks that thrash come back. */
#include "uvm/va_range.h"
#include "uvm/named.h"
#include "uvm/unmap.h"
#include "uvm/work.h"

enum { FIRST_PIECE = 256 }; /* blocks of the first piece that is sent before a launch */

void scuda_va_range_given(struct va_range *a) {
  a->coming = 0;
  for (uint32_t b = a->low; b < a->high; b++) {
    scuda_thrashing_round(&a->thrashing[b], a->state[b]);
    a->coming += scuda_thrashing_wait(&a->thrashing[b]) != SCUDA_STAYS;
    a->state[b] = AWAY;
  }
  a->low = a->blocks;
  a->high = 0;
}

static int32_t hand_over(struct va_range *a) {
  int32_t r = CUDA_SUCCESS;
  int sent = 0;
  uint32_t looked = 0; /* at what was written, up to here */
  uint64_t from = (uint64_t)a->low * BLOCK;
  struct scuda_unmap unmap;
  scuda_unmap_begin(&unmap, &a->pages, from, scuda_va_range_bytes(a, a->low, a->high - a->low));
  /* The pieces that are sent grow, so that denying the rest goes on meanwhile. */
  uint64_t most = FIRST_PIECE;
  for (uint32_t b = a->low, end; b < a->high && !r; b = end) {
    uint8_t s = a->state[b];
    for (end = b + 1; end < a->high && end - b < most && a->state[end] == s && end != looked; end++) {}
    uint64_t bytes = scuda_va_range_bytes(a, b, end - b), to = (uint64_t)b * BLOCK + bytes;
    if (s == CLEAN && b >= looked && scuda_pages_tracked()) {
      scuda_unmap_await(&unmap, to);
      r = scuda_pages_written(&a->pages, (uint64_t)b * BLOCK, bytes, BLOCK, a->state + b, DIRTY);
      looked = end;
      end = b; /* again, by what they are now */
    } else if (s == DIRTY) {
      scuda_unmap_await(&unmap, to);
      r = scuda_migrate_send(a, b, end - b);
      sent = 1;
      if (most < a->blocks) most *= 4;
    }
  }
  scuda_unmap_await(&unmap, UINT64_MAX);
  scuda_va_range_given(a);
  if (!r && sent) r = scuda_migrate_sent(a);
  return r;
}

/* Work of a stream takes a range. A fault there waits for that stream too, where the attachment alone would not say
 * so. */
static void want(struct va_range *a, uint64_t call, uint64_t key) {
  a->wanted = call;
  if (scuda_va_range_attached_to(a, key)) return;
  a->giver = a->giver == SCUDA_NO_STREAM || a->giver == key ? key : SCUDA_ALL_STREAMS;
}

/* The one place that says which ranges work takes: those that get the call's number, ... */
static void choose(enum scuda_reach reach, const struct scuda_addresses *n, uint64_t call, uint64_t key) {
  for (uint32_t i = 0; i < n->count; i++) {
    struct va_range *a = scuda_va_range_at(n->list[i]);
    if (a) want(a, call, key);
  }
  if (reach != SCUDA_REACHABLE || !scuda_uvm.held) return;
  for (struct va_range *a = scuda_uvm.ranges; a; a = a->next)
    if (a->held) want(a, call, key);
}

/* ... and for work that may use what it was not told of, those that are attached to its stream. */
static int taken(const struct va_range *a, enum scuda_reach reach, uint64_t call, uint64_t key) {
  return a->wanted == call || reach == SCUDA_EVERYTHING ||
         (reach == SCUDA_REACHABLE && scuda_va_range_attached_to(a, key));
}

/* Of several servers, work of one takes nothing that another one has, nor what its kernels cannot know of. */
static int of_server(const struct va_range *a, uint64_t call, uint32_t server) {
  uint32_t has = scuda_va_range_server(a);
  if (server == SCUDA_EACH_SERVER) return !scuda_server_lost(has);
  return has == server && (a->wanted == call || scuda_uvm_known(a, server));
}

int32_t scuda_uvm_acquire(enum scuda_reach reach, const struct scuda_addresses *n, uint64_t key, uint32_t server) {
  static uint64_t calls;
  int32_t r = CUDA_SUCCESS;
  scuda_lock(&scuda_uvm.lock);
  uint64_t call = ++calls;
  choose(reach, n, call, key);
  for (struct va_range **at = &scuda_uvm.opened, *a; (a = *at) && !r;) {
    if (!taken(a, reach, call, key) || SCUDA_UNLIKELY(scuda_several() && !of_server(a, call, server))) {
      at = &a->next_open;
      continue;
    }
    if (scuda_fetch_cancel(a)) { /* the lists may be others by now */
      choose(reach, n, call = ++calls, key);
      at = &scuda_uvm.opened;
      continue;
    }
    *at = a->next_open;
    a->open = 0;
    r = hand_over(a);
  }
  atomic_store(&scuda_uvm.work_left, scuda_uvm.opened != NULL); /* only now: what is on its way has arrived */
  scuda_unlock(&scuda_uvm.lock);
  return r;
}

static void hold(const struct scuda_addresses *n) {
  scuda_lock(&scuda_uvm.lock);
  for (uint32_t i = 0; i < n->count; i++) {
    struct va_range *a = scuda_va_range_at(n->list[i]);
    if (a) scuda_uvm.held |= a->held = 1;
  }
  scuda_unlock(&scuda_uvm.lock);
}

static inline __attribute__((always_inline)) int32_t take(enum scuda_reach reach, const struct scuda_addresses *n,
                                                          uint64_t stream, uint32_t ptds, uint32_t server) {
  uint64_t key = scuda_stream_key(stream, ptds);
  if (SCUDA_UNLIKELY(!scuda_work_known(key))) {
    scuda_lock(&scuda_uvm.lock);
    scuda_work_given(key);
    scuda_unlock(&scuda_uvm.lock);
  }
  if (SCUDA_UNLIKELY(atomic_load(&scuda_captures)) && n->count) hold(n); /* a graph does, it may be */
  if (SCUDA_LIKELY(!atomic_load(&scuda_uvm.work_left) && !atomic_load(&scuda_uvm.restricted))) return CUDA_SUCCESS;
  if (scuda_stream_capturing(stream, ptds)) return CUDA_SUCCESS; /* the graph's launch will do it */
  return scuda_uvm_acquire(reach, n, key, server);
}

/* With several servers what the work uses becomes the one's that does it. What is sent there may have the addresses of
 * more. */
static __attribute__((noinline, cold)) int32_t take_there(enum scuda_reach reach, const struct scuda_addresses *n,
                                                          uint64_t context, uint64_t stream, uint32_t ptds) {
  int32_t r;
  uint64_t seen;
  if (!context) return CUDA_SUCCESS;
  scuda_managed_enter();
  do {
    seen = scuda_managed_sightings();
    r = scuda_uvm_move(reach, n, context, stream, ptds);
    if (!r) r = take(reach, n, stream, ptds, scuda_slot_server(context));
  } while (!r && reach != SCUDA_NAMED && scuda_managed_sightings() != seen);
  return r;
}

int32_t scuda_managed_take(enum scuda_reach reach, const void *given, uint64_t bytes, uint64_t stream, uint32_t ptds) {
  if (SCUDA_LIKELY(!scuda_managed_some()) || (!scuda_thread()->current && !scuda_several())) return CUDA_SUCCESS;
  struct scuda_addresses n;
  /* else kernels take all there is */
  int look = reach == SCUDA_NAMED || atomic_load(&scuda_uvm.restricted) || atomic_load(&scuda_captures) ||
             scuda_several();
  int32_t r = scuda_named_gather(&n, look ? given : NULL, bytes);
  if (!r && (reach != SCUDA_NAMED || n.count))
    r = SCUDA_LIKELY(!scuda_several()) ? take(reach, &n, stream, ptds, 0) :
        take_there(reach, &n, scuda_uvm_place(reach, given, bytes, stream), stream, ptds);
  scuda_named_forget(&n);
  return r;
}

int32_t scuda_managed_named(const void *given, uint64_t bytes, uint64_t stream, uint32_t ptds) {
  return scuda_managed_take(SCUDA_NAMED, given, bytes, stream, ptds);
}

int32_t scuda_managed_prefetch(uint64_t p, int32_t device, uint64_t stream, uint32_t ptds) {
  if (SCUDA_LIKELY(!scuda_several())) return scuda_managed_named(&p, sizeof p, stream, ptds);
  uint64_t primary = scuda_gpus[device].primary, place = scuda_uvm_place(SCUDA_NAMED, NULL, 0, stream);
  struct scuda_addresses n;
  if (scuda_slot_server(place) != scuda_gpus[device].server) place = scuda_context_usable(primary) ? primary : 0;
  if (!place) return CUDA_SUCCESS; /* the first work there will bring it */
  int32_t r = scuda_named_gather(&n, &p, sizeof p);
  if (!r && n.count) r = take_there(SCUDA_NAMED, &n, place, stream, ptds);
  scuda_managed_leave_turn();
  scuda_named_forget(&n);
  return r;
}

int32_t scuda_managed_held(const void *given, uint64_t bytes) {
  struct scuda_addresses n;
  if (!scuda_managed_some()) return CUDA_SUCCESS;
  int32_t r = scuda_named_gather(&n, given, bytes);
  if (r) return r;
  if (SCUDA_UNLIKELY(scuda_several())) r = scuda_uvm_backed(&n);
  if (!r && n.count) hold(&n);
  scuda_named_forget(&n);
  return r;
}

/* What came with a wait: pinned blocks are allowed, so that the program's accesses are no faults, the others say by a
 * fault whether they are wanted. */
static void arrived(struct va_range *a, uint32_t first, uint32_t end) {
  for (uint32_t b = first, n; b < end; b += n) {
    struct scuda_thrashing *h = a->thrashing + b;
    enum scuda_arrival how = scuda_thrashing_wait(h);
    int writable = scuda_va_range_written(a, b);
    for (n = 0; b + n < end && scuda_thrashing_wait(h + n) == how &&
         scuda_va_range_written(a, b + n) == writable; n++) {}
    scuda_va_range_mark(a, b, n, how == SCUDA_COMES ? READY : writable ? DIRTY : CLEAN);
    if (how == SCUDA_OPEN && scuda_pages_allow(&a->pages, (uint64_t)b * BLOCK, scuda_va_range_bytes(a, b, n), writable))
      scuda_va_range_mark(a, b, n, READY);
    for (uint32_t i = 0; i < n; i++) {
      count(SCUDA_PINNED, (uint64_t)scuda_thrashing_pin(h + i));
      h[i].asked = 0;
    }
    count(SCUDA_PUSHED, scuda_va_range_bytes(a, b, n));
  }
}

/* The next run of blocks that come with the wait, from block b on; blocks == a->blocks: there is none. */
static struct scuda_stretch next_coming(const struct va_range *a, uint32_t b) {
  while (b < a->blocks && (a->state[b] != AWAY || scuda_thrashing_wait(&a->thrashing[b]) == SCUDA_STAYS)) b++;
  uint32_t end = b;
  while (end < a->blocks && a->state[end] == AWAY && scuda_thrashing_wait(&a->thrashing[end]) != SCUDA_STAYS) end++;
  return (struct scuda_stretch){b, end - b};
}

/* Blocks that the program used in the rounds before come without being asked for: whatever number of runs they are, in
 * one round trip, but for big ones. */
static void push(struct va_range *a) {
  for (struct scuda_stretch s = next_coming(a, 0), next; s.count && !scuda_va_range_lost(a); s = next) {
    next = next_coming(a, s.first + s.count);
    enum way way = scuda_va_range_way(a, s.first);
    int soon = next.count && way == FETCH && scuda_va_range_way(a, next.first) == FETCH && s.count < SCUDA_NODE_MAX;
    if (scuda_migrate_push(a, s.first, s.count, way, soon ? SOON : 0)) return;
    for (struct scuda_stretch t; !soon && (t = next_coming(a, 0)).count && t.first <= s.first;)
      arrived(a, t.first, t.first + t.count);
  }
}

/* Only where no work is left, which may still change what would come. */
void scuda_managed_settled(uint64_t key) {
  if (SCUDA_LIKELY(!atomic_load_explicit(&scuda_managed_count, memory_order_relaxed))) return;
  scuda_lock(&scuda_uvm.lock);
  int over = scuda_work_over(key), alone = scuda_work_alone();
  for (struct va_range *a = scuda_uvm.ranges; a && alone && atomic_load(&scuda_uvm.restricted); a = a->next)
    if (over || a->giver == key) a->giver = SCUDA_NO_STREAM;
  for (struct va_range *a = scuda_uvm.ranges; over && a; a = a->next) {
    if (!a->coming || scuda_va_range_lost(a)) continue;
    a->coming = 0;
    push(a);
  }
  scuda_unlock(&scuda_uvm.lock);
}
