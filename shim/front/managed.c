/* Unified memory. A range has one address on both sides: here its pages are allowed and denied by the pager, on the server device memory lies at the
 * same address (or, for a __managed__ variable, the range lies here where the server's driver put the variable). Blocks of 64 KiB are in one of the
 * states below. Before the GPU works on managed memory, what the program wrote goes up and everything it could touch here is denied, since then
 * the GPU owns it; the program's next access of a block fetches it, and more of its neighbours the more of them were wanted. */
#define _GNU_SOURCE
#include "managed.h"
#include "pager.h"
#include "range.h"

#include <stdlib.h>

enum { BLOCK = 65536, NODE = 32, WINDOW_MAX = 64 }; /* NODE: blocks of 2 MiB; WINDOW_MAX: blocks of one fetch */
enum state {
  FRESH,   /* zero on both sides, nobody has touched it */
  AWAY,    /* the GPU's: what lies here is old */
  READY,   /* here, and not yet allowed: it was pushed because the program is used to reading it */
  CLEAN,   /* here, may be read */
  DIRTY    /* here, may be written: the GPU's is old */
};
struct block { uint8_t state, wanted; };  /* wanted: in how many rounds in a row the program read it */

struct advice { int32_t preferred, prefetched; uint32_t read_mostly; uint64_t accessed_by; };

struct extent { struct extent *next; uint64_t from, to; }; /* offsets */

struct area {
  struct area *next, *next_open;
  struct scuda_pages pages;
  uint64_t asked, context, attached;  /* attached: the stream of CU_MEM_ATTACH_SINGLE */
  uint32_t attachment, blocks, twin, open;  /* twin: the server has memory of ours for it; open: it is in the list */
  struct extent *extents;                   /* of pages with __managed__ variables: what the server has there; else NULL, for all */
  uint32_t low, high;                       /* blocks that are not AWAY lie between */
  uint32_t fetched, window, wanted;         /* block behind the last fetch, its size; blocks with wanted > 1 */
  struct advice advice;
  struct block block[];
};

_Atomic uint32_t scuda_managed_count;
_Atomic uint64_t scuda_managed_figures[SCUDA_MANAGED_FIGURES];
static scuda_lock_t lock;           /* guards everything below, and is held while blocks travel */
static struct area *areas, *opened; /* opened: those in which some block may not be AWAY */
static _Atomic uint32_t work_left;  /* opened is not empty, or its last blocks are on their way: read without the lock */
static struct carrier { struct carrier *next; uint64_t life, stream; } *carriers;
static struct scuda_ranges ranges;  /* owner: the area */
static int lost;
static _Atomic uint32_t given;      /* the GPU may have work */

extern int32_t cuStreamCreate(uint64_t *stream, uint32_t flags);

int scuda_is_managed(uint64_t p) {
  return SCUDA_UNLIKELY(atomic_load_explicit(&scuda_managed_count, memory_order_relaxed)) && scuda_ranges_find(&ranges, p, NULL);
}

static struct area *area_at(uint64_t p) {
  struct scuda_range r;
  return scuda_ranges_find(&ranges, p, &r) ? (struct area *)(uintptr_t)r.owner : NULL;
}

static uint64_t bytes_of(const struct area *a, uint32_t first, uint32_t count) {
  uint64_t from = (uint64_t)first * BLOCK, bytes = (uint64_t)count * BLOCK;
  return from + bytes > a->pages.bytes ? a->pages.bytes - from : bytes;
}

static void count(int figure, uint64_t n) { atomic_fetch_add_explicit(&scuda_managed_figures[figure], n, memory_order_relaxed); }

static void mark(struct area *a, uint32_t first, uint32_t blocks, enum state s) {
  for (uint32_t i = first; i < first + blocks; i++) a->block[i].state = (uint8_t)s;
  if (s == AWAY) return;
  if (first < a->low) a->low = first;
  if (first + blocks > a->high) a->high = first + blocks;
  atomic_store(&work_left, 1);
  if (a->open) return;
  a->open = 1;
  a->next_open = opened;
  opened = a;
}

/* ---- carrying blocks ---- */

/* Blocks travel in a stream of their own, which waits for no other: whoever touches managed memory has waited already. */
static int32_t carrier(uint64_t life, uint64_t *stream) {
  for (struct carrier *c = carriers; c; c = c->next)
    if (c->life == life) {
      *stream = c->stream;
      return CUDA_SUCCESS;
    }
  struct carrier *c = malloc(sizeof *c);
  int32_t r = c ? cuStreamCreate(stream, CU_STREAM_NON_BLOCKING) : CUDA_ERROR_OUT_OF_MEMORY;
  if (r) {
    free(c);
    return r;
  }
  *c = (struct carrier){carriers, life, *stream};
  carriers = c;
  return CUDA_SUCCESS;
}

static int32_t carry_bytes(struct area *a, uint64_t from, uint64_t to, uint64_t stream, int down) {
  uint64_t at = a->pages.start + from, bytes = to - from;
  uint8_t *here = a->pages.open + from;
  int32_t r;
  count(down ? SCUDA_MANAGED_DOWN : SCUDA_MANAGED_UP, bytes);
  if (down) {
    struct wire_copy_d2h m = {at, bytes, stream, scuda_core.transfer(here, bytes, scuda_thread()->ordinal, 0), SCUDA_COPY_SYNC};
    r = scuda_simple(OP_COPY_D2H, SCUDA_ANSWER, &m, sizeof m);
  } else {
    r = scuda_upload(at, here, bytes, stream, 0, 0);
  }
  if (r) scuda_log(SCUDA_ERROR, "unified memory: %llu bytes at %#llx cannot be %s (CUresult %d)", (unsigned long long)bytes, (unsigned long long)at, down ? "fetched" : "sent", r);
  return r;
}

/* What the calling thread does on its own behalf (its context, the stream that its next command is work for) is left as it was. */
static int32_t carry(struct area *a, uint32_t first, uint32_t blocks, int down) {
  struct scuda_thread *t = scuda_thread();
  uint64_t from = (uint64_t)first * BLOCK, to = from + bytes_of(a, first, blocks), current = t->current, named = t->named, stream;
  t->current = a->context;
  int32_t r = carrier(scuda_context_life(a->context), &stream);
  if (!r && !a->extents) r = carry_bytes(a, from, to, stream, down);
  for (struct extent *e = a->extents; e && !r; e = e->next)
    if (e->from < to && from < e->to) r = carry_bytes(a, e->from > from ? e->from : from, e->to < to ? e->to : to, stream, down);
  t->current = current;
  t->named = named;
  return r;
}

/* The end of what was sent: streams of the program may use it from now on. */
static int32_t arrive(const struct area *a) {
  struct scuda_thread *t = scuda_thread();
  uint64_t current = t->current, named = t->named, stream;
  t->current = a->context;
  int32_t r = carrier(scuda_context_life(a->context), &stream);
  if (!r) r = scuda_wire_cuStreamSynchronize(stream, 0);
  t->current = current;
  t->named = named;
  return r;
}

static void lose(int32_t result) {
  if (lost) return;
  lost = 1;
  scuda_log(SCUDA_ERROR, "unified memory cannot be fetched any more (CUresult %d: the connection to the server, or the context, is lost); the program gets SIGBUS where it touches it", result);
  for (struct area *a = areas; a; a = a->next) scuda_pages_lose(&a->pages);
}

/* ---- the program's side: faults ---- */

/* How many blocks from one on to bring, all in the same state: a stretch that doubles while the program goes through the range, and the rest of the
 * largest node of the tree (128 KiB to 2 MiB) of which more than half is here already. */
static uint32_t stretch(struct area *a, uint32_t b, enum state s, uint32_t *first) {
  uint32_t n = b == a->fetched && a->window ? 2 * a->window : 1, low = b;
  if (n > WINDOW_MAX) n = WINDOW_MAX;
  for (uint32_t node = 2; node <= NODE; node *= 2) {
    uint32_t from = b / node * node, to = from + node < a->blocks ? from + node : a->blocks, here = 1;
    for (uint32_t i = from; i < to; i++) here += i != b && a->block[i].state >= READY;
    if (2 * here <= node) continue;
    if (to - b > n) n = to - b;
    low = from;
  }
  while (low < b && a->block[b - 1].state != s) low = b;
  uint32_t start = b;
  while (start > low && a->block[start - 1].state == s) start--;
  uint32_t end = b;
  while (end < a->blocks && end < b + n && a->block[end].state == s) end++;
  a->fetched = end;
  a->window = end - b;
  *first = start;
  return end - start;
}

/* Work that was given since the GPU was last known to have none, as far as it may use the memory, ends before the program goes on with it: kernels and
 * the program never work on it at once. Not within a host function, which a stream waits for, nor during a capture, which a wait would end. */
static int32_t quiet(uint64_t context, uint32_t attachment, uint64_t attached) {
  if (attachment == CU_MEM_ATTACH_HOST || __atomic_load_n(&scuda_shared.hosting, __ATOMIC_ACQUIRE) || atomic_load(&scuda_captures)) return CUDA_SUCCESS;
  if (attachment == CU_MEM_ATTACH_GLOBAL && !atomic_exchange(&given, 0)) return CUDA_SUCCESS;
  struct scuda_thread *t = scuda_thread();
  uint64_t current = t->current;
  t->current = context;
  int32_t r = attachment == CU_MEM_ATTACH_SINGLE ? scuda_wire_cuStreamSynchronize(attached, 0) : scuda_wire_cuCtxSynchronize(0);
  t->current = current;
  return r;
}

static int fault(uint64_t address, int write) {
  scuda_lock(&lock);
  struct area *a = area_at(address);
  if (a && atomic_load(&given) && !lost && a->block[(address - a->pages.start) / BLOCK].state == AWAY) {
    uint64_t context = a->context, attached = a->attached;
    uint32_t attachment = a->attachment;
    scuda_unlock(&lock); /* other threads may have to give the work that this work waits for */
    int32_t r = quiet(context, attachment, attached);
    scuda_lock(&lock);
    if (r) lose(r);
    a = area_at(address);
  }
  if (!a) {
    scuda_unlock(&lock);
    return 0;
  }
  uint32_t b = (uint32_t)((address - a->pages.start) / BLOCK), first, n;
  struct block *at = &a->block[b];
  count(SCUDA_MANAGED_FAULTS, 1);
  if (lost || at->state == DIRTY || (at->state == CLEAN && !write)) { /* somebody else's fault brought it */
    scuda_pages_wake(&a->pages, (uint64_t)b * BLOCK, bytes_of(a, b, 1));
    scuda_unlock(&lock);
    return 1;
  }
  enum state was = (enum state)at->state;
  n = stretch(a, b, was, &first);
  uint64_t from = (uint64_t)first * BLOCK, bytes = bytes_of(a, first, n);
  int32_t r = was == AWAY ? carry(a, first, n, 1) : CUDA_SUCCESS;
  if ((was == AWAY || was == READY) && at->wanted < 255) at->wanted++;
  if (r) {
    lose(r);
  } else {
    mark(a, first, n, write ? DIRTY : CLEAN); /* before the program can go on: its next launch looks at the list without the lock */
    if (was == CLEAN) scuda_pages_unlock(&a->pages, from, bytes);
    else scuda_pages_allow(&a->pages, from, bytes, write);
  }
  scuda_unlock(&lock);
  return 1;
}

/* ---- the GPU's side ---- */

/* Memory that is attached to the host, or to another stream, is not this work's. */
static int concerned(const struct area *a, uint64_t stream, int all) {
  return all || a->attachment == CU_MEM_ATTACH_GLOBAL || (a->attachment == CU_MEM_ATTACH_SINGLE && a->attached == stream);
}

static int32_t hand_over(struct area *a) {
  int32_t r = CUDA_SUCCESS;
  int sent = 0;
  uint64_t from = (uint64_t)a->low * BLOCK;
  scuda_pages_deny(&a->pages, from, bytes_of(a, a->low, a->high - a->low));
  a->wanted = 0;
  for (uint32_t b = a->low, end; b < a->high && !r; b = end) {
    for (end = b + 1; end < a->high && a->block[b].state == DIRTY && a->block[end].state == DIRTY; end++) {}
    if (a->block[b].state == DIRTY) {
      r = carry(a, b, end - b, 0);
      sent = 1;
    }
  }
  for (uint32_t b = a->low; b < a->high; b++) {
    struct block *k = &a->block[b];
    if (k->state == READY || k->state == FRESH) k->wanted = 0; /* pushed, and not wanted */
    a->wanted += k->wanted > 1;
    k->state = AWAY;
  }
  a->low = a->blocks;
  a->high = 0;
  if (!r && sent) r = arrive(a);
  return r;
}

static int32_t acquire(uint64_t stream, int all) {
  int32_t r = CUDA_SUCCESS;
  scuda_lock(&lock);
  for (struct area **at = &opened, *a; (a = *at) && !r;) {
    if (!concerned(a, stream, all)) {
      at = &a->next_open;
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

/* Whose work the GPU has. Blocks are pushed back only where one thread gives all of the work and waits for all of it: else some other work may
 * still change what would be pushed. */
static struct scuda_thread *worker;
static uint64_t working = SCUDA_NO_STREAM; /* the stream that has work since it was last waited for */
static int workers, streams;               /* there were several */

static void note_work(uint64_t key) {
  struct scuda_thread *t = scuda_thread();
  atomic_store_explicit(&given, 1, memory_order_relaxed);
  if (SCUDA_LIKELY(__atomic_load_n(&worker, __ATOMIC_RELAXED) == t && working == key)) return;
  scuda_lock(&lock);
  if (!worker) __atomic_store_n(&worker, t, __ATOMIC_RELAXED);
  workers |= worker != t;
  streams |= working != SCUDA_NO_STREAM && working != key;
  working = key;
  scuda_unlock(&lock);
}

int32_t scuda_managed_acquire(uint64_t stream, uint32_t ptds) {
  if (SCUDA_LIKELY(!atomic_load_explicit(&scuda_managed_count, memory_order_relaxed))) return CUDA_SUCCESS;
  note_work(scuda_stream_key(stream, ptds));
  if (SCUDA_LIKELY(!atomic_load(&work_left))) return CUDA_SUCCESS;
  if (scuda_stream_capturing(stream, ptds)) return CUDA_SUCCESS; /* the graph's launch will do it */
  return acquire(stream, 0);
}

/* What the program read in the rounds before, it will read again. */
void scuda_managed_settled(uint64_t key) {
  if (SCUDA_LIKELY(!atomic_load_explicit(&scuda_managed_count, memory_order_relaxed))) return;
  scuda_lock(&lock);
  int over = !workers && worker == scuda_thread() && (key == SCUDA_ALL_STREAMS || (!streams && key == working));
  if (over) {
    working = SCUDA_NO_STREAM;
    streams = 0;
    atomic_store(&given, 0);
  }
  for (struct area *a = areas; over && a && !lost; a = a->next) {
    if (!a->wanted) continue;
    a->wanted = 0;
    for (uint32_t b = 0, end; b < a->blocks; b = end) {
      for (end = b; end < a->blocks && a->block[end].wanted > 1 && a->block[end].state == AWAY; end++) {}
      if (end > b && !carry(a, b, end - b, 1)) mark(a, b, end - b, READY);
      end += end == b;
    }
  }
  scuda_unlock(&lock);
}

/* ---- allocation ---- */

/* Makes the range; address 0: one of ours, with memory on the server. */
static int32_t make(uint64_t address, uint64_t bytes, uint32_t attachment, struct area **made) {
  uint64_t owner = scuda_thread()->current;
  if (!owner && address) owner = scuda_gpus[0].primary; /* variables of a library are asked for before there is a context */
  struct scuda_slot *context = scuda_slot(owner);
  if (!context) return scuda_no_context();
  int32_t r = scuda_pager_start(fault);
  if (r) return r;
  uint64_t blocks = (bytes + BLOCK - 1) / BLOCK;
  if (blocks > UINT32_MAX / 2) return CUDA_ERROR_OUT_OF_MEMORY;
  struct area *a = calloc(1, sizeof *a + blocks * sizeof *a->block);
  if (!a) return CUDA_ERROR_OUT_OF_MEMORY;
  if ((r = scuda_pages_make(&a->pages, address, bytes))) {
    free(a);
    return r;
  }
  a->asked = bytes;
  a->context = owner;
  a->attachment = attachment;
  a->blocks = (uint32_t)blocks;
  a->low = a->blocks;
  a->twin = !address;
  a->advice = (struct advice){.preferred = CU_DEVICE_INVALID, .prefetched = CU_DEVICE_INVALID};
  if (a->twin) {
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
  a->next = areas;
  areas = a;
  mark(a, 0, a->blocks, address ? AWAY : FRESH);
  scuda_unlock(&lock);
  atomic_fetch_add(&scuda_managed_count, 1);
  *made = a;
  return CUDA_SUCCESS;
}

static void unlink_area(struct area *a) {
  struct area **at = &areas;
  while (*at && *at != a) at = &(*at)->next;
  if (*at) *at = a->next;
  for (at = &opened; *at && *at != a;) at = &(*at)->next_open;
  if (*at) *at = a->next_open;
  scuda_ranges_remove(&ranges, a->pages.start, NULL);
  scuda_ranges_remove(&scuda_device_ranges, a->pages.start, NULL);
}

static void forget(struct area *a) {
  atomic_fetch_sub(&scuda_managed_count, 1);
  scuda_pages_drop(&a->pages);
  for (struct extent *e = a->extents, *next; e; e = next) next = e->next, free(e);
  free(a);
}

int32_t scuda_hand_cuMemAllocManaged(uint64_t *p, uint64_t bytes, uint32_t flags) {
  struct scuda_slot *context;
  int32_t r = scuda_context_of(0, &context);
  if (r) return r;
  if (!p || !bytes || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) return CUDA_ERROR_INVALID_VALUE;
  struct area *a;
  r = make(0, bytes, flags, &a);
  if (!r) *p = a->pages.start;
  return r;
}

/* Frees managed memory: 1 when it is some. Like the driver's, it waits for the work that may use it. */
int scuda_pre_cuMemFree_v2(uint64_t p, int32_t *r) {
  if (!scuda_is_managed(p)) return 0;
  *r = scuda_wire_cuCtxSynchronize(0);
  scuda_lock(&lock);
  struct area *a = area_at(p);
  if (!a || a->pages.start != p || !a->twin) a = NULL;
  else unlink_area(a);
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
  if (!atomic_load(&scuda_managed_count)) return;
  scuda_lock(&lock);
  for (struct area *a = areas, *next; a; a = next) {
    next = a->next;
    if (a->context != context) continue;
    unlink_area(a);
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
  struct area *a;
  int32_t r = from < to ? make(from, to - from, CU_MEM_ATTACH_GLOBAL, &a) : CUDA_SUCCESS;
  if (r == CUDA_ERROR_OUT_OF_MEMORY)
    scuda_log(SCUDA_ERROR, "a __managed__ variable lies at %#llx on the server, where this process has something else; start it again, or without address randomisation (setarch -R)", (unsigned long long)address);
  if (!r) r = acquire(0, 1); /* what is here of the pages lacks the variable */
  scuda_lock(&lock);
  for (uint64_t at = address; !r && at < address + bytes && (a = area_at(at)); at = a->pages.start + a->pages.bytes) {
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

/* ---- hints ---- */

static struct area *whole(uint64_t p, uint64_t bytes) { /* under the lock; the area that holds all of it */
  struct area *a = area_at(p);
  return a && bytes && bytes <= a->pages.start + a->asked - p ? a : NULL;
}

static int32_t prefetch(uint64_t p, uint64_t bytes, int32_t device, uint64_t stream, uint32_t ptds) {
  int32_t r = scuda_usable(stream);
  if (r) return r;
  if (device != CU_DEVICE_CPU && !scuda_device_ok(device)) return CUDA_ERROR_INVALID_DEVICE;
  scuda_lock(&lock);
  struct area *a = whole(p, bytes);
  if (a) {
    a->advice.prefetched = device;
    /* To the host: with the next wait, as what the stream still does may change it. */
    for (uint64_t at = p; device == CU_DEVICE_CPU && at < p + bytes; at += BLOCK) {
      struct block *b = &a->block[(at - a->pages.start) / BLOCK];
      if (b->wanted < 2) b->wanted = 2;
      a->wanted++;
    }
  }
  scuda_unlock(&lock);
  if (!a) return CUDA_ERROR_INVALID_VALUE;
  return device == CU_DEVICE_CPU ? CUDA_SUCCESS : scuda_managed_acquire(stream, ptds);
}

struct location { int32_t type, id; }; /* CUmemLocation */

static int32_t located(struct scuda_bytes8 where, int32_t *device) {
  struct location l;
  memcpy(&l, &where, sizeof l);
  switch (l.type) {
  case CU_MEM_LOCATION_TYPE_DEVICE:
    *device = l.id;
    return scuda_device_ok(l.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  case CU_MEM_LOCATION_TYPE_HOST:
  case CU_MEM_LOCATION_TYPE_HOST_NUMA:
  case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
    *device = CU_DEVICE_CPU;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

int32_t scuda_hand_cuMemPrefetchAsync(uint64_t p, uint64_t bytes, int32_t device, uint64_t stream, uint32_t ptds) { return prefetch(p, bytes, device, stream, ptds); }
int32_t scuda_hand_cuMemPrefetchAsync_v2(uint64_t p, uint64_t bytes, struct scuda_bytes8 where, uint32_t flags, uint64_t stream, uint32_t ptds) {
  int32_t device, r = located(where, &device);
  if (flags) r = CUDA_ERROR_INVALID_VALUE;
  return r ? r : prefetch(p, bytes, device, stream, ptds);
}

static int32_t advise(uint64_t p, uint64_t bytes, int32_t advice, int32_t device) {
  struct scuda_slot *context;
  int32_t r = scuda_context_of(0, &context);
  if (r) return r;
  int names = advice >= CU_MEM_ADVISE_SET_PREFERRED_LOCATION && advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
  if (names && device != CU_DEVICE_CPU && !scuda_device_ok(device)) return CUDA_ERROR_INVALID_DEVICE;
  scuda_lock(&lock);
  struct area *a = whole(p, bytes);
  uint64_t bit = device == CU_DEVICE_CPU ? 1ull << 63 : 1ull << (device & 63);
  r = a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (a) switch (advice) {
  case CU_MEM_ADVISE_SET_READ_MOSTLY: a->advice.read_mostly = 1; break;
  case CU_MEM_ADVISE_UNSET_READ_MOSTLY: a->advice.read_mostly = 0; break;
  case CU_MEM_ADVISE_SET_PREFERRED_LOCATION: a->advice.preferred = device; break;
  case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: a->advice.preferred = CU_DEVICE_INVALID; break;
  case CU_MEM_ADVISE_SET_ACCESSED_BY: a->advice.accessed_by |= bit; break;
  case CU_MEM_ADVISE_UNSET_ACCESSED_BY: a->advice.accessed_by &= ~bit; break;
  default: r = CUDA_ERROR_INVALID_VALUE;
  }
  scuda_unlock(&lock);
  return r;
}

int32_t scuda_hand_cuMemAdvise(uint64_t p, uint64_t bytes, int32_t advice, int32_t device) { return advise(p, bytes, advice, device); }
int32_t scuda_hand_cuMemAdvise_v2(uint64_t p, uint64_t bytes, int32_t advice, struct scuda_bytes8 where) {
  int32_t device = 0, kind, r = CUDA_SUCCESS;
  memcpy(&kind, &where, sizeof kind);
  if (kind < CU_MEM_LOCATION_TYPE_INVALID || kind > CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT) return CUDA_ERROR_INVALID_VALUE;
  if (advice != CU_MEM_ADVISE_SET_READ_MOSTLY && advice != CU_MEM_ADVISE_UNSET_READ_MOSTLY && advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION) r = located(where, &device);
  return r ? r : advise(p, bytes, advice, device);
}

int32_t scuda_hand_cuMemRangeGetAttribute(void *data, uint64_t size, int32_t attribute, uint64_t p, uint64_t bytes) {
  if (!data || !size || size % 4) return CUDA_ERROR_INVALID_VALUE;
  scuda_lock(&lock);
  struct area *a = whole(p, bytes);
  struct advice advice = a ? a->advice : (struct advice){0};
  scuda_unlock(&lock);
  if (!a) return CUDA_ERROR_INVALID_VALUE;
  int32_t *out = data, device;
  switch (attribute) {
  case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
    *out = (int32_t)advice.read_mostly;
    return size == 4 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
  case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
    *out = attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION ? advice.preferred : advice.prefetched;
    return size == 4 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
    for (uint64_t i = 0; i < size / 4; i++) out[i] = CU_DEVICE_INVALID;
    for (uint64_t i = 0, bit = 0; bit < 64 && i < size / 4; bit++)
      if (advice.accessed_by >> bit & 1) out[i++] = bit == 63 ? CU_DEVICE_CPU : (int32_t)bit;
    return CUDA_SUCCESS;
  case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
  case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
  case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
  case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
    if (size != 4) return CUDA_ERROR_INVALID_VALUE;
    device = attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE || attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID ? advice.preferred : advice.prefetched;
    if (attribute == CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID || attribute == CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID) *out = device < 0 ? 0 : device;
    else *out = device == CU_DEVICE_INVALID ? CU_MEM_LOCATION_TYPE_INVALID : device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

int32_t scuda_hand_cuMemRangeGetAttributes(void **data, uint64_t *sizes, int32_t *attributes, uint64_t n, uint64_t p, uint64_t bytes) {
  if (!data || !sizes || !attributes || !n) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = CUDA_SUCCESS;
  for (uint64_t i = 0; i < n && !r; i++) r = scuda_hand_cuMemRangeGetAttribute(data[i], sizes[i], attributes[i], p, bytes);
  return r;
}

/* ---- attachment ---- */

int32_t scuda_hand_cuStreamAttachMemAsync(uint64_t stream, uint64_t p, uint64_t bytes, uint32_t flags, uint32_t ptds) {
  int32_t r = scuda_usable(stream);
  if (r) return r;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE) return CUDA_ERROR_INVALID_VALUE;
  if (flags == CU_MEM_ATTACH_SINGLE && !stream && !ptds) return CUDA_ERROR_INVALID_VALUE;
  scuda_lock(&lock);
  struct area *a = area_at(p);
  r = a && a->pages.start == p && (!bytes || bytes == a->asked) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (!r) {
    a->attachment = flags;
    a->attached = stream;
  }
  scuda_unlock(&lock);
  return r;
}
