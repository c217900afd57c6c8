// Graphs: memory nodes, allocations captured from streams, conditional nodes, updates, clones, edges, launches from the
// device, export as text.
#include "check.cuh"
#include <string>
#include <unistd.h>

__global__ void fill(int *p, int n, int v) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) p[i] = v + i;
}
__global__ void add(const int *a, int *out, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] += a[i];
}
__global__ void decide(cudaGraphConditionalHandle h, int *rounds, int limit) {
  cudaGraphSetConditional(h, ++*rounds < limit);
}
__global__ void choose(cudaGraphConditionalHandle h, const int *which) { cudaGraphSetConditional(h, *which); }

cudaKernelNodeParams kernel(void *f, void **args) {
  cudaKernelNodeParams k = {};
  k.func = f, k.gridDim = dim3(4), k.blockDim = dim3(128), k.kernelParams = args;
  return k;
}

void memory_nodes(cudaStream_t s) {
  const int n = 10000;
  Out<int> out(n);
  int size = n, seed = 5;
  cudaGraph_t g;
  cudaGraphExec_t e;
  CK(cudaGraphCreate(&g, 0));
  cudaMemAllocNodeParams a = {};
  a.poolProps.allocType = cudaMemAllocationTypePinned,
      a.poolProps.location.type = cudaMemLocationTypeDevice, a.bytesize = n * sizeof(int);
  cudaGraphNode_t alloc, first, second, end;
  CK(cudaGraphAddMemAllocNode(&alloc, g, nullptr, 0, &a));
  void *fill_args[] = {&a.dptr, &size, &seed}, *add_args[] = {&a.dptr, &out.p, &size};
  auto k = kernel((void *)fill, fill_args);
  CK(cudaGraphAddKernelNode(&first, g, &alloc, 1, &k));
  k = kernel((void *)add, add_args);
  CK(cudaGraphAddKernelNode(&second, g, &first, 1, &k));
  CK(cudaGraphAddMemFreeNode(&end, g, &second, 1, a.dptr));
  cudaMemAllocNodeParams got;
  void *freed;
  CK(cudaGraphMemAllocNodeGetParams(alloc, &got));
  CK(cudaGraphMemFreeNodeGetParams(end, &freed));
  printf("parameters of the memory nodes: %d %d\n",
         got.dptr == a.dptr && got.bytesize == n * sizeof(int), freed == a.dptr);
  CK(cudaGraphInstantiate(&e, g, 0));
  for (int i = 0; i < 3; i++) CK(cudaGraphLaunch(e, s));
  CK(cudaStreamSynchronize(s));
  show("memory nodes", out.get());
  size_t used = 1;
  CK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used));
  printf("in use afterwards: %zu\n", used);
  CK(cudaGraphExecDestroy(e));
  CK(cudaGraphDestroy(g));
  CK(cudaDeviceGraphMemTrim(0));

  // The same from a stream.
  int *p;
  CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  CK(cudaMallocAsync(&p, n * sizeof(int), s));
  fill<<<4, 128, 0, s>>>(p, n, 7);
  add<<<4, 128, 0, s>>>(p, out.p, n);
  CK(cudaFreeAsync(p, s));
  CK(cudaStreamEndCapture(s, &g));
  CK(cudaGraphInstantiateWithFlags(&e, g, cudaGraphInstantiateFlagAutoFreeOnLaunch));
  CK(cudaGraphLaunch(e, s));
  CK(cudaStreamSynchronize(s));
  show("captured allocation", out.get());
  CK(cudaGraphExecDestroy(e));
  CK(cudaGraphDestroy(g));
}

void conditional_nodes(cudaStream_t s) {
  const int n = 1000;
  Out<int> out(n), ones(n), rounds(1), which(1);
  fill<<<1, 32, 0, s>>>(ones.p, n, 1);
  cudaGraph_t g;
  cudaGraphExec_t e;
  CK(cudaGraphCreate(&g, 0));
  cudaGraphConditionalHandle loop, branch;
  CK(cudaGraphConditionalHandleCreate(&loop, g, 1, cudaGraphCondAssignDefault));
  CK(cudaGraphConditionalHandleCreate(&branch, g, 0, cudaGraphCondAssignDefault));
  int size = n, limit = 6;
  cudaGraphNodeParams w = {};
  w.type = cudaGraphNodeTypeConditional, w.conditional.handle = loop,
      w.conditional.type = cudaGraphCondTypeWhile, w.conditional.size = 1;
  cudaGraphNode_t node, body, chosen, inside;
  CK(cudaGraphAddNode(&node, g, nullptr, nullptr, 0, &w));
  void *add_args[] = {&ones.p, &out.p, &size}, *decide_args[] = {&loop, &rounds.p, &limit};
  auto k = kernel((void *)add, add_args);
  CK(cudaGraphAddKernelNode(&body, w.conditional.phGraph_out[0], nullptr, 0, &k));
  k = kernel((void *)decide, decide_args);
  k.gridDim = k.blockDim = dim3(1);
  CK(cudaGraphAddKernelNode(&inside, w.conditional.phGraph_out[0], &body, 1, &k));
  void *choose_args[] = {&branch, &which.p};
  k = kernel((void *)choose, choose_args);
  k.gridDim = k.blockDim = dim3(1);
  CK(cudaGraphAddKernelNode(&chosen, g, &node, 1, &k));
  cudaGraphNodeParams i = {};
  i.type = cudaGraphNodeTypeConditional, i.conditional.handle = branch,
      i.conditional.type = cudaGraphCondTypeIf, i.conditional.size = 1;
  CK(cudaGraphAddNode(&node, g, &chosen, nullptr, 1, &i));
  cudaMemsetParams m = {};
  m.dst = out.p, m.elementSize = 4, m.width = 10, m.height = 1, m.value = 77;
  CK(cudaGraphAddMemsetNode(&body, i.conditional.phGraph_out[0], nullptr, 0, &m));
  CK(cudaGraphInstantiate(&e, g, 0));
  for (int yes : {0, 1}) {
    CK(cudaMemcpy(which.p, &yes, 4, cudaMemcpyHostToDevice));
    CK(cudaMemset(rounds.p, 0, 4));
    CK(cudaGraphLaunch(e, s));
    CK(cudaStreamSynchronize(s));
    printf("rounds %d, ", rounds.get()[0]);
    show("values", out.get());
  }
  CK(cudaGraphExecDestroy(e));
  CK(cudaGraphDestroy(g));
}

void changes(cudaStream_t s) {
  const int n = 100;
  Out<int> out(n);
  int size = n, seed = 1;
  void *args[] = {&out.p, &size, &seed};
  cudaGraph_t g, clone, child;
  cudaGraphExec_t e;
  cudaGraphNode_t nodes[3], found;
  CK(cudaGraphCreate(&g, 0));
  auto k = kernel((void *)fill, args);
  CK(cudaGraphAddKernelNode(&nodes[0], g, nullptr, 0, &k));
  CK(cudaGraphAddEmptyNode(&nodes[1], g, &nodes[0], 1));
  CK(cudaGraphCreate(&child, 0));
  CK(cudaGraphAddEmptyNode(&found, child, nullptr, 0));
  CK(cudaGraphAddChildGraphNode(&nodes[2], g, &nodes[1], 1, child));
  CK(cudaGraphClone(&clone, g));
  CK(cudaGraphNodeFindInClone(&found, nodes[0], clone));
  size_t count = 0, edges = 0;
  CK(cudaGraphGetNodes(clone, nullptr, &count));
  CK(cudaGraphGetEdges(clone, nullptr, nullptr, nullptr, &edges));
  printf("clone: %zu nodes, %zu edges\n", count, edges);
  CK(cudaGraphInstantiate(&e, g, 0));
  CK(cudaGraphLaunch(e, s));
  CK(cudaStreamSynchronize(s));
  show("first", out.get());
  seed = 1000;
  CK(cudaGraphExecKernelNodeSetParams(e, nodes[0], &k));
  CK(cudaGraphLaunch(e, s));
  CK(cudaStreamSynchronize(s));
  show("changed", out.get());
  seed = 50;
  CK(cudaGraphKernelNodeSetParams(found, &k));
  cudaGraphExecUpdateResultInfo info;
  CK(cudaGraphExecUpdate(e, clone, &info));
  CK(cudaGraphLaunch(e, s));
  CK(cudaStreamSynchronize(s));
  show("updated", out.get());
  CK(cudaGraphAddEmptyNode(&found, clone, nullptr, 0));
  printf("update of another form: %d, ", (int)cudaGraphExecUpdate(e, clone, &info));
  printf("%d\n", (int)info.result);
  cudaGetLastError();
  unsigned on = 9;
  CK(cudaGraphNodeSetEnabled(e, nodes[0], 0));
  CK(cudaGraphNodeGetEnabled(e, nodes[0], &on));
  printf("enabled %u\n", on);
  std::string path = "/tmp/scuda-graph-" + std::to_string(getpid()) + ".dot";
  CK(cudaGraphDebugDotPrint(g, path.c_str(), 0));
  FILE *f = fopen(path.c_str(), "r");
  CHECK(f, "no file");
  char line[200];
  CHECK(fgets(line, sizeof line, f) && strstr(line, "digraph"), "not a graph: %s", line);
  fclose(f);
  unlink(path.c_str());
  CK(cudaGraphExecDestroy(e));
}

int main() {
  cudaStream_t s;
  CK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  memory_nodes(s);
  conditional_nodes(s);
  changes(s);
}
