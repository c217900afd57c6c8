/* Memory shared between processes of one server. Natively the driver gives a file descriptor, which programs pass over
 * Unix sockets. Here it is one end of a socket pair on which a packet with the server's token waits; whoever imports
 * looks at the packet without taking it. The other end stays with us: when nobody holds the program's end any more, the
 * server is told that it may let go of the memory. */
#define _GNU_SOURCE
#include "base/order.h"
#include "base/server.h"
#include "calls/calls.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <stdlib.h>

enum { ALLOCATION = WIRE_SHARE_ALLOCATION, POOL = WIRE_SHARE_POOL, TOKEN_BYTES = 16 };
static const char magic[16] = "scuda-share-1\r\n";
struct packet { char magic[sizeof magic]; uint8_t token[TOKEN_BYTES]; };
struct shared { int fd; uint8_t token[TOKEN_BYTES]; };

static scuda_lock_t lock;
static struct shared *list;
static size_t count, cap;

/* Tells the server of file descriptors that nobody holds any more. */
static void reap(void) {
  scuda_lock(&lock);
  for (size_t i = 0; i < count;) {
    struct pollfd p = {.fd = list[i].fd};
    if (poll(&p, 1, 0) != 1 || !(p.revents & (POLLHUP | POLLERR))) {
      i++;
      continue;
    }
    struct wire_share_end m = {0};
    memcpy(m.value, list[i].token, TOKEN_BYTES);
    close(list[i].fd);
    list[i] = list[--count];
    scuda_simple(OP_SHARE_END, 0, &m, sizeof m);
  }
  scuda_unlock(&lock);
}

static int32_t keep(int fd, const uint8_t *token) {
  scuda_lock(&lock);
  if (count == cap) {
    size_t more = cap ? 2 * cap : 16;
    struct shared *p = realloc(list, more * sizeof *p);
    if (!p) {
      scuda_unlock(&lock);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    list = p;
    cap = more;
  }
  list[count].fd = fd;
  memcpy(list[count++].token, token, TOKEN_BYTES);
  scuda_unlock(&lock);
  return CUDA_SUCCESS;
}

static int32_t give_descriptor(void *out, const uint8_t *token) {
  struct packet p;
  memcpy(p.magic, magic, sizeof magic);
  memcpy(p.token, token, TOKEN_BYTES);
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) return CUDA_ERROR_OPERATING_SYSTEM;
  int32_t r = send(pair[1], &p, sizeof p, MSG_NOSIGNAL) == (ssize_t)sizeof p ? keep(pair[1], token) :
              CUDA_ERROR_OPERATING_SYSTEM;
  if (r) {
    close(pair[0]);
    close(pair[1]);
    return r;
  }
  memcpy(out, &pair[0], sizeof(int));
  return CUDA_SUCCESS;
}

static int32_t export_object(void *out, uint32_t kind, uint64_t object, int32_t type, uint64_t flags, uint32_t i) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_WIN32 || type == CU_MEM_HANDLE_TYPE_WIN32_KMT) return CUDA_ERROR_INVALID_VALUE;
  reap();
  scuda_order_join();
  struct wire_share_export m = {object, flags, kind, (uint32_t)type};
  struct scuda_cmd c;
  int32_t r = scuda_begin(&c, OP_SHARE_EXPORT, SCUDA_ANSWER, sizeof m);
  if (r) return r;
  memcpy(c.payload, &m, sizeof m);
  struct wire_share_value v;
  uint32_t len = 0;
  if ((r = scuda_call(&c, &v, sizeof v, &len))) return r;
  if (len < sizeof v) return scuda_bad_reply(scuda_exports[i].name);
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    r = give_descriptor(out, v.value);
    if (r) {
      struct wire_share_end end;
      memcpy(end.value, v.value, sizeof end.value);
      scuda_simple(OP_SHARE_END, 0, &end, sizeof end);
    }
    return r;
  }
  memcpy(out, v.value, sizeof v.value);
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuMemExportToShareableHandle(void *out, uint64_t handle, int32_t type, uint64_t flags) {
  int32_t r = scuda_allocation_check(handle);
  if (r) return r;
  r = export_object(out, ALLOCATION, handle, type, flags, I_cuMemExportToShareableHandle);
  if (!r) scuda_allocation_share(handle);
  return r;
}
int32_t scuda_hand_cuMemPoolExportToShareableHandle(void *out, uint64_t pool, int32_t type, uint64_t flags) {
  int32_t r = scuda_check(pool, KIND_CUmemoryPool);
  return r ? r : export_object(out, POOL, pool, type, flags, I_cuMemPoolExportToShareableHandle);
}

static int32_t import_object(void *handle, uint32_t kind, uint64_t *object, int32_t type, uint32_t i) {
  struct wire_share_import m = {.object = *object, .kind = kind, .type = (uint32_t)type};
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    struct packet p;
    ssize_t n = recv((int)(intptr_t)handle, &p, sizeof p, MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC);
    if (n != (ssize_t)sizeof p || memcmp(p.magic, magic, sizeof magic)) return CUDA_ERROR_INVALID_VALUE;
    memcpy(m.value, p.token, TOKEN_BYTES);
  } else if (type == CU_MEM_HANDLE_TYPE_WIN32 || type == CU_MEM_HANDLE_TYPE_WIN32_KMT) {
    return scuda_refuse(i, PART_windows);
  } else if (!handle) {
    return CUDA_ERROR_INVALID_VALUE;
  } else if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    memcpy(m.value, handle, sizeof m.value);
  }
  reap();
  scuda_order_join();
  struct scuda_cmd c;
  int32_t r = scuda_begin(&c, OP_SHARE_IMPORT, SCUDA_ANSWER, sizeof m);
  if (r) return r;
  memcpy(c.payload, &m, sizeof m);
  struct wire_share_object v;
  uint32_t len = 0;
  if ((r = scuda_call(&c, &v, sizeof v, &len))) return r;
  if (len < sizeof v) return scuda_bad_reply(scuda_exports[i].name);
  *object = v.object;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuMemImportFromShareableHandle(uint64_t *out, void *handle, int32_t type) {
  uint64_t object = 0;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = import_object(handle, ALLOCATION, &object, type, I_cuMemImportFromShareableHandle);
  if (r) return r;
  scuda_allocation_came(*out = object);
  scuda_allocation_share(object);
  return r;
}

int32_t scuda_hand_cuMemPoolImportFromShareableHandle(uint64_t *out, void *handle, int32_t type, uint64_t flags) {
  if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
  uint64_t pool = scuda_slot_new(KIND_CUmemoryPool);
  if (!pool) return CUDA_ERROR_OUT_OF_MEMORY;
  int32_t r = import_object(handle, POOL, &pool, type, I_cuMemPoolImportFromShareableHandle);
  if (r) scuda_slot_free(pool);
  else *out = pool;
  return r;
}

/* ---- memory that another process allocated: copies must know it for device memory ---- */

static void foreign(uint64_t p) {
  scuda_order_join();
  uint64_t base = 0, bytes = 0;
  if (!scuda_wire_cuMemGetAddressRange_v2(&base, &bytes, p, 0))
    scuda_device_range_add(base, bytes, SCUDA_RANGE_OTHER | SCUDA_RANGE_SHARED, 0);
}

static int around(const struct scuda_range *r, uint64_t p) { return p - r->start < r->bytes; }
static void share(uint64_t p) {
  scuda_order_join();
  scuda_ranges_mark(&scuda_device_ranges, around, p, SCUDA_RANGE_SHARED);
}

void scuda_post_cuIpcOpenMemHandle(uint64_t *p, struct scuda_bytes64 handle, uint32_t flags) {
  (void)handle, (void)flags;
  foreign(*p);
}
void scuda_post_cuIpcGetMemHandle(void *handle, uint64_t p) {
  (void)handle;
  share(p);
}
void scuda_post_cuIpcOpenMemHandle_v2(uint64_t *p, struct scuda_bytes64 handle, uint32_t flags) {
  scuda_post_cuIpcOpenMemHandle(p, handle, flags);
}
void scuda_post_cuIpcCloseMemHandle(uint64_t p) { scuda_ranges_remove(&scuda_device_ranges, p, NULL); }
void scuda_post_cuMemPoolExportPointer(void *data, uint64_t p) {
  (void)data;
  share(p);
}
void scuda_post_cuMemPoolImportPointer(uint64_t *p, uint64_t pool, void *data) {
  (void)pool, (void)data;
  foreign(*p);
}
/* The event is another server's than the stream: what is sent from here on is behind it when it is complete. That waits
 * longer than it has to, as the program's thread does so. */
static int waits_here(uint64_t stream, uint64_t event, uint32_t ptds, int32_t *r) {
  struct scuda_named n = {0}, two;
  struct scuda_visit v;
  scuda_name_object(&n, event);
  two = n;
  if (scuda_slot(stream)) scuda_name_object(&two, stream);
  else two.different = n.known && n.server != scuda_server();
  if (!two.different || scuda_check(event, KIND_CUevent) || scuda_check(stream, KIND_CUstream)) return 0;
  if (scuda_stream_capturing(stream, ptds)) { /* a graph is of one server */
    *r = scuda_visit_named(&v, &two, "cuStreamWaitEvent of a captured stream");
    return 1;
  }
  *r = scuda_visit_named(&v, &n, "");
  scuda_pre_cuEventSynchronize(event, r);
  scuda_visit_end(v);
  return 1;
}

/* Another process may record the event again as soon as this returns; a capture that the event has no part in ends
 * here; and an event of a capture that is over is refused. */
int scuda_pre_cuStreamWaitEvent(uint64_t stream, uint64_t event, uint32_t flags, uint32_t ptds, int32_t *r) {
  (void)stream, (void)ptds;
  *r = CUDA_ERROR_INVALID_VALUE;
  if (flags & ~1u /* CU_EVENT_WAIT_EXTERNAL */) return 1;
  if (SCUDA_UNLIKELY(scuda_several()) && waits_here(stream, event, ptds, r)) return 1;
  return atomic_load(&scuda_captures) || scuda_event_is_elsewhere(event) || scuda_event_is_odd(event) ? 2 : 0;
}
void scuda_post_cuIpcOpenEventHandle(uint64_t *event, struct scuda_bytes64 handle) {
  (void)handle;
  scuda_event_elsewhere(*event);
  scuda_order_join();
}

void scuda_shared_object_gone(void) {
  if (__atomic_load_n(&count, __ATOMIC_RELAXED)) reap();
}
void scuda_post_cuMemPoolDestroy(uint64_t pool) {
  (void)pool;
  scuda_shared_object_gone();
}
