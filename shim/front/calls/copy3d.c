/* 2-D and 3-D copies, of linear memory and of arrays, and batches of copies. With host memory at one end, small uploads
 * carry their rows, big ones send them behind, and the rows of a download come back to their places; the driver itself
 * only ever sees memory of the server. */
#include "base/server.h"
#include "calls/calls.h"

#include <stdlib.h>

/* ---- 3-D copies ---- */

int scuda_copy3d_in_host(const struct scuda_copy3d_end *s) {
  return s->type == CU_MEMORYTYPE_HOST || (s->type == CU_MEMORYTYPE_UNIFIED && s->device && scuda_is_host(s->device));
}

/* Managed memory is the device's, whatever the copy calls it, and so is what is not the program's. It goes to the
 * server as such: there UNIFIED could mean the server's own memory. */
void scuda_copy3d_settle(struct scuda_copy3d_end *s) {
  uint64_t p = s->type == CU_MEMORYTYPE_HOST ? s->host : s->type == CU_MEMORYTYPE_ARRAY ? 0 : s->device;
  const struct scuda_range r = scuda_range_of(p, SCUDA_AS_ANY);
  if (scuda_range_is_managed(&r)) s->device = p;
  else if (s->type != CU_MEMORYTYPE_UNIFIED || (p && scuda_range_is_host(&r, p))) return;
  s->type = CU_MEMORYTYPE_DEVICE;
}

uint64_t scuda_copy3d_straighten(struct scuda_copy3d_end *s, const struct scuda_copy3d *b) {
  uint64_t rows, before, at, span;
  if (!b->width || !b->height || !b->depth || ((b->height > 1 || b->depth > 1) && s->pitch < b->width)) return 0;
  if (b->depth > 1 && s->height < b->height) return 0;
  if (__builtin_mul_overflow(b->depth - 1, s->height, &rows) || __builtin_add_overflow(rows, b->height - 1, &rows))
    return 0;
  if (__builtin_mul_overflow(rows, s->pitch, &span) || __builtin_add_overflow(span, b->width, &span)) return 0;
  if (__builtin_mul_overflow(s->z, s->height, &before) || __builtin_add_overflow(before, s->y, &before)) return 0;
  if (__builtin_mul_overflow(before, s->pitch, &at) || __builtin_add_overflow(at, s->x, &at)) return 0;
  if (s->type != CU_MEMORYTYPE_HOST) s->host = s->device;
  if (!s->host || __builtin_add_overflow(s->host, at, &s->host)) return 0;
  s->type = CU_MEMORYTYPE_HOST;
  s->device = 0;
  s->x = s->y = s->z = 0;
  return span;
}

static int within(uint64_t at, uint64_t n, uint64_t limit) { return n <= limit && at <= limit - n; }

int scuda_copy3d_certain(const struct scuda_copy3d_end *s, const struct scuda_copy3d *b) {
  if (s->lod) return 0;
  if (s->type == CU_MEMORYTYPE_ARRAY) {
    const struct scuda_slot *a = scuda_slot_of(s->array, KIND_CUarray);
    return a && a->flags && !(s->x % a->flags) && !(b->width % a->flags) &&
           within(s->x, b->width, a->word[0] * a->flags) &&
           within(s->y, b->height, a->word[1] >> 32) && within(s->z, b->depth, a->word[1] & UINT32_MAX);
  }
  struct scuda_copy3d_end line = *s;
  line.type = CU_MEMORYTYPE_UNIFIED;
  uint64_t span = scuda_copy3d_straighten(&line, b);
  return span && scuda_on_device(line.host, span) && (b->height == 1 || s->x + b->width <= s->pitch);
}

static int without_gaps(const struct scuda_copy3d_end *s, const struct scuda_copy3d *b) {
  return (b->height == 1 || s->pitch == b->width) &&
         (b->depth == 1 || (s->pitch == b->width && s->height == b->height));
}

/* Copies the rows of a 3-D copy from where it lies (or, with to set, to there) to memory that holds them without
 * gaps. */
static void copy_rows(uint8_t *packed, const struct scuda_copy3d_end *s, const struct scuda_copy3d *b) {
  const uint8_t *from = (const uint8_t *)(uintptr_t)s->host;
  for (uint64_t z = 0; z < b->depth; z++)
    for (uint64_t y = 0; y < b->height; y++, packed += b->width)
      memcpy(packed, from + (z * s->height + y) * s->pitch, b->width);
}

/* The program's memory in copies of graphs, by the numbers under which the server asks for it or sends it. A graph may
 * run until the program ends. */
static struct graph_host { uint32_t id, up; void *at; } *graph_hosts;
static uint32_t graph_host_count, graph_host_room;
static scuda_lock_t graph_host_lock;

void scuda_graph_host(uint32_t id, int up, void *at) {
  scuda_lock(&graph_host_lock);
  if (graph_host_count == graph_host_room) {
    uint32_t room = graph_host_room ? 2 * graph_host_room : 64;
    struct graph_host *more = realloc(graph_hosts, room * sizeof *more);
    if (more) graph_hosts = more, graph_host_room = room;
  }
  if (graph_host_count < graph_host_room) graph_hosts[graph_host_count++] = (struct graph_host){id, (uint32_t)up, at};
  scuda_unlock(&graph_host_lock);
}

void *scuda_graph_host_of(uint32_t id, int up) {
  void *at = NULL;
  scuda_lock(&graph_host_lock);
  for (uint32_t i = graph_host_count; i-- && !at;) /* numbers come again when all were used: the last one counts */
    if (graph_hosts[i].id == id && graph_hosts[i].up == (uint32_t)up) at = graph_hosts[i].at;
  scuda_unlock(&graph_host_lock);
  return at;
}

void scuda_copy3d_move(void *copy3d) {
  const struct scuda_copy3d *b = copy3d;
  for (uint64_t z = 0; z < b->depth; z++)
    for (uint64_t y = 0; y < b->height; y++)
      memmove((void *)(uintptr_t)(b->dst.host + (z * b->dst.height + y) * b->dst.pitch),
              (const void *)(uintptr_t)(b->src.host + (z * b->src.height + y) * b->src.pitch), b->width);
}

/* Captured, the copy becomes a function whose description lives as long as graphs may call it: until the program
 * ends. */
static int32_t within_host(struct scuda_copy3d *b, uint64_t stream, uint32_t how, int sync) {
  if (!scuda_copy3d_straighten(&b->src, b) || !scuda_copy3d_straighten(&b->dst, b)) return CUDA_ERROR_INVALID_VALUE;
  if (!sync && scuda_stream_capturing(stream, how)) {
    struct scuda_copy3d *captured = malloc(sizeof *captured);
    if (!captured) return CUDA_ERROR_OUT_OF_MEMORY;
    *captured = *b;
    int32_t r = scuda_host_function(stream, (void *)scuda_copy3d_move, captured, WIRE_HOST_FUNC_FUNCTION, 0, how);
    if (r) free(captured);
    return r;
  }
  int32_t r = scuda_wire_cuStreamSynchronize(stream, how);
  if (!r) scuda_copy3d_move(b);
  return r;
}

static void put_copy3d(struct scuda_cmd *c, const struct scuda_copy3d *b, const struct wire_copy_3d *rest) {
  struct wire_copy_3d m = *rest;
  memcpy(m.copy, b, sizeof *b);
  memcpy(c->payload, &m, sizeof m);
}

static int32_t upload_rows(const struct scuda_copy3d *b, const struct wire_copy_3d *m, uint32_t how, int sure) {
  struct scuda_cmd c;
  if (m->bytes <= SCUDA_INLINE_MAX) {
    int32_t r = scuda_begin(&c, OP_COPY_3D, how | SCUDA_WORKS | (sure ? 0 : SCUDA_ANSWER), sizeof *m + m->bytes);
    if (r) return r;
    put_copy3d(&c, b, m);
    memset(c.payload + sizeof *m + scuda_pad(m->bytes) - 8, 0, 8);
    copy_rows(c.payload + sizeof *m, &b->src, b);
    return scuda_send(&c);
  }
  /* a bulk command has no answer: that of a part says what a capture forbids */
  if (scuda_capture_doubt(m->stream, how & SCUDA_PTDS)) {
    struct scuda_copy3d part = *b;
    part.width = b->width < SCUDA_INLINE_MAX ? b->width : SCUDA_INLINE_MAX;
    part.height = part.depth = 1;
    struct wire_copy_3d w = *m;
    w.bytes = part.width;
    int32_t r = upload_rows(&part, &w, how | SCUDA_ANSWER, sure);
    if (r) return r;
  }
  const void *data = (const void *)(uintptr_t)b->src.host;
  void *packed = NULL;
  if (!without_gaps(&b->src, b)) {
    if (!(packed = malloc(m->bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
    copy_rows(packed, &b->src, b);
    data = packed;
  }
  int32_t r = scuda_begin(&c, OP_COPY_3D, how | SCUDA_WORKS | SCUDA_BULK, sizeof *m + 8);
  if (!r) {
    put_copy3d(&c, b, m);
    scuda_put64(c.payload + sizeof *m, m->bytes);
    r = scuda_send_bulk(&c, data, m->bytes);
  }
  free(packed);
  if (!r && (scuda_blocking() || !sure)) r = scuda_wire_cuCtxSynchronize(0); /* brings the copy's error */
  return r;
}

int32_t scuda_copy3d_to_mirror(struct scuda_copy3d_end *s, const struct scuda_copy3d *b, uint32_t i) {
  scuda_copy3d_settle(s);
  if (!scuda_copy3d_in_host(s)) return CUDA_SUCCESS;
  uint64_t bytes = scuda_copy3d_straighten(s, b);
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_is_pinned((void *)(uintptr_t)s->host, bytes)) return scuda_refuse(i, PART_body_copy);
  int32_t r = scuda_device_mirror(s->host, &s->device);
  s->type = CU_MEMORYTYPE_DEVICE;
  s->host = 0;
  return r;
}

int32_t scuda_body_copy(struct scuda_copy3d b, uint64_t stream, uint32_t ptds, uint32_t i) {
  int32_t r = scuda_copy3d_to_mirror(&b.src, &b, i);
  if (!r) r = scuda_copy3d_to_mirror(&b.dst, &b, i);
  return r ? r : scuda_wire_cuMemcpy3DAsync_v2(&b, stream, ptds);
}

/* In graphs, and where a download that has not arrived may still change it, the server asks for the memory when its
 * stream gets there. */
static int32_t upload_copy3d(const struct scuda_copy3d *b, uint64_t span, uint64_t stream, uint32_t how, int sync,
                             uint32_t flags) {
  void *src = (void *)(uintptr_t)b->src.host;
  int sure = scuda_copy3d_certain(&b->dst, b);
  uint64_t bytes = b->width * b->height * b->depth;
  struct wire_copy_3d m = {.bytes = bytes, .stream = stream, .flags = flags | WIRE_COPY_3D_DATA};
  int captured = !sync && scuda_stream_capturing(stream, how & SCUDA_PTDS);
  if (captured && scuda_captures_body(stream, how & SCUDA_PTDS))
    return scuda_body_copy(*b, stream, how & SCUDA_PTDS, I_cuMemcpy3DAsync_v2);
  int late = captured || (scuda_is_pinned(src, span) && scuda_core.overlaps(src, span) == 1);
  if (SCUDA_UNLIKELY(scuda_several())) scuda_managed_uploads((uint64_t)(uintptr_t)src, src, span, late);
  if (sync) scuda_callbacks.waits(); /* see scuda_upload_bytes */
  if (!late) return upload_rows(b, &m, how, sure);
  m.bytes = span;
  m.flags = flags | WIRE_COPY_3D_PULL;
  m.id = scuda_core.source(scuda_server(), src, span, captured);
  if (captured) scuda_graph_host(m.id, 1, src);
  struct scuda_cmd c;
  int32_t r = scuda_begin(&c, OP_COPY_3D, how | SCUDA_WORKS | (sure ? 0 : SCUDA_ANSWER), sizeof m);
  if (r) return r;
  put_copy3d(&c, b, &m);
  r = scuda_send(&c);
  if (r || !sync) return r;
  return scuda_wire_cuStreamSynchronize(stream, how); /* the source may change after the call */
}

static int32_t download_copy3d(const struct scuda_copy3d *b, uint64_t span, uint64_t stream, uint32_t how, int sync,
                               uint32_t flags) {
  void *dst = (void *)(uintptr_t)b->dst.host;
  int captured = !sync && scuda_stream_capturing(stream, how & SCUDA_PTDS);
  if (captured && scuda_captures_body(stream, how & SCUDA_PTDS))
    return scuda_body_copy(*b, stream, how & SCUDA_PTDS, I_cuMemcpy3DAsync_v2);
  int later = captured || (!sync && !scuda_blocking() && !scuda_capture_doubt(stream, how & SCUDA_PTDS) &&
                           scuda_is_pinned(dst, span) && scuda_copy3d_certain(&b->src, b));
  struct wire_copy_3d m = {
    .bytes = span, .stream = stream, .flags = flags | WIRE_COPY_3D_DOWNLOAD | (later ? SCUDA_COPY_DONE : 0)
  };
  m.id = scuda_core.transfer(dst, span, scuda_thread_word(), captured ? 2 : later ? 1 : 0);
  if (captured) scuda_graph_host(m.id, 0, dst);
  struct scuda_cmd c;
  int32_t r = scuda_begin(&c, OP_COPY_3D, how | SCUDA_WORKS | (later ? 0 : SCUDA_ANSWER), sizeof m);
  if (r) return r;
  put_copy3d(&c, b, &m);
  r = scuda_send(&c);
  if (!later && !r) scuda_mapped_download(scuda_stream_key(stream, how & SCUDA_PTDS));
  return r;
}

void scuda_copy3d_name(struct scuda_named *n, const struct scuda_copy3d_end *s) {
  if (s->type == CU_MEMORYTYPE_ARRAY) scuda_name_object(n, s->array);
  else if (s->type == CU_MEMORYTYPE_DEVICE) scuda_name_address(n, s->device);
}

/* Of several servers the copy is for the one that has the stream and the memory; 0, or NOT_SUPPORTED. */
static int32_t visit(struct scuda_visit *v, const struct scuda_copy3d *c, uint64_t stream) {
  struct scuda_named n = {0};
  scuda_name_object(&n, stream);
  scuda_copy3d_name(&n, &c->src), scuda_copy3d_name(&n, &c->dst);
  return scuda_visit_named(v, &n, "a copy");
}

static int is_managed_end(const struct scuda_copy3d_end *s) {
  return s->type == CU_MEMORYTYPE_DEVICE && scuda_is_managed(s->device);
}

/* Of several servers, unified memory is where the copy is by now, whatever context it was made in: during the visit
 * there. */
static void use_nearest(struct scuda_copy3d *c) {
  const int from = is_managed_end(&c->src), to = is_managed_end(&c->dst);
  const uint64_t current = scuda_thread()->current;
  if (from) c->src.context = to || scuda_copy3d_in_host(&c->dst) ? current : c->dst.context;
  if (to) c->dst.context = from || scuda_copy3d_in_host(&c->src) ? current : c->src.context;
}

static int32_t start_there(const struct scuda_copy3d *c, uint64_t stream, uint32_t how, int sync, int peer) {
  struct scuda_copy3d b = *c;
  int from_host = scuda_copy3d_in_host(&b.src), to_host = scuda_copy3d_in_host(&b.dst);
  int32_t r = scuda_usable(stream);
  if (r || !b.width || !b.height || !b.depth) return r;
  if (from_host && to_host) return within_host(&b, stream, how, sync);
  struct scuda_copy3d_end *host = from_host ? &b.src : &b.dst, *device = from_host ? &b.dst : &b.src;
  if (device->type == CU_MEMORYTYPE_ARRAY && (r = scuda_check(device->array, KIND_CUarray))) return r;
  if (host->lod || (b.height > 1 && (host->pitch < b.width || host->x > host->pitch - b.width)))
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t span = scuda_copy3d_straighten(host, &b);
  if (!span || ((span > UINT32_MAX || !scuda_copy3d_certain(device, &b)) && !scuda_host_reaches(host->host, span)))
    return CUDA_ERROR_INVALID_VALUE;
  if (device->type == CU_MEMORYTYPE_DEVICE && without_gaps(host, &b) && without_gaps(device, &b) && !device->lod) {
    uint64_t at = device->device + (device->z * device->height + device->y) * device->pitch + device->x;
    if (!device->device) return CUDA_ERROR_INVALID_VALUE;
    return from_host ? scuda_upload(at, (const void *)(uintptr_t)host->host, span, stream, how, sync)
                     : scuda_download((void *)(uintptr_t)host->host, at, span, stream, how, sync);
  }
  if (peer && SCUDA_UNLIKELY(scuda_several())) use_nearest(&b);
  if (!peer) b.src.context = b.dst.context = 0; /* reserved words of the plain form */
  else if (device->context && (r = scuda_check(device->context, KIND_CUcontext))) return r;
  host->context = 0;
  if (!host->pitch) host->pitch = b.width; /* of one row */
  if (!host->height) host->height = b.height;
  uint32_t flags = (sync ? SCUDA_COPY_SYNC : 0) | (peer ? WIRE_COPY_3D_PEER : 0);
  return from_host ? upload_copy3d(&b, span, stream, how, sync, flags) :
         download_copy3d(&b, span, stream, how, sync, flags);
}

int32_t scuda_copy3d_start(const struct scuda_copy3d *c, uint64_t stream, uint32_t how, int sync, int peer) {
  if (SCUDA_LIKELY(!scuda_several())) return start_there(c, stream, how, sync, peer);
  struct scuda_visit v;
  int32_t r;
  if (!peer && scuda_beside_3d(c, stream, how, &r)) return r;
  if ((r = visit(&v, c, stream))) return r;
  r = start_there(c, stream, how, sync, peer);
  scuda_visit_end(v);
  return r;
}

/* Before a copy on the device: 1 where that is done, with its result. Else a visit has begun if there are several
 * servers. */
static int elsewhere(struct scuda_visit *v, const struct scuda_copy3d *c, uint64_t stream, uint32_t ptds, int peer,
                     int32_t *r) {
  return SCUDA_UNLIKELY(scuda_several()) &&
         (scuda_between_3d(c, stream, ptds, peer, r) || (*r = visit(v, c, stream)) != CUDA_SUCCESS);
}

/* A copy between two places on the device: wire is the call for the server that has both. */
#define ON_DEVICE(c, stream, ptds, peer, wire) \
  struct scuda_visit v; \
  int32_t r; \
  if (elsewhere(&v, c, stream, ptds, peer, &r)) return r; \
  if (peer && SCUDA_UNLIKELY(scuda_several())) use_nearest(c); \
  r = wire; \
  if (SCUDA_UNLIKELY(scuda_several())) scuda_visit_end(v); \
  return r

static struct scuda_copy3d_end widen(const struct scuda_copy2d_end *s) {
  return (struct scuda_copy3d_end){
    .x = s->x, .y = s->y, .type = s->type, .host = s->host, .device = s->device, .array = s->array, .pitch = s->pitch
  };
}

#define COPY_2D(name, stream_decl, stream_arg, stream, sync) \
  int32_t scuda_hand_##name(const void *p stream_decl, uint32_t ptds) { \
    if (!p) return CUDA_ERROR_INVALID_VALUE; \
    struct scuda_copy2d c = *(const struct scuda_copy2d *)p; \
    struct scuda_copy3d copy3d = {widen(&c.src), widen(&c.dst), c.width, c.height, 1}; \
    scuda_copy3d_settle(&copy3d.src), scuda_copy3d_settle(&copy3d.dst); \
    c.src.type = copy3d.src.type, c.src.device = copy3d.src.device; \
    c.dst.type = copy3d.dst.type, c.dst.device = copy3d.dst.device; \
    if (scuda_copy3d_in_host(&copy3d.src) || scuda_copy3d_in_host(&copy3d.dst)) \
      return scuda_copy3d_start(&copy3d, stream, ptds, sync, 0); \
    ON_DEVICE(&copy3d, stream, ptds, 0, scuda_wire_##name(&c stream_arg, ptds)); \
  }
#define COPY_3D(name, stream_decl, stream_arg, stream, sync, peer) \
  int32_t scuda_hand_##name(const void *p stream_decl, uint32_t ptds) { \
    if (!p) return CUDA_ERROR_INVALID_VALUE; \
    struct scuda_copy3d c = *(const struct scuda_copy3d *)p; \
    scuda_copy3d_settle(&c.src), scuda_copy3d_settle(&c.dst); \
    if (scuda_copy3d_in_host(&c.src) || scuda_copy3d_in_host(&c.dst)) \
      return scuda_copy3d_start(&c, stream, ptds, sync, peer); \
    ON_DEVICE(&c, stream, ptds, peer, scuda_wire_##name(&c stream_arg, ptds)); \
  }
#define WITH(...) , __VA_ARGS__
COPY_2D(cuMemcpy2D_v2, , , SCUDA_LEGACY_STREAM, 1)
COPY_2D(cuMemcpy2DUnaligned_v2, , , SCUDA_LEGACY_STREAM, 1)
COPY_2D(cuMemcpy2DAsync_v2, WITH(uint64_t stream), WITH(stream), stream, 0)
COPY_3D(cuMemcpy3D_v2, , , SCUDA_LEGACY_STREAM, 1, 0)
COPY_3D(cuMemcpy3DPeer, , , SCUDA_LEGACY_STREAM, 1, 1)
COPY_3D(cuMemcpy3DAsync_v2, WITH(uint64_t stream), WITH(stream), stream, 0, 0)
COPY_3D(cuMemcpy3DPeerAsync, WITH(uint64_t stream), WITH(stream), stream, 0, 1)

/* ---- one row of an array and host memory ---- */

static int32_t row(struct scuda_copy3d *b, uint64_t array, uint64_t stream, uint32_t ptds, int sync) {
  if (!scuda_slot_of(array, KIND_CUarray)) return CUDA_ERROR_INVALID_VALUE;
  scuda_copy3d_settle(&b->src), scuda_copy3d_settle(&b->dst);
  if (scuda_copy3d_in_host(&b->src) || scuda_copy3d_in_host(&b->dst))
    return scuda_copy3d_start(b, stream, ptds, sync, 0);
  int32_t r = scuda_wire_cuMemcpy3DAsync_v2(b, stream, ptds);
  return r || !sync ? r : scuda_wire_cuStreamSynchronize(stream, ptds);
}

static int32_t array_upload(uint64_t array, uint64_t offset, const void *src, uint64_t bytes, uint64_t stream,
                            uint32_t ptds, int sync) {
  struct scuda_copy3d b = {.src = {.type = CU_MEMORYTYPE_HOST, .host = (uint64_t)(uintptr_t)src},
                        .dst = {.type = CU_MEMORYTYPE_ARRAY, .array = array, .x = offset},
                        .width = bytes, .height = 1, .depth = 1};
  return row(&b, array, stream, ptds, sync);
}

static int32_t array_download(void *dst, uint64_t array, uint64_t offset, uint64_t bytes, uint64_t stream,
                              uint32_t ptds, int sync) {
  struct scuda_copy3d b = {.src = {.type = CU_MEMORYTYPE_ARRAY, .array = array, .x = offset},
                        .dst = {.type = CU_MEMORYTYPE_HOST, .host = (uint64_t)(uintptr_t)dst},
                        .width = bytes, .height = 1, .depth = 1};
  return row(&b, array, stream, ptds, sync);
}

int32_t scuda_hand_cuMemcpyHtoA_v2(uint64_t array, uint64_t offset, const void *src, uint64_t bytes, uint32_t ptds) {
  return array_upload(array, offset, src, bytes, SCUDA_LEGACY_STREAM, ptds, 1);
}
int32_t scuda_hand_cuMemcpyHtoAAsync_v2(uint64_t array, uint64_t offset, const void *src, uint64_t bytes,
                                        uint64_t stream, uint32_t ptds) {
  return array_upload(array, offset, src, bytes, stream, ptds, 0);
}
int32_t scuda_hand_cuMemcpyAtoH_v2(void *dst, uint64_t array, uint64_t offset, uint64_t bytes, uint32_t ptds) {
  return array_download(dst, array, offset, bytes, SCUDA_LEGACY_STREAM, ptds, 1);
}
int32_t scuda_hand_cuMemcpyAtoHAsync_v2(void *dst, uint64_t array, uint64_t offset, uint64_t bytes, uint64_t stream,
                                        uint32_t ptds) {
  return array_download(dst, array, offset, bytes, stream, ptds, 0);
}

/* ---- batches: their copies may run in any order, so also one after the other ---- */

static int valid_order(int32_t order) {
  return order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

/* The legacy stream takes no batches; that is said before *failed is touched. */
static int32_t batch_stream(uint64_t stream, uint32_t ptds, uint64_t *failed) {
  if (stream == 1 || (!stream && !ptds)) return CUDA_ERROR_INVALID_VALUE;
  if (failed) *failed = UINT64_MAX;
  return scuda_usable_anywhere(stream);
}

static int32_t batch(const uint64_t *dsts, const uint64_t *srcs, const uint64_t *sizes, uint64_t count,
                     const struct CUmemcpyAttributes_st *attrs,
                     const uint64_t *first, uint64_t kinds, uint64_t *failed, uint64_t stream, uint32_t ptds) {
  int32_t r = batch_stream(stream, ptds, failed);
  if (r) return r;
  if (!dsts || !srcs || !sizes || !count || !attrs || !first || !kinds || kinds > count || first[0])
    return CUDA_ERROR_INVALID_VALUE;
  for (uint64_t i = 0; i < kinds; i++)
    if (!valid_order(attrs[i].srcAccessOrder) || attrs[i].flags & ~1u || (i && first[i] <= first[i - 1]) ||
        first[i] >= count)
      return CUDA_ERROR_INVALID_VALUE;
  for (uint64_t i = 0; i < count; i++) {
    r = dsts[i] && srcs[i] && sizes[i] ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (!r) r = scuda_copy(dsts[i], srcs[i], sizes[i], stream, ptds, 0);
    if (r) {
      if (failed) *failed = i;
      return r;
    }
  }
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuMemcpyBatchAsync(uint64_t *dsts, uint64_t *srcs, uint64_t *sizes, uint64_t count, void *attrs,
                                      uint64_t *first, uint64_t kinds,
                                      uint64_t *failed, uint64_t stream, uint32_t ptds) {
  return batch(dsts, srcs, sizes, count, attrs, first, kinds, failed, stream, ptds);
}
int32_t scuda_hand_cuMemcpyBatchAsync_v2(uint64_t *dsts, uint64_t *srcs, uint64_t *sizes, uint64_t count, void *attrs,
                                         uint64_t *first,
                                         uint64_t kinds, uint64_t stream, uint32_t ptds) {
  if (!stream) return CUDA_ERROR_INVALID_VALUE; /* no default stream, of whichever kind */
  return batch(dsts, srcs, sizes, count, attrs, first, kinds, NULL, stream, ptds);
}

/* Extents and row lengths are in elements or blocks of the array, else bytes. */
static int32_t element_of(const struct CUmemcpy3DOperand_st *o, uint32_t *element) {
  struct scuda_array extent;
  uint32_t size;
  if (o->type == CU_MEMCPY_OPERAND_TYPE_POINTER) return CUDA_SUCCESS;
  if (o->type != CU_MEMCPY_OPERAND_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = scuda_array_extent(o->op.array.array, &extent, &size);
  if (r) return r;
  /* video of several planes, which are arrays of their own (cuArrayGetPlane) */
  if (!size) return CUDA_ERROR_INVALID_VALUE;
  if (*element && *element != size) return CUDA_ERROR_INVALID_VALUE;
  *element = size;
  return CUDA_SUCCESS;
}

static int32_t operand_end(const struct CUmemcpy3DOperand_st *o, const struct CUextent3D_st *extent, uint32_t element,
                            struct scuda_copy3d_end *s) {
  if (o->type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    *s = (struct scuda_copy3d_end){
      .type = CU_MEMORYTYPE_ARRAY, .array = o->op.array.array, .x = o->op.array.offset.x * element,
      .y = o->op.array.offset.y, .z = o->op.array.offset.z
    };
    return CUDA_SUCCESS;
  }
  uint64_t row = o->op.ptr.rowLength ? o->op.ptr.rowLength : extent->width;
  uint64_t layer = o->op.ptr.layerHeight ? o->op.ptr.layerHeight : extent->height;
  if (!o->op.ptr.ptr || row < extent->width || layer < extent->height || row > UINT64_MAX / element)
    return CUDA_ERROR_INVALID_VALUE;
  *s = (struct scuda_copy3d_end){
    .type = CU_MEMORYTYPE_UNIFIED, .device = o->op.ptr.ptr, .pitch = row * element, .height = layer
  };
  return CUDA_SUCCESS;
}

static int32_t batch_copy(const struct CUDA_MEMCPY3D_BATCH_OP_st *op, uint64_t stream, uint32_t ptds) {
  uint32_t element = 0;
  struct scuda_copy3d b = {0};
  const struct CUextent3D_st *e = &op->extent;
  int32_t r = valid_order(op->srcAccessOrder) && !(op->flags & ~1u) && e->width && e->height && e->depth ?
              CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (!r) r = element_of(&op->src, &element);
  if (!r) r = element_of(&op->dst, &element);
  if (!element) element = 1;
  if (!r) r = operand_end(&op->src, e, element, &b.src);
  if (!r) r = operand_end(&op->dst, e, element, &b.dst);
  if (r) return r;
  if (e->width > UINT64_MAX / element) return CUDA_ERROR_INVALID_VALUE;
  b.width = e->width * element;
  b.height = e->height;
  b.depth = e->depth;
  return scuda_hand_cuMemcpy3DAsync_v2(&b, stream, ptds);
}

static int32_t batch_3d(uint64_t count, const struct CUDA_MEMCPY3D_BATCH_OP_st *ops, uint64_t *failed, uint64_t flags,
                        uint64_t stream, uint32_t ptds) {
  int32_t r = batch_stream(stream, ptds, failed);
  if (r) return r;
  if (!count || !ops || flags) return CUDA_ERROR_INVALID_VALUE;
  for (uint64_t i = 0; i < count; i++) {
    if ((r = batch_copy(&ops[i], stream, ptds))) {
      if (failed) *failed = i;
      return r;
    }
  }
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuMemcpy3DBatchAsync(uint64_t count, void *ops, uint64_t *failed, uint64_t flags, uint64_t stream,
                                        uint32_t ptds) {
  return batch_3d(count, ops, failed, flags, stream, ptds);
}
int32_t scuda_hand_cuMemcpy3DBatchAsync_v2(uint64_t count, void *ops, uint64_t flags, uint64_t stream, uint32_t ptds) {
  if (!stream) return CUDA_ERROR_INVALID_VALUE;
  return batch_3d(count, ops, NULL, flags, stream, ptds);
}
