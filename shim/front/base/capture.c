/* Stream capture: which calls need an answer while one is going on.
 *
 * A capture forbids work for the legacy stream of its context, and some calls that take no stream; the driver refuses
 * them, and the capture is over for all its streams. So while a capture may be going on, what goes to the legacy stream
 * or names no stream is answered at once; work for other streams cannot be refused for its sake. Once something was
 * refused every call is answered, until no capture is left: those that a dead capture still takes in natively say
 * so. */
#include "base/base.h"

_Atomic uint32_t scuda_captures;
static _Atomic uint32_t spoiled; /* a capture has been refused something: it may be over without having been ended */

int scuda_capture_doubt(uint64_t stream, uint32_t ptds) {
  return atomic_load(&scuda_captures) && (atomic_load(&spoiled) || stream == 1 || (stream == 0 && !ptds));
}

/* A wrong launch ends a capture, too, with its own error. */
void scuda_capture_refused(int32_t result, int work) {
  if (work || (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD))
    atomic_store(&spoiled, 1);
}

/* ---- which streams began one: the stream's slot, or for a thread's own stream the thread, bears a mark ---- */

uint64_t *scuda_capture_mark(uint64_t stream, uint32_t ptds) {
  struct scuda_slot *s = scuda_slot_of(stream, KIND_CUstream);
  if (s) return &s->word[0];
  return stream == 2 || (!stream && ptds) ? &scuda_thread()->captures : NULL;
}

void scuda_capture_begins(uint64_t *mark) {
  if (*mark) return;
  *mark = 1;
  atomic_fetch_add(&scuda_captures, 1);
}

void scuda_capture_ends(uint64_t *m) {
  if (!*m) return;
  *m = 0;
  if (atomic_fetch_sub(&scuda_captures, 1) == 1) atomic_store(&spoiled, 0);
}

void scuda_capture_stream_dies(struct scuda_slot *s) { scuda_capture_ends(&s->word[0]); }

void scuda_capture_context_dies(uint64_t ctx) {
  if (!atomic_load(&scuda_captures)) return;
  scuda_slots_of(ctx, KIND_CUstream, scuda_capture_stream_dies);
  if (scuda_thread()->current == ctx) scuda_capture_ends(&scuda_thread()->captures);
}

int scuda_stream_capturing(uint64_t stream, uint32_t ptds) {
  int32_t status = CU_STREAM_CAPTURE_STATUS_NONE;
  return atomic_load(&scuda_captures) && !scuda_wire_cuStreamIsCapturing(stream, &status, ptds) &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}
