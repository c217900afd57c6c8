// A profile of the GPUs of two servers, or of two of one: several_cupti KERNELS LIBRARY [COMMAND that ends the second
// server]. LIBRARY none: the work alone. Device 0 is the first server's, and the last device the second's. Both servers
// number contexts, streams, graphs and names alike; the records' numbers are those that the program is told.
#include "cupti.h"

#include <unistd.h>

enum { N = 1 << 10, ROUNDS = 20, IN_GRAPH = 3, SLEEP = 5000 /* us */ };
enum { ADD = 2, SAXPY, LATE = 5, GRAPH = 7 }; // blocks, by which launches are told apart

struct gpu {
  CUdevice device;
  CUcontext context;
  CUstream stream;
  CUfunction f;
  CUdeviceptr a, b;
  const char *name;
  CUgraph graph;
  CUgraphExec exec;
  uint32_t context_id, stream_id, exec_id;
} one, two;
static int profiled;
static float *host;

static void use(struct gpu *g) { CK(cuCtxSetCurrent(g->context)); }

static void launch(struct gpu *g, int blocks) {
  int n = N;
  float x = 1;
  if (g == &one) CK(LAUNCH(g->f, blocks, 128, 0, g->stream, &g->a, &g->b, &g->b, &n));
  else CK(LAUNCH(g->f, blocks, 128, 0, g->stream, &x, &g->a, &g->b, &n));
}

static void open_gpu(struct gpu *g, CUdevice device, const char *name) {
  g->device = device;
  g->name = name;
  CK(cuDevicePrimaryCtxRetain(&g->context, device));
  use(g);
  g->f = function(load("kernels.ptx"), name);
  CK(cuStreamCreate(&g->stream, CU_STREAM_NON_BLOCKING));
  CK(cuMemAlloc(&g->a, 4 * N));
  CK(cuMemAlloc(&g->b, 4 * N));
  CK(cuMemsetD8(g->a, 0, 4 * N));
  CK(cuMemsetD8(g->b, 0, 4 * N));
  CK(cuCtxSynchronize());
}

static void number(struct gpu *g) {
  uint64_t context = 0, stream = 0;
  uint32_t device = 99;
  CK(cuCtxGetId(g->context, (unsigned long long *)&context));
  CK(cuStreamGetId(g->stream, (unsigned long long *)&stream));
  CK(cuptiGetDeviceId(g->context, &device));
  CK(cuptiGetContextId(g->context, &g->context_id));
  CK(cuptiGetStreamIdEx(g->context, g->stream, 0, &g->stream_id));
  CHECK(device == (uint32_t)g->device && context == g->context_id && stream == g->stream_id && context && stream,
        "device %u, context %u or %llu, stream %u or %llu", device, g->context_id, (unsigned long long)context,
        g->stream_id, (unsigned long long)stream);
}

static uint64_t slept;

static void slow(void *user) {
  (void)user;
  usleep(SLEEP);
  slept = real_time();
}

static void make_graph(struct gpu *g) {
  use(g);
  CK(cuStreamBeginCapture(g->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  for (int i = 0; i < IN_GRAPH; i++) launch(g, GRAPH);
  CK(cuStreamEndCapture(g->stream, &g->graph));
  CK(cuGraphInstantiateWithFlags(&g->exec, g->graph, 0));
}

static void work(void) {
  for (int i = 0; i < ROUNDS; i++) {
    use(&one);
    launch(&one, ADD);
    use(&two);
    launch(&two, SAXPY);
  }
  for (int i = 0; i < 2; i++) {
    struct gpu *g = i ? &two : &one;
    use(g);
    CK(cuMemcpyHtoDAsync(g->a, host, 4 * N, g->stream));
    CK(cuMemsetD32Async(g->b, 7 + (unsigned)i, N, g->stream));
    CK(cuMemcpyDtoHAsync(host, g->a, 4 * N, g->stream));
    CK(cuGraphLaunch(g->exec, g->stream));
  }
  CK(cuStreamSynchronize(one.stream));
  CK(cuStreamSynchronize(two.stream));
  // that all of one is done says nothing of the other
  CK(cuLaunchHostFunc(two.stream, slow, NULL));
  launch(&two, LATE);
  use(&one);
  CK(cuCtxSynchronize());
  CK(cuStreamSynchronize(two.stream));
  CK(cuMemcpyPeer(two.a, two.context, one.a, one.context, 4 * N));
}

// The only call of the driver with that id, and when the first wait behind it for its stream returned.
static const struct CUpti_ActivityAPI *call_of(uint32_t correlation, uint32_t stream, uint64_t *waited) {
  const struct CUpti_ActivityAPI *call = NULL;
  EACH(CUpti_ActivityAPI, a, CUPTI_ACTIVITY_KIND_DRIVER) {
    if (a->correlationId != correlation) continue;
    CHECK(!call, "two calls are %u", correlation);
    call = a;
  }
  CHECK(call, "no call is %u", correlation);
  *waited = UINT64_MAX;
  EACH(CUpti_ActivitySynchronization2, w, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION)
    if (w->type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE && w->streamId == stream &&
        w->correlationId > correlation && w->end < *waited)
      *waited = w->end;
  return call;
}

static void is_of(const struct gpu *g, uint32_t device, uint32_t context, uint32_t stream, uint32_t correlation,
                  uint32_t cbid, uint64_t start, uint64_t end) {
  uint64_t waited;
  const struct CUpti_ActivityAPI *call = call_of(correlation, stream, &waited);
  CHECK(device == (uint32_t)g->device && context == g->context_id && stream == g->stream_id,
        "on device %u, context %u, stream %u; want %d, %u, %u", device, context, stream, g->device, g->context_id,
        g->stream_id);
  CHECK(call->cbid == cbid, "by call %u, not %u", call->cbid, cbid);
  CHECK(call->start <= start && start <= end && end <= waited,
        "from %lld to %lld ns behind its call, waited until %lld", (long long)(start - call->start),
        (long long)(end - call->start), (long long)(waited - call->start));
}

static void check(void) {
  int n[2] = {0}, in_graph[2] = {0}, late = 0, copies[2] = {0}, sets[2] = {0}, parts = 0, contexts = 0, peers = 0;
  EACH(CUpti_ActivityKernel11, k, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const char *name = (const char *)(uintptr_t)k->name;
    int which = !strcmp(name, two.name);
    const struct gpu *g = which ? &two : &one;
    CHECK(!strcmp(name, g->name), "kernel %s", name);
    is_of(g, k->deviceId, k->contextId, k->streamId, k->correlationId,
          k->gridX == GRAPH ? CBID_cuGraphLaunch : CBID_cuLaunchKernel, k->start, k->end);
    if (k->gridX == GRAPH) {
      CHECK(k->graphId == g->exec_id && k->graphNodeId >> 32 == g->exec_id, "graph %u, node %llx; want %u", k->graphId,
            (unsigned long long)k->graphNodeId, g->exec_id);
      in_graph[which]++;
    } else if (k->gridX == LATE) {
      CHECK(k->start >= slept, "it ran %llu ns too early", (unsigned long long)(slept - k->start));
      late++;
    } else {
      CHECK(k->gridX == (which ? SAXPY : ADD) && !k->graphId, "grid %u of %s", k->gridX, name);
      n[which]++;
    }
  }
  CHECK(n[0] == ROUNDS && n[1] == ROUNDS && late == 1 && in_graph[0] == IN_GRAPH && in_graph[1] == IN_GRAPH,
        "%d, %d, %d, %d and %d kernels", n[0], n[1], late, in_graph[0], in_graph[1]);
  EACH(CUpti_ActivityMemcpy6, m, CUPTI_ACTIVITY_KIND_MEMCPY) {
    int which = m->deviceId == (uint32_t)two.device, up = m->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
    uint64_t waited;
    if (call_of(m->correlationId, 0, &waited)->cbid == CBID_cuMemcpyPeer) { // each GPU has a half of the way
      CHECK(up == which && m->bytes == 4 * N, "a copy of kind %u on device %u", m->copyKind, m->deviceId);
      parts |= 1 << which;
      continue;
    }
    is_of(which ? &two : &one, m->deviceId, m->contextId, m->streamId, m->correlationId,
          up ? CBID_cuMemcpyHtoDAsync_v2 : CBID_cuMemcpyDtoHAsync_v2, m->start, m->end);
    copies[which]++;
  }
  EACH(CUpti_ActivityMemcpyPtoP4, p, CUPTI_ACTIVITY_KIND_MEMCPY2) {
    CHECK(p->srcDeviceId == (uint32_t)one.device && p->dstDeviceId == (uint32_t)two.device &&
          p->srcContextId == one.context_id && p->dstContextId == two.context_id, "from %u to %u", p->srcDeviceId,
          p->dstDeviceId);
    peers++;
  }
  CHECK(copies[0] == 2 && copies[1] == 2 && (peers ? peers == 1 && !parts : parts == 3),
        "%d and %d copies, parts %d, %d of one server", copies[0], copies[1], parts, peers);
  EACH(CUpti_ActivityMemset4, m, CUPTI_ACTIVITY_KIND_MEMSET) {
    int which = m->value == 8;
    is_of(which ? &two : &one, m->deviceId, m->contextId, m->streamId, m->correlationId, CBID_cuMemsetD32Async,
          m->start, m->end);
    sets[which]++;
  }
  CHECK(sets[0] == 1 && sets[1] == 1, "%d and %d memsets", sets[0], sets[1]);
  EACH(CUpti_ActivityContext4, c, CUPTI_ACTIVITY_KIND_CONTEXT) {
    const struct gpu *g = c->contextId == one.context_id ? &one : &two;
    CHECK(c->contextId == g->context_id && c->deviceId == (uint32_t)g->device, "context %u of device %u", c->contextId,
          c->deviceId);
    contexts++;
  }
  CHECK(contexts == 2, "%d contexts", contexts);
}

int main(int argc, char **argv) {
  static const uint32_t kinds[] = {
    CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION};
  CHECK(argc > 2, "several_cupti KERNELS LIBRARY [COMMAND]");
  profiled = strcmp(argv[2], "none") != 0;
  if (profiled) open_cupti(argv[2], RTLD_NOW);
  start(argc, argv);
  int devices;
  CK(cuDeviceGetCount(&devices));
  host = calloc(N, sizeof *host);
  open_gpu(&one, 0, "vector_add");
  open_gpu(&two, devices - 1, "saxpy");
  make_graph(&one);
  make_graph(&two);
  if (!profiled) {
    work();
    puts("right");
    return 0;
  }
  number(&one);
  number(&two);
  CHECK(one.context_id != two.context_id && one.stream_id != two.stream_id, "contexts %u and %u, streams %u and %u",
        one.context_id, two.context_id, one.stream_id, two.stream_id);
  CK(cuptiActivityRegisterCallbacks(request, complete));
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) CK(cuptiActivityEnable(kinds[i]));
    CK(cuptiActivityEnableAndDump(CUPTI_ACTIVITY_KIND_CONTEXT));
    CK(cuptiGetGraphExecId(one.exec, &one.exec_id));
    CK(cuptiGetGraphExecId(two.exec, &two.exec_id));
    CHECK(one.exec_id != two.exec_id, "both graphs are %u", one.exec_id);
    work();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) CK(cuptiActivityDisable(kinds[i]));
    CK(cuptiActivityFlushAll(1));
    check();
    forget();
  }
  puts("right");
  if (argc < 4) return 0;

  // one is lost, and there are records of the other still
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) CK(cuptiActivityEnable(kinds[i]));
  CHECK(system(argv[3]) == 0, "%s", argv[3]);
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_DRIVER)); // of more calls than there is room for
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION));
  use(&two);
  while (cuCtxSynchronize() == CUDA_SUCCESS) {}
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_DRIVER));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION));
  use(&one);
  for (int i = 0; i < ROUNDS; i++) launch(&one, ADD);
  CK(cuStreamSynchronize(one.stream));
  CK(cuptiActivityFlushAll(1));
  int of_one = 0;
  EACH(CUpti_ActivityKernel11, k, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    is_of(&one, k->deviceId, k->contextId, k->streamId, k->correlationId, CBID_cuLaunchKernel, k->start, k->end);
    of_one++;
  }
  CHECK(of_one == ROUNDS, "%d kernels", of_one);
  puts("one server");
}
