// What a kernel that does wrong answers: which code, which call reports it, and what every call says afterwards. The
// failure of a context is for good, so each case is a process of its own.
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev); // newer headers have other forms only

#define HEAD \
  ".version 7.0\n.target sm_70\n.address_size 64\n" \
  ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n" \
  ".global .align 1 .b8 text[6] = {120, 32, 60, 32, 49, 0};\n.global .align 4 .u32 sink;\n.global .align 8 .u64 " \
  "unknown;\n" \
  ".visible .entry kernel(.param .u64 p) {\n.reg .u64 %a<4>;\n.reg .u32 %r<9>;\n.reg .pred %q<2>;\nld.param.u64 " \
  "%a0, [p];\ncvt.u32.u64 %r0, %a0;\n"
static const struct {
  const char *name, *body;
} kernels[] = {
  {"nothing", ""},
  {"write", "st.volatile.global.u32 [%a0], 1;"},
  {"write_late",
   "mov.u64 %a1, %globaltimer; wait: mov.u64 %a2, %globaltimer; sub.u64 %a2, %a2, %a1; "
   "setp.lt.u64 %q0, %a2, 50000000; @%q0 bra wait; st.volatile.global.u32 [%a0], 1;"},
  {"read", "ld.volatile.global.u32 %r1, [%a0]; st.global.u32 [sink], %r1;"},
  {"write_generic", "st.volatile.u32 [%a0], 1;"},
  {"read_vector", "ld.volatile.global.v4.u32 {%r1, %r2, %r3, %r4}, [%a0]; st.global.u32 [sink], %r1;"},
  {"atomic", "atom.global.add.u32 %r1, [%a0], 1; st.global.u32 [sink], %r1;"},
  {"last_thread", "mov.u32 %r1, %tid.x; setp.ne.u32 %q0, %r1, 63; @%q0 ret; st.volatile.global.u32 [%a0], 1;"},
  {"shared",
   ".shared .align 16 .b8 mine[64]; mov.u32 %r2, mine; add.u32 %r2, %r2, %r0; ld.volatile.shared.u32 %r1, [%r2]; "
   "st.global.u32 [sink], %r1;"},
  {"write_shared",
   ".shared .align 16 .b8 mine[64]; mov.u32 %r2, mine; add.u32 %r2, %r2, %r0; st.volatile.shared.u32 [%r2], %r0;"},
  {"local",
   ".local .align 16 .b8 mine[64]; mov.u64 %a1, mine; add.u64 %a1, %a1, %a0; st.local.u32 [%a1], %r0; "
   "ld.local.u32 %r1, [%a1]; st.global.u32 [sink], %r1;"},
  {"atomic_local",
   ".local .align 16 .b8 mine[64]; st.local.u32 [mine], %r0; mov.u64 %a1, mine; cvta.local.u64 %a1, %a1; "
   "add.u64 %a1, %a1, %a0; atom.add.u32 %r1, [%a1], 1; st.global.u32 [sink], %r1;"},
  {"stop", "trap;"},
  {"wrong",
   "{ .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e; mov.u64 %a1, text; cvta.global.u64 "
   "%a1, %a1;\n" "st.param.b64 [a], %a1; st.param.b64 [b], %a1; st.param.b32 [c], 7; st.param.b64 [d], %a1; "
       "st.param.b64 [e], 1; call __assertfail, (a, b, c, d, e); }"},
};

static CUmodule module(const char *name) {
  static char text[4096], log[4096];
  for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
    if (strcmp(kernels[i].name, name)) continue;
    snprintf(text, sizeof text, "%s%s\nret;\n}\n", HEAD, kernels[i].body);
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    CUmodule m;
    int r = cuModuleLoadDataEx(&m, text, 2, options, ARGS(log, (void *)sizeof log));
    if (r) FAIL("%s: %d\n%s", name, r, log);
    return m;
  }
  FAIL("%s: no such kernel", name);
}

static CUfunction f(const char *name) { return function(module(name), "kernel"); }

struct fault {
  const char *kernel;
  long offset; // of the parameter from memory of 4096 bytes, where near; else the parameter
  int near;
} faults[] = {
  {"write", 0, 0}, {"write", 0x7f0000000000, 0}, {"write", -8, 0}, {"read", 0, 0}, {"read", 0x1000, 0},
  {"write_generic", 0, 0}, {"atomic", 0, 0}, {"last_thread", 0, 0},
  {"write", 1, 1}, {"write", 2, 1}, {"read", 3, 1}, {"read_vector", 8, 1}, {"read_vector", 16, 1}, {"atomic", 1, 1},
  {"write_generic", 2, 1},
  {"shared", 60, 0}, {"shared", 0x1000000, 0}, {"shared", 2, 0}, {"write_shared", 0x1000000, 0}, {"write_shared", 1, 0},
  {"local", 60, 0}, {"local", 2, 0}, {"local", 0x1000000, 0}, {"atomic_local", 0, 0},
  {"stop", 0, 0}, {"wrong", 0, 0},
};

static CUdeviceptr memory;
static CUstream stream;
static CUevent timed, before, after;

static void begin(void) {
  CK(cuMemAlloc(&memory, 4096));
  CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CK(cuEventCreate(&timed, 0));
  CK(cuEventCreate(&before, 0));
  CK(cuEventCreate(&after, 0));
  CK(cuEventRecord(before, stream));
}

static void one(int i) {
  struct fault *c = &faults[i];
  begin();
  CUdeviceptr p = c->near ? memory + c->offset : (CUdeviceptr)c->offset;
  printf("%s %s%ld:", c->kernel, c->near ? "+" : "", c->offset);
  CUfunction k = f(c->kernel);
  printf(" launch %d", LAUNCH(k, 2, 64, 0, stream, &p));
  printf(" synchronize %d", cuStreamSynchronize(stream));
  printf(" again %d", cuStreamSynchronize(stream));
  printf(" alloc %d\n", cuMemAlloc(&memory, 16));
}

// The call that is the first to wait for the fault, or to look for it.
static void reporter(int i) {
  int v[16];
  void *pinned;
  float ms;
  CUdeviceptr bad = 0, d, none = 0;
  begin();
  CUfunction k = f("write_late"), fine = f("nothing");
  CK(cuMemAlloc(&d, 64));
  CK(cuMemHostAlloc(&pinned, 64, 0));
  CK(cuStreamSynchronize(stream));
  CK(LAUNCH(k, 1, 1, 0, stream, &bad));
  CK(cuEventRecord(after, stream));
  int r = CUDA_ERROR_NOT_READY;
  switch (i) {
  case 0: r = cuStreamSynchronize(stream); break;
  case 1: r = cuCtxSynchronize(); break;
  case 2: r = cuEventSynchronize(after); break;
  case 3: while (r == CUDA_ERROR_NOT_READY) r = cuStreamQuery(stream); break;
  case 4: while (r == CUDA_ERROR_NOT_READY) r = cuEventQuery(after); break;
  case 5: CK(cuMemcpyDtoHAsync(pinned, d, 64, stream)); r = cuStreamSynchronize(stream); break;
  // the legacy stream does not wait for this one
  case 6: r = cuMemcpyDtoH(v, d, 64); if (!r) r = cuCtxSynchronize(); break;
  case 7: r = cuStreamSynchronize(NULL); if (!r) r = cuCtxSynchronize(); break;
  case 8: CK(cuStreamWaitEvent(NULL, after, 0)); r = cuMemcpyDtoH(v, d, 64); break;
  case 9: CK(cuStreamWaitEvent(NULL, after, 0)); CK(LAUNCH(fine, 1, 1, 0, NULL, &none)); r = cuStreamSynchronize(NULL);
      break;
  case 10: r = cuMemFree(d); break;
  case 11: CK(cuMemFreeAsync(d, stream)); r = cuStreamSynchronize(stream); break;
  case 12: CK(cuStreamDestroy(stream)); r = cuCtxSynchronize(); break;
  case 13: while ((r = cuEventElapsedTime(&ms, before, after)) == CUDA_ERROR_NOT_READY) {} break;
  case 14: CK(cuEventSynchronize(before)); r = cuCtxSynchronize(); break;
  }
  printf("reporter %d: %d, then %d\n", i, r, cuCtxSynchronize());
}
enum { REPORTERS = 15 };

#define TELL(call) printf("after the fault: %s = %d\n", #call, (int)(call))
// A program goes on after a fault: what each call says then.
static void sticky(int kind) {
  CUdeviceptr bad = 0, d, d2;
  CUmodule m, m2;
  CUfunction k2;
  CUcontext c, c2;
  CUstream s2;
  CUevent e2;
  CUgraph g;
  CUdevice dev;
  CUmemorytype type;
  size_t n, total;
  unsigned flags;
  int v, active;
  float ms;
  void *pinned, *h;
  begin();
  if (kind == 1) CK(cuCtxCreate_v2(&c, 0, 0));
  m = module("nothing");
  CUfunction k = f("write"), fine = function(m, "kernel");
  CK(cuMemAlloc(&d, 64));
  CK(cuMemHostAlloc(&pinned, 64, 0));
  CK(LAUNCH(k, 1, 1, 0, NULL, &bad));
  TELL(cuCtxSynchronize());
  if (kind == 1) {
    printf("the other context:\n");
    CK(cuCtxSetCurrent(context));
    TELL(cuMemcpyHtoD(memory, &v, 4));
    TELL(cuStreamSynchronize(stream));
    TELL(cuCtxSynchronize());
    TELL(cuCtxDestroy(c));
    TELL(cuMemcpyHtoD(memory, &v, 4));
    return;
  }
  if (kind == 2) {
    TELL(cuDevicePrimaryCtxReset(0));
    TELL(cuMemAlloc(&d, 64));
    TELL(cuDevicePrimaryCtxRetain(&c2, 0));
    TELL(cuCtxSetCurrent(c2));
    TELL(cuMemAlloc(&d, 64));
    TELL(cuMemcpyHtoD(d, &v, 4));
    TELL(cuCtxSynchronize());
    return;
  }
  TELL(cuMemAlloc(&d2, 64));
  TELL(cuMemHostAlloc(&h, 64, 0));
  TELL(cuMemGetInfo(&n, &total));
  TELL(cuMemcpyHtoD(d, &v, 4));
  TELL(cuMemcpyDtoH(&v, d, 4));
  TELL(cuMemcpyDtoDAsync(d, d, 4, stream));
  TELL(cuMemsetD8(d, 0, 4));
  TELL(LAUNCH(fine, 1, 1, 0, stream, &d));
  TELL(cuLaunchHostFunc(stream, (CUhostFn)begin, NULL));
  TELL(cuStreamCreate(&s2, 0));
  TELL(cuStreamQuery(stream));
  TELL(cuStreamSynchronize(stream));
  TELL(cuStreamWaitEvent(stream, before, 0));
  TELL(cuStreamGetFlags(stream, &flags));
  TELL(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  TELL(cuEventCreate(&e2, 0));
  TELL(cuEventRecord(after, stream));
  TELL(cuEventQuery(before));
  TELL(cuEventSynchronize(before));
  TELL(cuEventElapsedTime(&ms, before, before));
  TELL(cuModuleLoadData(&m2, HEAD "ret; }"));
  TELL(cuModuleGetFunction(&k2, m, "kernel"));
  TELL(cuModuleGetGlobal(&d2, &n, m, "sink"));
  TELL(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_NUM_REGS, fine));
  TELL(cuFuncSetAttribute(fine, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024));
  TELL(cuOccupancyMaxActiveBlocksPerMultiprocessor(&v, fine, 32, 0));
  TELL(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, d));
  TELL(cuGraphCreate(&g, 0));
  TELL(cuCtxGetCurrent(&c2));
  TELL(cuCtxGetDevice(&dev));
  TELL(cuCtxGetLimit(&n, CU_LIMIT_STACK_SIZE));
  TELL(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048));
  TELL(cuCtxGetStreamPriorityRange(&v, &active));
  TELL(cuCtxSetCurrent(context));
  TELL(cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
  TELL(cuDevicePrimaryCtxGetState(0, &flags, &active));
  TELL(cuDevicePrimaryCtxRetain(&c2, 0));
  TELL(cuEventDestroy(before));
  TELL(cuStreamDestroy(stream));
  TELL(cuModuleUnload(m));
  TELL(cuMemFreeHost(pinned));
  TELL(cuMemFree(d));
  TELL(cuCtxSynchronize());
  TELL(cuDevicePrimaryCtxRelease(0));
}

enum { AT_ONCE = 8 };
static struct { pid_t pid; FILE *out; const char *kind; int i; } running[AT_ONCE];
static int begun, ended;

// Waits for the child that began first and prints what it printed.
static void end_first(void) {
  char text[4096];
  int slot = ended++ % AT_ONCE, status;
  size_t n;
  waitpid(running[slot].pid, &status, 0);
  rewind(running[slot].out);
  while ((n = fread(text, 1, sizeof text, running[slot].out))) fwrite(text, 1, n, stdout);
  fclose(running[slot].out);
  if (status) printf("%s %d: status %#x\n", running[slot].kind, running[slot].i, status);
}

static void child(char *const self, const char *kind, int i) {
  char number[16];
  snprintf(number, sizeof number, "%d", i);
  if (begun - ended == AT_ONCE) end_first();
  int slot = begun++ % AT_ONCE;
  FILE *out = tmpfile();
  if (!out) FAIL("no temporary file");
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    dup2(fileno(out), 1);
    execl("/proc/self/exe", self, kernels_folder, kind, number, (char *)NULL);
    _exit(127);
  }
  running[slot].pid = pid;
  running[slot].out = out;
  running[slot].kind = kind;
  running[slot].i = i;
}

int main(int argc, char **argv) {
  if (argc > 1) kernels_folder = argv[1];
  if (argc < 4) {
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) child(argv[0], "one", i);
    for (int i = 0; i < REPORTERS; i++) child(argv[0], "reporter", i);
    for (int i = 0; i < 3; i++) child(argv[0], "sticky", i);
    while (ended < begun) end_first();
    return 0;
  }
  start(argc, argv);
  int i = atoi(argv[3]);
  if (!strcmp(argv[2], "one")) one(i);
  if (!strcmp(argv[2], "reporter")) reporter(i);
  if (!strcmp(argv[2], "sticky")) sticky(i);
  fflush(stdout);
  _exit(0); // without the driver's own end, which may take long or complain
}
