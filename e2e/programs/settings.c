// What a program sets and asks for again: of contexts, functions, streams, pools, addresses and events; fills of all
// shapes; libraries from files.
#include "check.h"

enum { W = 8, H = 4, PITCH = 64 };
static CUstream s;

static void contexts(void) {
  CUfunc_cache cache = 99;
  CUsharedconfig banks = 99;
  unsigned flags = 99;
  CK(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
  CK(cuCtxGetCacheConfig(&cache));
  CK(cuCtxGetSharedMemConfig(&banks));
  printf("cache %d, banks %d\n", cache, banks);
  CK(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_NONE));
  CK(cuCtxSetFlags(CU_CTX_SCHED_BLOCKING_SYNC | CU_CTX_MAP_HOST));
  CK(cuCtxGetFlags(&flags));
  CHECK((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC, "flags %x", flags);
  int active = 0;
  CK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  printf("state %x %d\n", flags & CU_CTX_SCHED_MASK, active);
  static char page[4096] __attribute__((aligned(4096)));
  CK(cuMemHostRegister(page, sizeof page, 0));
  CK(cuMemHostGetFlags(&flags, page));
  printf("registered %x\n", flags);
  CK(cuMemHostUnregister(page));
  CK(cuCtxResetPersistingL2Cache());
  puts("contexts ok");
}

static void functions(void) {
  CUlibrary library;
  CUkernel kernel, list[64];
  CUfunction f;
  CUfunctionLoadingState state = 99;
  const char *name;
  unsigned count = 0;
  char path[4096];
  snprintf(path, sizeof path, "%s/kernels.fatbin", kernels_folder);
  CK(cuLibraryLoadFromFile(&library, path, NULL, NULL, 0, NULL, NULL, 0));
  CK(cuLibraryGetKernelCount(&count, library));
  CHECK(count > 0 && count <= 64, "%u kernels", count);
  CK(cuLibraryEnumerateKernels(list, count, library));
  unsigned found = 0;
  for (unsigned i = 0; i < count; i++) {
    CK(cuKernelGetName(&name, list[i]));
    found += !strcmp(name, "vector_add");
  }
  CHECK(found == 1, "vector_add is there %u times", found);
  CK(cuLibraryGetKernel(&kernel, library, "vector_add"));
  CK(cuKernelSetCacheConfig(kernel, CU_FUNC_CACHE_PREFER_SHARED, 0));
  CK(cuKernelGetFunction(&f, kernel));
  CK(cuFuncSetCacheConfig(f, CU_FUNC_CACHE_PREFER_L1));
  CK(cuFuncLoad(f));
  CK(cuFuncIsLoaded(&state, f));
  CHECK(state == CU_FUNCTION_LOADING_STATE_LOADED, "state %d", state);
  CK(cuLibraryUnload(library));
  puts("functions ok");
}

static void streams(void) {
  CUstream other;
  CUstreamAttrValue v = {0}, got = {0};
  CUdevice device = 99;
  CUevent e;
  CK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  v.syncPolicy = CU_SYNC_POLICY_YIELD;
  CK(cuStreamSetAttribute(s, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &v));
  CK(cuStreamCopyAttributes(other, s));
  CK(cuStreamGetAttribute(other, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &got));
  CHECK(got.syncPolicy == CU_SYNC_POLICY_YIELD, "policy %d", got.syncPolicy);
  CK(cuStreamGetDevice(other, &device));
  CHECK(device == 0, "device %d", device);
  CK(cuEventCreate(&e, CU_EVENT_DEFAULT));
  CK(cuEventRecordWithFlags(e, s, CU_EVENT_RECORD_DEFAULT));
  CK(cuStreamWaitEvent(other, e, 0));
  CK(cuStreamSynchronize(other));
  CK(cuEventQuery(e));
  CK(cuEventDestroy(e));
  CK(cuStreamDestroy(other));
  puts("streams ok");
}

static void pools(void) {
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemLocation here = props.location;
  CUmemoryPool pool, was, got;
  CUmemAccessDesc access = {.location = here, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemAccess_flags flags = 0;
  CUdeviceptr p;
  cuuint64_t keep = 1 << 20, value = 99;
  int reuse = 0;
  CK(cuDeviceGetMemPool(&was, 0));
  CK(cuMemPoolCreate(&pool, &props));
  CK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
  CK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
  CHECK(value == keep, "threshold %llu", (unsigned long long)value);
  CK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &reuse));
  reuse = 99;
  CK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &reuse));
  CHECK(reuse == 0, "reuse %d", reuse);
  CK(cuMemPoolSetAccess(pool, &access, 1));
  CK(cuMemPoolGetAccess(&flags, pool, &here));
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "access %d", flags);
  CK(cuDeviceSetMemPool(0, pool));
  CK(cuDeviceGetMemPool(&got, 0));
  CHECK(got == pool, "the device's pool");
  CK(cuMemAllocAsync(&p, 1 << 16, s));
  CK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
  CHECK(value >= 1 << 16, "used %llu", (unsigned long long)value);
  CK(cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
  CHECK(got == pool, "the memory's pool");
  CK(cuMemFreeAsync(p, s));
  CK(cuStreamSynchronize(s));
  CK(cuMemPoolTrimTo(pool, 0));
  CK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
  CHECK(value == 0, "used %llu", (unsigned long long)value);
  CK(cuDeviceSetMemPool(0, was));
  CK(cuMemPoolDestroy(pool));
  CK(cuDeviceGraphMemTrim(0));
  CK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &value));
  CHECK(value == 0, "graphs use %llu", (unsigned long long)value);
  CK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &(cuuint64_t){0}));
  puts("pools ok");
}

static void addresses(void) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle memory, again;
  size_t unit;
  CUdeviceptr p, q;
  unsigned on = 1;
  CK(cuMemAlloc(&q, 4096));
  CK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, q));
  on = 99;
  CK(cuPointerGetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, q));
  CHECK(on == 1, "synchronous %u", on);
  CK(cuMemFree(q));
  CK(cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CK(cuMemCreate(&memory, unit, &prop, 0));
  CK(cuMemAddressReserve(&p, unit, 0, 0, 0));
  CK(cuMemMap(p, unit, 0, memory, 0));
  CK(cuMemSetAccess(p, unit, &access, 1));
  CK(cuMemRetainAllocationHandle(&again, (void *)p));
  CHECK(again == memory, "the mapping's memory");
  CK(cuMemRelease(again));
  CK(cuMemsetD32(p, 5, unit / 4));
  CK(cuCtxSynchronize());
  CK(cuMemUnmap(p, unit));
  CK(cuMemRelease(memory));
  CK(cuMemAddressFree(p, unit));
  puts("addresses ok");
}

static void fills(void) {
  CUdeviceptr p;
  unsigned char *out = calloc(H, PITCH);
  CK(cuMemAlloc(&p, H * PITCH));
  for (int size = 1; size <= 4; size *= 2)
    for (int later = 0; later < 2; later++) {
      unsigned value = 0x01020304;
      CK(cuMemsetD8(p, 0xEE, H * PITCH));
      CK(cuCtxSynchronize());
      if (size == 1)
        CK(later ? cuMemsetD2D8Async(p, PITCH, (unsigned char)value, W, H, s) :
           cuMemsetD2D8(p, PITCH, (unsigned char)value, W, H));
      if (size == 2)
        CK(later ? cuMemsetD2D16Async(p, PITCH, (unsigned short)value, W, H, s) :
           cuMemsetD2D16(p, PITCH, (unsigned short)value, W, H));
      if (size == 4) CK(later ? cuMemsetD2D32Async(p, PITCH, value, W, H, s) : cuMemsetD2D32(p, PITCH, value, W, H));
      CK(cuStreamSynchronize(s));
      CK(cuMemcpyDtoH(out, p, H * PITCH));
      for (int i = 0; i < H * PITCH; i++) {
        unsigned char want = i % PITCH < W * size ? (unsigned char)(value >> i % size * 8) : 0xEE;
        CHECK(out[i] == want, "a fill by %d bytes: byte %d is %x", size, i, out[i]);
      }
    }
  CK(cuMemsetD16Async(p, 0x0A0B, 4, s));
  CK(cuStreamSynchronize(s));
  CK(cuMemcpyDtoH(out, p, 16));
  CHECK(out[6] == 0x0B && out[7] == 0x0A && out[8] == 4, "a fill of four");
  CK(cuMemFree(p));
  free(out);
  puts("fills ok");
}

static void capture(void) { // a node that was added by hand stands in a capture
  CUgraph graph, same;
  CUgraphNode node;
  CUgraphExec exec;
  CUstreamCaptureStatus status;
  CUdeviceptr p;
  unsigned char out[2];
  CK(cuMemAlloc(&p, 2));
  CUDA_MEMSET_NODE_PARAMS fill = {.dst = p, .elementSize = 1, .value = 6, .width = 2, .height = 1};
  CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  CK(cuStreamGetCaptureInfo_v2(s, &status, NULL, &graph, NULL, NULL));
  CK(cuGraphAddMemsetNode(&node, graph, NULL, 0, &fill, context));
  CK(cuStreamUpdateCaptureDependencies_v2(s, &node, NULL, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
  CK(cuMemsetD8Async(p, 7, 1, s));
  CK(cuStreamEndCapture(s, &same));
  CK(cuGraphInstantiateWithFlags(&exec, same, 0));
  CK(cuGraphLaunch(exec, s));
  CK(cuStreamSynchronize(s));
  CK(cuMemcpyDtoH(out, p, 2));
  CHECK(out[0] == 7 && out[1] == 6, "%d %d", out[0], out[1]);
  CK(cuGraphExecDestroy(exec));
  CK(cuGraphDestroy(same));
  CK(cuMemFree(p));
  puts("capture ok");
}

int main(int argc, char **argv) {
  start(argc, argv);
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  contexts();
  functions();
  streams();
  pools();
  addresses();
  fills();
  capture();
  return 0;
}
