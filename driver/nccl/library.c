#define _GNU_SOURCE
#include "library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char bytes[128]; } id_t128;
static int (*get_version)(int *);
static int (*get_unique_id)(id_t128 *);
static int (*comm_init_rank_config)(void **, int, id_t128, int, void *);
static int (*comm_split)(void *, int, int, void **, void *);
static int (*comm_count)(void *, int *);
static int (*comm_user_rank)(void *, int *);
static int (*make_pre_mul_sum)(int *, void *, int, int, void *);
static int (*red_op_destroy)(int, void *);
// Those that older releases do not have.
static int (*comm_init_rank_scalable)(void **, int, int, int, void *, void *);
static int (*comm_shrink)(void *, int *, int, void **, void *, int);
static int (*comm_finalize)(void *);
static int (*comm_destroy)(void *);
static int (*comm_abort)(void *);
static int (*comm_get_async_error)(void *, int *);
static const char *(*get_last_error)(void *);
static int (*group_start)(void);
static int (*group_end)(void);
static int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
static int (*broadcast)(const void *, void *, size_t, int, int, void *, void *);
static int (*reduce)(const void *, void *, size_t, int, int, int, void *, void *);
static int (*all_gather)(const void *, void *, size_t, int, void *, void *);
static int (*reduce_scatter)(const void *, void *, size_t, int, int, void *, void *);
static int (*send_to)(const void *, size_t, int, int, void *, void *);
static int (*recv_from)(void *, size_t, int, int, void *, void *);

static int known_version;

// scuda's own libnccl.so.2 lies beside the client's core.
static int is_scudas(const void *function) {
  Dl_info info;
  char path[PATH_MAX + 32];
  if (!function || !dladdr(function, &info) || !realpath(info.dli_fname, path)) return 0;
  char *slash = strrchr(path, '/');
  strcpy(slash ? slash + 1 : path, "libscuda-core.so");
  return !access(path, F_OK);
}

const char *nccl_open(const char *path, int *version) {
  static const struct { const char *name; void *at; } functions[] = {
    {"ncclGetVersion", &get_version}, {"ncclGetUniqueId", &get_unique_id},
    {"ncclCommInitRankConfig", &comm_init_rank_config}, {"ncclCommSplit", &comm_split},
    {"ncclCommCount", &comm_count}, {"ncclCommUserRank", &comm_user_rank},
    {"ncclRedOpCreatePreMulSum", &make_pre_mul_sum}, {"ncclRedOpDestroy", &red_op_destroy},
    {"ncclCommFinalize", &comm_finalize}, {"ncclCommDestroy", &comm_destroy}, {"ncclCommAbort", &comm_abort},
    {"ncclCommGetAsyncError", &comm_get_async_error}, {"ncclGetLastError", &get_last_error},
    {"ncclGroupStart", &group_start}, {"ncclGroupEnd", &group_end}, {"ncclAllReduce", &all_reduce},
    {"ncclBroadcast", &broadcast}, {"ncclReduce", &reduce}, {"ncclAllGather", &all_gather},
    {"ncclReduceScatter", &reduce_scatter}, {"ncclSend", &send_to}, {"ncclRecv", &recv_from}};
  static const struct { const char *name; void *at; } later[] = {
    {"ncclCommInitRankScalable", &comm_init_rank_scalable}, {"ncclCommShrink", &comm_shrink}};
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return dlerror();
  if (is_scudas(dlsym(library, functions[0].name))) return "it is scuda's own, which is for clients";
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    void *f = dlsym(library, functions[i].name);
    if (!f) return functions[i].name;
    memcpy(functions[i].at, &f, sizeof f);
  }
  for (size_t i = 0; i < sizeof later / sizeof *later; i++) {
    void *f = dlsym(library, later[i].name);
    memcpy(later[i].at, &f, sizeof f);
  }
  int r = get_version(version);
  known_version = *version;
  return r ? "ncclGetVersion fails" : NULL;
}

static void *pointer(uint64_t v) { return (void *)(uintptr_t)v; }

int nccl_unique_id(void *id) { return get_unique_id(id); }

// ncclConfig_t as release 2.27 has it. Later ones take what it lacks for undefined, earlier ones do not read its end.
struct config {
  size_t size;
  unsigned magic, version;
  int blocking, cluster_size, min_ctas, max_ctas;
  const char *net;
  int split_share, traffic_class;
  const char *name;
  int collnet, cta_policy, shrink_share, nvls_ctas;
};
enum { MAGIC = 0xcafebeef, KNOWN = 22703 };
enum { INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };

// NCCL's own environment may say that communicators do not block; each has a thread here that waits.
static struct config config_of(const struct nccl_hints *h) {
  static const struct nccl_hints none = {INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, INT_MIN,
                                         NULL, NULL};
  if (!h) h = &none;
  return (struct config){sizeof(struct config), MAGIC, (unsigned)(known_version < KNOWN ? known_version : KNOWN), 1,
                         h->cluster_size, h->min_ctas, h->max_ctas, h->net, h->split_share, INT_MIN, h->name,
                         h->collnet, h->cta_policy, h->shrink_share, h->nvls_ctas};
}

int nccl_init_rank(uint64_t *comm, int ranks, int rank, const void *ids, int id_count, const struct nccl_hints *h) {
  struct config c = config_of(h);
  id_t128 first;
  void *made = NULL;
  int r = INVALID_USAGE;
  memcpy(&first, ids, sizeof first);
  if (id_count == 1) r = comm_init_rank_config(&made, ranks, first, rank, &c);
  else if (comm_init_rank_scalable)
    r = comm_init_rank_scalable(&made, ranks, rank, id_count, (void *)(uintptr_t)ids, &c);
  *comm = (uint64_t)(uintptr_t)made;
  return r;
}

int nccl_split(uint64_t parent, uint64_t *made, int color, int key, const struct nccl_hints *h) {
  struct config c = config_of(h);
  void *comm = NULL;
  int r = comm_split(pointer(parent), color, key, &comm, h ? &c : NULL);
  *made = (uint64_t)(uintptr_t)comm;
  return r;
}

int nccl_shrink(uint64_t parent, uint64_t *made, int *excluded, int count, int flags, const struct nccl_hints *h) {
  struct config c = config_of(h);
  void *comm = NULL;
  int r = comm_shrink ? comm_shrink(pointer(parent), excluded, count, &comm, h ? &c : NULL, flags) : INVALID_USAGE;
  *made = (uint64_t)(uintptr_t)comm;
  return r;
}

int nccl_place(uint64_t comm, int *rank, int *ranks) {
  int r = comm_user_rank(pointer(comm), rank);
  return r ? r : comm_count(pointer(comm), ranks);
}

enum { SCALAR_DEVICE, SCALAR_HOST };
int nccl_make_reduction(uint64_t comm, int *op, uint64_t scalar, int on_device, int type) {
  *op = 0;
  return make_pre_mul_sum(op, on_device ? pointer(scalar) : &scalar, type, on_device ? SCALAR_DEVICE : SCALAR_HOST,
                          pointer(comm));
}
int nccl_end_reduction(uint64_t comm, int op) { return red_op_destroy(op, pointer(comm)); }

enum { ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };

static int enqueue(const struct nccl_operation *o) {
  const void *from = pointer(o->send);
  void *to = pointer(o->recv), *comm = pointer(o->comm), *stream = pointer(o->stream);
  int type = (int)o->type, op = (int)o->op;
  switch (o->function) {
  case ALL_REDUCE: return all_reduce(from, to, o->count, type, op, comm, stream);
  case BROADCAST: return broadcast(from, to, o->count, type, o->peer, comm, stream);
  case REDUCE: return reduce(from, to, o->count, type, op, o->peer, comm, stream);
  case ALL_GATHER: return all_gather(from, to, o->count, type, comm, stream);
  case REDUCE_SCATTER: return reduce_scatter(from, to, o->count, type, op, comm, stream);
  case SEND: return send_to(from, o->count, type, o->peer, comm, stream);
  case RECV: return recv_from(to, o->count, type, o->peer, comm, stream);
  }
  return INVALID_ARGUMENT;
}

// NCCL keeps a group's state by thread, so a group begins and ends here.
int nccl_group(const struct nccl_operation *list, size_t count) {
  if (count == 1) return enqueue(list);
  int r = group_start();
  if (r) return r;
  for (size_t i = 0; i < count && !r; i++) r = enqueue(&list[i]);
  int end = group_end();
  return r ? r : end;
}

int nccl_finalize(uint64_t comm) { return comm_finalize(pointer(comm)); }
int nccl_destroy(uint64_t comm) { return comm_destroy(pointer(comm)); }
int nccl_abort(uint64_t comm) { return comm_abort(pointer(comm)); }
int nccl_async_error(uint64_t comm, int *state) { return comm_get_async_error(pointer(comm), state); }
const char *nccl_last_error(void) { return get_last_error(NULL); }
