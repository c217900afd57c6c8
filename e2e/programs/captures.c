// What a capture forbids is refused by the call itself, as natively, and the capture is over; what it allows works
// while it goes on.
#include "check.h"
#include <pthread.h>

enum { N = 1 << 20 };
static CUdeviceptr d, more;
static char *host, *pinned;
static CUstream s, free_stream, legacy;
static CUevent e, outside;
static CUfunction f;
static CUgraphExec ready;

static CUresult launch(CUstream on) {
  int n = 1;
  float a = 2;
  void *params[] = {&a, &more, &d, &n};
  return cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, on, params, NULL);
}
static void nothing(void *x) { (void)x; }

static CUresult act_launch(void) { return launch(legacy); }
static CUresult act_launch_free(void) { return launch(free_stream); }
static CUresult act_memset(void) { return cuMemsetD8(d, 1, 64); }
static CUresult act_memset2d(void) { return cuMemsetD2D32(d, 64, 1, 4, 4); }
static CUresult act_memset_async(void) { return cuMemsetD32Async(d, 1, 16, legacy); }
static CUresult act_up(void) { return cuMemcpyHtoD(d, host, 64); }
static CUresult act_up_big(void) { return cuMemcpyHtoD(d, host, N); }
static CUresult act_up_async(void) { return cuMemcpyHtoDAsync(d, host, 64, legacy); }
static CUresult act_up_async_big(void) { return cuMemcpyHtoDAsync(d, host, N, legacy); }
static CUresult act_up_pinned_free(void) { return cuMemcpyHtoDAsync(d, pinned, N, free_stream); }
static CUresult act_down(void) { return cuMemcpyDtoH(host, d, 64); }
static CUresult act_down_async(void) { return cuMemcpyDtoHAsync(pinned, d, N, legacy); }
static CUresult act_down_free(void) { return cuMemcpyDtoHAsync(pinned, d, N, free_stream); }
static CUresult act_within(void) { return cuMemcpyDtoD(d, more, 64); }
static CUresult act_within_async(void) { return cuMemcpyDtoDAsync(d, more, 64, legacy); }
static CUresult rows(CUstream on, int async) {
  CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = host, .srcPitch = 1024,
                     .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = d, .dstPitch = 1024, .WidthInBytes = 1000,
                     .Height = N / 1024};
  return async ? cuMemcpy2DAsync(&c, on) : cuMemcpy2D(&c);
}
static CUresult act_rows(void) { return rows(0, 0); }
static CUresult act_rows_async(void) { return rows(legacy, 1); }
static CUresult act_record(void) { return cuEventRecord(e, legacy); }
static CUresult act_record_free(void) { return cuEventRecord(e, free_stream); }
static CUresult act_wait(void) { return cuStreamWaitEvent(legacy, outside, 0); }
static CUresult act_wait_inside(void) { return cuStreamWaitEvent(s, outside, 0); }
static CUresult act_host(void) { return cuLaunchHostFunc(legacy, nothing, NULL); }
static CUresult act_graph(void) { return cuGraphLaunch(ready, legacy); }
static CUresult act_write(void) { return cuStreamWriteValue32(legacy, d, 1, 0); }
static CUresult act_alloc(void) {
  CUdeviceptr p;
  CUresult r = cuMemAlloc(&p, 256);
  if (!r) cuMemFree(p);
  return r;
}
static CUresult act_pool(void) {
  CUdeviceptr p;
  CUresult r = cuMemAllocAsync(&p, 256, legacy);
  if (!r) r = cuMemFreeAsync(p, legacy);
  return r;
}
static CUresult act_query(void) { return cuStreamQuery(legacy); }
static CUresult act_event(void) {
  CUevent x;
  CUresult r = cuEventCreate(&x, 0);
  return r ? r : cuEventDestroy(x);
}
static CUresult act_stream(void) {
  CUstream x;
  CUresult r = cuStreamCreate(&x, CU_STREAM_NON_BLOCKING);
  return r ? r : cuStreamDestroy(x);
}

static const struct { const char *name; CUresult (*f)(void); } acts[] = {
    {"launch", act_launch}, {"launch elsewhere", act_launch_free}, {"memset", act_memset}, {"memset 2D", act_memset2d},
    {"memset async", act_memset_async},
    {"upload", act_up}, {"big upload", act_up_big}, {"upload async", act_up_async},
    {"big upload async", act_up_async_big}, {"upload elsewhere", act_up_pinned_free},
    {"download", act_down}, {"download async", act_down_async}, {"download elsewhere", act_down_free},
    {"copy", act_within}, {"copy async", act_within_async},
    {"rows", act_rows}, {"rows async", act_rows_async}, {"record", act_record}, {"record elsewhere", act_record_free},
    {"wait", act_wait}, {"wait inside", act_wait_inside},
    {"host function", act_host}, {"graph", act_graph}, {"write", act_write}, {"alloc", act_alloc}, {"pool", act_pool},
    {"query", act_query}, {"event", act_event}, {"stream", act_stream},
};

// The act comes first, so that its refusal is the first thing that happens to the capture; what is captured afterwards
// says whether it is over.
static void try(int i, CUstreamCaptureMode mode, const char *how) {
  CUgraph g = NULL;
  CUstreamCaptureStatus status;
  CK(cuStreamBeginCapture(s, mode));
  CUresult first = launch(s), act = acts[i].f(), then = launch(s), again = cuMemsetD8Async(d, 0, 4, s);
  CK(cuStreamIsCapturing(s, &status));
  CUresult ended = cuStreamEndCapture(s, &g);
  printf("%s, %s, mode %d: %d, then %d %d %d, status %d, end %d %s\n", acts[i].name, how, mode, act, first, then, again,
         status, ended, g ? "graph" : "none");
  if (g) CK(cuGraphDestroy(g));
  CK(cuStreamIsCapturing(s, &status));
  CHECK(!status, "a capture has not ended");
  CK(cuCtxSynchronize());
  CK(launch(s)); // nothing is left of it
  CK(cuCtxSynchronize());
}

struct other { int act; CUstreamCaptureMode own; CUresult result; };
static void *elsewhere(void *p) {
  struct other *o = p;
  CK(cuCtxSetCurrent(context));
  CUstreamCaptureMode mode = o->own;
  CK(cuThreadExchangeStreamCaptureMode(&mode));
  o->result = acts[o->act].f();
  return NULL;
}

// Another thread acts while this one captures.
static void across(int i, CUstreamCaptureMode mode, CUstreamCaptureMode own) {
  struct other o = {i, own, CUDA_SUCCESS};
  pthread_t t;
  CUgraph g = NULL;
  CK(cuStreamBeginCapture(s, mode));
  CUresult first = launch(s);
  pthread_create(&t, NULL, elsewhere, &o);
  pthread_join(t, NULL);
  CUresult then = launch(s), ended = cuStreamEndCapture(s, &g);
  printf("%s in another thread of mode %d, mode %d: %d, then %d %d, end %d %s\n", acts[i].name, own, mode, o.result,
         first, then, ended, g ? "graph" : "none");
  if (g) CK(cuGraphDestroy(g));
  CK(cuCtxSynchronize());
}

// Two captures at once: one is spoilt, the other is not.
static void two(void) {
  CUstream a, b;
  CUgraph g = NULL, h = NULL;
  CK(cuStreamCreate(&a, CU_STREAM_DEFAULT));
  CK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
  CK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
  CK(cuStreamBeginCapture(b, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUresult x = launch(legacy), inside = launch(a), other = launch(b);
  CUresult one = cuStreamEndCapture(a, &g), still = launch(b), both = cuStreamEndCapture(b, &h);
  printf("two captures: %d, then %d %d, ends %d %s, %d, %d %s\n", x, inside, other, one, g ? "graph" : "none", still,
         both, h ? "graph" : "none");
  if (h) CK(cuGraphDestroy(h));
  CK(cuStreamDestroy(a));
  CK(cuStreamDestroy(b));
}

// A stream that joined, and is not joined again.
static void forked(void) {
  CUstream other;
  CUgraph g = NULL;
  CUstreamCaptureStatus status;
  CK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  CK(launch(s));
  CK(cuEventRecord(e, s));
  CK(cuStreamWaitEvent(other, e, 0));
  CK(launch(other));
  CK(cuStreamIsCapturing(other, &status));
  CUresult end = cuStreamEndCapture(s, &g);
  printf("unjoined: status %d, end %d %s\n", status, end, g ? "graph" : "none");
  CK(cuStreamIsCapturing(other, &status));
  CUresult query = cuEventQuery(e);
  printf("afterwards: status %d, query %d, launches %d %d\n", status, query, launch(other), launch(legacy));
  CK(cuCtxSynchronize());
  CK(cuStreamDestroy(other));
}

// The program's own accesses to unified memory are no calls: no capture forbids them, nor does one that begins behind
// an upload end by what another stream does.
static void amid(CUstreamCaptureMode mode, unsigned flags) {
  CUdeviceptr m;
  CUgraph g;
  CUgraphExec x;
  float two = 2, one = 1, got, sum = 0;
  int n = 64;
  CK(cuStreamCreate(&s, flags));
  CK(cuMemAllocManaged(&m, N, CU_MEM_ATTACH_GLOBAL));
  float *p = (float *)m;
  for (int i = 0; i < N / 4; i++) p[i] = 1;
  void *params[] = {&two, &m, &d, &n};
  CK(cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, s, params, NULL));
  CK(cuCtxSynchronize());
  CK(cuMemcpyHtoD(d, &one, 4));
  CK(cuStreamBeginCapture(s, mode));
  CK(cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, s, params, NULL));
  CK(cuMemsetD32Async(more, 0, 64, free_stream));
  for (int i = 0; i < N / 4; i += 64) sum += p[i];
  p[0] = 3;
  CK(cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, s, params, NULL));
  CK(cuStreamEndCapture(s, &g));
  CK(cuGraphInstantiateWithFlags(&x, g, 0));
  CK(cuGraphLaunch(x, s));
  CK(cuStreamSynchronize(s));
  CK(cuMemcpyDtoH(&got, d, 4));
  CHECK(got == 13 && sum == N / 256, "unified memory amid a capture: %g, %g", got, sum);
  CK(cuGraphExecDestroy(x));
  CK(cuGraphDestroy(g));
  CK(cuStreamDestroy(s));
  CK(cuMemFree(m));
}

// What is captured costs no question each.
static void many(int n) {
  CUgraph g;
  CUgraphExec x;
  CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  for (int i = 0; i < n; i++) {
    CK(launch(s));
    CK(cuMemsetD8Async(d, 0, 4, s));
    CK(cuEventRecord(e, s));
  }
  CK(cuStreamEndCapture(s, &g));
  size_t nodes = 0;
  CK(cuGraphGetNodes(g, NULL, &nodes));
  CHECK(nodes == 2 * (size_t)n, "%zu nodes", nodes);
  CK(cuGraphDestroy(g));
}

int main(int argc, char **argv) {
  start(argc, argv);
  host = malloc(N);
  memset(host, 1, N);
  CK(cuMemAllocHost((void **)&pinned, N));
  CK(cuMemAlloc(&d, N));
  CK(cuMemAlloc(&more, N));
  CK(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING));
  CK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  CK(cuEventCreate(&outside, CU_EVENT_DISABLE_TIMING));
  CK(cuEventRecord(outside, free_stream));
  f = function(load("kernels.ptx"), "saxpy");
  CUgraph g;
  CK(cuGraphCreate(&g, 0));
  CUDA_MEMSET_NODE_PARAMS set = {.dst = d, .value = 1, .elementSize = 1, .width = 4, .height = 1};
  CUgraphNode node;
  CK(cuGraphAddMemsetNode(&node, g, NULL, 0, &set, context));
  CK(cuGraphInstantiateWithFlags(&ready, g, 0));
  CK(cuCtxSynchronize());
  if (argc > 2) {
    CK(cuStreamCreate(&s, CU_STREAM_DEFAULT));
    many(atoi(argv[2]));
    return 0;
  }
  for (unsigned flags = 0; flags < 2; flags++) {
    CK(cuStreamCreate(&s, flags ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
    for (int mode = 0; mode < 3; mode++)
      for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        try((int)i, (CUstreamCaptureMode)mode, flags ? "non-blocking" : "blocking");
    if (!flags) {
      for (int mode = 0; mode < 3; mode++)
        for (int own = 0; own < 3; own++)
          for (size_t i = 0; i < sizeof acts / sizeof *acts; i += 3)
            across((int)i, (CUstreamCaptureMode)mode, (CUstreamCaptureMode)own);
      legacy = CU_STREAM_PER_THREAD; // which is a stream like others
      for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) try((int)i, CU_STREAM_CAPTURE_MODE_RELAXED, "per thread");
      legacy = 0;
      two();
      forked();
    }
    CK(cuStreamDestroy(s));
  }
  for (int mode = 0; mode < 3; mode++)
    for (unsigned flags = 0; flags < 2; flags++) amid((CUstreamCaptureMode)mode, flags);
  CK(cuStreamCreate(&s, CU_STREAM_DEFAULT));
  many(10);
  CK(cuStreamDestroy(s));
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING)); // a stream that is gone while it captures leaves nothing behind
  CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  CK(launch(s));
  SHOW(cuStreamDestroy(s));
  SHOW(launch(legacy));
  SHOW(cuCtxSynchronize());
  printf("done\n");
  return 0;
}
