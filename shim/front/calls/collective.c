/* The front's side of our libnccl.so.2: its commands, and what the front has to know of the work that they bring. */
#include "base/server.h"
#include "calls/collective.h"
#include "calls/profile.h"

#include <string.h>

int32_t scuda_collective_serves(void) { return scuda_profile_serves(); }
int32_t scuda_collective_offered(void) { return scuda_serving() && scuda_boot.collectives; }

uint32_t scuda_collective_servers(void) { return scuda_servers; }
uint32_t scuda_collective_server_of(uint64_t context) { return context ? scuda_slot_server(context) : scuda_server(); }

int32_t scuda_collective_ask(uint32_t op, uint32_t server, uint64_t context, const void *payload, uint32_t bytes,
                             void *reply, uint32_t cap, uint32_t *got) {
  *got = 0;
  struct scuda_visit v = scuda_visit(server, context);
  struct scuda_self self = scuda_self_begin(context);
  struct scuda_cmd c;
  int32_t r = scuda_begin(&c, op, SCUDA_ANSWER, bytes);
  if (!r) {
    memcpy(c.payload, payload, bytes);
    r = scuda_call(&c, reply, cap, got);
  }
  scuda_self_end(self);
  scuda_visit_end(v);
  return r;
}

/* NCCL's kernels use the GPU's own memory. What the program has on both sides would have to be brought there before,
 * and back. */
static int32_t check_buffer(uint64_t address) {
  static _Atomic uint8_t said;
  if (!address) return CUDA_SUCCESS;
  struct scuda_range r = scuda_range_of(address, SCUDA_AS_ANY);
  scuda_range_used(&r);
  if (!scuda_range_is_managed(&r) && !scuda_range_is_pinned(&r)) return CUDA_SUCCESS;
  if (!atomic_exchange(&said, 1))
    scuda_log(SCUDA_WARN, "a collective with %s is not supported by scuda's NCCL; copy it to memory of cudaMalloc",
              scuda_range_is_managed(&r) ? "unified memory" : "page-locked memory");
  return CUDA_ERROR_NOT_PERMITTED;
}

static int32_t check_stream(uint64_t stream) {
  static _Atomic uint8_t said;
  int32_t r = scuda_check(stream, KIND_CUstream);
  if (r || !scuda_stream_capturing(stream, 0)) return r;
  if (!atomic_exchange(&said, 1))
    scuda_log(SCUDA_WARN, "a collective in a stream that is captured is not supported by scuda's NCCL; keep "
              "collectives out of CUDA graphs");
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* The operations were enqueued while their command was carried out. Whoever asked meanwhile learned that the streams
 * were idle, up to a position behind that command. So they have work up to one that comes later. */
static int32_t behind(const struct wire_nccl_operation *o, uint32_t count) {
  int32_t r = CUDA_SUCCESS;
  for (uint32_t i = 0; i < count && !r; i++) {
    if (i && o[i].stream == o[i - 1].stream) continue;
    struct wire_nccl_behind m = {.stream = o[i].stream};
    struct scuda_cmd c;
    r = scuda_check(o[i].stream, KIND_CUstream);
    if (!r) r = scuda_begin(&c, OP_NCCL_BEHIND, SCUDA_WORKS, sizeof m);
    if (r) return r;
    memcpy(c.payload, &m, sizeof m);
    r = scuda_send(&c);
  }
  return r;
}

/* A command without an answer is carried out before the next one, as a launch is, so nothing has to be said behind it.
 * It tells no process that shares memory how far it has got, and names one stream. */
static int needs_answer(const struct wire_nccl_operation *o, uint32_t count) {
  if (atomic_load(&scuda_ordering) || atomic_load(&scuda_sharing)) return 1;
  for (uint32_t i = 1; i < count; i++)
    if (o[i].stream != o[0].stream) return 1;
  return 0;
}

int32_t scuda_collective_check(const void *operations, uint32_t count) {
  const struct wire_nccl_operation *o = operations;
  int32_t r = CUDA_SUCCESS;
  for (uint32_t i = 0; i < count && !r; i++) {
    r = check_stream(o[i].stream);
    if (!r) r = check_buffer(o[i].send);
    if (!r) r = check_buffer(o[i].recv);
  }
  return r;
}

int32_t scuda_collective_enqueue(uint64_t context, const void *operations, uint32_t count, int32_t sure, void *reply,
                                 uint32_t cap, uint32_t *got) {
  const struct wire_nccl_operation *o = operations;
  struct wire_nccl_group m = {.count = count};
  *got = 0;
  struct scuda_self self = scuda_self_begin(context);
  int32_t r = scuda_collective_check(o, count);
  struct scuda_cmd c;
  uint32_t how = SCUDA_WORKS | (sure && !needs_answer(o, count) ? 0 : SCUDA_ANSWER);
  if (!r) r = scuda_begin(&c, OP_NCCL_GROUP, how, sizeof m + count * sizeof *o);
  if (!r) {
    memcpy(c.payload, &m, sizeof m);
    memcpy(c.payload + sizeof m, o, count * sizeof *o);
    if (!c.answer) r = scuda_send(&c);
    else if (!(r = scuda_call(&c, reply, cap, got))) r = behind(o, count);
  }
  scuda_self_end(self);
  return r;
}
