/* Copies between the program's memory and the GPU. Small uploads travel inside their command, big ones as bulk data
 * straight from the source; downloads are written to their destination by the core. */
#include "base/server.h"
#include "calls/calls.h"

#include <stdlib.h>

/* ---- a copy as a 3-D copy of one row ---- */

static struct scuda_copy3d_end in_host(const void *p) {
  return (struct scuda_copy3d_end){.type = CU_MEMORYTYPE_HOST, .host = (uint64_t)(uintptr_t)p};
}
static struct scuda_copy3d_end on_device(uint64_t p) {
  return (struct scuda_copy3d_end){.type = CU_MEMORYTYPE_DEVICE, .device = p};
}
static struct scuda_copy3d line(struct scuda_copy3d_end src, struct scuda_copy3d_end dst, uint64_t bytes) {
  src.pitch = dst.pitch = bytes;
  return (struct scuda_copy3d){src, dst, bytes, 1, 1};
}

/* ---- several servers ---- */

/* A copy is for the server that has its stream and its memory of the device; 0, or NOT_SUPPORTED. */
static int32_t visit(struct scuda_visit *v, const struct scuda_range *to, const struct scuda_range *from,
                     uint64_t stream) {
  struct scuda_named n = {0};
  scuda_name_object(&n, stream);
  if (to) scuda_name_range(&n, to);
  if (from) scuda_name_range(&n, from);
  return scuda_visit_named(v, &n, "a copy");
}

static int beside(struct scuda_copy3d_end src, struct scuda_copy3d_end dst, uint64_t bytes, uint64_t stream,
                  uint32_t ptds, int32_t *r) {
  const struct scuda_copy3d c = line(src, dst, bytes);
  if ((!src.host && !src.device) || (!dst.host && !dst.device)) return 0;
  return scuda_beside_3d(&c, stream, ptds, r);
}

/* ---- uploads ---- */

static int32_t pull(uint64_t dst, const void *src, uint64_t bytes, uint64_t stream, uint32_t ptds, int sync,
                    int captured) {
  struct wire_copy_h2d_pull m = {
    dst, bytes, stream, scuda_core.source(scuda_server(), src, bytes, captured), sync ? SCUDA_COPY_SYNC : 0
  };
  if (captured) scuda_graph_host(m.source, 1, (void *)(uintptr_t)src);
  int32_t r = scuda_simple(OP_COPY_H2D_PULL, ptds | SCUDA_WORKS, &m, sizeof m);
  if (r || !sync) return r;
  return scuda_wire_cuStreamSynchronize(stream, ptds); /* the source may change after the call */
}

/* What the front refuses by itself, a context that has ended by an error refuses with that error, as its driver
 * would. */
static int32_t invalid(void) {
  const struct scuda_slot *c = scuda_slot(scuda_header_context(scuda_thread()));
  return c && c->sticky ? c->sticky : CUDA_ERROR_INVALID_VALUE;
}

/* to and from: what the addresses are, as the GPU's and as the host's. */
static int32_t upload_there(const struct scuda_range *to, const struct scuda_range *from, uint64_t dst,
                            const void *src, uint64_t bytes, uint64_t stream, uint32_t ptds, uint32_t flags) {
  int sync = flags & SCUDA_COPY_SYNC;
  int32_t r = scuda_usable(stream);
  if (r) return r;
  if (!bytes) return CUDA_SUCCESS;
  if (!src || !dst) return invalid();
  int pinned = scuda_range_holds(from, (uint64_t)(uintptr_t)src, bytes);
  int captured = !sync && scuda_stream_capturing(stream, ptds);
  if (captured && scuda_captures_body(stream, ptds))
    return scuda_body_copy(line(in_host(src), on_device(dst), bytes), stream, ptds, I_cuMemcpyHtoDAsync_v2);
  if (captured || (pinned && scuda_core.overlaps(src, bytes) == 1))
    return pull(dst, src, bytes, stream, ptds, sync, captured);
  int known = scuda_range_covers(to, dst, bytes);
  if (!known && !scuda_host_reaches((uint64_t)(uintptr_t)src, bytes)) return invalid();
  return scuda_upload_bytes(dst, src, bytes, stream, ptds, flags, known);
}

/* What is uploaded need not be what is there now. */
static int changes_yet(const struct scuda_range *from, const void *src, uint64_t bytes, uint64_t stream, uint32_t ptds,
                       uint32_t flags) {
  return (!(flags & SCUDA_COPY_SYNC) && scuda_stream_capturing(stream, ptds)) ||
         (scuda_range_holds(from, (uint64_t)(uintptr_t)src, bytes) && scuda_core.overlaps(src, bytes) == 1);
}

static int32_t upload(const struct scuda_range *to, const struct scuda_range *from, uint64_t dst, const void *src,
                      uint64_t bytes, uint64_t stream, uint32_t ptds, uint32_t flags) {
  if (SCUDA_LIKELY(!scuda_several())) return upload_there(to, from, dst, src, bytes, stream, ptds, flags);
  struct scuda_visit v;
  int32_t r;
  if (beside(in_host(src), on_device(dst), bytes, stream, ptds, &r)) return r;
  if ((r = visit(&v, to, NULL, stream))) return r;
  r = upload_there(to, from, dst, src, bytes, stream, ptds, flags);
  if (!r && bytes) scuda_managed_uploads(dst, src, bytes, changes_yet(from, src, bytes, stream, ptds, flags));
  scuda_visit_end(v);
  return r;
}

int32_t scuda_upload(uint64_t dst, const void *src, uint64_t bytes, uint64_t stream, uint32_t ptds, uint32_t flags) {
  const struct scuda_range to = scuda_range_of(dst, SCUDA_AS_GPU);
  const struct scuda_range from = scuda_range_of((uint64_t)(uintptr_t)src, SCUDA_AS_HOST);
  return upload(&to, &from, dst, src, bytes, stream, ptds, flags);
}

/* ---- downloads ---- */

static int32_t download_there(const struct scuda_range *to, const struct scuda_range *from, void *dst, uint64_t src,
                              uint64_t bytes, uint64_t stream, uint32_t ptds, int sync) {
  int32_t r = scuda_usable(stream);
  if (r) return r;
  if (!bytes) return CUDA_SUCCESS;
  if (!dst || !src) return invalid();
  int known = scuda_range_covers(from, src, bytes);
  if (!known && !scuda_host_reaches((uint64_t)(uintptr_t)dst, bytes)) return invalid();
  uint32_t thread = scuda_thread_word();
  int captured = !sync && scuda_stream_capturing(stream, ptds);
  if (captured && scuda_captures_body(stream, ptds))
    return scuda_body_copy(line(on_device(src), in_host(dst), bytes), stream, ptds, I_cuMemcpyDtoHAsync_v2);
  int pinned = scuda_range_holds(to, (uint64_t)(uintptr_t)dst, bytes);
  int later = captured || (!sync && !scuda_blocking() && !scuda_capture_doubt(stream, ptds) && known && pinned);
  struct wire_copy_d2h m = {
    src, bytes, stream, scuda_core.transfer(dst, bytes, thread, captured ? 2 : later ? 1 : 0),
        sync ? SCUDA_COPY_SYNC : later ? SCUDA_COPY_DONE : 0
  };
  if (captured) scuda_graph_host(m.transfer, 0, dst);
  r = scuda_simple(OP_COPY_D2H, ptds | SCUDA_WORKS | (later ? 0 : SCUDA_ANSWER), &m, sizeof m);
  if (!later && !r) scuda_stream_idle(stream, ptds);
  if (!later && !r) scuda_mapped_download(scuda_stream_key(stream, ptds));
  return r;
}

static int32_t download(const struct scuda_range *to, const struct scuda_range *from, void *dst, uint64_t src,
                        uint64_t bytes, uint64_t stream, uint32_t ptds, int sync) {
  if (SCUDA_LIKELY(!scuda_several())) return download_there(to, from, dst, src, bytes, stream, ptds, sync);
  struct scuda_visit v;
  int32_t r;
  if (beside(on_device(src), in_host(dst), bytes, stream, ptds, &r)) return r;
  if ((r = visit(&v, NULL, from, stream))) return r;
  r = download_there(to, from, dst, src, bytes, stream, ptds, sync);
  scuda_visit_end(v);
  return r;
}

int32_t scuda_download(void *dst, uint64_t src, uint64_t bytes, uint64_t stream, uint32_t ptds, int sync) {
  const struct scuda_range to = scuda_range_of((uint64_t)(uintptr_t)dst, SCUDA_AS_HOST);
  const struct scuda_range from = scuda_range_of(src, SCUDA_AS_GPU);
  return download(&to, &from, dst, src, bytes, stream, ptds, sync);
}

/* ---- the calls ---- */

/* Managed memory is the device's in every copy, which has taken it by now: the program's next access fetches what the
 * copy brought. */
static int32_t host_to_device(uint64_t dst, const void *src, uint64_t bytes, uint64_t stream, uint32_t ptds, int sync) {
  const uint64_t p = (uint64_t)(uintptr_t)src;
  const struct scuda_range to = scuda_range_of(dst, SCUDA_AS_GPU);
  const struct scuda_range from = scuda_range_of(p, SCUDA_AS_MANAGED | SCUDA_AS_HOST);
  if (SCUDA_UNLIKELY(scuda_range_is_managed(&to) || scuda_range_is_managed(&from)))
    return scuda_copy(dst, p, bytes, stream, ptds, sync);
  return upload(&to, &from, dst, src, bytes, stream, ptds, (uint32_t)sync);
}
static int32_t device_to_host(void *dst, uint64_t src, uint64_t bytes, uint64_t stream, uint32_t ptds, int sync) {
  const uint64_t p = (uint64_t)(uintptr_t)dst;
  const struct scuda_range to = scuda_range_of(p, SCUDA_AS_MANAGED | SCUDA_AS_HOST);
  const struct scuda_range from = scuda_range_of(src, SCUDA_AS_GPU);
  if (SCUDA_UNLIKELY(scuda_range_is_managed(&to) || scuda_range_is_managed(&from)))
    return scuda_copy(p, src, bytes, stream, ptds, sync);
  return download(&to, &from, dst, src, bytes, stream, ptds, sync);
}

int32_t scuda_hand_cuMemcpyHtoD_v2(uint64_t dst, const void *src, uint64_t bytes, uint32_t ptds) {
  return host_to_device(dst, src, bytes, SCUDA_LEGACY_STREAM, ptds, 1);
}
int32_t scuda_hand_cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, uint64_t bytes, uint64_t stream, uint32_t ptds) {
  return host_to_device(dst, src, bytes, stream, ptds, 0);
}
int32_t scuda_hand_cuMemcpyDtoH_v2(void *dst, uint64_t src, uint64_t bytes, uint32_t ptds) {
  return device_to_host(dst, src, bytes, SCUDA_LEGACY_STREAM, ptds, 1);
}
int32_t scuda_hand_cuMemcpyDtoHAsync_v2(void *dst, uint64_t src, uint64_t bytes, uint64_t stream, uint32_t ptds) {
  return device_to_host(dst, src, bytes, stream, ptds, 0);
}

/* The unified forms find out what each address is. */
int32_t scuda_copy(uint64_t dst, uint64_t src, uint64_t bytes, uint64_t stream, uint32_t ptds, int sync) {
  if (!bytes) return scuda_usable_anywhere(stream);
  if (!dst || !src) return invalid();
  const struct scuda_range to = scuda_range_of(dst, SCUDA_AS_ANY), from = scuda_range_of(src, SCUDA_AS_ANY);
  int to_host = scuda_range_is_host(&to, dst), from_host = scuda_range_is_host(&from, src);
  if (from_host && !to_host)
    return upload(&to, &from, dst, (const void *)(uintptr_t)src, bytes, stream, ptds, (uint32_t)sync);
  if (to_host && !from_host) return download(&to, &from, (void *)(uintptr_t)dst, src, bytes, stream, ptds, sync);
  if (!to_host) {
    int32_t r;
    if (SCUDA_UNLIKELY(scuda_several()) && scuda_between(dst, src, bytes, stream, ptds, &r)) return r;
    scuda_range_used(&to), scuda_range_used(&from);
    uint32_t how = ptds |
                   (scuda_range_holds(&to, dst, bytes) && scuda_range_holds(&from, src, bytes) ? 0 : SCUDA_ANSWER);
    if (!sync) return scuda_wire_cuMemcpyDtoDAsync_v2(dst, src, bytes, stream, how);
    r = scuda_wire_cuMemcpyDtoD_v2(dst, src, bytes, how);
    /* the program may look at once */
    return r || !scuda_range_is_managed(&to) ? r : scuda_wire_cuStreamSynchronize(stream, ptds);
  }
  struct scuda_copy3d b = {
    .src = {.type = CU_MEMORYTYPE_HOST, .host = src}, .dst = {.type = CU_MEMORYTYPE_HOST, .host = dst}, bytes, 1, 1
  };
  return scuda_copy3d_start(&b, stream, ptds, sync, 0);
}
int32_t scuda_hand_cuMemcpy(uint64_t dst, uint64_t src, uint64_t bytes, uint32_t ptds) {
  return scuda_copy(dst, src, bytes, SCUDA_LEGACY_STREAM, ptds, 1);
}
int32_t scuda_hand_cuMemcpyAsync(uint64_t dst, uint64_t src, uint64_t bytes, uint64_t stream, uint32_t ptds) {
  return scuda_copy(dst, src, bytes, stream, ptds, 0);
}
