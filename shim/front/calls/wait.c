/* Questions about streams and events, and waits for them: answered from memory where progress.c knows the answer. */
#include "calls/calls.h"
#include "base/order.h"
#include "base/progress.h"

/* No kernel may have written to the program's pinned memory since that was last brought in step. */
static int nothing_mapped(void) {
  return SCUDA_LIKELY(!atomic_load(&scuda_mapped_count)) || !atomic_load(&scuda_mapped_launched);
}

/* ---- events ---- */

static int record(uint64_t event, uint64_t stream, uint32_t flags, int with_flags, uint32_t ptds, int32_t *r) {
  struct scuda_thread *t = scuda_thread();
  struct scuda_slot *s = scuda_slot_of(event, KIND_CUevent);
  if (SCUDA_UNLIKELY(!s)) {
    *r = CUDA_ERROR_INVALID_HANDLE;
    return 1;
  }
  if (SCUDA_UNLIKELY(flags)) scuda_event_elsewhere(event);
  struct scuda_track *k = scuda_event_track(event);
  if (SCUDA_UNLIKELY(!k)) scuda_position_put(&scuda_track(event)->work, 0);
  t->recording = k ? event : 0;
  uint32_t how = ptds | (k && k->queried ? SCUDA_WATCH : 0);
  /* another process may wait for it as soon as this returns */
  if (SCUDA_UNLIKELY(scuda_event_is_elsewhere(event))) how |= SCUDA_ANSWER;
  *r = with_flags ? scuda_wire_cuEventRecordWithFlags(event, stream, flags, how) :
       scuda_wire_cuEventRecord(event, stream, how);
  t->recording = 0;
  return 1;
}
int scuda_pre_cuEventRecord(uint64_t event, uint64_t stream, uint32_t ptds, int32_t *r) {
  return record(event, stream, 0, 0, ptds, r);
}
int scuda_pre_cuEventRecordWithFlags(uint64_t event, uint64_t stream, uint32_t flags, uint32_t ptds, int32_t *r) {
  return record(event, stream, flags, 1, ptds, r);
}

int scuda_pre_cuEventQuery(uint64_t event, int32_t *r) {
  struct scuda_track *k = scuda_event_track(event);
  if (SCUDA_LIKELY(k != NULL)) {
    *r = CUDA_SUCCESS;
    if (SCUDA_LIKELY(scuda_known_done(k))) return 1;
    *r = CUDA_ERROR_NOT_READY;
    if (SCUDA_LIKELY(scuda_known_busy(k))) {
      scuda_mapped_publish();
      if (scuda_known_done(k)) *r = CUDA_SUCCESS;
      return 1;
    }
    k->queried = 1;
  }
  uint64_t news = scuda_position_get(&scuda_shared.news);
  *r = scuda_wire_cuEventQuery(event, 0);
  if (k) scuda_progress_learn(k, *r, news);
  return 1;
}

int scuda_pre_cuEventSynchronize(uint64_t event, int32_t *r) {
  struct scuda_track *k = scuda_event_track(event);
  *r = CUDA_SUCCESS;
  if (SCUDA_LIKELY(k && scuda_known_done(k) && nothing_mapped())) return 1;
  *r = scuda_wire_cuEventSynchronize(event, 0);
  if (k) scuda_progress_learn(k, *r, 0);
  if (!*r) scuda_mapped_download(SCUDA_NO_STREAM), scuda_managed_settled(SCUDA_NO_STREAM);
  return 1;
}

static int elsewhere(uint64_t event) {
  scuda_event_elsewhere(event);
  return 0;
}
int scuda_pre_cuCtxRecordEvent(uint64_t ctx, uint64_t event, int32_t *r) {
  return (void)ctx, (void)r, elsewhere(event);
}
int scuda_pre_cuIpcGetEventHandle(void *handle, uint64_t event, int32_t *r) {
  (void)handle, (void)r;
  scuda_order_join();
  return elsewhere(event);
}
int scuda_pre_cuGraphEventRecordNodeSetEvent(uint64_t node, uint64_t event, int32_t *r) {
  return (void)node, (void)r, elsewhere(event);
}
int scuda_pre_cuGraphExecEventRecordNodeSetEvent(uint64_t exec, uint64_t node, uint64_t event, int32_t *r) {
  return (void)exec, (void)node, (void)r, elsewhere(event);
}

/* ---- streams ---- */

int scuda_pre_cuStreamQuery(uint64_t stream, uint32_t ptds, int32_t *r) {
  int legacy = 0;
  struct scuda_track *k = scuda_stream_track(stream, ptds, &legacy);
  if (SCUDA_LIKELY(k != NULL)) {
    *r = CUDA_SUCCESS;
    if (SCUDA_LIKELY(scuda_stream_done(k, legacy))) return 1;
    *r = CUDA_ERROR_NOT_READY;
    if (!legacy && scuda_known_busy(k)) {
      scuda_mapped_publish();
      if (scuda_stream_done(k, legacy)) *r = CUDA_SUCCESS;
      return 1;
    }
  }
  uint64_t news = scuda_position_get(&scuda_shared.news);
  *r = scuda_wire_cuStreamQuery(stream, ptds | SCUDA_ASKS);
  if (k && (!legacy || !*r)) scuda_progress_learn(k, *r, news);
  return 1;
}

int scuda_pre_cuStreamSynchronize(uint64_t stream, uint32_t ptds, int32_t *r) {
  int legacy = 0;
  struct scuda_track *k = scuda_stream_track(stream, ptds, &legacy);
  *r = CUDA_SUCCESS;
  if (SCUDA_LIKELY(k && scuda_stream_done(k, legacy) && nothing_mapped())) return 1;
  if (SCUDA_UNLIKELY(scuda_mapped_synchronize(stream, ptds, r))) return 1;
  *r = scuda_wire_cuStreamSynchronize(stream, ptds | SCUDA_ASKS);
  if (k) scuda_progress_learn(k, *r, 0);
  if (!*r) scuda_mapped_download(scuda_stream_key(stream, ptds)), scuda_managed_settled(scuda_stream_key(stream, ptds));
  return 1;
}

int scuda_context_done(uint64_t context) {
  const struct scuda_track *k = scuda_track(context);
  uint64_t end = scuda_position_published();
  return !scuda_slot(context)->sticky && !__atomic_load_n(&scuda_shared.transfers_pending, __ATOMIC_ACQUIRE) &&
         nothing_mapped() && (scuda_position_get(&k->done) == end || scuda_position_get(&k->asked) == end);
}

int scuda_pre_cuCtxSynchronize(int32_t *r) {
  *r = CUDA_ERROR_INVALID_CONTEXT;
  if (!scuda_thread()->current) return 1;
  struct scuda_slot *ctx = scuda_progress_context();
  struct scuda_track *k = ctx ? scuda_track((uint64_t)(uintptr_t)ctx) : NULL;
  *r = CUDA_SUCCESS;
  if (k && scuda_position_published() && scuda_position_get(&k->asked) == scuda_position_published() &&
      !__atomic_load_n(&scuda_shared.transfers_pending, __ATOMIC_ACQUIRE) && nothing_mapped()) return 1;
  *r = scuda_wire_cuCtxSynchronize(0);
  if (*r) return 1;
  if (k) {
    uint64_t end = scuda_thread()->answered;
    scuda_position_raise(&k->asked, end);
    scuda_position_raise(&k->done, end);
  }
  scuda_mapped_download(SCUDA_ALL_STREAMS);
  scuda_managed_settled(SCUDA_ALL_STREAMS);
  return 1;
}

int scuda_pre_cuCtxSynchronize_v2(uint64_t ctx, int32_t *r) {
  return !ctx || scuda_context_meant(ctx) ? 0 : scuda_pre_cuCtxSynchronize(r);
}
