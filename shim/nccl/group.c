/* Operations, alone and in groups: a group is collected here and goes to the server as one command, or to each of the
 * servers that its communicators are of. */
#define _GNU_SOURCE
#include "nccl.h"
#include "base/core.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Operations of one server. */
struct part {
  uint32_t count, room;
  uint64_t context; /* of the first one's communicator */
  struct wire_nccl_operation *list;
};
struct ended { struct wire_nccl_reduction_end reduction; uint32_t server; };
struct group {
  uint32_t depth, count;
  int result;                  /* the first failure of a call in the group */
  struct part parts[SCUDA_SERVERS_MAX];
  struct nccl_start *starts;   /* communicators that begin with the group's end */
  struct ended *ended;         /* reductions that end with it */
  uint32_t ended_count, ended_room;
};
static __thread struct group group;

int nccl_note(int result) {
  if (group.depth && !group.result) group.result = result;
  return result;
}

int nccl_defer(struct nccl_start *s) {
  if (!group.depth) return 0;
  nccl_append(&group.starts, s);
  return 1;
}

/* ---- repetitions ---- */

/* The first call of its kind makes NCCL's connections, and so waits for other ranks. One that is like an earlier one
 * finds them made and is only enqueued: nobody needs to wait for its answer. What a call is like is a hash of all that
 * NCCL chooses connections by: not its buffers and stream. Communicators' numbers are never used again. */
enum { KINDS = 4096, NEAR = 8 };
static _Atomic uint64_t kinds[KINDS];

static uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15;
  h = (h ^ h >> 32) * 0xd6e8feb86659fd93;
  return h ^ h >> 32;
}

static uint64_t kind_of(const struct wire_nccl_operation *o, uint32_t count) {
  uint64_t h = count;
  for (uint32_t i = 0; i < count; i++) {
    h = mix(mix(h, o[i].comm), o[i].count);
    h = mix(mix(h, (uint64_t)o[i].function << 32 | o[i].type), (uint64_t)o[i].op << 32 | (uint32_t)o[i].peer);
  }
  return h ? h : 1;
}

static int is_known(uint64_t kind) {
  for (uint32_t i = 0; i < NEAR; i++)
    if (atomic_load_explicit(&kinds[(kind + i) % KINDS], memory_order_relaxed) == kind) return 1;
  return 0;
}

/* A reduction of the program's own may have ended since. Ranks of several GPUs wait for each other in the GPUs, each
 * behind what the executor has not come to yet. */
static int is_sure(uint64_t kind, const struct wire_nccl_operation *o, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    if (o[i].op >= NCCL_OPERATORS) return 0;
  return is_known(kind) && nccl_one_device();
}

/* Where there is no room, an old one gives way, and is answered once more when it comes again. */
static void know(uint64_t kind) {
  uint32_t at = 0;
  while (at < NEAR && atomic_load_explicit(&kinds[(kind + at) % KINDS], memory_order_relaxed)) at++;
  atomic_store_explicit(&kinds[(kind + (at < NEAR ? at : kind >> 32 & (NEAR - 1))) % KINDS], kind,
                        memory_order_relaxed);
}

static int refused(int32_t r, const struct nccl_answer *a, uint32_t got) {
  switch (r) {
  case CUDA_ERROR_NOT_PERMITTED: return nccl_failed(ncclInvalidUsage, "the buffers are not the GPU's own memory");
  case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: return nccl_failed(ncclInvalidUsage, "the stream is captured");
  case CUDA_ERROR_INVALID_HANDLE: return nccl_failed(ncclInvalidArgument, "the stream is none");
  }
  return nccl_answered(r, a, got);
}

static int send_operations(uint64_t context, const struct wire_nccl_operation *list, uint32_t count) {
  struct nccl_answer a;
  uint32_t got = 0;
  uint64_t kind = kind_of(list, count);
  int sure = is_sure(kind, list, count);
  memset(&a.head, 0, sizeof a.head);
  int32_t r = nccl_front->enqueue(context, list, count, sure, &a, sizeof a - 1, &got);
  nccl_sent();
  if (!r && sure && !got) return ncclSuccess;
  if (!r) a.text[got < sizeof a.head ? 0 : got - sizeof a.head] = 0;
  int result = refused(r, &a, got);
  if (!result) know(kind);
  return result;
}

/* ---- of several servers ---- */

struct sending {
  pthread_mutex_t *gate;
  const int *called_off;
  const struct part *part;
  int result;
  pthread_t thread;
};

static void *send_part(void *argument) {
  struct sending *s = argument;
  pthread_mutex_lock(s->gate);
  int off = *s->called_off;
  pthread_mutex_unlock(s->gate);
  if (!off) s->result = send_operations(s->part->context, s->part->list, s->part->count);
  return NULL;
}

/* Ranks wait for each other within NCCL, so each server gets its part before any answer is waited for: by a thread of
 * its own. All parts are sent or none, as the others' servers would wait for one that is missing. */
static int send_parts(const struct part *parts, uint32_t servers) {
  pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
  struct sending list[SCUDA_SERVERS_MAX] = {{0}};
  int called_off = 0, result = ncclSuccess;
  for (uint32_t i = 0; i < servers; i++) {
    int32_t r = nccl_front->check(parts[i].list, parts[i].count);
    if (r) return refused(r, NULL, 0);
  }
  pthread_mutex_lock(&gate);
  for (uint32_t i = 0; i < servers && !called_off; i++) {
    if (!parts[i].count) continue;
    list[i] = (struct sending){&gate, &called_off, &parts[i], ncclSuccess, 0};
    called_off = pthread_create(&list[i].thread, NULL, send_part, &list[i]);
    if (called_off) list[i].thread = 0;
  }
  pthread_mutex_unlock(&gate);
  for (uint32_t i = 0; i < servers; i++) {
    if (list[i].thread) pthread_join(list[i].thread, NULL);
    if (!result) result = list[i].result;
  }
  pthread_mutex_destroy(&gate);
  return called_off ? nccl_failed(ncclSystemError, "no thread for a server's part of a group") : result;
}

static int send_group(const struct group *g) {
  const struct part *p = g->parts;
  while (!p->count) p++;
  if (p->count == g->count) return send_operations(p->context, p->list, p->count);
  return send_parts(g->parts, nccl_front->servers());
}

/* A list with room for one more; NULL: there is none. */
static void *with_room(void *list, uint32_t count, uint32_t *room, size_t size) {
  if (count < *room) return list;
  uint32_t more = *room ? 2 * *room : 16;
  void *grown = realloc(list, more * size);
  if (grown) *room = more;
  return grown;
}

/* Into the list of the communicator's server; 0: there is no room. */
static int add(const struct nccl_comm *c, const struct wire_nccl_operation *o) {
  struct part *p = &group.parts[c->server];
  void *list = with_room(p->list, p->count, &p->room, sizeof *p->list);
  if (!list) return 0;
  p->list = list;
  if (!p->count) p->context = c->context;
  p->list[p->count++] = *o;
  group.count++;
  return 1;
}

static int operate(uint32_t function, const void *comm, struct wire_nccl_operation o) {
  static _Atomic uint8_t many;
  struct nccl_comm c;
  if (!nccl_comm_of(comm, &c)) return nccl_note(nccl_bad_comm());
  if (o.type >= NCCL_TYPES || (!o.send && !o.recv && o.count) || o.peer < 0 || o.peer >= c.ranks)
    return nccl_note(nccl_failed(ncclInvalidArgument, "no such type, peer or root, or no buffers"));
  o.comm = c.number;
  if (!group.depth) return send_operations(c.context, &o, 1);
  if (group.count == WIRE_MAX_NCCL_OPERATIONS) return nccl_refused_part(&many, function, "8192 more of one group");
  return add(&c, &o) ? ncclSuccess : nccl_note(nccl_failed(ncclSystemError, "out of memory"));
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

/* ---- reductions of the program's own ---- */

static const uint8_t element_bytes[NCCL_TYPES] = {NCCL_ELEMENT_BYTES};

int own_ncclRedOpCreatePreMulSum(void *op, void *scalar, int type, int residence, void *comm) {
  struct nccl_comm c;
  struct nccl_answer a;
  if (!nccl_comm_of(comm, &c)) return nccl_note(nccl_bad_comm());
  if (!op || !scalar || type < 0 || type >= NCCL_TYPES || residence < 0 || residence > WIRE_NCCL_SCALAR_HOST)
    return nccl_note(nccl_failed(ncclInvalidArgument, "no such type or residence, or no scalar, or no place"));
  struct wire_nccl_reduction m = {.comm = c.number, .scalar = (uint64_t)(uintptr_t)scalar, .type = (uint32_t)type,
                                  .residence = (uint32_t)residence};
  if (residence == WIRE_NCCL_SCALAR_HOST) {
    m.scalar = 0;
    memcpy(&m.scalar, scalar, element_bytes[type]);
  }
  int r = nccl_ask(OP_NCCL_REDUCTION, c.server, c.context, &m, sizeof m, &a);
  if (!r) *(int *)op = (int)a.head.value;
  return nccl_note(r);
}

static int end_reduction(const struct ended *e) {
  struct nccl_answer a;
  return nccl_ask(OP_NCCL_REDUCTION_END, e->server, 0, &e->reduction, sizeof e->reduction, &a);
}

/* Operations of the group may use it, which are not under way before its end. */
int own_ncclRedOpDestroy(int op, void *comm) {
  struct group *g = &group;
  struct nccl_comm c;
  if (!nccl_comm_of(comm, &c)) return nccl_note(nccl_bad_comm());
  struct ended m = {{.comm = c.number, .reduction = (uint32_t)op}, c.server};
  if (!g->depth) return end_reduction(&m);
  void *list = with_room(g->ended, g->ended_count, &g->ended_room, sizeof m);
  if (!list) return nccl_note(nccl_failed(ncclSystemError, "out of memory"));
  g->ended = list;
  g->ended[g->ended_count++] = m;
  return ncclSuccess;
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
  if (r) nccl_drop(mine.starts);
  else r = nccl_begin(mine.starts);
  if (!r && mine.count) r = send_group(&mine);
  for (uint32_t i = 0; i < mine.ended_count; i++) end_reduction(&mine.ended[i]);
  for (uint32_t i = 0; i < SCUDA_SERVERS_MAX; i++) free(mine.parts[i].list);
  free(mine.ended);
  return r;
}

/* ---- collectives that are groups of transfers ---- */

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
