// Calls that streams, events and graphs refuse: during a capture, out of turn, and with contexts and objects that are
// gone.
#include "check.h"
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev); // newer headers have other forms only

static CUstream s, other, blocking;
static CUevent e, timed, never, untimed;
static CUfunction f;
static CUdeviceptr d;
static CUgraph g;
static float ms;
static int v;
static void *pinned;
static CUstreamCaptureMode mode;

static void CUDA_CB nothing(void *unused) {}

#define CAPTURE(m) CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_##m))
#define STATUS() \
  do { \
    CUstreamCaptureStatus st_; \
    CUresult r_ = cuStreamIsCapturing(s, &st_); \
    printf("  capturing: %d, status %d\n", r_, r_ ? -1 : (int)st_); \
  } while (0)
static void over(void) {
  STATUS();
  g = NULL;
  CUresult r = cuStreamEndCapture(s, &g);
  printf("  end of capture: %d, %s\n", r, g ? "a graph" : "no graph");
  if (g) cuGraphDestroy(g);
}
// A call during a capture in one of the modes, and what becomes of the capture.
#define DURING(m, call) \
  do { \
    CAPTURE(m); \
    CK(LAUNCH(f, 1, 1, 0, s, &d, &v)); \
    printf(#m ": %s = %d\n", #call, (int)(call)); \
    over(); \
    int r_ = cuCtxSynchronize(); \
    if (r_) printf("  then %d\n", r_); \
  } while (0)

int main(int argc, char **argv) {
  start(argc, argv);
  CUmodule m, m2;
  static const char *ptx =
      ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing(.param .u64 p, .param .u32 n) { ret; }\n";
  CK(cuModuleLoadData(&m, ptx));
  f = function(m, "nothing");
  CUstream s2;
  CUevent e2;
  CUdeviceptr d2;
  CUgraphExec ge;
  size_t n;
  void *h;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CK(cuStreamCreate(&blocking, 0));
  CK(cuEventCreate(&e, 0));
  CK(cuEventCreate(&timed, 0));
  CK(cuEventCreate(&never, 0));
  CK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
  CK(cuMemAlloc(&d, 4096));
  CK(cuMemHostAlloc(&pinned, 4096, 0));
  CK(cuEventRecord(timed, other));
  CK(cuCtxSynchronize());

  DURING(GLOBAL, 0);
  DURING(GLOBAL, cuStreamSynchronize(s));
  DURING(GLOBAL, cuStreamQuery(s));
  DURING(GLOBAL, cuCtxSynchronize());
  DURING(GLOBAL, cuStreamSynchronize(other));
  DURING(GLOBAL, cuStreamQuery(other));
  DURING(GLOBAL, cuStreamSynchronize(NULL));
  DURING(GLOBAL, cuMemAlloc(&d2, 64));
  DURING(GLOBAL, cuMemFree(d));
  DURING(GLOBAL, cuMemHostAlloc(&h, 64, 0));
  DURING(GLOBAL, cuMemcpyHtoD(d, &v, 4));
  DURING(GLOBAL, cuMemcpyDtoH(&v, d, 4));
  DURING(GLOBAL, cuMemsetD8(d, 0, 4));
  DURING(GLOBAL, LAUNCH(f, 1, 1, 0, NULL, &d, &v));
  DURING(GLOBAL, LAUNCH(f, 1, 1, 0, other, &d, &v));
  DURING(GLOBAL, LAUNCH(f, 1, 1, 0, blocking, &d, &v));
  DURING(GLOBAL, cuEventQuery(timed));
  DURING(GLOBAL, cuEventSynchronize(timed));
  DURING(GLOBAL, cuEventRecord(e, NULL));
  DURING(GLOBAL, cuEventRecord(e, other));
  DURING(GLOBAL, cuStreamWaitEvent(s, timed, 0));
  DURING(GLOBAL, cuStreamWaitEvent(s, never, 0));
  DURING(GLOBAL, cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  DURING(GLOBAL, cuStreamCreate(&s2, 0));
  DURING(GLOBAL, cuEventCreate(&e2, 0));
  DURING(GLOBAL, cuModuleLoadData(&m2, ptx));
  DURING(GLOBAL, cuMemGetInfo(&n, &n));
  DURING(GLOBAL, cuEventElapsedTime(&ms, timed, timed));
  DURING(GLOBAL, cuMemcpyHtoDAsync(d, pinned, 64, s));
  DURING(GLOBAL, cuMemcpyHtoDAsync(d, &v, 4, s));
  DURING(GLOBAL, cuLaunchHostFunc(s, nothing, NULL));
  DURING(GLOBAL, cuStreamGetPriority(s, &v));
  DURING(RELAXED, cuMemAlloc(&d2, 64));
  DURING(RELAXED, cuMemcpyHtoD(d, &v, 4));
  DURING(RELAXED, cuStreamSynchronize(other));
  DURING(RELAXED, cuStreamSynchronize(s));
  DURING(RELAXED, cuCtxSynchronize());
  DURING(RELAXED, LAUNCH(f, 1, 1, 0, NULL, &d, &v));
  DURING(THREAD_LOCAL, cuMemAlloc(&d2, 64));
  DURING(THREAD_LOCAL, cuStreamSynchronize(s));

  // An event that a capture recorded, used outside.
  CAPTURE(GLOBAL);
  CK(cuEventRecord(e, s));
  SHOW(cuEventQuery(e));
  STATUS();
  over();
  CAPTURE(GLOBAL);
  CK(cuEventRecord(e, s));
  SHOW(cuEventSynchronize(e));
  over();
  SHOW(cuEventQuery(e));
  SHOW(cuEventElapsedTime(&ms, timed, e));
  // A stream that joins a capture and does not come back.
  CAPTURE(GLOBAL);
  CK(cuEventRecord(e, s));
  CK(cuStreamWaitEvent(other, e, 0));
  CK(LAUNCH(f, 1, 1, 0, other, &d, &v));
  SHOW(cuStreamEndCapture(other, &g));
  STATUS();
  over();
  SHOW(cuStreamQuery(other));
  CAPTURE(GLOBAL);
  CK(cuEventRecord(e, s));
  CK(cuStreamWaitEvent(other, e, 0));
  SHOW(cuStreamSynchronize(other));
  over();
  // Out of turn.
  SHOW(cuStreamEndCapture(s, &g));
  SHOW(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
  SHOW(cuStreamBeginCapture(s, (CUstreamCaptureMode)7));
  mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  SHOW(cuThreadExchangeStreamCaptureMode(&mode));
  printf("  was %d\n", mode);
  mode = (CUstreamCaptureMode)9;
  SHOW(cuThreadExchangeStreamCaptureMode(&mode));
  mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  CK(cuThreadExchangeStreamCaptureMode(&mode));
  SHOW(cuEventQuery(never));
  SHOW(cuEventSynchronize(never));
  SHOW(cuStreamWaitEvent(s, never, 0));
  SHOW(cuEventElapsedTime(&ms, timed, never));
  CK(cuEventRecord(untimed, s));
  CK(cuStreamSynchronize(s));
  SHOW(cuEventElapsedTime(&ms, timed, untimed));
  SHOW(cuEventCreate(&e2, CU_EVENT_INTERPROCESS));
  SHOW(cuEventCreate(&e2, 0x80));
  SHOW(cuStreamCreate(&s2, 7));
  SHOW(cuStreamWaitEvent(s, e, 0x40));
  SHOW(cuLaunchHostFunc(s, NULL, NULL));
  // Graphs with a loop in them, with nodes of others, launched where they may not be.
  CUgraphNode a, b, c;
  CUgraph g2;
  CK(cuGraphCreate(&g, 0));
  CK(cuGraphCreate(&g2, 0));
  CK(cuGraphAddEmptyNode(&a, g, NULL, 0));
  CK(cuGraphAddEmptyNode(&b, g, &a, 1));
  SHOW(cuGraphAddEmptyNode(&c, g2, &a, 1));
  SHOW(cuGraphCreate(NULL, 0));
  SHOW(cuGraphCreate(&g2, 1));
  SHOW(cuGraphAddEmptyNode(NULL, g, NULL, 0));
  SHOW(cuGraphAddEmptyNode(&c, g, NULL, 1));
  SHOW(cuGraphInstantiate(&ge, g, 0));
  SHOW(cuGraphLaunch(NULL, s));
  SHOW(cuGraphLaunch(ge, s));
  CK(cuStreamSynchronize(s));
  SHOW(cuGraphDestroy(NULL));
  SHOW(cuGraphExecDestroy(NULL));
  SHOW(cuGraphInstantiate(&ge, NULL, 0));
  // Contexts: none, destroyed, not of this kind.
  CUcontext own, popped;
  CUdevice dev;
  CK(cuCtxCreate_v2(&own, 0, 0));
  CUdeviceptr mine;
  CUstream streams;
  CK(cuMemAlloc(&mine, 64));
  CK(cuStreamCreate(&streams, 0));
  SHOW(cuStreamWaitEvent(streams, e, 0));
  SHOW(cuMemcpyHtoD(d, &v, 4));
  SHOW(cuStreamSynchronize(s));
  SHOW(cuCtxDestroy(own));
  SHOW(cuMemAlloc(&d2, 64)); // that a context destroyed twice is 709 or 201 is the driver's chance
  SHOW(cuCtxDestroy(NULL));
  SHOW(cuCtxDestroy(context));
  CK(cuCtxSetCurrent(NULL));
  SHOW(cuCtxSynchronize());
  SHOW(cuMemAlloc(&d2, 64));
  SHOW(cuStreamCreate(&s2, 0));
  SHOW(cuEventCreate(&e2, 0));
  SHOW(cuModuleLoadData(&m2, ptx));
  SHOW(cuCtxGetDevice(&dev));
  SHOW(cuCtxPopCurrent(&popped));
  SHOW(cuStreamSynchronize(s));
  SHOW(cuStreamQuery(NULL));
  SHOW(cuEventQuery(timed));
  SHOW(cuMemFree(d));
  SHOW(LAUNCH(f, 1, 1, 0, NULL, &d, &v));
  SHOW(cuMemcpyHtoD(d, &v, 4));
  CK(cuCtxSetCurrent(context));
  SHOW(cuDeviceGet(&dev, 1000));
  SHOW(cuDeviceGet(&dev, -1));
  SHOW(cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 1000));
  SHOW(cuDeviceGetAttribute(&v, (CUdevice_attribute)100000, 0));
  SHOW(cuDeviceGetAttribute(&v, (CUdevice_attribute)0, 0));
  SHOW(cuDevicePrimaryCtxRetain(&popped, 1000));
  SHOW(cuDevicePrimaryCtxRelease(0));
  SHOW(cuDevicePrimaryCtxRelease(0));
  SHOW(cuMemAlloc(&d2, 64));
  SHOW(cuInit(1));
  return 0;
}
