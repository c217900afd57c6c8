// Graphs that are changed after they were built: edges, nodes switched off, events, fills, children and batches of
// memory operations; what the getters say and what the launches do.
#include "check.h"

enum { N = 64 };
static CUstream s;
static CUdeviceptr dev;
static unsigned char *out;

static CUDA_MEMSET_NODE_PARAMS fill_with(int from, int n, unsigned value) {
  return (CUDA_MEMSET_NODE_PARAMS){.dst = dev + from, .elementSize = 1, .value = value, .width = n, .height = 1};
}

static void run(CUgraphExec exec) {
  CK(cuMemsetD8Async(dev, 0, N, s));
  CK(cuGraphUpload(exec, s));
  CK(cuGraphLaunch(exec, s));
  CK(cuMemcpyDtoHAsync(out, dev, N, s));
  CK(cuStreamSynchronize(s));
}

static void launch(CUgraph graph, int first, int last, const char *what) { // the fills wanted at both ends
  CUgraphExec exec;
  cuuint64_t flags = 99;
  CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CK(cuGraphExecGetFlags(exec, &flags));
  CHECK(flags == 0, "flags %llu", (unsigned long long)flags);
  run(exec);
  CHECK(out[0] == first && out[N - 1] == last, "%s: %d %d", what, out[0], out[N - 1]);
  CK(cuGraphExecDestroy(exec));
}

static void edges(void) {
  CUgraph graph;
  CUgraphNode a, b, c, from[4], to[4], list[4];
  CUDA_MEMSET_NODE_PARAMS p = fill_with(0, N, 1), q = fill_with(0, N, 2), got;
  size_t n = 4;
  int on = -1;
  CK(cuGraphCreate(&graph, 0));
  CK(cuGraphAddMemsetNode(&a, graph, NULL, 0, &p, context));
  CK(cuGraphAddMemsetNode(&b, graph, NULL, 0, &q, context));
  CK(cuGraphAddEmptyNode(&c, graph, NULL, 0));
  CK(cuGraphAddDependencies_v2(graph, &a, &b, NULL, 1));
  CK(cuGraphAddDependencies_v2(graph, &b, &c, NULL, 1));
  CK(cuGraphGetEdges_v2(graph, NULL, NULL, NULL, &n));
  CHECK(n == 2, "%zu edges", n);
  n = 4;
  CK(cuGraphGetEdges_v2(graph, from, to, NULL, &n));
  CHECK(n == 2 && ((from[0] == a && to[0] == b && from[1] == b && to[1] == c) ||
                   (from[1] == a && to[1] == b && from[0] == b && to[0] == c)), "the edges");
  n = 4;
  CK(cuGraphNodeGetDependencies_v2(b, list, NULL, &n));
  CHECK(n == 1 && list[0] == a, "before b");
  n = 4;
  CK(cuGraphNodeGetDependentNodes_v2(b, list, NULL, &n));
  CHECK(n == 1 && list[0] == c, "behind b");
  n = 4;
  CK(cuGraphGetRootNodes(graph, list, &n));
  CHECK(n == 1 && list[0] == a, "the root");
  launch(graph, 2, 2, "a, then b");
  CK(cuGraphRemoveDependencies_v2(graph, &a, &b, NULL, 1));
  CK(cuGraphAddDependencies_v2(graph, &c, &a, NULL, 1));
  launch(graph, 1, 1, "b, then a");

  CUgraphExec exec;
  CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CK(cuGraphNodeGetEnabled(exec, a, (unsigned *)&on));
  CHECK(on == 1, "enabled %d", on);
  CK(cuGraphNodeSetEnabled(exec, a, 0));
  CK(cuGraphNodeGetEnabled(exec, a, (unsigned *)&on));
  CHECK(on == 0, "enabled %d", on);
  run(exec);
  CHECK(out[0] == 2, "a node that is off ran: %d", out[0]);
  CK(cuGraphNodeSetEnabled(exec, a, 1));
  run(exec);
  CHECK(out[0] == 1, "a node that is on again did not run: %d", out[0]);
  CK(cuGraphExecDestroy(exec));

  p = fill_with(N / 2, N / 2, 7);
  CK(cuGraphMemsetNodeSetParams(a, &p));
  CK(cuGraphMemsetNodeGetParams(a, &got));
  CHECK(got.dst == dev + N / 2 && got.value == 7 && got.width == N / 2, "the fill's parameters");
  launch(graph, 2, 7, "another fill");
  CUgraphNodeParams general = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
  general.memset.dst = dev, general.memset.elementSize = 1, general.memset.value = 9, general.memset.width = N,
      general.memset.height = 1, general.memset.ctx = context;
  CK(cuGraphNodeSetParams(a, &general));
  launch(graph, 9, 9, "the fill of a general form");
  CK(cuGraphDestroyNode(a));
  launch(graph, 2, 2, "b alone");
  CK(cuGraphDestroy(graph));
  puts("edges ok");
}

static void children(void) {
  CUgraph graph, child, other, inside;
  CUgraphNode node, fill, clone;
  CUgraphExec exec;
  CUDA_MEMSET_NODE_PARAMS p = fill_with(0, N, 3), q = fill_with(0, N, 4);
  size_t n = 1;
  CK(cuGraphCreate(&child, 0));
  CK(cuGraphCreate(&other, 0));
  CK(cuGraphCreate(&graph, 0));
  CK(cuGraphAddMemsetNode(&fill, child, NULL, 0, &p, context));
  CK(cuGraphAddMemsetNode(&clone, other, NULL, 0, &q, context));
  CK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child));
  CK(cuGraphChildGraphNodeGetGraph(node, &inside));
  CHECK(inside != child, "the node has a copy of the graph");
  CK(cuGraphGetNodes(inside, &clone, &n));
  CHECK(n == 1 && clone != fill, "the copy's node");
  launch(graph, 3, 3, "a child");
  CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CK(cuGraphExecChildGraphNodeSetParams(exec, node, other));
  run(exec);
  CHECK(out[0] == 4, "another child: %d", out[0]);
  CK(cuGraphExecDestroy(exec));
  CK(cuGraphMemsetNodeSetParams(clone, &q));
  launch(graph, 4, 4, "the copy's node changed");
  CK(cuGraphDestroy(child));
  CK(cuGraphDestroy(other));
  CK(cuGraphDestroy(graph));
  puts("children ok");
}

static void events(void) {
  CUgraph graph;
  CUgraphNode record, wait;
  CUgraphExec exec;
  CUevent e[2], got;
  for (int i = 0; i < 2; i++) CK(cuEventCreate(&e[i], CU_EVENT_DISABLE_TIMING));
  CK(cuGraphCreate(&graph, 0));
  CK(cuGraphAddEventWaitNode(&wait, graph, NULL, 0, e[0]));
  CK(cuGraphAddEventRecordNode(&record, graph, &wait, 1, e[0]));
  CK(cuGraphEventRecordNodeSetEvent(record, e[1]));
  CK(cuGraphEventWaitNodeSetEvent(wait, e[1]));
  CK(cuGraphEventRecordNodeGetEvent(record, &got));
  CHECK(got == e[1], "the event that is recorded");
  CK(cuGraphEventWaitNodeGetEvent(wait, &got));
  CHECK(got == e[1], "the event that is waited for");
  CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CK(cuGraphExecEventRecordNodeSetEvent(exec, record, e[0]));
  CK(cuGraphExecEventWaitNodeSetEvent(exec, wait, e[0]));
  CK(cuGraphLaunch(exec, s));
  CK(cuEventSynchronize(e[0]));
  CK(cuEventQuery(e[0]));
  CK(cuStreamSynchronize(s));
  CK(cuGraphExecDestroy(exec));
  CK(cuGraphDestroy(graph));
  for (int i = 0; i < 2; i++) CK(cuEventDestroy(e[i]));
  puts("events ok");
}

static CUstreamBatchMemOpParams write32(CUdeviceptr at, unsigned value) {
  CUstreamBatchMemOpParams p = {0};
  p.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  p.writeValue.address = at, p.writeValue.value = value;
  return p;
}

static void operations(void) {
  CUstreamBatchMemOpParams ops[3] = {write32(dev, 0x01020304), {0}, write32(dev + 4, 0x05060708)};
  ops[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  ops[1].waitValue.address = dev, ops[1].waitValue.value = 0x01020304, ops[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  CK(cuMemsetD8Async(dev, 0, N, s));
  CK(cuStreamBatchMemOp(s, 3, ops, 0));
  CK(cuStreamWriteValue64(s, dev + 8, 0x1112131415161718, 0));
  CK(cuStreamWaitValue64(s, dev + 8, 0x1112131415161718, CU_STREAM_WAIT_VALUE_GEQ));
  CK(cuMemcpyDtoHAsync(out, dev, N, s));
  CK(cuStreamSynchronize(s));
  CHECK(out[0] == 4 && out[4] == 8 && out[8] == 0x18 && out[15] == 0x11, "operations of a stream");

  CUgraph graph;
  CUgraphNode node;
  CUgraphExec exec;
  CUDA_BATCH_MEM_OP_NODE_PARAMS p = {.ctx = context, .count = 3, .paramArray = ops}, got;
  CK(cuGraphCreate(&graph, 0));
  CK(cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &p));
  CK(cuGraphBatchMemOpNodeGetParams(node, &got));
  CHECK(got.count == 3 && got.ctx == context && got.paramArray[2].writeValue.address == dev + 4 &&
        got.paramArray[2].writeValue.value == 0x05060708, "the node's operations");
  launch(graph, 4, 0, "operations of a node");
  ops[0].writeValue.value = ops[1].waitValue.value = 0x0A;
  CK(cuGraphBatchMemOpNodeSetParams(node, &p));
  launch(graph, 0x0A, 0, "other operations");
  CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  ops[0].writeValue.value = ops[1].waitValue.value = 0x0B;
  CK(cuGraphExecBatchMemOpNodeSetParams(exec, node, &p));
  run(exec);
  CHECK(out[0] == 0x0B && out[4] == 8, "operations of an executable graph: %d", out[0]);
  CK(cuGraphExecDestroy(exec));
  CK(cuGraphDestroy(graph));
  puts("operations ok");
}

static void attributes(void) {
  CUfunction f = function(load("kernels.fatbin"), "vector_add");
  CUgraph graph;
  CUgraphNode a, b, alloc, release;
  int n = 0;
  CUdeviceptr none = 0, freed = 0;
  CUDA_KERNEL_NODE_PARAMS k = {.func = f, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1,
                               .blockDimZ = 1, .kernelParams = ARGS(&none, &none, &none, &n)};
  CK(cuGraphCreate(&graph, 0));
  CK(cuGraphAddKernelNode(&a, graph, NULL, 0, &k));
  CK(cuGraphAddKernelNode(&b, graph, NULL, 0, &k));
  CUkernelNodeAttrValue v = {0}, got = {0};
  v.priority = -1;
  CK(cuGraphKernelNodeSetAttribute(a, CU_LAUNCH_ATTRIBUTE_PRIORITY, &v));
  CK(cuGraphKernelNodeCopyAttributes(b, a));
  CK(cuGraphKernelNodeGetAttribute(b, CU_LAUNCH_ATTRIBUTE_PRIORITY, &got));
  CHECK(got.priority == -1, "priority %d", got.priority);
  CUDA_MEM_ALLOC_NODE_PARAMS m = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}}, .bytesize = 4096};
  CK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &m));
  CK(cuGraphAddMemFreeNode(&release, graph, &alloc, 1, m.dptr));
  CK(cuGraphMemFreeNodeGetParams(release, &freed));
  CHECK(freed == m.dptr, "what is freed");
  CK(cuGraphDestroy(graph));
  puts("attributes ok");
}

int main(int argc, char **argv) {
  start(argc, argv);
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuMemAlloc(&dev, N));
  CK(cuMemAllocHost((void **)&out, N));
  edges();
  children();
  events();
  operations();
  attributes();
  return 0;
}
