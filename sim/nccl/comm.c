#define _GNU_SOURCE
#include "sim.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
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

static void finish(struct comm *c);
int ncclCommAbort(struct comm *c);

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

static struct comm *new_comm(int rank, int ranks) {
  struct comm *c = calloc(1, sizeof *c);
  if (!c || !(c->peers = calloc((size_t)ranks, sizeof *c->peers))) {
    free(c);
    return NULL;
  }
  c->rank = rank;
  c->ranks = ranks;
  c->listener = -1;
  for (int i = 0; i < ranks; i++) c->peers[i] = (struct peer){.star = {-1, 0}, .to = {-1, 0}, .from = {-1, 0}};
  pthread_mutex_init(&c->lock, NULL);
  pthread_cond_init(&c->changed, NULL);
  return c;
}

/* As NVIDIA's does: what it does not know is invalid. */
static int bad_settings(void) {
  const char *algorithm = getenv("NCCL_ALGO"), *channels = getenv("NCCL_MIN_NCHANNELS");
  return (algorithm && strcasecmp(algorithm, "ring") && strcasecmp(algorithm, "tree")) ||
         (channels && atoi(channels) > 32);
}

EXPORT int ncclCommInitRank(struct comm **comm, int ranks, ncclUniqueId id, int rank) {
  if (bad_settings()) return fail(ncclInvalidUsage, "NCCL_ALGO or NCCL_MIN_NCHANNELS says what is not there");
  if (!has_driver()) return fail(ncclUnhandledCudaError, "there is no driver in the process");
  if (ranks < 1 || rank < 0 || rank >= ranks) return fail(ncclInvalidArgument, "there is no such rank");
  struct comm *c = new_comm(rank, ranks);
  *comm = NULL;
  if (!c) return fail(ncclSystemError, "out of memory");
  if (driver.get_current(&c->context) || !c->context) return fail(ncclUnhandledCudaError, "no context is current");
  driver.get_device(&c->device);
  pthread_once(&tried, try_waiting);
  int r = sim_meet(c, &id);
  if (r) return fail(r, "the ranks did not meet");
  *comm = c;
  return ncclSuccess;
}

/* What ncclConfig_t begins with. */
struct config { size_t size; unsigned magic, version; int blocking, cluster_size, min_ctas, max_ctas; };

static int bad_config(const struct config *c) {
  return c && (c->magic != 0xcafebeef || (c->min_ctas != INT_MIN && c->min_ctas < 1) ||
               (c->min_ctas != INT_MIN && c->max_ctas != INT_MIN && c->min_ctas > c->max_ctas));
}

EXPORT int ncclCommInitRankConfig(struct comm **comm, int ranks, ncclUniqueId id, int rank, struct config *config) {
  if (bad_config(config)) return fail(ncclInvalidArgument, "the configuration is none");
  return ncclCommInitRank(comm, ranks, id, rank);
}

EXPORT int ncclCommInitRankScalable(struct comm **comm, int ranks, int rank, int count, ncclUniqueId *ids,
                                    struct config *config) {
  if (count < 1 || count > ranks) return fail(ncclInvalidArgument, "there are not so many ids");
  return ncclCommInitRankConfig(comm, ranks, ids[0], rank, config);
}

/* ---- parts ---- */

struct member { int32_t color, key, rank; struct sockaddr_in address; };

static int by_key(const void *a, const void *b) {
  const struct member *x = a, *y = b;
  return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : x->rank - y->rank;
}

/* A communicator of those that take part and say the same colour. */
static int part_of(struct comm *c, const uint8_t *takes_part, int color, int key, struct comm **made) {
  struct member mine = {.color = color, .key = key, .rank = c->rank};
  struct member *all = calloc((size_t)c->ranks, sizeof *all), *at = all;
  struct comm *n = new_comm(0, c->ranks);
  *made = NULL;
  finish(c);
  int r = all && n ? sim_listen(n, &mine.address) : ncclSystemError;
  if (!r) r = sim_exchange(c, takes_part, &mine, all, sizeof mine);
  if (r || color < 0) {
    if (n) sim_close(n); /* nobody knows of it */
    free(all);
    return r ? fail(r, "the ranks did not meet") : ncclSuccess;
  }
  for (int i = 0; i < c->ranks; i++)
    if (takes_part[i] && all[i].color == color) *at++ = all[i];
  n->ranks = (int)(at - all);
  n->context = c->context;
  n->device = c->device;
  qsort(all, (size_t)n->ranks, sizeof *all, by_key);
  for (int i = 0; i < n->ranks; i++) {
    n->peers[i] = (struct peer){all[i].address, {-1, 0}, {-1, 0}, {-1, 0}};
    if (all[i].rank == c->rank) n->rank = i;
  }
  free(all);
  *made = n;
  return ncclSuccess;
}

EXPORT int ncclCommSplit(struct comm *c, int color, int key, struct comm **made, struct config *config) {
  if (bad_config(config) || color < -1) return fail(ncclInvalidArgument, "the configuration or the colour is none");
  uint8_t *all = malloc((size_t)c->ranks);
  if (!all) return fail(ncclSystemError, "out of memory");
  memset(all, 1, (size_t)c->ranks);
  int r = part_of(c, all, color, key, made);
  free(all);
  return r;
}

/* Waits of what is under way end, and none of the ways to other ranks is used again. */
static void start_over(struct comm *c) {
  char byte;
  int listener = c->listener;
  ncclCommAbort(c);
  pthread_mutex_lock(&c->lock);
  for (struct job *j = c->jobs; j; j = j->next)
    while (!j->over) pthread_cond_wait(&c->changed, &c->lock);
  c->state = ncclSuccess;
  c->aborted = 0;
  pthread_mutex_unlock(&c->lock);
  c->listener = -1;
  sim_close(c);
  c->listener = listener;
  for (int i = 0; i < c->ranks; i++) c->peers[i].star.agreed = c->peers[i].to.agreed = c->peers[i].from.agreed = 0;
  if (read(c->wake[0], &byte, 1) != 1) fail(ncclSystemError, "a pipe that cannot be read");
}

EXPORT int ncclCommShrink(struct comm *c, int *excluded, int count, struct comm **made, struct config *config,
                          int flags) {
  if (bad_config(config)) return fail(ncclInvalidArgument, "the configuration is none");
  uint8_t *all = malloc((size_t)c->ranks);
  if (!all) return fail(ncclSystemError, "out of memory");
  memset(all, 1, (size_t)c->ranks);
  for (int i = 0; i < count; i++)
    if (excluded[i] >= 0 && excluded[i] < c->ranks) all[excluded[i]] = 0;
  if (flags & 1) start_over(c);
  int r = all[c->rank] ? part_of(c, all, 0, 0, made) : fail(ncclInvalidArgument, "this rank is left out");
  free(all);
  return r;
}

/* ---- reductions of the program's own ---- */

EXPORT int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, struct comm *c) {
  int i = 0;
  while (i < REDUCTIONS && c->own[i].used) i++;
  if (i == REDUCTIONS || type < 0 || type >= NCCL_TYPES || !sim_reduces(type))
    return fail(ncclInvalidArgument, "there is no such type, or there are too many reductions");
  c->own[i] = (struct reduction){1, type, residence == 0, (uint64_t)(uintptr_t)scalar};
  if (residence) memcpy(&c->own[i].scalar, scalar, sim_element_bytes[type]);
  *op = NCCL_OPERATORS + i;
  return ncclSuccess;
}
EXPORT int ncclRedOpDestroy(int op, struct comm *c) {
  int i = op - NCCL_OPERATORS;
  if (i < 0 || i >= REDUCTIONS || !c->own[i].used) return fail(ncclInvalidArgument, "there is no such reduction");
  c->own[i].used = 0;
  return ncclSuccess;
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
    if (!r && o->own && o->own->on_device)
      r = driver.down(o->scalar, o->own->scalar, sim_element_bytes[o->type], main);
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
  int r;
  for (int i = 0; i < count; i++) bytes += list[i].in_bytes + list[i].out_bytes + 128 + 64;
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
    o->scalar = o->out + (o->out_bytes + 63) / 64 * 64;
    at = o->scalar + 64;
    if (o->own && !o->own->on_device) memcpy(o->scalar, &o->own->scalar, sizeof o->own->scalar);
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

/* The operations of one communicator of a group. */
struct share { struct comm *comm; struct operation *list; int count, result; pthread_t thread; };

static void *connect_share(void *argument) {
  struct share *s = argument;
  s->result = s->comm->state ? s->comm->state : sim_connect(s->comm, s->list, s->count);
  return NULL;
}

/* Communicators of one group may be ranks that wait for each other, so all connect at the same time. */
static int connect_all(struct share *shares, int count) {
  int r = ncclSuccess;
  if (count == 1) connect_share(shares);
  else
    for (int i = 0; i < count; i++)
      if (pthread_create(&shares[i].thread, NULL, connect_share, &shares[i])) abort();
  for (int i = 0; i < count; i++) {
    if (count > 1) pthread_join(shares[i].thread, NULL);
    if (!r) r = shares[i].result;
  }
  return r ? fail(r, "a peer cannot be reached") : ncclSuccess;
}

static int flush_group(void) {
  struct operation *of = malloc(((size_t)group.count + 1) * sizeof *of);
  struct share *shares = calloc((size_t)group.count + 1, sizeof *shares);
  int r = of && shares ? ncclSuccess : ncclSystemError, n = 0, count = 0;
  for (int i = 0; i < group.count && !r; i++) {
    struct comm *c = group.list[i].comm;
    if (!c) continue;
    shares[count] = (struct share){.comm = c, .list = of + n};
    for (int k = i; k < group.count; k++) {
      if (group.list[k].comm != c) continue;
      of[n++] = group.list[k].operation;
      shares[count].count++;
      group.list[k].comm = NULL;
    }
    count++;
  }
  if (!r && count) r = connect_all(shares, count);
  for (int i = 0; i < count && !r; i++) r = submit(shares[i].comm, shares[i].list, shares[i].count);
  free(of);
  free(shares);
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
  int i = o.op - NCCL_OPERATORS;
  if (i >= 0 && i < REDUCTIONS && c->own[i].used && c->own[i].type == o.type) {
    o.own = &c->own[i];
    o.op = ncclSum;
  }
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
