/* Where a call goes: to us where scuda has a session or is to have one, else to the program's own library. */
#define _GNU_SOURCE
#include "cupti.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

const struct scuda_profile_table *cupti_front;
enum { UNDECIDED, OURS, REAL, NOBODY };
static _Atomic uint32_t target;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *real;
static cupti_fn real_functions[CUPTI_FUNCTIONS];
static _Atomic uint8_t said[CUPTI_FUNCTIONS];

static long not_supported(long a, long b, long c, long d, long e, long f, long g, long h) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
  return CUPTI_ERROR_NOT_SUPPORTED;
}
static long not_initialized(long a, long b, long c, long d, long e, long f, long g, long h) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
  return CUPTI_ERROR_NOT_INITIALIZED;
}
static long zero(long a, long b, long c, long d, long e, long f, long g, long h) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
  return 0;
}

static void *front_library;    /* it stays loaded */
void *cupti_driver_function(const char *name) { return front_library ? dlsym(front_library, name) : NULL; }

int cupti_refused(_Atomic uint8_t *told, const char *name) {
  if (!atomic_exchange(told, 1))
    scuda_log(SCUDA_WARN, "%s is not supported by scuda's CUPTI; answered CUPTI_ERROR_NOT_SUPPORTED (docs/profiling.md "
              "says what works)", name);
  return CUPTI_ERROR_NOT_SUPPORTED;
}

static const struct scuda_profile_table *find_front(void) {
  static const uint8_t id[16] = SCUDA_PROFILE_ID;
  char name[32];
  snprintf(name, sizeof name, "libcupti.so.%d", cupti_major);
  return scuda_find_table(id, sizeof(struct scuda_profile_table), name, (const void *)find_front, &front_library);
}

/* The program's own: where the loader would have found it for the caller, if not us. */
static void *find_real(const void *caller) {
  char name[32];
  snprintf(name, sizeof name, "libcupti.so.%d", cupti_major);
  return scuda_find_for(caller, name, "SCUDA_REAL_LIBCUPTI", (const void *)find_real);
}

static uint32_t decide(const void *caller) {
  pthread_mutex_lock(&lock);
  uint32_t t = target;
  if (t == UNDECIDED) {
    t = NOBODY;
    if (scuda_configured() && (cupti_front = find_front()) && cupti_front->serves()) t = OURS;
    else if ((real = find_real(caller))) t = REAL;
    target = t;
  }
  pthread_mutex_unlock(&lock);
  return t;
}

static cupti_fn pass(uint32_t i) {
  cupti_fn f = __atomic_load_n(&real_functions[i], __ATOMIC_RELAXED);
  if (!f) {
    f = (cupti_fn)dlsym(real, cupti_functions[i].name);
    if (!f) f = not_supported;
    __atomic_store_n(&real_functions[i], f, __ATOMIC_RELAXED);
  }
  return f;
}

cupti_fn cupti_route(uint32_t i, const void *caller) {
  uint32_t t = target;
  if (SCUDA_UNLIKELY(t == UNDECIDED)) t = decide(caller);
  if (t == REAL) return pass(i);
  if (t == NOBODY) return not_initialized;
  if (cupti_functions[i].own) return cupti_functions[i].own;
  if (strncmp(cupti_functions[i].name, "cupti", 5)) return zero;
  cupti_refused(&said[i], cupti_functions[i].name);
  return not_supported;
}
