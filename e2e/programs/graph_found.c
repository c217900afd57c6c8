// Nodes however a program found them can be given other kinds of memory.
#include "check.h"

static CUstream s;
static CUdeviceptr a, b;
static char host[256], *pinned;

static CUDA_MEMCPY3D copy(const void *from) { // from host memory, else within the device
  CUDA_MEMCPY3D c = {.dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = b, .WidthInBytes = 64, .Height = 1,
                     .Depth = 1};
  c.srcMemoryType = from ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  if (from) c.srcHost = from;
  else c.srcDevice = a;
  return c;
}

static int copied(CUgraph g) { // by a launch
  unsigned char got[64];
  CUgraphExec x;
  CK(cuMemsetD8(b, 1, sizeof got));
  CK(cuCtxSynchronize());
  CK(cuGraphInstantiateWithFlags(&x, g, 0));
  CK(cuGraphLaunch(x, s));
  CK(cuStreamSynchronize(s));
  CK(cuGraphExecDestroy(x));
  CK(cuMemcpyDtoH(got, b, sizeof got));
  return got[63];
}

static void change_in(CUgraphNode n, CUgraph g, CUgraph whole, const char *how) {
  CUDA_MEMCPY3D c = copy(NULL), told;
  CUgraph inner;
  size_t before = 0, after = 0;
  CK(cuGraphGetNodes(g, NULL, &before));
  CK(cuGraphMemcpyNodeSetParams(n, &c));
  CK(cuGraphMemcpyNodeGetParams(n, &told));
  CHECK(told.srcMemoryType == CU_MEMORYTYPE_DEVICE && told.srcDevice == a, "%s: from memory of type %d", how,
        told.srcMemoryType);
  int byte = copied(whole);
  CHECK(byte == 9, "%s: %d from the device", how, byte);
  c = copy(host);
  CK(cuGraphMemcpyNodeSetParams(n, &c));
  byte = copied(whole);
  CHECK(byte == 7, "%s: %d from the host", how, byte);
  CK(cuGraphMemcpyNodeGetParams(n, &told));
  CHECK(told.srcMemoryType == CU_MEMORYTYPE_HOST && told.srcHost == host, "%s: from %p", how, told.srcHost);
  CK(cuGraphGetNodes(g, NULL, &after));
  CHECK(after == before, "%s: %zu nodes, then %zu", how, before, after);
  WANT(cuGraphChildGraphNodeGetGraph(n, &inner), CUDA_ERROR_INVALID_VALUE);
  printf("%s: right\n", how);
}

static void change(CUgraphNode n, CUgraph g, const char *how) { change_in(n, g, g, how); }

int main(int argc, char **argv) {
  start(argc, argv);
  memset(host, 7, sizeof host);
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuMemAlloc(&a, 256));
  CK(cuMemAlloc(&b, 256));
  CK(cuMemsetD8(a, 9, 256));
  CK(cuMemAllocHost((void **)&pinned, 256));
  for (int way = 0; way < 9; way++) {
    CUgraph g, other, whole;
    CUgraphNode first, node, last, child, from[4], to[4], found[4];
    const CUgraphNode *deps;
    CUstreamCaptureStatus status;
    size_t n = 4;
    CUDA_MEMSET_NODE_PARAMS set = {.dst = a, .value = 9, .elementSize = 1, .width = 4, .height = 1};
    CUDA_MEMCPY3D c = copy(host);
    CK(cuGraphCreate(&g, 0));
    CK(cuGraphAddMemsetNode(&first, g, NULL, 0, &set, context));
    CK(cuGraphAddMemcpyNode(&node, g, &first, 1, &c, context));
    CK(cuGraphAddMemsetNode(&last, g, &node, 1, &set, context));
    switch (way) {
    case 0: change(node, g, "added"); break;
    case 1: change(only(g, CU_GRAPH_NODE_TYPE_MEMCPY, "listed"), g, "listed"); break;
    case 2:
      CK(cuGraphGetEdges_v2(g, from, to, NULL, &n));
      change(to[0] == node ? to[0] : from[0] == node ? from[0] : to[1], g, "of an edge");
      break;
    case 3:
      CK(cuGraphNodeGetDependencies_v2(last, found, NULL, &n));
      change(found[0], g, "a dependency");
      break;
    case 4:
      CK(cuGraphNodeGetDependentNodes_v2(first, found, NULL, &n));
      change(found[0], g, "a dependent node");
      break;
    case 5:
      CK(cuGraphClone(&other, g));
      CK(cuGraphNodeFindInClone(&found[0], node, other));
      change(found[0], other, "found in a clone");
      change(node, g, "what it is a clone of");
      CK(cuGraphDestroy(other));
      break;
    case 6:
      CK(cuGraphClone(&other, g));
      change(only(other, CU_GRAPH_NODE_TYPE_MEMCPY, "listed in a clone"), other, "listed in a clone");
      CK(cuGraphDestroy(other));
      break;
    case 7:
      CK(cuGraphCreate(&whole, 0));
      CK(cuGraphAddChildGraphNode(&child, whole, NULL, 0, g));
      CK(cuGraphChildGraphNodeGetGraph(child, &other));
      change_in(only(other, CU_GRAPH_NODE_TYPE_MEMCPY, "in a child graph"), other, whole, "in a child graph");
      CK(cuGraphDestroy(whole));
      break;
    case 8:
      CK(cuGraphDestroyNode(node));
      CK(cuStreamBeginCaptureToGraph(s, g, &last, NULL, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
      CK(cuMemcpyHtoDAsync(b, pinned, 64, s));
      CK(cuStreamGetCaptureInfo_v3(s, &status, NULL, NULL, &deps, NULL, &n));
      found[0] = deps[0];
      CK(cuStreamEndCapture(s, &other));
      CHECK(other == g, "another graph");
      change(found[0], g, "captured");
    }
    CK(cuGraphDestroy(g));
  }
  return 0;
}
