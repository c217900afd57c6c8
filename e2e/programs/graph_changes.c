// A copy node of a graph is given other ends: device and host memory in all ways, between other nodes. The node stays
// what it is for the program; in an executable graph what is copied may change, but not between which kinds of memory.
#include "check.h"

enum { N = 1000 };
static CUgraph graph;
static CUgraphNode before, middle, after;
static CUdeviceptr dev[2];
static char *host[2], seen[N];
static CUstream s;

static CUDA_MEMCPY3D copy(int from, int to) { // between two of dev[0], dev[1], host[0], host[1]
  CUDA_MEMCPY3D c = {.WidthInBytes = N, .Height = 1, .Depth = 1};
  c.srcMemoryType = from < 2 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  c.dstMemoryType = to < 2 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  if (from < 2) c.srcDevice = dev[from];
  else c.srcHost = host[from - 2];
  if (to < 2) c.dstDevice = dev[to];
  else c.dstHost = host[to - 2];
  return c;
}

// The graph sets dev[0] to 1, copies in the middle, and brings dev[1] to `seen`.
static void run(int from, int to, const char *what) {
  CUgraphExec exec;
  CUgraphNodeType type;
  CUDA_MEMCPY3D got, wanted = copy(from, to);
  CUgraphNode deps[4];
  size_t n = 4;
  memset(host[0], 10, N), memset(host[1], 11, N), memset(seen, 0, N);
  CK(cuMemsetD8(dev[1], 7, N));
  CK(cuCtxSynchronize()); // the stream is not ordered behind it
  CK(cuGraphNodeGetType(middle, &type));
  CK(cuGraphMemcpyNodeGetParams(middle, &got));
  CHECK(type == CU_GRAPH_NODE_TYPE_MEMCPY && got.srcMemoryType == wanted.srcMemoryType &&
        got.dstMemoryType == wanted.dstMemoryType &&
        got.WidthInBytes == N && (from < 2 || got.srcHost == wanted.srcHost) &&
        (to < 2 || got.dstHost == wanted.dstHost), "%s: its parameters", what);
  CK(cuGraphNodeGetDependencies_v2(middle, deps, NULL, &n));
  CHECK(n == 1 && deps[0] == before, "%s: what lies before it", what);
  n = 4;
  CK(cuGraphNodeGetDependencies_v2(after, deps, NULL, &n));
  CHECK(n == 1 && deps[0] == middle, "%s: what lies behind it", what);
  n = 4;
  CK(cuGraphGetNodes(graph, deps, &n));
  CHECK(n == 3, "%s: %zu nodes", what, n);
  CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CK(cuGraphLaunch(exec, s));
  CK(cuStreamSynchronize(s));
  char moved = from == 0 ? 1 : from == 1 ? 7 : (char)(8 + from);
  CHECK(seen[0] == (to == 1 ? moved : 7) && seen[N - 1] == seen[0], "%s: dev[1] holds %d", what, seen[0]);
  if (to >= 2)
    CHECK(host[to - 2][0] == moved && host[to - 2][N - 1] == moved, "%s: the host holds %d, not %d", what,
          host[to - 2][0], moved);
  // What the executable graph takes: other memory of the same kinds, and nothing else.
  for (int way = 0; way < 4; way++) {
    int f = way & 1 ? 2 : 0, t = way & 2 ? 3 : 1;
    CUDA_MEMCPY3D other = copy(f, t);
    WANT(cuGraphExecMemcpyNodeSetParams(exec, middle, &other, context),
         (f < 2) == (from < 2) && (t < 2) == (to < 2) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
  }
  CK(cuGraphExecDestroy(exec));
  printf("%s: right\n", what);
}

static void change(int from, int to, const char *what) {
  CUDA_MEMCPY3D c = copy(from, to);
  CK(cuGraphMemcpyNodeSetParams(middle, &c));
  run(from, to, what);
}

int main(int argc, char **argv) {
  start(argc, argv);
  for (int i = 0; i < 2; i++) {
    CK(cuMemAlloc(&dev[i], N));
    host[i] = malloc(N);
  }
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuGraphCreate(&graph, 0));
  CUDA_MEMSET_NODE_PARAMS set = {.dst = dev[0], .value = 1, .elementSize = 1, .width = N, .height = 1};
  CUDA_MEMCPY3D c = copy(0, 1), last = copy(1, 2);
  last.dstHost = seen;
  CK(cuGraphAddMemsetNode(&before, graph, NULL, 0, &set, context));
  CK(cuGraphAddMemcpyNode(&middle, graph, &before, 1, &c, context));
  CK(cuGraphAddMemcpyNode(&after, graph, &middle, 1, &last, context));
  run(0, 1, "within the device, as made");
  change(2, 1, "from the host");
  change(0, 3, "to the host");
  change(2, 3, "within the host");
  change(0, 1, "within the device again");
  change(2, 3, "from there to within the host");
  change(3, 1, "from the host again");
  change(1, 2, "to the host again");
  change(0, 1, "within the device at last");
  CK(cuGraphDestroy(graph));
  return 0;
}
