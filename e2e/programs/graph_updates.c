// An executable graph whose nodes are changed before each launch, as XLA does it: only addresses and values differ, and
// child graphs are one of a few. Some of the memory is mapped. Then changes that are like those, and that the driver
// refuses for what happened meanwhile.
//
//   graph_updates KERNELS [ROUNDS]
#include "check.h"

enum { N = 1024, BYTES = 4 * N, SHARED = 60000 };

static CUdeviceptr filled[2], sums[2], all, marks;
static size_t mapped;
static CUfunction add;

static CUDA_MEMSET_NODE_PARAMS fill_with(int round) {
  return (CUDA_MEMSET_NODE_PARAMS){.dst = filled[round % 2], .elementSize = 4, .value = (unsigned)round, .width = N,
                                   .height = 1};
}

struct arguments { CUdeviceptr a, b, sum; int n; void *list[4]; };
static CUDA_KERNEL_NODE_PARAMS add_in(int round, struct arguments *a, unsigned shared) {
  *a = (struct arguments){filled[round % 2], filled[round % 2], sums[round / 2 % 2], N, {&a->a, &a->b, &a->sum, &a->n}};
  return (CUDA_KERNEL_NODE_PARAMS){.func = add, .gridDimX = (N + 255) / 256, .gridDimY = 1, .gridDimZ = 1,
                                   .blockDimX = 256, .blockDimY = 1, .blockDimZ = 1, .sharedMemBytes = shared,
                                   .kernelParams = a->list};
}

static CUDA_MEMCPY3D keep(int round) {
  return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = sums[round / 2 % 2],
                         .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = all + (CUdeviceptr)BYTES * round,
                         .WidthInBytes = BYTES, .Height = 1, .Depth = 1};
}

// Memory as allocators of virtual memory have it.
static CUdeviceptr map(void) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
  CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle;
  CUdeviceptr p;
  CK(cuMemGetAllocationGranularity(&mapped, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CK(cuMemAddressReserve(&p, mapped, 0, 0, 0));
  CK(cuMemCreate(&handle, mapped, &prop, 0));
  CK(cuMemMap(p, mapped, 0, handle, 0));
  CK(cuMemSetAccess(p, mapped, &access, 1));
  CK(cuMemRelease(handle));
  return p;
}

// A graph that fills one word, captured.
static CUgraph marking(CUstream s, int mark) {
  CUgraph graph;
  CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CK(cuMemsetD32Async(marks, mark, 1, s));
  CK(cuStreamEndCapture(s, &graph));
  return graph;
}

int main(int argc, char **argv) {
  start(argc, argv);
  int rounds = argc > 2 ? atoi(argv[2]) : 40;
  CUmodule module = load("kernels.ptx");
  add = function(module, "vector_add");
  CUstream s;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 2; i++) {
    CK(cuMemAlloc(&filled[i], BYTES));
    sums[i] = i ? sums[0] + BYTES : map();
  }
  CK(cuMemAlloc(&all, (size_t)BYTES * rounds));
  CK(cuMemAlloc(&marks, 4 * (rounds + 1)));

  CUgraph graph, children[3] = {marking(s, 0), marking(s, 1), marking(s, 2)};
  CUgraphNode fill, kernel, copy, child;
  CUgraphExec exec;
  struct arguments a;
  CUDA_MEMSET_NODE_PARAMS m = fill_with(0);
  CUDA_KERNEL_NODE_PARAMS k = add_in(0, &a, 0);
  CUDA_MEMCPY3D c = keep(0);
  CK(cuGraphCreate(&graph, 0));
  CK(cuGraphAddMemsetNode(&fill, graph, NULL, 0, &m, context));
  CK(cuGraphAddKernelNode(&kernel, graph, &fill, 1, &k));
  CK(cuGraphAddMemcpyNode(&copy, graph, &kernel, 1, &c, context));
  CK(cuGraphAddChildGraphNode(&child, graph, &copy, 1, children[0]));
  CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  for (int round = 0; round < rounds; round++) {
    m = fill_with(round), k = add_in(round, &a, 0), c = keep(round);
    CK(cuGraphExecMemsetNodeSetParams(exec, fill, &m, context));
    CK(cuGraphExecKernelNodeSetParams(exec, kernel, &k));
    CK(cuGraphExecMemcpyNodeSetParams(exec, copy, &c, context));
    CK(cuGraphExecChildGraphNodeSetParams(exec, child, children[round % 3]));
    CK(cuGraphLaunch(exec, s));
    CK(cuMemcpyDtoDAsync(marks + 4 * (round + 1), marks, 4, s));
  }
  int *out = malloc((size_t)BYTES * rounds), *marked = malloc(4 * rounds);
  CK(cuMemcpyDtoHAsync(marked, marks + 4, 4 * rounds, s));
  CK(cuMemcpyDtoHAsync(out, all, (size_t)BYTES * rounds, s));
  CK(cuStreamSynchronize(s));
  for (int i = 0; i < N * rounds; i++) { // the sums of floats with these bits
    float x, sum;
    int bits = i / N;
    memcpy(&x, &bits, 4);
    x += x;
    memcpy(&sum, &out[i], 4);
    CHECK(x == sum, "round %d: [%d] = %g, not %g", i / N, i % N, sum, x);
  }
  for (int i = 0; i < rounds; i++) CHECK(marked[i] == i % 3, "round %d: the child marked %d", i, marked[i]);
  if (argc > 2) return 0;
  printf("%d rounds\n", rounds);

  // Each change was taken before; what is wrong now lies elsewhere.
  CK(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, SHARED));
  k = add_in(0, &a, SHARED);
  CK(cuGraphExecKernelNodeSetParams(exec, kernel, &k));
  CK(cuGraphExecKernelNodeSetParams(exec, kernel, &k));
  CK(cuFuncSetAttribute(add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024));
  SHOW(cuGraphExecKernelNodeSetParams(exec, kernel, &k));
  k = add_in(0, &a, 0);
  k.gridDimX = 0;
  SHOW(cuGraphExecKernelNodeSetParams(exec, kernel, &k));
  k = add_in(0, &a, 0);
  CK(cuGraphExecKernelNodeSetParams(exec, kernel, &k));

  CK(cuMemFree(filled[1]));
  CK(cuMemUnmap(sums[0], mapped));
  m = fill_with(1), c = keep(2);
  SHOW(cuGraphExecMemsetNodeSetParams(exec, fill, &m, context));
  SHOW(cuGraphExecMemcpyNodeSetParams(exec, copy, &c, context));

  CUgraphNode more;
  CK(cuGraphExecChildGraphNodeSetParams(exec, child, children[1]));
  CK(cuGraphAddEmptyNode(&more, children[1], NULL, 0));
  SHOW(cuGraphExecChildGraphNodeSetParams(exec, child, children[1]));

  CUgraph other;
  CUgraphNode lone;
  m = fill_with(0), k = add_in(0, &a, 0);
  CK(cuGraphExecDestroy(exec));
  CK(cuGraphCreate(&other, 0));
  CK(cuGraphAddEmptyNode(&lone, other, NULL, 0));
  CK(cuGraphInstantiateWithFlags(&exec, other, 0)); // perhaps by the same handle
  SHOW(cuGraphExecMemsetNodeSetParams(exec, fill, &m, context));
  SHOW(cuGraphExecKernelNodeSetParams(exec, kernel, &k));
  CK(cuGraphLaunch(exec, s));
  CK(cuStreamSynchronize(s));
  CK(cuGraphExecDestroy(exec));
  CK(cuGraphDestroy(other));
  CK(cuGraphDestroy(graph));
  for (int i = 0; i < 3; i++) CK(cuGraphDestroy(children[i]));
  printf("updates ok\n");
  return 0;
}
