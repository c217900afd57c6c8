/* Bytes of this process on their way to the GPU: small ones travel inside their command, big ones as bulk data straight
 * from the source. */
#include "base/base.h"

int32_t scuda_upload_bytes(uint64_t dst, const void *src, uint64_t bytes, uint64_t stream, uint32_t ptds,
                           uint32_t flags, int on_device) {
  struct wire_copy_h2d m = {dst, bytes, stream, flags, 0};
  int bulk = bytes > SCUDA_INLINE_MAX, sync = flags & SCUDA_COPY_SYNC;
  int32_t r;
  if (!bulk) scuda_callbacks.upload(src, bytes);
  if (sync) scuda_callbacks.waits(); /* a kernel that the copy is behind may wait for what goes ahead */
  if (bulk && scuda_capture_doubt(stream, ptds)) { /* a bulk command has no answer */
    if ((r = scuda_upload_bytes(dst, src, SCUDA_INLINE_MAX, stream, ptds, flags, on_device))) return r;
    m.dst += SCUDA_INLINE_MAX;
    src = (const char *)src + SCUDA_INLINE_MAX;
    m.bytes = bytes -= SCUDA_INLINE_MAX;
    bulk = bytes > SCUDA_INLINE_MAX;
  }
  struct scuda_cmd c;
  r = scuda_begin(&c, OP_COPY_H2D, ptds | SCUDA_WORKS | (bulk ? SCUDA_BULK : on_device ? 0 : SCUDA_ANSWER),
                  sizeof m + (bulk ? 8 : bytes));
  if (r) return r;
  memcpy(c.payload, &m, sizeof m);
  if (bulk) scuda_put64(c.payload + sizeof m, bytes);
  else scuda_put_struct(c.payload + sizeof m, src, bytes);
  r = bulk ? scuda_send_bulk(&c, src, bytes) : scuda_send(&c);
  /* A bulk command has no answer of its own that could bring its error. Another process may look as soon as a
   * synchronous upload has returned. */
  int waits = (bulk &&
               (scuda_blocking() || !on_device ||
                atomic_load_explicit(&scuda_ordering, memory_order_relaxed) == SCUDA_ORDER_ANSWERED)) ||
                (sync && atomic_load_explicit(&scuda_sharing, memory_order_relaxed));
  return r || !waits ? r : scuda_wire_cuStreamSynchronize(stream, ptds);
}
