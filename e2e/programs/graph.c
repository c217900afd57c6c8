// Stream capture and graphs: kernels, copies, memsets, host functions, a fork and a join; replay with changed inputs;
// capture errors.
#include "check.h"

static int calls;
static float *out, last; // what the graph's host function finds where the graph copied to
enum { N = 5000 };
static void CUDA_CB count(void *user) {
  last = out[N - 1];
  __atomic_add_fetch((int *)user, 1, __ATOMIC_SEQ_CST);
}

int main(int argc, char **argv) {
  start(argc, argv);
  CUmodule m = load("kernels.ptx");
  CUfunction add = function(m, "vector_add"), saxpy = function(m, "saxpy");
  int n = N;
  float *in, two = 2;
  CK(cuMemAllocHost((void **)&in, N * 4));
  CK(cuMemAllocHost((void **)&out, N * 4));
  CUdeviceptr a, b, c;
  CK(cuMemAlloc(&a, N * 4));
  CK(cuMemAlloc(&b, N * 4));
  CK(cuMemAlloc(&c, N * 4));
  CUstream s, t;
  CUevent fork, join;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
  CK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  CK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));

  CUgraph graph;
  CUgraphExec exec;
  CUstreamCaptureStatus status;
  CK(cuStreamIsCapturing(s, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE, "capturing before it began");
  CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CK(cuStreamIsCapturing(s, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE, "not capturing");
  CK(cuMemcpyHtoDAsync(a, in, N * 4, s));
  CK(cuEventRecord(fork, s));
  CK(cuStreamWaitEvent(t, fork, 0));
  CK(cuMemsetD32Async(b, 0x3F800000, N, t)); // 1.0
  CK(LAUNCH(saxpy, 10, 128, 0, t, &two, &a, &b, &n)); // b = 2a + 1
  CK(LAUNCH(add, (N + 255) / 256, 256, 0, s, &a, &a, &c, &n)); // c = 2a
  CK(cuEventRecord(join, t));
  CK(cuStreamWaitEvent(s, join, 0));
  CK(LAUNCH(add, (N + 255) / 256, 256, 0, s, &b, &c, &c, &n)); // c = 4a + 1
  CK(cuMemcpyDtoHAsync(out, c, N * 4, s));
  CK(cuLaunchHostFunc(s, count, &calls));
  CK(cuStreamEndCapture(s, &graph));
  CHECK(calls == 0, "the host function ran while it was captured");
  // Natively there are 7 nodes. Over scuda a copy between host and device has a host node beside it, which carries the
  // bytes.
  size_t nodes = 0, room = 16;
  CK(cuGraphGetNodes(graph, NULL, &nodes));
  CHECK(nodes >= 7 && nodes <= 9, "7 to 9 nodes, not %zu", nodes);
  CUgraphNode list[16];
  CK(cuGraphGetNodes(graph, list, &room));
  int kinds[16] = {0};
  for (size_t i = 0; i < room; i++) {
    CUgraphNodeType type;
    CK(cuGraphNodeGetType(list[i], &type));
    CHECK((int)type >= 0 && (int)type < 16, "node type %d", (int)type);
    kinds[type]++;
  }
  printf("%d kernels, %d copies, %d memsets\n", kinds[0], kinds[1], kinds[2]);
  CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CK(cuGraphDestroy(graph));
  for (int round = 1; round <= 20; round++) {
    for (int i = 0; i < N; i++) in[i] = (float)(i * round);
    CK(cuGraphLaunch(exec, s));
    CK(cuStreamSynchronize(s));
    for (int i = 0; i < N; i++) CHECK(out[i] == 4.f * i * round + 1, "round %d: [%d] = %g", round, i, out[i]);
    CHECK(last == out[N - 1], "round %d: the host function behind the copy saw %g", round, last);
    CHECK(calls == round, "round %d: the host function ran %d times", round, calls);
  }
  printf("replayed\n");
  // Many launches in a row, without waiting between them.
  for (int i = 0; i < 200; i++) CK(cuGraphLaunch(exec, s));
  CK(cuStreamSynchronize(s));
  CHECK(calls == 220, "%d calls", calls);
  CK(cuGraphExecDestroy(exec));

  // What is forbidden during capture says so and breaks the capture.
  CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  WANT(cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  WANT(cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CK(cuStreamIsCapturing(s, &status));
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE, "still capturing");
  WANT(cuStreamEndCapture(s, &graph), CUDA_ERROR_ILLEGAL_STATE);
  WANT(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  // In the relaxed mode an allocation goes through.
  CUdeviceptr d;
  CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  CK(cuMemAlloc(&d, 1000));
  CK(cuStreamEndCapture(s, &graph));
  CK(cuGraphDestroy(graph));
  CK(cuMemFree(d));
  printf("graph ok\n");
  return 0;
}
