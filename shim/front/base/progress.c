/* What the front knows of the GPU's progress, so that questions about it need no round trip once their answers are
 * known. struct scuda_track (core.h) says what is kept of a stream and an event.
 *
 * work: a thread notes the stream that it names (scuda_check), and every command that it sends from then on counts as
 * work for that stream, until it names another one. That is too much rather than too little; only questions about a
 * stream do not count. Positions are noted under the ring's lock, so they have the order in which the server sees the
 * commands.
 *
 * "Complete" is answered from memory when an answer or a PROGRESS message covers all work. PROGRESS comes behind the
 * data of the downloads that it covers, and before every later message that could tell the program the same. "Not
 * ready" is answered from memory only while the server is bound to tell (asked), and the program has learned of no
 * other progress since (news), which might imply this one's.
 *
 * Whatever is unusual goes to the server: captures, events that graphs or other processes record, pinned memory that
 * kernels use, contexts that are not the current one, and everything once an error has ended the context. */
#define _GNU_SOURCE
#include "base/progress.h"

#include <time.h>

enum { LOOK_EVERY_NS = 8000 };

/* What was told of the slot's former owner covers no command of the new one: each of those lies behind the present end
 * of the ring. */
void scuda_track_new(uint64_t handle) {
  struct scuda_track *k = scuda_track(handle);
  uint64_t stream = scuda_slot(handle)->kind == KIND_CUstream;
  k->elsewhere = k->queried = 0;
  scuda_position_put(&k->work, stream ? scuda_position_published() + 1 : 0);
}

void scuda_event_elsewhere(uint64_t event) {
  if (scuda_slot_of(event, KIND_CUevent)) scuda_position_put(&scuda_track(event)->elsewhere, 1);
}

int scuda_event_is_elsewhere(uint64_t event) {
  return scuda_slot_of(event, KIND_CUevent) && __atomic_load_n(&scuda_track(event)->elsewhere, __ATOMIC_RELAXED);
}

int scuda_event_is_odd(uint64_t event) {
  return scuda_slot_of(event, KIND_CUevent) && !scuda_position_get(&scuda_track(event)->work);
}

void scuda_recorded(struct scuda_thread *t, uint64_t end, uint32_t watched) {
  struct scuda_track *k = scuda_track(t->recording);
  t->recording = 0;
  if (watched) {
    scuda_position_put(&k->news, scuda_position_get(&scuda_shared.news));
    scuda_position_put(&k->asked, end);
  }
  scuda_position_put(&k->work, end);
}

/* The context when questions may be answered from memory at all. */
struct scuda_slot *scuda_progress_context(void) {
  uint64_t context = scuda_header_context(scuda_thread());
  struct scuda_slot *s = scuda_slot(context);
  if (SCUDA_UNLIKELY(!s || s->sticky || scuda_blocking())) return NULL;
  if (SCUDA_UNLIKELY(atomic_load_explicit(&scuda_captures, memory_order_relaxed))) return NULL;
  if (SCUDA_UNLIKELY(scuda_server_lost(scuda_server()))) return NULL;
  return s;
}

/* The answer "not ready" may be given without the server. A program that asks again and again reads the connection
 * itself. */
int scuda_known_busy(const struct scuda_track *k) {
  static _Atomic uint64_t next_look;
  uint64_t asked = scuda_position_get(&k->asked), work = scuda_position_get(&k->work);
  if (!work || asked < work || asked <= scuda_position_get(&k->refused) ||
      scuda_position_get(&k->news) != scuda_position_get(&scuda_shared.news)) return 0;
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  uint64_t now = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
  if (now >= atomic_load_explicit(&next_look, memory_order_relaxed)) {
    scuda_core.look();
    atomic_store_explicit(&next_look, now + LOOK_EVERY_NS, memory_order_relaxed);
    return asked > scuda_position_get(&k->refused) &&
           scuda_position_get(&k->news) == scuda_position_get(&scuda_shared.news);
  }
  return 1;
}

void scuda_progress_learn(struct scuda_track *k, int32_t r, uint64_t news) {
  uint64_t end = scuda_thread()->answered;
  if (r == CUDA_SUCCESS) scuda_position_raise(&k->done, end);
  if (r == CUDA_ERROR_NOT_READY) {
    scuda_position_put(&k->news, news);
    scuda_position_put(&k->asked, end);
  }
}

/* ---- events ---- */

struct scuda_track *scuda_event_track(uint64_t event) {
  struct scuda_slot *s = scuda_slot_of(event, KIND_CUevent), *ctx = scuda_progress_context();
  if (SCUDA_UNLIKELY(!s || !ctx || s->context != (uint64_t)(uintptr_t)ctx)) return NULL;
  struct scuda_track *k = scuda_track(event);
  return SCUDA_UNLIKELY(k->elsewhere) ? NULL : k;
}

/* ---- streams ---- */

static int is_legacy(uint64_t stream, uint32_t ptds) { return stream == 1 || (stream == 0 && !ptds); }

/* The stream's track; *legacy: it is the context's, whose done counts only while nothing at all was sent behind it. */
struct scuda_track *scuda_stream_track(uint64_t stream, uint32_t ptds, int *legacy) {
  struct scuda_slot *ctx = scuda_progress_context();
  if (SCUDA_UNLIKELY(!ctx)) return NULL;
  if ((*legacy = is_legacy(stream, ptds))) return scuda_track((uint64_t)(uintptr_t)ctx);
  struct scuda_slot *s = scuda_slot_of(stream, KIND_CUstream);
  return SCUDA_LIKELY(s && s->context == (uint64_t)(uintptr_t)ctx) ? scuda_track(stream) : NULL;
}

/* An answer may have overtaken the data of another stream's download, so those must have arrived. */
int scuda_stream_done(const struct scuda_track *k, int legacy) {
  if (SCUDA_UNLIKELY(__atomic_load_n(&scuda_shared.transfers_pending, __ATOMIC_ACQUIRE))) return 0;
  return legacy ? scuda_position_get(&k->done) == scuda_position_published() &&
         scuda_position_published() : scuda_known_done(k);
}

void scuda_stream_idle(uint64_t stream, uint32_t ptds) {
  int legacy;
  struct scuda_track *k = scuda_stream_track(stream, ptds, &legacy);
  if (k) scuda_position_raise(&k->done, scuda_thread()->answered);
}
