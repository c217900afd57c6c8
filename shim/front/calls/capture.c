/* The calls of stream capture, and what they tell base/capture.c. */
#include "calls/calls.h"

static int32_t began(uint64_t stream, uint32_t ptds, int32_t r) {
  uint64_t *m = r ? NULL : scuda_capture_mark(stream, ptds);
  if (m) scuda_capture_begins(m);
  return r;
}

int scuda_pre_cuStreamBeginCapture(uint64_t stream, uint32_t ptds, int32_t *r) {
  *r = began(stream, ptds, scuda_wire_cuStreamBeginCapture(stream, ptds));
  return 1;
}
int scuda_pre_cuStreamBeginCapture_v2(uint64_t stream, int32_t mode, uint32_t ptds, int32_t *r) {
  *r = began(stream, ptds, scuda_wire_cuStreamBeginCapture_v2(stream, mode, ptds));
  return 1;
}
int scuda_pre_cuStreamBeginCaptureToGraph(uint64_t stream, uint64_t graph, const uint64_t *nodes, const void *edges,
                                          uint64_t count, int32_t mode, uint32_t ptds,
                                          int32_t *r) {
  *r = began(stream, ptds, scuda_wire_cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode, ptds));
  return 1;
}

/* A capture that was refused something ends with an error. */
int scuda_pre_cuStreamEndCapture(uint64_t stream, uint64_t *graph, uint32_t ptds, int32_t *r) {
  *r = scuda_wire_cuStreamEndCapture(stream, graph, ptds);
  uint64_t *m = scuda_capture_mark(stream, ptds);
  int32_t status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (m && *m &&
      (!*r || (!scuda_wire_cuStreamIsCapturing(stream, &status, ptds) &&
               status == CU_STREAM_CAPTURE_STATUS_NONE))) scuda_capture_ends(m);
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
