// Copies between the program's memory and the device that were captured, and clones of them: each is one node, a copy,
// that tells what it copies and can be given other memory.
#include "check.h"

enum { N = 1000, ROWS = 4 };
static CUstream s;
static CUdeviceptr d;
static char *up, *down, *other;

static void count(CUgraph g, size_t nodes, size_t edges, const char *what) {
  size_t n = 0, e = 0;
  CK(cuGraphGetNodes(g, NULL, &n));
  CK(cuGraphGetEdges_v2(g, NULL, NULL, NULL, &e));
  CHECK(n == nodes && e == edges, "%s: %zu nodes, %zu edges", what, n, e);
}

static void run(CUgraph g) {
  CUgraphExec x;
  CK(cuGraphInstantiateWithFlags(&x, g, 0));
  CK(cuGraphLaunch(x, s));
  CK(cuStreamSynchronize(s));
  CK(cuGraphExecDestroy(x));
}

static const void *end(CUmemorytype type, const void *host, CUdeviceptr address) {
  return type == CU_MEMORYTYPE_HOST ? host : (const void *)address;
}

static void is_copy(CUgraphNode node, const void *from, const void *to, const char *what) {
  CUDA_MEMCPY3D c;
  CK(cuGraphMemcpyNodeGetParams(node, &c));
  CHECK(c.WidthInBytes == N && (!from || end(c.srcMemoryType, c.srcHost, c.srcDevice) == from) &&
        (!to || end(c.dstMemoryType, c.dstHost, c.dstDevice) == to), "%s: %zu bytes from %p to %p", what,
        c.WidthInBytes, c.srcHost, c.dstHost);
}

int main(int argc, char **argv) {
  start(argc, argv);
  CUgraph g, clone;
  CUgraphNode node, same;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuMemAlloc(&d, N));
  CK(cuMemAllocHost((void **)&up, N * ROWS));
  CK(cuMemAllocHost((void **)&down, N * ROWS));
  CK(cuMemAllocHost((void **)&other, N * ROWS));

  CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CK(cuMemcpyHtoDAsync(d, up, N, s));
  CK(cuMemsetD8Async(d, 7, N / 2, s));
  CK(cuStreamEndCapture(s, &g));
  count(g, 2, 1, "upload");
  node = only(g, CU_GRAPH_NODE_TYPE_MEMCPY, "upload");
  is_copy(node, up, NULL, "upload");
  CK(cuGraphClone(&clone, g));
  count(clone, 2, 1, "clone of the upload");
  CK(cuGraphNodeFindInClone(&same, node, clone));
  is_copy(same, up, NULL, "clone of the upload");
  memset(up, 1, N);
  run(g);
  CK(cuMemcpyDtoH(down, d, N));
  CHECK(down[0] == 7 && down[N - 1] == 1, "upload: %d %d", down[0], down[N - 1]);
  memset(up, 2, N); // the bytes are those of each launch
  run(clone);
  CK(cuMemcpyDtoH(down, d, N));
  CHECK(down[N - 1] == 2, "clone of the upload: %d", down[N - 1]);
  CUDA_MEMCPY3D c;
  CK(cuGraphMemcpyNodeGetParams(same, &c));
  if (c.srcMemoryType == CU_MEMORYTYPE_HOST) c.srcHost = other;
  else c.srcDevice = (CUdeviceptr)other;
  memset(other, 3, N);
  CK(cuGraphMemcpyNodeSetParams(same, &c));
  is_copy(same, other, NULL, "changed clone");
  is_copy(node, up, NULL, "what it is a clone of");
  run(clone);
  CK(cuMemcpyDtoH(down, d, N));
  CHECK(down[N - 1] == 3, "changed clone: %d", down[N - 1]);
  CK(cuGraphDestroy(clone));
  CK(cuGraphDestroy(g));
  printf("captured upload: right\n");

  CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  CK(cuMemsetD8Async(d, 9, N, s));
  CK(cuMemcpyDtoHAsync(down, d, N, s));
  CUstreamCaptureStatus status;
  size_t deps = 0;
  CK(cuStreamGetCaptureInfo_v3(s, &status, NULL, NULL, NULL, NULL, &deps));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && deps == 1, "capture: %d, %zu dependencies", status, deps);
  CK(cuStreamEndCapture(s, &g));
  count(g, 2, 1, "download");
  node = only(g, CU_GRAPH_NODE_TYPE_MEMCPY, "download");
  is_copy(node, NULL, down, "download");
  run(g);
  CHECK(down[0] == 9 && down[N - 1] == 9, "download: %d", down[0]);
  CUgraphExec x;
  CK(cuGraphInstantiateWithFlags(&x, g, 0));
  CK(cuGraphMemcpyNodeGetParams(node, &c));
  if (c.dstMemoryType == CU_MEMORYTYPE_HOST) c.dstHost = other;
  else c.dstDevice = (CUdeviceptr)other;
  CK(cuGraphExecMemcpyNodeSetParams(x, node, &c, context));
  memset(down, 0, N);
  CK(cuGraphLaunch(x, s));
  CK(cuStreamSynchronize(s));
  CHECK(!down[0] && other[0] == 9 && other[N - 1] == 9, "changed executable graph: %d, %d", down[0], other[0]);
  CK(cuGraphExecDestroy(x));
  CK(cuGraphDestroy(g));
  printf("captured download: right\n");

  CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = up, .srcPitch = N,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = d, .dstPitch = 50, .WidthInBytes = 50,
                       .Height = ROWS};
  CUDA_MEMCPY2D back = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = d, .srcPitch = 50,
                        .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = down, .dstPitch = N, .WidthInBytes = 50,
                        .Height = ROWS};
  CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CK(cuMemcpy2DAsync(&copy, s));
  CK(cuMemcpy2DAsync(&back, s));
  CK(cuMemcpyAsync((CUdeviceptr)other, (CUdeviceptr)down, N, s));
  CK(cuStreamEndCapture(s, &g));
  count(g, 3, 2, "rows");
  CUgraphNode nodes[3];
  size_t n = 3;
  CK(cuGraphGetNodes(g, nodes, &n));
  for (size_t i = 0; i < n; i++) {
    CUgraphNodeType type;
    CK(cuGraphNodeGetType(nodes[i], &type));
    CK(cuGraphMemcpyNodeGetParams(nodes[i], &c));
    CHECK(type == CU_GRAPH_NODE_TYPE_MEMCPY && (c.WidthInBytes == N || (c.WidthInBytes == 50 && c.Height == ROWS)),
          "rows: node of type %d, %zu bytes", type, c.WidthInBytes);
  }
  for (int i = 0; i < N * ROWS; i++) up[i] = (char)i, down[i] = 0, other[i] = 0;
  run(g);
  for (int y = 0; y < ROWS; y++)
    for (int i = 0; i < N; i++)
      CHECK(down[y * N + i] == (i < 50 ? up[y * N + i] : 0), "rows: [%d][%d] = %d", y, i, down[y * N + i]);
  CHECK(!memcmp(other, down, N), "within the host");
  CK(cuGraphDestroy(g));
  printf("captured rows: right\n");
  return 0;
}
