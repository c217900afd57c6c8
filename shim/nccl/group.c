/* Operations, alone and in groups: a group is collected here and goes to the server as one command. */
#define _GNU_SOURCE
#include "nccl.h"

#include <stdlib.h>
#include <string.h>

struct group {
  uint32_t depth, count, room;
  int result;                  /* the first failure of a call in the group */
  uint64_t context;            /* of the first operation's communicator */
  struct wire_nccl_operation *list;
  int starts;                  /* a communicator begins with the group's end */
  struct nccl_start start;
};
static __thread struct group group;

int nccl_note(int result) {
  if (group.depth && !group.result) group.result = result;
  return result;
}

int nccl_defer(const struct nccl_start *s) {
  if (!group.depth) return 0;
  if (group.starts) return 2;
  group.starts = 1;
  group.start = *s;
  return 1;
}

static int send_operations(uint64_t context, const struct wire_nccl_operation *list, uint32_t count) {
  struct nccl_answer a;
  uint32_t got = 0;
  memset(&a, 0, sizeof a);
  int32_t r = nccl_front->enqueue(context, list, count, &a, sizeof a - 1, &got);
  switch (r) {
  case CUDA_ERROR_NOT_PERMITTED: return nccl_failed(ncclInvalidUsage, "the buffers are not the GPU's own memory");
  case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: return nccl_failed(ncclInvalidUsage, "the stream is captured");
  case CUDA_ERROR_INVALID_HANDLE: return nccl_failed(ncclInvalidArgument, "the stream is none");
  }
  return nccl_answered(r, &a, got);
}

/* Into the list; 0: there is no room. */
static int add(const struct wire_nccl_operation *o) {
  struct group *g = &group;
  if (g->count == g->room) {
    uint32_t room = g->room ? 2 * g->room : 16;
    void *list = realloc(g->list, room * sizeof *g->list);
    if (!list) return 0;
    g->list = list;
    g->room = room;
  }
  g->list[g->count++] = *o;
  return 1;
}

static int operate(uint32_t function, const void *comm, struct wire_nccl_operation o) {
  static _Atomic uint8_t many, own_reduction;
  struct nccl_comm c;
  if (!nccl_comm_of(comm, &c))
    return nccl_note(nccl_failed(ncclInvalidArgument, "the communicator is none, or has ended"));
  if (o.type >= NCCL_TYPES || (!o.send && !o.recv && o.count) || o.peer < 0 || o.peer >= c.ranks)
    return nccl_note(nccl_failed(ncclInvalidArgument, "no such type, peer or root, or no buffers"));
  if (o.op >= NCCL_OPERATORS) return nccl_refused_part(&own_reduction, function, "a reduction of the program's own");
  o.comm = c.number;
  if (!group.depth) return send_operations(c.context, &o, 1);
  if (group.count == WIRE_MAX_NCCL_OPERATIONS) return nccl_refused_part(&many, function, "8192 more of one group");
  if (!group.count) group.context = c.context;
  return add(&o) ? ncclSuccess : nccl_note(nccl_failed(ncclSystemError, "out of memory"));
}

#define ADDRESS(p) ((uint64_t)(uintptr_t)(p))
#define OPERATION(name, f, ...) \
  return operate(NCCL_##name, comm, (struct wire_nccl_operation){ \
    .function = f, .count = count, .type = (uint32_t)type, .stream = ADDRESS(stream), __VA_ARGS__})

int own_ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream) {
  OPERATION(ncclAllReduce, WIRE_NCCL_FUNCTION_ALL_REDUCE, .send = ADDRESS(from), .recv = ADDRESS(to),
            .op = (uint32_t)op);
}
int own_ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream) {
  OPERATION(ncclBroadcast, WIRE_NCCL_FUNCTION_BROADCAST, .send = ADDRESS(from), .recv = ADDRESS(to), .peer = root);
}
int own_ncclBcast(void *buffer, size_t count, int type, int root, void *comm, void *stream) {
  OPERATION(ncclBcast, WIRE_NCCL_FUNCTION_BROADCAST, .send = ADDRESS(buffer), .recv = ADDRESS(buffer), .peer = root);
}
int own_ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, void *comm, void *stream) {
  OPERATION(ncclReduce, WIRE_NCCL_FUNCTION_REDUCE, .send = ADDRESS(from), .recv = ADDRESS(to), .op = (uint32_t)op,
            .peer = root);
}
int own_ncclAllGather(const void *from, void *to, size_t count, int type, void *comm, void *stream) {
  OPERATION(ncclAllGather, WIRE_NCCL_FUNCTION_ALL_GATHER, .send = ADDRESS(from), .recv = ADDRESS(to));
}
int own_ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream) {
  OPERATION(ncclReduceScatter, WIRE_NCCL_FUNCTION_REDUCE_SCATTER, .send = ADDRESS(from), .recv = ADDRESS(to),
            .op = (uint32_t)op);
}
int own_ncclSend(const void *from, size_t count, int type, int peer, void *comm, void *stream) {
  OPERATION(ncclSend, WIRE_NCCL_FUNCTION_SEND, .send = ADDRESS(from), .peer = peer);
}
int own_ncclRecv(void *to, size_t count, int type, int peer, void *comm, void *stream) {
  OPERATION(ncclRecv, WIRE_NCCL_FUNCTION_RECV, .recv = ADDRESS(to), .peer = peer);
}

/* ---- groups ---- */

int own_ncclGroupStart(void) {
  group.depth++;
  return ncclSuccess;
}

int own_ncclGroupEnd(void) {
  struct group *g = &group;
  if (!g->depth) return nccl_failed(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--g->depth) return ncclSuccess;
  struct group mine = *g;
  memset(g, 0, sizeof *g);
  int r = mine.result;
  if (!r && mine.starts) r = nccl_begin(&mine.start);
  if (!r && mine.count) r = send_operations(mine.context, mine.list, mine.count);
  free(mine.list);
  return r;
}

/* ---- collectives that are groups of transfers ---- */

static const uint8_t element_bytes[NCCL_TYPES] = {NCCL_ELEMENT_BYTES};

/* Transfers between this rank and all: to and from a piece of each buffer; a buffer that is NULL takes no part. */
static int with_all(const void *from, void *to, size_t count, int type, void *comm, void *stream) {
  struct nccl_comm c;
  if (!nccl_comm_of(comm, &c) || type < 0 || type >= NCCL_TYPES)
    return nccl_note(nccl_failed(ncclInvalidArgument, "the communicator is none, or there is no such type"));
  int r = ncclSuccess;
  for (int rank = 0; rank < c.ranks && !r; rank++) {
    size_t at = (size_t)rank * count * element_bytes[type];
    if (from) r = own_ncclSend((const char *)from + at, count, type, rank, comm, stream);
    if (to && !r) r = own_ncclRecv((char *)to + at, count, type, rank, comm, stream);
  }
  return r;
}

static int grouped(int r) {
  int end = own_ncclGroupEnd();
  return r ? r : end;
}

int own_ncclAlltoAll(const void *from, void *to, size_t count, int type, void *comm, void *stream) {
  own_ncclGroupStart();
  return grouped(with_all(from, to, count, type, comm, stream));
}
int own_ncclGather(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream) {
  struct nccl_comm c;
  own_ncclGroupStart();
  int r = own_ncclSend(from, count, type, root, comm, stream);
  if (!r && nccl_comm_of(comm, &c) && c.rank == root) r = with_all(NULL, to, count, type, comm, stream);
  return grouped(r);
}
int own_ncclScatter(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream) {
  struct nccl_comm c;
  own_ncclGroupStart();
  int r = own_ncclRecv(to, count, type, root, comm, stream);
  if (!r && nccl_comm_of(comm, &c) && c.rank == root) r = with_all(from, NULL, count, type, comm, stream);
  return grouped(r);
}
