/* Communicators: they begin and end at the server; facts of theirs are answered here. */
#define _GNU_SOURCE
#include "nccl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nccl_comm *first;
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

int nccl_ask(uint32_t op, uint32_t server, uint64_t context, const void *payload, uint32_t bytes,
             struct nccl_answer *a) {
  uint32_t got = 0;
  memset(a, 0, sizeof *a);
  int32_t r = nccl_front->ask(op, server, context, payload, bytes, a, sizeof *a - 1, &got);
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

void nccl_remember(struct nccl_comm *c) {
  pthread_mutex_lock(&lock);
  c->next = first;
  first = c;
  pthread_mutex_unlock(&lock);
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

int nccl_one_device(void) {
  int one = 1;
  pthread_mutex_lock(&lock);
  for (struct nccl_comm *c = first; c && one; c = c->next) one = c->device == first->device;
  pthread_mutex_unlock(&lock);
  return one;
}

int nccl_bad_comm(void) { return nccl_failed(ncclInvalidArgument, "the communicator is none, or has ended"); }

/* ---- the id ---- */

int own_ncclGetUniqueId(void *id) {
  if (!id) return nccl_failed(ncclInvalidArgument, "no place for the id");
  struct wire_nccl_unique_id m = {0};
  struct { struct wire_nccl_id head; char text[NCCL_TEXT]; } a;
  uint32_t got = 0;
  memset(&a, 0, sizeof a);
  int32_t r = nccl_front->ask(OP_NCCL_UNIQUE_ID, nccl_front->server_of(0), 0, &m, sizeof m, &a, sizeof a - 1, &got);
  if (r) return nccl_answered(r, NULL, 0);
  if (got < sizeof a.head) return nccl_failed(ncclInternalError, "the server's answer is malformed");
  if (a.head.result) return nccl_failed(a.head.result, a.text);
  memcpy(id, a.head.id, sizeof a.head.id);
  return ncclSuccess;
}

/* ---- the end ---- */

static int end(const struct nccl_comm *c, uint32_t verb) {
  struct wire_nccl_end m = {.comm = c->number, .verb = verb};
  struct nccl_answer a;
  int r = nccl_ask(OP_NCCL_END, c->server, 0, &m, sizeof m, &a);
  nccl_sent();
  return r;
}
int own_ncclCommFinalize(void *comm) {
  struct nccl_comm c;
  return nccl_comm_of(comm, &c) ? end(&c, WIRE_NCCL_END_FINALIZE) : nccl_bad_comm();
}
int own_ncclCommDestroy(void *comm) {
  struct nccl_comm c;
  if (!comm) return ncclSuccess;
  return forget(comm, &c) ? end(&c, WIRE_NCCL_END_DESTROY) : nccl_bad_comm();
}
int own_ncclCommAbort(void *comm) {
  struct nccl_comm c;
  if (!comm) return ncclSuccess;
  return forget(comm, &c) ? end(&c, WIRE_NCCL_END_ABORT) : nccl_bad_comm();
}

/* ---- facts ---- */

/* A watchdog asks once for each call that is under way, hundreds of times in a row, and holds locks meanwhile. That all
 * was well stays true for FRESH at most, and only until this process sends another operation. */
enum { FRESH = 10 * 1000 * 1000 };
static _Atomic uint64_t sent; /* lists of operations */

void nccl_sent(void) { atomic_fetch_add(&sent, 1); }

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void keep_well(const void *handle, uint64_t number, uint64_t then, int64_t until) {
  pthread_mutex_lock(&lock);
  struct nccl_comm *c = *find(handle);
  if (c && c->number == number) c->well_sent = then, c->well_until = until;
  pthread_mutex_unlock(&lock);
}

int own_ncclCommGetAsyncError(void *comm, void *state) {
  struct nccl_comm c;
  struct nccl_answer a;
  if (!state || !nccl_comm_of(comm, &c)) return nccl_bad_comm();
  uint64_t then = atomic_load(&sent);
  int64_t asked = now();
  if (c.well_sent == then && asked < c.well_until) {
    *(int *)state = ncclSuccess;
    return ncclSuccess;
  }
  struct wire_nccl_state m = {.comm = c.number};
  int r = nccl_ask(OP_NCCL_STATE, c.server, 0, &m, sizeof m, &a);
  if (!r) *(int *)state = (int)a.head.value;
  if (!r && a.head.value) nccl_failed((int)a.head.value, a.text);
  if (!r && !a.head.value) keep_well(comm, c.number, then, asked + FRESH);
  return r;
}

static int fact(void *comm, void *to, size_t at) {
  struct nccl_comm c;
  if (!to || !nccl_comm_of(comm, &c)) return nccl_bad_comm();
  memcpy(to, (const char *)&c + at, sizeof(int));
  return ncclSuccess;
}
int own_ncclCommCount(void *comm, void *count) { return fact(comm, count, offsetof(struct nccl_comm, ranks)); }
int own_ncclCommUserRank(void *comm, void *rank) { return fact(comm, rank, offsetof(struct nccl_comm, rank)); }
int own_ncclCommCuDevice(void *comm, void *device) { return fact(comm, device, offsetof(struct nccl_comm, device)); }

/* ---- registration: NCCL may leave a buffer as it is, and gives no handle then ---- */

int own_ncclCommRegister(void *comm, void *buffer, size_t bytes, void *handle) {
  struct nccl_comm c;
  if (!nccl_comm_of(comm, &c)) return nccl_bad_comm();
  if (!buffer || !bytes || !handle) return nccl_failed(ncclInvalidArgument, "no buffer, or no place for its handle");
  memset(handle, 0, sizeof(void *));
  return ncclSuccess;
}
int own_ncclCommDeregister(void *comm, void *handle) {
  struct nccl_comm c;
  if (!nccl_comm_of(comm, &c)) return nccl_bad_comm();
  return handle ? nccl_failed(ncclInvalidArgument, "the handle is none") : ncclSuccess;
}

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
