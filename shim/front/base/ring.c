/* The command ring: appending commands, waiting for room, and synchronous calls. */
#define _GNU_SOURCE
#include "base/order.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RING_BYTES = 4 << 20, READY_BYTES = 128 << 10 /* without a page fault */, COMMAND_MAX = WIRE_MAX_COMMAND,
       HEADER = WIRE_HEADER,
       TRACE_AS_DATA = 65536, STARTED = 1 << 18 /* a command that was sent already */ };
uint32_t scuda_unusual;
_Atomic int scuda_sharing;
static scuda_lock_t lock;
static uint64_t tail;  /* under the lock; scuda_shared.tail is what is published */

static int flag_set(const char *name) {
  const char *v = getenv(name);
  return v && *v && strcmp(v, "0") != 0;
}

int32_t scuda_ring_setup(void) {
  scuda_trace_setup();
  if (flag_set("SCUDA_LAUNCH_BLOCKING") || flag_set("CUDA_LAUNCH_BLOCKING")) scuda_unusual |= SCUDA_BLOCKING;
  int fd = memfd_create("scuda-ring", MFD_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  uint8_t *ring = MAP_FAILED;
  if (!ftruncate(fd, RING_BYTES))
    ring = mmap(NULL, 2 * (size_t)RING_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  /* A launch that had to fault a page of it in would take 2 µs instead of 0.1. The beginning is populated here, what
     follows by the core's sender when the program gets near: most programs never do. */
  if (ring == MAP_FAILED ||
      mmap(ring, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ||
      mmap(ring, READY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, 0) == MAP_FAILED ||
      mmap(ring + RING_BYTES, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    close(fd);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  close(fd);
  madvise(ring, 2 * (size_t)RING_BYTES, MADV_DONTFORK);
  scuda_shared.abi = SCUDA_CORE_ABI;
  scuda_shared.ring = ring;
  scuda_shared.ring_size = RING_BYTES;
  return CUDA_SUCCESS;
}

static uint64_t load_head(void) { return __atomic_load_n(&scuda_shared.head, __ATOMIC_ACQUIRE); }
static int32_t lost(void) { return (int32_t)__atomic_load_n(&scuda_shared.lost, __ATOMIC_ACQUIRE); }

static void wake_sender(void) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (SCUDA_UNLIKELY(__atomic_load_n(&scuda_shared.asleep, __ATOMIC_RELAXED)) &&
      __atomic_exchange_n(&scuda_shared.asleep, 0, __ATOMIC_SEQ_CST))
    scuda_futex_wake((_Atomic uint32_t *)&scuda_shared.asleep, 1);
}

static int wait_for_room(uint32_t size) {
  wake_sender();
  while (tail + size - load_head() > RING_BYTES) {
    if (lost()) return 0;
    __atomic_store_n(&scuda_shared.starved, 1, __ATOMIC_SEQ_CST);
    if (tail + size - load_head() <= RING_BYTES) break;
    scuda_futex_wait((_Atomic uint32_t *)&scuda_shared.starved, 1, 100);
  }
  return 1;
}

uint64_t scuda_header_context(struct scuda_thread *t) {
  return t->current && scuda_context_usable(t->current) ? t->current : 0;
}

/* Errors of a kernel that end its context for good. */
static int is_sticky(int32_t result) {
  switch (result) {
  case CUDA_ERROR_ECC_UNCORRECTABLE:
  case CUDA_ERROR_NVLINK_UNCORRECTABLE:
  case CUDA_ERROR_ILLEGAL_ADDRESS:
  case CUDA_ERROR_LAUNCH_TIMEOUT:
  case CUDA_ERROR_ASSERT:
  case CUDA_ERROR_HARDWARE_STACK_ERROR:
  case CUDA_ERROR_ILLEGAL_INSTRUCTION:
  case CUDA_ERROR_MISALIGNED_ADDRESS:
  case CUDA_ERROR_INVALID_ADDRESS_SPACE:
  case CUDA_ERROR_INVALID_PC:
  case CUDA_ERROR_LAUNCH_FAILED:
    return 1;
  }
  return 0;
}

static inline uint8_t *put_header(const struct scuda_thread *t, uint32_t server, uint32_t size, uint32_t op,
                                  uint32_t flags, uint64_t context) {
  uint8_t *p = scuda_shared.ring + (tail & (RING_BYTES - 1));
  uint16_t words[2] = {(uint16_t)op, (uint16_t)flags};
  uint32_t last[2] = {t->ordinal | server << SCUDA_SERVER_SHIFT, t->correlation};
  memcpy(p, &size, 4);
  memcpy(p + 4, words, 4);
  memcpy(p + 8, &tail, 8);
  memcpy(p + 16, &context, 8);
  memcpy(p + 24, last, 8);
  return p + HEADER;
}

/* The command that is about to be appended comes behind what other processes were told of. Under the ring's lock, which
 * is let go of when the session is lost. */
static int put_order(const struct scuda_thread *t, uint32_t server) {
  static struct wire_order_after list[SCUDA_ORDER_MOST];
  uint32_t n = scuda_order_news(server, list), bytes = n * (uint32_t)sizeof *list,
      size = HEADER + (uint32_t)sizeof(struct wire_order) + bytes;
  if (!n) return 1;
  if (tail + size - load_head() > RING_BYTES && !wait_for_room(size)) {
    scuda_unlock(&lock);
    return 0;
  }
  uint8_t *p = put_header(t, server, size, OP_ORDER, 0, 0);
  struct wire_order m = {.count = n};
  memcpy(p, &m, sizeof m);
  memcpy(p + sizeof m, list, bytes);
  tail += size;
  return 1;
}

int32_t scuda_begin(struct scuda_cmd *c, uint32_t op, uint32_t flags, uint64_t payload) {
  if (SCUDA_UNLIKELY(!scuda_serving()))
    return atomic_load(&scuda_live.mode) == SCUDA_ENDED ? CUDA_ERROR_DEINITIALIZED : CUDA_ERROR_NOT_INITIALIZED;
  int32_t gone = lost();
  if (SCUDA_UNLIKELY(gone)) return gone;
  payload = scuda_pad(payload);
  if (SCUDA_UNLIKELY(payload > COMMAND_MAX - HEADER)) {
    scuda_log(SCUDA_WARN, "a call with %llu bytes of arguments is too big for the protocol",
              (unsigned long long)payload);
    return CUDA_ERROR_INVALID_VALUE;
  }
  struct scuda_thread *t = scuda_thread();
  uint64_t context = scuda_header_context(t);
  uint32_t server = 0;
  if (SCUDA_UNLIKELY(scuda_unusual || !context)) {
    if ((scuda_blocking() || !context) && !(flags & SCUDA_BULK)) flags |= SCUDA_ANSWER;
    server = scuda_server();
    if ((gone = scuda_server_lost(server))) return gone;
  }
  flags |= t->own;
  if (SCUDA_UNLIKELY(atomic_load_explicit(&scuda_captures, memory_order_relaxed)) &&
      !(flags & (SCUDA_ANSWER | SCUDA_BULK | SCUDA_OWN)) &&
      scuda_capture_doubt(flags & SCUDA_WORKS ? t->named : 0, flags & SCUDA_WORKS ? flags & SCUDA_PTDS : 0))
    flags |= SCUDA_ANSWER;
  if (!(flags & SCUDA_ANSWER)) { /* after a fault the driver itself says which calls still work */
    const struct scuda_slot *s = scuda_slot(context);
    if (SCUDA_UNLIKELY(s && s->sticky)) {
      if (flags & SCUDA_BULK) return s->sticky;
      flags |= SCUDA_ANSWER;
    }
  }
  int ordering = atomic_load_explicit(&scuda_ordering, memory_order_relaxed);
  if (SCUDA_UNLIKELY(ordering == SCUDA_ORDER_ANSWERED) && !(flags & SCUDA_BULK)) flags |= SCUDA_ANSWER;
  uint32_t size = HEADER + (uint32_t)payload;
  if (flags & (SCUDA_ANSWER | SCUDA_BULK)) scuda_callbacks.waits();

  scuda_lock(&lock);
  if (SCUDA_UNLIKELY(ordering == SCUDA_ORDER_TOLD) && !put_order(t, server)) return lost();
  if (SCUDA_UNLIKELY(tail + size - load_head() > RING_BYTES)) {
    uint64_t since = scuda_tracing ? scuda_trace_now() : 0;
    if (!wait_for_room(size)) {
      scuda_unlock(&lock);
      return lost();
    }
    if (since) scuda_trace_note(SCUDA_COUNT_QUEUE, op, since, 0);
  }
  if (SCUDA_UNLIKELY(scuda_tracing)) scuda_trace_note(SCUDA_COUNT_SENT, op, 0, size);
  c->payload = put_header(t, server, size, op, flags, context);
  c->thread = t;
  c->server = server;
  c->context = context;
  c->answer = flags & SCUDA_ANSWER ? flags & (SCUDA_ANSWER | SCUDA_WORKS) : 0;
  c->shared = t->shared | (op == OP_cuGraphLaunch) | (op == OP_cuStreamBatchMemOp_v2);
  t->shared = 0;
  c->begin = tail;
  c->end = tail += size;
  if (SCUDA_LIKELY(t->named > 2 && !(flags & SCUDA_ASKS) && scuda_slot_of(t->named, KIND_CUstream)))
    __atomic_store_n(&scuda_track(t->named)->work, tail, __ATOMIC_RELEASE);
  if (SCUDA_UNLIKELY(t->recording)) scuda_recorded(t, tail, flags & SCUDA_WATCH);
  return CUDA_SUCCESS;
}

static int told(void) {
  return SCUDA_UNLIKELY(atomic_load_explicit(&scuda_ordering, memory_order_relaxed) == SCUDA_ORDER_TOLD);
}

static void publish(struct scuda_cmd *c) {
  __atomic_store_n(&scuda_shared.tail, c->end, __ATOMIC_RELEASE);
  if (told()) {
    scuda_order_sent(c->server, c->end);
    if (c->shared && !c->answer) scuda_order_tell(c->server, c->end);
  }
  scuda_unlock(&lock);
}

static void begin_call(struct scuda_cmd *c) {
  c->since = 0;
  if (SCUDA_UNLIKELY(scuda_tracing)) { /* what lies in the ring is gone as soon as it was sent */
    uint16_t number;
    memcpy(&number, c->payload - HEADER + 4, 2);
    c->op = number;
    c->bytes = number == OP_COPY_D2H ? scuda_word(c->payload + offsetof(struct wire_copy_d2h, bytes)) : 0;
    c->since = scuda_trace_now();
  }
  publish(c);
}

void scuda_start(struct scuda_cmd *c) {
  begin_call(c);
  c->answer |= STARTED;
  scuda_core.send(c->end);
}

int32_t scuda_call(struct scuda_cmd *c, void *reply, uint32_t cap, uint32_t *len) {
  if (SCUDA_LIKELY(!(c->answer & STARTED))) begin_call(c);
  struct scuda_call call = {
      .begin = c->begin, .end = c->end, .thread = c->thread->ordinal | c->server << SCUDA_SERVER_SHIFT,
      .reply = reply, .reply_cap = cap, .timed = c->thread->timed};
  scuda_core.call(&call);
  if (SCUDA_UNLIKELY(call.timed)) {
    c->thread->timed = 0;
    c->thread->came = call.came;
  }
  if (SCUDA_UNLIKELY(c->since))
    scuda_trace_note(c->bytes > TRACE_AS_DATA ? SCUDA_COUNT_DATA : SCUDA_COUNT_ANSWER, c->op, c->since,
                     c->bytes + call.reply_len);
  if (SCUDA_UNLIKELY(call.result) && is_sticky(call.result) && c->context)
    scuda_contexts_fail(scuda_slot(c->context)->device, call.result);
  if (SCUDA_UNLIKELY(call.result) && atomic_load_explicit(&scuda_captures, memory_order_relaxed))
    scuda_capture_refused(call.result, c->answer & SCUDA_WORKS);
  c->thread->answered = c->end;
  if (told()) scuda_order_tell(c->server, c->end);
  if (len) *len = call.reply_len < cap ? call.reply_len : cap;
  /* of which the server was not told */
  if (SCUDA_UNLIKELY(call.result == CUDA_ERROR_INVALID_CONTEXT && !c->context)) return scuda_no_context();
  return call.result;
}

int32_t scuda_send(struct scuda_cmd *c) {
  if (SCUDA_UNLIKELY(c->answer)) return scuda_call(c, NULL, 0, NULL);
  publish(c);
  wake_sender();
  return CUDA_SUCCESS;
}

int32_t scuda_send_bulk(struct scuda_cmd *c, const void *data, uint64_t bytes) {
  /* One bulk at a time and in ring order: the core stops at a bulk command until it is called for it. */
  uint64_t since = scuda_tracing ? scuda_trace_now() : 0;
  publish(c);
  int32_t r = scuda_core.bulk(c->server, c->end, data, bytes);
  if (SCUDA_UNLIKELY(since)) scuda_trace_note(SCUDA_COUNT_DATA, OP_COPY_H2D, since, bytes);
  return r;
}

int32_t scuda_simple(uint32_t op, uint32_t flags, const void *payload, uint32_t bytes) {
  struct scuda_cmd c;
  int32_t r = scuda_begin(&c, op, flags, bytes);
  if (r) return r;
  memcpy(c.payload, payload, bytes);
  return scuda_send(&c);
}

/* ---- generic calls ---- */

int32_t scuda_call_generic(struct scuda_cmd *c, struct scuda_reply *r, uint64_t cap) {
  uint32_t len = 0;
  uint8_t *buffer = r->small;
  r->big = NULL;
  r->bad = 0;
  if (cap > sizeof r->small) {
    buffer = r->big = cap <= UINT32_MAX ? malloc(cap) : NULL;
    if (!buffer) cap = 0;
  }
  int32_t result = scuda_call(c, buffer, (uint32_t)cap, &len);
  r->at = buffer;
  r->end = buffer ? buffer + len : NULL;
  return result;
}

void scuda_reply_done(struct scuda_reply *r) { free(r->big); }

int32_t scuda_bad_reply(const char *name) {
  scuda_log(SCUDA_ERROR, "%s: the server's reply is malformed; client and server must be of one version", name);
  return CUDA_ERROR_UNKNOWN;
}

uint8_t *scuda_put_struct(uint8_t *p, const void *from, uint64_t size) {
  memcpy(p, from, size);
  memset(p + size, 0, scuda_pad(size) - size);
  return p + scuda_pad(size);
}

uint8_t *scuda_put_bytes(uint8_t *p, const void *from, uint64_t count, uint64_t size) {
  p = scuda_put64(p, count);
  return count ? scuda_put_struct(p, from, count * size) : p;
}

uint8_t *scuda_put_array(uint8_t *p, const void *from, uint64_t count, uint64_t size) {
  p = scuda_put64(p, scuda_room(from, count));
  return count ? scuda_put_struct(p, from, count * size) : p;
}

uint64_t scuda_peek(const struct scuda_reply *r, uint64_t offset) {
  return r->bad || (uint64_t)(r->end - r->at) < 8 + offset + 4 ? 0 : scuda_field(r->at + 8 + offset);
}

uint64_t scuda_get_pieces(struct scuda_reply *r, void *to, uint64_t cap, uint64_t size,
                          const struct scuda_piece *pieces) {
  uint64_t n;
  if (r->bad || r->end - r->at < 8) {
    r->bad = 1;
    return 0;
  }
  memcpy(&n, r->at, 8);
  r->at += 8;
  if (n > cap || scuda_pad(n * size) > (uint64_t)(r->end - r->at)) {
    r->bad = 1;
    return 0;
  }
  if (n && !pieces) memcpy(to, r->at, n * size);
  for (uint64_t i = 0; pieces && i < n; i++) scuda_store((uint8_t *)to + i * size, r->at + i * size, size, pieces);
  r->at += scuda_pad(n * size);
  return n;
}

uint64_t scuda_get_text(struct scuda_reply *r, char *to, uint64_t cap) {
  uint64_t n = scuda_get_pieces(r, NULL, cap, 1, (const struct scuda_piece[]){{0, 0, 0, 0}});
  const char *from = (const char *)r->at - scuda_pad(n);
  size_t length = n ? strnlen(from, n) : 0;
  if (n) memcpy(to, from, length < n ? length + 1 : n);
  return n;
}

uint64_t scuda_get(struct scuda_reply *r, void *to, uint64_t cap, uint64_t size) {
  return scuda_get_pieces(r, to, cap, size, NULL);
}
