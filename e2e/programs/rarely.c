// Calls that programs make rarely: batches of memory operations as graph nodes, one kernel on several GPUs, counts of
// uses of a context, notifications, and what is left of CUDA 3.0.
#include "check.h"

// Declared by CUDA 3's header, or no longer by all.
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev);
CUresult CUDAAPI cuCtxAttach(CUcontext *ctx, unsigned flags);
CUresult CUDAAPI cuCtxDetach(CUcontext ctx);
CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags);
CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                                   const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params);

static const char ptx[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry add(.param .u64 p, .param .u32 n)\n{\n"
    "  .reg .b64 %l; .reg .b32 %r<2>;\n"
    "  ld.param.u64 %l, [p]; ld.param.u32 %r0, [n]; cvta.to.global.u64 %l, %l; atom.global.add.u32 %r1, [%l], %r0; "
    "ret;\n}\n";

static unsigned value(CUdeviceptr p) {
  unsigned v;
  CK(cuMemcpyDtoH(&v, p, 4));
  return v;
}

static CUstreamBatchMemOpParams operation(int kind, CUdeviceptr p, unsigned v) {
  CUstreamBatchMemOpParams o;
  memset(&o, 0, sizeof o);
  o.operation = kind;
  o.writeValue.address = p, o.writeValue.value = v; // a wait is laid out alike; with flags 0 it is "at least"
  return o;
}

static void batches(void) {
  CUdeviceptr p;
  CUgraph g;
  CUgraphNode node, next;
  CUgraphExec x;
  CUgraphNodeType type;
  CUDA_BATCH_MEM_OP_NODE_PARAMS b, got;
  CK(cuMemAlloc(&p, 64));
  CK(cuMemsetD32(p, 0, 16));
  CK(cuCtxSynchronize());
  CUstreamBatchMemOpParams ops[2] = {operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, p, 7),
                                     operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, p, 7)};
  memset(&b, 0, sizeof b);
  b.ctx = context, b.count = 2, b.paramArray = ops;
  CK(cuGraphCreate(&g, 0));
  CK(cuGraphAddBatchMemOpNode(&node, g, NULL, 0, &b));
  CK(cuGraphNodeGetType(node, &type));
  memset(&got, 0, sizeof got);
  CK(cuGraphBatchMemOpNodeGetParams(node, &got));
  CHECK(got.ctx == context && got.count == 2 && got.flags == 0 && got.paramArray && got.paramArray != ops,
        "parameters of a batch");
  printf("node of type %d: operations %d %d, values %llu %llu\n", (int)type, (int)got.paramArray[0].operation,
         (int)got.paramArray[1].operation,
         (unsigned long long)got.paramArray[0].writeValue.value64,
         (unsigned long long)got.paramArray[1].waitValue.value64);
  CUgraphNodeParams any;
  memset(&any, 0, sizeof any);
  any.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  CUstreamBatchMemOpParams more = operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, p + 8, 11);
  any.memOp.ctx = context, any.memOp.count = 1, any.memOp.paramArray = &more;
  CK(cuGraphAddNode_v2(&next, g, &node, NULL, 1, &any));
  CK(cuGraphInstantiate(&x, g, 0));
  CK(cuGraphLaunch(x, 0));
  CK(cuCtxSynchronize());
  printf("launched: %u %u\n", value(p), value(p + 8));
  ops[0].writeValue.value = ops[1].waitValue.value = 9;
  CK(cuGraphExecBatchMemOpNodeSetParams(x, node, &b));
  CK(cuGraphLaunch(x, 0));
  CK(cuCtxSynchronize());
  printf("changed: %u\n", value(p));
  CK(cuGraphBatchMemOpNodeSetParams(node, &b));
  b.count = 1;
  SHOW(cuGraphExecBatchMemOpNodeSetParams(x, node, &b));
  b.count = 0;
  SHOW(cuGraphAddBatchMemOpNode(&next, g, NULL, 0, &b));
  b.count = 1, b.ctx = NULL;
  SHOW(cuGraphAddBatchMemOpNode(&next, g, NULL, 0, &b));
  b.ctx = context, b.flags = 5;
  SHOW(cuGraphAddBatchMemOpNode(&next, g, NULL, 0, &b));
  CK(cuGraphExecDestroy(x));
  CK(cuGraphDestroy(g));
  CK(cuMemFree(p));
}

static void several(void) {
  CUmodule m;
  CUstream s;
  CUdeviceptr p;
  CK(cuModuleLoadData(&m, ptx));
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuMemAlloc(&p, 4));
  CK(cuMemsetD32(p, 0, 1));
  CK(cuCtxSynchronize());
  unsigned n = 5;
  void *args[] = {&p, &n};
  CUDA_LAUNCH_PARAMS l[2] = {{function(m, "add"), 2, 1, 1, 3, 1, 1, 0, s, args}};
  l[1] = l[0];
  CK(cuLaunchCooperativeKernelMultiDevice(l, 1, 0));
  CK(cuLaunchCooperativeKernelMultiDevice(l, 1, 3));
  CK(cuCtxSynchronize());
  printf("launched on one GPU of several: %u\n", value(p));
  SHOW(cuLaunchCooperativeKernelMultiDevice(l, 1, 4));
  SHOW(cuLaunchCooperativeKernelMultiDevice(l, 0, 0));
  SHOW(cuLaunchCooperativeKernelMultiDevice(NULL, 1, 0));
  SHOW(cuLaunchCooperativeKernelMultiDevice(l, 2, 0));
  l[0].hStream = NULL;
  SHOW(cuLaunchCooperativeKernelMultiDevice(l, 1, 0));
  l[0].hStream = s, l[0].gridDimX = 1000000;
  SHOW(cuLaunchCooperativeKernelMultiDevice(l, 1, 0));
  CK(cuStreamDestroy(s));
  CK(cuMemFree(p));
}

static void uses(void) {
  CUcontext c, made;
  CUdeviceptr p;
  CK(cuCtxAttach(&c, 0));
  CHECK(c == context, "attached to another context");
  SHOW(cuCtxAttach(&c, 1));
  SHOW(cuCtxAttach(NULL, 0));
  SHOW(cuCtxDetach(NULL));
  CK(cuCtxDetach(c));
  CK(cuCtxDetach(c));
  CK(cuMemAlloc(&p, 4));
  CK(cuMemFree(p));
  CK(cuCtxCreate_v2(&made, 0, 0));
  CK(cuCtxAttach(&c, 0));
  CHECK(c == made, "attached to another context");
  CK(cuCtxDetach(made));
  CK(cuCtxGetCurrent(&c));
  CHECK(c == made, "the first detaching ended the context");
  CK(cuCtxDetach(made));
  CK(cuCtxGetCurrent(&c));
  CHECK(c == context, "the last detaching did not end the context");
  SHOW(cuCtxDetach(made));
  CK(cuCtxCreate_v2(&made, 0, 0));
  CK(cuCtxSetCurrent(context));
  SHOW(cuCtxDetach(made)); // not current
  CK(cuCtxDestroy(made));
  printf("uses counted\n");
}

static void CUDAAPI noted(CUasyncNotificationInfo *info, void *user, CUasyncCallbackHandle handle) {
  (void)info, (void)user, (void)handle;
}

static void others(void) {
  CUasyncCallbackHandle h, h2;
  CK(cuDeviceRegisterAsyncNotification(0, noted, NULL, &h));
  CK(cuDeviceRegisterAsyncNotification(0, noted, NULL, &h2));
  CHECK(h != h2, "two registrations are one");
  CK(cuDeviceUnregisterAsyncNotification(0, h));
  CK(cuDeviceUnregisterAsyncNotification(0, h2));
  SHOW(cuDeviceRegisterAsyncNotification(0, NULL, NULL, &h));
  SHOW(cuDeviceRegisterAsyncNotification(99, noted, NULL, &h));
  CUstreamCaptureMode mode = (CUstreamCaptureMode)3;
  CK(cuThreadExchangeStreamCaptureMode(&mode));
  printf("mode before: %d\n", (int)mode);
  CK(cuThreadExchangeStreamCaptureMode(&mode));
  printf("mode before: %d\n", (int)mode);
}

int main(int argc, char **argv) {
  start(argc, argv);
  batches();
  several();
  uses();
  others();
  return 0;
}
