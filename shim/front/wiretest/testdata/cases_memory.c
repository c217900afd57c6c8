/* Cases about copies, contexts, memory and handles. */
#include "cases.h"

/* ---- copies ---- */

void uploads(void) {
  start();
  CUdeviceptr d = alloc(1 << 20);
  uint8_t *data = malloc(1 << 20);
  for (int i = 0; i < 1 << 20; i++) data[i] = (uint8_t)(i * 7);
  uint32_t calls = rec->calls, n = sent();
  CK(cuMemcpyHtoD(d, data, 0));
  WANT(sent(), n);
  CK(cuMemcpyHtoD(d, data, 13));
  const struct command *c = last(OP_COPY_H2D);
  const struct wire_copy_h2d *m = (const void *)c->payload;
  WANT(c->size, 32 + sizeof *m + 16);
  WANT(m->dst, d);
  WANT(m->bytes, 13);
  WANT(m->flags, 1);
  WANT(memcmp(m + 1, data, 13), 0);
  CK(cuMemcpyHtoDAsync(d, data, 65536, CU_STREAM_LEGACY));
  m = (const void *)last(OP_COPY_H2D)->payload;
  WANT(m->flags, 0);
  WANT(m->stream, 1);
  WANT(memcmp(m + 1, data, 65536), 0);
  CK(cuMemcpyHtoDAsync(d, data, 65537, 0));
  c = last(OP_COPY_H2D);
  WANT(c->flags, BULK);
  WANT(word(c, 4), 65537);
  WANT(rec->bulk_bytes, 65537);
  WANT(rec->bulk_last, data[65536]);
  WANT(rec->calls, calls);
  CK(cuMemcpyHtoD(0x900000, data, 4));           /* not an allocation that is known: the driver's answer */
  WANT(last(OP_COPY_H2D)->flags, ANSWER);
  WANT(cuMemcpyHtoD(0, data, 4), 1);
  WANT(cuMemcpyHtoD(d, NULL, 4), 1);
  rec->overlaps = 1;                             /* something may still write the source */
  CK(cuMemcpyHtoDAsync(d, data, 100, 0));
  last(OP_COPY_H2D);                             /* pageable: as it stands */
  void *pinned;
  CK(cuMemHostAlloc(&pinned, 4096, 0));
  CK(cuMemcpyHtoDAsync(d, (char *)pinned + 96, 4000, 0));
  const struct wire_copy_h2d_pull *p = (const void *)last(OP_COPY_H2D_PULL)->payload;
  WANT(p->source, rec->sources);
  WANT(p->bytes, 4000);
  rec->overlaps = 0;
  CK(cuMemcpyAsync(d, (CUdeviceptr)(uintptr_t)data, 8, 0));
  last(OP_COPY_H2D);
  CK(cuMemcpy(d, d + 512, 8));
  last(OP_cuMemcpyDtoD_v2);
  CK(cuMemcpy_ptds((CUdeviceptr)(uintptr_t)data, d, 8));
  WANT(last(OP_COPY_D2H)->flags, ANSWER | PTDS);
}

void downloads(void) {
  start();
  CUdeviceptr d = alloc(1 << 20);
  uint8_t plain[64];
  void *pinned;
  CK(cuMemAllocHost(&pinned, 4096));
  CK(cuMemcpyDtoH(plain, d, 64));
  const struct wire_copy_d2h *m = (const void *)last(OP_COPY_D2H)->payload;
  WANT(last(OP_COPY_D2H)->flags, ANSWER);
  WANT(m->flags, 1);
  WANT(m->transfer, last(OP_COPY_D2H)->thread);
  WANT((uintptr_t)rec->transfer_dst, (uintptr_t)plain);
  CK(cuMemcpyDtoHAsync(plain, d, 64, 0));        /* pageable: waits */
  WANT(last(OP_COPY_D2H)->flags, ANSWER);
  CK(cuMemcpyDtoHAsync(pinned, d, 4096, 0));
  WANT(last(OP_COPY_D2H)->flags, 0);
  m = (const void *)last(OP_COPY_D2H)->payload;
  WANT(m->flags, 2);
  WANT(m->transfer, 65536 + rec->transfers);
  CK(cuMemcpyDtoHAsync((char *)pinned + 4090, d, 7, 0));
  WANT(last(OP_COPY_D2H)->flags, ANSWER);        /* beyond the pinned range */
  WANT(cuMemcpyDtoH(NULL, d, 4), 1);
  rec->result = 700;
  WANT(cuMemcpyDtoH(plain, d, 4), 700);
}

void capture(void) {
  start();
  CUdeviceptr d = alloc(4096);
  CUstream s;
  CUstreamCaptureStatus status;
  uint8_t data[64] = {0};
  CK(cuStreamCreate(&s, 0));
  uint32_t n = sent();
  CK(cuStreamIsCapturing(s, &status));
  WANT(status, CU_STREAM_CAPTURE_STATUS_NONE);
  CUgraph g;
  const CUgraphNode *nodes;
  size_t count;
  cuuint64_t id;
  CK(cuStreamGetCaptureInfo_v2(s, &status, &id, &g, &nodes, &count));
  WANT(status, CU_STREAM_CAPTURE_STATUS_NONE);
  WANT(sent(), n);                               /* nobody captures: nobody is asked */
  CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CK(cuStreamIsCapturing(s, &status));
  WANT(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CK(cuMemcpyHtoDAsync(d, data, 64, s));
  last(OP_COPY_H2D_PULL);
  CK(cuMemcpyDtoHAsync(data, d, 64, s));
  WANT(rec->transfer_async, 2);
  WANT(last(OP_COPY_D2H)->flags, 0);
  CK(cuLaunchHostFunc(s, (CUhostFn)capture, NULL));
  WANT(rec->hostfn_keep, 1);
  CK(cuStreamEndCapture(s, &g));
  WANT((uintptr_t)g, rec->shared->server_base + 64 * 5);
  CK(cuGraphDestroy(g));                         /* a handle that the server minted is a graph */
  n = sent();
  CK(cuStreamIsCapturing(s, &status));
  WANT(sent(), n);
}

void rectangles(void) {
  start();
  CUdeviceptr d = alloc(1 << 16);
  static uint8_t data[64 * 64];
  for (int i = 0; i < 64 * 64; i++) data[i] = (uint8_t)i;
  CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = data, .srcPitch = 64, .srcXInBytes = 3, .srcY = 2,
                     .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                     .dstDevice = d, .dstPitch = 32, .WidthInBytes = 10, .Height = 5};
  uint32_t n = sent();
  CK(cuMemcpy2D_v2(&c));
  WANT(sent(), n + 1); /* all rows in one command */
  const struct wire_copy_3d *m = (const void *)last(OP_COPY_3D)->payload;
  WANT(m->bytes, 50);
  WANT(m->flags, 1 | 4);
  WANT(last(OP_COPY_3D)->flags, 0);
  for (int y = 0; y < 5; y++) WANT(memcmp((const uint8_t *)(m + 1) + 10 * y, data + 64 * (y + 2) + 3, 10), 0);
  c.dstDevice = 0x1234;
  CK(cuMemcpy2D_v2(&c));
  WANT(last(OP_COPY_3D)->flags, ANSWER); /* not known: the driver is asked */
  c.dstDevice = d;
  c.srcPitch = 12;
  WANT(cuMemcpy2D_v2(&c), 1);
  c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  c.srcDevice = d + 4096;
  c.srcPitch = 64;
  CK(cuMemcpy2D_v2(&c));
  last(OP_cuMemcpy2D_v2);
  CUDA_MEMCPY3D b3 = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = d, .srcPitch = 8, .srcHeight = 4,
                      .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = data,
                      .dstPitch = 8, .dstHeight = 4, .WidthInBytes = 8, .Height = 2, .Depth = 3};
  CK(cuMemcpy3D(&b3));
  m = (const void *)last(OP_COPY_3D)->payload;
  WANT(m->flags, 1 | 16);
  WANT(m->bytes, (2 * 4 + 1) * 8 + 8);
  WANT((uintptr_t)rec->transfer_dst, (uintptr_t)data);
  b3.srcHeight = b3.dstHeight = 2; /* without gaps: as a line */
  CK(cuMemcpy3D(&b3));
  last(OP_COPY_D2H);
  b3.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  WANT(cuMemcpy3D(&b3), 400); /* no array */
  CUarray array;
  CUDA_ARRAY_DESCRIPTOR desc = {16, 4, CU_AD_FORMAT_FLOAT, 1};
  CK(cuArrayCreate(&array, &desc));
  CK(cuMemcpyHtoA(array, 4, data, 60));
  WANT(last(OP_COPY_3D)->flags, 0);
  CK(cuMemcpyHtoA(array, 8, data, 60));
  WANT(last(OP_COPY_3D)->flags, ANSWER); /* too long a row */

  /* Compressed arrays are counted in blocks, and the whole of planar ones is not copied. */
  static const struct { int format, channels; unsigned block, want; } formats[] = {
      {CU_AD_FORMAT_BC1_UNORM, 4, 8, 0}, {CU_AD_FORMAT_BC3_UNORM, 4, 16, 0}, {CU_AD_FORMAT_BC4_SNORM, 1, 8, 0},
      {CU_AD_FORMAT_BC7_UNORM_SRGB, 4, 16, 0}, {CU_AD_FORMAT_NV12, 3, 1, 1}, {CU_AD_FORMAT_P010, 3, 1, 1}};
  for (unsigned i = 0; i < sizeof formats / sizeof *formats; i++) {
    CUDA_ARRAY3D_DESCRIPTOR d = {62, 64, 0, (CUarray_format)formats[i].format, (unsigned)formats[i].channels, 0};
    CK(cuArray3DCreate(&array, &d));
    static char blocks[16 * 32 * 16];
    CUDA_MEMCPY3D_BATCH_OP op = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, .extent = {16, 16, 1}};
    op.src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op.src.op.ptr.ptr = (CUdeviceptr)(uintptr_t)blocks;
    op.src.op.ptr.rowLength = 32;
    op.dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    op.dst.op.array.array = array;
    WANT(cuMemcpy3DBatchAsync_v2(1, &op, 0, CU_STREAM_PER_THREAD), formats[i].want);
    if (formats[i].want) continue;
    WANT(last(OP_COPY_3D)->flags, 0);
    WANT(((const struct wire_copy_3d *)last(OP_COPY_3D)->payload)->bytes, 16 * 16 * formats[i].block);
    op.extent.width = 17;
    CK(cuMemcpy3DBatchAsync_v2(1, &op, 0, CU_STREAM_PER_THREAD));
    WANT(last(OP_COPY_3D)->flags, ANSWER);
  }
}

/* ---- contexts ---- */

void contexts(void) {
  start();
  CUcontext c2, got;
  CUdevice dev;
  unsigned flags, version;
  CK(cuCtxCreate_v2(&c2, CU_CTX_SCHED_SPIN, 1));
  WANT(word(last(OP_cuCtxCreate_v2), 2), 1);
  CK(cuCtxGetCurrent(&got));
  WANT((uintptr_t)got, (uintptr_t)c2);
  CK(cuCtxGetDevice(&dev));
  WANT(dev, 1);
  CK(cuCtxGetFlags(&flags));
  WANT(flags, CU_CTX_SCHED_SPIN);
  CK(cuCtxPushCurrent(ctx));
  CK(cuCtxPopCurrent(&got));
  WANT((uintptr_t)got, (uintptr_t)ctx);
  CK(cuCtxDestroy(c2));                          /* pops itself */
  CK(cuCtxGetCurrent(&got));
  WANT((uintptr_t)got, (uintptr_t)ctx);
  WANT(cuCtxPushCurrent(c2), 709);
  WANT(cuCtxGetApiVersion(c2, &version), 709);
  WANT(cuCtxDestroy(ctx), 201);                  /* a primary context is released, not destroyed */
  for (int i = 0; i < 40; i++) CK(cuCtxPushCurrent(ctx));
  for (int i = 0; i < 41; i++) CK(cuCtxPopCurrent(&got));
  WANT(cuCtxPopCurrent(&got), 201);
  WANT(cuCtxGetDevice(&dev), 201);
  WANT(cuCtxSynchronize(), 201);
  CK(cuCtxGetCurrent(&got));
  WANT((uintptr_t)got, 0);
  CK(cuCtxSetCurrent(ctx));
  size_t limit;
  uint32_t n = sent();
  CK(cuCtxGetLimit(&limit, CU_LIMIT_MALLOC_HEAP_SIZE));
  WANT(limit, 1002);
  WANT(sent(), n);
  CK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 5000));
  rec->answer = NULL;
  rec->result = 1;
  WANT(cuCtxGetLimit(&limit, CU_LIMIT_MALLOC_HEAP_SIZE), 1); /* now the server is asked */
}

void primary(void) {
  init();
  CUcontext c, again;
  unsigned flags, version;
  int active;
  CK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  WANT(active, 0);
  WANT(cuDevicePrimaryCtxRelease(0), 201);
#undef cuDevicePrimaryCtxRelease
  extern CUresult cuDevicePrimaryCtxRelease(CUdevice);
  CK(cuDevicePrimaryCtxRelease(0));              /* the older form does not mind */
#define cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
  CK(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_YIELD));
  WANT(rec->count, 0);                           /* nothing is there yet to tell */
  CK(cuDevicePrimaryCtxRetain(&c, 0));
  const struct wire_primary *m = (const void *)last(OP_PRIMARY)->payload;
  WANT(m->context, (uintptr_t)c);
  WANT(m->verb, 0);
  CK(cuDevicePrimaryCtxRetain(&again, 0));
  WANT((uintptr_t)again, (uintptr_t)c);
  CK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  WANT(active, 1);
  WANT(flags, CU_CTX_SCHED_YIELD);
  CK(cuCtxSetCurrent(c));
  CK(cuCtxGetApiVersion(c, &version));
  uint32_t n = sent();
  CK(cuDevicePrimaryCtxRelease(0));
  WANT(sent(), n);
  CK(cuDevicePrimaryCtxRelease(0));
  WANT(((const struct wire_primary *)last(OP_PRIMARY)->payload)->verb, 1);
  WANT(cuCtxGetApiVersion(c, &version), 201);
  CUdevice dev;
  CK(cuCtxGetDevice(&dev));                      /* still current, though nobody retains it */
  CUdeviceptr p;
  rec->result = 201;                             /* of a server that is not told of a context that has ended */
  WANT(cuMemAlloc(&p, 4), 709);
  WANT(last(OP_cuMemAlloc_v2)->context, 0);
  rec->result = 0;
  CK(cuDevicePrimaryCtxRetain(&again, 0));
  WANT((uintptr_t)again, (uintptr_t)c);
  CK(cuDevicePrimaryCtxReset(0));
  WANT(((const struct wire_primary *)last(OP_PRIMARY)->payload)->verb, 2);
  CK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  WANT(active, 0);
  WANT(cuDevicePrimaryCtxRetain(&again, 3), 101);
}

/* ---- memory ---- */

void pointers(void) {
  start();
  CUdeviceptr d = alloc(1000), base;
  size_t size;
  unsigned type, flags;
  void *pinned, *host;
  int ordinal;
  static char plain[8192], more[8192];
  CK(cuMemHostAlloc(&pinned, 5000, CU_MEMHOSTALLOC_WRITECOMBINED));
  uint32_t n = sent();
  CK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, d + 999));
  WANT(type, CU_MEMORYTYPE_DEVICE);
  CK(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, d + 5));
  WANT(base, d + 5);
  WANT(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, d), 1);
  CK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)pinned + 4999));
  WANT(type, CU_MEMORYTYPE_HOST);
  CK(cuMemGetAddressRange(&base, &size, d + 500));
  WANT(base, d);
  WANT(size, 1000);
  WANT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)plain), 1);
  CUpointer_attribute all[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                               CU_POINTER_ATTRIBUTE_HOST_POINTER};
  void *into[] = {&type, &ordinal, &host};
  CK(cuPointerGetAttributes(3, all, into, (CUdeviceptr)(uintptr_t)plain));
  WANT(type, 0);
  WANT(ordinal, -2);
  CK(cuPointerGetAttributes(3, all, into, (CUdeviceptr)(uintptr_t)pinned));
  WANT(type, CU_MEMORYTYPE_HOST);
  WANT((uintptr_t)host, (uintptr_t)pinned);
  CK(cuMemHostGetFlags(&flags, pinned));
  WANT(flags, CU_MEMHOSTALLOC_WRITECOMBINED | CU_MEMHOSTALLOC_DEVICEMAP);
  CK(cuMemHostRegister(plain, sizeof plain, 0));
  WANT(cuMemHostRegister(plain + 100, 10, 0), 712);
  CK(cuMemHostRegister(more, sizeof more, CU_MEMHOSTREGISTER_PORTABLE));
  WANT(cuMemFreeHost(plain), 1);
  CK(cuMemHostUnregister(plain));
  WANT(cuMemHostUnregister(plain), 713);
  WANT(cuMemHostUnregister(pinned), 713);
  WANT(cuMemFreeHost((char *)pinned + 1), 1);
  CK(cuMemFreeHost(pinned));
  WANT(cuMemFreeHost(pinned), 1);
  WANT(sent(), n);                               /* all of it without the server */
  CK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0x12340000)); /* nobody's: it may be the server's */
  last(OP_POINTER_ATTRIBUTES);
  CK(cuMemFree(d));
  CK(cuMemsetD8Async(d, 0, 10, 0));
  WANT(last(OP_cuMemsetD8Async)->flags, ANSWER); /* freed: the driver's answer */
  d = alloc(64);
  CK(cuMemsetD32Async(d, 0, 16, 0));
  WANT(last(OP_cuMemsetD32Async)->flags, 0);
  CK(cuMemsetD32Async(d + 1, 0, 4, 0));
  WANT(last(OP_cuMemsetD32Async)->flags, ANSWER);
  CK(cuMemsetD32Async(d, 0, 17, 0));
  WANT(last(OP_cuMemsetD32Async)->flags, ANSWER);
}

/* A kernel wrote byte 7; byte 5000 is what the program sent last. */
static int32_t written(const struct command *c, void *reply, uint32_t cap, uint32_t *len) {
  if (c->op != OP_COPY_D2H) return server(c, reply, cap, len);
  const struct wire_copy_d2h *m = (const void *)c->payload;
  char *to = rec->transfer_dst;
  memset(to, 0, m->bytes);
  to[7] = 42;
  to[5000] = 1;
  for (uint32_t i = 0; i < rec->count; i++) {
    const struct wire_copy_h2d *up = (const void *)rec->commands[i]->payload;
    if (rec->commands[i]->op == OP_COPY_H2D && up->bytes == 1) to[5000] = *(const char *)(up + 1);
  }
  return 0;
}

/* What is known of finished work is not asked about; what is new is. Questions that were answered "not ready" are not
 * repeated. */
void progress(void) {
  start();
  CUfunction f = kernel();
  CUstream s, other;
  CUevent e;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CK(cuEventCreate(&e, 0));
  CK(cuStreamSynchronize(s));
  uint32_t n = sent();
  CK(cuStreamSynchronize(s));
  CK(cuStreamQuery(s));
  WANT(sent(), n);                               /* idle, and known to be */
  CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, args, NULL));
  CK(cuStreamSynchronize(s));
  WANT(sent(), n + 2);
  CK(cuEventRecord(e, s));
  WANT(last(OP_cuEventRecord)->flags, 0);        /* nobody has asked about it */
  n = sent();
  rec->result = CUDA_ERROR_NOT_READY;
  WANT(cuEventQuery(e), CUDA_ERROR_NOT_READY);
  WANT(sent(), n + 1);
  WANT(cuEventQuery(e), CUDA_ERROR_NOT_READY);
  WANT(sent(), n + 1);                           /* the server will tell */
  rec->result = CUDA_SUCCESS;
  CK(cuEventSynchronize(e));
  CK(cuEventQuery(e));
  CK(cuEventSynchronize(e));
  WANT(sent(), n + 2);
  CK(cuEventRecord(e, s));
  WANT(last(OP_cuEventRecord)->flags, 8);        /* watched from now on */
  n = sent();
  WANT(cuEventQuery(e), CUDA_ERROR_NOT_READY);
  WANT(sent(), n);
  CK(cuStreamSynchronize(s));
  CK(cuStreamSynchronize(0));
  n = sent();
  CK(cuStreamSynchronize(0));
  CK(cuStreamQuery(0));
  CK(cuStreamQuery(s));
  WANT(sent(), n);
  CK(cuEventRecord(e, other));                   /* anything may be work for the legacy stream */
  CK(cuStreamSynchronize(0));
  WANT(sent(), n + 2);
  CK(cuCtxSynchronize());
  n = sent();
  CK(cuCtxSynchronize());
  WANT(sent(), n);
  rec->result = CUDA_ERROR_ILLEGAL_ADDRESS;      /* an error that ends the context stays what every call gives */
  CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, other, args, NULL));
  WANT(cuStreamSynchronize(other), CUDA_ERROR_ILLEGAL_ADDRESS);
  WANT(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
  WANT(cuEventQuery(e), CUDA_ERROR_ILLEGAL_ADDRESS);
}

void mapped(void) {
  start();
  CUfunction f = kernel();
  char *pinned;
  CUdeviceptr d;
  CK(cuMemHostAlloc((void **)&pinned, 3 * 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  CK(cuMemHostGetDevicePointer(&d, pinned, 0));
  WANT(d, (uintptr_t)pinned);
  last(OP_HOST_MAP);
  CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL));
  uint32_t n = sent();
  CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL));
  WANT(sent(), n + 1);                           /* nothing changed in between */
  pinned[5000] = 1;
  CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL));
  WANT(sent(), n + 3);
  const struct wire_copy_h2d *m = (const void *)rec->commands[n + 1]->payload;
  WANT(m->dst, d + 4096);
  WANT(m->bytes, 4096);
  /* later work waits for it, as it is on a stream of ours; it waits for nothing that may be behind the kernel */
  WANT(m->flags, WIRE_COPY_SYNC | WIRE_COPY_AHEAD);
  pinned[5000] = 2;                              /* after the launch: the kernel may wait for it */
  rec->answer = written;
  CK(cuCtxSynchronize());
  WANT(rec->commands[sent() - 3]->op, OP_COPY_H2D);
  m = (const void *)rec->commands[sent() - 3]->payload;
  WANT(m->dst, d + 5000);
  WANT(m->bytes, 1);
  WANT(m->flags, WIRE_COPY_SYNC | WIRE_COPY_AHEAD);
  WANT(((const struct wire_copy_d2h *)last(OP_COPY_D2H)->payload)->bytes, 3 * 4096);
  WANT(pinned[7], 42);
  WANT(pinned[5000], 2);                         /* what the program wrote meanwhile stays */
  WANT(pinned[100], 0);
  n = sent();
  CK(cuCtxSynchronize());
  WANT(sent(), n + 1);                           /* no kernel ran since */
  CUstream on, other;
  CK(cuStreamCreate(&on, CU_STREAM_NON_BLOCKING));
  CK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  pinned[7] = 1;
  CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, on, args, NULL));
  n = sent();
  CK(cuStreamSynchronize(on));
  WANT(sent(), n + 1);                           /* the copy on that stream is what waits for it */
  WANT(((const struct wire_copy_d2h *)last(OP_COPY_D2H)->payload)->stream, (uintptr_t)on);
  WANT(pinned[7], 42);
  pinned[7] = 1;
  CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, on, args, NULL));
  CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, other, args, NULL));
  n = sent();
  CK(cuStreamSynchronize(on));
  WANT(sent(), n + 2);                           /* the other stream's kernel may write as well */
  WANT(((const struct wire_copy_d2h *)last(OP_COPY_D2H)->payload)->stream, 0);
  WANT(pinned[7], 42);
  CK(cuMemFreeHost(pinned));
  last(OP_HOST_UNMAP);
}

/* ---- handles ---- */

void handles(void) {
  start();
  CUevent e[3000];
  for (int i = 0; i < 3000; i++) {
    CK(cuEventCreate(&e[i], 0));
    if ((uintptr_t)e[i] % 64 || (uintptr_t)e[i] < rec->shared->client_base ||
        (uintptr_t)e[i] >= rec->shared->server_base) FAIL("handle %p", (void *)e[i]);
    for (int k = i > 5 ? i - 5 : 0; k < i; k++)
      if (e[k] == e[i]) FAIL("a handle was given twice");
  }
  for (int i = 0; i < 3000; i++) CK(cuEventDestroy(e[i]));
  CUstream s;
  CK(cuStreamCreate(&s, 0));                     /* takes the place of an event */
  WANT(cuEventRecord((CUevent)s, 0), 400);
  rec->result = 2;
  CUcontext other;
  WANT(cuCtxCreate_v2(&other, 0, 0), 2);         /* a failed creation leaves no handle */
  uint64_t h = word(last(OP_cuCtxCreate_v2), 0);
  WANT(cuCtxSetCurrent((CUcontext)h), 709);
}
