/* What the front knows of the GPU's progress, so that questions about it need no round trip once their answers are known. struct scuda_track
 * (core.h) says what is kept of a stream and an event.
 *
 * work: a thread notes the stream that it names (scuda_check), and every command that it sends from then on counts as work for that stream, until
 * it names another one. That is too much rather than too little; only questions about a stream do not count. Positions are noted under the ring's
 * lock, so they have the order in which the server sees the commands.
 *
 * "Complete" is answered from memory when an answer or a PROGRESS message covers all work. PROGRESS comes behind the data of the downloads that it
 * covers, and before every later message that could tell the program the same. "Not ready" is answered from memory only while the server is
 * bound to tell (asked), and the program has learned of no other progress since (news), which might imply this one's.
 *
 * Whatever is unusual goes to the server: captures, events that graphs or other processes record, pinned memory that kernels use, contexts that are
 * not the current one, and everything once an error has ended the context. */
#define _GNU_SOURCE
#include "uvm/managed.h"
#include "base/order.h"

#include <time.h>

enum { LOOK_EVERY_NS = 8000 };

static uint64_t get(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static void put(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

static void raise_to(uint64_t *p, uint64_t v) {
  uint64_t old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (old < v && !__atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
  }
}

static uint64_t published(void) { return get(&scuda_shared.tail); }

/* What was told of the slot's former owner covers no command of the new one: each of those lies behind the present end of the ring. */
void scuda_track_new(uint64_t handle) {
  struct scuda_track *k = scuda_track(handle);
  uint64_t stream = scuda_slot(handle)->kind == KIND_CUstream;
  k->elsewhere = k->queried = 0;
  put(&k->work, stream ? published() + 1 : 0);
}

void scuda_event_elsewhere(uint64_t event) {
  if (scuda_slot_of(event, KIND_CUevent)) put(&scuda_track(event)->elsewhere, 1);
}

int scuda_event_is_elsewhere(uint64_t event) { return scuda_slot_of(event, KIND_CUevent) && __atomic_load_n(&scuda_track(event)->elsewhere, __ATOMIC_RELAXED); }

int scuda_event_is_odd(uint64_t event) { return scuda_slot_of(event, KIND_CUevent) && !get(&scuda_track(event)->work); }

void scuda_recorded(struct scuda_thread *t, uint64_t end, uint32_t watched) {
  struct scuda_track *k = scuda_track(t->recording);
  t->recording = 0;
  if (watched) {
    put(&k->news, get(&scuda_shared.news));
    put(&k->asked, end);
  }
  put(&k->work, end);
}

/* The context when questions may be answered from memory at all. */
static struct scuda_slot *ordinary(void) {
  uint64_t context = scuda_header_context(scuda_thread());
  struct scuda_slot *s = scuda_slot(context);
  if (SCUDA_UNLIKELY(!s || s->sticky || scuda_blocking || atomic_load_explicit(&scuda_captures, memory_order_relaxed))) return NULL;
  if (SCUDA_UNLIKELY(__atomic_load_n(&scuda_shared.lost, __ATOMIC_ACQUIRE))) return NULL;
  return s;
}

/* No kernel may have written to the program's pinned memory since that was last brought in step. */
static int nothing_mapped(void) { return SCUDA_LIKELY(!atomic_load(&scuda_mapped_count)) || !atomic_load(&scuda_mapped_launched); }

static int known_done(const struct scuda_track *k) {
  uint64_t work = get(&k->work);
  return work && get(&k->done) >= work;
}

/* The answer "not ready" may be given without the server. A program that asks again and again reads the connection itself. */
static int known_busy(const struct scuda_track *k) {
  static _Atomic uint64_t next_look;
  uint64_t asked = get(&k->asked), work = get(&k->work);
  if (!work || asked < work || asked <= get(&k->refused) || get(&k->news) != get(&scuda_shared.news)) return 0;
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  uint64_t now = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
  if (now >= atomic_load_explicit(&next_look, memory_order_relaxed)) {
    scuda_core.look();
    atomic_store_explicit(&next_look, now + LOOK_EVERY_NS, memory_order_relaxed);
    return asked > get(&k->refused) && get(&k->news) == get(&scuda_shared.news);
  }
  return 1;
}

static void learn(struct scuda_track *k, int32_t r, uint64_t news) {
  uint64_t end = scuda_thread()->answered;
  if (r == CUDA_SUCCESS) raise_to(&k->done, end);
  if (r == CUDA_ERROR_NOT_READY) {
    put(&k->news, news);
    put(&k->asked, end);
  }
}

/* ---- events ---- */

static struct scuda_track *event_track(uint64_t event) {
  struct scuda_slot *s = scuda_slot_of(event, KIND_CUevent), *ctx = ordinary();
  if (SCUDA_UNLIKELY(!s || !ctx || s->context != (uint64_t)(uintptr_t)ctx)) return NULL;
  struct scuda_track *k = scuda_track(event);
  return SCUDA_UNLIKELY(k->elsewhere) ? NULL : k;
}

static int record(uint64_t event, uint64_t stream, uint32_t flags, int with_flags, uint32_t ptds, int32_t *r) {
  struct scuda_thread *t = scuda_thread();
  struct scuda_slot *s = scuda_slot_of(event, KIND_CUevent);
  if (SCUDA_UNLIKELY(!s)) {
    *r = CUDA_ERROR_INVALID_HANDLE;
    return 1;
  }
  if (SCUDA_UNLIKELY(flags)) scuda_event_elsewhere(event);
  struct scuda_track *k = event_track(event);
  if (SCUDA_UNLIKELY(!k)) put(&scuda_track(event)->work, 0);
  t->recording = k ? event : 0;
  uint32_t how = ptds | (k && k->queried ? SCUDA_WATCH : 0);
  if (SCUDA_UNLIKELY(scuda_event_is_elsewhere(event))) how |= SCUDA_ANSWER; /* another process may wait for it as soon as this returns */
  *r = with_flags ? scuda_wire_cuEventRecordWithFlags(event, stream, flags, how) : scuda_wire_cuEventRecord(event, stream, how);
  t->recording = 0;
  return 1;
}
int scuda_pre_cuEventRecord(uint64_t event, uint64_t stream, uint32_t ptds, int32_t *r) { return record(event, stream, 0, 0, ptds, r); }
int scuda_pre_cuEventRecordWithFlags(uint64_t event, uint64_t stream, uint32_t flags, uint32_t ptds, int32_t *r) {
  return record(event, stream, flags, 1, ptds, r);
}

int scuda_pre_cuEventQuery(uint64_t event, int32_t *r) {
  struct scuda_track *k = event_track(event);
  if (SCUDA_LIKELY(k != NULL)) {
    *r = CUDA_SUCCESS;
    if (SCUDA_LIKELY(known_done(k))) return 1;
    *r = CUDA_ERROR_NOT_READY;
    scuda_mapped_publish();
    if (SCUDA_LIKELY(known_busy(k))) {
      if (known_done(k)) *r = CUDA_SUCCESS;
      return 1;
    }
    k->queried = 1;
  }
  uint64_t news = get(&scuda_shared.news);
  *r = scuda_wire_cuEventQuery(event, 0);
  if (k) learn(k, *r, news);
  return 1;
}

int scuda_pre_cuEventSynchronize(uint64_t event, int32_t *r) {
  struct scuda_track *k = event_track(event);
  *r = CUDA_SUCCESS;
  if (SCUDA_LIKELY(k && known_done(k) && nothing_mapped())) return 1;
  scuda_mapped_publish();
  *r = scuda_wire_cuEventSynchronize(event, 0);
  if (k) learn(k, *r, 0);
  if (!*r) scuda_mapped_download(SCUDA_NO_STREAM), scuda_managed_settled(SCUDA_NO_STREAM);
  return 1;
}

static int elsewhere(uint64_t event) {
  scuda_event_elsewhere(event);
  return 0;
}
int scuda_pre_cuCtxRecordEvent(uint64_t ctx, uint64_t event, int32_t *r) { return (void)ctx, (void)r, elsewhere(event); }
int scuda_pre_cuIpcGetEventHandle(void *handle, uint64_t event, int32_t *r) {
  (void)handle, (void)r;
  scuda_order_join();
  return elsewhere(event);
}
int scuda_pre_cuGraphEventRecordNodeSetEvent(uint64_t node, uint64_t event, int32_t *r) { return (void)node, (void)r, elsewhere(event); }
int scuda_pre_cuGraphExecEventRecordNodeSetEvent(uint64_t exec, uint64_t node, uint64_t event, int32_t *r) {
  return (void)exec, (void)node, (void)r, elsewhere(event);
}

/* ---- streams ---- */

static int is_legacy(uint64_t stream, uint32_t ptds) { return stream == 1 || (stream == 0 && !ptds); }

/* The stream's track; *legacy: it is the context's, whose done counts only while nothing at all was sent behind it. */
static struct scuda_track *stream_track(uint64_t stream, uint32_t ptds, int *legacy) {
  struct scuda_slot *ctx = ordinary();
  if (SCUDA_UNLIKELY(!ctx)) return NULL;
  if ((*legacy = is_legacy(stream, ptds))) return scuda_track((uint64_t)(uintptr_t)ctx);
  struct scuda_slot *s = scuda_slot_of(stream, KIND_CUstream);
  return SCUDA_LIKELY(s && s->context == (uint64_t)(uintptr_t)ctx) ? scuda_track(stream) : NULL;
}

/* An answer may have overtaken the data of another stream's download, so those must have arrived. */
static int stream_done(const struct scuda_track *k, int legacy) {
  if (SCUDA_UNLIKELY(__atomic_load_n(&scuda_shared.transfers_pending, __ATOMIC_ACQUIRE))) return 0;
  return legacy ? get(&k->done) == published() && published() : known_done(k);
}

void scuda_stream_idle(uint64_t stream, uint32_t ptds) {
  int legacy;
  struct scuda_track *k = stream_track(stream, ptds, &legacy);
  if (k) raise_to(&k->done, scuda_thread()->answered);
}

int scuda_pre_cuStreamQuery(uint64_t stream, uint32_t ptds, int32_t *r) {
  int legacy = 0;
  struct scuda_track *k = stream_track(stream, ptds, &legacy);
  if (SCUDA_LIKELY(k != NULL)) {
    *r = CUDA_SUCCESS;
    if (SCUDA_LIKELY(stream_done(k, legacy))) return 1;
    *r = CUDA_ERROR_NOT_READY;
    scuda_mapped_publish();
    if (!legacy && known_busy(k)) {
      if (stream_done(k, legacy)) *r = CUDA_SUCCESS;
      return 1;
    }
  }
  uint64_t news = get(&scuda_shared.news);
  *r = scuda_wire_cuStreamQuery(stream, ptds | SCUDA_ASKS);
  if (k && (!legacy || !*r)) learn(k, *r, news);
  return 1;
}

int scuda_pre_cuStreamSynchronize(uint64_t stream, uint32_t ptds, int32_t *r) {
  int legacy = 0;
  struct scuda_track *k = stream_track(stream, ptds, &legacy);
  *r = CUDA_SUCCESS;
  if (SCUDA_LIKELY(k && stream_done(k, legacy) && nothing_mapped())) return 1;
  scuda_mapped_publish();
  if (SCUDA_UNLIKELY(scuda_mapped_synchronize(stream, ptds, r))) return 1;
  *r = scuda_wire_cuStreamSynchronize(stream, ptds | SCUDA_ASKS);
  if (k) learn(k, *r, 0);
  if (!*r) scuda_mapped_download(scuda_stream_key(stream, ptds)), scuda_managed_settled(scuda_stream_key(stream, ptds));
  return 1;
}

int scuda_context_done(uint64_t context) {
  const struct scuda_track *k = scuda_track(context);
  uint64_t end = published();
  return !scuda_slot(context)->sticky && !__atomic_load_n(&scuda_shared.transfers_pending, __ATOMIC_ACQUIRE) && nothing_mapped() && (get(&k->done) == end || get(&k->asked) == end);
}

int scuda_pre_cuCtxSynchronize(int32_t *r) {
  *r = CUDA_ERROR_INVALID_CONTEXT;
  if (!scuda_thread()->current) return 1;
  struct scuda_slot *ctx = ordinary();
  struct scuda_track *k = ctx ? scuda_track((uint64_t)(uintptr_t)ctx) : NULL;
  *r = CUDA_SUCCESS;
  if (k && published() && get(&k->asked) == published() && !__atomic_load_n(&scuda_shared.transfers_pending, __ATOMIC_ACQUIRE) && nothing_mapped()) return 1;
  scuda_mapped_publish();
  *r = scuda_wire_cuCtxSynchronize(0);
  if (*r) return 1;
  if (k) {
    uint64_t end = scuda_thread()->answered;
    raise_to(&k->asked, end);
    raise_to(&k->done, end);
  }
  scuda_mapped_download(SCUDA_ALL_STREAMS);
  scuda_managed_settled(SCUDA_ALL_STREAMS);
  return 1;
}

int scuda_pre_cuCtxSynchronize_v2(uint64_t ctx, int32_t *r) { return !ctx || scuda_context_meant(ctx) ? 0 : scuda_pre_cuCtxSynchronize(r); }
