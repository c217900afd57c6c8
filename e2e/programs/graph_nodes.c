// A graph built by hand: kernel, memset, copy, host function, child graph, event, empty, memory and conditional nodes;
// what their getters say; executable graphs whose parameters change; copies between host and device that the graph
// makes anew at each launch.
#include "check.h"
#include <unistd.h>

enum { N = 3000, W = 40, H = 30 };
static float *in, *other, *out;
static int calls, others;
static float seen;
static void CUDA_CB count(void *user) {
  seen = out[N - 1];
  ++*(int *)user;
}

static CUDA_MEMCPY3D flat(CUmemorytype from, void *src, CUdeviceptr dsrc, CUmemorytype to, void *dst, CUdeviceptr ddst,
                          size_t bytes) {
  CUDA_MEMCPY3D p;
  memset(&p, 0, sizeof p);
  p.srcMemoryType = from, p.srcHost = src, p.srcDevice = dsrc;
  p.dstMemoryType = to, p.dstHost = dst, p.dstDevice = ddst;
  p.srcPitch = p.dstPitch = p.WidthInBytes = bytes;
  p.srcHeight = p.dstHeight = p.Height = p.Depth = 1;
  return p;
}

static CUDA_KERNEL_NODE_PARAMS kernel(CUfunction f, void **params) {
  CUDA_KERNEL_NODE_PARAMS p;
  memset(&p, 0, sizeof p);
  p.func = f;
  p.gridDimX = (N + 255) / 256, p.blockDimX = 256;
  p.gridDimY = p.gridDimZ = p.blockDimY = p.blockDimZ = 1;
  p.kernelParams = params;
  return p;
}

static void launch(CUgraphExec exec, CUstream s, float a, float b, const float *x) { // out must be a*x + b
  memset(out, 0xFF, N * 4);
  CK(cuGraphLaunch(exec, s));
  CK(cuStreamSynchronize(s));
  for (int i = 0; i < N; i++) CHECK(out[i] == a * x[i] + b, "[%d] = %g, not %g", i, out[i], a * x[i] + b);
  CHECK(seen == out[N - 1], "the host function behind the copy saw %g", seen);
}

static CUstream s;
static CUfunction add, saxpy;

static void by_hand(void) {
  int n = N;
  float two = 2, three = 3;
  CUdeviceptr a, b, c;
  CK(cuMemAlloc(&a, N * 4));
  CK(cuMemAlloc(&b, N * 4));
  CK(cuMemAlloc(&c, N * 4));
  CUgraph graph, child;
  CUgraphNode up, set, mul, inner, nested, record, wait, empty, down, host;
  CUevent e;
  CK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  CK(cuGraphCreate(&graph, 0));

  CUDA_MEMCPY3D copy = flat(CU_MEMORYTYPE_HOST, in, 0, CU_MEMORYTYPE_DEVICE, NULL, a, N * 4);
  CK(cuGraphAddMemcpyNode(&up, graph, NULL, 0, &copy, context));
  CUDA_MEMSET_NODE_PARAMS fill;
  memset(&fill, 0, sizeof fill);
  fill.dst = b, fill.value = 0x3F800000, fill.elementSize = 4, fill.width = N, fill.height = 1; // 1.0
  CK(cuGraphAddMemsetNode(&set, graph, NULL, 0, &fill, context));
  CUDA_KERNEL_NODE_PARAMS k = kernel(saxpy, ARGS(&two, &a, &b, &n)); // b = 2a + 1
  CK(cuGraphAddKernelNode(&mul, graph, (CUgraphNode[]){up, set}, 2, &k));
  CK(cuGraphCreate(&child, 0));
  CUDA_KERNEL_NODE_PARAMS sum = kernel(add, ARGS(&a, &b, &c, &n)); // c = a + b
  CK(cuGraphAddKernelNode(&inner, child, NULL, 0, &sum));
  CK(cuGraphAddChildGraphNode(&nested, graph, &mul, 1, child));
  CK(cuGraphDestroy(child));
  CK(cuGraphAddEventRecordNode(&record, graph, &nested, 1, e));
  CK(cuGraphAddEmptyNode(&empty, graph, &record, 1));
  CUDA_MEMCPY3D back = flat(CU_MEMORYTYPE_DEVICE, NULL, c, CU_MEMORYTYPE_HOST, out, 0, N * 4);
  CK(cuGraphAddMemcpyNode(&down, graph, &empty, 1, &back, context));
  CUDA_HOST_NODE_PARAMS function = {count, &calls};
  CK(cuGraphAddHostNode(&host, graph, &down, 1, &function));

  // What the getters say.
  size_t count_ = 0;
  CK(cuGraphGetNodes(graph, NULL, &count_));
  CHECK(count_ == 8, "%zu nodes", count_);
  CK(cuGraphGetEdges_v2(graph, NULL, NULL, NULL, &count_));
  CHECK(count_ == 7, "%zu edges", count_);
  CK(cuGraphGetRootNodes(graph, NULL, &count_));
  CHECK(count_ == 2, "%zu roots", count_);
  CUgraphNode deps[4];
  count_ = 4;
  CK(cuGraphNodeGetDependencies_v2(mul, deps, NULL, &count_));
  CHECK(count_ == 2 && ((deps[0] == up && deps[1] == set) || (deps[0] == set && deps[1] == up)),
        "dependencies of the kernel");
  CUgraphNode all[] = {up, set, mul, nested, record, empty, down, host};
  for (int i = 0; i < 8; i++) {
    CUgraphNodeType type;
    CK(cuGraphNodeGetType(all[i], &type));
    printf("node %d has type %d\n", i, (int)type);
  }
  CUDA_KERNEL_NODE_PARAMS got;
  CK(cuGraphKernelNodeGetParams(mul, &got));
  CHECK(got.func == saxpy && got.gridDimX == k.gridDimX && got.blockDimX == 256, "parameters of the kernel");
  CHECK(*(float *)got.kernelParams[0] == 2 && *(CUdeviceptr *)got.kernelParams[1] == a &&
        *(CUdeviceptr *)got.kernelParams[2] == b &&
            *(int *)got.kernelParams[3] == N, "arguments of the kernel");
  CUDA_MEMCPY3D found;
  CK(cuGraphMemcpyNodeGetParams(up, &found));
  CHECK(found.srcMemoryType == CU_MEMORYTYPE_HOST && found.srcHost == in && found.WidthInBytes == N * 4,
        "parameters of the copy");
  CUDA_HOST_NODE_PARAMS f;
  CK(cuGraphHostNodeGetParams(host, &f));
  CHECK(f.fn == count && f.userData == &calls, "parameters of the host function");
  CUDA_MEMSET_NODE_PARAMS m;
  CK(cuGraphMemsetNodeGetParams(set, &m));
  CHECK(m.dst == b && m.value == 0x3F800000 && m.width == N, "parameters of the memset");
  CUevent recorded;
  CK(cuGraphEventRecordNodeGetEvent(record, &recorded));
  CHECK(recorded == e, "the node's event");
  CUkernelNodeAttrValue value;
  memset(&value, 0, sizeof value);
  CK(cuGraphKernelNodeSetAttribute(mul, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
  CK(cuGraphKernelNodeGetAttribute(mul, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));

  CUgraphExec exec;
  CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  for (int round = 1; round <= 3; round++) {
    for (int i = 0; i < N; i++) in[i] = (float)(i * round);
    launch(exec, s, 3, 1, in);
    CHECK(calls == round, "%d calls", calls);
    CK(cuEventSynchronize(e));
  }

  // Changed in the executable graph alone.
  fill.value = 0x40A00000; // 5.0
  CK(cuGraphExecMemsetNodeSetParams(exec, set, &fill, context));
  launch(exec, s, 3, 5, in);
  k.kernelParams = ARGS(&three, &a, &b, &n);
  CK(cuGraphExecKernelNodeSetParams(exec, mul, &k));
  launch(exec, s, 4, 5, in);
  copy.srcHost = other;
  CK(cuGraphExecMemcpyNodeSetParams(exec, up, &copy, context));
  launch(exec, s, 4, 5, other);
  function.userData = &others;
  CK(cuGraphExecHostNodeSetParams(exec, host, &function));
  launch(exec, s, 4, 5, other);
  CHECK(calls == 6 && others == 1, "%d and %d calls", calls, others);
  CK(cuGraphKernelNodeGetParams(mul, &got));
  CHECK(*(float *)got.kernelParams[0] == 2, "the graph changed with its executable form");

  // Changed in the graph, and brought into the executable one.
  CK(cuGraphKernelNodeSetParams(mul, &k));
  CK(cuGraphKernelNodeGetParams(mul, &got));
  CHECK(*(float *)got.kernelParams[0] == 3, "the graph did not change");
  CUgraphExecUpdateResultInfo info;
  CK(cuGraphExecUpdate(exec, graph, &info));
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS, "update result %d", (int)info.result);
  launch(exec, s, 4, 1, in);

  // A clone does the same; nodes find theirs in it.
  CUgraph clone;
  CUgraphExec second;
  CUgraphNode copied;
  CK(cuGraphClone(&clone, graph));
  CK(cuGraphNodeFindInClone(&copied, mul, clone));
  CK(cuGraphKernelNodeGetParams(copied, &got));
  CHECK(got.func == saxpy && *(float *)got.kernelParams[0] == 3, "the clone's kernel");
  CK(cuGraphInstantiateWithFlags(&second, clone, 0));
  launch(second, s, 4, 1, in);

  // The dependencies change: without the kernel in the middle c stays what it was.
  CK(cuGraphDestroyNode(host));
  CK(cuGraphAddEventWaitNode(&wait, graph, NULL, 0, e));
  CK(cuGraphAddDependencies_v2(graph, &wait, &up, NULL, 1));
  CK(cuGraphGetEdges_v2(graph, NULL, NULL, NULL, &count_));
  CHECK(count_ == 7, "%zu edges", count_);
  CK(cuGraphRemoveDependencies_v2(graph, &wait, &up, NULL, 1));
  char path[] = "/tmp/scuda-graph-XXXXXX", first[8] = "";
  int fd = mkstemp(path);
  CHECK(fd >= 0, "mkstemp: %s", strerror(errno));
  CK(cuGraphDebugDotPrint(graph, path, 0));
  CHECK(pread(fd, first, 7, 0) == 7 && !strcmp(first, "digraph"), "the description begins with '%s'", first);
  close(fd);
  unlink(path);

  CK(cuGraphExecDestroy(second));
  CK(cuGraphDestroy(clone));
  CK(cuGraphExecDestroy(exec));
  CK(cuGraphDestroy(graph));
  CK(cuEventDestroy(e));
  CK(cuMemFree(a));
  CK(cuMemFree(b));
  CK(cuMemFree(c));
  printf("by hand ok\n");
}

// Rectangles with gaps between their rows, in and out; what lies in the gaps stays.
static void rectangles(void) {
  enum { PITCH = 64 };
  unsigned char *from, *to;
  CK(cuMemAllocHost((void **)&from, PITCH * H));
  CK(cuMemAllocHost((void **)&to, PITCH * H));
  CUdeviceptr d;
  CK(cuMemAlloc(&d, 128 * H));
  CUgraph graph;
  CUgraphNode up, down;
  CUgraphExec exec;
  CK(cuGraphCreate(&graph, 0));
  CUDA_MEMCPY3D p;
  memset(&p, 0, sizeof p);
  p.srcMemoryType = CU_MEMORYTYPE_HOST, p.srcHost = from, p.srcPitch = PITCH, p.srcXInBytes = 3, p.srcY = 1;
  p.dstMemoryType = CU_MEMORYTYPE_DEVICE, p.dstDevice = d, p.dstPitch = 128;
  p.WidthInBytes = W, p.Height = H - 1, p.Depth = 1;
  CK(cuGraphAddMemcpyNode(&up, graph, NULL, 0, &p, context));
  memset(&p, 0, sizeof p);
  p.srcMemoryType = CU_MEMORYTYPE_DEVICE, p.srcDevice = d, p.srcPitch = 128;
  p.dstMemoryType = CU_MEMORYTYPE_HOST, p.dstHost = to, p.dstPitch = PITCH, p.dstXInBytes = 3, p.dstY = 1;
  p.WidthInBytes = W, p.Height = H - 1, p.Depth = 1;
  CK(cuGraphAddMemcpyNode(&down, graph, &up, 1, &p, context));
  CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  for (int round = 0; round < 3; round++) {
    fill(from, PITCH * H, round);
    memset(to, 0xAB, PITCH * H);
    CK(cuGraphLaunch(exec, s));
    CK(cuStreamSynchronize(s));
    for (int y = 0; y < H; y++)
      for (int x = 0; x < PITCH; x++) {
        int inside = y > 0 && x >= 3 && x < 3 + W;
        CHECK(to[y * PITCH + x] == (inside ? from[y * PITCH + x] : 0xAB), "round %d: row %d, column %d: %d", round, y,
              x, to[y * PITCH + x]);
      }
  }
  CK(cuGraphExecDestroy(exec));
  CK(cuGraphDestroy(graph));
  CK(cuMemFree(d));
  CK(cuMemFreeHost(from));
  CK(cuMemFreeHost(to));
  printf("rectangles ok\n");
}

// The functions for nodes of all types; packed arguments; memory of the graph; a conditional body.
static void general(void) {
  int n = N;
  CUdeviceptr a, c;
  CK(cuMemAlloc(&a, N * 4));
  CK(cuMemAlloc(&c, N * 4));
  CK(cuMemcpyHtoD(a, in, N * 4));
  CUgraph graph, body;
  CUgraphNode alloc, set, twice, branch, inner, release, down;
  CUgraphNodeParams p;
  CK(cuGraphCreate(&graph, 0));

  memset(&p, 0, sizeof p);
  p.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  p.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.alloc.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.alloc.bytesize = N * 4;
  CK(cuGraphAddNode_v2(&alloc, graph, NULL, NULL, 0, &p));
  CUdeviceptr b = p.alloc.dptr;
  CHECK(b, "no address");
  CUDA_MEM_ALLOC_NODE_PARAMS allocated;
  CK(cuGraphMemAllocNodeGetParams(alloc, &allocated));
  CHECK(allocated.dptr == b && allocated.bytesize == N * 4 && allocated.poolProps.location.id == 0,
        "parameters of the allocation");

  memset(&p, 0, sizeof p);
  p.type = CU_GRAPH_NODE_TYPE_MEMSET;
  // 10.0
  p.memset.dst = b, p.memset.elementSize = 4, p.memset.value = 0x41200000, p.memset.width = N, p.memset.height = 1;
  p.memset.ctx = context;
  CK(cuGraphAddNode_v2(&set, graph, &alloc, NULL, 1, &p));

  memset(&p, 0, sizeof p);
  p.type = CU_GRAPH_NODE_TYPE_KERNEL;
  struct { CUdeviceptr a, b, c; int n; } packed = {a, b, c, n};
  size_t size = sizeof packed - 4;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  p.kernel.func = add; // c = a + b
  p.kernel.gridDimX = (N + 255) / 256, p.kernel.blockDimX = 256;
  p.kernel.gridDimY = p.kernel.gridDimZ = p.kernel.blockDimY = p.kernel.blockDimZ = 1;
  p.kernel.extra = extra;
  CK(cuGraphAddNode_v2(&twice, graph, &set, NULL, 1, &p));

  CUgraphConditionalHandle handle;
  CK(cuGraphConditionalHandleCreate(&handle, graph, context, 1, 1 /* CU_GRAPH_COND_ASSIGN_DEFAULT */));
  memset(&p, 0, sizeof p);
  p.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  p.conditional.handle = handle, p.conditional.type = CU_GRAPH_COND_TYPE_IF, p.conditional.size = 1,
      p.conditional.ctx = context;
  CK(cuGraphAddNode_v2(&branch, graph, &twice, NULL, 1, &p));
  body = p.conditional.phGraph_out[0];
  CUDA_KERNEL_NODE_PARAMS k = kernel(add, ARGS(&c, &a, &c, &n)); // c = 2a + b
  CK(cuGraphAddKernelNode(&inner, body, NULL, 0, &k));

  CK(cuGraphAddMemFreeNode(&release, graph, &branch, 1, b));
  memset(&p, 0, sizeof p);
  p.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  p.memcpy.copyCtx = context;
  p.memcpy.copyParams = flat(CU_MEMORYTYPE_DEVICE, NULL, c, CU_MEMORYTYPE_HOST, out, 0, N * 4);
  CK(cuGraphAddNode_v2(&down, graph, &release, NULL, 1, &p));
  CUgraphNode host;
  memset(&p, 0, sizeof p);
  p.type = CU_GRAPH_NODE_TYPE_HOST;
  p.host.fn = count, p.host.userData = &calls;
  CK(cuGraphAddNode_v2(&host, graph, &down, NULL, 1, &p));

  CUgraphExec exec;
  CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  launch(exec, s, 2, 10, in);
  launch(exec, s, 2, 10, in);
  memset(&p, 0, sizeof p);
  p.type = CU_GRAPH_NODE_TYPE_MEMSET;
  // 20.0
  p.memset.dst = b, p.memset.elementSize = 4, p.memset.value = 0x41A00000, p.memset.width = N, p.memset.height = 1;
  p.memset.ctx = context;
  CK(cuGraphExecNodeSetParams(exec, set, &p));
  launch(exec, s, 2, 20, in);
  CK(cuGraphExecDestroy(exec));
  CK(cuGraphDestroy(graph));
  CK(cuDeviceGraphMemTrim(0));
  CK(cuMemFree(a));
  CK(cuMemFree(c));
  printf("general ok\n");
}

static void CUDA_CB add_to(void *user) { *(int *)user += 10; }

// Host functions and copies within host memory, made by hand and captured: they run in their place, and the getters
// tell them, in clones too.
static void host_ends(void) {
  static char from[64] = "first", between[64], to[64], captured[64];
  int here = 0, there = 0;
  CUgraph graph, caught, clone;
  CUgraphNode move, host, nodes[8];
  CUgraphExec exec;
  CUgraphNodeType type;
  CUDA_HOST_NODE_PARAMS function = {add_to, &here}, got;
  size_t n = 8;
  CK(cuGraphCreate(&graph, 0));
  CUDA_MEMCPY3D copy = flat(CU_MEMORYTYPE_HOST, from, 0, CU_MEMORYTYPE_HOST, between, 0, 64), moved;
  CK(cuGraphAddMemcpyNode(&move, graph, NULL, 0, &copy, context));
  CK(cuGraphAddHostNode(&host, graph, &move, 1, &function));
  CK(cuGraphNodeGetType(move, &type));
  CHECK(type == CU_GRAPH_NODE_TYPE_MEMCPY, "the copy has type %d", (int)type);
  CK(cuGraphMemcpyNodeGetParams(move, &moved));
  CHECK(moved.WidthInBytes == 64 && moved.Height == 1, "the copy's box");
  CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CK(cuGraphLaunch(exec, s));
  CK(cuStreamSynchronize(s));
  CHECK(!strcmp(between, "first") && here == 10, "'%s' was copied, %d", between, here);
  copy.dstHost = to;
  CK(cuGraphExecMemcpyNodeSetParams(exec, move, &copy, context));
  strcpy(from, "second");
  CK(cuGraphLaunch(exec, s));
  CK(cuStreamSynchronize(s));
  CHECK(!strcmp(to, "second") && !strcmp(between, "first"), "'%s' and '%s' after the change", to, between);
  CK(cuGraphExecDestroy(exec));
  CK(cuGraphDestroy(graph));

  CK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CK(cuLaunchHostFunc(s, add_to, &there));
  CK(cuStreamEndCapture(s, &caught));
  CK(cuGraphClone(&clone, caught));
  for (int i = 0; i < 2; i++) {
    n = 8;
    CK(cuGraphGetNodes(i ? clone : caught, nodes, &n));
    CHECK(n == 1, "%zu nodes", n);
    CK(cuGraphHostNodeGetParams(nodes[0], &got));
    CHECK(got.fn == add_to && got.userData == &there, "parameters of a captured host function, or of its clone");
  }
  CK(cuGraphInstantiateWithFlags(&exec, clone, 0));
  CK(cuGraphLaunch(exec, s));
  CK(cuGraphExecHostNodeSetParams(exec, nodes[0], &function)); // what is under way stays as it was
  CK(cuGraphLaunch(exec, s));
  CK(cuStreamSynchronize(s));
  CHECK(there == 10 && here == 30, "%d and %d after captured host functions", there, here);
  CK(cuGraphHostNodeSetParams(nodes[0], &function));
  CK(cuGraphHostNodeGetParams(nodes[0], &got));
  CHECK(got.userData == &here, "parameters of a captured host function that was changed");
  CK(cuGraphExecDestroy(exec));
  CK(cuGraphDestroy(clone));
  CK(cuGraphDestroy(caught));

  CK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  CK(cuMemcpyAsync((CUdeviceptr)(uintptr_t)captured, (CUdeviceptr)(uintptr_t)from, 64, s));
  CK(cuStreamEndCapture(s, &caught));
  CK(cuGraphInstantiateWithFlags(&exec, caught, 0));
  strcpy(from, "third");
  CHECK(!captured[0], "'%s' before the launch", captured);
  CK(cuGraphLaunch(exec, s));
  CK(cuStreamSynchronize(s));
  CHECK(!strcmp(captured, "third"), "'%s' was copied by a captured copy", captured);
  CK(cuGraphExecDestroy(exec));
  CK(cuGraphDestroy(caught));
  printf("host ends ok\n");
}

static void refused(void) {
  CUgraph graph;
  CUgraphNode node;
  CK(cuGraphCreate(&graph, 0));
  CUDA_KERNEL_NODE_PARAMS k = kernel(NULL, NULL);
  CHECK(cuGraphAddKernelNode(&node, graph, NULL, 0, &k), "a kernel node without a kernel");
  WANT(cuGraphAddEmptyNode(&node, graph, NULL, 1), CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphAddKernelNode(NULL, graph, NULL, 0, &k), "nowhere to put the handle");
  CK(cuGraphAddEmptyNode(&node, graph, NULL, 0));
  WANT(cuGraphKernelNodeGetParams(node, &k), CUDA_ERROR_INVALID_VALUE);
  CK(cuGraphDestroy(graph));
  printf("refusals ok\n");
}

int main(int argc, char **argv) {
  start(argc, argv);
  CUmodule m = load("kernels.ptx");
  add = function(m, "vector_add"), saxpy = function(m, "saxpy");
  CK(cuMemAllocHost((void **)&in, N * 4));
  CK(cuMemAllocHost((void **)&other, N * 4));
  CK(cuMemAllocHost((void **)&out, N * 4));
  for (int i = 0; i < N; i++) other[i] = (float)(N - i);
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  by_hand();
  rectangles();
  general();
  host_ends();
  refused();
  printf("graph nodes ok\n");
  return 0;
}
