#define _GNU_SOURCE
#include "sim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The version that it says to be. */
enum { VERSION = 23007 };

/* Both names of a function. */
#define BOTH_NAMES(name) extern __typeof(name) p##name __attribute__((alias(#name), visibility("default")))

/* ---- the driver in the process ---- */

static struct {
  int (*get_current)(void **), (*set_current)(void *), (*host_alloc)(void **, size_t, unsigned);
  int (*down)(void *, uint64_t, size_t, void *), (*up)(uint64_t, const void *, size_t, void *);
  int (*host_function)(void *, void (*)(void *), void *);
  int (*event_create)(void **, unsigned), (*event_record)(void *, void *), (*event_destroy)(void *);
  int (*wait_event)(void *, void *, unsigned), (*wait_value)(void *, uint64_t, uint32_t, unsigned);
  int (*get_device)(int *);
} driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_driver(void) {
  static const struct { const char *name; void *at; } functions[] = {
      {"cuCtxGetCurrent", &driver.get_current}, {"cuCtxSetCurrent", &driver.set_current},
      {"cuMemHostAlloc", &driver.host_alloc}, {"cuMemcpyDtoHAsync_v2", &driver.down},
      {"cuMemcpyHtoDAsync_v2", &driver.up},
      {"cuLaunchHostFunc", &driver.host_function}, {"cuEventCreate", &driver.event_create},
      {"cuEventRecord", &driver.event_record}, {"cuEventDestroy_v2", &driver.event_destroy},
      {"cuStreamWaitEvent", &driver.wait_event}, {"cuStreamWaitValue32_v2", &driver.wait_value},
      {"cuCtxGetDevice", &driver.get_device}};
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  for (size_t i = 0; library && i < sizeof functions / sizeof *functions; i++) {
    void *f = dlsym(library, functions[i].name);
    memcpy(functions[i].at, &f, sizeof f);
  }
}

static int has_driver(void) {
  pthread_once(&once, open_driver);
  return driver.get_device != NULL;
}

static char last_error[256];
static int fail(int result, const char *what) {
  snprintf(last_error, sizeof last_error, "%s", what);
  return result;
}

/* ---- facts ---- */

EXPORT int ncclGetVersion(int *version) {
  *version = VERSION;
  return ncclSuccess;
}
EXPORT const char *ncclGetErrorString(int result) {
  static const char *const names[NCCL_RESULTS] = {NCCL_RESULT_NAMES};
  return result >= 0 && result < NCCL_RESULTS ? names[result] : "unknown";
}
EXPORT const char *ncclGetLastError(struct comm *c) { return (void)c, last_error; }
EXPORT int ncclCommCount(struct comm *c, int *count) { return *count = c->ranks, ncclSuccess; }
EXPORT int ncclCommUserRank(struct comm *c, int *rank) { return *rank = c->rank, ncclSuccess; }
EXPORT int ncclCommCuDevice(struct comm *c, int *device) { return *device = c->device, ncclSuccess; }
EXPORT int ncclCommGetAsyncError(struct comm *c, int *state) {
  pthread_mutex_lock(&c->lock);
  *state = c->state;
  pthread_mutex_unlock(&c->lock);
  return ncclSuccess;
}

/* ---- the beginning ---- */

EXPORT int ncclGetUniqueId(ncclUniqueId *id) {
  return sim_unique_id(id) ? fail(ncclSystemError, "no socket to meet at") : ncclSuccess;
}

/* Whether streams can wait for a word of page-locked memory: where the driver's GPU is elsewhere they cannot. */
static int streams_wait;
static pthread_once_t tried = PTHREAD_ONCE_INIT;
static void try_waiting(void) {
  void *word = NULL;
  if (driver.host_alloc(&word, 64, 3)) return;
  atomic_store((_Atomic uint32_t *)word, 1);
  streams_wait = !driver.wait_value(NULL, (uint64_t)(uintptr_t)word, 1, 0);
}

EXPORT int ncclCommInitRank(struct comm **comm, int ranks, ncclUniqueId id, int rank) {
  if (!has_driver()) return fail(ncclUnhandledCudaError, "there is no driver in the process");
  if (ranks < 1 || rank < 0 || rank >= ranks) return fail(ncclInvalidArgument, "there is no such rank");
  struct comm *c = calloc(1, sizeof *c);
  *comm = NULL;
  if (!c || !(c->peers = calloc((size_t)ranks, sizeof *c->peers))) return fail(ncclSystemError, "out of memory");
  c->rank = rank;
  c->ranks = ranks;
  pthread_mutex_init(&c->lock, NULL);
  pthread_cond_init(&c->changed, NULL);
  if (driver.get_current(&c->context) || !c->context) return fail(ncclUnhandledCudaError, "no context is current");
  driver.get_device(&c->device);
  pthread_once(&tried, try_waiting);
  int r = sim_meet(c, &id);
  if (r) return fail(r, "the ranks did not meet");
  *comm = c;
  return ncclSuccess;
}

EXPORT int ncclCommInitRankConfig(struct comm **comm, int ranks, ncclUniqueId id, int rank, void *config) {
  return (void)config, ncclCommInitRank(comm, ranks, id, rank);
}

/* ---- jobs ---- */

static void set_state(struct comm *c, int state) {
  pthread_mutex_lock(&c->lock);
  if (state && !c->state) {
    c->state = state;
    fail(state, "another rank, or the way to it, failed");
  }
  pthread_mutex_unlock(&c->lock);
}

/* The exchange of a job. What came before it goes first, in whatever stream it is. */
static void *exchange(void *argument) {
  struct job *j = argument;
  struct comm *c = j->comm;
  pthread_mutex_lock(&c->lock);
  while (c->done != j->ticket && !c->aborted) pthread_cond_wait(&c->changed, &c->lock);
  int r = c->aborted ? ncclRemoteError : c->state;
  pthread_mutex_unlock(&c->lock);
  for (int i = 0; i < j->count && !r; i++)
    if (j->list[i].function != SEND && j->list[i].function != RECV) r = sim_collective(c, &j->list[i]);
  if (!r) r = sim_transfer(c, j->list, j->count);
  set_state(c, r);
  pthread_mutex_lock(&c->lock);
  c->done = j->ticket + 1;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
  atomic_store((_Atomic uint32_t *)j->memory, 1); /* the stream goes on; nothing of the job is ours from here on */
  return NULL;
}

/* The stream has come so far. Host functions of several streams may have one thread, so none waits for other ranks. */
static void post(void *argument) {
  pthread_t thread;
  if (!streams_wait || pthread_create(&thread, NULL, exchange, argument)) exchange(argument);
  else pthread_detach(thread);
}

static void is_over(void *argument) {
  struct job *j = argument;
  pthread_mutex_lock(&j->comm->lock);
  j->over = 1;
  pthread_cond_broadcast(&j->comm->changed);
  pthread_mutex_unlock(&j->comm->lock);
}

/* A job whose memory has room, of those that are over, else a new one. Memory is never given back: the driver may wait
 * for all work of the GPU then, which another rank of this process may have to go on with. */
static struct job *take_job(struct comm *c, size_t bytes) {
  pthread_mutex_lock(&c->lock);
  struct job *j = c->jobs;
  while (j && !(j->over && j->room >= bytes)) j = j->next;
  if (j) j->over = 0;
  pthread_mutex_unlock(&c->lock);
  if (j || !(j = calloc(1, sizeof *j))) return j;
  void *memory = NULL;
  if (driver.host_alloc(&memory, bytes, 3)) {
    free(j);
    return NULL;
  }
  j->memory = memory;
  j->room = bytes;
  j->comm = c;
  pthread_mutex_lock(&c->lock);
  j->next = c->jobs;
  c->jobs = j;
  pthread_mutex_unlock(&c->lock);
  return j;
}

/* Waits until all jobs are over. */
static void finish(struct comm *c) {
  pthread_mutex_lock(&c->lock);
  for (struct job *j = c->jobs; j; j = j->next)
    while (!j->over && !c->aborted) pthread_cond_wait(&c->changed, &c->lock);
  pthread_mutex_unlock(&c->lock);
}

/* One stream goes on behind another. */
static int order(void *first, void *second) {
  void *event = NULL;
  if (first == second) return 0;
  int r = driver.event_create(&event, 2);
  if (!r) r = driver.event_record(event, first);
  if (!r) r = driver.wait_event(second, event, 0);
  if (event) driver.event_destroy(event);
  return r;
}

static int enqueue(struct job *j) {
  void *main = j->list[0].stream;
  int r = 0;
  for (int i = 0; i < j->count && !r; i++) {
    struct operation *o = &j->list[i];
    r = order(o->stream, main);
    if (!r && o->in_bytes) r = driver.down(o->in, o->send, o->in_bytes, main);
  }
  if (!r) r = driver.host_function(main, post, j);
  if (!r && streams_wait) r = driver.wait_value(main, (uint64_t)(uintptr_t)j->memory, 1, 0);
  for (int i = 0; i < j->count && !r; i++)
    if (j->list[i].out_bytes) r = driver.up(j->list[i].recv, j->list[i].out, j->list[i].out_bytes, main);
  if (!r) r = driver.host_function(main, is_over, j);
  for (int i = 0; i < j->count && !r; i++) r = order(main, j->list[i].stream);
  return r;
}

enum { HEAD = 64 }; /* of a job's memory: the word that its stream waits for */

/* Makes a job of operations of one communicator. */
static int submit(struct comm *c, const struct operation *list, int count) {
  size_t bytes = HEAD;
  int r = c->state ? c->state : sim_connect(c, list, count);
  if (r) return fail(r, "a peer cannot be reached");
  for (int i = 0; i < count; i++) bytes += list[i].in_bytes + list[i].out_bytes + 128;
  void *before = NULL;
  driver.get_current(&before);
  if (driver.set_current(c->context)) return fail(ncclUnhandledCudaError, "the context cannot be used");
  struct job *j = take_job(c, bytes);
  struct operation *own = j ? realloc(j->list, (size_t)count * sizeof *own) : NULL;
  if (!own) return fail(ncclSystemError, "out of memory");
  j->list = own;
  j->count = count;
  memcpy(own, list, (size_t)count * sizeof *own);
  memset(j->memory, 0, HEAD);
  uint8_t *at = j->memory + HEAD;
  for (struct operation *o = own; o < own + count; o++) {
    o->in = at;
    o->out = at + (o->in_bytes + 63) / 64 * 64;
    at = o->out + (o->out_bytes + 63) / 64 * 64;
  }
  pthread_mutex_lock(&c->lock);
  j->ticket = c->issued++;
  pthread_mutex_unlock(&c->lock);
  r = enqueue(j);
  driver.set_current(before);
  return r ? fail(ncclUnhandledCudaError, "the driver refused a call") : ncclSuccess;
}

/* ---- groups ---- */

enum { GROUP = 8192 };
struct entry { struct comm *comm; struct operation operation; };
static __thread struct { int depth, count, result; struct entry *list; } group;

static int flush_group(void) {
  int r = ncclSuccess;
  struct operation *of = malloc(((size_t)group.count + 1) * sizeof *of);
  for (int i = 0; i < group.count && !r; i++) {
    struct comm *c = group.list[i].comm;
    int n = 0;
    for (int k = i; c && k < group.count; k++) {
      if (group.list[k].comm != c) continue;
      of[n++] = group.list[k].operation;
      group.list[k].comm = NULL;
    }
    if (n) r = submit(c, of, n);
  }
  free(of);
  free(group.list);
  group.list = NULL;
  group.count = 0;
  return r;
}

EXPORT int ncclGroupStart(void) {
  group.depth++;
  return ncclSuccess;
}
EXPORT int ncclGroupEnd(void) {
  if (!group.depth) return fail(ncclInvalidUsage, "no group has begun");
  if (--group.depth) return ncclSuccess;
  int r = group.result;
  if (r) group.count = 0;
  group.result = 0;
  int s = flush_group();
  return r ? r : s;
}

static int add(struct comm *c, struct operation o) {
  size_t size = o.type >= 0 && o.type < NCCL_TYPES ? sim_element_bytes[o.type] : 0, all = o.count * (size_t)c->ranks;
  int reduces = o.function == ALL_REDUCE || o.function == REDUCE || o.function == REDUCE_SCATTER;
  int r = !size || o.peer < 0 || o.peer >= c->ranks || o.op < 0 || o.op >= NCCL_OPERATORS ||
          (reduces && !sim_reduces(o.type));
  if (r) return group.result = fail(ncclInvalidArgument, "there is no such type, operator or rank here");
  int root = c->rank == o.peer;
  int takes = o.function != RECV && (o.function != BROADCAST || root);
  int gives = o.function != SEND && (o.function != REDUCE || root);
  o.in_bytes = takes ? size * (o.function == REDUCE_SCATTER ? all : o.count) : 0;
  o.out_bytes = gives ? size * (o.function == ALL_GATHER ? all : o.count) : 0;
  if (!group.list && !(group.list = malloc(GROUP * sizeof *group.list))) return fail(ncclSystemError, "out of memory");
  if (group.count == GROUP) return group.result = fail(ncclInvalidUsage, "too many operations");
  group.list[group.count].comm = c;
  group.list[group.count++].operation = o;
  return group.depth ? ncclSuccess : flush_group();
}

#define OPERATION(f, ...) \
  return add(c, (struct operation){.function = f, .count = count, .type = type, .stream = stream, __VA_ARGS__})
#define AT(p) ((uint64_t)(uintptr_t)(p))
EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, struct comm *c, void *stream) {
  OPERATION(ALL_REDUCE, .send = AT(from), .recv = AT(to), .op = op);
}
EXPORT int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, struct comm *c, void *stream) {
  OPERATION(BROADCAST, .send = AT(from), .recv = AT(to), .peer = root);
}
EXPORT int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, struct comm *c,
                      void *stream) {
  OPERATION(REDUCE, .send = AT(from), .recv = AT(to), .op = op, .peer = root);
}
EXPORT int ncclAllGather(const void *from, void *to, size_t count, int type, struct comm *c, void *stream) {
  OPERATION(ALL_GATHER, .send = AT(from), .recv = AT(to));
}
EXPORT int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, struct comm *c, void *stream) {
  OPERATION(REDUCE_SCATTER, .send = AT(from), .recv = AT(to), .op = op);
}
EXPORT int ncclSend(const void *from, size_t count, int type, int peer, struct comm *c, void *stream) {
  OPERATION(SEND, .send = AT(from), .peer = peer);
}
EXPORT int ncclRecv(void *to, size_t count, int type, int peer, struct comm *c, void *stream) {
  OPERATION(RECV, .recv = AT(to), .peer = peer);
}

EXPORT int ncclAlltoAll(const void *from, void *to, size_t count, int type, struct comm *c, void *stream) {
  int r = ncclGroupStart();
  size_t bytes = type >= 0 && type < NCCL_TYPES ? count * sim_element_bytes[type] : 0;
  for (int k = 0; k < c->ranks && !r; k++) {
    r = ncclSend((const char *)from + (size_t)k * bytes, count, type, k, c, stream);
    if (!r) r = ncclRecv((char *)to + (size_t)k * bytes, count, type, k, c, stream);
  }
  int end = ncclGroupEnd();
  return r ? r : end;
}

/* ---- the end ---- */

EXPORT int ncclCommFinalize(struct comm *c) {
  finish(c);
  return c->state;
}
EXPORT int ncclCommDestroy(struct comm *c) {
  finish(c);
  sim_close(c);
  return ncclSuccess;
}
/* What another thread may still look at is left. */
EXPORT int ncclCommAbort(struct comm *c) {
  pthread_mutex_lock(&c->lock);
  c->aborted = 1;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
  return write(c->wake[1], "", 1) == 1 ? ncclSuccess : ncclSystemError;
}

BOTH_NAMES(ncclGetVersion);
BOTH_NAMES(ncclGetUniqueId);
BOTH_NAMES(ncclCommInitRank);
BOTH_NAMES(ncclGetErrorString);
BOTH_NAMES(ncclAllReduce);
BOTH_NAMES(ncclGroupStart);
BOTH_NAMES(ncclGroupEnd);
BOTH_NAMES(ncclCommDestroy);
