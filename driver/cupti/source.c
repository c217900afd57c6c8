#define _GNU_SOURCE
#include "source.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DRIVER_API = 1, ENTER = 0, BUFFER = 1 << 20, CALLS = 1 << 20 };

typedef void (*request_fn)(uint8_t **, size_t *, size_t *);
typedef void (*complete_fn)(void *, uint32_t, uint8_t *, size_t, size_t);
typedef void (*callback_fn)(void *, uint32_t, uint32_t, const void *);
static int (*register_callbacks)(request_fn, complete_fn);
static int (*enable)(uint32_t);
static int (*disable)(uint32_t);
static int (*flush_all)(uint32_t);
static int (*next_record)(uint8_t *, size_t, void **);
static int (*dropped)(void *, uint32_t, size_t *);
static int (*subscribe)(void **, callback_fn, void *);
static int (*unsubscribe)(void *);
static int (*enable_callback)(uint32_t, void *, uint32_t, uint32_t);
static int (*result_string)(int, const char **);
static int (*graph_id)(uint64_t, uint32_t *);   // these an older one lacks
static int (*exec_id)(uint64_t, uint32_t *);
static int (*node_id)(uint64_t, uint64_t *);

// scuda's own libcupti.so lies beside the client's core.
static int is_scudas(const void *function) {
  Dl_info info;
  char path[PATH_MAX + 32];
  if (!function || !dladdr(function, &info) || !realpath(info.dli_fname, path)) return 0;
  char *slash = strrchr(path, '/');
  strcpy(slash ? slash + 1 : path, "libscuda-core.so");
  return !access(path, F_OK);
}

const char *source_open(const char *path) {
  static const struct { const char *name; void *at; } functions[] = {
    {"cuptiActivityRegisterCallbacks", &register_callbacks}, {"cuptiActivityEnable", &enable},
    {"cuptiActivityDisable", &disable}, {"cuptiActivityFlushAll", &flush_all},
    {"cuptiActivityGetNextRecord", &next_record}, {"cuptiActivityGetNumDroppedRecords", &dropped},
    {"cuptiSubscribe", &subscribe}, {"cuptiUnsubscribe", &unsubscribe}, {"cuptiEnableCallback", &enable_callback},
    {"cuptiGetResultString", &result_string}};
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return dlerror();
  if (is_scudas(dlsym(library, functions[0].name))) return "it is scuda's own, which is for clients";
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    void *f = dlsym(library, functions[i].name);
    if (!f) return functions[i].name;
    memcpy(functions[i].at, &f, sizeof f);
  }
  static const struct { const char *name; void *at; } numbers[] = {
    {"cuptiGetGraphId", &graph_id}, {"cuptiGetGraphExecId", &exec_id}, {"cuptiGetGraphNodeId", &node_id}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    void *f = dlsym(library, numbers[i].name);
    memcpy(numbers[i].at, &f, sizeof f);
  }
  return NULL;
}

const char *source_text(int result) {
  const char *text = NULL;
  return result_string && !result_string(result, &text) && text ? text : "an unknown result of CUPTI";
}

// ---- whom calls belong to ----

static __thread uint32_t current;
static _Atomic uint64_t *calls; // by the lower half of CUPTI's id: that, and ours
static size_t site_at, id_at;

void source_correlate(uint32_t id) { current = id; }

uint32_t source_of(uint32_t correlation) {
  uint64_t call = calls ? atomic_load_explicit(&calls[correlation % CALLS], memory_order_acquire) : 0;
  return call >> 32 == correlation ? (uint32_t)call : 0;
}

static void on_call(void *user, uint32_t domain, uint32_t id, const void *data) {
  (void)user, (void)id;
  uint32_t site, correlation;
  if (domain != DRIVER_API || !current) return;
  memcpy(&site, (const uint8_t *)data + site_at, sizeof site);
  memcpy(&correlation, (const uint8_t *)data + id_at, sizeof correlation);
  if (site == ENTER)
    atomic_store_explicit(&calls[correlation % CALLS], (uint64_t)correlation << 32 | current, memory_order_release);
}

// ---- buffers ----

struct buffer { struct buffer *next; size_t valid; uint8_t *bytes; };
static struct buffer *first, **last = &first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic size_t lost;

static void request(uint8_t **bytes, size_t *size, size_t *most) {
  *bytes = aligned_alloc(8, BUFFER);
  *size = *bytes ? BUFFER : 0;
  *most = 0;
}

static void complete(void *context, uint32_t stream, uint8_t *bytes, size_t size, size_t valid) {
  (void)size;
  size_t n = 0;
  if (!dropped(context, stream, &n)) atomic_fetch_add(&lost, n);
  struct buffer *b = valid ? malloc(sizeof *b) : NULL;
  if (!b) {
    free(bytes);
    return;
  }
  *b = (struct buffer){NULL, valid, bytes};
  pthread_mutex_lock(&lock);
  *last = b;
  last = &b->next;
  pthread_mutex_unlock(&lock);
}

size_t source_lost(void) { return atomic_exchange(&lost, 0); }

// Belongs to one thread at a time.
static struct buffer *reading;
static void *record;

const uint8_t *source_next(void) {
  for (;;) {
    if (reading && !next_record(reading->bytes, reading->valid, &record)) return record;
    if (reading) {
      free(reading->bytes);
      free(reading);
    }
    record = NULL;
    pthread_mutex_lock(&lock);
    reading = first;
    if (first && !(first = first->next)) last = &first;
    pthread_mutex_unlock(&lock);
    if (!reading) return NULL;
  }
}

// ---- recording ----

static void *subscriber;

enum { OUT_OF_MEMORY = 8 };

int source_begin(const uint32_t *kinds, const uint32_t *ids, size_t site, size_t id, struct source_step *step) {
  site_at = site;
  id_at = id;
  *step = (struct source_step){"memory", 0};
  if (!calls && !(calls = calloc(CALLS, sizeof *calls))) return OUT_OF_MEMORY;
  step->what = "cuptiActivityRegisterCallbacks";
  int r = register_callbacks(request, complete);
  if (!r) {
    step->what = "cuptiSubscribe";
    r = subscribe(&subscriber, on_call, NULL);
  }
  if (!r) {
    *step = (struct source_step){"cuptiEnableCallback", *ids};
    int taken = 0;
    for (; *ids; ids++) {
      int refused = enable_callback(1, subscriber, DRIVER_API, *ids); // as a call that is newer than this library
      if (refused) r = refused;
      else taken = 1;
    }
    if (taken) r = 0;
  }
  for (; !r && *kinds; kinds++) {
    *step = (struct source_step){"cuptiActivityEnable", *kinds};
    r = enable(*kinds);
  }
  return r;
}

int source_end(const uint32_t *kinds) {
  int r = 0;
  for (; *kinds; kinds++) {
    int s = disable(*kinds);
    if (!r) r = s;
  }
  int s = flush_all(1);
  if (!r) r = s;
  s = subscriber ? unsubscribe(subscriber) : 0;
  subscriber = NULL;
  return r ? r : s;
}

int source_has_numbers(void) { return graph_id && exec_id && node_id; }

int source_number(int kind, uint64_t object, uint64_t *number) {
  uint32_t n = 0;
  if (kind == SOURCE_NODE) return node_id(object, number);
  int r = (kind == SOURCE_EXEC ? exec_id : graph_id)(object, &n);
  *number = n;
  return r;
}

int source_flush(void) { return flush_all(0); }
