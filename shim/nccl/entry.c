/* Where a call goes: to us where scuda has a session whose server carries NCCL out, else to the program's own library.
 */
#define _GNU_SOURCE
#include "nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct scuda_collective_table *nccl_front;
uint32_t nccl_version;
enum { UNDECIDED, OURS, REAL, NOBODY };
static _Atomic uint32_t target;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *real, *front_library;         /* they stay loaded */
static _Atomic uint8_t said[NCCL_FUNCTIONS];

/* The newest that the functions are known of, where nobody has asked the server. */
enum { SPOKEN = 23007 };

nccl_fn nccl_driver(const char *name) { return front_library ? (nccl_fn)dlsym(front_library, name) : NULL; }

int nccl_refused(uint32_t function) {
  if (!atomic_exchange(&said[function], 1))
    scuda_log(SCUDA_WARN, "%s is not supported by scuda's NCCL; answered ncclInvalidUsage (docs/nccl.md says what "
              "works)", nccl_names[function] + 1);
  return nccl_note(ncclInvalidUsage);
}

int nccl_refused_part(_Atomic uint8_t *told, uint32_t function, const char *what) {
  if (!atomic_exchange(told, 1))
    scuda_log(SCUDA_WARN, "%s with %s is not supported by scuda's NCCL; answered ncclInvalidUsage (docs/nccl.md says "
              "what works)", nccl_names[function] + 1, what);
  return nccl_note(ncclInvalidUsage);
}

static int nobody(void) { return ncclSystemError; }

static void *find_real(const void *caller) {
  return scuda_find_for(caller, "libnccl.so.2", "SCUDA_REAL_LIBNCCL", (const void *)find_real);
}

/* The program's variables of NCCL that may reach the server's, each with a 0 behind it. */
static uint32_t settings(char *to, uint32_t room, uint32_t *count) {
  static const char *const names[] = {NCCL_SETTINGS};
  uint32_t at = 0;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *value = getenv(names[i]);
    if (!value || !*value) continue;
    size_t n = strlen(names[i]) + strlen(value) + 2;
    if (n > room - at) continue;
    snprintf(to + at, n, "%s=%s", names[i], value);
    at += (uint32_t)n;
    ++*count;
  }
  return at;
}

/* Whether all servers carry NCCL out; why not. */
static int offered(const char **why, struct nccl_answer *a) {
  int (*init)(unsigned) = (int (*)(unsigned))(void *)nccl_driver("cuInit");
  *why = "cuInit fails";
  if (!init || init(0)) return 0;
  *why = "the server is of an older release";
  if (!nccl_front->offered()) return 0;
  static struct { struct wire_nccl_open head; char settings[WIRE_MAX_NCCL_SETTINGS]; } m; /* under the lock */
  memset(&m, 0, sizeof m);
  m.head.setting_bytes = settings(m.settings, sizeof m.settings, &m.head.settings);
  int r = 0;
  for (uint32_t server = 0; server < nccl_front->servers() && !r; server++) {
    r = nccl_ask(OP_NCCL_OPEN, server, 0, &m, (uint32_t)sizeof m.head + m.head.setting_bytes, a);
    if (!r && *a->text)
      scuda_log(SCUDA_WARN, "the server's NCCL does not take what these variables say: %s (docs/nccl.md says what it "
                "takes)", a->text);
    if (!server || (uint32_t)a->head.value < nccl_version) nccl_version = (uint32_t)a->head.value;
  }
  *why = *a->text ? a->text : "the server does not answer as it should";
  return !r;
}

static uint32_t decide(const void *caller) {
  static const uint8_t id[16] = SCUDA_COLLECTIVE_ID;
  struct nccl_answer a;
  memset(&a, 0, sizeof a);
  pthread_mutex_lock(&lock);
  uint32_t t = target;
  if (t == UNDECIDED) {
    const char *why = NULL;
    int served = scuda_configured() &&
                 (nccl_front = scuda_find_table(id, sizeof *nccl_front, "libnccl.so.2", (const void *)decide,
                                                &front_library)) && nccl_front->serves();
    if (served && offered(&why, &a)) t = OURS;
    else t = (real = find_real(caller)) ? REAL : NOBODY;
    if (served && t == REAL) scuda_log(SCUDA_INFO, "NCCL runs in the program, within one server: %s", why);
    if (served && t == NOBODY)
      scuda_log(SCUDA_ERROR, "there is no NCCL: the program's own libnccl.so.2 is not found, and %s", why);
    target = t;
  }
  pthread_mutex_unlock(&lock);
  return t;
}

static int is_fact(uint32_t function) {
  return function == NCCL_ncclGetVersion || function == NCCL_ncclGetErrorString || function == NCCL_ncclGetLastError ||
         function == NCCL_ncclResetDebugInit;
}

nccl_fn nccl_route(uint32_t function, uint32_t second, const void *caller) {
  uint32_t t = target;
  void *library = real;
  if (SCUDA_UNLIKELY(t == UNDECIDED)) {
    /* programs ask for the version when they are loaded, before they know whether they want a GPU */
    if (is_fact(function)) t = (library = find_real(caller)) ? REAL : NOBODY;
    else {
      t = decide(caller);
      library = real;
    }
  }
  if (t == OURS || (t == NOBODY && is_fact(function))) return NULL;
  nccl_fn f = t == REAL ? (nccl_fn)dlsym(library, nccl_names[function] + !second) : NULL;
  return f || is_fact(function) ? f : (nccl_fn)nobody;
}

int own_ncclGetVersion(void *version) {
  if (!version) return ncclInvalidArgument;
  *(int *)version = nccl_version ? (int)nccl_version : SPOKEN;
  return ncclSuccess;
}

const char *own_ncclGetErrorString(int result) {
  static const char *const texts[NCCL_RESULTS] = {
      "no error", "a CUDA call failed", "a system call or another library failed", "internal error",
      "invalid argument", "invalid usage", "another rank, or the way to it, failed", "in progress", "timed out"};
  return result >= 0 && result < NCCL_RESULTS ? texts[result] : "unknown result code";
}

void own_ncclResetDebugInit(void) {}
