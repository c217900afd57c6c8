/* Migration: moves the bytes of unified memory between the client and the server. It takes no lock: the caller sees to
 * it that nobody else touches the blocks. */
#include "uvm/va_range.h"
#include "base/range.h"

static uint32_t managed_flags(int how) { return SCUDA_COPY_MANAGED | (how & PUSH ? SCUDA_COPY_PUSH : 0); }

static int32_t fetch_changes(const struct va_range *a, uint64_t from, uint64_t bytes, uint64_t stream, uint8_t *here,
                             int how) {
  struct wire_host_changes m = {
    a->pages.start, from, bytes, stream, scuda_core.transfer(here, bytes, scuda_thread()->ordinal, 0),
        managed_flags(how)
  };
  struct wire_changes reply = {0};
  struct scuda_cmd c;
  int32_t r = scuda_begin(&c, OP_HOST_CHANGES, SCUDA_ANSWER, sizeof m);
  if (r) return r;
  memcpy(c.payload, &m, sizeof m);
  if (!(r = scuda_call(&c, &reply, sizeof reply, NULL))) count(SCUDA_DOWN, reply.bytes);
  return r;
}

static int32_t fetch_bytes(const struct va_range *a, uint64_t from, uint64_t bytes, uint64_t stream, uint8_t *here,
                           int how) {
  int soon = how & SOON && !scuda_blocking;
  struct wire_copy_d2h m = {
    a->pages.start + from, bytes, stream, scuda_core.transfer(here, bytes, scuda_thread()->ordinal, soon),
        (soon ? SCUDA_COPY_DONE : SCUDA_COPY_SYNC) | managed_flags(how)
  };
  struct scuda_cmd c;
  int32_t made = CUDA_SUCCESS, r = scuda_check(stream, KIND_CUstream);
  if (!r) r = scuda_begin(&c, OP_COPY_D2H, soon ? SCUDA_WORKS : SCUDA_ANSWER, sizeof m);
  if (r) return r;
  memcpy(c.payload, &m, sizeof m);
  count(SCUDA_DOWN, bytes);
  if (soon) return scuda_send(&c);
  if (how & NEW) {
    scuda_start(&c);
    made = scuda_pages_open(&a->pages, from, bytes);
  }
  r = scuda_call(&c, NULL, 0, NULL);
  return r ? r : made;
}

int32_t scuda_va_range_migrate_bytes(struct va_range *a, uint64_t from, uint64_t to, uint64_t stream, uint8_t *here,
                                     enum way way, int how) {
  uint64_t at = a->pages.start + from, bytes = to - from;
  int32_t r;
  if (way == FETCH_CHANGES) {
    r = fetch_changes(a, from, bytes, stream, here, how);
  } else if (way == FETCH) {
    r = fetch_bytes(a, from, bytes, stream, here, how);
  } else {
    count(SCUDA_UP, bytes);
    r = scuda_usable(stream);
    if (!r) r = scuda_upload_bytes(at, here, bytes, stream, 0, SCUDA_COPY_MANAGED, scuda_on_device(at, bytes));
  }
  if (r)
    scuda_log(SCUDA_ERROR, "unified memory: %llu bytes at %#llx cannot be %s (CUresult %d)", (unsigned long long)bytes,
              (unsigned long long)at, way == SEND ? "sent" : "fetched", r);
  return r;
}

/* In the context's stream of ours: whoever touches managed memory has waited for the others already. */
int32_t scuda_va_range_migrate(struct va_range *a, uint32_t first, uint32_t blocks, enum way way, int how) {
  uint64_t from = (uint64_t)first * BLOCK, to = from + scuda_va_range_bytes(a, first, blocks), stream;
  struct scuda_self self = scuda_self_begin(a->context);
  int32_t r = scuda_uvm_stream(a->context, &stream);
  if (!r && !a->extents) r = scuda_va_range_migrate_bytes(a, from, to, stream, a->pages.open + from, way, how);
  for (struct extent *e = a->extents; e && !r; e = e->next) {
    uint64_t low = e->from > from ? e->from : from, high = e->to < to ? e->to : to;
    if (low < high) r = scuda_va_range_migrate_bytes(a, low, high, stream, a->pages.open + low, way, how);
  }
  memset(a->file + first, OPENED, blocks);
  scuda_self_end(self);
  return r;
}

int32_t scuda_va_range_arrive(const struct va_range *a) {
  uint64_t stream;
  struct scuda_self self = scuda_self_begin(a->context);
  int32_t r = scuda_uvm_stream(a->context, &stream);
  if (!r) r = scuda_wire_cuStreamSynchronize(stream, 0);
  scuda_self_end(self);
  return r;
}
