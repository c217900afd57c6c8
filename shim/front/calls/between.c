/* Copies from memory of one server to memory of another, where a program has several, and copies of one server in a
 * stream of another. What goes between two goes from server to server where these can connect to each other. Else it
 * comes here and goes on, piece by piece. The program's thread waits for all of them, so that what the program gives
 * the stream afterwards finds the bytes there. */
#include "base/progress.h"
#include "base/server.h"
#include "calls/calls.h"
#include "uvm/managed.h"

#include <stdlib.h>

enum { PIECE = 16 << 20 };

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Waits for a stream, unless it is known to have no work. */
static int32_t settle(const struct scuda_named *n, uint64_t stream, uint32_t ptds) {
  struct scuda_visit v;
  int legacy = 0;
  int32_t r = scuda_visit_named(&v, n, "a copy");
  if (r) return r;
  struct scuda_track *k = scuda_stream_track(stream, ptds, &legacy);
  if (!k || !scuda_stream_done(k, legacy)) {
    r = scuda_wire_cuStreamSynchronize(stream, ptds | SCUDA_ASKS);
    if (k) scuda_progress_learn(k, r, 0);
  }
  scuda_visit_end(v);
  return r;
}

/* The rows of a pitched end are told as the driver understands them. A piece of one row would not show what is wrong
 * with them. */
static int32_t check_rows(struct scuda_copy3d_end *s, const struct scuda_copy3d *c) {
  if (s->type == CU_MEMORYTYPE_ARRAY) return CUDA_SUCCESS;
  if (!s->pitch) s->pitch = s->x + c->width;
  if (!s->height) s->height = s->y + c->height;
  const int wide = s->pitch < c->width || s->x > s->pitch - c->width;
  const int high = s->height < c->height || s->y > s->height - c->height;
  return ((c->height > 1 || c->depth > 1) && wide) || (c->depth > 1 && high) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static void advance(struct scuda_copy3d_end *s, uint64_t x, uint64_t y, uint64_t z) { s->x += x, s->y += y, s->z += z; }

/* A piece is slices, rows of a slice, or bytes of a row. Without `writes` it goes nowhere. */
static int32_t by_pieces(const struct scuda_copy3d *c, uint64_t in, uint64_t out, uint32_t ptds, int writes) {
  const uint64_t width = least(c->width, PIECE);
  const uint64_t height = width < c->width ? 1 : least(c->height, PIECE / width);
  const uint64_t depth = height < c->height ? 1 : least(c->depth, PIECE / (width * height));
  int32_t r = CUDA_SUCCESS;
  void *piece = malloc(width * height * depth);
  if (!piece) return CUDA_ERROR_OUT_OF_MEMORY;
  for (uint64_t z = 0; !r && z < c->depth; z += depth)
    for (uint64_t y = 0; !r && y < c->height; y += height)
      for (uint64_t x = 0; !r && x < c->width; x += width) {
        struct scuda_copy3d down = *c;
        down.width = least(width, c->width - x);
        down.height = least(height, c->height - y);
        down.depth = least(depth, c->depth - z);
        struct scuda_copy3d up = down;
        down.dst = up.src = (struct scuda_copy3d_end){
          .type = CU_MEMORYTYPE_HOST, .host = (uint64_t)(uintptr_t)piece, .pitch = down.width, .height = down.height
        };
        advance(&down.src, x, y, z), advance(&up.dst, x, y, z);
        r = scuda_copy3d_start(&down, in, ptds, 1, 0);
        if (!r && writes) r = scuda_copy3d_start(&up, out, ptds, 1, 0);
      }
  free(piece);
  return r;
}

/* ---- from server to server ---- */

static scuda_lock_t placing; /* two servers get their parts of several copies in one order */
static uint64_t copies;      /* placing guards it */

_Static_assert(sizeof(struct wire_peer_send) == sizeof(struct wire_peer_receive), "the two parts are told alike");

/* A server's part of a copy. Nobody waits for it. */
static int32_t place(uint32_t op, const struct scuda_named *at, const struct scuda_copy3d *c, uint32_t ptds,
                     struct wire_peer_send m) {
  struct scuda_visit v;
  struct scuda_cmd cmd;
  int32_t r = scuda_visit_named(&v, at, "a copy");
  if (r) return r;
  memcpy(m.copy, c, sizeof *c);
  if (!(r = scuda_begin(&cmd, op, ptds, sizeof m))) {
    memcpy(cmd.payload, &m, sizeof m);
    r = scuda_send(&cmd);
  }
  scuda_visit_end(v);
  return r;
}

/* Waits until the GPU has a copy, and says how many bytes of it have come. */
static int32_t await_peer(const struct scuda_named *at, const struct wire_peer_await *m, uint64_t *bytes) {
  struct wire_peer_arrived arrived = {0};
  struct scuda_visit v;
  struct scuda_cmd cmd;
  int32_t r = scuda_visit_named(&v, at, "a copy");
  if (r) return r;
  if (!(r = scuda_begin(&cmd, OP_PEER_AWAIT, SCUDA_ANSWER, sizeof *m))) {
    memcpy(cmd.payload, m, sizeof *m);
    r = scuda_call(&cmd, &arrived, sizeof arrived, NULL);
  }
  scuda_visit_end(v);
  *bytes = arrived.bytes;
  return r;
}

/* Lines of the GPUs' memory are the simplest copies that there are. Says whether it is one. */
static int make_line(struct scuda_copy3d *c, uint64_t bytes) {
  struct scuda_copy3d_end src = c->src, dst = c->dst;
  if (src.type != CU_MEMORYTYPE_DEVICE || dst.type != CU_MEMORYTYPE_DEVICE || src.lod || dst.lod) return 0;
  if (scuda_copy3d_straighten(&src, c) != bytes || scuda_copy3d_straighten(&dst, c) != bytes) return 0;
  c->src = (struct scuda_copy3d_end){.type = CU_MEMORYTYPE_DEVICE, .device = src.host, .pitch = bytes, .height = 1};
  c->dst = (struct scuda_copy3d_end){.type = CU_MEMORYTYPE_DEVICE, .device = dst.host, .pitch = bytes, .height = 1};
  c->width = bytes;
  c->height = c->depth = 1;
  return 1;
}

/* 1: it was made, with that result. 0: the servers do not connect to each other, or have lost each other. The work
 * before the copy ends first, at both ends: what goes between the servers then waits for nothing but itself. */
static int by_servers(struct scuda_copy3d c, const struct scuda_named *destination, const struct scuda_named *source,
                      uint64_t in, uint64_t out, uint32_t ptds, int32_t *r) {
  const uint64_t bytes = c.width * c.height * c.depth;
  struct wire_peer_send m = {.epoch = scuda_core.peer(source->server, destination->server)};
  uint64_t come;
  if (!m.epoch) return 0;
  if ((*r = settle(source, in, ptds)) || (*r = settle(destination, out, ptds))) return 1;
  (void)make_line(&c, bytes);
  scuda_managed_carries(source->server, destination->server);
  scuda_lock(&placing);
  m.number = ++copies;
  m.stream = in, m.peer = destination->server;
  *r = place(OP_PEER_SEND, source, &c, ptds, m);
  m.stream = out, m.peer = source->server;
  if (!*r) *r = place(OP_PEER_RECEIVE, destination, &c, ptds, m);
  scuda_unlock(&placing);
  const struct wire_peer_await await = {.number = m.number, .peer = m.peer};
  if (!*r) *r = await_peer(destination, &await, &come);
  if (*r || come == bytes) return 1;
  scuda_core.peer_lost(source->server, destination->server, m.epoch);
  return 0;
}

/* ---- by way of the program ---- */

/* Before anything is written, both ends have to be what the copy takes them for. Where that is not known here, an end
 * is read: its driver says what it would say to the copy. */
static int32_t check_end(const struct scuda_copy3d_end *s, const struct scuda_copy3d *c, uint64_t stream,
                         uint32_t ptds) {
  struct scuda_array extent;
  uint32_t element;
  if (s->type == CU_MEMORYTYPE_ARRAY) (void)scuda_array_extent(s->array, &extent, &element);
  if (scuda_copy3d_certain(s, c)) return CUDA_SUCCESS;
  struct scuda_copy3d read = *c;
  read.src = *s;
  return by_pieces(&read, stream, 0, ptds, 0);
}

static int is_empty(const struct scuda_copy3d *c) { return !c->width || !c->height || !c->depth; }

/* What is certainly no end of a copy. */
static int32_t check_kind(const struct scuda_copy3d_end *s, const struct scuda_copy3d *c) {
  if (s->type == CU_MEMORYTYPE_ARRAY) return scuda_check(s->array, KIND_CUarray);
  return s->type == CU_MEMORYTYPE_DEVICE && (s->device || is_empty(c)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static int32_t check_context(uint64_t context) { return context ? scuda_check(context, KIND_CUcontext) : CUDA_SUCCESS; }
static int32_t check_contexts(const struct scuda_copy3d *c) {
  const int32_t r = check_context(c->dst.context);
  return r ? r : check_context(c->src.context);
}

/* A stream is of one server. What is done at the other goes into the thread's default stream there, which waits for no
 * stream of the program's but the legacy one. Default streams are of both. */
static int32_t go_between(struct scuda_copy3d *c, const struct scuda_named *destination,
                          const struct scuda_named *source, uint64_t stream, uint32_t ptds) {
  const uint64_t thread = 2;
  struct scuda_named of = {0};
  scuda_name_object(&of, stream);
  const uint64_t in = !of.known || of.server == source->server ? stream : thread;
  const uint64_t out = !of.known || of.server == destination->server ? stream : thread;
  int32_t r = check_rows(&c->dst, c);
  if (!r) r = check_rows(&c->src, c);
  if (!r) r = check_end(&c->dst, c, out, ptds);
  if (!r) r = check_end(&c->src, c, in, ptds);
  if (!r && in != stream) r = settle(&of, stream, ptds); /* else the download waits */
  if (r || by_servers(*c, destination, source, in, out, ptds, &r)) return r;
  r = by_pieces(c, in, out, ptds, 1);
  return r ? r : settle(destination, out, ptds);
}

/* A capture of another stream forbids waits, but no work for a stream. */
static struct scuda_self self_begin(uint64_t stream) {
  const struct scuda_self self = scuda_self_begin(scuda_thread()->current);
  if (stream < 2 || !atomic_load(&scuda_captures)) scuda_thread()->own = self.own;
  return self;
}

/* What a copy does within the server that has its memory, in the thread's default stream there. */
static int32_t carry_out(const struct scuda_copy3d *copy3d, const struct scuda_named *memory, uint32_t ptds,
                         int on_device) {
  const uint64_t thread = 2;
  if (!on_device) return scuda_copy3d_start(copy3d, thread, ptds, 1, 0);
  struct scuda_copy3d c = *copy3d;
  struct scuda_visit v;
  c.src.context = c.dst.context = 0; /* reserved words of the plain form */
  int32_t r = check_rows(&c.dst, &c);
  if (!r) r = check_rows(&c.src, &c);
  if (!r) r = scuda_visit_named(&v, memory, "a copy");
  if (r) return r;
  const int straight = make_line(&c, c.width * c.height * c.depth);
  if (straight) r = scuda_wire_cuMemcpyDtoDAsync_v2(c.dst.device, c.src.device, c.width, thread, ptds | SCUDA_ANSWER);
  else r = scuda_wire_cuMemcpy3DAsync_v2(&c, thread, ptds | SCUDA_ANSWER);
  scuda_visit_end(v);
  return r;
}

/* A copy that is for one server, in a stream of another: 1 with its result, 0 where it is not one. */
static int beside(const struct scuda_copy3d *c, const struct scuda_named *memory, uint64_t stream, uint32_t ptds,
                  int on_device, int32_t *r) {
  const uint64_t thread = 2;
  struct scuda_named of = {0};
  scuda_name_object(&of, stream);
  if (!of.known || !memory->known || memory->different || of.server == memory->server || is_empty(c)) return 0;
  if ((*r = scuda_usable_anywhere(stream))) return 1;
  if (scuda_stream_capturing(stream, ptds)) return 0;
  if (on_device && (*r = check_contexts(c))) return 1;
  const struct scuda_self self = self_begin(stream);
  *r = settle(&of, stream, ptds);
  if (!*r) *r = carry_out(c, memory, ptds, on_device);
  if (!*r) *r = settle(memory, thread, ptds);
  scuda_self_end(self);
  return 1;
}

int scuda_beside_3d(const struct scuda_copy3d *c, uint64_t stream, uint32_t ptds, int32_t *r) {
  struct scuda_named memory = {0};
  scuda_copy3d_name(&memory, &c->src), scuda_copy3d_name(&memory, &c->dst);
  return beside(c, &memory, stream, ptds, 0, r);
}

int scuda_between_3d(const struct scuda_copy3d *copy3d, uint64_t stream, uint32_t ptds, int peer, int32_t *r) {
  struct scuda_copy3d c = *copy3d;
  struct scuda_named source = {0}, destination = {0};
  if ((*r = check_kind(&c.dst, &c)) || (*r = check_kind(&c.src, &c))) return 1;
  scuda_copy3d_name(&source, &c.src), scuda_copy3d_name(&destination, &c.dst);
  if (!peer) c.src.context = c.dst.context = 0; /* reserved words */
  if (!source.known || !destination.known || source.server == destination.server)
    return beside(&c, source.known ? &source : &destination, stream, ptds, 1, r);
  if ((*r = scuda_usable_anywhere(stream))) return 1;
  if (scuda_stream_capturing(stream, ptds)) return 0;
  if ((*r = check_contexts(&c)) || is_empty(&c)) return 1;
  c.src.context = c.dst.context = 0; /* addresses and arrays say in which contexts they are */
  const struct scuda_self self = self_begin(stream);
  *r = go_between(&c, &destination, &source, stream, ptds);
  scuda_self_end(self);
  return 1;
}

static struct scuda_copy3d_end linear(uint64_t p) {
  return (struct scuda_copy3d_end){.type = CU_MEMORYTYPE_DEVICE, .device = p};
}
static struct scuda_copy3d_end in_array(uint64_t array, uint64_t offset) {
  return (struct scuda_copy3d_end){.type = CU_MEMORYTYPE_ARRAY, .array = array, .x = offset};
}
static int row_between(struct scuda_copy3d_end dst, struct scuda_copy3d_end src, uint64_t bytes, uint64_t stream,
                       uint32_t ptds, int32_t *r) {
  const struct scuda_copy3d c = {src, dst, bytes, 1, 1};
  return SCUDA_UNLIKELY(scuda_several()) && scuda_between_3d(&c, stream, ptds, 0, r);
}

int scuda_between(uint64_t dst, uint64_t src, uint64_t bytes, uint64_t stream, uint32_t ptds, int32_t *r) {
  return row_between(linear(dst), linear(src), bytes, stream, ptds, r);
}

/* What there is to say of no array, the driver says. */
int scuda_pre_cuMemcpyDtoA_v2(uint64_t array, uint64_t offset, uint64_t src, uint64_t bytes, uint32_t ptds,
                              int32_t *r) {
  return array && row_between(in_array(array, offset), linear(src), bytes, SCUDA_LEGACY_STREAM, ptds, r);
}
int scuda_pre_cuMemcpyAtoD_v2(uint64_t dst, uint64_t array, uint64_t offset, uint64_t bytes, uint32_t ptds,
                              int32_t *r) {
  return array && row_between(linear(dst), in_array(array, offset), bytes, SCUDA_LEGACY_STREAM, ptds, r);
}
int scuda_pre_cuMemcpyAtoA_v2(uint64_t dst, uint64_t to, uint64_t src, uint64_t from, uint64_t bytes, uint32_t ptds,
                              int32_t *r) {
  return dst && src && row_between(in_array(dst, to), in_array(src, from), bytes, SCUDA_LEGACY_STREAM, ptds, r);
}
