// Work of the GPU that waits for something from the program (the source of an upload that an earlier download has yet
// to fill, a host function behind a download), and meanwhile a call that the driver may hold up until the context's
// work is over. Both must come to their ends, with the right bytes.
//
//     holdup FOLDER [CASE...]
#include "check.h"
#include <stdatomic.h>

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev); // newer headers have other forms only

enum { MANY = 3000, MS = 20 };
static CUfunction spin, nop;
static CUstream s, other;
static CUdeviceptr from, to, big;
static volatile unsigned *pinned; // where the download goes
static unsigned value, heard;
static int fresh;                // kernels that were made so far

// PTX of a kernel for which nothing has been loaded yet; one with local memory needs more of it than there has been.
static const char *fresh_text(int local) {
  static char text[1024];
  snprintf(text, sizeof text, ".version 7.0\n.target sm_80\n.address_size 64\n.visible .global .u32 g%d;\n"
    ".visible .entry fresh(.param .u64 p)\n{ .local .b8 big[%d]; .reg .u64 %%a<4>; .reg .u32 %%r<3>; "
    "ld.param.u64 %%a1,[p]; mov.u64 %%a2,big; cvt.u32.u64 %%r1,%%a1; and.b32 %%r1,%%r1,%d;\n"
    "cvt.u64.u32 %%a3,%%r1; add.u64 %%a2,%%a2,%%a3; mov.u32 %%r2,%d; st.local.u32 [%%a2],%%r2; "
    "ld.local.u32 %%r2,[%%a2]; st.global.u32 [%%a1+2048],%%r2; ret; }\n",
    fresh, local ? local : 64, local ? (local - 1) & ~3 : 60, fresh);
  fresh++;
  return text;
}

static CUmodule fresh_module(void) {
  CUmodule m;
  CK(cuModuleLoadData(&m, fresh_text(0)));
  return m;
}

static struct {
  CUmodule m;
  CUfunction f;
  CUdeviceptr d;
  CUgraph g;
  CUgraphExec x;
  CUarray array;
  CUstream stream;
  void *host;
} c; // of the case

static void launch(CUfunction f, CUstream on) { CK(LAUNCH(f, 1, 1, 0, on, &to)); }
static void nothing(void) {}
static void make_function(void) { c.f = function(c.m = fresh_module(), "fresh"); }
static void make_used(void) {
  make_function();
  launch(c.f, other);
  CK(cuStreamSynchronize(other));
}
static void make_kernel(void) { // its code comes to the GPU with the first launch
  CUlibrary l;
  CUkernel k;
  CK(cuLibraryLoadData(&l, fresh_text(0), NULL, NULL, 0, NULL, NULL, 0));
  CK(cuLibraryGetKernel(&k, l, "fresh"));
  c.f = (CUfunction)k;
}
static void make_local(void) {
  static int bytes = 2 << 10;
  CK(cuModuleLoadData(&c.m, fresh_text(bytes += 2 << 10)));
  c.f = function(c.m, "fresh");
}
static void first_launch(void) { launch(c.f, s); }
static void first_elsewhere(void) { launch(c.f, other); }
static void load_module(void) { c.m = fresh_module(); }
static void unload(void) { CK(cuModuleUnload(c.m)); }
static void make_module(void) { c.m = fresh_module(); }
static void get_function(void) { c.f = function(c.m, "fresh"); }
static void alloc(void) { CK(cuMemAlloc(&c.d, 1 << 20)); }
static void release(void) { CK(cuMemFree(c.d)); }
static void host_alloc(void) { CK(cuMemHostAlloc(&c.host, 1 << 20, 0)); }
static void host_free(void) { CK(cuMemFreeHost(c.host)); }
static void make_registered(void) {
  c.host = aligned_alloc(4096, 1 << 20);
  CK(cuMemHostRegister(c.host, 1 << 20, 0));
}
static void host_unregister(void) { CK(cuMemHostUnregister(c.host)); }
static void pageable(void) {
  static char text[64 << 10];
  for (int i = 0; i < 100; i++) CK(cuMemcpyHtoDAsync(big, text, sizeof text, s));
}
static void limit(void) {
  size_t n;
  CK(cuCtxGetLimit(&n, CU_LIMIT_STACK_SIZE));
  CK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, n + 1024));
}
static void many(void) { for (int i = 0; i < MANY; i++) CK(cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL)); }
static void many_copies(void) { for (int i = 0; i < MANY; i++) CK(cuMemcpyDtoDAsync(to + 8, from, 4, s)); }
static void many_elsewhere(void) {
  CUevent e;
  CK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  CK(cuEventRecord(e, s));
  CK(cuStreamWaitEvent(other, e, 0));
  CK(cuEventDestroy(e));
  for (int i = 0; i < MANY; i++) CK(cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, other, NULL, NULL));
}
static void make_graph(void) {
  CUgraphNode node;
  make_function();
  void *args[] = {&to};
  CUDA_KERNEL_NODE_PARAMS p = {.func = c.f, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1,
                               .blockDimZ = 1, .kernelParams = args};
  CK(cuGraphCreate(&c.g, 0));
  CK(cuGraphAddKernelNode(&node, c.g, NULL, 0, &p));
}
static void instantiate(void) { CK(cuGraphInstantiateWithFlags(&c.x, c.g, 0)); }
static void make_exec(void) {
  make_graph();
  instantiate(); }
static void launch_graph(void) { CK(cuGraphLaunch(c.x, other)); }
static void make_array(void) {
  CUDA_ARRAY_DESCRIPTOR d = {64, 64, CU_AD_FORMAT_FLOAT, 1};
  CK(cuArrayCreate(&c.array, &d));
}
static void drop_array(void) { CK(cuArrayDestroy(c.array)); }
static void make_stream(void) { CK(cuStreamCreate(&c.stream, CU_STREAM_NON_BLOCKING)); }
static void drop_stream(void) { CK(cuStreamDestroy(c.stream)); }
static void sync_memset(void) { CK(cuMemsetD8(to + 64, 1, 64)); }
static void sync_upload(void) { unsigned v = 1; CK(cuMemcpyHtoD(to + 128, &v, 4)); }
static void context_create(void) {
  CUcontext x;
  CUdevice d;
  CK(cuCtxGetDevice(&d));
  CK(cuCtxCreate_v2(&x, 0, d));
  CK(cuCtxDestroy(x));
  CK(cuCtxSetCurrent(context));
}

static const struct { const char *name; void (*prepare)(void), (*call)(void); } cases[] = {
  {"first launch", make_kernel, first_launch}, {"first launch elsewhere", make_kernel, first_elsewhere},
  {"more local memory", make_local, first_elsewhere}, {"get function", make_module, get_function},
  {"load module", nothing, load_module}, {"unload module", make_used, unload}, {"allocate", nothing, alloc},
  {"free", alloc, release},
  {"allocate host memory", nothing, host_alloc}, {"free host memory", host_alloc, host_free},
  {"unregister", make_registered, host_unregister}, {"pageable uploads", nothing, pageable}, {"limit", nothing, limit},
  {"many launches", nothing, many},
  {"many copies", nothing, many_copies}, {"many launches elsewhere", nothing, many_elsewhere},
  {"instantiate", make_graph, instantiate},
  {"launch graph", make_exec, launch_graph}, {"create array", nothing, make_array},
  {"destroy array", make_array, drop_array},
  {"create stream", nothing, make_stream}, {"destroy stream", make_stream, drop_stream},
  {"memset", nothing, sync_memset}, {"upload", nothing, sync_upload},
  {"context", nothing, context_create},
};

static void CUDA_CB hears(void *user) {
  (void)user;
  heard = *pinned;
}
static void CUDA_CB called(CUstream stream, CUresult r, void *user) {
  (void)stream, (void)user;
  heard = r == CUDA_SUCCESS ? *pinned : 0;
}

// What the program is asked for, and how it is seen that it came in time.
static void upload(void) { CK(cuMemcpyHtoDAsync(to, (void *)pinned, 4, s)); }
static void host_function(void) { CK(cuLaunchHostFunc(s, hears, NULL)); }
static void callback(void) { CK(cuStreamAddCallback(s, called, NULL, 0)); }
static void upload_elsewhere(void) { // of a stream that waits for the download
  CUevent e;
  CK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  CK(cuEventRecord(e, s));
  CK(cuStreamWaitEvent(other, e, 0));
  CK(cuEventDestroy(e));
  CK(cuMemcpyHtoDAsync(to, (void *)pinned, 4, other));
}
static CUgraphExec hearing, uploading; // made before the downloads that they are launched behind
static void hear_in_graph(void) { CK(cuGraphLaunch(hearing, s)); }
static void upload_in_graph(void) { CK(cuGraphLaunch(uploading, s)); }
static void make_graphs(void) {
  CUgraph g;
  CUgraphNode node;
  CUDA_HOST_NODE_PARAMS p = {hears, NULL};
  CK(cuGraphCreate(&g, 0));
  CK(cuGraphAddHostNode(&node, g, NULL, 0, &p));
  CK(cuGraphInstantiateWithFlags(&hearing, g, 0));
  CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  upload();
  CK(cuStreamEndCapture(s, &g));
  CK(cuGraphInstantiateWithFlags(&uploading, g, 0));
}
static const struct { const char *name; void (*ask)(void); int uploads; } asks[] = {
  {"upload", upload, 1}, {"host function", host_function, 0}, {"callback", callback, 0},
  {"upload elsewhere", upload_elsewhere, 1},
  {"host node", hear_in_graph, 0}, {"upload in a graph", upload_in_graph, 1},
};

static void run(int call, int ask) {
  unsigned long long ns = MS * 1000000ull;
  memset(&c, 0, sizeof c);
  cases[call].prepare();
  CK(cuCtxSynchronize());
  value += 0x1001;
  heard = 0;
  *pinned = 1;
  CK(cuMemcpyHtoD(from, &value, 4));
  CK(cuMemsetD8(to, 0, 4096));
  CK(cuCtxSynchronize());
  CK(LAUNCH(spin, 1, 1, 0, s, &ns));
  CK(cuMemcpyDtoHAsync((void *)pinned, from, 4, s));
  asks[ask].ask();
  // before anything else writes there
  if (asks[ask].uploads) CK(cuMemcpyDtoDAsync(to + 16, to, 4, asks[ask].ask == upload_elsewhere ? other : s));
  cases[call].call();
  CK(cuStreamSynchronize(s));
  CK(cuStreamSynchronize(other));
  if (asks[ask].uploads) CK(cuMemcpyDtoH(&heard, to + 16, 4));
  CHECK(heard == value && *pinned == value, "%s, %s: %x was taken, %x is there, want %x", cases[call].name,
        asks[ask].name, heard, *pinned, value);
  if (c.x) CK(cuGraphExecDestroy(c.x));
  if (c.g) CK(cuGraphDestroy(c.g));
}

int main(int argc, char **argv) {
  start(argc, argv);
  CUmodule m;
  CK(cuModuleLoadData(&m,
                      ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry spin(.param .u64 ns)\n"
                      "{ .reg .u64 %a<5>; .reg .pred %p;\n"
    "ld.param.u64 %a1,[ns]; mov.u64 %a2,%globaltimer;\nL: mov.u64 %a3,%globaltimer; sub.u64 %a4,%a3,%a2; "
    "setp.lt.u64 %p,%a4,%a1; @%p bra L; ret; }\n"
    ".visible .entry nop() { ret; }\n"));
  spin = function(m, "spin"), nop = function(m, "nop");
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CK(cuMemAlloc(&from, 4096));
  CK(cuMemAlloc(&to, 4096));
  CK(cuMemAlloc(&big, 64 << 10));
  CK(cuMemHostAlloc((void **)&pinned, 4096, 0));
  make_graphs();
  unsigned long long ns = 1000;
  CK(LAUNCH(spin, 1, 1, 0, s, &ns));
  CK(cuLaunchKernel(nop, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
  CK(cuCtxSynchronize());
  for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
    int wanted = argc < 3;
    for (int k = 2; k < argc; k++) wanted |= !strcmp(argv[k], cases[i].name);
    for (int a = 0; wanted && a < (int)(sizeof asks / sizeof *asks); a++) run(i, a);
    if (wanted) printf("%s\n", cases[i].name);
  }
  return 0;
}
