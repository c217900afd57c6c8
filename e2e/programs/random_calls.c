// Random calls about contexts, streams, events, memory, functions and graphs, right ones and wrong ones, by the seed of
// the second argument: what each answers. Compared with a run on the simulated GPU itself, this finds what the library
// answers from what it remembers and should not.
#include "check.h"

enum { STREAMS = 4, EVENTS = 4, BLOCKS = 6, HOSTS = 4, GRAPHS = 3, STEPS = 1500 };
static CUstream streams[STREAMS];
static CUevent events[EVENTS];
static CUdeviceptr blocks[BLOCKS];
static size_t sizes[BLOCKS];
static char *hosts[HOSTS];
static CUgraph graphs[GRAPHS];
static CUcontext extra;
static CUmodule modules[2];
static CUfunction functions[2];
static uint64_t state;
static int step;

static unsigned pick(unsigned n) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (unsigned)(state >> 32) % n;
}
#define SAY(...) (printf("%d ", step), printf(__VA_ARGS__), putchar('\n'))

static void contexts(void) {
  unsigned flags = 77, version = 77;
  int active = 77, value = 77;
  size_t limit = 77;
  CUfunc_cache cache = 77;
  CUcontext c = NULL;
  CUdevice d = 77;
  CUresult r;
  switch (pick(14)) {
  case 0: r = cuCtxGetFlags(&flags); SAY("flags %d %x", r, flags); break;
  case 1: flags = pick(6); r = cuCtxSetFlags(flags); SAY("set flags %x %d", flags, r); break;
  case 2: r = cuDevicePrimaryCtxGetState(0, &flags, &active); SAY("state %d %x %d", r, flags, active); break;
  case 3: value = pick(8); r = cuCtxGetLimit(&limit, value); SAY("limit %d %d %zu", value, r, limit); break;
  case 4: value = pick(3); limit = 1024 << pick(4) << (value ? 10 : 0); r = cuCtxSetLimit(value, limit);
      SAY("set limit %d %zu %d", value, limit, r); break;
  case 5: r = cuCtxGetCacheConfig(&cache); SAY("cache %d %d", r, cache); break;
  case 6: cache = pick(5); r = cuCtxSetCacheConfig(cache); SAY("set cache %d", cache); break; // asynchronous
  case 7: r = cuCtxGetCurrent(&c); SAY("current %d %d", r, c == context ? 1 : c == extra ? 2 : c ? 3 : 0); break;
  case 8: // other objects are made in the first context alone, since they end with theirs
    if (extra) {
      r = cuCtxSetCurrent(extra);
      SAY("set current %d", r);
      contexts();
      CK(cuCtxSetCurrent(context));
    }
    break;
  case 9: if (!extra) {
    r = cuCtxCreate_v2(&extra, pick(3), 0);
    SAY("create %d", r);
    CK(cuCtxSetCurrent(context));
  } break;
  case 10: if (extra && pick(3) == 0) {
    r = cuCtxDestroy(extra);
    extra = NULL;
    SAY("destroy %d", r);
    CK(cuCtxSetCurrent(context));
  } break;
  case 11: r = cuCtxGetDevice(&d); SAY("device %d %d", r, d); break;
  case 12: r = cuCtxGetApiVersion(pick(2) ? context : extra, &version); SAY("api %d %u", r, version); break;
  case 13: cuCtxPushCurrent(context); r = cuCtxPopCurrent(&c); SAY("push and pop %d %d", r, c == context); break;
  }
}

static void queues(void) {
  unsigned i = pick(STREAMS), j = pick(EVENTS), flags = 77;
  int value = 77;
  float ms = -1;
  CUstreamAttrValue v = {0};
  CUresult r;
  switch (pick(12)) {
  case 0: if (!streams[i]) {
    r = cuStreamCreateWithPriority(&streams[i], pick(3), (int)pick(8) - 6);
    SAY("stream %d", r);
    if (r) streams[i] = NULL;
  } break;
  case 1: if (streams[i]) { r = cuStreamDestroy(streams[i]); streams[i] = NULL; SAY("destroy stream %d", r); } break;
  case 2: r = cuStreamGetPriority(streams[i], &value); SAY("priority %d %d", r, value); break;
  case 3: r = cuStreamGetFlags(streams[i], &flags); SAY("stream flags %d %u", r, flags); break;
  case 4: r = cuStreamSynchronize(streams[i]); SAY("synchronize %d, query %d", r, cuStreamQuery(streams[i])); break;
  case 5: if (!events[j]) {
    r = cuEventCreate(&events[j], pick(4));
    SAY("event %d", r);
    if (r) events[j] = NULL;
  } break;
  case 6: if (events[j]) { r = cuEventDestroy(events[j]); events[j] = NULL; SAY("destroy event %d", r); } break;
  case 7: if (events[j]) {
    r = cuEventRecord(events[j], streams[i]);
    CUresult w = cuEventSynchronize(events[j]);
    SAY("record %d, wait %d, query %d", r, w, cuEventQuery(events[j]));
  } break;
  case 8: if (events[j]) SAY("query %d", cuEventQuery(events[j])); break;
  case 9: if (events[j] && events[i]) {
    r = cuEventElapsedTime(&ms, events[i], events[j]);
    SAY("elapsed %d", r);
  } break;
  case 10: v.syncPolicy = 1 + pick(4);
      r = cuStreamSetAttribute(streams[i], CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &v);
      SAY("set policy %d", v.syncPolicy); break;
  case 11: r = cuStreamGetAttribute(streams[i], CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &v);
      SAY("policy %d %d", r, v.syncPolicy); break;
  }
}

static void memory(void) {
  unsigned i = pick(BLOCKS), h = pick(HOSTS), flags = 77;
  size_t n = 77, at = pick(3000);
  CUdeviceptr base = 77;
  CUmemorytype type = 77;
  unsigned char byte = 77;
  static char buffer[4096];
  CUresult r;
  switch (pick(13)) {
  case 0: if (!blocks[i]) {
    sizes[i] = 1 + pick(2500);
    r = cuMemAlloc(&blocks[i], sizes[i]);
    SAY("alloc %d", r);
    if (!r) CK(cuMemsetD8(blocks[i], 0, sizes[i]));
  } break;
  case 1: if (blocks[i]) { r = cuMemFree(blocks[i]); SAY("free %d", r); blocks[i] = 0; } break;
  case 2: if (blocks[i]) {
    r = cuMemGetAddressRange(&base, &n, blocks[i] + at % sizes[i]);
    SAY("range %d %d %zu", r, base == blocks[i], n);
  } break;
  case 3: if (blocks[i]) {
    r = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, blocks[i] + at % sizes[i]);
    SAY("type %d %d", r, type);
  } break;
  case 4: if (blocks[i]) {
    n = 1 + pick(2600);
    r = cuMemsetD8(blocks[i], (unsigned char)step, n);
    SAY("fill %d", n <= sizes[i] ? (int)r : 0);
  } break;
  case 5: if (blocks[i]) { r = cuMemcpyDtoH(&byte, blocks[i] + at % sizes[i], 1); SAY("byte %d %d", r, byte); } break;
  case 6: if (blocks[i]) {
    memset(buffer, step, sizes[i]);
    r = cuMemcpyHtoD(blocks[i], buffer, sizes[i]);
    SAY("upload %d", r);
  } break;
  case 7: if (!hosts[h]) {
    r = cuMemHostAlloc((void **)&hosts[h], 4096, pick(10));
    SAY("host %d", r);
    if (r) hosts[h] = NULL;
  } break;
  case 8: if (hosts[h]) { r = cuMemFreeHost(hosts[h]); SAY("free host %d", r); hosts[h] = NULL; } break;
  case 9: if (hosts[h]) { r = cuMemHostGetFlags(&flags, hosts[h] + at); SAY("host flags %d %x", r, flags); } break;
  case 10: if (hosts[h]) {
    r = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)hosts[h] + at);
    SAY("host type %d %d", r, type);
  } break;
  case 11: if (hosts[h] && blocks[i]) {
    memset(hosts[h], step, 4096);
    r = cuMemcpyAsync(blocks[i], (CUdeviceptr)(uintptr_t)hosts[h], sizes[i], streams[h]);
    SAY("copy %d %d", r, cuStreamSynchronize(streams[h]));
  } break;
  case 12: {
      r = cuMemHostRegister(buffer, 100 + at, pick(4));
      CUresult f = cuMemHostGetFlags(&flags, buffer + 50);
      SAY("register %d, flags %d %x, unregister %d", r, f, flags, cuMemHostUnregister(buffer));
    } break;
  }
}

static void code(void) {
  unsigned i = pick(2);
  int value = 77, a = pick(18);
  size_t n = 77;
  CUdeviceptr p = 77;
  CUresult r;
  CUmodule m = NULL;
  switch (pick(9)) {
  case 0: if (!modules[i]) {
    modules[i] = load("kernels.fatbin");
    functions[i] = function(modules[i], i ? "saxpy" : "reduce_sum");
    SAY("load");
  } break;
  case 1: if (modules[i] && pick(2)) { r = cuModuleUnload(modules[i]); modules[i] = NULL; SAY("unload %d", r); } break;
  case 2: if (modules[i] && a != CU_FUNC_ATTRIBUTE_NUM_REGS && a != CU_FUNC_ATTRIBUTE_BINARY_VERSION) {
    r = cuFuncGetAttribute(&value, a, functions[i]);
    SAY("attribute %d %d %d", a, r, value);
  } break;
  case 3: if (modules[i]) {
    value = 1024 * (int)pick(260);
    r = cuFuncSetAttribute(functions[i], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, value);
    r = cuFuncGetAttribute(&a, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, functions[i]);
    SAY("dynamic %d %d", r, a);
  } break;
  case 4: if (modules[i]) {
    n = 1024 * pick(300);
    r = cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, functions[i], 32 + pick(1000), n);
    SAY("occupancy %d %d", r, r ? 0 : value);
  } break;
  case 5: if (modules[i]) {
    r = cuModuleGetGlobal(&p, &n, modules[i], pick(2) ? "counter" : "nothing");
    SAY("global %d %zu", r, n);
  } break;
  case 6: if (modules[i]) {
    CUfunction f;
    r = cuModuleGetFunction(&f, modules[i], pick(2) ? "vector_add" : "nothing");
    SAY("function %d", r);
  } break;
  case 7: if (modules[i]) { r = cuFuncGetModule(&m, functions[i]); SAY("module %d %d", r, m == modules[i]); } break;
  case 8: if (modules[i]) {
    value = (int)pick(120) - 10;
    r = cuFuncSetAttribute(functions[i], CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, value);
    r = cuFuncGetAttribute(&a, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, functions[i]);
    SAY("carveout %d %d", r, a);
  } break;
  }
}

static void drawing(void) {
  unsigned i = pick(GRAPHS), b = pick(BLOCKS);
  size_t n = 0;
  CUgraphNode node, list[64];
  CUgraphExec exec;
  CUgraphNodeType type = 77;
  CUresult r;
  switch (pick(7)) {
  case 0: if (!graphs[i]) { r = cuGraphCreate(&graphs[i], 0); SAY("graph %d", r); } break;
  case 1: if (graphs[i]) { r = cuGraphDestroy(graphs[i]); graphs[i] = NULL; SAY("destroy graph %d", r); } break;
  case 2: if (graphs[i]) { r = cuGraphAddEmptyNode(&node, graphs[i], NULL, 0); SAY("empty %d", r); } break;
  case 3: if (graphs[i] && blocks[b]) {
      CUDA_MEMSET_NODE_PARAMS p = {.dst = blocks[b], .elementSize = 1, .value = step & 255, .width = sizes[b],
                                   .height = 1};
      r = cuGraphAddMemsetNode(&node, graphs[i], NULL, 0, &p, context);
      SAY("fill node %d", r);
    } break;
  case 4: if (graphs[i]) { r = cuGraphGetNodes(graphs[i], NULL, &n); SAY("nodes %d %zu", r, n); } break;
  case 5: if (graphs[i]) {
      n = 64;
      CK(cuGraphGetNodes(graphs[i], list, &n));
      if (n > 0 && n < 64) { unsigned k = pick((unsigned)n); r = cuGraphNodeGetType(list[k], &type);
        SAY("destroy node %d", cuGraphDestroyNode(list[k])); (void)type; }
    } break;
  case 6: if (graphs[i]) {
    n = 0;
    CK(cuGraphGetNodes(graphs[i], NULL, &n));
    if (!n) { CK(cuGraphInstantiateWithFlags(&exec, graphs[i], 0)); r = cuGraphLaunch(exec, streams[1]);
      SAY("launch %d %d", r, cuStreamSynchronize(streams[1])); CK(cuGraphExecDestroy(exec)); }
  } break;
  }
}

static void pools(void) {
  static CUmemoryPool pool;
  static CUdeviceptr p[3];
  unsigned i = pick(3);
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemoryPool of = NULL, standing = NULL;
  cuuint64_t value = 77;
  size_t n = 77;
  CUdeviceptr base;
  CUmemorytype type = 77;
  CUresult r, q;
  switch (pick(9)) {
  case 0: if (!pool) { r = cuMemPoolCreate(&pool, &props); SAY("pool %d", r); } break;
  case 1: if (!p[i]) {
    n = 1 + pick(100000);
    r = pool && pick(2) ? cuMemAllocFromPoolAsync(&p[i], n, pool, streams[1]) : cuMemAllocAsync(&p[i], n, streams[1]);
    SAY("allocate %d", r);
    CK(cuStreamSynchronize(streams[1]));
  } break;
  case 2: if (p[i]) {
    r = cuMemFreeAsync(p[i], streams[1]);
    q = cuStreamSynchronize(streams[1]);
    SAY("free %d %d", r, q);
    p[i] = 0;
  } break;
  case 3: if (p[i]) {
    r = cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p[i]);
    SAY("whose %d %d", r, of == pool ? 1 : of ? 2 : 0);
  } break;
  case 4: if (pool) {
    r = cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value);
    SAY("used %d %d", r, value != 0);
  } break;
  case 5: if (p[i]) {
    r = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p[i]);
    q = cuMemGetAddressRange(&base, &n, p[i]);
    SAY("type %d %d, range %d %d", r, type, q, base == p[i]);
  } break;
  case 6: CK(cuDeviceGetDefaultMemPool(&standing, 0)); r = cuDeviceSetMemPool(0, pool && pick(2) ? pool : standing);
      q = cuDeviceGetMemPool(&of, 0); SAY("the device's %d %d %d", r, q, of == standing); break;
  case 7: if (pool) {
    value = pick(1000);
    r = cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
    q = cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value);
    SAY("threshold %d %d %d", r, q, (int)value);
  } break;
  case 8: if (pool && !p[0] && !p[1] && !p[2]) {
    CK(cuDeviceGetDefaultMemPool(&standing, 0));
    CK(cuDeviceSetMemPool(0, standing));
    r = cuMemPoolDestroy(pool);
    pool = NULL;
    SAY("destroy pool %d", r);
  } break;
  }
}

// Captures in one stream; what is forbidden meanwhile and what it does to the capture.
static void captures(void) {
  CUstream s = streams[0];
  CUgraph g = NULL;
  CUgraphExec exec;
  CUstreamCaptureStatus status = 77;
  size_t n = 77;
  CUdeviceptr p = 0;
  CUresult r, q;
  unsigned b = pick(BLOCKS);
  int value = 77;
  if (!s || !blocks[b]) return;
  r = cuStreamBeginCapture(s, pick(3));
  SAY("capture %d", r);
  for (unsigned k = pick(4); k--;) {
    switch (pick(9)) {
    // of an invalid capture its end tells
    case 0: case 1: cuMemsetD8Async(blocks[b], 1, sizes[b], s); SAY("captured fill"); break;
    case 2: q = cuMemAlloc(&p, 100); SAY("alloc %d", q); if (!q) SAY("free %d", cuMemFree(p)); break;
    case 3: SAY("synchronize %d", cuStreamSynchronize(s)); break;
    case 4: SAY("query %d", cuStreamQuery(s)); break;
    case 5: q = cuStreamIsCapturing(s, &status); SAY("capturing %d %d", q, status); break;
    case 6: q = cuStreamGetPriority(s, &value); SAY("priority %d %d", q, value); break;
    case 7: SAY("wait %d", cuCtxSynchronize()); break;
    case 8: if (events[0]) { cuEventRecord(events[0], s); SAY("record, query %d", cuEventQuery(events[0])); } break;
    }
  }
  r = cuStreamEndCapture(s, &g);
  q = cuStreamIsCapturing(s, &status);
  SAY("end %d %d, %d %d", r, g != NULL, q, status);
  if (g) {
    CK(cuGraphGetNodes(g, NULL, &n));
    r = cuGraphInstantiateWithFlags(&exec, g, 0);
    SAY("%zu nodes, instantiate %d", n, r);
    if (!r) {
      r = cuGraphLaunch(exec, s);
      q = cuStreamSynchronize(s);
      SAY("launch %d %d", r, q);
      CK(cuGraphExecDestroy(exec));
    }
    CK(cuGraphDestroy(g));
  }
  if (events[0]) CK(cuEventDestroy(events[0])); // it may belong to the capture
  events[0] = NULL;
}

int main(int argc, char **argv) {
  start(argc, argv);
  state = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1) * 0x9E3779B97F4A7C15ull + 1;
  static void (*const kinds[])(void) = {contexts, queues, memory, code, drawing, pools, captures};
  for (step = 0; step < STEPS; step++) kinds[pick(sizeof kinds / sizeof *kinds)]();
  return 0;
}
