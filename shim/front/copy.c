/* Copies between the program's memory and the GPU. Small uploads travel inside their command, big ones as bulk data straight from the source;
 * downloads are written to their destination by the core. */
#include "range.h"

#include <stdlib.h>

enum { INLINE_MAX = 65536, COPY_SYNC = 1, COPY_DONE = 2, LEGACY_STREAM = 0 };
_Atomic uint32_t scuda_captures;

/* ---- stream capture: while none is going on, no stream needs to be asked ---- */

void scuda_post_cuStreamBeginCapture(uint64_t stream) { (void)stream; atomic_fetch_add(&scuda_captures, 1); }
void scuda_post_cuStreamBeginCapture_v2(uint64_t stream, int32_t mode) { (void)stream, (void)mode; atomic_fetch_add(&scuda_captures, 1); }
void scuda_post_cuStreamBeginCaptureToGraph(uint64_t stream, uint64_t graph, const uint64_t *nodes, const void *edges, uint64_t count, int32_t mode) {
  (void)stream, (void)graph, (void)nodes, (void)edges, (void)count, (void)mode;
  atomic_fetch_add(&scuda_captures, 1);
}
void scuda_post_cuStreamEndCapture(uint64_t stream, uint64_t *graph) {
  (void)stream, (void)graph;
  if (atomic_load(&scuda_captures)) atomic_fetch_sub(&scuda_captures, 1);
}

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

/* ---- uploads ---- */

static int is_pinned(const void *p, uint64_t bytes) {
  struct scuda_range r;
  return scuda_ranges_find(&scuda_host_ranges, (uint64_t)(uintptr_t)p, &r) && bytes <= r.start + r.bytes - (uint64_t)(uintptr_t)p;
}

static int32_t usable(uint64_t stream) {
  int32_t r = scuda_check(stream, KIND_CUstream);
  if (r) return r;
  return scuda_header_context(scuda_thread()) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static int32_t pull(uint64_t dst, const void *src, uint64_t bytes, uint64_t stream, uint32_t ptds, int sync) {
  struct wire_copy_h2d_pull m = {dst, bytes, stream, scuda_core.source(src, bytes), sync ? COPY_SYNC : 0};
  int32_t r = scuda_simple(OP_COPY_H2D_PULL, ptds, &m, sizeof m);
  if (r || !sync) return r;
  return scuda_wire_cuStreamSynchronize(stream, ptds); /* the source may change after the call */
}

static int32_t upload(uint64_t dst, const void *src, uint64_t bytes, uint64_t stream, uint32_t ptds, int sync) {
  int32_t r = usable(stream);
  if (r) return r;
  if (!bytes) return CUDA_SUCCESS;
  if (!src || !dst) return CUDA_ERROR_INVALID_VALUE;
  int pinned = is_pinned(src, bytes);
  if ((pinned && scuda_core.overlaps(src, bytes) == 1) || (!sync && scuda_stream_capturing(stream, ptds))) return pull(dst, src, bytes, stream, ptds, sync);

  struct wire_copy_h2d m = {dst, bytes, stream, sync ? COPY_SYNC : 0, 0};
  int known = scuda_on_device(dst, bytes);
  struct scuda_cmd c;
  if (bytes <= INLINE_MAX) {
    r = scuda_begin(&c, OP_COPY_H2D, ptds | (known ? 0 : SCUDA_ANSWER), sizeof m + bytes);
    if (r) return r;
    memcpy(c.payload, &m, sizeof m);
    scuda_put_struct(c.payload + sizeof m, src, bytes);
    return scuda_send(&c);
  }
  r = scuda_begin(&c, OP_COPY_H2D, ptds | SCUDA_BULK, sizeof m + 8);
  if (r) return r;
  memcpy(c.payload, &m, sizeof m);
  scuda_put64(c.payload + sizeof m, bytes);
  r = scuda_send_bulk(&c, src, bytes);
  if (!r && (scuda_blocking || !known)) r = scuda_wire_cuCtxSynchronize(0); /* brings the copy's error */
  return r;
}

/* ---- downloads ---- */

static int32_t download(void *dst, uint64_t src, uint64_t bytes, uint64_t stream, uint32_t ptds, int sync) {
  int32_t r = usable(stream);
  if (r) return r;
  if (!bytes) return CUDA_SUCCESS;
  if (!dst || !src) return CUDA_ERROR_INVALID_VALUE;
  uint32_t ordinal = scuda_thread()->ordinal;
  int captured = !sync && scuda_stream_capturing(stream, ptds);
  int later = captured || (!sync && !scuda_blocking && is_pinned(dst, bytes) && scuda_on_device(src, bytes));
  struct wire_copy_d2h m = {src, bytes, stream, scuda_core.transfer(dst, bytes, ordinal, captured ? 2 : later ? 1 : 0), sync ? COPY_SYNC : later ? COPY_DONE : 0};
  r = scuda_simple(OP_COPY_D2H, ptds | (later ? 0 : SCUDA_ANSWER), &m, sizeof m);
  if (!later) scuda_mapped_download();
  return r;
}

/* ---- the calls ---- */

int32_t scuda_hand_cuMemcpyHtoD_v2(uint64_t dst, const void *src, uint64_t bytes, uint32_t ptds) { return upload(dst, src, bytes, LEGACY_STREAM, ptds, 1); }
int32_t scuda_hand_cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, uint64_t bytes, uint64_t stream, uint32_t ptds) {
  return upload(dst, src, bytes, stream, ptds, 0);
}
int32_t scuda_hand_cuMemcpyDtoH_v2(void *dst, uint64_t src, uint64_t bytes, uint32_t ptds) { return download(dst, src, bytes, LEGACY_STREAM, ptds, 1); }
int32_t scuda_hand_cuMemcpyDtoHAsync_v2(void *dst, uint64_t src, uint64_t bytes, uint64_t stream, uint32_t ptds) {
  return download(dst, src, bytes, stream, ptds, 0);
}

/* The unified forms find out what each address is. */
static int32_t copy(uint64_t dst, uint64_t src, uint64_t bytes, uint64_t stream, uint32_t ptds, int sync) {
  if (!bytes) return usable(stream);
  if (!dst || !src) return CUDA_ERROR_INVALID_VALUE;
  int to_host = scuda_is_host(dst), from_host = scuda_is_host(src);
  if (from_host && !to_host) return upload(dst, (const void *)(uintptr_t)src, bytes, stream, ptds, sync);
  if (to_host && !from_host) return download((void *)(uintptr_t)dst, src, bytes, stream, ptds, sync);
  if (!to_host) {
    uint32_t how = ptds | (scuda_on_device(dst, bytes) && scuda_on_device(src, bytes) ? 0 : SCUDA_ANSWER);
    return sync ? scuda_wire_cuMemcpyDtoD_v2(dst, src, bytes, how) : scuda_wire_cuMemcpyDtoDAsync_v2(dst, src, bytes, stream, how);
  }
  int32_t r = usable(stream);
  if (!r) r = scuda_wire_cuStreamSynchronize(stream, ptds);
  if (!r) memmove((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, bytes);
  return r;
}
int32_t scuda_hand_cuMemcpy(uint64_t dst, uint64_t src, uint64_t bytes, uint32_t ptds) { return copy(dst, src, bytes, LEGACY_STREAM, ptds, 1); }
int32_t scuda_hand_cuMemcpyAsync(uint64_t dst, uint64_t src, uint64_t bytes, uint64_t stream, uint32_t ptds) { return copy(dst, src, bytes, stream, ptds, 0); }

/* ---- rectangles and boxes ---- */

struct side_2d { uint64_t x, y; uint32_t type, pad; uint64_t host, device, array, pitch; };
struct copy_2d { struct side_2d src, dst; uint64_t width, height; };                                                    /* CUDA_MEMCPY2D */
_Static_assert(sizeof(struct copy_2d) == 128 && sizeof(struct scuda_box) == 200, "layouts of copy descriptions");

/* Where the first byte lies in linear memory, and whether that is host memory; 0 for an array. */
static uint64_t linear(const struct scuda_box_side *s, int *host) {
  uint64_t base = s->type == CU_MEMORYTYPE_HOST ? s->host : s->device;
  if (s->type == CU_MEMORYTYPE_ARRAY) return 0;
  *host = s->type == CU_MEMORYTYPE_HOST || (s->type == CU_MEMORYTYPE_UNIFIED && scuda_is_host(base));
  return base ? base + s->x + s->pitch * (s->y + s->z * s->height) : 0;
}

int scuda_box_in_host(const struct scuda_box_side *s) {
  return s->type == CU_MEMORYTYPE_HOST || (s->type == CU_MEMORYTYPE_UNIFIED && s->device && scuda_is_host(s->device));
}

/* A box with host memory at one end is copied row by row (in one piece where rows touch). */
static int32_t copy_rows(const struct scuda_box *c, uint64_t stream, uint32_t ptds, int sync, uint32_t i) {
  int from_host = 0, to_host = 0;
  uint64_t src = linear(&c->src, &from_host), dst = linear(&c->dst, &to_host);
  if (c->src.type == CU_MEMORYTYPE_ARRAY || c->dst.type == CU_MEMORYTYPE_ARRAY) return scuda_unsupported(i, "copies between arrays and host memory");
  if (!src || !dst) return CUDA_ERROR_INVALID_VALUE;
  uint64_t width = c->width, height = c->height, depth = c->depth;
  if ((height > 1 && (c->src.pitch < width || c->dst.pitch < width))) return CUDA_ERROR_INVALID_VALUE;
  if (c->src.pitch == width && c->dst.pitch == width && depth == 1) {
    width *= height;
    height = 1;
  }
  for (uint64_t z = 0; z < depth; z++) {
    for (uint64_t y = 0; y < height; y++) {
      uint64_t s = src + c->src.pitch * (y + z * c->src.height), d = dst + c->dst.pitch * (y + z * c->dst.height);
      int32_t r = from_host && to_host ? copy(d, s, width, stream, ptds, sync)
                  : from_host          ? upload(d, (const void *)(uintptr_t)s, width, stream, ptds, sync)
                                       : download((void *)(uintptr_t)d, s, width, stream, ptds, sync);
      if (r) return r;
    }
  }
  return CUDA_SUCCESS;
}

static struct scuda_box_side widen(const struct side_2d *s) {
  return (struct scuda_box_side){.x = s->x, .y = s->y, .type = s->type, .host = s->host, .device = s->device, .array = s->array, .pitch = s->pitch};
}

#define COPY_2D(name, stream_decl, stream_arg, stream, sync)                                              \
  int32_t scuda_hand_##name(const void *p stream_decl, uint32_t ptds) {                                   \
    if (!p) return CUDA_ERROR_INVALID_VALUE;                                                              \
    const struct copy_2d *c = p;                                                                          \
    struct scuda_box box = {widen(&c->src), widen(&c->dst), c->width, c->height, 1};                        \
    if (!scuda_box_in_host(&box.src) && !scuda_box_in_host(&box.dst)) return scuda_wire_##name(p stream_arg, ptds); \
    return copy_rows(&box, stream, ptds, sync, I_##name);                                                 \
  }
#define COPY_3D(name, stream_decl, stream_arg, stream, sync)                                              \
  int32_t scuda_hand_##name(const void *p stream_decl, uint32_t ptds) {                                   \
    if (!p) return CUDA_ERROR_INVALID_VALUE;                                                              \
    const struct scuda_box *c = p;                                                                          \
    if (!scuda_box_in_host(&c->src) && !scuda_box_in_host(&c->dst)) return scuda_wire_##name(p stream_arg, ptds); \
    return copy_rows(c, stream, ptds, sync, I_##name);                                                    \
  }
#define WITH(...) , __VA_ARGS__
COPY_2D(cuMemcpy2D_v2, , , LEGACY_STREAM, 1)
COPY_2D(cuMemcpy2DUnaligned_v2, , , LEGACY_STREAM, 1)
COPY_2D(cuMemcpy2DAsync_v2, WITH(uint64_t stream), WITH(stream), stream, 0)
COPY_3D(cuMemcpy3D_v2, , , LEGACY_STREAM, 1)
COPY_3D(cuMemcpy3DPeer, , , LEGACY_STREAM, 1)
COPY_3D(cuMemcpy3DAsync_v2, WITH(uint64_t stream), WITH(stream), stream, 0)
COPY_3D(cuMemcpy3DPeerAsync, WITH(uint64_t stream), WITH(stream), stream, 0)
