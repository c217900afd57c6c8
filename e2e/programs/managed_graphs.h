// Graphs that name memory, by nodes of their own and by captured work. A part of managed_named.h, whose calls it uses.
#ifndef MANAGED_GRAPHS_H
#define MANAGED_GRAPHS_H

// ---- graphs of one node
static void launch_graph(CUgraph g) {
  CUgraphExec e;
  CK(cuGraphInstantiateWithFlags(&e, g, 0));
  CK(cuGraphLaunch(e, stream));
  CK(cuStreamSynchronize(stream));
  CK(cuGraphExecDestroy(e));
  CK(cuGraphDestroy(g));
}
static CUgraph new_graph(void) {
  CUgraph g;
  CK(cuGraphCreate(&g, 0));
  return g;
}
static CUDA_MEMSET_NODE_PARAMS rows_set(CUdeviceptr at) {
  CUDA_MEMSET_NODE_PARAMS p = {0};
  p.dst = at, p.pitch = PITCH, p.value = VALUE, p.elementSize = 1, p.width = WIDTH, p.height = ROWS;
  return p;
}
static CUDA_KERNEL_NODE_PARAMS mixing(void **values) {
  CUDA_KERNEL_NODE_PARAMS p;
  memset(&p, 0, sizeof p);
  p.func = mixer, p.gridDimX = 4, p.blockDimX = 64,
      p.gridDimY = p.gridDimZ = p.blockDimY = p.blockDimZ = 1, p.kernelParams = values;
  return p;
}
static unsigned long long nothing = 0;
static void *nowhere[] = {&plain, &zero, &nothing, &three, &value}; // a kernel that does nothing, to plain memory
// the node is made with the range's address, or gets it afterwards, before or after the graph was made executable
enum way { MADE, CHANGED, CHANGED_LATER };
static void graph_node(enum way way, CUresult (*add)(CUgraphNode *, CUgraph, int there),
                       CUresult (*change)(CUgraphNode), CUresult (*change_later)(CUgraphExec, CUgraphNode)) {
  CUgraph g = new_graph();
  CUgraphNode n;
  CUgraphExec e;
  CK(add(&n, g, way == MADE));
  if (way == CHANGED) CK(change(n));
  CK(cuGraphInstantiateWithFlags(&e, g, 0));
  if (way == CHANGED_LATER) CK(change_later(e, n));
  CK(cuGraphLaunch(e, stream));
  CK(cuStreamSynchronize(stream));
  CK(cuGraphExecDestroy(e));
  CK(cuGraphDestroy(g));
}
static CUresult add_set(CUgraphNode *n, CUgraph g, int there) {
  CUDA_MEMSET_NODE_PARAMS p = rows_set(there ? d : spare);
  return cuGraphAddMemsetNode(n, g, NULL, 0, &p, context);
}
static CUresult change_set(CUgraphNode n) {
  CUDA_MEMSET_NODE_PARAMS p = rows_set(d);
  return cuGraphMemsetNodeSetParams(n, &p);
}
static void graph_set(void) { graph_node(MADE, add_set, change_set, NULL); }
static void graph_set_changed(void) { graph_node(CHANGED, add_set, change_set, NULL); }

static CUDA_MEMCPY3D node_copy;
static CUresult add_copy(CUgraphNode *n, CUgraph g, int there) {
  CUDA_MEMCPY3D c = node_copy;
  if (!there && c.srcDevice == d) c.srcDevice = spare;
  if (!there && c.dstDevice == d) c.dstDevice = spare;
  return cuGraphAddMemcpyNode(n, g, NULL, 0, &c, context);
}
static CUresult change_copy(CUgraphNode n) { return cuGraphMemcpyNodeSetParams(n, &node_copy); }
#define NODE_COPY(name, way, as, to) \
  static void name(void) { node_copy = deep(as, to, 0); graph_node(way, add_copy, change_copy, NULL); }
NODE_COPY(to_graph, MADE, AS_DEVICE, 1)
NODE_COPY(to_graph_host, MADE, AS_HOST, 1)
NODE_COPY(from_graph, MADE, AS_ANY, 0)
NODE_COPY(from_graph_host, MADE, AS_HOST, 0)
NODE_COPY(to_graph_changed, CHANGED, AS_DEVICE, 1)

static CUresult add_kernel(CUgraphNode *n, CUgraph g, int there) {
  CUDA_KERNEL_NODE_PARAMS p = mixing(there ? arguments : nowhere);
  return cuGraphAddKernelNode(n, g, NULL, 0, &p);
}
static CUresult change_kernel(CUgraphNode n) {
  CUDA_KERNEL_NODE_PARAMS p = mixing(arguments);
  return cuGraphKernelNodeSetParams(n, &p);
}
static CUresult change_kernel_later(CUgraphExec e, CUgraphNode n) {
  CUDA_KERNEL_NODE_PARAMS p = mixing(arguments);
  return cuGraphExecKernelNodeSetParams(e, n, &p);
}
static CUresult add_kernel_first(CUgraphNode *n, CUgraph g, int there) {
  CUDA_KERNEL_NODE_PARAMS p = mixing(there ? arguments : nowhere);
  return BY_NAME("cuGraphAddKernelNode", CUgraphNode *, CUgraph,
                 const CUgraphNode *, size_t, void *)(n, g, NULL, 0, &p);
}
static CUresult change_kernel_first(CUgraphNode n) {
  CUDA_KERNEL_NODE_PARAMS p = mixing(arguments);
  return BY_NAME("cuGraphKernelNodeSetParams", CUgraphNode, void *)(n, &p);
}
static CUresult change_kernel_later_first(CUgraphExec e, CUgraphNode n) {
  CUDA_KERNEL_NODE_PARAMS p = mixing(arguments);
  return BY_NAME("cuGraphExecKernelNodeSetParams", CUgraphExec, CUgraphNode, void *)(e, n, &p);
}
static void graph_kernel_first(void) {
  graph_node(MADE, add_kernel_first, change_kernel_first, change_kernel_later_first);
}
static void graph_kernel_changed_first(void) {
  graph_node(CHANGED, add_kernel_first, change_kernel_first, change_kernel_later_first);
}
static void graph_kernel_later_first(void) {
  graph_node(CHANGED_LATER, add_kernel_first, change_kernel_first, change_kernel_later_first);
}
static void graph_kernel(void) { graph_node(MADE, add_kernel, change_kernel, change_kernel_later); }
static void graph_kernel_changed(void) { graph_node(CHANGED, add_kernel, change_kernel, change_kernel_later); }
static void graph_kernel_later(void) { graph_node(CHANGED_LATER, add_kernel, change_kernel, change_kernel_later); }

// The same by the functions for nodes of all types.
static CUgraphNodeParams any_node(int there) {
  CUgraphNodeParams p;
  CUDA_KERNEL_NODE_PARAMS k = mixing(there ? arguments : nowhere);
  memset(&p, 0, sizeof p);
  p.type = CU_GRAPH_NODE_TYPE_KERNEL;
  memcpy(&p.kernel, &k, sizeof k);
  return p;
}
static CUresult add_any(CUgraphNode *n, CUgraph g, int there) {
  CUgraphNodeParams p = any_node(there);
  return cuGraphAddNode_v2(n, g, NULL, NULL, 0, &p);
}
static CUresult add_any_first(CUgraphNode *n, CUgraph g, int there) {
  CUgraphNodeParams p = any_node(there);
  return BY_NAME("cuGraphAddNode", CUgraphNode *, CUgraph, const CUgraphNode *,
                 size_t, CUgraphNodeParams *)(n, g, NULL, 0, &p);
}
static CUresult change_any(CUgraphNode n) {
  CUgraphNodeParams p = any_node(1);
  return cuGraphNodeSetParams(n, &p);
}
static CUresult change_any_later(CUgraphExec e, CUgraphNode n) {
  CUgraphNodeParams p = any_node(1);
  return cuGraphExecNodeSetParams(e, n, &p);
}
static void graph_any(void) { graph_node(MADE, add_any, change_any, change_any_later); }
static void graph_any_first(void) { graph_node(MADE, add_any_first, change_any, change_any_later); }
static void graph_any_changed(void) { graph_node(CHANGED, add_any, change_any, change_any_later); }
static void graph_any_later(void) { graph_node(CHANGED_LATER, add_any, change_any, change_any_later); }
static void graph_child(void) {
  CUgraph child = new_graph(), g = new_graph();
  CUgraphNode n;
  CK(add_kernel(&n, child, 1));
  CK(cuGraphAddChildGraphNode(&n, g, NULL, 0, child));
  CK(cuGraphDestroy(child));
  launch_graph(g);
}

static void captured(void (*call)(void)) {
  CUgraph g;
  CK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  call();
  CK(cuStreamEndCapture(stream, &g));
  launch_graph(g);
}
static void captured_set(void) { captured(set32_async); }
static void captured_to(void) { captured(to_within_async); }
static void captured_from(void) { captured(from_within_async); }
static void captured_upload(void) { captured(to_upload_async); }
static void captured_kernel(void) { captured(launched); }
#endif
