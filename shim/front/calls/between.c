/* Copies from memory of one server to memory of another, where a program has several. Servers do not know each other:
 * the bytes come here and go on, piece by piece, while the program's thread waits. So what the program gives the stream
 * afterwards finds them there. */
#include "base/server.h"
#include "calls/calls.h"

#include <stdlib.h>

enum { PIECE = 16 << 20 };

static int32_t server_of(const struct scuda_range *r, uint64_t p, uint64_t bytes) {
  if (!scuda_range_is_device(r) || !scuda_device_ok(r->device) || !scuda_range_covers(r, p, bytes)) return -1;
  struct scuda_named n = {0};
  scuda_name_range(&n, r);
  return (int32_t)n.server;
}

static int32_t wait_for(const struct scuda_named *n, uint64_t stream, uint32_t ptds) {
  struct scuda_visit v;
  int32_t r = scuda_visit_named(&v, n, "a copy");
  if (r) return r;
  r = scuda_wire_cuStreamSynchronize(stream, ptds);
  scuda_visit_end(v);
  return r;
}

static int32_t by_pieces(uint64_t dst, uint64_t src, uint64_t bytes, uint64_t in, uint64_t out, uint32_t ptds) {
  int32_t r = CUDA_SUCCESS;
  char *piece = malloc(bytes < PIECE ? bytes : PIECE);
  if (!piece) return CUDA_ERROR_OUT_OF_MEMORY;
  for (uint64_t at = 0, n; !r && at < bytes; at += n) {
    n = bytes - at < PIECE ? bytes - at : PIECE;
    r = scuda_download(piece, src + at, n, in, ptds, SCUDA_COPY_SYNC);
    if (!r) r = scuda_upload(dst + at, piece, n, out, ptds, SCUDA_COPY_SYNC);
  }
  free(piece);
  return r;
}

int scuda_between(uint64_t dst, uint64_t src, uint64_t bytes, uint64_t stream, uint32_t ptds, int32_t *r) {
  const struct scuda_range to = scuda_range_of(dst, SCUDA_AS_GPU), from = scuda_range_of(src, SCUDA_AS_GPU);
  const int32_t there = server_of(&to, dst, bytes), here = server_of(&from, src, bytes);
  if (there < 0 || here < 0 || there == here) return 0;
  if ((*r = scuda_check(stream, KIND_CUstream))) return 1;
  if (!scuda_header_context(scuda_thread())) return *r = scuda_no_context(), 1;
  if (scuda_stream_capturing(stream, ptds)) return 0;
  /* A stream is of one server. What is done at the other goes into the thread's default stream there, which waits for
   * no stream of the program's but the legacy one. Default streams are of both. */
  const uint64_t thread = 2;
  struct scuda_named of = {0}, destination = {0};
  scuda_name_object(&of, stream);
  scuda_name_range(&destination, &to);
  const uint64_t in = !of.known || of.server == (uint32_t)here ? stream : thread;
  const uint64_t out = !of.known || of.server == (uint32_t)there ? stream : thread;
  *r = in == stream ? CUDA_SUCCESS : wait_for(&of, stream, ptds); /* else the download waits */
  if (!*r) *r = by_pieces(dst, src, bytes, in, out, ptds);
  if (!*r) *r = wait_for(&destination, out, ptds);
  return 1;
}
