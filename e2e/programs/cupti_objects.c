// Records of a program's objects, and callbacks when they come and go: cupti_objects KERNELS LIBRARY. What is enabled
// before cuInit tells of devices and of the first context, too.
#include "cupti.h"

#include <unistd.h>

static subscriber_t subscriber;
static CUstream stream;

// ---- callbacks ----

static struct { int n; uint32_t module, graph, exec, nodes; CUcontext context; void *handle; } last[64];

static char ranges[128]; // that NVTX's callbacks told of

static void on_range(uint32_t id, const void *data) {
  const struct { const char *name; const void *argument, *result; } *c = data;
  const char *text = id == 8 ? *(const char *const *)c->argument : "";
  size_t n = strlen(ranges);
  snprintf(ranges + n, sizeof ranges - n, "%s %s %d;", c->name, text, *(const int *)c->result);
}

static void on_resource(void *user, uint32_t domain, uint32_t id, const void *data) {
  if (domain == CUPTI_CB_DOMAIN_NVTX) {
    on_range(id, data);
    return;
  }
  const struct CUpti_ResourceData *r = data;
  CHECK(domain == CUPTI_CB_DOMAIN_RESOURCE && id < 64, "domain %u, id %u", domain, id);
  last[id].n++;
  last[id].context = (CUcontext)(uintptr_t)r->context;
  last[id].handle = (void *)(uintptr_t)r->resourceHandle;
  if (id == CUPTI_CBID_RESOURCE_MODULE_LOADED || id == CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING) {
    const struct CUpti_ModuleResourceData *m = (const void *)(uintptr_t)r->resourceDescriptor;
    last[id].module = m->moduleId;
    CHECK(!m->cubinSize == !m->pCubin, "a cubin of %llu bytes", (unsigned long long)m->cubinSize);
  }
  if (id >= CUPTI_CBID_RESOURCE_GRAPH_CREATED && id <= CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED) {
    const struct CUpti_GraphData *g = (const void *)(uintptr_t)r->resourceDescriptor;
    last[id].graph = last[id].exec = 0;
    if (g->graph) CK(cuptiGetGraphId((CUgraph)(uintptr_t)g->graph, &last[id].graph));
    if (g->graphExec) CK(cuptiGetGraphExecId((CUgraphExec)(uintptr_t)g->graphExec, &last[id].exec));
    if (g->node) last[id].nodes |= 1u << g->nodeType;
  }
}

// ---- records ----

static void flush(void) {
  size_t dropped = 1;
  CK(cuptiActivityFlushAll(1));
  CK(cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped));
  CHECK(!dropped, "%zu records were lost", dropped);
}

static void devices(void) {
  int n = 0, found = 0;
  char name[256];
  CUuuid uuid;
  size_t bytes;
  CK(cuDeviceGetCount(&n));
  EACH(CUpti_ActivityDevice6, d, CUPTI_ACTIVITY_KIND_DEVICE) {
    int units, major, warp;
    CK(cuDeviceGetName(name, sizeof name, (CUdevice)d->id));
    CK(cuDeviceGetUuid(&uuid, (CUdevice)d->id));
    CK(cuDeviceTotalMem(&bytes, (CUdevice)d->id));
    CK(cuDeviceGetAttribute(&units, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, (CUdevice)d->id));
    CK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, (CUdevice)d->id));
    CK(cuDeviceGetAttribute(&warp, CU_DEVICE_ATTRIBUTE_WARP_SIZE, (CUdevice)d->id));
    CHECK(!strcmp((const char *)(uintptr_t)d->name, name) && !memcmp(d->uuid, &uuid, 16) &&
          d->globalMemorySize == bytes && d->numMultiprocessors == (uint32_t)units &&
          d->computeCapabilityMajor == (uint32_t)major && d->numThreadsPerWarp == (uint32_t)warp && d->isCudaVisible &&
          d->maxThreadsPerBlock >= 512, "device %u is %s", d->id, (const char *)(uintptr_t)d->name);
    found++;
  }
  CHECK(found == n, "%d records of %d devices", found, n);
}

static void contexts(CUcontext c, int streams) {
  uint32_t id, null = 0;
  int found = 0;
  CK(cuptiGetContextId(c, &id));
  CK(cuptiGetStreamIdEx(c, NULL, 0, &null));
  EACH(CUpti_ActivityContext4, r, CUPTI_ACTIVITY_KIND_CONTEXT) {
    if (r->contextId != id) continue;
    found++;
    CHECK(r->computeApiKind == CUPTI_ACTIVITY_COMPUTE_API_CUDA && r->nullStreamId == null && r->deviceId == 0 &&
          !r->isGreenContext, "context %u, null stream %u", r->contextId, r->nullStreamId);
  }
  CHECK(found == 1, "%d records of a context", found);
  found = 0;
  EACH(CUpti_ActivityStream, s, CUPTI_ACTIVITY_KIND_STREAM) {
    if (s->contextId != id) continue;
    CHECK((s->flag == CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NULL) == (s->streamId == null), "stream %u with flag %u",
          s->streamId, s->flag);
    found++;
  }
  CHECK(found == streams, "%d streams, want %d", found, streams);
}

static void made_streams(void) {
  CUstream plain;
  uint32_t id;
  int least, greatest, found = 0;
  CK(cuCtxGetStreamPriorityRange(&least, &greatest));
  CK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest));
  CHECK(last[CUPTI_CBID_RESOURCE_STREAM_CREATED].handle == stream &&
        last[CUPTI_CBID_RESOURCE_STREAM_CREATED].context == context, "no callback of a stream");
  CK(cuStreamCreate(&plain, CU_STREAM_DEFAULT));
  CK(cuptiGetStreamIdEx(context, stream, 0, &id));
  flush();
  contexts(context, 3);
  EACH(CUpti_ActivityStream, s, CUPTI_ACTIVITY_KIND_STREAM) {
    if (s->streamId != id) continue;
    CHECK(s->flag == CUPTI_ACTIVITY_STREAM_CREATE_FLAG_NON_BLOCKING && (int)s->priority == greatest && s->correlationId,
          "stream with flag %u, priority %d", s->flag, (int)s->priority);
    found++;
  }
  CHECK(found == 1, "%d records of a stream", found);
  CK(cuStreamDestroy(plain));
  CHECK(last[CUPTI_CBID_RESOURCE_STREAM_DESTROY_STARTING].handle == plain, "no callback of a stream's end");
  forget();
}

static void made_contexts(void) {
  CUcontext c;
  CK(cuCtxCreate(&c, 0, 0));
  CHECK(last[CUPTI_CBID_RESOURCE_CONTEXT_CREATED].context == c, "no callback of a context");
  flush();
  contexts(c, 1);
  CK(cuCtxDestroy(c));
  CHECK(last[CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING].context == c, "no callback of a context's end");
  CK(cuCtxSetCurrent(context));
  int n = last[CUPTI_CBID_RESOURCE_CONTEXT_CREATED].n;
  CK(cuDevicePrimaryCtxRetain(&c, 0)); // which is none that is made
  CK(cuDevicePrimaryCtxRelease(0));
  CHECK(last[CUPTI_CBID_RESOURCE_CONTEXT_CREATED].n == n, "a context that was there was made");
  forget();
}

// An allocation and its release: the calls, the sizes, the kind of memory.
static void memory_of(const char *what, uint64_t address, uint64_t bytes, uint32_t kind, int async) {
  uint32_t id, context_id;
  uint64_t times[2] = {0};
  CK(cuptiGetStreamIdEx(context, stream, 0, &id));
  CK(cuptiGetContextId(context, &context_id));
  flush();
  EACH(CUpti_ActivityMemory4, m, CUPTI_ACTIVITY_KIND_MEMORY2) {
    if (m->address != address) continue;
    int release = m->memoryOperationType == CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE, calls = 0;
    CHECK(!times[release] && m->bytes == bytes && m->memoryKind == kind && m->isAsync == (uint32_t)async &&
          m->streamId == (async ? id : UINT32_MAX) && m->contextId == context_id && m->deviceId == 0 && m->processId,
          "%s: operation %u, %llu bytes of kind %u on stream %u", what, m->memoryOperationType,
          (unsigned long long)m->bytes, m->memoryKind, m->streamId);
    times[release] = m->timestamp;
    EACH(CUpti_ActivityAPI, a, CUPTI_ACTIVITY_KIND_DRIVER) {
      if (a->correlationId != m->correlationId) continue;
      CHECK(a->start >= m->timestamp && a->end >= m->timestamp, "%s: not at the time of its call", what);
      calls++;
    }
    CHECK(calls == 1, "%s: %d calls", what, calls);
  }
  CHECK(times[0] && times[1] > times[0], "%s: made at %llu, released at %llu", what, (unsigned long long)times[0],
        (unsigned long long)times[1]);
  forget();
}

static void memory(void) {
  CUdeviceptr d;
  void *host;
  size_t pitch;
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMORY2));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_DRIVER));
  CK(cuMemAlloc(&d, 12345));
  CK(cuMemFree(d));
  memory_of("cuMemAlloc", d, 12345, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, 0);
  CK(cuMemAllocPitch(&d, &pitch, 100, 7, 4));
  CK(cuMemFree(d));
  memory_of("cuMemAllocPitch", d, pitch * 7, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, 0);
  CK(cuMemAllocManaged(&d, 1 << 20, CU_MEM_ATTACH_GLOBAL));
  CK(cuMemFree(d));
  memory_of("cuMemAllocManaged", d, 1 << 20, CUPTI_ACTIVITY_MEMORY_KIND_MANAGED, 0);
  CK(cuMemHostAlloc(&host, 8192, 0));
  CK(cuMemFreeHost(host));
  memory_of("cuMemHostAlloc", (uint64_t)(uintptr_t)host, 8192, CUPTI_ACTIVITY_MEMORY_KIND_PINNED, 0);
  CK(cuMemAllocAsync(&d, 1 << 20, stream));
  CK(cuMemFreeAsync(d, stream));
  memory_of("cuMemAllocAsync", d, 1 << 20, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, 1);
  CK(cuMemFree(0)); // which is none
  flush();
  CHECK(!of_kind(CUPTI_ACTIVITY_KIND_MEMORY2), "a release of nothing");
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_MEMORY2));
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_DRIVER));
  forget();
}

// Waits for an event say which event, and which of its recordings.
static void events(void) {
  CUevent e, other;
  uint32_t id, number;
  uint64_t recorded[4] = {0};
  int n = 0, waits = 0;
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CUDA_EVENT));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION));
  CK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  CK(cuEventCreate(&other, CU_EVENT_DISABLE_TIMING));
  CK(cuEventRecord(e, stream));
  CK(cuEventRecord(other, stream));
  CK(cuEventRecord(e, stream));
  CK(cuStreamWaitEvent(NULL, e, 0));
  CK(cuEventSynchronize(e));
  CK(cuStreamSynchronize(stream));
  WANT(cuStreamSynchronize((CUstream)e), CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuptiGetCudaEventId, "no cuptiGetCudaEventId");
  CK(cuptiGetCudaEventId(e, &number));
  CK(cuptiGetStreamIdEx(context, stream, 0, &id));
  flush();
  EACH(CUpti_ActivityCudaEvent2, r, CUPTI_ACTIVITY_KIND_CUDA_EVENT) {
    CHECK(n < 3 && (n == 1) == (r->eventId != number) && r->streamId == id && r->deviceId == 0 && r->correlationId &&
          !r->deviceTimestamp, "recording %d of event %u on stream %u", n, r->eventId, r->streamId);
    recorded[n++] = r->cudaEventSyncId;
  }
  CHECK(n == 3 && recorded[0] != recorded[1] && recorded[1] != recorded[2] && recorded[0] != recorded[2],
        "%d recordings", n);
  EACH(CUpti_ActivitySynchronization2, w, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION) {
    int of_event = w->type != CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE;
    CHECK(!w->returnValue && w->cudaEventId == (of_event ? number : UINT32_MAX) &&
          w->cudaEventSyncId == (of_event ? recorded[2] : UINT32_MAX), "a wait of type %u for event %u, recording %llu",
          w->type, w->cudaEventId, (unsigned long long)w->cudaEventSyncId);
    waits++;
  }
  CHECK(waits == 3, "%d waits", waits);
  forget();
  CK(cuptiActivityEnableAllSyncRecords(1)); // also of those that failed
  WANT(cuStreamSynchronize((CUstream)e), CUDA_ERROR_INVALID_HANDLE);
  CK(cuptiActivityEnableAllSyncRecords(0));
  flush();
  CHECK(of_kind(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION) == 1, "%d waits that failed",
        of_kind(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION));
  CK(cuEventDestroy(e));
  CK(cuEventDestroy(other));
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CUDA_EVENT));
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION));
  forget();
}

// Copies between GPUs, on a machine with one: from it to itself, which the driver takes.
static void peers(void) {
  CUdeviceptr d;
  uint32_t id, context_id;
  int found = 0;
  CK(cuptiGetStreamIdEx(context, stream, 0, &id));
  CK(cuptiGetContextId(context, &context_id));
  CK(cuMemAlloc(&d, 1 << 16));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY2)); // and not MEMCPY
  CK(cuMemcpyPeerAsync(d, context, d + 4096, context, 4096, stream));
  CK(cuMemcpyDtoDAsync(d, d + 4096, 4096, stream));
  CK(cuStreamSynchronize(stream));
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_MEMCPY2));
  flush();
  EACH(CUpti_ActivityMemcpyPtoP4, m, CUPTI_ACTIVITY_KIND_MEMCPY2) {
    CHECK(m->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_PTOP && m->bytes == 4096 && m->streamId == id &&
          m->srcContextId == context_id && m->dstContextId == context_id && !m->srcDeviceId && !m->dstDeviceId &&
          m->flags == CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC && m->start <= m->end && m->correlationId,
          "a copy of %llu bytes from %u to %u", (unsigned long long)m->bytes, m->srcContextId, m->dstContextId);
    found++;
  }
  CHECK(found == 1 && !of_kind(CUPTI_ACTIVITY_KIND_MEMCPY), "%d copies between GPUs, %d others", found,
        of_kind(CUPTI_ACTIVITY_KIND_MEMCPY));
  CK(cuMemFree(d));
  forget();
}

// As proton counts them: nodes by their graph, graphs by what was made of them, kernels by what was launched.
static void graphs(void) {
  CUgraph g, clone;
  CUgraphExec x;
  CUgraphNode node, empty;
  CUfunction f = function(load("kernels.ptx"), "vector_add");
  CUdeviceptr d;
  uint32_t id, exec;
  int n = 256, made = last[CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED].n;
  CHECK(last[CUPTI_CBID_RESOURCE_MODULE_LOADED].n == 1, "%d modules", last[CUPTI_CBID_RESOURCE_MODULE_LOADED].n);
  CK(cuMemAlloc(&d, 1024));
  CK(cuGraphCreate(&g, 0));
  CK(cuptiGetGraphId(g, &id));
  CHECK(last[CUPTI_CBID_RESOURCE_GRAPH_CREATED].graph == id, "no callback of a graph");
  CUDA_KERNEL_NODE_PARAMS k = {.func = f, .gridDimX = 2, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 128, .blockDimY = 1,
                               .blockDimZ = 1, .kernelParams = (void *[]){&d, &d, &d, &n}};
  CK(cuGraphAddKernelNode(&node, g, NULL, 0, &k));
  CK(cuGraphAddEmptyNode(&empty, g, &node, 1));
  CHECK(last[CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED].n == made + 2 &&
        last[CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED].graph == id &&
        last[CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED].nodes ==
        (1u << CU_GRAPH_NODE_TYPE_KERNEL | 1u << CU_GRAPH_NODE_TYPE_EMPTY), "nodes are told of %d times",
        last[CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED].n - made);
  CK(cuGraphClone(&clone, g));
  CHECK(last[CUPTI_CBID_RESOURCE_GRAPH_CLONED].n == 1 && last[CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED].n == 2 &&
        last[CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED].graph == last[CUPTI_CBID_RESOURCE_GRAPH_CLONED].graph &&
        last[CUPTI_CBID_RESOURCE_GRAPH_CLONED].graph != id, "a clone has %d nodes",
        last[CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED].n);
  CK(cuGraphDestroyNode(empty));
  CHECK(last[CUPTI_CBID_RESOURCE_GRAPHNODE_DESTROY_STARTING].graph == id, "a node's end is told of another graph");
  CK(cuGraphInstantiateWithFlags(&x, g, 0));
  CK(cuptiGetGraphExecId(x, &exec));
  CHECK(last[CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED].graph == id &&
        last[CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED].exec == exec && exec != id, "an executable graph %u", exec);
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  CK(cuGraphLaunch(x, stream));
  CK(cuStreamSynchronize(stream));
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  flush();
  CHECK(of_kind(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == 1, "%d kernels",
        of_kind(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  EACH(CUpti_ActivityKernel11, r, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
    CHECK(r->graphId == exec, "a kernel of graph %u, not %u", r->graphId, exec);
  forget();
  // as a whole: each launch once, and no kernels
  uint64_t before = real_time();
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_DRIVER));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_GRAPH_TRACE));
  CK(LAUNCH(f, 2, 128, 0, stream, &d, &d, &d, &n)); // but for those in no graph
  for (int i = 0; i < 3; i++) CK(cuGraphLaunch(x, stream));
  CK(cuStreamSynchronize(stream));
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_DRIVER));
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_GRAPH_TRACE));
  uint64_t after = real_time();
  flush();
  CHECK(of_kind(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == 1 && of_kind(CUPTI_ACTIVITY_KIND_GRAPH_TRACE) == 3,
        "%d kernels, %d graphs", of_kind(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL),
        of_kind(CUPTI_ACTIVITY_KIND_GRAPH_TRACE));
  CK(cuptiGetStreamIdEx(context, stream, 0, &id));
  EACH(CUpti_ActivityGraphTrace2, r, CUPTI_ACTIVITY_KIND_GRAPH_TRACE) {
    int calls = 0;
    EACH(CUpti_ActivityAPI, a, CUPTI_ACTIVITY_KIND_DRIVER)
      if (a->correlationId == r->correlationId) calls += a->cbid == CBID_cuGraphLaunch && a->start <= r->start;
    CHECK(calls == 1 && r->graphId == exec && r->streamId == id && before <= r->start && r->start <= r->end &&
          r->end <= after && r->contextId == r->endContextId, "graph %u from %llu to %llu, %d calls", r->graphId,
          (unsigned long long)r->start, (unsigned long long)r->end, calls);
    before = r->end;
  }
  CK(cuptiGetGraphId(g, &id));
  CK(cuGraphExecDestroy(x));
  CHECK(last[CUPTI_CBID_RESOURCE_GRAPHEXEC_DESTROY_STARTING].exec == exec, "no callback of an executable graph's end");
  CK(cuGraphDestroy(clone));
  CK(cuGraphDestroy(g));
  CHECK(last[CUPTI_CBID_RESOURCE_GRAPH_DESTROY_STARTING].graph == id, "no callback of a graph's end");
  // and what was captured
  made = last[CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED].n;
  CK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  for (int i = 0; i < 3; i++) CK(LAUNCH(f, 2, 128, 0, stream, &d, &d, &d, &n));
  CK(cuStreamEndCapture(stream, &g));
  CK(cuptiGetGraphId(g, &id));
  CHECK(last[CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED].n == made + 3 &&
        last[CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED].graph == id, "%d nodes were captured",
        last[CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED].n - made);
  CK(cuGraphDestroy(g));
  CK(cuMemFree(d));
  forget();
}

// ---- NVTX, as its headers do it ----

typedef void (*nvtx_function)(void);
static nvtx_function core[16], core2[16], cuda[9], cudart[7];
static nvtx_function *core_places[16], *core2_places[16], *cuda_places[9], *cudart_places[7];

static int nvtx_functions(uint32_t module, nvtx_function ***table, uint32_t *count) {
  *table = module == 1 ? core_places : module == 2 ? cuda_places : module == 4 ? cudart_places :
           module == 5 ? core2_places : NULL;
  *count = module == 2 ? 9 : module == 4 ? 7 : 16;
  return *table != NULL;
}
static const void *nvtx_tables(uint32_t id) {
  static const struct { size_t bytes; int (*functions)(uint32_t, nvtx_function ***, uint32_t *); } callbacks =
      {sizeof callbacks, nvtx_functions};
  return id == 1 ? &callbacks : NULL;
}

static void markers(void *library) {
  struct { uint16_t version, bytes; uint32_t fields[5]; uint64_t payload; uint32_t type, pad; const void *message; } a =
      {3, 48, .type = 3};
  int (*start_nvtx)(const void *(*)(uint32_t)) =
      (int (*)(const void *(*)(uint32_t)))dlsym(library, "InitializeInjectionNvtx2");
  for (int i = 0; i < 16; i++) {
    core_places[i] = &core[i];
    core2_places[i] = &core2[i];
    if (i < 9) cuda_places[i] = &cuda[i];
    if (i < 7) cudart_places[i] = &cudart[i];
  }
  CHECK(start_nvtx && start_nvtx(nvtx_tables) == 1, "NVTX has no tool");
  int (*push)(const char *) = (int (*)(const char *))core[9], (*push_wide)(const wchar_t *) =
      (int (*)(const wchar_t *))core[10], (*pop)(void) = (int (*)(void))core[11];
  void (*mark)(const char *) = (void (*)(const char *))core[2];
  void *(*domain_create)(const char *) = (void *(*)(const char *))core2[12];
  void *(*string)(void *, const char *) = (void *(*)(void *, const char *))core2[10];
  int (*domain_push)(void *, const void *) = (int (*)(void *, const void *))core2[4];
  int (*domain_pop)(void *) = (int (*)(void *))core2[5];
  uint64_t (*begin_range)(void *, const void *) = (uint64_t (*)(void *, const void *))core2[2];
  void (*end_range)(void *, uint64_t) = (void (*)(void *, uint64_t))core2[3];
  push("before"); // which nobody has asked for
  // proton's: the push of a text and the pop, of the program's domains none
  CK(cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_NVTX, 8));
  CK(cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_NVTX, 11));
  WANT(cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_NVTX, 12), CUPTI_ERROR_NOT_SUPPORTED);
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MARKER));
  void *domain = domain_create("a domain");
  a.message = string(domain, "a string");
  CHECK(push("outer") == 1 && push_wide(L"\u00e4\u20ac\U0001f600") == 2 && domain_push(domain, &a) == 0, "depths");
  mark("here");
  uint64_t range = begin_range(domain, &a);
  CHECK(pop() == 2 && domain_pop(domain) == 0 && domain_pop(domain) == -1 && pop() == 1, "depths at ends");
  end_range(domain, range);
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_MARKER));
  CK(cuptiEnableDomain(0, subscriber, CUPTI_CB_DOMAIN_NVTX));
  pop();
  CHECK(!strcmp(ranges, "nvtxRangePushA outer 1;nvtxRangePop  2;nvtxRangePop  1;"), "told of %s", ranges);
  flush();
  static const struct { int flags; const char *name, *domain; int of; } want[] = { // of: which one it ends
    {CUPTI_ACTIVITY_FLAG_MARKER_START, "outer", NULL, 0},
    {CUPTI_ACTIVITY_FLAG_MARKER_START, "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", NULL, 1},
    {CUPTI_ACTIVITY_FLAG_MARKER_START, "a string", "a domain", 2},
    {CUPTI_ACTIVITY_FLAG_MARKER_INSTANTANEOUS, "here", NULL, 3},
    {CUPTI_ACTIVITY_FLAG_MARKER_START, "a string", "a domain", 4},
    {CUPTI_ACTIVITY_FLAG_MARKER_END, NULL, NULL, 1}, {CUPTI_ACTIVITY_FLAG_MARKER_END, NULL, "a domain", 2},
    {CUPTI_ACTIVITY_FLAG_MARKER_END, NULL, NULL, 0}, {CUPTI_ACTIVITY_FLAG_MARKER_END, NULL, "a domain", 4}};
  uint32_t ids[9];
  uint64_t before = 0;
  int n = 0;
  EACH(CUpti_ActivityMarker2, m, CUPTI_ACTIVITY_KIND_MARKER) {
    const char *name = (const char *)(uintptr_t)m->name, *of = (const char *)(uintptr_t)m->domain;
    CHECK(n < 9, "too many markers");
    ids[n] = m->id;
    CHECK(m->flags == (uint32_t)want[n].flags && !name == !want[n].name && (!name || !strcmp(name, want[n].name)) &&
          !of == !want[n].domain && (!of || !strcmp(of, want[n].domain)) && m->id == ids[want[n].of] &&
          m->timestamp >= before && m->objectKind == CUPTI_ACTIVITY_OBJECT_THREAD, "marker %d: %u %s %s, %u", n,
          m->flags, name ? name : "-", of ? of : "-", m->id);
    before = m->timestamp;
    n++;
  }
  CHECK(n == 9, "%d markers", n);
  forget();
}

// Names of a thread, a device, a context, and of streams by both of NVTX's modules.
static void names(void) {
  void (*of_thread)(uint32_t, const char *) = (void (*)(uint32_t, const char *))core[14];
  void (*of_device)(int, const char *) = (void (*)(int, const char *))cuda[1];
  void (*of_context)(CUcontext, const char *) = (void (*)(CUcontext, const char *))cuda[3];
  void (*of_stream)(CUstream, const char *) = (void (*)(CUstream, const char *))cuda[5];
  void (*of_runtimes)(CUstream, const char *) = (void (*)(CUstream, const char *))cudart[3];
  void (*of_wide)(CUstream, const wchar_t *) = (void (*)(CUstream, const wchar_t *))cudart[4];
  CHECK(of_thread && of_device && of_context && of_stream && of_runtimes && of_wide, "NVTX's names go nowhere");
  CUcontext c;
  CUstream other;
  uint32_t id, null, context_id, other_id, other_context;
  CK(cuCtxCreate(&c, 0, 0));
  CK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CK(cuptiGetContextId(c, &other_context));
  CK(cuptiGetStreamIdEx(c, other, 0, &other_id));
  CK(cuCtxSetCurrent(context));
  CK(cuptiGetContextId(context, &context_id));
  CK(cuptiGetStreamIdEx(context, stream, 0, &id));
  CK(cuptiGetStreamIdEx(context, NULL, 0, &null));
  of_stream(stream, "before"); // which nobody has asked for
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_NAME));
  of_thread(77, "a thread");
  of_device(0, "a device");
  of_context(context, "a context");
  of_stream(stream, "a stream");
  of_runtimes(NULL, "the null stream");
  of_runtimes(other, "of another context");
  of_wide(stream, L"\u00e4");
  of_stream((CUstream)(uintptr_t)12345, "no stream");
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_NAME));
  flush();
  const struct { uint32_t kind, id[3]; const char *name; } want[] = {
    {CUPTI_ACTIVITY_OBJECT_THREAD, {(uint32_t)getpid(), 77}, "a thread"},
    {CUPTI_ACTIVITY_OBJECT_DEVICE, {0}, "a device"},
    {CUPTI_ACTIVITY_OBJECT_CONTEXT, {0, context_id}, "a context"},
    {CUPTI_ACTIVITY_OBJECT_STREAM, {0, context_id, id}, "a stream"},
    {CUPTI_ACTIVITY_OBJECT_STREAM, {0, context_id, null}, "the null stream"},
    {CUPTI_ACTIVITY_OBJECT_STREAM, {0, other_context, other_id}, "of another context"},
    {CUPTI_ACTIVITY_OBJECT_STREAM, {0, context_id, id}, "\xc3\xa4"}};
  int n = 0;
  EACH(CUpti_ActivityName, r, CUPTI_ACTIVITY_KIND_NAME) {
    uint32_t of[3];
    memcpy(of, r->objectId, sizeof of);
    CHECK(n < 7 && r->objectKind == want[n].kind && !memcmp(of, want[n].id, sizeof of) &&
          !strcmp((const char *)(uintptr_t)r->name, want[n].name), "name %d: %s of %u: %u %u %u", n,
          (const char *)(uintptr_t)r->name, r->objectKind, of[0], of[1], of[2]);
    n++;
  }
  CHECK(n == 7, "%d names", n);
  CK(cuCtxDestroy(c));
  CK(cuCtxSetCurrent(context));
  forget();
}

static void modules(void) {
  CUmodule m = load("kernels.ptx");
  CHECK(last[CUPTI_CBID_RESOURCE_MODULE_LOADED].handle == m, "no callback of a module");
  CK(cuModuleUnload(m));
  CHECK(last[CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING].handle == m &&
        last[CUPTI_CBID_RESOURCE_MODULE_UNLOAD_STARTING].module == last[CUPTI_CBID_RESOURCE_MODULE_LOADED].module,
        "another module is unloaded");
}

// What there was before it was asked for.
static void dumped(void) {
  CK(cuptiFinalize());
  flush();
  forget();
  CK(cuptiActivityEnableAndDump(CUPTI_ACTIVITY_KIND_DEVICE));
  CK(cuptiActivityEnableAndDump(CUPTI_ACTIVITY_KIND_CONTEXT));
  CK(cuptiActivityEnableAndDump(CUPTI_ACTIVITY_KIND_STREAM));
  flush();
  devices();
  contexts(context, 2);
}

// No kind, callback or field is switched on that nothing ever comes of.
static void refused(void) {
  for (uint32_t kind = 1; kind < CUPTI_ACTIVITY_KIND_COUNT; kind++) {
    int r = cuptiActivityEnable(kind);
    CHECK(r == CUPTI_SUCCESS || r == CUPTI_ERROR_NOT_SUPPORTED, "kind %u: %d", kind, r);
    printf("kind %u: %s\n", kind, r ? "refused" : "recorded");
    CK(cuptiActivityDisable(kind));
  }
  for (uint32_t id = 1; id < CUPTI_CBID_RESOURCE_SIZE; id++)
    if (cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE, id)) printf("callback %u: refused\n", id);
  WANT(cuptiActivityEnableCudaEventDeviceTimestamps(1), CUPTI_ERROR_NOT_SUPPORTED);
  CK(cuptiActivityEnableCudaEventDeviceTimestamps(0));
  WANT(cuptiActivityEnableLatencyTimestamps(1), CUPTI_ERROR_NOT_SUPPORTED);
  size_t bytes = 1;
  uint8_t on = 1;
  CK(cuptiActivitySetAttribute(CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER, &bytes, &on));
  WANT(cuptiActivitySetAttribute(CUPTI_ACTIVITY_ATTR_USER_DEFINED_RECORDS, &bytes, &on), CUPTI_ERROR_NOT_SUPPORTED);
}

int main(int argc, char **argv) {
  CHECK(argc > 2, "cupti_objects KERNELS LIBRARY");
  open_cupti(argv[2], RTLD_NOW);
  CK(cuptiSubscribe(&subscriber, on_resource, NULL));
  CK(cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE));
  CK(cuptiActivityRegisterCallbacks(request, complete));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_DEVICE));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONTEXT));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_STREAM));
  start(argc, argv);
  CHECK(last[CUPTI_CBID_RESOURCE_CU_INIT_FINISHED].n == 1, "the driver began %d times",
        last[CUPTI_CBID_RESOURCE_CU_INIT_FINISHED].n);
  CHECK(last[CUPTI_CBID_RESOURCE_CONTEXT_CREATED].context == context, "no callback of the first context");
  flush();
  devices();
  contexts(context, 1);
  made_streams();
  made_contexts();
  memory();
  events();
  peers();
  graphs();
  modules();
  markers(dlopen(argv[2], RTLD_NOW));
  names();
  CK(cuptiUnsubscribe(subscriber));
  dumped();
  CK(cuptiSubscribe(&subscriber, on_resource, NULL));
  refused();
  CK(cuptiUnsubscribe(subscriber));
  printf("right\n");
  return 0;
}
