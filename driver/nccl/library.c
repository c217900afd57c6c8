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
static int (*comm_init_rank)(void **, int, id_t128, int);
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
    {"ncclGetVersion", &get_version}, {"ncclGetUniqueId", &get_unique_id}, {"ncclCommInitRank", &comm_init_rank},
    {"ncclCommFinalize", &comm_finalize}, {"ncclCommDestroy", &comm_destroy}, {"ncclCommAbort", &comm_abort},
    {"ncclCommGetAsyncError", &comm_get_async_error}, {"ncclGetLastError", &get_last_error},
    {"ncclGroupStart", &group_start}, {"ncclGroupEnd", &group_end}, {"ncclAllReduce", &all_reduce},
    {"ncclBroadcast", &broadcast}, {"ncclReduce", &reduce}, {"ncclAllGather", &all_gather},
    {"ncclReduceScatter", &reduce_scatter}, {"ncclSend", &send_to}, {"ncclRecv", &recv_from}};
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return dlerror();
  if (is_scudas(dlsym(library, functions[0].name))) return "it is scuda's own, which is for clients";
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    void *f = dlsym(library, functions[i].name);
    if (!f) return functions[i].name;
    memcpy(functions[i].at, &f, sizeof f);
  }
  return get_version(version) ? "ncclGetVersion fails" : NULL;
}

static void *pointer(uint64_t v) { return (void *)(uintptr_t)v; }

int nccl_unique_id(void *id) { return get_unique_id(id); }

int nccl_init_rank(uint64_t *comm, int ranks, const void *id, int rank) {
  id_t128 copy;
  void *made = NULL;
  memcpy(&copy, id, sizeof copy);
  int r = comm_init_rank(&made, ranks, copy, rank);
  *comm = (uint64_t)(uintptr_t)made;
  return r;
}

enum { ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };
enum { INVALID_ARGUMENT = 4 };

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
