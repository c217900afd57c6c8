/* Stream capture: which calls need an answer while one is going on.
 *
 * A capture forbids work for the legacy stream of its context, and some calls that take no stream; the driver refuses them, and the capture is over
 * for all its streams. So while a capture may be going on, what goes to the legacy stream or names no stream is answered at once; work for other streams
 * cannot be refused for its sake. Once something was refused every call is answered, until no capture is left: those that a dead capture still takes
 * in natively say so. */
#include "base/base.h"

_Atomic uint32_t scuda_captures;
static _Atomic uint32_t spoiled; /* a capture has been refused something: it may be over without having been ended */

int scuda_capture_doubt(uint64_t stream, uint32_t ptds) {
  return atomic_load(&scuda_captures) && (atomic_load(&spoiled) || stream == 1 || (stream == 0 && !ptds));
}

/* A wrong launch ends a capture, too, with its own error. */
void scuda_capture_refused(int32_t result, int work) {
  if (work || (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)) atomic_store(&spoiled, 1);
}

/* ---- which streams began one: the stream's slot, or for a thread's own stream the thread, bears a mark ---- */

static uint64_t *mark(uint64_t stream, uint32_t ptds) {
  struct scuda_slot *s = scuda_slot_of(stream, KIND_CUstream);
  if (s) return &s->word[0];
  return stream == 2 || (!stream && ptds) ? &scuda_thread()->captures : NULL;
}

static int32_t began(uint64_t stream, uint32_t ptds, int32_t r) {
  uint64_t *m = r ? NULL : mark(stream, ptds);
  if (m && !*m) {
    *m = 1;
    atomic_fetch_add(&scuda_captures, 1);
  }
  return r;
}

static void over(uint64_t *m) {
  if (!*m) return;
  *m = 0;
  if (atomic_fetch_sub(&scuda_captures, 1) == 1) atomic_store(&spoiled, 0);
}

void scuda_capture_stream_dies(struct scuda_slot *s) { over(&s->word[0]); }

void scuda_capture_context_dies(uint64_t ctx) {
  if (!atomic_load(&scuda_captures)) return;
  scuda_slots_of(ctx, KIND_CUstream, scuda_capture_stream_dies);
  if (scuda_thread()->current == ctx) over(&scuda_thread()->captures);
}

int scuda_pre_cuStreamBeginCapture(uint64_t stream, uint32_t ptds, int32_t *r) {
  *r = began(stream, ptds, scuda_wire_cuStreamBeginCapture(stream, ptds));
  return 1;
}
int scuda_pre_cuStreamBeginCapture_v2(uint64_t stream, int32_t mode, uint32_t ptds, int32_t *r) {
  *r = began(stream, ptds, scuda_wire_cuStreamBeginCapture_v2(stream, mode, ptds));
  return 1;
}
int scuda_pre_cuStreamBeginCaptureToGraph(uint64_t stream, uint64_t graph, const uint64_t *nodes, const void *edges, uint64_t count, int32_t mode, uint32_t ptds,
                                          int32_t *r) {
  *r = began(stream, ptds, scuda_wire_cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode, ptds));
  return 1;
}

/* A capture that was refused something ends with an error. */
int scuda_pre_cuStreamEndCapture(uint64_t stream, uint64_t *graph, uint32_t ptds, int32_t *r) {
  *r = scuda_wire_cuStreamEndCapture(stream, graph, ptds);
  uint64_t *m = mark(stream, ptds);
  int32_t status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (m && *m && (!*r || (!scuda_wire_cuStreamIsCapturing(stream, &status, ptds) && status == CU_STREAM_CAPTURE_STATUS_NONE))) over(m);
  return 1;
}

/* ---- while no capture is going on, no stream needs to be asked ---- */

int scuda_pre_cuStreamIsCapturing(uint64_t stream, int32_t *status, uint32_t ptds, int32_t *r) {
  (void)ptds;
  if (!status || atomic_load(&scuda_captures) || !scuda_header_context(scuda_thread())) return 0;
  *r = scuda_check(stream, KIND_CUstream);
  if (!*r) *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return 1;
}

int scuda_stream_capturing(uint64_t stream, uint32_t ptds) {
  int32_t status = CU_STREAM_CAPTURE_STATUS_NONE;
  return atomic_load(&scuda_captures) && !scuda_wire_cuStreamIsCapturing(stream, &status, ptds) && status != CU_STREAM_CAPTURE_STATUS_NONE;
}
