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
    struct { struct wire_func_info info; uint32_t params[6]; } r = {{.param_count = 3, .param_bytes = 24}, {0, 8, 8, 4, 16, 8}};
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
    struct { struct wire_pointer_values head; int32_t result; uint32_t bytes; uint8_t value[64]; } r = {.head = {1, 0}, .bytes = 8, .value = {2}};
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
  if (c->op == OP_cuOccupancyMaxActiveBlocksPerMultiprocessor || c->op == OP_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags ||
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

/* A server that does not have an image until it is sent. */
static int32_t missing_once(const struct command *c, void *reply, uint32_t cap, uint32_t *len) {
  if (c->op != OP_MODULE_LOAD || rec->images_sent) return server(c, reply, cap, len);
  *len = 0;
  return 500;
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

/* ---- launches ---- */

static uint64_t a = 0x1122334455667788;
static int32_t b = 77;
static double x = 2.5;
void *args[] = {&a, &b, &x};

static void check_params(const uint8_t *p) {
  if (memcmp(p, &a, 8) || memcmp(p + 8, &b, 4) || memcmp(p + 16, &x, 8)) FAIL("parameters are packed wrongly");
}

/* A kernel that was made for one shape of blocks: launches with another are asked about. */
static void launch_shaped(void) {
  CUmodule m;
  CUfunction f;
  CK(cuModuleLoadData(&m, "good"));
  CK(cuModuleGetFunction(&f, m, "shaped"));
  CK(cuLaunchKernel(f, 1, 1, 1, 2, 1, 1, 0, 0, args, NULL));
  WANT(last(OP_LAUNCH)->flags, 0);
  rec->result = 1;
  WANT(cuLaunchKernel(f, 1, 1, 1, 1, 2, 1, 0, 0, args, NULL), 1);
  WANT(last(OP_LAUNCH)->flags, ANSWER);
  rec->result = 0;
}

static void launch(void) {
  start();
  CUfunction f = kernel();
  launch_shaped();
  CUstream s;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  uint32_t calls = rec->calls;
  CK(cuLaunchKernel(f, 2, 3, 4, 8, 4, 2, 100, s, args, NULL));
  const struct command *c = last(OP_LAUNCH);
  const struct wire_launch *l = (const void *)c->payload;
  WANT(c->flags, 0);
  WANT(c->context, (uintptr_t)ctx);
  WANT(l->func, (uintptr_t)f);
  WANT(l->stream, (uintptr_t)s);
  if (l->grid[0] != 2 || l->grid[1] != 3 || l->grid[2] != 4 || l->block[0] != 8 || l->block[1] != 4 || l->block[2] != 2) FAIL("grid or block");
  WANT(l->shared_bytes, 100);
  WANT(l->param_bytes, 24);
  check_params((const uint8_t *)(l + 1));

  uint8_t packed[24] = {0};
  size_t size = sizeof packed;
  memcpy(packed, &a, 8), memcpy(packed + 8, &b, 4), memcpy(packed + 16, &x, 8);
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, NULL, extra));
  check_params(last(OP_LAUNCH)->payload + sizeof *l);
  CK(cuLaunchKernel_ptsz(f, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL));
  WANT(last(OP_LAUNCH)->flags, PTDS);
  WANT(rec->calls, calls);                       /* nothing was waited for */
  CK(cuLaunchCooperativeKernel(f, 1, 1, 1, 1, 1, 1, 0, s, args));
  WANT(((const struct wire_launch *)last(OP_LAUNCH)->payload)->flags, 1);
  WANT(last(OP_LAUNCH)->flags, ANSWER);          /* the grid may not fit */
}

static void launch_refusals(void) {
  start();
  CUfunction f = kernel();
  CUevent e;
  CK(cuEventCreate(&e, 0));
  uint32_t n = sent();
  WANT(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL), 400);
  WANT(cuLaunchKernel((CUfunction)e, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL), 400);
  WANT(cuLaunchKernel((CUfunction)((char *)f + 8), 1, 1, 1, 1, 1, 1, 0, 0, args, NULL), 400);
  WANT(cuLaunchKernel((CUfunction)0xdeadbeef, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL), 400);
  WANT(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, (CUstream)e, args, NULL), 400);
  WANT(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, NULL, NULL), 1);
  void *extra[] = {CU_LAUNCH_PARAM_END};
  WANT(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, args, extra), 1);
  WANT(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, NULL, extra), 1);
  CK(cuCtxSetCurrent(NULL));
  WANT(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL), 201);
  CK(cuCtxSetCurrent(ctx));
  WANT(sent(), n);
  /* What the driver has to judge is asked for at once: its own code is the answer. */
  static const unsigned bad[][7] = {{0, 1, 1, 1, 1, 1, 0}, {1, 65536, 1, 1, 1, 1, 0}, {1, 1, 1, 0, 1, 1, 0}, {1, 1, 1, 1025, 1, 1, 0},
                                    {1, 1, 1, 1, 1, 65, 0}, {1, 1, 1, 32, 17, 1, 0}, {1, 1, 1, 1, 1, 1, 49153}};
  rec->result = 701;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    WANT(cuLaunchKernel(f, bad[i][0], bad[i][1], bad[i][2], bad[i][3], bad[i][4], bad[i][5], bad[i][6], 0, args, NULL), 701);
    WANT(last(OP_LAUNCH)->flags, ANSWER);
  }
}

static void launch_attributes(void) {
  start();
  CUfunction f = kernel();
  CUlaunchAttribute attrs[2] = {{.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION}, {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY}};
  attrs[0].value.clusterDim.x = 2;
  attrs[0].value.clusterDim.y = attrs[0].value.clusterDim.z = 1;
  CUlaunchConfig config = {.gridDimX = 4, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1, .sharedMemBytes = 8, .attrs = attrs, .numAttrs = 2};
  CK(cuLaunchKernelEx(&config, f, args, NULL));
  const struct command *c = last(OP_LAUNCH);
  WANT(c->flags, ANSWER);                        /* the first of its kind */
  const struct wire_launch *l = (const void *)c->payload;
  WANT(l->attr_count, 2);
  if (memcmp(l + 1, attrs, sizeof attrs)) FAIL("attributes differ");
  check_params((const uint8_t *)(l + 1) + sizeof attrs);
  for (int i = 0; i < 2; i++) {
    config.gridDimX = 9;
    CK(cuLaunchKernelEx(&config, f, args, NULL));
    WANT(last(OP_LAUNCH)->flags, ANSWER);        /* no multiple of its clusters, whatever was possible before */
    config.gridDimX = 8;
    CK(cuLaunchKernelEx(&config, f, args, NULL));
    WANT(last(OP_LAUNCH)->flags, 0);             /* known to be possible */
  }
  attrs[0].value.clusterDim.x = 4;
  CK(cuLaunchKernelEx(&config, f, args, NULL));
  WANT(last(OP_LAUNCH)->flags, ANSWER);
  attrs[0].value.clusterDim.x = 2;               /* what was possible still is */
  memset((char *)&attrs[0] + 20, 0xa5, sizeof attrs[0] - 20);
  memset((char *)&attrs[1] + 12, 0xa5, sizeof attrs[1] - 12); /* what a program leaves on its stack */
  CK(cuLaunchKernelEx(&config, f, args, NULL));
  c = last(OP_LAUNCH);
  WANT(c->flags, 0);
  for (int i = 0; i < 2; i++)
    for (size_t k = i ? 12 : 20; k < sizeof *attrs; k++)
      if (c->payload[sizeof *l + (size_t)i * sizeof *attrs + k]) FAIL("byte %zu of attribute %d is not 0", k, i);
  CK(cuLaunchCooperativeKernel(f, 2, 1, 1, 32, 1, 1, 0, 0, args));
  WANT(last(OP_LAUNCH)->flags, ANSWER);
  CK(cuLaunchCooperativeKernel(f, 2, 1, 1, 32, 1, 1, 0, 0, args));
  WANT(last(OP_LAUNCH)->flags, 0);
  CK(cuLaunchCooperativeKernel(f, 3, 1, 1, 32, 1, 1, 0, 0, args));
  WANT(last(OP_LAUNCH)->flags, ANSWER);          /* such a grid has to run at once */
  CK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50));
  CK(cuLaunchCooperativeKernel(f, 2, 1, 1, 32, 1, 1, 0, 0, args));
  WANT(last(OP_LAUNCH)->flags, ANSWER);          /* an attribute may have made it impossible */
  config.numAttrs = 0;
  CK(cuLaunchKernelEx(&config, f, args, NULL));
  WANT(last(OP_LAUNCH)->flags, 0);
  attrs[0].id = CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE;
  attrs[0].value.deviceUpdatableKernelNode.deviceUpdatable = 1;
  config.numAttrs = 1;
  CK(cuLaunchKernelEx(&config, f, args, NULL));
  WANT(last(OP_LAUNCH)->flags, ANSWER);
  WANT((uintptr_t)attrs[0].value.deviceUpdatableKernelNode.devNode, 0xdef1ce);
  attrs[0].value.deviceUpdatableKernelNode.deviceUpdatable = 0;
  attrs[0].value.deviceUpdatableKernelNode.devNode = 0;
  CK(cuLaunchKernelEx(&config, f, args, NULL));
  WANT((uintptr_t)attrs[0].value.deviceUpdatableKernelNode.devNode, 0);
  WANT(cuLaunchKernelEx(NULL, f, args, NULL), 1);
}

static void blocking(void) {
  start();
  CUfunction f = kernel();
  CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL));
  last(OP_cuStreamSynchronize);
  CK(cuEventRecord((CUevent)({ CUevent e; CK(cuEventCreate(&e, 0)); e; }), 0));
  WANT(last(OP_cuEventRecord)->flags, ANSWER);
}

/* ---- commands ---- */

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

/* Four threads fill the ring several times over while another one empties it; nothing is lost, and each thread's commands keep their order. */
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
  static const int absent[] = {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
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

static void visible(void) {                      /* 2,GPU-00010203,9,1: the list ends at the first entry that names no device */
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

/* ---- modules ---- */

static void modules(void) {
  start();
  rec->answer = server;
  CUmodule m, lm;
  CUfunction f, g;
  CUlibrary lib;
  CUkernel k;
  CUdeviceptr p;
  size_t size, offset;
  int v;
  const char *name;
  uint32_t n;
  WANT(cuModuleLoadData(&m, "bad image"), 200);
  CK(cuModuleLoadData(&m, "good"));
  WANT(rec->images_sent, 0);                     /* the server has it */
  rec->answer = missing_once;
  n = sent();
  CK(cuModuleLoadData(&m, "good"));
  WANT(rec->images_sent, 1);
  WANT(sent(), n + 2);
  WANT(last(OP_MODULE_LOAD)->flags, ANSWER);
  rec->answer = server;
  WANT(cuModuleGetFunction(&f, m, "absent"), 500);
  CK(cuModuleGetFunction(&f, m, "kernel"));
  n = sent();
  CK(cuModuleGetFunction(&g, m, "kernel"));
  WANT((uintptr_t)f, (uintptr_t)g);
  CK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f));
  WANT(v, 512);
  CK(cuFuncGetParamInfo(f, 1, &offset, &size));
  WANT(offset * 100 + size, 804);
  WANT(cuFuncGetParamInfo(f, 3, &offset, &size), 1);
  CK(cuFuncGetName(&name, f));
  WANT(strcmp(name, "kernel"), 0);
  CK(cuFuncGetModule(&lm, f));
  WANT((uintptr_t)lm, (uintptr_t)m);
  WANT(sent(), n);
  CK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
  WANT(last(OP_cuFuncSetAttribute)->flags, 0);
  CK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f));
  WANT(v, 100000);
  CK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 300000));
  WANT(last(OP_cuFuncSetAttribute)->flags, ANSWER);
  CK(cuModuleGetGlobal(&p, &size, m, "table"));
  n = sent();
  CK(cuModuleGetGlobal(&p, &size, m, "table"));
  unsigned type;
  CK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 63));
  WANT(type, CU_MEMORYTYPE_DEVICE);
  WANT(sent(), n);
  CK(cuModuleUnload(m));
  WANT(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL), 400);
  WANT(cuModuleGetFunction(&f, m, "kernel"), 400);
  WANT(cuModuleUnload(m), 400);

  CK(cuCtxSetCurrent(NULL));                     /* libraries load without a context */
  WANT(cuModuleLoadData(&m, "good"), 201);
  CUlibraryOption option = CU_LIBRARY_BINARY_IS_PRESERVED;
  CK(cuLibraryLoadData(&lib, "good", NULL, NULL, 0, &option, NULL, 1));
  CK(cuCtxSetCurrent(ctx));
  CK(cuLibraryGetKernel(&k, lib, "kernel"));
  CK(cuKernelGetFunction(&f, k));
  n = sent();
  CK(cuKernelGetFunction(&g, k));
  WANT((uintptr_t)f, (uintptr_t)g);
  CK(cuKernelGetAttribute(&v, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, k, 0));
  WANT(v, 1024);
  CUlibrary l2;
  CK(cuKernelGetLibrary(&l2, k));
  WANT((uintptr_t)l2, (uintptr_t)lib);
  WANT(sent(), n);
  CK(cuKernelGetAttribute(&v, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, k, 1)); /* another device: asked for */
  WANT(v, 1);
  CK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1000, k, 0));
  CK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f));
  WANT(v, 1000);                                 /* holds for the kernel's functions too */
  CK(cuLaunchKernel((CUfunction)k, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL));
  WANT(((const struct wire_launch *)last(OP_LAUNCH)->payload)->func, (uintptr_t)k);
  CK(cuLibraryGetModule(&lm, lib));
  WANT(cuModuleUnload(lm), 400);                 /* goes with its library */
  CK(cuLibraryUnload(lib));
  WANT(cuModuleGetFunction(&f, lm, "kernel"), 400);
  WANT(cuKernelGetFunction(&f, k), 400);
}

static void jit(void) {
  start();
  rec->answer = server;
  CUmodule m;
  char info[4] = {0}, error[64] = {0};
  CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_MAX_REGISTERS, CU_JIT_GLOBAL_SYMBOL_COUNT};
  void *values[] = {info, (void *)4, error, (void *)64, (void *)40, (void *)0};
  rec->result = 218;
  WANT(cuModuleLoadDataEx(&m, "good", 6, options, values), 218);
  const struct command *c = last(OP_MODULE_LOAD);
  const struct wire_module_load *l = (const void *)c->payload;
  WANT(l->jit_count, 3);                         /* the sizes of the logs and the register count */
  const uint64_t *pairs = (const void *)(l + 1);
  WANT(pairs[4], CU_JIT_MAX_REGISTERS);
  WANT(pairs[5], 40);
  WANT(strcmp(error, "sorry!"), 0);
  WANT((uintptr_t)values[3], 6);
  WANT(strcmp(info, "hel"), 0);                  /* cut to the buffer */

  /* Variables of the program: their addresses, as kernels see them, and their names. */
  unsigned *pinned, plain;
  CK(cuMemHostAlloc((void **)&pinned, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  const char *names[] = {"counter", "x"};
  void *addresses[] = {pinned, &plain};
  CUjit_option host[] = {CU_JIT_GLOBAL_SYMBOL_NAMES, CU_JIT_GLOBAL_SYMBOL_ADDRESSES, CU_JIT_GLOBAL_SYMBOL_COUNT, CU_JIT_REFERENCED_KERNEL_COUNT};
  void *given[] = {names, addresses, (void *)2, (void *)9};
  rec->result = 0;
  CK(cuModuleLoadDataEx(&m, "good", 4, host, given));
  l = (const void *)(c = last(OP_MODULE_LOAD))->payload;
  WANT(l->jit_count, 0);
  WANT(l->symbols, 2);
  WANT(l->symbol_bytes, 10);
  uint64_t at[2];
  memcpy(at, l + 1, sizeof at);
  WANT(at[0], (uintptr_t)pinned);                /* where the recording server maps it */
  WANT(at[1], (uintptr_t)&plain);
  WANT(memcmp((const char *)(l + 1) + sizeof at, "counter\0x", 10), 0);
  given[0] = NULL;
  WANT(cuModuleLoadDataEx(&m, "good", 4, host, given), 1);
  CUlinkState link;
  given[0] = names;
  CK(cuLinkCreate(4, host, given, &link));
  const struct wire_link_create *made = (const void *)last(OP_LINK_CREATE)->payload;
  WANT(made->jit_count, 0);
  WANT(made->symbols, 2);
  WANT(memcmp(made + 1, at, sizeof at), 0);
  WANT(memcmp((const char *)(made + 1) + sizeof at, "counter\0x", 10), 0);
  CK(cuLinkAddData(link, CU_JIT_INPUT_PTX, "text", 5, "name", 4, host, given));
  const struct wire_link_add *added = (const void *)last(OP_LINK_ADD)->payload;
  WANT(added->symbols, 2);
  WANT(memcmp((const char *)(added + 1) + 8 + sizeof at, "counter\0x", 10), 0);
  given[2] = (void *)5000;
  WANT(cuLinkCreate(4, host, given, &link), 1);
}

static void names(void) {
  start();
  rec->answer = server;
  CUmodule m;
  CUfunction f[2] = {0}, by_name;
  unsigned count;
  CK(cuModuleLoadData(&m, "good"));
  CK(cuModuleGetFunctionCount(&count, m));
  WANT(count, 2);
  CK(cuModuleEnumerateFunctions(f, 2, m));
  CK(cuModuleGetFunction(&by_name, m, "other"));
  WANT((uintptr_t)f[1], (uintptr_t)by_name);
}

static void occupancy(void) {
  start();
  CUfunction f = kernel();
  int v, grid;
  CK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&v, f, 128, 0));
  uint32_t n = sent();
  CK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&v, f, 128, 0));
  CK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&v, f, 128, 0, 0));
  WANT(sent(), n);
  CK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&v, f, 128, 16));
  WANT(sent(), n + 1);
  CK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50));
  CK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&v, f, 128, 0));
  WANT(sent(), n + 3);                           /* the answer may have changed */
  CK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50));
  CK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&v, f, 128, 0));
  WANT(sent(), n + 4);                           /* it cannot have */
  CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
  CK(cuOccupancyMaxActiveClusters(&v, f, &config));
  WANT(v, 5);
  n = sent();
  CK(cuOccupancyMaxActiveClusters(&v, f, &config));
  WANT(sent(), n);
  CK(cuOccupancyMaxPotentialBlockSize(&grid, &v, f, NULL, 0, 0)); /* one block fits, so the largest is best */
  WANT(v, 512);
  WANT(grid, 100);
}

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
  if (strstr(text, "cuMemAlloc") || !strstr(text, "][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemHostGetFlags\n") || text[size - 1] != '\n') FAIL("%s", text);
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
  if (size > 300 || strncmp(text, "The provided buffer is not large enough", 39) || text[size - 1] != '\n' || text[300] != 'x') FAIL("%zu: %.400s", size, text);
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

int main(int argc, char **argv) {
  static const struct { const char *name; void (*run)(void); } cases[] = {
#define CASE(name) {#name, name}
      CASE(launch), CASE(launch_refusals), CASE(launch_attributes), CASE(blocking), CASE(async), CASE(ring), CASE(handles), CASE(attributes),
      CASE(visible), CASE(visible_none), CASE(visible_twice), CASE(uploads), CASE(downloads), CASE(capture), CASE(rectangles), CASE(contexts),
      CASE(primary), CASE(pointers), CASE(mapped), CASE(progress), CASE(modules), CASE(jit), CASE(names), CASE(occupancy), CASE(sticky), CASE(lost), CASE(threads),
      CASE(host_functions), CASE(logs), {"fork", fork_}, CASE(is_remote), CASE(is_native), CASE(is_none), CASE(not_ready)};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    if (argc != 2 || strcmp(argv[1], cases[i].name)) continue;
    cases[i].run();
    printf("%s ok\n", argv[1]);
    return 0;
  }
  FAIL("no such case");
}
