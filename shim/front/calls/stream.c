/* Streams and events: what is more than one generic call. */
#include "base/server.h"
#include "calls/calls.h"

#include <stdlib.h>

/* Flags that a driver refuses are sent with a request for an answer. */
int scuda_pre_cuEventCreate(uint64_t *event, uint32_t flags, int32_t *r) {
  (void)event, (void)r;
  return flags & ~(uint32_t)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING) ? 2 : 0;
}

int scuda_pre_cuStreamCreate(uint64_t *stream, uint32_t flags, int32_t *r) {
  (void)stream, (void)r;
  return flags & ~(uint32_t)CU_STREAM_NON_BLOCKING ? 2 : 0;
}

int scuda_pre_cuStreamCreateWithPriority(uint64_t *stream, uint32_t flags, int32_t priority, int32_t *r) {
  (void)priority; /* out of range: the driver takes the nearest one */
  return scuda_pre_cuStreamCreate(stream, flags, r);
}

void scuda_post_cuStreamDestroy(uint64_t stream) { scuda_managed_stream_ends(stream); }
void scuda_post_cuStreamDestroy_v2(uint64_t stream) { scuda_managed_stream_ends(stream); }

void scuda_post_cuCtxSynchronize_v2(uint64_t ctx) {
  struct scuda_visit v = scuda_visit(ctx ? scuda_slot_server(ctx) : scuda_server(), ctx);
  scuda_mapped_download(SCUDA_ALL_STREAMS);
  scuda_visit_end(v);
}

int32_t scuda_hand_cuStreamGetId(uint64_t stream, uint64_t *id, uint32_t ptds) {
  int32_t r = scuda_wire_cuStreamGetId(stream, id, ptds);
  if (!r && id)
    *id = scuda_unique(scuda_slot_of(stream, KIND_CUstream) ? scuda_slot_server(stream) : scuda_server(), *id);
  return r;
}

/* ---- batch memory operations: the driver refuses unified memory there ---- */

enum { OPERATION_WORDS = 6 }; /* of CUstreamBatchMemOpParams; the second is an address, where the operation has one */

static int operation(uint64_t address, uint64_t stream, uint32_t ptds, int32_t *r) {
  *r = CUDA_ERROR_INVALID_VALUE;
  const struct scuda_range at = scuda_range_of(address, SCUDA_AS_GPU);
  if (scuda_range_is_managed(&at)) return 1;
  return scuda_set_how(&at, stream, ptds, scuda_range_covers(&at, address, 1), r);
}

/* A value may be an address. */
static void written(uint64_t stream, const void *values, uint64_t bytes) {
  struct scuda_visit v = scuda_visit(stream > 2 && scuda_slot(stream) ? scuda_slot_server(stream) : scuda_server(), 0);
  scuda_managed_uploads(0, values, bytes, 0);
  scuda_visit_end(v);
}

#define OPERATION(name, type) \
  int scuda_pre_##name(uint64_t stream, uint64_t address, type value, uint32_t flags, uint32_t ptds, int32_t *r) { \
    (void)flags; \
    if (SCUDA_UNLIKELY(scuda_several())) written(stream, &value, sizeof value); \
    return operation(address, stream, ptds, r); \
  }
OPERATION(cuStreamWriteValue32_v2, uint32_t)
OPERATION(cuStreamWriteValue64_v2, uint64_t)
OPERATION(cuStreamWaitValue32_v2, uint32_t)
OPERATION(cuStreamWaitValue64_v2, uint64_t)

int scuda_pre_cuStreamBatchMemOp_v2(uint64_t stream, uint32_t count, void *list, uint32_t flags, uint32_t ptds,
                                    int32_t *r) {
  (void)flags;
  const uint64_t *words = list;
  int how = 0;
  if (!list || count > 256) return 0;
  if (SCUDA_UNLIKELY(scuda_several())) written(stream, list, 8ull * OPERATION_WORDS * count);
  if (!scuda_managed_some() && scuda_gpu_count < 2) return 0;
  for (uint32_t i = 0; how != 1 && i < count; i++) {
    const int one = operation(words[OPERATION_WORDS * i + 1], stream, ptds, r);
    if (one) how = one;
  }
  return how;
}

/* ---- functions of the program in stream order ---- */

static int32_t host_function_there(uint64_t stream, void *fn, void *user, uint32_t kind, uint32_t flags,
                                   uint32_t ptds) {
  int32_t r = scuda_check(stream, KIND_CUstream);
  if (r) return r;
  if (!fn) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_header_context(scuda_thread())) return scuda_no_context();
  int keep = kind == WIRE_HOST_FUNC_FUNCTION && scuda_stream_capturing(stream, ptds);
  uint64_t id = keep ? scuda_graph_function(fn, user) : scuda_core.hostfn(scuda_server(), fn, user, stream, kind, 0);
  struct wire_host_func m = {stream, id, kind, flags};
  return scuda_simple(OP_HOST_FUNC, ptds | SCUDA_WORKS, &m, sizeof m);
}

int32_t scuda_host_function(uint64_t stream, void *fn, void *user, uint32_t kind, uint32_t flags, uint32_t ptds) {
  if (SCUDA_LIKELY(!scuda_several())) return host_function_there(stream, fn, user, kind, flags, ptds);
  struct scuda_named n = {0};
  struct scuda_visit v;
  scuda_name_object(&n, stream);
  int32_t r = scuda_visit_named(&v, &n, "");
  if (r) return r;
  r = host_function_there(stream, fn, user, kind, flags, ptds);
  scuda_visit_end(v);
  return r;
}

int32_t scuda_hand_cuLaunchHostFunc(uint64_t stream, void *fn, void *user, uint32_t ptds) {
  return scuda_host_function(stream, fn, user, WIRE_HOST_FUNC_FUNCTION, 0, ptds);
}

int32_t scuda_hand_cuStreamAddCallback(uint64_t stream, void *callback, void *user, uint32_t flags, uint32_t ptds) {
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  return scuda_host_function(stream, callback, user, WIRE_HOST_FUNC_CALLBACK, flags, ptds);
}

/* ---- what a capture has collected: the lists belong to the thread until its next call ---- */

static void *lend(struct scuda_thread *t, int which, size_t bytes) {
  if (t->list_bytes[which] < bytes) {
    free(t->lists[which]);
    t->lists[which] = malloc(bytes);
    t->list_bytes[which] = t->lists[which] ? bytes : 0;
  }
  return t->lists[which];
}

enum { NODES_AT_FIRST = 64, NODES_MAX = 60000 };

static int32_t capture_info(uint64_t stream, int32_t *status, uint64_t *id, uint64_t *graph, void **nodes, void **edges,
                            uint64_t *count, uint32_t ptds) {
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = scuda_check(stream, KIND_CUstream);
  if (r) return r;
  if (!atomic_load(&scuda_captures) && scuda_header_context(scuda_thread())) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  }
  uint32_t max = nodes || edges ? NODES_AT_FIRST : 0;
  for (;;) {
    struct wire_capture_info m = {stream, max, edges ? WIRE_CAPTURE_INFO_EDGES : 0};
    struct scuda_cmd c;
    if ((r = scuda_begin(&c, OP_CAPTURE_INFO, SCUDA_ANSWER | ptds, sizeof m))) return r;
    memcpy(c.payload, &m, sizeof m);
    uint32_t cap = (uint32_t)sizeof(struct wire_capture_values) + max * (edges ? 16 : 8), len = 0;
    uint8_t *reply = malloc(cap);
    if (!reply) cap = 0;
    r = scuda_call(&c, reply, cap, &len);
    struct wire_capture_values v;
    if (!r && len < sizeof v) r = reply ? scuda_bad_reply("cuStreamGetCaptureInfo") : CUDA_ERROR_OUT_OF_MEMORY;
    if (r) {
      free(reply);
      return r;
    }
    memcpy(&v, reply, sizeof v);
    if (max && v.sent < v.count && v.count <= NODES_MAX) {
      max = v.count;
      free(reply);
      continue;
    }
    if (len < sizeof v + (uint64_t)v.sent * (edges ? 16 : 8)) {
      free(reply);
      return scuda_bad_reply("cuStreamGetCaptureInfo");
    }
    *status = v.status;
    if (v.status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
      scuda_adopt(v.graph, KIND_CUgraph);
      if (id) *id = v.id;
      if (graph) *graph = v.graph;
      if (edges && !nodes) r = CUDA_ERROR_INVALID_VALUE; /* noticed that late */
      if (count && !r) *count = v.count;
      struct scuda_thread *t = scuda_thread();
      uint64_t *list = lend(t, 0, 8 * (size_t)v.sent + 8);
      uint8_t *data = lend(t, 1, 8 * (size_t)v.sent + 8);
      if (!r && (!list || !data)) r = CUDA_ERROR_OUT_OF_MEMORY;
      if (!r) {
        memcpy(list, reply + sizeof v, 8 * (size_t)v.sent);
        if (edges) memcpy(data, reply + sizeof v + 8 * (size_t)v.sent, 8 * (size_t)v.sent);
        for (uint32_t i = 0; i < v.sent; i++) scuda_adopt(list[i], KIND_CUgraphNode);
        if (nodes) *nodes = v.sent ? list : NULL;
        if (edges) *edges = v.sent ? data : NULL;
      }
    }
    free(reply);
    return r;
  }
}

int32_t scuda_hand_cuStreamGetCaptureInfo(uint64_t stream, int32_t *status, uint64_t *id, uint32_t ptds) {
  return capture_info(stream, status, id, NULL, NULL, NULL, NULL, ptds);
}

int32_t scuda_hand_cuStreamGetCaptureInfo_v2(uint64_t stream, int32_t *status, uint64_t *id, uint64_t *graph,
                                             void **nodes, uint64_t *count, uint32_t ptds) {
  return capture_info(stream, status, id, graph, nodes, NULL, count, ptds);
}

int32_t scuda_hand_cuStreamGetCaptureInfo_v3(uint64_t stream, int32_t *status, uint64_t *id, uint64_t *graph,
                                             void **nodes, void **edges, uint64_t *count,
                                             uint32_t ptds) {
  return capture_info(stream, status, id, graph, nodes, edges, count, ptds);
}
