// What the calls of answers.c need to be about: objects by name. "stream" is made once a process, "new:stream" for this
// call, "dead:stream" is one that has been destroyed.
#ifndef ANSWERS_H
#define ANSWERS_H
#include "check.h"

#include <dlfcn.h>
#include <unistd.h>

void *room(size_t n); // memory of the call, zeroed
static void *library_of_makers;

static const char kernels_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 4 .u32 variable = 7;\n"
    ".visible .entry nothing() { ret; }\n"
    ".visible .entry store(.param .u64 to, .param .u32 v) { .reg .u64 a; .reg .u32 b; ld.param.u64 a, [to]; "
    "ld.param.u32 b, [v];"
    " cvta.to.global.u64 a, a; st.global.u32 [a], b; ret; }\n";
static const char references_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .texref image;\n.visible .global .surfref picture;\n.visible .entry nothing() { ret; }\n";

static void host_function(void *data) { (void)data; }
static void stream_callback(CUstream s, CUresult r, void *data) { (void)s, (void)r, (void)data; }
static size_t shared_for_block(int threads) { return (size_t)(0 * threads); }

enum { PAGE = 2 << 20 }; // granularity of virtual memory
static CUmemAllocationProp on_device(void) {
  CUmemAllocationProp p;
  memset(&p, 0, sizeof p);
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED, p.location.type = CU_MEM_LOCATION_TYPE_DEVICE,
      p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return p;
}

static int make_cuda(const char *name, uint64_t *out);
static int start_cuda(void) {
  CUdevice dev;
  int r = cuInit(0);
  if (!r) r = cuDeviceGet(&dev, 0);
  if (!r) r = cuDevicePrimaryCtxRetain(&context, dev);
  return r ? r : cuCtxSetCurrent(context);
}

// The process is as a case expects it.
static int sound_cuda(void) {
  CUcontext now = NULL, other = NULL;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  if (cuCtxGetCurrent(&now) || now != context || cuCtxSynchronize()) return 0;
  if (cuThreadExchangeStreamCaptureMode(&mode) || mode != CU_STREAM_CAPTURE_MODE_GLOBAL) return 0;
  if (cuCtxPopCurrent(&other) || other != context || cuCtxGetCurrent(&other)) return 0;
  return other == NULL && cuCtxPushCurrent(context) == 0; // nothing was left below it
}

// Makers: a name, how it is made, how it ends. In the body `r` is the answer and `v` the value.
#define GET(type, variable, name) \
  type variable = 0; \
  { \
    uint64_t u_ = 0; \
    int e_ = make_cuda(name, &u_); \
    if (e_) return e_; \
    variable = (type)u_; \
  }
#define MAKER(name, type, ...) \
  static int make_##name(uint64_t *out) { \
    type v = 0; \
    int r = 0; \
    __VA_ARGS__ \
    *out = (uint64_t)v; \
    return r; \
  }

MAKER(context, CUcontext, r = cuCtxCreate_v2(&v, 0, 0); CUcontext was; if (!r) r = cuCtxPopCurrent(&was);)
MAKER(stream, CUstream, r = cuStreamCreate(&v, CU_STREAM_NON_BLOCKING);)
MAKER(capturing, CUstream, r = cuStreamCreate(&v, CU_STREAM_NON_BLOCKING);
    if (!r) r = cuStreamBeginCapture(v, CU_STREAM_CAPTURE_MODE_RELAXED);)
MAKER(event, CUevent, r = cuEventCreate(&v, 0); if (!r) r = cuEventRecord(v, NULL); if (!r) r = cuEventSynchronize(v);)
MAKER(ipcevent, CUevent, r = cuEventCreate(&v, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);)
MAKER(module, CUmodule, r = cuModuleLoadData(&v, kernels_ptx);)
MAKER(refmodule, CUmodule, r = cuModuleLoadData(&v, references_ptx);)
MAKER(texref, CUtexref, GET(CUmodule, m, "refmodule") r = cuModuleGetTexRef(&v, m, "image");)
MAKER(owntexref, CUtexref, r = cuTexRefCreate(&v);)
MAKER(surfref, CUsurfref, GET(CUmodule, m, "refmodule") r = cuModuleGetSurfRef(&v, m, "picture");)
MAKER(function, CUfunction, GET(CUmodule, m, "module") r = cuModuleGetFunction(&v, m, "store");)
MAKER(nothing, CUfunction, GET(CUmodule, m, "module") r = cuModuleGetFunction(&v, m, "nothing");)
MAKER(library, CUlibrary, r = cuLibraryLoadData(&v, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0);)
MAKER(kernel, CUkernel, GET(CUlibrary, l, "library") r = cuLibraryGetKernel(&v, l, "store");)
MAKER(linkstate, CUlinkState, r = cuLinkCreate(0, NULL, NULL, &v);)
MAKER(fulllink, CUlinkState, r = cuLinkCreate(0, NULL, NULL, &v);
    if (!r) r = cuLinkAddData(v, CU_JIT_INPUT_PTX, (void *)kernels_ptx, sizeof kernels_ptx, "k", 0, NULL, NULL);)
MAKER(mem, CUdeviceptr, r = cuMemAlloc(&v, 65536); if (!r) r = cuMemsetD8(v, 0, 65536);)
MAKER(asyncmem, CUdeviceptr, r = cuMemAllocAsync(&v, 65536, NULL);)
MAKER(managed, CUdeviceptr, r = cuMemAllocManaged(&v, 65536, CU_MEM_ATTACH_GLOBAL);)
MAKER(pinned, void *, r = cuMemHostAlloc(&v, 65536, CU_MEMHOSTALLOC_DEVICEMAP);)
MAKER(pages, void *, v = aligned_alloc(65536, 65536); memset(v, 0, 65536);)
MAKER(registered, void *, v = aligned_alloc(65536, 65536); memset(v, 0, 65536); r = cuMemHostRegister(v, 65536, 0);)
MAKER(memorypool, CUmemoryPool, CUmemPoolProps p; memset(&p, 0, sizeof p); p.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
      p.location.type = CU_MEM_LOCATION_TYPE_DEVICE; r = cuMemPoolCreate(&v, &p);)
MAKER(poolmem, CUdeviceptr, GET(CUmemoryPool, p, "memorypool") r = cuMemAllocFromPoolAsync(&v, 65536, p, NULL);)
MAKER(poolfd, intptr_t, GET(CUmemoryPool, p, "memorypool") int fd = -1;
    r = cuMemPoolExportToShareableHandle(&fd, p, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0); v = fd;)
MAKER(allocation, CUmemGenericAllocationHandle, CUmemAllocationProp p = on_device(); r = cuMemCreate(&v, PAGE, &p, 0);)
MAKER(allocationfd, intptr_t, GET(CUmemGenericAllocationHandle, h, "allocation") int fd = -1;
    r = cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0); v = fd;)
MAKER(reserved, CUdeviceptr, r = cuMemAddressReserve(&v, PAGE, 0, 0, 0);)
MAKER(mapped, CUdeviceptr, GET(CUdeviceptr, a, "new:reserved")
    GET(CUmemGenericAllocationHandle, h, "new:allocation") r = cuMemMap(a, PAGE, 0, h, 0); v = a;)
MAKER(readable, CUdeviceptr, GET(CUdeviceptr, a, "new:mapped") CUmemAccessDesc d; memset(&d, 0, sizeof d);
    d.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      d.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE; r = cuMemSetAccess(a, PAGE, &d, 1); v = a;)
MAKER(array, CUarray, CUDA_ARRAY_DESCRIPTOR d = {.Width = 64, .Height = 64, .Format = CU_AD_FORMAT_FLOAT,
    .NumChannels = 1}; r = cuArrayCreate(&v, &d);)
MAKER(flatarray, CUarray, CUDA_ARRAY_DESCRIPTOR d = {.Width = 1024, .Height = 0, .Format = CU_AD_FORMAT_UNSIGNED_INT8,
    .NumChannels = 1}; r = cuArrayCreate(&v, &d);)
MAKER(surfarray, CUarray, CUDA_ARRAY3D_DESCRIPTOR d = {.Width = 64, .Height = 64, .Format = CU_AD_FORMAT_FLOAT,
    .NumChannels = 1, .Flags = CUDA_ARRAY3D_SURFACE_LDST}; r = cuArray3DCreate(&v, &d);)
MAKER(mipmappedarray, CUmipmappedArray, CUDA_ARRAY3D_DESCRIPTOR d = {.Width = 64, .Height = 64,
    .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1}; r = cuMipmappedArrayCreate(&v, &d, 3);)
MAKER(texobject, CUtexObject, GET(CUarray, a, "array") CUDA_RESOURCE_DESC d; CUDA_TEXTURE_DESC t;
    memset(&d, 0, sizeof d); memset(&t, 0, sizeof t);
      d.resType = CU_RESOURCE_TYPE_ARRAY; d.res.array.hArray = a; r = cuTexObjectCreate(&v, &d, &t, NULL);)
MAKER(surfobject, CUsurfObject, GET(CUarray, a, "surfarray") CUDA_RESOURCE_DESC d; memset(&d, 0, sizeof d);
    d.resType = CU_RESOURCE_TYPE_ARRAY; d.res.array.hArray = a;
      r = cuSurfObjectCreate(&v, &d);)
MAKER(userobject, CUuserObject, r = cuUserObjectCreate(&v, NULL, host_function, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);)

// Graphs: "graph" holds one node of each kind, whose names are …node; "graphexec" is made of it.
static CUgraph last_graph;
enum { NODES = 8 };
static const char *const node_names[NODES] = {"emptynode", "kernelnode", "memsetnode", "memcpynode", "hostnode",
    "childnode", "recordnode", "waitnode"};
static CUgraphNode last_nodes[NODES];
static CUgraphNode kept_nodes[NODES]; // of the graph that all calls share
static CUgraphNode last_alloc;
static uint64_t *kernel_arguments(CUdeviceptr to) {
  static uint64_t words[4];
  static uint32_t v = 5;
  static CUdeviceptr address;
  address = to;
  words[0] = (uintptr_t)&address, words[1] = (uintptr_t)&v;
  return words;
}
static int make_graph(uint64_t *out) {
  GET(CUfunction, f, "function")
  GET(CUdeviceptr, m, "mem")
  GET(CUevent, e, "event")
  CUgraph g = NULL, child = NULL;
  int r = cuGraphCreate(&g, 0);
  if (!r) r = cuGraphCreate(&child, 0);
  last_graph = g;
  CUgraphNode *n = last_nodes;
  CUDA_KERNEL_NODE_PARAMS k = {.func = f, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1,
      .blockDimZ = 1, .kernelParams = (void **)kernel_arguments(m)};
  CUDA_MEMSET_NODE_PARAMS s = {.dst = m, .value = 1, .elementSize = 4, .width = 16, .height = 1};
  CUDA_MEMCPY3D c;
  memset(&c, 0, sizeof c);
  c.srcMemoryType = c.dstMemoryType = CU_MEMORYTYPE_DEVICE, c.srcDevice = m, c.dstDevice = m + 4096,
      c.WidthInBytes = 64, c.Height = c.Depth = 1;
  CUDA_HOST_NODE_PARAMS h = {.fn = host_function};
  if (!r) r = cuGraphAddEmptyNode(n++, g, NULL, 0);
  if (!r) r = cuGraphAddKernelNode(n++, g, last_nodes, 1, &k);
  if (!r) r = cuGraphAddMemsetNode(n++, g, NULL, 0, &s, context);
  if (!r) r = cuGraphAddMemcpyNode(n++, g, NULL, 0, &c, context);
  if (!r) r = cuGraphAddHostNode(n++, g, NULL, 0, &h);
  if (!r) r = cuGraphAddChildGraphNode(n++, g, NULL, 0, child);
  if (!r) r = cuGraphAddEventRecordNode(n++, g, NULL, 0, e);
  if (!r) r = cuGraphAddEventWaitNode(n++, g, NULL, 0, e);
  *out = (uint64_t)g;
  return r;
}
MAKER(node, CUgraphNode, GET(CUgraph, g, "new:emptygraph") r = cuGraphAddEmptyNode(&v, g, NULL, 0);)
MAKER(emptygraph, CUgraph, r = cuGraphCreate(&v, 0);)
MAKER(graphexec, CUgraphExec, GET(CUgraph, g, "graph") r = cuGraphInstantiate(&v, g, 0);)
static CUdeviceptr graph_memory;
MAKER(allocnode, CUgraphNode, GET(CUgraph, g, "new:emptygraph") CUDA_MEM_ALLOC_NODE_PARAMS p; memset(&p, 0, sizeof p);
    p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE; p.bytesize = 4096;
    r = cuGraphAddMemAllocNode(&v, g, NULL, 0, &p); graph_memory = p.dptr; last_graph = g; last_alloc = v;)
MAKER(freenode, CUgraphNode, GET(CUgraphNode, a, "new:allocnode")
    r = cuGraphAddMemFreeNode(&v, last_graph, &a, 1, graph_memory);)
MAKER(allocgraph, CUgraph, GET(CUgraphNode, a, "new:allocnode")(void) a; v = last_graph;)
MAKER(graphmem, CUdeviceptr, v = graph_memory;)
MAKER(lastalloc, CUgraphNode, v = last_alloc;)
MAKER(ptxsize, size_t, v = sizeof kernels_ptx;)
MAKER(clone, CUgraph, GET(CUgraph, g, "graph") r = cuGraphClone(&v, g);)
MAKER(ownergraph, CUgraph, GET(CUuserObject, u, "userobject") r = cuGraphCreate(&v, 0);
    if (!r) r = cuGraphRetainUserObject(v, u, 1, 0);)

// Places for structures by value and arguments of launches.
MAKER(ipcmem, CUipcMemHandle *, GET(CUdeviceptr, m, "mem") v = room(64); r = cuIpcGetMemHandle(v, m);)
MAKER(ipceventhandle, CUipcEventHandle *, GET(CUevent, e, "ipcevent") v = room(64); r = cuIpcGetEventHandle(v, e);)
MAKER(pointerdata, void *, GET(CUdeviceptr, m, "new:poolmem") v = room(64); r = cuMemPoolExportPointer(v, m);)
MAKER(arguments, void **, GET(CUdeviceptr, m, "mem") v = (void **)kernel_arguments(m);)
MAKER(hostfunction, void *, v = (void *)host_function;)
MAKER(callback, void *, v = (void *)stream_callback;)
MAKER(sharedforblock, void *, v = (void *)shared_for_block;)
MAKER(ptx, void *, v = (void *)kernels_ptx;)
MAKER(busid, char *, v = room(64); r = cuDeviceGetPCIBusId(v, 64, 0);)
MAKER(scratch, void *, v = room(65536);)
MAKER(pinneddevice, CUdeviceptr, GET(void *, p, "pinned") r = cuMemHostGetDevicePointer(&v, p, 0);)
MAKER(mem2, CUdeviceptr, GET(CUdeviceptr, m, "mem") v = m + 32768;)
MAKER(texmem, CUdeviceptr, GET(CUdeviceptr, m, "mem") v = m;)
MAKER(logiterator, intptr_t, CUlogIterator i = 0; r = cuLogsCurrent(&i, 0); v = i;)
MAKER(ptxfile, char *, v = room(64); snprintf(v, 64, "/tmp/scuda-answers-%d.ptx", (int)getpid());
    FILE *f = fopen(v, "w"); if (f) { fputs(kernels_ptx, f); fclose(f); })

static int end_module(uint64_t v) { return cuModuleUnload((CUmodule)v); }
#define ENDS(name, type, f) \
  static int end_##name(uint64_t v) { return f((type)v); }
ENDS(context, CUcontext, cuCtxDestroy)
ENDS(stream, CUstream, cuStreamDestroy)
ENDS(event, CUevent, cuEventDestroy)
ENDS(library, CUlibrary, cuLibraryUnload)
ENDS(linkstate, CUlinkState, cuLinkDestroy)
ENDS(memorypool, CUmemoryPool, cuMemPoolDestroy)
ENDS(array, CUarray, cuArrayDestroy)
ENDS(mipmappedarray, CUmipmappedArray, cuMipmappedArrayDestroy)
ENDS(graph, CUgraph, cuGraphDestroy)
ENDS(node, CUgraphNode, cuGraphDestroyNode)
ENDS(graphexec, CUgraphExec, cuGraphExecDestroy)
ENDS(owntexref, CUtexref, cuTexRefDestroy)
ENDS(allocation, CUmemGenericAllocationHandle, cuMemRelease)
static int end_userobject(uint64_t v) { return cuUserObjectRelease((CUuserObject)v, 2); }

#define ONE(name) {#name, make_##name, NULL}
#define TWO(name, end) {#name, make_##name, end_##end}
static struct maker {
  const char *name;
  int (*make)(uint64_t *);
  int (*end)(uint64_t);
  uint64_t value;
  int made;
} makers[] = {
    TWO(context, context), TWO(stream, stream), ONE(capturing), TWO(event, event), TWO(ipcevent, event),
    TWO(module, module), ONE(refmodule), ONE(texref), TWO(owntexref, owntexref), ONE(surfref), ONE(function),
    ONE(nothing), TWO(library, library), ONE(kernel), TWO(linkstate, linkstate), ONE(fulllink), ONE(mem),
    ONE(asyncmem), ONE(managed), ONE(pinned), ONE(pages), ONE(registered), TWO(memorypool, memorypool), ONE(poolmem),
    ONE(poolfd), TWO(allocation, allocation), ONE(allocationfd), ONE(reserved), ONE(mapped), ONE(readable),
    TWO(array, array), TWO(flatarray, array), TWO(surfarray, array), TWO(mipmappedarray, mipmappedarray),
    ONE(texobject), ONE(surfobject), TWO(userobject, userobject), TWO(graph, graph), TWO(node, node),
    TWO(emptygraph, graph), TWO(graphexec, graphexec), ONE(allocnode), ONE(freenode), ONE(allocgraph), ONE(graphmem),
    ONE(lastalloc), ONE(ptxsize), ONE(clone), ONE(ownergraph), ONE(ipcmem), ONE(ipceventhandle), ONE(pointerdata),
    ONE(arguments), ONE(hostfunction), ONE(callback), ONE(sharedforblock), ONE(ptx), ONE(busid), ONE(scratch),
    ONE(pinneddevice), ONE(mem2), ONE(texmem), ONE(logiterator), ONE(ptxfile),
};
// Places in the memory of a call cannot be kept for the next one.
static int kept(const struct maker *m) {
  static const char *const places[] = {"ipcmem", "ipceventhandle", "pointerdata", "arguments", "busid", "scratch",
      "allocnode", "freenode", "allocgraph", "graphmem", "lastalloc", "logiterator", "capturing", "ptxfile"};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++)
    if (!strcmp(places[i], m->name)) return 0;
  return 1;
}

static int ends_cuda(const char *name) {
  if (*name == '.') name++;
  for (int i = 0; i < NODES; i++)
    if (!strcmp(name, node_names[i])) return 1;
  for (size_t i = 0; i < sizeof makers / sizeof *makers; i++)
    if (!strcmp(name, makers[i].name)) return makers[i].end != NULL;
  return 0;
}

static int make_cuda(const char *name, uint64_t *out) {
  int fresh = strncmp(name, "new:", 4) == 0, dead = strncmp(name, "dead:", 5) == 0;
  if (fresh || dead) name = strchr(name, ':') + 1;
  if (!strcmp(name, "context") && !fresh && !dead) {
    *out = (uint64_t)context;
    return 0;
  }
  if (!strcmp(name, "graphnode")) name = "emptynode";
  int last = *name == '.' || fresh || dead; // a node of the graph that was made last, not of the shared one
  for (int i = 0; i < NODES; i++) {
    if (strcmp(node_names[i], name + (*name == '.'))) continue;
    if (fresh || dead || !last) {
      GET(CUgraph, g, last ? "new:graph" : "graph")
      (void)g;
    }
    CUgraphNode node = last ? last_nodes[i] : kept_nodes[i];
    *out = (uint64_t)node;
    return dead ? cuGraphDestroyNode(node) : 0;
  }
  for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
    struct maker *m = &makers[i];
    if (strcmp(m->name, name)) continue;
    if (!fresh && !dead && m->made) {
      *out = m->value;
      return 0;
    }
    uint64_t v = 0;
    int r = m->make(&v);
    *out = v;
    if (r) return r;
    if (dead) return m->end ? m->end(v) : 1;
    if (!fresh && kept(m)) {
      m->value = v, m->made = 1;
      if (m->make == make_graph) memcpy(kept_nodes, last_nodes, sizeof kept_nodes);
    }
    return 0;
  }
  return 1;
}

// NVML has no header here; what its calls are about is asked of the library by name.
typedef int nvml_plain(void);
typedef int nvml_index(unsigned, uint64_t *);
typedef int nvml_create(uint64_t *);
static int start_nvml(void) { return ((nvml_plain *)dlsym(library_of_makers, "nvmlInit_v2"))(); }
static int sound_nvml(void) {
  unsigned n[2];
  return ((int (*)(unsigned *))dlsym(library_of_makers, "nvmlDeviceGetCount_v2"))(n) == 0;
}
static int nvml_of(const char *symbol, uint64_t *out) { return ((nvml_create *)dlsym(library_of_makers, symbol))(out); }
static int nvml_end(const char *symbol, uint64_t v) { return ((int (*)(uint64_t))dlsym(library_of_makers, symbol))(v); }
static int ends_nvml(const char *name) { return !strcmp(name, "eventset") || !strcmp(name, "gpmsample"); }
static int make_nvml(const char *name, uint64_t *out) {
  static const struct { const char *name, *make, *end; } of[] = {
      {"eventset", "nvmlEventSetCreate", "nvmlEventSetFree"}, {"gpmsample", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree"}};
  int dead = strncmp(name, "dead:", 5) == 0;
  if (strchr(name, ':')) name = strchr(name, ':') + 1;
  if (!strcmp(name, "device") && !dead)
    return ((nvml_index *)dlsym(library_of_makers, "nvmlDeviceGetHandleByIndex_v2"))(0, out);
  if (!strcmp(name, "uuid") || !strcmp(name, "busid") || !strcmp(name, "serial")) {
    uint64_t device;
    char *text = room(256);
    *out = (uintptr_t)text;
    int r = make_nvml("device", &device);
    if (r) return r;
    if (!strcmp(name, "busid")) {
      r = ((int (*)(uint64_t, void *))dlsym(library_of_makers, "nvmlDeviceGetPciInfo_v3"))(device, text);
      memmove(text, text + 36, 32); // busId behind busIdLegacy and five numbers
      return r;
    }
    const char *getter = *name == 'u' ? "nvmlDeviceGetUUID" : "nvmlDeviceGetSerial";
    return ((int (*)(uint64_t, char *, unsigned))dlsym(library_of_makers, getter))(device, text, 96);
  }
  for (size_t i = 0; i < sizeof of / sizeof *of; i++)
    if (!strcmp(of[i].name, name)) {
      int r = nvml_of(of[i].make, out);
      return r || !dead ? r : nvml_end(of[i].end, *out);
    }
  return 1;
}
#endif
