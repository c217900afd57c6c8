/* Communicators: they begin and end at the server; facts of theirs are answered here. */
#define _GNU_SOURCE
#include "nccl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nccl_comm *first;
static uint64_t last_number;
static char last_error[NCCL_TEXT];

int nccl_failed(int result, const char *text) {
  pthread_mutex_lock(&lock);
  snprintf(last_error, sizeof last_error, "%s", text);
  pthread_mutex_unlock(&lock);
  scuda_log(SCUDA_DEBUG, "NCCL: result %d: %s", result, text);
  return result;
}

int nccl_answered(int32_t driver, const struct nccl_answer *a, uint32_t got) {
  char text[64];
  if (driver) {
    snprintf(text, sizeof text, "the driver's result was %d", driver);
    return nccl_failed(ncclUnhandledCudaError, text);
  }
  if (got < sizeof a->head || a->head.text_bytes > got - sizeof a->head)
    return nccl_failed(ncclInternalError, "the server's answer is malformed");
  return a->head.result ? nccl_failed(a->head.result, a->text) : ncclSuccess;
}

/* Asks for a call of NCCL; the text in the answer ends with a NUL. */
static int ask(uint32_t op, uint64_t context, const void *payload, uint32_t bytes, struct nccl_answer *a) {
  uint32_t got = 0;
  memset(a, 0, sizeof *a);
  int32_t r = nccl_front->ask(op, context, payload, bytes, a, sizeof *a - 1, &got);
  return nccl_answered(r, a, got);
}

const char *own_ncclGetLastError(void *comm) {
  (void)comm;
  return last_error;
}

/* ---- the program's handles ---- */

static struct nccl_comm **find(const void *handle) {
  struct nccl_comm **at = &first;
  while (*at && *at != handle) at = &(*at)->next;
  return at;
}

int nccl_comm_of(const void *handle, struct nccl_comm *copy) {
  pthread_mutex_lock(&lock);
  struct nccl_comm *c = handle ? *find(handle) : NULL;
  if (c) *copy = *c;
  pthread_mutex_unlock(&lock);
  return c != NULL;
}

static int forget(const void *handle, struct nccl_comm *copy) {
  pthread_mutex_lock(&lock);
  struct nccl_comm **at = find(handle), *c = handle ? *at : NULL;
  if (c) {
    *copy = *c;
    *at = c->next;
  }
  pthread_mutex_unlock(&lock);
  free(c);
  return c != NULL;
}

static int bad_comm(void) { return nccl_failed(ncclInvalidArgument, "the communicator is none, or has ended"); }

/* ---- the beginning ---- */

int own_ncclGetUniqueId(void *id) {
  if (!id) return nccl_failed(ncclInvalidArgument, "no place for the id");
  struct wire_nccl_unique_id m = {0};
  struct { struct wire_nccl_id head; char text[NCCL_TEXT]; } a;
  uint32_t got = 0;
  memset(&a, 0, sizeof a);
  int32_t r = nccl_front->ask(OP_NCCL_UNIQUE_ID, 0, &m, sizeof m, &a, sizeof a - 1, &got);
  if (r) return nccl_answered(r, NULL, 0);
  if (got < sizeof a.head) return nccl_failed(ncclInternalError, "the server's answer is malformed");
  if (a.head.result) return nccl_failed(a.head.result, a.text);
  memcpy(id, a.head.id, sizeof a.head.id);
  return ncclSuccess;
}

/* The calling thread's context and device; where there is none yet, as in the runtime, the first device's primary one.
 */
static int current(uint64_t *context, int *device) {
  int (*get)(void *) = (int (*)(void *))(void *)nccl_driver("cuCtxGetCurrent");
  int (*set)(uint64_t) = (int (*)(uint64_t))(void *)nccl_driver("cuCtxSetCurrent");
  int (*retain)(void *, int) = (int (*)(void *, int))(void *)nccl_driver("cuDevicePrimaryCtxRetain");
  int (*of)(void *) = (int (*)(void *))(void *)nccl_driver("cuCtxGetDevice");
  *context = 0;
  int r = get(context);
  if (!r && !*context && !(r = retain(context, 0))) r = set(*context);
  return r ? r : of(device);
}

int nccl_begin(const struct nccl_start *s) {
  struct nccl_comm *c = calloc(1, sizeof *c);
  struct wire_nccl_init m = {.ranks = s->ranks, .rank = s->rank};
  struct nccl_answer a;
  if (!c) return nccl_failed(ncclSystemError, "out of memory");
  int r = current(&c->context, &c->device);
  if (r) {
    free(c);
    return nccl_answered(r, NULL, 0);
  }
  c->rank = s->rank;
  c->ranks = s->ranks;
  pthread_mutex_lock(&lock);
  m.comm = c->number = ++last_number;
  pthread_mutex_unlock(&lock);
  memcpy(m.id, s->id.bytes, sizeof m.id);
  r = ask(OP_NCCL_INIT, c->context, &m, sizeof m, &a);
  if (r) {
    free(c);
    return r;
  }
  pthread_mutex_lock(&lock);
  c->next = first;
  first = c;
  *s->comm = c;
  pthread_mutex_unlock(&lock);
  return ncclSuccess;
}

/* What ncclConfig_t begins with. What follows are hints, which are for the server to give. */
struct config { size_t size; uint32_t magic, version; int32_t blocking; };

static int start(uint32_t function, void **comm, int ranks, const ncclUniqueId *id, int rank, const void *config) {
  static _Atomic uint8_t not_blocking, several;
  struct config c = {.blocking = 1};
  if (!comm || ranks < 1 || rank < 0 || rank >= ranks)
    return nccl_note(nccl_failed(ncclInvalidArgument, "no place for the communicator, or no such rank"));
  *comm = NULL;
  if (config) memcpy(&c, config, sizeof c);
  if (config && c.magic != 0xcafebeef)
    return nccl_note(nccl_failed(ncclInvalidArgument, "the configuration was not initialised"));
  if (c.blocking == 0) return nccl_refused_part(&not_blocking, function, "a communicator that does not block");
  struct nccl_start s = {comm, ranks, rank, *id};
  int deferred = nccl_defer(&s);
  if (deferred == 2) return nccl_refused_part(&several, function, "several ranks of one group");
  return deferred ? ncclSuccess : nccl_begin(&s);
}

int own_ncclCommInitRank(void *comm, int ranks, ncclUniqueId id, int rank) {
  return start(NCCL_ncclCommInitRank, comm, ranks, &id, rank, NULL);
}
int own_ncclCommInitRankConfig(void *comm, int ranks, ncclUniqueId id, int rank, void *config) {
  return start(NCCL_ncclCommInitRankConfig, comm, ranks, &id, rank, config);
}

/* ---- the end ---- */

static int end(const struct nccl_comm *c, uint32_t verb) {
  struct wire_nccl_end m = {.comm = c->number, .verb = verb};
  struct nccl_answer a;
  return ask(OP_NCCL_END, 0, &m, sizeof m, &a);
}
int own_ncclCommFinalize(void *comm) {
  struct nccl_comm c;
  return nccl_comm_of(comm, &c) ? end(&c, WIRE_NCCL_END_FINALIZE) : bad_comm();
}
int own_ncclCommDestroy(void *comm) {
  struct nccl_comm c;
  if (!comm) return ncclSuccess;
  return forget(comm, &c) ? end(&c, WIRE_NCCL_END_DESTROY) : bad_comm();
}
int own_ncclCommAbort(void *comm) {
  struct nccl_comm c;
  if (!comm) return ncclSuccess;
  return forget(comm, &c) ? end(&c, WIRE_NCCL_END_ABORT) : bad_comm();
}

/* ---- facts ---- */

int own_ncclCommGetAsyncError(void *comm, void *state) {
  struct nccl_comm c;
  struct nccl_answer a;
  if (!state || !nccl_comm_of(comm, &c)) return bad_comm();
  struct wire_nccl_state m = {.comm = c.number};
  int r = ask(OP_NCCL_STATE, 0, &m, sizeof m, &a);
  if (!r) *(int *)state = (int)a.head.value;
  if (!r && a.head.value) nccl_failed((int)a.head.value, a.text);
  return r;
}

static int fact(void *comm, void *to, size_t at) {
  struct nccl_comm c;
  if (!to || !nccl_comm_of(comm, &c)) return bad_comm();
  memcpy(to, (const char *)&c + at, sizeof(int));
  return ncclSuccess;
}
int own_ncclCommCount(void *comm, void *count) { return fact(comm, count, offsetof(struct nccl_comm, ranks)); }
int own_ncclCommUserRank(void *comm, void *rank) { return fact(comm, rank, offsetof(struct nccl_comm, rank)); }
int own_ncclCommCuDevice(void *comm, void *device) { return fact(comm, device, offsetof(struct nccl_comm, device)); }

/* ---- memory: as NCCL gives it where it has no better than the driver's ---- */

int own_ncclMemAlloc(void *p, size_t bytes) {
  int (*alloc)(void *, size_t) = (int (*)(void *, size_t))(void *)nccl_driver("cuMemAlloc_v2");
  if (!p || !bytes) return nccl_failed(ncclInvalidArgument, "no place for the address, or no bytes");
  int r = alloc(p, bytes);
  return r ? nccl_answered(r, NULL, 0) : ncclSuccess;
}
int own_ncclMemFree(void *p) {
  int (*release)(void *) = (int (*)(void *))(void *)nccl_driver("cuMemFree_v2");
  int r = p ? release(p) : 0;
  return r ? nccl_answered(r, NULL, 0) : ncclSuccess;
}
