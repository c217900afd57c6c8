/* One case a process: cases NAME. Every case ends with "NAME ok" on stdout. */
#include "cases.h"

struct recorder *rec;
CUcontext ctx;

void init(void) {
  CK(cuInit(0));
  void *core = dlopen(getenv("SCUDA_CORE"), RTLD_NOW | RTLD_NOLOAD);
  rec = core ? dlsym(core, "recorder") : NULL;
  if (!rec) FAIL("no recorder");
}

void start(void) {
  init();
  CK(cuDevicePrimaryCtxRetain(&ctx, 0));
  CK(cuCtxSetCurrent(ctx));
}

const struct command *last(int op) {
  rec->drain();
  if (!rec->count) FAIL("no command");
  const struct command *c = rec->commands[rec->count - 1];
  if (c->op != op) FAIL("command %#x, want %#x", c->op, op);
  return c;
}
uint32_t sent(void) { rec->drain(); return rec->count; }

/* A server that knows a module with one function of three parameters, an allocation, and handles. */
int32_t server(const struct command *c, void *reply, uint32_t cap, uint32_t *len) {
  if (c->op == OP_GET_FUNCTION) {
    const struct wire_get_function *q = (const void *)c->payload;
    const char *name = (const char *)(q + 1);
    if (q->kind != 2 && strcmp(name, "kernel") && strcmp(name, "other") && strcmp(name, "shaped")) return 500;
    struct { struct wire_func_info info; uint32_t params[6]; } r =
        {{.param_count = 3, .param_bytes = 24}, {0, 8, 8, 4, 16, 8}};
    for (int i = 0; i < 16; i++) r.info.attributes[i] = INT32_MIN;
    r.info.attributes[0] = 512;
    r.info.attributes[1] = 1024;
    r.info.attributes[8] = 49152;
    if (!strcmp(name, "shaped")) r.info.block[0] = 2, r.info.block[1] = r.info.block[2] = 1;
    memcpy(reply, &r, *len = sizeof r);
    return 0;
  }
  if (c->op == OP_LAUNCH && cap) {
    struct wire_launch_made r = {0xdef1ce};
    memcpy(reply, &r, *len = sizeof r);
    return rec->result;
  }
  if (c->op == OP_FUNCTION_NAMES) {
    struct { struct wire_name_list list; char names[16]; } r = {{2, 2}, "kernel\0other"};
    memcpy(reply, &r, *len = sizeof r);
    return 0;
  }
  if (c->op == OP_GET_GLOBAL) {
    struct wire_global_info r = {0x700000, 64, 0};
    memcpy(reply, &r, *len = sizeof r);
    return 0;
  }
  if (c->op == OP_HOST_MAP) {
    struct wire_global_info r = {word(c, 0), word(c, 1), 0};
    memcpy(reply, &r, *len = sizeof r);
    return 0;
  }
  if (c->op == OP_POINTER_ATTRIBUTES) {
    struct { struct wire_pointer_values head; int32_t result; uint32_t bytes; uint8_t value[64]; } r =
        {.head = {1, 0}, .bytes = 8, .value = {2}};
    memcpy(reply, &r, *len = sizeof r);
    return 0;
  }
  static uint64_t next = 0x100000;
  if (c->op == OP_cuMemAlloc_v2) {
    uint64_t r[2] = {1, next};
    next += (word(c, 1) + 511) / 512 * 512;
    memcpy(reply, r, *len = 16);
    return 0;
  }
  if (c->op == OP_cuOccupancyMaxActiveBlocksPerMultiprocessor ||
      c->op == OP_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags ||
      c->op == OP_cuStreamIsCapturing || c->op == OP_cuKernelGetAttribute || c->op == OP_cuFuncGetAttribute) {
    uint64_t r[2] = {1, 1};
    memcpy(reply, r, *len = 16);
    return 0;
  }
  if (c->op == OP_OCCUPANCY_CLUSTERS) {
    int32_t r[2] = {5, 0};
    memcpy(reply, r, *len = 8);
    return 0;
  }
  if (c->op == OP_cuStreamEndCapture || c->op == OP_cuLibraryGetModule) {
    uint64_t r[2] = {1, rec->shared->server_base + 64 * 5};
    memcpy(reply, r, *len = 16);
    return 0;
  }
  if (c->op == OP_MODULE_LOAD) {
    struct { struct wire_load_info info; char text[16]; } r = {{5, 6}, "hello" "sorry!"};
    memcpy(reply, &r, *len = sizeof r < cap ? sizeof r : cap);
    return rec->result;
  }
  return rec->result;
}

CUfunction kernel(void) {
  CUmodule m;
  CUfunction f;
  rec->answer = server;
  CK(cuModuleLoadData(&m, "good"));
  CK(cuModuleGetFunction(&f, m, "kernel"));
  return f;
}

CUdeviceptr alloc(size_t n) {
  CUdeviceptr p;
  rec->answer = server;
  CK(cuMemAlloc(&p, n));
  return p;
}

/* ---- commands ---- */

static void blocking(void) {
  start();
  CUfunction f = kernel();
  CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL));
  last(OP_cuStreamSynchronize);
  CK(cuEventRecord((CUevent)({ CUevent e; CK(cuEventCreate(&e, 0)); e; }), 0));
  WANT(last(OP_cuEventRecord)->flags, ANSWER);
}

static void async(void) {
  start();
  CUstream s;
  CUevent e;
  uint32_t calls = rec->calls;
  CK(cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, -3));
  const struct command *c = last(OP_cuStreamCreateWithPriority);
  WANT(word(c, 0), (uintptr_t)s);
  WANT(word(c, 1), CU_STREAM_NON_BLOCKING);
  WANT((int64_t)word(c, 2), -3);
  CK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  CK(cuEventRecord(e, s));
  c = last(OP_cuEventRecord);
  WANT(word(c, 0), (uintptr_t)e);
  WANT(word(c, 1), (uintptr_t)s);
  CK(cuStreamWaitEvent(CU_STREAM_PER_THREAD, e, 0));
  WANT(word(last(OP_cuStreamWaitEvent), 0), 2);
  CK(cuEventDestroy(e));
  CK(cuStreamDestroy(s));
  WANT(rec->calls, calls);
  WANT(cuEventRecord(e, 0), 400);
  WANT(cuStreamDestroy(s), 400);
  WANT(cuStreamDestroy(0), 400);
  rec->result = 1;
  WANT(cuEventCreate(&e, 0x1000), 1);            /* flags that only the driver can judge */
  WANT(last(OP_cuEventCreate)->flags, ANSWER);
}

static int ring_done;
static void *ring_thread(void *arg) {
  CUevent e;
  CK(cuCtxSetCurrent(ctx));
  CK(cuEventCreate(&e, 0));
  for (int i = 0; i < 6000; i++) CK(cuEventRecord(e, 0));
  return arg;
}
static void *drainer(void *arg) {
  while (!__atomic_load_n(&ring_done, __ATOMIC_SEQ_CST)) rec->drain();
  return arg;
}

/* Four threads fill the ring several times over while another one empties it; nothing is lost, and each thread's
   commands keep their order. */
static void ring(void) {
  start();
  CUdeviceptr d = alloc(1 << 20);
  static uint8_t data[60000];
  pthread_t t[5];
  pthread_create(&t[4], NULL, drainer, NULL);
  for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, ring_thread, NULL);
  for (int i = 0; i < 300; i++) CK(cuMemcpyHtoD(d, data, sizeof data)); /* 18 MB through a ring of 4 */
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
  __atomic_store_n(&ring_done, 1, __ATOMIC_SEQ_CST);
  pthread_join(t[4], NULL);
  uint32_t records = 0, copies = 0;
  sent();
  for (uint32_t i = 0; i < rec->count; i++) {
    records += rec->commands[i]->op == OP_cuEventRecord;
    copies += rec->commands[i]->op == OP_COPY_H2D;
  }
  WANT(records, 24000);
  WANT(copies, 300);
}

static void attributes(void) {
  start();
  int v;
  uint32_t n = sent();
  CK(cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
  WANT(v, 32);
  static const int absent[] = {
      CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
      CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED};
  for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
    CK(cuDeviceGetAttribute(&v, absent[i], 0));
    WANT(v, 0);
  }
  WANT(cuDeviceGetAttribute(&v, 200, 0), 1);
  WANT(cuDeviceGetAttribute(&v, 256, 0), 1);
  WANT(cuDeviceGetAttribute(&v, 10, 3), 101);
  char name[9];
  CK(cuDeviceGetName(name, sizeof name, 1));
  WANT(strcmp(name, "recorder"), 0);             /* cut to the buffer */
  CUdevice d;
  CK(cuDeviceGetByPCIBusId(&d, "0000:1d:00.0"));
  WANT(d, 2);
  WANT(sent(), n);
}

/* 2,GPU-00010203,9,1: the list ends at the first entry that names no device. */
static void visible(void) {
  init();
  int n, v;
  CK(cuDeviceGetCount(&n));
  WANT(n, 2);
  CK(cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  WANT(v, 102);
  CK(cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1));
  WANT(v, 100);
  CK(cuDevicePrimaryCtxRetain(&ctx, 0));         /* the server has its own numbers */
  WANT(((const struct wire_primary *)last(OP_PRIMARY)->payload)->device, 2);
  CK(cuCtxSetCurrent(ctx));
  rec->result = 101;
  WANT(cuDeviceCanAccessPeer(&v, 0, 1), 101);
  WANT(word(last(OP_cuDeviceCanAccessPeer), 1), 2);
  WANT(word(last(OP_cuDeviceCanAccessPeer), 2), 0);
  WANT(cuDeviceCanAccessPeer(&v, 0, 2), 101);
}
static void visible_none(void) { WANT(cuInit(0), 100); }
static void visible_twice(void) { WANT(cuInit(0), 100); }

/* ---- failures ---- */

static void sticky(void) {
  start();
  CUfunction f = kernel();
  launch_shaped();
  rec->result = 700;
  WANT(cuCtxSynchronize(), 700);
  uint32_t n = sent();
  WANT(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL), 700);
  WANT(sent(), n + 1);                           /* the driver itself says what still works */
  WANT(last(OP_LAUNCH)->flags & ANSWER, ANSWER);
  WANT(cuEventRecord((CUevent)f, 0), 400);
  void *p;
  size_t limit;
  int32_t least, greatest;
  WANT(cuMemHostAlloc(&p, 64, 0), 700);
  WANT(cuCtxGetStreamPriorityRange(&least, &greatest), 700);
  WANT(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE), 700);
  rec->result = 0;
  CK(cuDevicePrimaryCtxReset(0));
  CK(cuDevicePrimaryCtxRetain(&ctx, 0));
  CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL));
}

static void lost(void) {
  start();
  CUfunction f = kernel();
  CUdevice d;
  rec->shared->lost = 46;
  WANT(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL), 46);
  WANT(cuCtxSynchronize(), 46);
  CK(cuCtxGetDevice(&d));                        /* what needs no server goes on */
}

static uint32_t ordinal;
static void *short_thread(void *arg) {
  CK(cuCtxSetCurrent(ctx));
  CK(cuMemsetD8Async(0x1000, 0, 1, CU_STREAM_PER_THREAD));
  ordinal = last(OP_cuMemsetD8Async)->thread;
  return arg;
}

static void threads(void) {
  start();
  uint32_t first = 0;
  for (int i = 0; i < 200; i++) {
    pthread_t t;
    pthread_create(&t, NULL, short_thread, NULL);
    pthread_join(t, NULL);
    WANT(last(OP_THREAD_EXIT)->thread, ordinal);
    if (!i) first = ordinal;
    WANT(ordinal, first);                        /* used again */
  }
  CUcontext c;
  CK(cuCtxGetCurrent(&c));
  if (last(OP_THREAD_EXIT)->thread == 0) FAIL("the main thread's ordinal ended");
}

static void host_functions(void) {
  start();
  CK(cuLaunchHostFunc(0, (CUhostFn)threads, NULL));
  const struct wire_host_func *m = (const void *)last(OP_HOST_FUNC)->payload;
  WANT(m->registration, 100 + rec->hostfns);
  WANT(m->kind, 0);
  WANT(rec->hostfn_keep, 0);
  CK(cuStreamAddCallback(CU_STREAM_LEGACY, (CUstreamCallback)threads, NULL, 0));
  WANT(((const struct wire_host_func *)last(OP_HOST_FUNC)->payload)->kind, 1);
  WANT(cuStreamAddCallback(0, (CUstreamCallback)threads, NULL, 1), 1);
  WANT(cuLaunchHostFunc(0, NULL, NULL), 1);
}

static void fork_(void) {
  start();
  int status, version;
  pid_t child = fork();
  if (!child) {
    CUdeviceptr p;
    CUcontext c;
    WANT(cuMemAlloc(&p, 4), 3);
    WANT(cuInit(0), 3);
    WANT(cuCtxGetCurrent(&c), 3);
    CK(cuDriverGetVersion(&version));
    const char *text;
    CK(cuGetErrorName(3, &text));
    child = fork();                              /* nor in a grandchild */
    if (!child) _exit(cuInit(0) == 3 ? 0 : 1);
    if (waitpid(child, &status, 0) != child) _exit(2);
    _exit(status ? 1 : 0);
  }
  if (waitpid(child, &status, 0) != child || status) FAIL("child: status %#x", status);
  CK(cuCtxSynchronize());                        /* the parent goes on */
  CUdeviceptr p = alloc(16);
  CK(cuMemFree(p));
}

static char told[8][300];
static int told_count;
static void tell(void *user, CUlogLevel level, char *text, size_t bytes) {
  if (level != CU_LOG_LEVEL_ERROR || bytes != strlen(text)) FAIL("level %d, %zu bytes: %s", (int)level, bytes, text);
  snprintf(told[told_count++ % 8], sizeof *told, "%s %s", (char *)user, text);
}

static void logs(void) {
  CUlogsCallbackHandle a, b;
  CUlogIterator at, end;
  CUdeviceptr p;
  static char text[40000];
  size_t size = sizeof text;
  CK(cuLogsRegisterCallback(tell, "a", &a));     /* before cuInit */
  WANT(cuLogsRegisterCallback(NULL, NULL, &b), 1);
  start();
  told_count = 0;
  rec->result = 2;
  WANT(cuMemAlloc(&p, 4), 2);
  rec->result = 600;
  WANT(cuStreamQuery(0), 600);                   /* no error */
  rec->result = 0;
  WANT(told_count, 1);
  WANT(strcmp(told[0], "a Returning 2 (CUDA_ERROR_OUT_OF_MEMORY) from cuMemAlloc_v2"), 0);
  CK(cuLogsCurrent(&at, 0));
  CK(cuLogsRegisterCallback(tell, "b", &b));
  WANT(cuMemHostGetFlags(NULL, NULL), 1);
  WANT(told_count, 3);
  WANT(strcmp(told[2], "b Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemHostGetFlags"), 0);
  CK(cuLogsUnregisterCallback(a));
  WANT(cuLogsUnregisterCallback(a), 1);
  CK(cuLogsUnregisterCallback(b));
  told_count = 0;
  WANT(cuMemHostGetFlags(NULL, NULL), 1);
  WANT(told_count, 0);
  CK(cuLogsCurrent(&end, 0));
  WANT(end - at, 3);
  CK(cuLogsDumpToMemory(&at, text, &size, 0));
  WANT(at, end);
  WANT(size, strlen(text));
  static const char line[] = "][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemHostGetFlags\n";
  if (strstr(text, "cuMemAlloc") || !strstr(text, line) || text[size - 1] != '\n') FAIL("%s", text);
  size = 0;
  WANT(cuLogsDumpToMemory(NULL, text, &size, 0), 1);
  WANT(cuLogsDumpToMemory(NULL, NULL, &size, 0), 1);
  at = 100000, size = 10;
  WANT(cuLogsDumpToMemory(&at, text, &size, 0), 1);
  WANT(size, 0);
  for (int i = 0; i < 300; i++) cuMemHostGetFlags(NULL, NULL);
  size = sizeof text;
  CK(cuLogsDumpToMemory(NULL, text, &size, 0));
  int lines = 0;
  for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
  WANT(lines, 100);                              /* the newest */
  memset(text, 'x', 400);
  size = 300;
  CK(cuLogsDumpToMemory(NULL, text, &size, 0));
  static const char small[] = "The provided buffer is not large enough";
  if (size > 300 || strncmp(text, small, sizeof small - 1) || text[size - 1] != '\n' || text[300] != 'x')
    FAIL("%zu: %.400s", size, text);
  char path[] = "/tmp/wiretest-XXXXXX";
  int fd = mkstemp(path);
  CK(cuLogsDumpToFile(NULL, path, 0));
  WANT(lseek(fd, 0, SEEK_END) > 5000, 1);
  close(fd);
  unlink(path);
  WANT(cuLogsDumpToFile(NULL, "/does/not/exist", 0), 1);
}

/* ---- modes ---- */

static void is_remote(void) {
  int n;
  init();
  CK(cuDeviceGetCount(&n));
  WANT(n, 3);
}

static void is_native(void) {
  int n;
  void *p;
  CUdriverProcAddressQueryResult status;
  CK(cuInit(0));
  CK(cuDriverGetVersion(&n));
  WANT(n, 12345);
  CK(cuDeviceGetCount(&n));
  WANT(n, 42);
  CK(cuGetProcAddress("cuInit", &p, 7000, 0, &status));
  if (status || !p || p == (void *)cuInit) FAIL("cuGetProcAddress is not the driver's");
  WANT(cuLaunchKernel((CUfunction)1, 2, 3, 4, 5, 6, 7, 8, (CUstream)9, (void **)10, (void **)11), 77);
  WANT(cuMemFree(5), 500);                       /* a driver without this function */
}

static void is_none(void) {
  int n = 5;
  const char *name;
  WANT(cuInit(0), 100);
  CK(cuDriverGetVersion(&n));
  WANT(n, 0);
  WANT(cuDeviceGetCount(&n), 3);
  CK(cuGetErrorName(100, &name));
  WANT(strcmp(name, "CUDA_ERROR_NO_DEVICE"), 0);
}

static void not_ready(void) {
  int n;
  WANT(cuInit(0), 802);
  WANT(cuInit(0), 802);
  WANT(cuDeviceGetCount(&n), 3);
}

#define CASE(name) {#name, name}
static const struct { const char *name; void (*run)(void); } cases[] = {
    CASE(launch), CASE(launch_refusals), CASE(launch_attributes), CASE(blocking), CASE(async), CASE(ring),
    CASE(handles), CASE(uploads), CASE(downloads), CASE(capture), CASE(rectangles), CASE(contexts), CASE(primary),
    CASE(pointers), CASE(mapped), CASE(progress), CASE(modules), CASE(jit), CASE(names), CASE(occupancy),
    CASE(attributes), CASE(visible), CASE(visible_none), CASE(visible_twice), CASE(sticky), CASE(lost), CASE(threads),
    CASE(host_functions), {"fork", fork_}, CASE(logs), CASE(is_remote), CASE(is_native), CASE(is_none),
    CASE(not_ready)};

int main(int argc, char **argv) {
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    if (argc != 2 || strcmp(argv[1], cases[i].name)) continue;
    cases[i].run();
    printf("%s ok\n", argv[1]);
    return 0;
  }
  FAIL("no such case");
}
