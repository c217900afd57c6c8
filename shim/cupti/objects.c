/* The program's objects: records of devices, contexts, streams, memory and recorded events, callbacks when contexts,
 * streams, modules and graphs come and go, and the numbers of what the driver has no numbers for. All is made of what
 * the program's calls say; what they do not say, the driver is asked, in calls that nobody is told of. */
#include "cupti.h"
#include "gen/cuda_gen.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- numbers ---- */

/* Executable graphs are numbered as graphs. EXEC_NODE: what is in one. The driver gives it no handle; its place here
 * serves as one. */
enum { EVENT = 1, MODULE, GRAPH, NODE, EXEC_NODE };
enum { LISTS = 1 << 10 };
/* other: of a graph or a node that it belongs to; of an EXEC_NODE the executable graph, and of is the graph's node */
static struct number { struct number *next; uint64_t handle, other, of; uint32_t kind, id; } *numbers[LISTS];
static pthread_mutex_t number_lock = PTHREAD_MUTEX_INITIALIZER;

static struct number **place_of(uint32_t kind, uint64_t handle) {
  struct number **at = &numbers[(handle >> 4 ^ handle >> 16 ^ kind) % LISTS];
  while (*at && ((*at)->handle != handle || (*at)->kind != kind)) at = &(*at)->next;
  return at;
}

/* The number of an object, its first where it has none yet, and what is known of it besides. */
static struct number number_of(uint32_t kind, uint64_t handle) {
  static uint32_t last[EXEC_NODE + 1];
  struct number n = {0};
  pthread_mutex_lock(&number_lock);
  struct number **at = place_of(kind, handle);
  if (!*at && (*at = calloc(1, sizeof **at))) {
    (*at)->kind = kind;
    (*at)->handle = handle;
    (*at)->id = ++last[kind];
  }
  if (*at) n = **at;
  pthread_mutex_unlock(&number_lock);
  return n;
}

static void note(uint32_t kind, uint64_t handle, uint64_t other) {
  number_of(kind, handle);
  pthread_mutex_lock(&number_lock);
  struct number **at = place_of(kind, handle);
  if (*at) (*at)->other = other;
  pthread_mutex_unlock(&number_lock);
}

static void forget(uint32_t kind, uint64_t handle) {
  pthread_mutex_lock(&number_lock);
  struct number **at = place_of(kind, handle), *old = *at;
  if (old) {
    *at = old->next;
    free(old);
  }
  pthread_mutex_unlock(&number_lock);
}

uint32_t cupti_launched_number(uint64_t exec) { return cupti_numbers() ? 0 : number_of(GRAPH, exec).id; }

void cupti_event_numbers(uint64_t event, uint32_t *id, uint64_t *recorded) {
  struct number n = number_of(EVENT, event);
  *id = n.id;
  *recorded = n.other ? n.other : UINT32_MAX;
}

static int number(uint32_t kind, uint64_t handle, uint32_t *id) {
  if (!handle || !id) return CUPTI_ERROR_INVALID_PARAMETER;
  *id = number_of(kind, handle).id;
  return CUPTI_SUCCESS;
}
int own_cuptiGetCudaEventId(uint64_t event, uint32_t *id) { return number(EVENT, event, id); }

/* As the server's records have them, or, where it does not say, as we count. */
static int graph_number(uint32_t what, uint64_t handle, uint32_t *id) {
  uint64_t n = 0;
  if (!handle || !id) return CUPTI_ERROR_INVALID_PARAMETER;
  if (!cupti_numbers()) return number(GRAPH, handle, id);
  if (cupti_front->number(what, handle, &n)) return CUPTI_ERROR_INVALID_PARAMETER;
  *id = (uint32_t)n;
  return CUPTI_SUCCESS;
}
int own_cuptiGetGraphExecId(uint64_t exec, uint32_t *id) { return graph_number(SCUDA_NUMBER_EXEC, exec, id); }
int own_cuptiGetGraphId(uint64_t graph, uint32_t *id) {
  int r = graph_number(SCUDA_NUMBER_GRAPH, graph, id);
  return r && id ? own_cuptiGetGraphExecId(graph, id) : r; /* of the graph in it, which the driver gives no handle */
}

int own_cuptiGetGraphNodeId(uint64_t node, uint64_t *id) {
  static _Atomic uint8_t said;
  uint64_t exec = 0;
  if (!node || !id) return CUPTI_ERROR_INVALID_PARAMETER;
  if (!cupti_numbers()) return cupti_refused(&said, "cuptiGetGraphNodeId");
  pthread_mutex_lock(&number_lock);
  const struct number *in = *place_of(EXEC_NODE, node);
  if (in) {
    node = in->of;
    exec = in->other;
  }
  pthread_mutex_unlock(&number_lock);
  uint32_t x = 0;
  if (cupti_front->number(SCUDA_NUMBER_NODE, node, id) || (exec && own_cuptiGetGraphExecId(exec, &x)))
    return CUPTI_ERROR_INVALID_PARAMETER;
  if (exec) *id = (uint64_t)x << 32 | (uint32_t)*id;
  return CUPTI_SUCCESS;
}

/* ---- the driver ---- */

#define ASKED(F) \
  F(cuDeviceGetCount, int32_t *) F(cuDeviceGetAttribute, int32_t *, int32_t, int32_t) \
  F(cuDeviceGetName, char *, int32_t, int32_t) F(cuDeviceGetUuid_v2, void *, int32_t) \
  F(cuDeviceTotalMem_v2, size_t *, int32_t) F(cuDevicePrimaryCtxGetState, int32_t, uint32_t *, int32_t *) \
  F(cuStreamGetPriority, uint64_t, int32_t *) F(cuStreamGetFlags, uint64_t, uint32_t *) \
  F(cuStreamGetCtx, uint64_t, uint64_t *) \
  F(cuGraphGetNodes, uint64_t, uint64_t *, size_t *) F(cuGraphNodeGetType, uint64_t, int32_t *) \
  F(cuGraphNodeFindInClone, uint64_t *, uint64_t, uint64_t)
static struct {
#define F(name, ...) int32_t (*name)(__VA_ARGS__);
  ASKED(F)
#undef F
} driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_driver(void) {
#define F(name, ...) driver.name = (int32_t (*)(__VA_ARGS__))cupti_driver_function(#name);
  ASKED(F)
#undef F
}

/* 0: it answered. No profiler is told of what is called here. */
#define ASK(name, ...) \
  (pthread_once(&once, find_driver), cupti_self()->inside++, \
   asked = driver.name ? driver.name(__VA_ARGS__) : CUDA_ERROR_NOT_FOUND, cupti_self()->inside--, asked)

/* What the call has put where its first argument points. */
static uint64_t result(const struct scuda_profiled *c) {
  uint64_t v = 0, at = cupti_argument(c, 0);
  if (at) memcpy(&v, (const void *)(uintptr_t)at, 8);
  return v;
}

/* ---- devices ---- */

static _Atomic int devices_due, init_due; /* when the driver has begun: records; a callback */

static void write_device(int32_t d) {
  int32_t asked, v[128] = {0};
  static const uint8_t wanted[] = {
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
    CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
    CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
    CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, CU_DEVICE_ATTRIBUTE_WARP_SIZE,
    CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, CU_DEVICE_ATTRIBUTE_CLOCK_RATE,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, CU_DEVICE_ATTRIBUTE_ECC_ENABLED,
    CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH,
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
    CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
    CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR};
  for (size_t i = 0; i < sizeof wanted; i++)
    if (ASK(cuDeviceGetAttribute, &v[wanted[i]], wanted[i], d)) v[wanted[i]] = 0;
#define ATTRIBUTE(name) ((uint32_t)v[CU_DEVICE_ATTRIBUTE_##name])
  uint32_t warp = ATTRIBUTE(WARP_SIZE);
  struct CUpti_ActivityDevice6 r = {
    .kind = CUPTI_ACTIVITY_KIND_DEVICE, .id = (uint32_t)d, .isCudaVisible = 1,
    .flags = ATTRIBUTE(CONCURRENT_KERNELS) ? CUPTI_ACTIVITY_FLAG_DEVICE_CONCURRENT_KERNELS : 0,
    /* kB a second: a bit of each line of the bus, twice a cycle */
    .globalMemoryBandwidth = (uint64_t)ATTRIBUTE(MEMORY_CLOCK_RATE) * ATTRIBUTE(GLOBAL_MEMORY_BUS_WIDTH) / 8 * 2,
    .constantMemorySize = ATTRIBUTE(TOTAL_CONSTANT_MEMORY), .l2CacheSize = ATTRIBUTE(L2_CACHE_SIZE),
    .numThreadsPerWarp = warp, .coreClockRate = ATTRIBUTE(CLOCK_RATE),
    .numMemcpyEngines = ATTRIBUTE(ASYNC_ENGINE_COUNT), .numMultiprocessors = ATTRIBUTE(MULTIPROCESSOR_COUNT),
    .maxWarpsPerMultiprocessor = warp ? ATTRIBUTE(MAX_THREADS_PER_MULTIPROCESSOR) / warp : 0,
    .maxBlocksPerMultiprocessor = ATTRIBUTE(MAX_BLOCKS_PER_MULTIPROCESSOR),
    .maxSharedMemoryPerMultiprocessor = ATTRIBUTE(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
    .maxRegistersPerMultiprocessor = ATTRIBUTE(MAX_REGISTERS_PER_MULTIPROCESSOR),
    .maxRegistersPerBlock = ATTRIBUTE(MAX_REGISTERS_PER_BLOCK),
    .maxSharedMemoryPerBlock = ATTRIBUTE(MAX_SHARED_MEMORY_PER_BLOCK),
    .maxThreadsPerBlock = ATTRIBUTE(MAX_THREADS_PER_BLOCK), .maxBlockDimX = ATTRIBUTE(MAX_BLOCK_DIM_X),
    .maxBlockDimY = ATTRIBUTE(MAX_BLOCK_DIM_Y), .maxBlockDimZ = ATTRIBUTE(MAX_BLOCK_DIM_Z),
    .maxGridDimX = ATTRIBUTE(MAX_GRID_DIM_X), .maxGridDimY = ATTRIBUTE(MAX_GRID_DIM_Y),
    .maxGridDimZ = ATTRIBUTE(MAX_GRID_DIM_Z), .computeCapabilityMajor = ATTRIBUTE(COMPUTE_CAPABILITY_MAJOR),
    .computeCapabilityMinor = ATTRIBUTE(COMPUTE_CAPABILITY_MINOR), .eccEnabled = ATTRIBUTE(ECC_ENABLED),
    .gpuInstanceId = UINT32_MAX, .computeInstanceId = UINT32_MAX}; /* of no MIG instance that we know of */
  size_t bytes = 0;
  char name[256] = ""; /* the driver ends it */
  if (!ASK(cuDeviceTotalMem_v2, &bytes, d)) r.globalMemorySize = bytes;
  if (ASK(cuDeviceGetUuid_v2, r.uuid, d)) memset(r.uuid, 0, sizeof r.uuid);
  if (ASK(cuDeviceGetName, name, sizeof name, d)) *name = 0;
  r.name = (uintptr_t)cupti_intern(name, strlen(name));
  cupti_write(&r, sizeof r);
}

static void write_devices(void) {
  int32_t asked, n = 0;
  if (ASK(cuDeviceGetCount, &n)) n = 0;
  for (int32_t d = 0; d < n; d++) write_device(d);
}

/* ---- contexts and streams ---- */

static void write_stream(uint64_t context, uint64_t stream, uint32_t correlation) {
  struct scuda_profile_ids ids;
  int32_t asked, priority = 0;
  uint32_t flags = 0;
  cupti_front->ids(context, stream, 0, &ids);
  if (!ids.stream) return;
  if (stream && (ASK(cuStreamGetFlags, stream, &flags) || ASK(cuStreamGetPriority, stream, &priority))) return;
  struct CUpti_ActivityStream r = {
    .kind = CUPTI_ACTIVITY_KIND_STREAM, .contextId = ids.context, .streamId = ids.stream,
    .priority = (uint32_t)priority, .correlationId = correlation,
    .flag = !stream ? CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NULL :
            flags & CU_STREAM_NON_BLOCKING ? CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NON_BLOCKING :
            CUPTI_ACTIVITY_STREAM_CREATE_FLAG_DEFAULT};
  cupti_write(&r, sizeof r);
}

int cupti_ids_of(uint64_t context, uint64_t stream, struct scuda_profile_ids *ids) {
  int32_t asked;
  if (cupti_front->serves() != 2 || (!context && ASK(cuStreamGetCtx, stream, &context))) return 0;
  cupti_front->ids(context, stream, 0, ids);
  return ids->context && ids->stream;
}

static void write_context(uint64_t context) {
  struct scuda_profile_ids ids;
  cupti_front->ids(context, 0, 0, &ids);
  if (!ids.context) return;
  struct CUpti_ActivityContext4 r = {
    .kind = CUPTI_ACTIVITY_KIND_CONTEXT, .contextId = ids.context, .deviceId = ids.device,
    .computeApiKind = CUPTI_ACTIVITY_COMPUTE_API_CUDA, .nullStreamId = (uint16_t)ids.stream,
    .processId = (uint64_t)getpid()};
  cupti_write(&r, sizeof r);
}

static void each(int streams, void (*f)(uint64_t context, uint64_t handle)) {
  enum { MOST = 1 << 12 };
  uint64_t *list = malloc(2 * MOST * sizeof *list);
  uint32_t n = list ? cupti_front->objects(streams, list, MOST) : 0;
  for (uint32_t i = 0; i < n; i++) f(list[2 * i], list[2 * i + 1]);
  free(list);
}
static void dump_context(uint64_t context, uint64_t handle) {
  (void)context;
  write_context(handle);
}
static void dump_stream(uint64_t context, uint64_t handle) { write_stream(context, handle, 0); }
static void dump_null_stream(uint64_t context, uint64_t handle) {
  (void)context;
  write_stream(handle, 0, 0);
}

void cupti_objects_dump(uint32_t kind) {
  if (cupti_front->serves() != 2) return; /* there are none */
  switch (kind) {
  case CUPTI_ACTIVITY_KIND_DEVICE: write_devices(); break;
  case CUPTI_ACTIVITY_KIND_CONTEXT: each(0, dump_context); break;
  case CUPTI_ACTIVITY_KIND_STREAM:
    each(0, dump_null_stream);
    each(1, dump_stream);
    break;
  }
}

/* ---- callbacks ---- */

static int called(uint32_t id) { return cupti_called[CUPTI_CB_DOMAIN_RESOURCE][id]; }

static void resource(uint32_t id, uint64_t context, uint64_t handle, const void *descriptor) {
  if (!called(id)) return;
  struct CUpti_ResourceData d = {.context = context, .resourceHandle = handle,
                                 .resourceDescriptor = (uintptr_t)descriptor};
  cupti_call_back(CUPTI_CB_DOMAIN_RESOURCE, id, &d);
}

/* No cubin is named: which one of an image is loaded, or what PTX becomes, is the server's business. */
static void module(uint32_t id, const struct scuda_profiled *c, uint64_t handle) {
  if (!called(id)) return;
  struct CUpti_ModuleResourceData m = {.moduleId = number_of(MODULE, handle).id};
  resource(id, c->context, handle, &m);
}

static void graph_changed(uint32_t id, const struct scuda_profiled *c, const struct CUpti_GraphData *g) {
  resource(id, c->context, 0, g);
}

static void node_made(uint32_t id, const struct scuda_profiled *c, struct CUpti_GraphData g) {
  int32_t asked, type = 0;
  note(NODE, g.node, g.graph);
  if (!ASK(cuGraphNodeGetType, g.node, &type)) g.nodeType = (uint32_t)type;
  graph_changed(id, c, &g);
}

/* Of the nodes that a graph has; a clone's have what they were made of. */
static void nodes_made(uint32_t id, const struct scuda_profiled *c, uint64_t graph, uint64_t original) {
  if (!called(id)) return;
  size_t n = 0;
  int32_t asked;
  uint64_t *list = NULL;
  if (!ASK(cuGraphGetNodes, original ? original : graph, NULL, &n) && n) list = calloc(n, sizeof *list);
  if (list && ASK(cuGraphGetNodes, original ? original : graph, list, &n)) n = 0;
  for (size_t i = 0; list && i < n; i++) {
    struct CUpti_GraphData g = {.graph = graph, .originalGraph = original, .node = list[i]};
    if (original) {
      g.originalNode = list[i];
      if (ASK(cuGraphNodeFindInClone, &g.node, list[i], graph)) continue;
    }
    node_made(id, c, g);
  }
  free(list);
}

/* Of what an executable graph got of the nodes of its graph; records name these. Those in child graphs are not told. */
static void nodes_instantiated(const struct scuda_profiled *c, uint64_t exec, uint64_t graph) {
  if (!called(CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED) || !cupti_numbers()) return;
  size_t n = 0;
  int32_t asked, type;
  uint64_t *list = NULL;
  if (!ASK(cuGraphGetNodes, graph, NULL, &n) && n) list = calloc(n, sizeof *list);
  if (list && ASK(cuGraphGetNodes, graph, list, &n)) n = 0;
  for (size_t i = 0; list && i < n; i++) {
    struct number *in = calloc(1, sizeof *in);
    if (!in) break;
    *in = (struct number){.handle = (uintptr_t)in, .other = exec, .of = list[i], .kind = EXEC_NODE};
    pthread_mutex_lock(&number_lock);
    struct number **at = place_of(EXEC_NODE, in->handle);
    in->next = *at;
    *at = in;
    pthread_mutex_unlock(&number_lock);
    struct CUpti_GraphData g = {.graph = exec, .originalGraph = graph, .node = in->handle, .originalNode = list[i]};
    if (!ASK(cuGraphNodeGetType, list[i], &type)) g.nodeType = (uint32_t)type;
    graph_changed(CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED, c, &g);
  }
  free(list);
}

static void forget_instantiated(uint64_t exec) {
  pthread_mutex_lock(&number_lock);
  for (int i = 0; i < LISTS; i++)
    for (struct number **at = &numbers[i]; *at;) {
      struct number *in = *at;
      if (in->kind != EXEC_NODE || in->other != exec) {
        at = &in->next;
        continue;
      }
      *at = in->next;
      free(in);
    }
  pthread_mutex_unlock(&number_lock);
}

/* ---- memory ---- */

static void write_memory(const struct scuda_profiled *c, int released, uint32_t kind, uint64_t address, uint64_t bytes,
                         int async, uint64_t stream) {
  struct scuda_profile_ids ids;
  cupti_front->ids(c->context, async ? stream : UINT64_MAX, cupti_per_thread(c), &ids);
  struct CUpti_ActivityMemory4 r = {
    .kind = CUPTI_ACTIVITY_KIND_MEMORY2, .memoryKind = kind, .correlationId = c->correlation, .address = address,
    .memoryOperationType = released ? CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE :
                           CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION,
    .bytes = bytes, .timestamp = c->began, .processId = (uint32_t)getpid(), .deviceId = ids.device,
    .contextId = ids.context ? ids.context : UINT32_MAX, .streamId = async ? ids.stream : UINT32_MAX,
    .isAsync = (uint32_t)async};
  cupti_write(&r, sizeof r);
}

static void released(struct scuda_profiled *c, int async) {
  uint64_t address = cupti_argument(c, 0), bytes = 0;
  if (!cupti_active[CUPTI_ACTIVITY_KIND_MEMORY2] || !address) return;
  uint32_t kind = cupti_front->memory(address, &bytes);
  c->began = cupti_now();
  write_memory(c, 1, kind, address, bytes, async, cupti_argument(c, 1));
}

static void allocated(const struct scuda_profiled *c, uint32_t kind, uint64_t bytes, int async, uint64_t stream) {
  if (cupti_active[CUPTI_ACTIVITY_KIND_MEMORY2]) write_memory(c, 0, kind, result(c), bytes, async, stream);
}

/* ---- events ---- */

static void recorded(const struct scuda_profiled *c) {
  static _Atomic uint64_t last;
  if (!cupti_active[CUPTI_ACTIVITY_KIND_CUDA_EVENT] && !cupti_active[CUPTI_ACTIVITY_KIND_SYNCHRONIZATION]) return;
  struct scuda_profile_ids ids;
  uint64_t recording = atomic_fetch_add(&last, 1) + 1, event = cupti_argument(c, 0);
  note(EVENT, event, recording);
  if (!cupti_active[CUPTI_ACTIVITY_KIND_CUDA_EVENT]) return;
  cupti_front->ids(c->context, cupti_argument(c, 1), cupti_per_thread(c), &ids);
  struct CUpti_ActivityCudaEvent2 r = {
    .kind = CUPTI_ACTIVITY_KIND_CUDA_EVENT, .correlationId = c->correlation, .contextId = ids.context,
    .streamId = ids.stream, .eventId = number_of(EVENT, event).id, .deviceId = ids.device,
    .cudaEventSyncId = recording};
  cupti_write(&r, sizeof r);
}

/* ---- calls ---- */

/* Numbers of streams cannot be asked for while there are captures: records that will want them have them asked for now.
 */
static void learn_stream(const struct scuda_profiled *c, uint64_t stream) {
  struct scuda_profile_ids ids;
  if (cupti_active[CUPTI_ACTIVITY_KIND_SYNCHRONIZATION] || cupti_active[CUPTI_ACTIVITY_KIND_CUDA_EVENT] ||
      cupti_active[CUPTI_ACTIVITY_KIND_MEMORY2])
    cupti_front->ids(c->context, stream, cupti_per_thread(c), &ids);
}

/* Both run between a call's begin and its end as the program sees it, in its thread. */
void cupti_objects_enter(struct scuda_profiled *c, uint32_t id) {
  struct CUpti_GraphData g = {0};
  if (SCUDA_UNLIKELY(devices_due) && atomic_exchange(&devices_due, 0)) write_devices();
  if (SCUDA_UNLIKELY(init_due) && atomic_exchange(&init_due, 0))
    resource(CUPTI_CBID_RESOURCE_CU_INIT_FINISHED, 0, 0, NULL);
  switch (id) {
  case CBID_cuDevicePrimaryCtxRetain: {
    int32_t asked, active = 0, device = (int32_t)cupti_argument(c, 1);
    uint32_t flags;
    if (!cupti_active[CUPTI_ACTIVITY_KIND_CONTEXT] && !cupti_active[CUPTI_ACTIVITY_KIND_STREAM] &&
        !called(CUPTI_CBID_RESOURCE_CONTEXT_CREATED))
      return;
    if (!ASK(cuDevicePrimaryCtxGetState, device, &flags, &active) && !active) c->told |= CUPTI_NEW;
    return;
  }
  case CBID_cuStreamBeginCapture: case CBID_cuStreamBeginCapture_ptsz: case CBID_cuStreamBeginCapture_v2:
  case CBID_cuStreamBeginCapture_v2_ptsz: case CBID_cuStreamBeginCaptureToGraph:
  case CBID_cuStreamBeginCaptureToGraph_ptsz: learn_stream(c, cupti_argument(c, 0)); return;
  case CBID_cuCtxDestroy_v2:
    resource(CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING, cupti_argument(c, 0), 0, NULL);
    return;
  case CBID_cuStreamDestroy_v2:
    resource(CUPTI_CBID_RESOURCE_STREAM_DESTROY_STARTING, c->context, cupti_argument(c, 0), NULL);
    return;
  case CBID_cuModuleUnload: case CBID_cuLibraryUnload:
    module(CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING, c, cupti_argument(c, 0));
    forget(MODULE, cupti_argument(c, 0));
    return;
  case CBID_cuEventDestroy_v2: forget(EVENT, cupti_argument(c, 0)); return;
  case CBID_cuMemFree_v2: case CBID_cuMemFreeHost: released(c, 0); return;
  case CBID_cuMemFreeAsync: case CBID_cuMemFreeAsync_ptsz: released(c, 1); return;
  case CBID_cuGraphDestroy:
    g.graph = cupti_argument(c, 0);
    graph_changed(CUPTI_CBID_RESOURCE_GRAPH_DESTROY_STARTING, c, &g);
    forget(GRAPH, g.graph);
    return;
  case CBID_cuGraphDestroyNode:
    g.node = cupti_argument(c, 0);
    g.graph = number_of(NODE, g.node).other;
    graph_changed(CUPTI_CBID_RESOURCE_GRAPHNODE_DESTROY_STARTING, c, &g);
    forget(NODE, g.node);
    return;
  case CBID_cuGraphInstantiate: case CBID_cuGraphInstantiate_v2: case CBID_cuGraphInstantiateWithFlags:
  case CBID_cuGraphInstantiateWithParams: case CBID_cuGraphInstantiateWithParams_ptsz:
    g.graph = cupti_argument(c, 1);
    graph_changed(CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATE_STARTING, c, &g);
    return;
  case CBID_cuGraphExecDestroy:
    g.graphExec = cupti_argument(c, 0);
    g.graph = number_of(GRAPH, g.graphExec).other;
    graph_changed(CUPTI_CBID_RESOURCE_GRAPHEXEC_DESTROY_STARTING, c, &g);
    forget(GRAPH, g.graphExec);
    forget_instantiated(g.graphExec);
    return;
  }
}

static void context_made(const struct scuda_profiled *c) {
  uint64_t context = result(c);
  if (cupti_active[CUPTI_ACTIVITY_KIND_CONTEXT]) write_context(context);
  if (cupti_active[CUPTI_ACTIVITY_KIND_STREAM]) write_stream(context, 0, c->correlation);
  resource(CUPTI_CBID_RESOURCE_CONTEXT_CREATED, context, 0, NULL);
}

/* Of calls that went well. */
void cupti_objects_leave(const struct scuda_profiled *c, uint32_t id) {
  struct CUpti_GraphData g = {0};
  switch (id) {
  case CBID_cuCtxCreate_v2: case CBID_cuCtxCreate_v3: case CBID_cuCtxCreate_v4: context_made(c); return;
  case CBID_cuDevicePrimaryCtxRetain:
    if (c->told & CUPTI_NEW) context_made(c);
    return;
  case CBID_cuStreamCreate: case CBID_cuStreamCreateWithPriority: case CBID_cuGreenCtxStreamCreate:
    learn_stream(c, result(c));
    if (cupti_active[CUPTI_ACTIVITY_KIND_STREAM]) write_stream(c->context, result(c), c->correlation);
    resource(CUPTI_CBID_RESOURCE_STREAM_CREATED, c->context, result(c), NULL);
    return;
  case CBID_cuModuleLoad: case CBID_cuModuleLoadData: case CBID_cuModuleLoadDataEx: case CBID_cuModuleLoadFatBinary:
  case CBID_cuLibraryLoadData: case CBID_cuLibraryLoadFromFile:
    module(CUPTI_CBID_RESOURCE_MODULE_LOADED, c, result(c));
    return;
  case CBID_cuEventRecord: case CBID_cuEventRecord_ptsz: case CBID_cuEventRecordWithFlags:
  case CBID_cuEventRecordWithFlags_ptsz: recorded(c); return;
  case CBID_cuMemAlloc_v2: allocated(c, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, cupti_argument(c, 1), 0, 0); return;
  case CBID_cuMemAllocPitch_v2: {
    uint64_t pitch = 0;
    memcpy(&pitch, (const void *)(uintptr_t)cupti_argument(c, 1), 8);
    allocated(c, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, pitch * cupti_argument(c, 3), 0, 0);
    return;
  }
  case CBID_cuMemAllocManaged: allocated(c, CUPTI_ACTIVITY_MEMORY_KIND_MANAGED, cupti_argument(c, 1), 0, 0); return;
  case CBID_cuMemHostAlloc: case CBID_cuMemAllocHost_v2:
    allocated(c, CUPTI_ACTIVITY_MEMORY_KIND_PINNED, cupti_argument(c, 1), 0, 0);
    return;
  case CBID_cuMemAllocAsync: case CBID_cuMemAllocAsync_ptsz:
    allocated(c, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, cupti_argument(c, 1), 1, cupti_argument(c, 2));
    return;
  case CBID_cuMemAllocFromPoolAsync: case CBID_cuMemAllocFromPoolAsync_ptsz:
    allocated(c, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, cupti_argument(c, 1), 1, cupti_argument(c, 3));
    return;
  case CBID_cuGraphCreate: case CBID_cuStreamEndCapture: case CBID_cuStreamEndCapture_ptsz: {
    uint64_t at = cupti_argument(c, id != CBID_cuGraphCreate); /* where the graph was put */
    if (at) memcpy(&g.graph, (const void *)(uintptr_t)at, 8);
    if (!g.graph) return; /* a capture that failed */
    graph_changed(CUPTI_CBID_RESOURCE_GRAPH_CREATED, c, &g);
    if (id != CBID_cuGraphCreate) nodes_made(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, c, g.graph, 0);
    return;
  }
  case CBID_cuGraphClone:
    g.graph = result(c);
    g.originalGraph = cupti_argument(c, 1);
    graph_changed(CUPTI_CBID_RESOURCE_GRAPH_CLONED, c, &g);
    nodes_made(CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED, c, g.graph, g.originalGraph);
    return;
  case CBID_cuGraphInstantiate: case CBID_cuGraphInstantiate_v2: case CBID_cuGraphInstantiateWithFlags:
  case CBID_cuGraphInstantiateWithParams: case CBID_cuGraphInstantiateWithParams_ptsz:
    g.graph = cupti_argument(c, 1);
    g.graphExec = result(c);
    note(GRAPH, g.graphExec, g.graph);
    nodes_instantiated(c, g.graphExec, g.graph);
    graph_changed(CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED, c, &g);
    return;
  }
  if (called(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED) && !strncmp(c->name, "cuGraphAdd", 10) && strstr(c->name, "Node"))
    node_made(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, c,
              (struct CUpti_GraphData){.graph = cupti_argument(c, 1), .node = result(c)});
}

/* What is recorded or called back for has changed. */
void cupti_objects_update(void) {
  int begun = cupti_front->serves() == 2;
  devices_due = !begun && cupti_active[CUPTI_ACTIVITY_KIND_DEVICE];
  init_due = !begun && called(CUPTI_CBID_RESOURCE_CU_INIT_FINISHED);
}
