/* Unified memory. A range has one address on both sides: here its pages are allowed and denied by the pager, on the server device memory lies at the
 * same address (or, for a __managed__ variable, the range lies here where the server's driver put the variable). Blocks of 64 KiB are in one of
 * residency.h's states. Before the GPU works on managed memory, what the program wrote goes up and everything it could touch here is denied, since then
 * the GPU owns it; the program's next access of a block fetches it, and more of its neighbours the more of them were wanted (residency.c). What a program
 * that goes through a range will want next is fetched by threads of ours meanwhile. */
#define _GNU_SOURCE
#include "uvm/va_range.h"
#include "uvm/unmap.h"
#include "uvm/named.h"
#include "base/range.h"
#include "uvm/work.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { FIRST_PIECE = 256 }; /* blocks of the first piece that is sent before a launch */
enum { WINDOW_BYTES = SCUDA_WINDOW_MAX * SCUDA_BLOCK, FETCHERS = 4, FLIGHTS_MAX = 32 };

_Atomic uint32_t scuda_managed_count;
static scuda_lock_t lock;           /* guards everything below, and is held while blocks travel that a fetcher does not bring */
static struct va_range *va_ranges, *opened; /* opened: those in which some block may not be AWAY */
static _Atomic uint32_t work_left;  /* opened is not empty, or its last blocks are on their way: read without the lock */
static struct scuda_ranges ranges;  /* owner: the struct va_range */
static int lost;

int scuda_is_managed(uint64_t p) {
  return SCUDA_UNLIKELY(atomic_load_explicit(&scuda_managed_count, memory_order_relaxed)) && scuda_ranges_find(&ranges, p, NULL);
}

static struct va_range *va_range_at(uint64_t p) {
  struct scuda_range r;
  return scuda_ranges_find(&ranges, p, &r) ? (struct va_range *)(uintptr_t)r.owner : NULL;
}

static void mark(struct va_range *a, uint32_t first, uint32_t blocks, uint8_t s) {
  memset(a->state + first, s, blocks);
  if (s == AWAY) return;
  if (first < a->low) a->low = first;
  if (first + blocks > a->high) a->high = first + blocks;
  atomic_store(&work_left, 1);
  if (a->open) return;
  a->open = 1;
  a->next_open = opened;
  opened = a;
}

static uint32_t flights;          /* windows that are asked for, of all ranges */
static _Atomic uint32_t landed;     /* counts those that came or were called off */
static uint32_t watchers;           /* of that */
static void cut_off(void) {
  for (struct va_range *a = va_ranges; a; a = a->next) scuda_pages_lose(&a->pages);
}

static void lose(int32_t result) {
  if (lost) return;
  lost = 1;
  scuda_log(SCUDA_ERROR, "unified memory cannot be fetched any more (CUresult %d: the connection to the server, or the context, is lost); the program gets SIGBUS where it touches it", result);
  if (!flights) cut_off(); /* else the last one does: they write to the pages */
}

/* ---- fetchers: threads that bring what a run of faults will want next ---- */

static struct flight { struct va_range *range; uint32_t first, blocks; uint64_t context, stream; enum way way; int write; } queue[FLIGHTS_MAX];
static uint32_t queued;             /* those that no fetcher has taken yet, the oldest first */
static _Atomic uint32_t asked;      /* counts what was queued */

static void settle_flight(const struct flight *f, uint8_t state) {
  mark(f->range, f->first, f->blocks, state);
  f->range->flights--;
  if (!--flights && lost) cut_off();
  atomic_fetch_add(&landed, 1);
  if (watchers) scuda_futex_wake(&landed, INT32_MAX);
}

/* Brings a window and allows it but for the first bytes. Pages that the file has are written where they are. Of a few others nothing is to be seen but the
 * time until the first can be used: they are made while the bytes are on their way. Many are made of what arrived elsewhere, which is the least work.
 * *how: what is known of the blocks' pages then. */
static int32_t bring(const struct flight *f, uint8_t *staging, uint64_t denied, uint8_t *how) {
  struct va_range *a = f->range;
  const uint8_t *file = a->file + f->first;
  uint64_t from = (uint64_t)f->first * BLOCK, bytes = bytes_of(a, f->first, f->blocks);
  int some = f->way == FETCH_CHANGES, seen = 1;
  for (uint32_t i = 0; i < f->blocks; i++) some |= file[i], seen &= file[i] == OPENED;
  if (denied > bytes) denied = bytes;
  int made = !some && !denied && f->blocks < SCUDA_NODE_MAX; /* less than goes in bulk */
  some |= made;
  *how = some ? OPENED : HELD;
  struct scuda_self self = scuda_self_begin(f->context);
  int32_t r = some && !seen && !made ? scuda_pages_open(&a->pages, from, bytes) : CUDA_SUCCESS;
  if (!r) r = scuda_va_range_migrate_bytes(a, from, from + bytes, f->stream, some ? a->pages.open + from : staging, f->way, made ? NEW : 0);
  scuda_self_end(self);
  if (!r && denied && !some) r = scuda_pages_put(&a->pages, from, denied, staging);
  if (r || bytes == denied) return r;
  return some ? scuda_pages_allow(&a->pages, from + denied, bytes - denied, f->write) : scuda_pages_fill(&a->pages, from + denied, bytes - denied, staging + denied, f->write);
}

/* Where a window arrives whose pages the file does not have yet; NULL: no memory. */
static uint8_t *new_staging(void) {
  void *p = mmap(NULL, WINDOW_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return NULL;
  madvise(p, WINDOW_BYTES, MADV_HUGEPAGE);
  scuda_core.pin(p, WINDOW_BYTES);
  return p;
}

static void *fetch(void *staging) {
  scuda_lock(&lock);
  for (;;) {
    uint32_t seen = atomic_load(&asked);
    if (!queued) {
      scuda_unlock(&lock);
      scuda_futex_wait(&asked, seen, 0);
      scuda_lock(&lock);
      continue;
    }
    struct flight f = queue[0];
    memmove(queue, queue + 1, --queued * sizeof *queue);
    scuda_unlock(&lock);
    uint8_t how;
    int32_t r = bring(&f, staging, BLOCK, &how); /* the first block stays denied: the fault there says how far the program is */
    scuda_lock(&lock);
    memset(f.range->file + f.first, how, f.blocks);
    if (!r) {
      if (f.blocks > 1) mark(f.range, f.first + 1, f.blocks - 1, f.write ? DIRTY : CLEAN);
      f.blocks = 1;
    } else {
      lose(r);
    }
    settle_flight(&f, r ? AWAY : READY);
  }
  return NULL;
}

/* What the program writes in every round is allowed for that at once: no second fault of ours follows the first, nor one of the kernel's for each page. */
static int written(const struct va_range *a, uint32_t b) { return a->thrashing[b].wrote >= SCUDA_OFTEN; }

static int fetchers(void) { /* how many there are */
  static int running = -1;
  if (running >= 0) return running;
  for (running = 0; running < FETCHERS; running++) {
    uint8_t *staging = new_staging();
    if (!staging || scuda_thread_start(fetch, staging)) break; /* one mapping is lost; fewer threads do as well */
  }
  return running;
}

static void fetch_ahead(struct va_range *a, struct scuda_run *run) {
  struct scuda_stretch ahead[SCUDA_AHEAD_MAX];
  struct flight f = {.range = a, .context = a->context};
  if (a->extents || lost || flights >= FLIGHTS_MAX || !fetchers() || scuda_uvm_stream(a->context, &f.stream)) return;
  uint32_t n = scuda_residency_ahead(a->state, a->blocks, run, ahead, FLIGHTS_MAX - flights);
  for (uint32_t i = 0; i < n; i++) {
    f.first = ahead[i].first;
    f.blocks = ahead[i].count;
    f.way = scuda_va_range_way(a, f.first);
    f.write = written(a, f.first);
    mark(a, f.first, f.blocks, BUSY);
    if (f.blocks <= SCUDA_NODE_MAX) scuda_thrashing_fault(a->thrashing + f.first, f.blocks);
    a->flights++;
    flights++;
    queue[queued++] = f;
  }
  if (!n) return;
  atomic_fetch_add(&asked, 1);
  scuda_futex_wake(&asked, (int)n);
}

/* Waits, without the lock, until something has come. */
static void await_landing(void) {
  uint32_t seen = atomic_load(&landed);
  watchers++;
  scuda_unlock(&lock);
  scuda_futex_wait(&landed, seen, 0);
  scuda_lock(&lock);
  watchers--;
}

/* Calls off what no fetcher has begun; 1: there is more, and something of it has come by now. */
static int ground(struct va_range *a) {
  for (uint32_t i = queued; i-- > 0;) {
    if (queue[i].range != a) continue;
    struct flight f = queue[i];
    memmove(queue + i, queue + i + 1, (--queued - i) * sizeof *queue);
    settle_flight(&f, AWAY);
  }
  if (!a->flights) return 0;
  await_landing();
  return 1;
}

/* ---- the program's side: faults ---- */

/* Waits for the work of all contexts; the result is that of one. */
static int32_t finish(uint64_t context) {
  struct scuda_self self = scuda_self_begin(context);
  int32_t r = scuda_wire_cuCtxSynchronize(0);
  for (uint32_t i = 0;; i++) {
    scuda_lock(&lock);
    uint64_t other = scuda_work_place(i);
    scuda_unlock(&lock);
    if (!other) break;
    scuda_thread()->current = other;
    if (other != context) scuda_wire_cuCtxSynchronize(0); /* a failure there is told there */
  }
  scuda_self_end(self);
  return r;
}

/* Waits for the work of a stream, of whatever context; of all, where it is not known or has ended. */
static int32_t finish_stream(uint64_t context, uint64_t key) {
  if (key == SCUDA_NO_STREAM) return CUDA_SUCCESS;
  if (!scuda_slot_of(key, KIND_CUstream)) return finish(context);
  struct scuda_self self = scuda_self_begin(context);
  int32_t r = scuda_wire_cuStreamSynchronize(key, 0);
  scuda_self_end(self);
  return r == CUDA_ERROR_INVALID_HANDLE ? finish(context) : r;
}

/* Work that was given since the GPU was last known to have none, as far as it may use the memory, ends before the program goes on with it: kernels and
 * the program never work on it at once. Not within a host function, which a stream waits for, nor during a capture, which a wait would end. The lock is
 * let go meanwhile: other threads may have to give the work that this work waits for. */
static int32_t quiet(struct va_range *a) {
  uint64_t context = a->context, attached = a->attachment == CU_MEM_ATTACH_SINGLE ? a->attached : SCUDA_NO_STREAM, giver = a->giver;
  if (__atomic_load_n(&scuda_shared.hosting, __ATOMIC_ACQUIRE) || atomic_load(&scuda_captures)) return CUDA_SUCCESS;
  int all = a->attachment == CU_MEM_ATTACH_GLOBAL;
  if (all && !atomic_exchange(&scuda_work_pending, 0)) return CUDA_SUCCESS;
  a->giver = SCUDA_NO_STREAM;
  scuda_unlock(&lock);
  int32_t r = all ? finish(context) : finish_stream(context, attached);
  if (!r && !all && giver != attached) r = finish_stream(context, giver);
  scuda_lock(&lock);
  return r;
}

/* Brings blocks that the GPU has, and allows them: without the lock, so that the fetchers go on meanwhile. */
static int32_t fetch_now(struct va_range *a, uint32_t first, uint32_t n, int write) {
  static uint8_t *staging;
  struct flight f = {a, first, n, a->context, 0, scuda_va_range_way(a, first), write};
  if (!staging && !(staging = new_staging())) return CUDA_ERROR_OUT_OF_MEMORY;
  int32_t r = scuda_uvm_stream(a->context, &f.stream);
  if (r) return r;
  mark(a, first, n, BUSY);
  a->flights++;
  flights++;
  scuda_unlock(&lock);
  uint8_t how;
  r = bring(&f, staging, 0, &how);
  scuda_lock(&lock);
  memset(a->file + first, how, n);
  settle_flight(&f, r ? AWAY : write ? DIRTY : CLEAN);
  return r;
}

/* A page with variables: only they come. */
static int32_t fetch_parts(struct va_range *a, uint32_t first, uint32_t n, int write) {
  uint64_t from = (uint64_t)first * BLOCK, bytes = bytes_of(a, first, n);
  int32_t r = scuda_pages_hold(&a->pages, from, bytes);
  if (!r) r = scuda_va_range_migrate(a, first, n, FETCH, 0);
  return r ? r : scuda_pages_allow(&a->pages, from, bytes, write);
}

/* What a fault brings may come with the waits from now on, unless the program goes through much of the range. */
static void note_thrashing(struct va_range *a, struct scuda_stretch s, struct scuda_run *run) {
  uint32_t end = s.first + s.count;
  if (run->window <= SCUDA_NODE_MAX) {
    scuda_thrashing_fault(a->thrashing + s.first, s.count);
  } else if (run->first < end) {
    scuda_thrashing_streams(a->thrashing + run->first, end - run->first);
    run->first = end;
  }
}

static int fault(uint64_t address, int write) {
  struct va_range *a;
  uint8_t was;
  scuda_lock(&lock);
  for (int waited = 0;;) {
    if (!(a = va_range_at(address))) break;
    was = a->state[(address - a->pages.start) / BLOCK];
    if (was == BUSY || (lost && flights)) {
      await_landing();
    } else if (was == AWAY && !waited && atomic_load(&scuda_work_pending) && !lost) {
      int32_t r = quiet(a);
      if (r) lose(r);
      waited = 1;
    } else {
      break;
    }
  }
  if (!a) {
    scuda_unlock(&lock);
    return 0;
  }
  uint32_t b = (uint32_t)((address - a->pages.start) / BLOCK);
  count(SCUDA_FAULTS, 1);
  if (lost || was == DIRTY || (was == CLEAN && !write)) { /* somebody else's fault brought it, or the kernel took the page out of its tables since (reclaim does) */
    if (lost || scuda_pages_allow(&a->pages, (uint64_t)b * BLOCK, bytes_of(a, b, 1), was == DIRTY)) scuda_pages_wake(&a->pages, (uint64_t)b * BLOCK, bytes_of(a, b, 1));
    scuda_unlock(&lock);
    return 1;
  }
  struct scuda_run *run;
  struct scuda_stretch s = scuda_residency_fault(a->state, a->blocks, b, was == AWAY || was == READY ? &a->fetches : &a->unlocks, &run);
  uint64_t from = (uint64_t)s.first * BLOCK, bytes = bytes_of(a, s.first, s.count);
  if (was == AWAY || was == READY) {
    write |= written(a, b);
    note_thrashing(a, s, run);
    if (!atomic_load(&scuda_work_pending)) fetch_ahead(a, run); /* else kernels may still change it */
  }
  int32_t r = CUDA_SUCCESS;
  if (was == AWAY && !a->extents) {
    if ((r = fetch_now(a, s.first, s.count, write))) lose(r);
    scuda_unlock(&lock);
    return 1;
  }
  mark(a, s.first, s.count, write ? DIRTY : CLEAN); /* before the program can go on: its next launch looks at the list without the lock */
  if (was == AWAY) {
    r = fetch_parts(a, s.first, s.count, write);
  } else if (was == CLEAN) {
    r = scuda_pages_unlock(&a->pages, from, bytes);
  } else {
    if (was == FRESH) {
      r = scuda_pages_hold(&a->pages, from, bytes);
      memset(a->file + s.first, HELD, s.count);
    }
    if (!r) r = scuda_pages_allow(&a->pages, from, bytes, write);
  }
  if (r) {
    mark(a, s.first, s.count, AWAY);
    lose(r);
  }
  scuda_unlock(&lock);
  return 1;
}

static uint64_t end_of(uint64_t address) {
  struct scuda_range r;
  return atomic_load_explicit(&scuda_managed_count, memory_order_relaxed) && scuda_ranges_find(&ranges, address, &r) ? r.start + r.bytes : 0;
}

/* ---- the GPU's side ---- */

/* Ranges that are attached to less than all streams: without any, kernels take every range. */
static _Atomic uint32_t restricted;
static uint32_t held; /* there are such ranges, or were */

static void attach(struct va_range *a, uint32_t attachment, uint64_t key) {
  if (a->attachment != CU_MEM_ATTACH_GLOBAL) atomic_fetch_sub(&restricted, 1);
  a->attachment = attachment;
  a->attached = key;
  if (attachment != CU_MEM_ATTACH_GLOBAL) atomic_fetch_add(&restricted, 1);
}

/* What is attached to the CPU, or to another stream, is not this stream's: whatever it has done when such memory is not named is none of its business. */
static int attached_to(const struct va_range *a, uint64_t key) {
  return a->attachment == CU_MEM_ATTACH_GLOBAL || (a->attachment == CU_MEM_ATTACH_SINGLE && a->attached == key);
}

static int32_t hand_over(struct va_range *a) {
  int32_t r = CUDA_SUCCESS;
  int sent = 0;
  uint32_t looked = 0; /* at what was written, up to here */
  uint64_t from = (uint64_t)a->low * BLOCK;
  struct scuda_unmap unmap;
  scuda_unmap_begin(&unmap, &a->pages, from, bytes_of(a, a->low, a->high - a->low));
  a->coming = 0;
  /* The pieces that are sent grow, so that denying the rest goes on meanwhile. */
  uint64_t most = FIRST_PIECE;
  for (uint32_t b = a->low, end; b < a->high && !r; b = end) {
    uint8_t s = a->state[b];
    for (end = b + 1; end < a->high && end - b < most && a->state[end] == s && end != looked; end++) {}
    uint64_t bytes = bytes_of(a, b, end - b), to = (uint64_t)b * BLOCK + bytes;
    if (s == CLEAN && b >= looked && scuda_pages_tracked()) {
      scuda_unmap_await(&unmap, to);
      r = scuda_pages_written(&a->pages, (uint64_t)b * BLOCK, bytes, BLOCK, a->state + b, DIRTY);
      looked = end;
      end = b; /* again, by what they are now */
    } else if (s == DIRTY) {
      scuda_unmap_await(&unmap, to);
      r = scuda_va_range_migrate(a, b, end - b, SEND, 0);
      sent = 1;
      if (most < a->blocks) most *= 4;
    }
  }
  scuda_unmap_await(&unmap, UINT64_MAX);
  for (uint32_t b = a->low; b < a->high; b++) {
    scuda_thrashing_round(&a->thrashing[b], a->state[b]);
    a->coming += scuda_thrashing_wait(&a->thrashing[b]) != SCUDA_STAYS;
    a->state[b] = AWAY;
  }
  a->low = a->blocks;
  a->high = 0;
  if (!r && sent) r = scuda_va_range_arrive(a);
  return r;
}

/* Work of a stream takes a range. A fault there waits for that stream too, where the attachment alone would not say so. */
static void want(struct va_range *a, uint64_t call, uint64_t key) {
  a->wanted = call;
  if (attached_to(a, key)) return;
  a->giver = a->giver == SCUDA_NO_STREAM || a->giver == key ? key : SCUDA_ALL_STREAMS;
}

/* The one place that says which ranges work takes: those that get the call's number, ... */
static void choose(enum scuda_reach reach, const struct scuda_named *n, uint64_t call, uint64_t key) {
  for (uint32_t i = 0; i < n->count; i++) {
    struct va_range *a = va_range_at(n->list[i]);
    if (a) want(a, call, key);
  }
  if (reach != SCUDA_REACHABLE || !held) return;
  for (struct va_range *a = va_ranges; a; a = a->next)
    if (a->held) want(a, call, key);
}

/* ... and for work that may use what it was not told of, those that are attached to its stream. */
static int taken(const struct va_range *a, enum scuda_reach reach, uint64_t call, uint64_t key) {
  return a->wanted == call || reach == SCUDA_EVERYTHING || (reach == SCUDA_REACHABLE && attached_to(a, key));
}

static int32_t acquire(enum scuda_reach reach, const struct scuda_named *n, uint64_t key) {
  static uint64_t calls;
  int32_t r = CUDA_SUCCESS;
  scuda_lock(&lock);
  uint64_t call = ++calls;
  choose(reach, n, call, key);
  for (struct va_range **at = &opened, *a; (a = *at) && !r;) {
    if (!taken(a, reach, call, key)) {
      at = &a->next_open;
      continue;
    }
    if (ground(a)) { /* the lists may be others by now */
      choose(reach, n, call = ++calls, key);
      at = &opened;
      continue;
    }
    *at = a->next_open;
    a->open = 0;
    r = hand_over(a);
  }
  atomic_store(&work_left, opened != NULL); /* only now: what is on its way has arrived */
  scuda_unlock(&lock);
  return r;
}

static void hold(const struct scuda_named *n) {
  scuda_lock(&lock);
  for (uint32_t i = 0; i < n->count; i++) {
    struct va_range *a = va_range_at(n->list[i]);
    if (a) held |= a->held = 1;
  }
  scuda_unlock(&lock);
}

static int32_t take(enum scuda_reach reach, const struct scuda_named *n, uint64_t stream, uint32_t ptds) {
  uint64_t key = scuda_stream_key(stream, ptds);
  if (SCUDA_UNLIKELY(!scuda_work_known(key))) {
    scuda_lock(&lock);
    scuda_work_given(key);
    scuda_unlock(&lock);
  }
  if (SCUDA_UNLIKELY(atomic_load(&scuda_captures)) && n->count) hold(n); /* a graph does, it may be */
  if (SCUDA_LIKELY(!atomic_load(&work_left) && !atomic_load(&restricted))) return CUDA_SUCCESS;
  if (scuda_stream_capturing(stream, ptds)) return CUDA_SUCCESS; /* the graph's launch will do it */
  return acquire(reach, n, key);
}

int32_t scuda_managed_take(enum scuda_reach reach, const void *given, uint64_t bytes, uint64_t stream, uint32_t ptds) {
  if (SCUDA_LIKELY(!scuda_managed_some()) || !scuda_thread()->current) return CUDA_SUCCESS;
  struct scuda_named n;
  int look = reach == SCUDA_NAMED || atomic_load(&restricted) || atomic_load(&scuda_captures); /* else kernels take all there is */
  int32_t r = scuda_named_gather(&n, look ? given : NULL, bytes);
  if (!r && (reach != SCUDA_NAMED || n.count)) r = take(reach, &n, stream, ptds);
  scuda_named_forget(&n);
  return r;
}

int32_t scuda_managed_named(const void *given, uint64_t bytes, uint64_t stream, uint32_t ptds) { return scuda_managed_take(SCUDA_NAMED, given, bytes, stream, ptds); }

int32_t scuda_managed_held(const void *given, uint64_t bytes) {
  struct scuda_named n;
  if (!scuda_managed_some()) return CUDA_SUCCESS;
  int32_t r = scuda_named_gather(&n, given, bytes);
  if (r) return r;
  if (n.count) hold(&n);
  scuda_named_forget(&n);
  return r;
}

/* What came with a wait: pinned blocks are allowed, so that the program's accesses are no faults, the others say by a fault whether they are wanted. */
static void arrived(struct va_range *a, uint32_t first, uint32_t end) {
  for (uint32_t b = first, n; b < end; b += n) {
    struct scuda_thrashing *h = a->thrashing + b;
    enum scuda_arrival how = scuda_thrashing_wait(h);
    int writable = written(a, b);
    for (n = 0; b + n < end && scuda_thrashing_wait(h + n) == how && written(a, b + n) == writable; n++) {}
    mark(a, b, n, how == SCUDA_COMES ? READY : writable ? DIRTY : CLEAN);
    if (how == SCUDA_OPEN && scuda_pages_allow(&a->pages, (uint64_t)b * BLOCK, bytes_of(a, b, n), writable)) mark(a, b, n, READY);
    for (uint32_t i = 0; i < n; i++) {
      count(SCUDA_PINNED, (uint64_t)scuda_thrashing_pin(h + i));
      h[i].asked = 0;
    }
    count(SCUDA_PUSHED, bytes_of(a, b, n));
  }
}

/* The next run of blocks that come with the wait, from block b on; blocks == a->blocks: there is none. */
static struct scuda_stretch next_coming(const struct va_range *a, uint32_t b) {
  while (b < a->blocks && (a->state[b] != AWAY || scuda_thrashing_wait(&a->thrashing[b]) == SCUDA_STAYS)) b++;
  uint32_t end = b;
  while (end < a->blocks && a->state[end] == AWAY && scuda_thrashing_wait(&a->thrashing[end]) != SCUDA_STAYS) end++;
  return (struct scuda_stretch){b, end - b};
}

/* Blocks that the program used in the rounds before come without being asked for: whatever number of runs they are, in one round trip, but for big ones. */
static void push(struct va_range *a) {
  for (struct scuda_stretch s = next_coming(a, 0), next; s.count && !lost; s = next) {
    next = next_coming(a, s.first + s.count);
    enum way way = scuda_va_range_way(a, s.first);
    int soon = next.count && way == FETCH && scuda_va_range_way(a, next.first) == FETCH && s.count < SCUDA_NODE_MAX;
    if (scuda_va_range_migrate(a, s.first, s.count, way, PUSH | (soon ? SOON : 0))) return;
    for (struct scuda_stretch t; !soon && (t = next_coming(a, 0)).count && t.first <= s.first;) arrived(a, t.first, t.first + t.count);
  }
}

/* Only where no work is left, which may still change what would come. */
void scuda_managed_settled(uint64_t key) {
  if (SCUDA_LIKELY(!atomic_load_explicit(&scuda_managed_count, memory_order_relaxed))) return;
  scuda_lock(&lock);
  int over = scuda_work_over(key), alone = scuda_work_alone();
  for (struct va_range *a = va_ranges; a && alone && atomic_load(&restricted); a = a->next)
    if (over || a->giver == key) a->giver = SCUDA_NO_STREAM;
  for (struct va_range *a = va_ranges; over && a && !lost; a = a->next) {
    if (!a->coming) continue;
    a->coming = 0;
    push(a);
  }
  scuda_unlock(&lock);
}

/* ---- allocation ---- */

/* Makes the range; address 0: one of ours, with memory on the server. */
static int32_t make(uint64_t address, uint64_t bytes, uint32_t attachment, struct va_range **made) {
  uint64_t owner = scuda_thread()->current;
  if (!owner && address) owner = scuda_gpus[0].primary; /* variables of a library are asked for before there is a context */
  struct scuda_slot *context = scuda_slot(owner);
  if (!context) return scuda_no_context();
  int32_t r = scuda_pager_start(fault, end_of);
  if (r) return r;
  uint64_t blocks = bytes / BLOCK + (bytes % BLOCK != 0);
  if (blocks > UINT32_MAX / 2) return CUDA_ERROR_OUT_OF_MEMORY;
  struct va_range *a = calloc(1, sizeof *a + (2 + sizeof *a->thrashing) * blocks);
  if (!a) return CUDA_ERROR_OUT_OF_MEMORY;
  a->file = a->state + blocks;
  a->thrashing = (struct scuda_thrashing *)(a->file + blocks);
  if ((r = scuda_pages_make(&a->pages, address, bytes))) {
    free(a);
    return r;
  }
  a->asked = bytes;
  a->context = owner;
  a->attachment = CU_MEM_ATTACH_GLOBAL;
  a->made_for = attachment;
  a->giver = SCUDA_NO_STREAM;
  a->blocks = (uint32_t)blocks;
  a->low = a->blocks;
  a->mirror = !address;
  if (a->mirror) {
    struct wire_host_map request = {a->pages.start, a->pages.bytes};
    struct wire_global_info reply = {0};
    struct scuda_cmd c;
    if (!(r = scuda_begin(&c, OP_HOST_MAP, SCUDA_ANSWER, sizeof request))) {
      memcpy(c.payload, &request, sizeof request);
      r = scuda_call(&c, &reply, sizeof reply, NULL);
    }
    if (!r && reply.address != a->pages.start) {
      scuda_log(SCUDA_ERROR, "unified memory at %#llx: the server has something else at this address", (unsigned long long)a->pages.start);
      struct wire_host_unmap undo = {a->pages.start, a->pages.bytes};
      scuda_simple(OP_HOST_UNMAP, SCUDA_ANSWER, &undo, sizeof undo);
      r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    /* Fresh memory is zero, as natively, before anything else comes to it in any stream. */
    if (!r) r = scuda_wire_cuMemsetD8_v2(a->pages.start, 0, a->pages.bytes, 0);
    if (!r) r = scuda_wire_cuStreamSynchronize(SCUDA_LEGACY_STREAM, 0);
  }
  struct scuda_range range = {a->pages.start, bytes, a->context, (uint64_t)(uintptr_t)a, SCUDA_RANGE_ALLOC | SCUDA_RANGE_MANAGED, context->device};
  if (!r && !scuda_ranges_add(&ranges, &range)) r = CUDA_ERROR_OUT_OF_MEMORY;
  if (r) {
    scuda_pages_drop(&a->pages);
    free(a);
    return r;
  }
  range.owner = 0;
  scuda_ranges_add(&scuda_device_ranges, &range);
  scuda_lock(&lock);
  a->next = va_ranges;
  va_ranges = a;
  attach(a, attachment, 0);
  mark(a, 0, a->blocks, address ? AWAY : FRESH);
  scuda_unlock(&lock);
  atomic_fetch_add(&scuda_managed_count, 1);
  scuda_pages_show(&a->pages);
  *made = a;
  return CUDA_SUCCESS;
}

static void unlink_va_range(struct va_range *a) {
  scuda_pages_hide(&a->pages);
  attach(a, CU_MEM_ATTACH_GLOBAL, 0);
  struct va_range **at = &va_ranges;
  while (*at && *at != a) at = &(*at)->next;
  if (*at) *at = a->next;
  for (at = &opened; *at && *at != a;) at = &(*at)->next_open;
  if (*at) *at = a->next_open;
  scuda_ranges_remove(&ranges, a->pages.start, NULL);
  scuda_ranges_remove(&scuda_device_ranges, a->pages.start, NULL);
}

static void forget(struct va_range *a) {
  atomic_fetch_sub(&scuda_managed_count, 1);
  scuda_pages_drop(&a->pages);
  for (struct extent *e = a->extents, *next; e; e = next) next = e->next, free(e);
  free(a->advices.list);
  free(a);
}

int32_t scuda_hand_cuMemAllocManaged(uint64_t *p, uint64_t bytes, uint32_t flags) {
  struct scuda_slot *context;
  int32_t r = scuda_context_of(0, &context);
  if (r) return r;
  if (!p || !bytes || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) return CUDA_ERROR_INVALID_VALUE;
  struct va_range *a;
  r = make(0, bytes, flags, &a);
  if (!r) *p = a->pages.start;
  if (r == CUDA_ERROR_OUT_OF_MEMORY) scuda_managed_full(bytes);
  return r;
}

/* Frees managed memory: 1 when it is some. Like the driver's, it waits for the work that may use it. */
int scuda_pre_cuMemFree_v2(uint64_t p, int32_t *r) {
  if (!scuda_is_managed(p)) return 0;
  *r = finish(scuda_thread()->current);
  scuda_lock(&lock);
  struct va_range *a;
  do a = va_range_at(p);
  while (a && a->pages.start == p && a->mirror && ground(a));
  if (!a || a->pages.start != p || !a->mirror) a = NULL;
  else unlink_va_range(a);
  scuda_unlock(&lock);
  if (!a) {
    *r = CUDA_ERROR_INVALID_VALUE;
    return 1;
  }
  struct wire_host_unmap request = {a->pages.start, a->pages.bytes};
  int32_t gone = scuda_simple(OP_HOST_UNMAP, SCUDA_ANSWER, &request, sizeof request);
  if (!*r) *r = gone;
  forget(a);
  return 1;
}

void scuda_managed_forget_context(uint64_t context) {
  scuda_lock(&lock);
  scuda_work_forget(context);
  scuda_unlock(&lock);
  if (!atomic_load(&scuda_managed_count)) return;
  scuda_lock(&lock);
  for (struct va_range *a = va_ranges, *next; a; a = next) {
    next = a->next;
    if (a->context != context) continue;
    if (ground(a)) {
      next = va_ranges;
      continue;
    }
    unlink_va_range(a);
    forget(a);
  }
  scuda_unlock(&lock);
}

/* ---- __managed__ variables: the server's driver gave them their address, and no more than the variable may be carried: what it says of the memory
 * around it need not be one piece ---- */

int32_t scuda_managed_variable(uint64_t address, uint64_t bytes) {
  uint64_t from = address & ~(uint64_t)4095, to = (address + bytes + 4095) & ~(uint64_t)4095;
  while (from < to && scuda_is_managed(from)) from += 4096; /* variables share pages */
  while (from < to && scuda_is_managed(to - 4096)) to -= 4096;
  struct va_range *a;
  int32_t r = from < to ? make(from, to - from, CU_MEM_ATTACH_GLOBAL, &a) : CUDA_SUCCESS;
  if (r == CUDA_ERROR_OUT_OF_MEMORY)
    scuda_log(SCUDA_ERROR, "a __managed__ variable lies at %#llx on the server, where this process has something else; start it again, or without address randomisation (setarch -R)", (unsigned long long)address);
  if (!r) r = acquire(SCUDA_EVERYTHING, &(struct scuda_named){0}, SCUDA_ALL_STREAMS); /* what is here of the pages lacks the variable */
  scuda_lock(&lock);
  for (uint64_t at = address; !r && at < address + bytes && (a = va_range_at(at)); at = a->pages.start + a->pages.bytes) {
    uint64_t end = a->pages.start + a->pages.bytes;
    struct extent e = {a->extents, at - a->pages.start, (address + bytes < end ? address + bytes : end) - a->pages.start}, *known = a->extents;
    while (known && (known->from != e.from || known->to != e.to)) known = known->next;
    if (known) continue;
    struct extent *new = malloc(sizeof *new);
    if (!new) r = CUDA_ERROR_OUT_OF_MEMORY;
    else *new = e, a->extents = new;
  }
  scuda_unlock(&lock);
  return r;
}

/* ---- hints (hints.c) ---- */

static struct va_range *whole(uint64_t p, uint64_t bytes) { /* under the lock; the range that holds all of it */
  struct va_range *a = va_range_at(p);
  return a && bytes && bytes <= a->pages.start + a->asked - p ? a : NULL;
}

struct scuda_advices *scuda_managed_advices(uint64_t p, uint64_t bytes, uint64_t *from) {
  scuda_lock(&lock);
  struct va_range *a = whole(p, bytes);
  if (a) *from = p - a->pages.start;
  else scuda_unlock(&lock);
  return a ? &a->advices : NULL;
}

void scuda_managed_advised(void) { scuda_unlock(&lock); }

/* Blocks go by what was said of their first page. */
void scuda_managed_heed(uint64_t p, uint64_t bytes) {
  struct va_range *a = va_range_at(p);
  uint64_t from = p - a->pages.start;
  for (uint64_t b = from / BLOCK; b * BLOCK < from + bytes; b++) {
    int32_t at = scuda_location_device(scuda_advice_at(&a->advices, b * BLOCK)->preferred);
    a->thrashing[b].prefers = at == CU_DEVICE_CPU ? SCUDA_AT_CPU : at == CU_DEVICE_INVALID ? SCUDA_NO_PLACE : SCUDA_AT_GPU;
  }
}

/* With the next wait for the GPU, as what it still does may change it. */
void scuda_managed_want(uint64_t p, uint64_t bytes) {
  struct va_range *a = va_range_at(p);
  uint64_t from = p - a->pages.start;
  for (uint64_t b = from / BLOCK; b * BLOCK < from + bytes; b++) {
    a->thrashing[b].asked = 1;
    a->coming++;
  }
}

/* Blocks that lie in the stretch as a whole need not travel any more until somebody writes to them. */
int32_t scuda_managed_discard(uint64_t p, uint64_t bytes) {
  struct va_range *a;
  scuda_lock(&lock);
  do a = whole(p, bytes);
  while (a && ground(a));
  if (a) {
    uint64_t from = p - a->pages.start, end = from + bytes == a->asked ? (uint64_t)a->blocks * BLOCK : from + bytes;
    uint32_t first = (uint32_t)((from + BLOCK - 1) / BLOCK), last = (uint32_t)(end / BLOCK);
    if (first < last && !a->extents) {
      scuda_pages_unmap(&a->pages, (uint64_t)first * BLOCK, bytes_of(a, first, last - first));
      scuda_pages_unmapped();
      mark(a, first, last - first, FRESH);
    }
  }
  scuda_unlock(&lock);
  return a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- attachment ---- */

int32_t scuda_hand_cuStreamAttachMemAsync(uint64_t stream, uint64_t p, uint64_t bytes, uint32_t flags, uint32_t ptds) {
  int32_t r = scuda_usable(stream);
  if (r) return r;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE) return CUDA_ERROR_INVALID_VALUE;
  if (flags == CU_MEM_ATTACH_SINGLE && !stream && !ptds) return CUDA_ERROR_INVALID_VALUE;
  scuda_lock(&lock);
  struct va_range *a = va_range_at(p);
  r = a && a->pages.start == p && (!bytes || bytes == a->asked) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (!r) attach(a, flags, scuda_stream_key(stream, ptds));
  scuda_unlock(&lock);
  return r;
}

/* Its work goes on, so that a fault waits for all there is. */
void scuda_managed_stream_ends(uint64_t stream) {
  if (!atomic_load(&restricted)) return;
  scuda_lock(&lock);
  for (struct va_range *a = va_ranges; a; a = a->next) {
    if (a->attachment == CU_MEM_ATTACH_SINGLE && a->attached == stream) {
      attach(a, a->made_for, 0);
      a->giver = SCUDA_ALL_STREAMS;
    }
    if (a->giver == stream) a->giver = SCUDA_ALL_STREAMS;
  }
  scuda_unlock(&lock);
}
