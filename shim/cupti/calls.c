/* Calls of the program: the front tells us of the driver's, cudart of its own. A runtime call and the driver calls in
 * it have one correlation id, and what is recorded of the one is not recorded of the others again: natively the runtime
 * reaches the driver by ways that tools do not see. */
#define _GNU_SOURCE
#include "cupti.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- threads ---- */

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void thread_ends(void *state) {
  struct cupti_thread *t = state;
  for (int k = 0; k < CUPTI_EXTERNAL_KINDS; k++) free(t->external[k].ids);
  free(t->ranges);
  free(t);
}
static void make_key(void) { pthread_key_create(&key, thread_ends); }

struct cupti_thread *cupti_self(void) {
  static struct cupti_thread none = {.inside = 1}; /* without memory nothing is recorded */
  pthread_once(&once, make_key);
  struct cupti_thread *t = pthread_getspecific(key);
  if (!t && (t = calloc(1, sizeof *t))) pthread_setspecific(key, t);
  return t ? t : &none;
}

static _Atomic uint32_t thread_id_type;
int own_cuptiSetThreadIdType(uint32_t type) {
  if (type >= CUPTI_ACTIVITY_THREAD_ID_TYPE_SIZE) return CUPTI_ERROR_NOT_SUPPORTED;
  thread_id_type = type;
  return CUPTI_SUCCESS;
}
int own_cuptiGetThreadIdType(uint32_t *type) {
  if (!type) return CUPTI_ERROR_INVALID_PARAMETER;
  *type = thread_id_type;
  return CUPTI_SUCCESS;
}
static uint32_t kernel_thread(void) {
  struct cupti_thread *t = cupti_self();
  if (!t->number) t->number = (uint32_t)syscall(SYS_gettid);
  return t->number;
}
uint32_t cupti_thread_id(void) {
  return thread_id_type == CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM ? kernel_thread() :
         (uint32_t)(uintptr_t)pthread_self();
}

/* ---- time ---- */

uint64_t cupti_real(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
uint64_t cupti_now(void) {
  cupti_clock clock = cupti_program_clock;
  return clock ? clock() : cupti_real();
}

/* ---- ids ---- */

static uint32_t next_correlation(void) {
  static _Atomic uint32_t last;
  uint32_t id = atomic_fetch_add(&last, 1) + 1;
  return id ? id : next_correlation();
}

/* ---- records of calls ---- */

static void record_call(uint32_t kind, uint32_t id, uint32_t correlation, uint64_t began, uint64_t ended,
                        uint32_t result) {
  const struct cupti_thread *t = cupti_self();
  for (uint32_t k = 1; k < CUPTI_EXTERNAL_KINDS && cupti_active[CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION]; k++) {
    const struct cupti_stack *s = &t->external[k];
    if (!s->depth) continue;
    struct CUpti_ActivityExternalCorrelation e = {.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, .externalKind = k,
                                                  .externalId = s->ids[s->depth - 1], .correlationId = correlation};
    cupti_write(&e, sizeof e);
  }
  struct CUpti_ActivityAPI r = {.kind = kind, .cbid = id, .start = began, .end = ended, .processId = (uint32_t)getpid(),
                                .threadId = cupti_thread_id(), .correlationId = correlation, .returnValue = result};
  cupti_write(&r, sizeof r);
  cupti_came();
}

/* ---- what a driver call means ---- */

struct meaning {
  uint8_t copy;                /* 1: its first two arguments are target and source */
  uint8_t peers;               /* between GPUs; 1: its arguments have the contexts, 2: a structure */
  uint8_t wait;                /* CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_... */
  uint8_t launch;              /* n + 1: argument n is a kernel */
};

static struct meaning meaning_of(uint32_t id) {
  switch (id) {
  case CBID_cuMemcpyHtoD_v2: case CBID_cuMemcpyHtoD_v2_ptds: case CBID_cuMemcpyHtoDAsync_v2:
  case CBID_cuMemcpyHtoDAsync_v2_ptsz: case CBID_cuMemcpyDtoH_v2: case CBID_cuMemcpyDtoH_v2_ptds:
  case CBID_cuMemcpyDtoHAsync_v2: case CBID_cuMemcpyDtoHAsync_v2_ptsz: case CBID_cuMemcpy: case CBID_cuMemcpy_ptds:
  case CBID_cuMemcpyAsync: case CBID_cuMemcpyAsync_ptsz: return (struct meaning){.copy = 1};
  case CBID_cuMemcpyPeer: case CBID_cuMemcpyPeer_ptds: case CBID_cuMemcpyPeerAsync: case CBID_cuMemcpyPeerAsync_ptsz:
    return (struct meaning){.peers = 1};
  case CBID_cuMemcpy3DPeer: case CBID_cuMemcpy3DPeer_ptds: case CBID_cuMemcpy3DPeerAsync:
  case CBID_cuMemcpy3DPeerAsync_ptsz: return (struct meaning){.peers = 2};
  case CBID_cuStreamSynchronize: case CBID_cuStreamSynchronize_ptsz:
    return (struct meaning){.wait = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE};
  case CBID_cuCtxSynchronize: case CBID_cuCtxSynchronize_v2:
    return (struct meaning){.wait = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE};
  case CBID_cuEventSynchronize: return (struct meaning){.wait = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE};
  case CBID_cuStreamWaitEvent: case CBID_cuStreamWaitEvent_ptsz:
    return (struct meaning){.wait = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT};
  case CBID_cuLaunchKernel: case CBID_cuLaunchKernel_ptsz: case CBID_cuLaunchCooperativeKernel:
  case CBID_cuLaunchCooperativeKernel_ptsz: return (struct meaning){.launch = 1};
  case CBID_cuLaunchKernelEx: case CBID_cuLaunchKernelEx_ptsz: return (struct meaning){.launch = 2};
  }
  return (struct meaning){0};
}

static void call_back(struct scuda_profiled *c, uint32_t id, uint32_t site) {
  struct scuda_profile_ids ids;
  cupti_front->ids(c->context, UINT64_MAX, 0, &ids);
  int launch = meaning_of(id).launch;
  struct CUpti_CallbackData d = {
    .callbackSite = site, .functionName = (uintptr_t)c->name, .functionParams = (uintptr_t)c->params,
    .functionReturnValue = site == CUPTI_API_EXIT ? (uintptr_t)&c->result : 0,
    .symbolName = launch ? (uintptr_t)cupti_front->kernel(cupti_argument(c, launch - 1)) : 0, .context = c->context,
    .contextUid = ids.context, .correlationData = (uintptr_t)&c->data, .correlationId = c->correlation};
  cupti_call_back(CUPTI_CB_DOMAIN_DRIVER_API, id, &d);
}

/* Whether anybody wants to know of a wait: records of waits, records of work, which end before it, callbacks. */
static int waits_wanted(void) {
  return cupti_active[CUPTI_ACTIVITY_KIND_SYNCHRONIZATION] || cupti_work_kinds() ||
         cupti_called[CUPTI_CB_DOMAIN_SYNCHRONIZE][CUPTI_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED] ||
         cupti_called[CUPTI_CB_DOMAIN_SYNCHRONIZE][CUPTI_CBID_SYNCHRONIZE_CONTEXT_SYNCHRONIZED];
}

static void waited(const struct scuda_profiled *c, uint32_t id, uint32_t type, uint64_t ended) {
  struct scuda_profile_ids ids;
  if (!waits_wanted()) return;
  int of_stream = type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE ||
                  type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT;
  uint64_t context = id == CBID_cuCtxSynchronize_v2 ? cupti_argument(c, 0) : c->context;
  cupti_front->ids(context, of_stream ? cupti_argument(c, 0) : UINT64_MAX, cupti_per_thread(c), &ids);
  if (!c->result && (type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE ||
                     (type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE && ids.stream)))
    cupti_waited(c->correlation, kernel_thread(), &ids, cupti_real());
  if (cupti_active[CUPTI_ACTIVITY_KIND_SYNCHRONIZATION] && (!c->result || cupti_failed_waits)) {
    struct CUpti_ActivitySynchronization2 s = {
      .kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, .type = type, .start = c->began, .end = ended,
      .correlationId = c->correlation, .contextId = ids.context, .returnValue = (uint32_t)c->result,
      .streamId = of_stream ? ids.stream : UINT32_MAX, .cudaEventId = UINT32_MAX, .cudaEventSyncId = UINT32_MAX};
    int second = type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT;
    if (second || type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE)
      cupti_event_numbers(cupti_argument(c, second), &s.cudaEventId, &s.cudaEventSyncId);
    cupti_write(&s, sizeof s);
  }
  uint32_t told = type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE ?
                  CUPTI_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED :
                  type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE ?
                  CUPTI_CBID_SYNCHRONIZE_CONTEXT_SYNCHRONIZED : 0;
  if (told && !c->result && cupti_called[CUPTI_CB_DOMAIN_SYNCHRONIZE][told]) {
    struct CUpti_SynchronizeData d = {.context = c->context, .stream = of_stream ? cupti_argument(c, 0) : 0};
    cupti_call_back(CUPTI_CB_DOMAIN_SYNCHRONIZE, told, &d);
  }
}

/* Of a copy from GPU to GPU: which. */
static void copies_between(const struct scuda_profiled *c, int structure, struct cupti_origin *o) {
  uint64_t contexts[] = {cupti_argument(c, 3), cupti_argument(c, 1)};
  const uint8_t *p = (const void *)(uintptr_t)cupti_argument(c, 0);
  if (structure && p) { /* CUDA_MEMCPY3D_PEER's srcContext and dstContext */
    memcpy(&contexts[0], p + 64, 8);
    memcpy(&contexts[1], p + 152, 8);
  }
  o->peers = 1;
  o->async = strstr(c->name, "Async") != NULL;
  for (int i = 0; i < 2; i++) cupti_front->ids(contexts[i], UINT64_MAX, 0, &o->ends[i]);
}

/* ---- the driver's calls ---- */

static int enter(struct scuda_profiled *c) {
  struct cupti_thread *t = cupti_self();
  if (t->inside || c->function >= cupti_driver_exports) return 0;
  cupti_work_check();
  uint32_t id = cupti_driver_ids[c->function];
  /* runtime calls whose end we were not told of are over: what they call lies deeper on the stack */
  while (t->depth && (uintptr_t)c > (uintptr_t)t->runtime[t->depth - 1].record) t->depth--;
  c->outer = t->depth ? t->runtime[t->depth - 1].told : 0;
  c->correlation = t->depth ? t->runtime[t->depth - 1].correlation : next_correlation();
  struct meaning m = meaning_of(id);
  struct cupti_origin o = {.correlation = c->correlation, .thread = kernel_thread(), .began = cupti_real()};
  if (m.copy) {
    o.target = (uint8_t)cupti_front->memory(cupti_argument(c, 0), NULL);
    o.source = (uint8_t)cupti_front->memory(cupti_argument(c, 1), NULL);
    o.async = strstr(c->name, "Async") != NULL;
  }
  if (m.peers) copies_between(c, m.peers == 2, &o);
  if (id == CBID_cuGraphLaunch || id == CBID_cuGraphLaunch_ptsz) o.graph = cupti_launched_number(cupti_argument(c, 0));
  cupti_came_from(&o);
  if (id && cupti_called[CUPTI_CB_DOMAIN_DRIVER_API][id] && !(c->outer & CUPTI_CALLED)) {
    c->told |= CUPTI_CALLED;
    call_back(c, id, CUPTI_API_ENTER);
  }
  cupti_objects_enter(c, id);
  if (id && cupti_recorded(0, id) && !(c->outer & CUPTI_RECORDED)) c->told |= CUPTI_RECORDED;
  c->began = cupti_now();
  return 1;
}

static void leave(struct scuda_profiled *c) {
  uint32_t id = cupti_driver_ids[c->function];
  struct meaning m = meaning_of(id);
  uint64_t ended = m.wait || c->told & CUPTI_RECORDED ? cupti_now() : 0;
  if (c->told & CUPTI_RECORDED)
    record_call(CUPTI_ACTIVITY_KIND_DRIVER, id, c->correlation, c->began, ended, (uint32_t)c->result);
  if (m.wait) waited(c, id, m.wait, ended);
  if (!c->result) cupti_objects_leave(c, id);
  if (c->told & CUPTI_CALLED) call_back(c, id, CUPTI_API_EXIT);
}

/* ---- the runtime's calls ---- */

static void runtime_call_back(uint32_t id, const uint64_t *r, uint32_t site, uint32_t correlation) {
  struct CUpti_CallbackData d = {
    .callbackSite = site, .functionName = r[RUNTIME_NAME], .functionParams = r[RUNTIME_PARAMS],
    .functionReturnValue = site == CUPTI_API_EXIT ? r[RUNTIME_RESULT] : 0, .context = r[RUNTIME_CONTEXT],
    .contextUid = (uint32_t)r[RUNTIME_CONTEXT_ID], .correlationData = r[RUNTIME_DATA], .correlationId = correlation};
  /* only launches have the place filled; what lies there otherwise is no address of ours to read */
  const char *name = id < CUPTI_RUNTIME_IDS ? cupti_runtime_names[id] : NULL;
  if (name && strstr(name, "cudaLaunch") == name && strncmp(name, "cudaLaunchHostFunc", 18))
    d.symbolName = r[RUNTIME_SYMBOL];
  cupti_call_back(CUPTI_CB_DOMAIN_RUNTIME_API, id, &d);
}

static void runtime(uint32_t id, void *record) {
  struct cupti_thread *t = cupti_self();
  const uint64_t *r = record;
  if (t->inside || id >= CUPTI_IDS) return;
  if (!(r[RUNTIME_SITE] >> 32)) {
    while (t->depth && (uintptr_t)record >= (uintptr_t)t->runtime[t->depth - 1].record) t->depth--;
    if (t->depth == CUPTI_NESTED) return;
    uint32_t told = 0, correlation = next_correlation();
    struct cupti_origin o = {.correlation = correlation, .thread = kernel_thread(), .began = cupti_real()};
    cupti_came_from(&o);
    if (cupti_called[CUPTI_CB_DOMAIN_RUNTIME_API][id]) {
      told |= CUPTI_CALLED;
      runtime_call_back(id, r, CUPTI_API_ENTER, correlation);
    }
    if (cupti_recorded(1, id)) told |= CUPTI_RECORDED;
    t->runtime[t->depth].record = r;
    t->runtime[t->depth].correlation = correlation;
    t->runtime[t->depth].told = told;
    t->runtime[t->depth++].began = cupti_now();
    return;
  }
  while (t->depth && t->runtime[t->depth - 1].record != r) t->depth--;
  if (!t->depth) return;
  t->depth--;
  uint32_t correlation = t->runtime[t->depth].correlation, result = 0;
  if (t->runtime[t->depth].told & CUPTI_RECORDED) {
    if (r[RUNTIME_RESULT]) memcpy(&result, (const void *)(uintptr_t)r[RUNTIME_RESULT], sizeof result);
    record_call(CUPTI_ACTIVITY_KIND_RUNTIME, id, correlation, t->runtime[t->depth].began, cupti_now(), result);
  }
  if (t->runtime[t->depth].told & CUPTI_CALLED) runtime_call_back(id, r, CUPTI_API_EXIT, correlation);
}

const struct scuda_profiler cupti_profiler = {enter, leave, runtime};
