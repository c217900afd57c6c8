// How a capture ends that something went wrong in, and that the process, the thread and the stream can capture again
// afterwards. For each act, each mode and each thread: what the act answers, what becomes of the capture, and what a
// right capture behind it does. The lines of an H200's driver are testdata/capture_ends.golden.
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 4096 };
static CUstream s, beside;
static CUdeviceptr d, kept;
static CUevent inside, outside, timing;
static CUfunction f;
static int pending; // of this round: commands that no answer has come for

static CUresult launch(CUstream on) {
  int n = 1;
  float a = 2;
  void *params[] = {&a, &kept, &d, &n};
  return cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, on, params, NULL);
}

// ---- Acts.

static CUresult async_alloc(size_t size, CUstream on) {
  CUdeviceptr p = 0;
  CUresult r = cuMemAllocAsync(&p, size, on);
  if (!r && on == s) cuMemFreeAsync(p, on);
  return r;
}
static CUresult act_nothing(void) { return CUDA_SUCCESS; }
static CUresult act_pool(void) { return async_alloc(N, s); }
static CUresult act_pool_huge(void) { return async_alloc(1ull << 40, s); }
static CUresult act_pool_absurd(void) { return async_alloc(1ull << 55, s); }
static CUresult act_pool_zero(void) { return async_alloc(0, s); }
static CUresult act_pool_beside(void) {
  CUdeviceptr p = 0;
  CUresult r = cuMemAllocAsync(&p, N, beside);
  return r ? r : cuMemFreeAsync(p, beside);
}
static CUresult act_pool_beside_huge(void) { return async_alloc(1ull << 40, beside); }
static CUresult act_pool_twice(void) {
  CUresult first = act_pool_huge(), second = act_pool();
  return (CUresult)(1000 * first + second);
}
static CUresult act_alloc(void) {
  CUdeviceptr p = 0;
  CUresult r = cuMemAlloc(&p, N);
  return r ? r : cuMemFree(p);
}
static CUresult act_alloc_huge(void) {
  CUdeviceptr p = 0;
  return cuMemAlloc(&p, 1ull << 40);
}
static CUresult act_free(void) {
  CUresult r = cuMemFree(kept);
  if (!r) CK(cuMemAlloc(&kept, N));
  return r;
}
static CUresult act_free_async(void) { return cuMemFreeAsync(d + 8, s); }
static CUresult act_free_nothing(void) { return cuMemFreeAsync(0x12345000, s); }
static CUresult act_free_twice(void) {
  CUdeviceptr p = 0;
  CUresult r = cuMemAllocAsync(&p, N, s), first = cuMemFreeAsync(p, s), second = cuMemFreeAsync(p, s);
  return (CUresult)(1000000 * r + 1000 * first + second);
}
static CUresult act_info(void) {
  size_t a, b;
  return cuMemGetInfo(&a, &b);
}
static CUresult act_trim(void) {
  CUmemoryPool p;
  CUresult r = cuDeviceGetDefaultMemPool(&p, 0);
  return r ? r : cuMemPoolTrimTo(p, 0);
}
static CUresult act_host_alloc(void) {
  void *p;
  CUresult r = cuMemHostAlloc(&p, N, 0);
  return r ? r : cuMemFreeHost(p);
}
static CUresult act_module(void) {
  CUmodule m;
  void *image = read_file("kernels.ptx", NULL);
  CUresult loaded = cuModuleLoadData(&m, image), r = loaded ? CUDA_SUCCESS : cuModuleUnload(m);
  free(image);
  return (CUresult)(1000 * loaded + r);
}
static CUresult act_wait_context(void) { return cuCtxSynchronize(); }
static CUresult act_wait_stream(void) { return cuStreamSynchronize(s); }
static CUresult act_wait_beside(void) { return cuStreamSynchronize(beside); }
static CUresult act_ask_stream(void) { return cuStreamQuery(s); }
static CUresult act_number(void) {
  unsigned long long id;
  return cuStreamGetId(s, &id);
}
static CUresult act_number_beside(void) {
  unsigned long long id;
  return cuStreamGetId(beside, &id);
}
static CUresult act_number_legacy(void) {
  unsigned long long id;
  return cuStreamGetId(NULL, &id);
}
static CUresult act_ask_event(void) { return cuEventQuery(inside); }
static CUresult act_wait_event(void) { return cuEventSynchronize(inside); }
static CUresult act_elapsed(void) {
  float ms;
  return cuEventElapsedTime(&ms, timing, inside);
}
static CUresult act_wait_inside(void) { return cuStreamWaitEvent(s, outside, 0); }
static CUresult act_record_again(void) { return cuEventRecord(inside, s); }
static CUresult act_legacy(void) { return launch(0); }
// where nothing else writes: it may still run
static CUresult act_legacy_set(void) { return cuMemsetD8(d + N - 8, 1, 8); }
static CUresult act_legacy_copy(void) {
  char bytes[8];
  return cuMemcpyDtoH(bytes, d, 8);
}
static CUresult act_wrong_launch(void) {
  int n = 1;
  float a = 2;
  void *params[] = {&a, &kept, &d, &n};
  return cuLaunchKernel(f, 1, 1, 1, 4096, 1, 1, 0, s, params, NULL);
}
static CUresult act_wrong_copy(void) { return cuMemcpyDtoDAsync(0x12345000, d, 8, s); }
static CUresult act_wrong_set(void) { return cuMemsetD8Async(0x12345000, 0, 8, s); }
static CUresult act_begin_again(void) { return cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED); }
static CUresult act_begin_legacy(void) { return cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_RELAXED); }
static CUresult act_begin_beside(void) {
  CUgraph g = NULL;
  CUresult r = cuStreamBeginCapture(beside, CU_STREAM_CAPTURE_MODE_RELAXED);
  if (r) return r;
  CUresult within = launch(beside), end = cuStreamEndCapture(beside, &g);
  if (g) cuGraphDestroy(g);
  return (CUresult)(1000 * within + end);
}
static CUresult act_end_beside(void) {
  CUgraph g = NULL;
  return cuStreamEndCapture(beside, &g);
}
static CUresult act_fork(void) { // a stream that joins and is not joined again
  CUresult r = cuStreamWaitEvent(beside, inside, 0);
  return r ? r : launch(beside);
}
static CUresult act_destroy(void) {
  CUresult r = cuStreamDestroy(s);
  s = NULL;
  return r;
}
static CUresult act_event_dies(void) {
  CUresult r = cuEventDestroy(inside);
  CK(cuEventCreate(&inside, CU_EVENT_DISABLE_TIMING));
  return r;
}
static CUresult act_attribute(void) { return cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048); }

static const struct act {
  const char *name;
  CUresult (*f)(void);
} acts[] = {
    {"nothing", act_nothing}, {"pool", act_pool}, {"pool, huge", act_pool_huge}, {"pool, absurd", act_pool_absurd},
    {"pool, none", act_pool_zero}, {"pool beside", act_pool_beside}, {"pool beside, huge", act_pool_beside_huge},
    {"pool, huge and again", act_pool_twice},
    {"alloc", act_alloc}, {"alloc, huge", act_alloc_huge}, {"free", act_free},
    {"free async of an inner address", act_free_async}, {"free async of nothing", act_free_nothing},
    {"free async twice", act_free_twice}, {"info", act_info}, {"trim", act_trim}, {"host alloc", act_host_alloc},
    {"module", act_module}, {"wait for context", act_wait_context},
    {"wait for stream", act_wait_stream}, {"wait for stream beside", act_wait_beside}, {"ask stream", act_ask_stream},
    {"ask event", act_ask_event}, {"wait for event", act_wait_event},
    {"number of stream", act_number}, {"number of stream beside", act_number_beside},
    {"number of legacy stream", act_number_legacy},
    {"elapsed", act_elapsed}, {"event from outside", act_wait_inside}, {"record again", act_record_again},
    {"legacy launch", act_legacy}, {"legacy memset", act_legacy_set},
    {"legacy copy", act_legacy_copy}, {"wrong launch", act_wrong_launch}, {"wrong copy", act_wrong_copy},
    {"wrong memset", act_wrong_set}, {"begin again", act_begin_again},
    {"begin on legacy", act_begin_legacy}, {"begin beside", act_begin_beside}, {"end beside", act_end_beside},
    {"fork", act_fork}, {"destroy", act_destroy},
    {"event dies", act_event_dies}, {"limit", act_attribute},
};
enum { ACTS = sizeof acts / sizeof *acts };

struct other {
  CUresult (*f)(void);
  CUstreamCaptureMode mode;
  CUresult result;
  CUgraph graph;
};
static CUresult end_elsewhere(struct other *o) { return cuStreamEndCapture(s, &o->graph); }
static void *elsewhere(void *p) {
  struct other *o = p;
  CK(cuCtxSetCurrent(context));
  CUstreamCaptureMode mode = o->mode;
  CK(cuThreadExchangeStreamCaptureMode(&mode));
  o->result = o->f ? o->f() : end_elsewhere(o);
  return NULL;
}
static CUresult in_thread(struct other *o) {
  pthread_t t;
  CHECK(!pthread_create(&t, NULL, elsewhere, o), "no thread");
  pthread_join(t, NULL);
  return o->result;
}

static void shown(const char *what, CUresult r, CUgraph g) { printf("; %s %d %s", what, r, g ? "graph" : "none"); }

// A right capture: that it works, and what it computes.
static void again(const char *how, CUstream on, CUstreamCaptureMode mode) {
  CUgraph g = NULL;
  CUgraphExec x = NULL;
  size_t n = 0;
  CUresult begin = cuStreamBeginCapture(on, mode);
  printf("; %s: begin %d", how, begin);
  if (begin) return;
  CUdeviceptr p = 0;
  CUresult set = cuMemsetD32Async(d, 7, 4, on), alloc = cuMemAllocAsync(&p, N, on),
  within = alloc ? alloc : cuMemsetD32Async(p, 9, 4, on),
           copy = alloc ? alloc : cuMemcpyDtoDAsync(d + 4, p, 4, on), freed = alloc ? alloc : cuMemFreeAsync(p, on),
           end = cuStreamEndCapture(on, &g);
  printf(" %d %d %d %d %d end %d", set, alloc, within, copy, freed, end);
  if (!g) return;
  CK(cuGraphGetNodes(g, NULL, &n));
  CUresult made = cuGraphInstantiateWithFlags(&x, g, 0), ran = made ? made : cuGraphLaunch(x, on),
      waited = cuStreamSynchronize(on);
  unsigned two[2] = {0};
  printf(" %zu nodes, %d %d %d", n, made, ran, waited);
  if (!waited) {
    CUresult read = cuMemcpyDtoHAsync(two, d, 8, on), seen = cuStreamSynchronize(on);
    printf(" %d %d, %u %u", read, seen, two[0], two[1]);
  }
  if (x) CK(cuGraphExecDestroy(x));
  CK(cuGraphDestroy(g));
}

enum { HERE, THERE, THERE_RELAXED, BY_ANOTHER, UNENDED, WAYS };
static const char *const ways[] = {"", " in another thread", " in another, relaxed thread", ", ended by another",
                                   ", begun again"};

static void try(const struct act *a, CUstreamCaptureMode mode, int way) {
  CUgraph g = NULL;
  CUstreamCaptureStatus status = 99;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuMemsetD8(d, 0, N));
  CK(cuCtxSynchronize());
  CK(cuEventRecord(outside, beside));
  CK(cuEventRecord(timing, beside));
  printf("%s%s, mode %d%s", a->name, ways[way], mode, pending ? ", pending" : "");
  for (int i = 0; i < 200 && pending; i++) CK(launch(beside));
  CK(cuStreamBeginCapture(s, mode));
  CUresult first = launch(s), recorded = cuEventRecord(inside, s);
  struct other o = {
    a->f, way == THERE_RELAXED ? CU_STREAM_CAPTURE_MODE_RELAXED : CU_STREAM_CAPTURE_MODE_GLOBAL, 0, NULL
  };
  CUresult r = way == THERE || way == THERE_RELAXED ? in_thread(&o) : a->f();
  printf(": %d %d, %d", first, recorded, r);
  if (!s) { // is gone
    CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  } else {
    CUresult then = launch(s), is = cuStreamIsCapturing(s, &status);
    printf("; then %d, status %d %d", then, is, status);
    if (way == UNENDED) {
      CUstream fresh;
      CK(cuStreamCreate(&fresh, CU_STREAM_NON_BLOCKING));
      printf("; begun %d", cuStreamBeginCapture(s, mode));
      again("on another", fresh, mode);
      CK(cuStreamDestroy(fresh));
    }
    struct other e = {NULL, CU_STREAM_CAPTURE_MODE_GLOBAL, 0, NULL};
    CUresult end = way == BY_ANOTHER ? in_thread(&e) : CUDA_SUCCESS;
    if (way == BY_ANOTHER) shown("end there", end, e.graph);
    if (e.graph) CK(cuGraphDestroy(e.graph));
    end = cuStreamEndCapture(s, &g);
    shown("end", end, g);
    if (g) CK(cuGraphDestroy(g));
    is = cuStreamIsCapturing(s, &status);
    printf("; status %d %d", is, status);
  }
  CUresult plain = launch(s), legacy = launch(0), waited = cuCtxSynchronize();
  printf("; plain %d %d %d", plain, legacy, waited);
  again("again", s, mode);
  printf("; sync %d", cuCtxSynchronize());
  status = 99;
  CUresult is = cuStreamIsCapturing(beside, &status);
  printf("; beside %d %d, destroyed %d\n", is, status, cuStreamDestroy(s));
  if (status) { // it was left capturing
    CUresult ended = cuStreamEndCapture(beside, &g);
    printf("  beside: %d\n", ended);
    cuStreamDestroy(beside);
    CK(cuStreamCreate(&beside, CU_STREAM_NON_BLOCKING));
  }
}

static void prepare(int argc, char **argv) {
  start(argc, argv);
  CK(cuMemAlloc(&d, N));
  CK(cuMemAlloc(&kept, N));
  CK(cuStreamCreate(&beside, CU_STREAM_NON_BLOCKING));
  CK(cuEventCreate(&inside, CU_EVENT_DISABLE_TIMING));
  CK(cuEventCreate(&outside, CU_EVENT_DISABLE_TIMING));
  CK(cuEventCreate(&timing, 0));
  f = function(load("kernels.ptx"), "saxpy");
}

static void run(const struct act *a) {
  pending = 0;
  for (int way = 0; way < WAYS; way++)
    for (int mode = 0; mode < 3; mode++) try(a, (CUstreamCaptureMode)mode, way);
  pending = 1;
  for (int mode = 0; mode < 3; mode++) try(a, (CUstreamCaptureMode)mode, HERE);
}

// Memory that a capture allocates and does not free: it can be freed where a launch has allocated it, once.
static void unfreed(void) {
  CUdeviceptr p = 0;
  CUgraph g;
  CUgraphExec x;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CK(cuMemAllocAsync(&p, N, s));
  CK(cuMemsetD8Async(p, 1, N, s));
  CK(cuStreamEndCapture(s, &g));
  CUresult unlaunched = cuMemFreeAsync(p, beside), made = cuGraphInstantiateWithFlags(&x, g, 0),
      before = cuMemFreeAsync(p, beside), ran = cuGraphLaunch(x, s);
  CK(cuStreamSynchronize(s));
  CUresult used = cuMemsetD8Async(p, 2, N, beside), freed = cuMemFreeAsync(p, beside),
      twice = cuMemFreeAsync(p, beside);
  CK(cuCtxSynchronize());
  CUresult again = cuGraphLaunch(x, s);
  CK(cuStreamSynchronize(s));
  printf("unfreed: %d, %d, %d, %d; %d %d %d; %d", unlaunched, made, before, ran, used, freed, twice, again);
  CUresult last = cuMemFreeAsync(p, s), gone = cuGraphExecDestroy(x), too = cuGraphDestroy(g),
      late = cuMemFreeAsync(p, s);
  printf(" %d, %d %d, %d\n", last, gone, too, late);
  CK(cuCtxSynchronize());
  CK(cuStreamDestroy(s));
}

// A few acts have a process together: not every driver survives all of them.
int main(int argc, char **argv) {
  enum { TOGETHER = 3 };
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (int i = 0; i < ACTS; i += TOGETHER) {
    pid_t child = fork();
    if (child == 0) {
      alarm(20);
      prepare(argc, argv);
      for (int k = i; k < i + TOGETHER && k < ACTS; k++)
        if (argc <= 2 || !strcmp(argv[2], acts[k].name)) run(&acts[k]);
      if (!i && argc <= 2) unfreed();
      exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "fork: %s", strerror(errno));
    if (status)
      printf("\n%s…: %s %d\n", acts[i].name, WIFSIGNALED(status) ? "signal" : "exit",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  }
  return 0;
}
