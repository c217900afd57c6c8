/* What is known of the progress of streams and events, for those who answer questions and wait (calls/wait.c).
 * progress.c has the rules. */
#ifndef SCUDA_PROGRESS_H
#define SCUDA_PROGRESS_H
#include "base/base.h"

/* Positions are read and written by the core as well. */
static inline uint64_t scuda_position_get(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void scuda_position_put(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline uint64_t scuda_position_published(void) { return scuda_position_get(&scuda_shared.tail); }
static inline void scuda_position_raise(uint64_t *p, uint64_t v) {
  uint64_t old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (old < v && !__atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
  }
}

/* All work of the stream or event is complete. */
static inline int scuda_known_done(const struct scuda_track *k) {
  uint64_t work = scuda_position_get(&k->work);
  return work && scuda_position_get(&k->done) >= work;
}

/* The current context, when questions about it may be answered from memory at all; else NULL. */
struct scuda_slot *scuda_progress_context(void);
/* The event's track, when questions may be answered from it; else NULL. */
struct scuda_track *scuda_event_track(uint64_t event);
/* The stream's track, as the event's; *legacy: it is the context's, whose done counts only while nothing at all was
 * sent behind it. */
struct scuda_track *scuda_stream_track(uint64_t stream, uint32_t ptds, int *legacy);
/* All work of the stream is complete, and its downloads have arrived. */
int scuda_stream_done(const struct scuda_track *k, int legacy);
/* The answer "not ready" may be given without the server. */
int scuda_known_busy(const struct scuda_track *k);
/* The server has answered a question, which was asked when scuda_shared.news was that. */
void scuda_progress_learn(struct scuda_track *k, int32_t r, uint64_t news);
#endif
