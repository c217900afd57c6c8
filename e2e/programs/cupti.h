// What the programs about profiles have in common: CUPTI's functions, found as the tool under test finds them, and the
// records that it hands over.
#ifndef PROFILE_H
#define PROFILE_H
#define _GNU_SOURCE
#include "check.h"
#include "../../shim/cupti/gen/cupti_gen.h"

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

typedef void (*request_fn)(uint8_t **, size_t *, size_t *);
typedef void (*complete_fn)(CUcontext, uint32_t, uint8_t *, size_t, size_t);
typedef void (*callback_fn)(void *, uint32_t, uint32_t, const void *);
typedef struct subscriber *subscriber_t;

#define CUPTI_USED(F) \
  F(GetVersion, uint32_t *) F(GetResultString, int, const char **) F(Subscribe, subscriber_t *, callback_fn, void *) \
  F(Unsubscribe, subscriber_t) F(EnableCallback, uint32_t, subscriber_t, uint32_t, uint32_t) \
  F(EnableDomain, uint32_t, subscriber_t, uint32_t) F(Finalize, void) F(GetTimestamp, uint64_t *) \
  F(GetCallbackName, uint32_t, uint32_t, const char **) F(GetDeviceId, CUcontext, uint32_t *) \
  F(GetContextId, CUcontext, uint32_t *) F(GetStreamIdEx, CUcontext, CUstream, uint8_t, uint32_t *) \
  F(ActivityRegisterCallbacks, request_fn, complete_fn) F(ActivityEnable, uint32_t) F(ActivityDisable, uint32_t) \
  F(ActivityFlushAll, uint32_t) F(ActivityFlushPeriod, uint32_t) \
  F(ActivityGetNextRecord, uint8_t *, size_t, void **) F(ActivityGetNumDroppedRecords, CUcontext, uint32_t, size_t *) \
  F(ActivityPushExternalCorrelationId, uint32_t, uint64_t) \
  F(ActivityPopExternalCorrelationId, uint32_t, uint64_t *) F(ActivitySetAttribute, uint32_t, size_t *, void *) \
  F(ActivityRegisterTimestampCallback, uint64_t (*)(void)) F(ActivityEnableRuntimeApi, uint32_t, uint8_t) \
  F(ActivityEnableDriverApi, uint32_t, uint8_t) \
  F(ActivityEnableAndDump, uint32_t) F(ActivityEnableAllSyncRecords, uint8_t) \
  F(ActivityEnableCudaEventDeviceTimestamps, uint8_t) F(ActivityEnableLatencyTimestamps, uint8_t) \
  F(GetGraphId, CUgraph, uint32_t *) F(GetGraphExecId, CUgraphExec, uint32_t *) \
  F(GetGraphNodeId, CUgraphNode, uint64_t *) \
  F(SetThreadIdType, uint32_t) F(ActivityConfigurePCSampling, CUcontext, void *) F(ProfilerInitialize, void *)
// CUDA 13.0's does not have these; NULL there.
#define CUPTI_LATER(F) F(GetCudaEventId, CUevent, uint32_t *)
#define F(name, ...) static int (*cupti##name)(__VA_ARGS__);
CUPTI_USED(F)
CUPTI_LATER(F)
#undef F

static void open_cupti(const char *library, int flags) {
  void *lib = dlopen(library, flags);
  CHECK(lib, "%s", dlerror());
#define F(name, ...) CHECK((cupti##name = (int (*)(__VA_ARGS__))dlsym(lib, "cupti" #name)), "no cupti" #name);
  CUPTI_USED(F)
#undef F
#define F(name, ...) cupti##name = (int (*)(__VA_ARGS__))dlsym(lib, "cupti" #name);
  CUPTI_LATER(F)
#undef F
}

// ---- records ----

enum { BUFFER = 1 << 16, MOST = 1 << 20 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t *records[MOST]; // copies
static int count, buffers, limit_of_buffers = 1 << 30;

static void request(uint8_t **buffer, size_t *size, size_t *most) {
  pthread_mutex_lock(&lock);
  int enough = buffers >= limit_of_buffers;
  buffers += !enough;
  pthread_mutex_unlock(&lock);
  *size = enough ? 0 : BUFFER;
  *buffer = enough ? NULL : aligned_alloc(8, BUFFER);
  *most = 0;
}

static void complete(CUcontext c, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
  void *r = NULL;
  int result;
  CHECK(valid <= size && size == BUFFER, "%zu of %zu bytes", valid, size);
  pthread_mutex_lock(&lock);
  buffers--;
  for (size_t at = 0; !(result = cuptiActivityGetNextRecord(buffer, valid, &r));) {
    CHECK((uint8_t *)r == buffer + at, "a record at %td, the one before ended at %zu", (uint8_t *)r - buffer, at);
    // the largest; what is behind a shorter one is not looked at
    uint64_t *copy = calloc(1, sizeof(struct CUpti_ActivityKernel11));
    size_t left = valid - at;
    memcpy(copy, r, left < sizeof(struct CUpti_ActivityKernel11) ? left : sizeof(struct CUpti_ActivityKernel11));
    void *next = r;
    if (!cuptiActivityGetNextRecord(buffer, valid, &next)) at = (size_t)((uint8_t *)next - buffer);
    CHECK(count < MOST, "too many records");
    records[count++] = copy;
  }
  CHECK(result == CUPTI_ERROR_MAX_LIMIT_REACHED, "the end of a buffer is said by %d", result);
  pthread_mutex_unlock(&lock);
  free(buffer);
}

static int of_kind(int kind) {
  int n = 0;
  for (int i = 0; i < count; i++) n += *(uint32_t *)records[i] == (uint32_t)kind;
  return n;
}

#define EACH(type, r, of) \
  for (int i_ = 0; i_ < count; i_++) \
    for (const struct type *r = (const void *)records[i_]; r && r->kind == (uint32_t)(of); r = NULL)

static void forget(void) {
  while (count) free(records[--count]);
}

static uint64_t real_time(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
#endif
