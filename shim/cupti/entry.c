/* Where a call goes: to us where scuda has a session or is to have one, else to the program's own library. */
#define _GNU_SOURCE
#include "cupti.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
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

/* The table of the front that is in the process, or of the one beside us. */
static const struct scuda_profile_table *find_front(void) {
  static const uint8_t id[16] = SCUDA_PROFILE_ID;
  char folder[PATH_MAX], path[PATH_MAX + 16];
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!library && scuda_folder_of((const void *)find_front, folder, sizeof folder)) {
    snprintf(path, sizeof path, "%s/libcuda.so.1", folder);
    library = dlopen(path, RTLD_LAZY);
  }
  if (!library) return NULL;
  int32_t (*get)(const void **, const void *);
  get = (int32_t (*)(const void **, const void *))dlsym(library, "cuGetExportTable");
  const void *table = NULL;
  if (!get || get(&table, id) || !table) return NULL;
  const struct scuda_profile_table *t = table;
  front_library = library;
  if (t->bytes == sizeof *t) return t;
  scuda_log(SCUDA_ERROR, "libcupti.so.%d and libcuda.so.1 are of different releases of scuda; install one of them anew",
            cupti_major);
  return NULL;
}

/* A library of the name in a folder of a list such as DT_RPATH; $ORIGIN is the folder of the one that has the list. */
static void *find_in(const char *list, const char *origin, const char *name) {
  static const char *const words[] = {"$ORIGIN", "${ORIGIN}"};
  char path[PATH_MAX];
  for (; list && *list; list += strcspn(list, ":"), list += *list == ':') {
    size_t n = strcspn(list, ":"), skip = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
      if (!strncmp(list, words[i], strlen(words[i]))) skip = strlen(words[i]);
    int length = snprintf(path, sizeof path, "%s%.*s/%s", skip ? origin : "", (int)(n - skip), list + skip, name);
    if (!n || (size_t)length >= sizeof path) continue;
    void *found = scuda_open_other(path, (const void *)find_in, "a search path of the library that calls it");
    if (found) return found;
  }
  return NULL;
}

/* The program's own: where the loader would have found it for the caller, if not us. */
static void *find_real(const void *caller) {
  char name[32], origin[PATH_MAX];
  Dl_info info;
  struct link_map *map = NULL;
  snprintf(name, sizeof name, "libcupti.so.%d", cupti_major);
  void *found = NULL;
  if (dladdr1(caller, &info, (void **)&map, RTLD_DL_LINKMAP) && map && scuda_folder_of(caller, origin, sizeof origin)) {
    const char *strings = NULL;
    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++)
      if (d->d_tag == DT_STRTAB) strings = (const char *)d->d_un.d_ptr;
    for (const ElfW(Dyn) *d = map->l_ld; strings && !found && d->d_tag != DT_NULL; d++)
      if (d->d_tag == DT_RPATH || d->d_tag == DT_RUNPATH) found = find_in(strings + d->d_un.d_val, origin, name);
  }
  return found ? found : scuda_find_real(name, "SCUDA_REAL_LIBCUPTI", (const void *)find_real);
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
