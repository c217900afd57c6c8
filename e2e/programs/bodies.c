// Copies between the GPU and page-locked memory in the bodies of conditional nodes, added by hand and captured: they
// are those of each launch. What a node says of itself is what the program gave it; pageable memory is refused.
#include "check.h"

enum { N = 3000, W = 40, H = 30 };
static CUstream s, other;
static CUgraph graph, body;
static CUgraphNode branch;
static char *from, *to;
static CUdeviceptr dev;

static CUDA_MEMCPY3D copy(CUmemorytype src, CUmemorytype dst) {
  CUDA_MEMCPY3D c = {.srcMemoryType = src, .dstMemoryType = dst, .WidthInBytes = N, .Height = 1, .Depth = 1};
  if (src == CU_MEMORYTYPE_HOST) c.srcHost = from;
  else c.srcDevice = dev;
  if (dst == CU_MEMORYTYPE_HOST) c.dstHost = to;
  else c.dstDevice = dev;
  return c;
}

static void new_graph(void) {
  CUgraphConditionalHandle handle;
  CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
  CK(cuGraphCreate(&graph, 0));
  CK(cuGraphConditionalHandleCreate(&handle, graph, context, 1, 1 /* CU_GRAPH_COND_ASSIGN_DEFAULT */));
  p.conditional.handle = handle, p.conditional.type = CU_GRAPH_COND_TYPE_IF, p.conditional.size = 1,
      p.conditional.ctx = context;
  CK(cuGraphAddNode_v2(&branch, graph, NULL, NULL, 0, &p));
  body = p.conditional.phGraph_out[0];
}

// Launches bring `from`, as it is at each launch, through the GPU to `to`, from byte `shift` on.
static void launches(CUgraphExec exec, int shift, const char *what) {
  for (int i = 0; i < 3; i++) {
    for (int n = 0; n < N; n++) from[n] = (char)(n * 7 + i + shift), to[n] = 0;
    CK(cuGraphLaunch(exec, s));
    CK(cuStreamSynchronize(s));
    CHECK(!memcmp(from + shift, to, N - shift), "%s: launch %d", what, i);
  }
  printf("%s ok\n", what);
}

static void by_hand(void) {
  new_graph();
  CUgraphNode up, down;
  CUgraphExec exec;
  CUDA_MEMCPY3D c = copy(CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE), got;
  CK(cuGraphAddMemcpyNode(&up, body, NULL, 0, &c, context));
  CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
  p.memcpy.copyCtx = context, p.memcpy.copyParams = copy(CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST);
  CK(cuGraphAddNode_v2(&down, body, &up, NULL, 1, &p));
  CK(cuGraphMemcpyNodeGetParams(up, &got));
  CHECK(got.srcMemoryType == CU_MEMORYTYPE_HOST && got.srcHost == from && got.dstDevice == dev,
        "parameters of the upload");
  CK(cuGraphMemcpyNodeGetParams(down, &got));
  CHECK(got.dstMemoryType == CU_MEMORYTYPE_HOST && got.dstHost == to && got.srcDevice == dev,
        "parameters of the download");
  CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  launches(exec, 0, "by hand");
  CK(cuGraphExecDestroy(exec));
  c.srcHost = from + 5, c.WidthInBytes = N - 5;
  CK(cuGraphMemcpyNodeSetParams(up, &c));
  CK(cuGraphMemcpyNodeGetParams(up, &got));
  CHECK(got.srcHost == from + 5 && got.WidthInBytes == N - 5, "changed parameters");
  CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  launches(exec, 5, "changed");
  CK(cuGraphExecDestroy(exec));
  CK(cuGraphDestroy(graph));
}

static void captured(void) {
  new_graph();
  CUgraph same;
  CUgraphExec exec;
  CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = dev, .srcPitch = W,
                        .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = to, .dstPitch = W,
                        .WidthInBytes = W, .Height = H};
  CK(cuStreamBeginCaptureToGraph(other, body, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
  CK(cuMemcpyHtoDAsync(dev, from, N, other));
  CK(cuMemcpyDtoHAsync(to, dev, N, other));
  CK(cuMemcpy2DAsync(&rows, other)); // the same again, in part
  CK(cuStreamEndCapture(other, &same));
  CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  launches(exec, 0, "captured");
  CK(cuGraphExecDestroy(exec));
  CK(cuGraphDestroy(graph));
}

int main(int argc, char **argv) {
  start(argc, argv);
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CK(cuMemHostAlloc((void **)&from, N, 0));
  CK(cuMemHostAlloc((void **)&to, N, 0));
  CK(cuMemAlloc(&dev, N));
  by_hand();
  captured();
  return 0;
}
