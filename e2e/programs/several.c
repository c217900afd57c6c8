// GPUs of two servers in one program: several KERNELS [COMMAND that ends the second server]
// Device 0 is the first server's, and the last device the second's.
#include "check.h"
#include <unistd.h>

enum { N = 1 << 14, BIG = 3 << 20 };

struct gpu {
  CUcontext context;
  CUstream stream;
  CUevent event;
  CUfunction add;
  CUdeviceptr a, b, c, big;
  int called;
};

static void use(struct gpu *g) { CK(cuCtxSetCurrent(g->context)); }

static void open_gpu(struct gpu *g, CUdevice dev) {
  CK(cuDevicePrimaryCtxRetain(&g->context, dev));
  use(g);
  CUdevice now;
  CK(cuCtxGetDevice(&now));
  CHECK(now == dev, "the context of device %d is device %d's", dev, now);
  g->add = function(load("kernels.ptx"), "vector_add");
  CK(cuStreamCreate(&g->stream, 0));
  CK(cuEventCreate(&g->event, 0));
  CK(cuMemAlloc(&g->a, 4 * N));
  CK(cuMemAlloc(&g->b, 4 * N));
  CK(cuMemAlloc(&g->c, 4 * N));
  CK(cuMemAlloc(&g->big, BIG));
}

static void note(void *user) { ++*(int *)user; }

static void ends_well(struct gpu *g, float x) { // c = a + b with a = x, b = 2 x
  float *data = malloc(4 * N), *got = malloc(4 * N);
  int n = N;
  for (int i = 0; i < N; i++) data[i] = x + i;
  CK(cuMemcpyHtoD(g->a, data, 4 * N));
  for (int i = 0; i < N; i++) data[i] = 2 * x;
  CK(cuMemcpyHtoD(g->b, data, 4 * N));
  CK(LAUNCH(g->add, (N + 255) / 256, 256, 0, g->stream, &g->a, &g->b, &g->c, &n));
  CK(cuStreamSynchronize(g->stream));
  CK(cuMemcpyDtoH(got, g->c, 4 * N));
  for (int i = 0; i < N; i++) CHECK(got[i] == 3 * x + i, "element %d is %f, not %f", i, got[i], 3 * x + i);
  free(data), free(got);
}

static int device_of(CUdeviceptr p) {
  int device = -1;
  CK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
  return device;
}

static void slow(void *user) {
  (void)user;
  usleep(5000);
}

// Memory of one server goes to the other's by each call there is, behind what its stream does, and what comes next
// finds it.
static void between(struct gpu *from, struct gpu *to, unsigned char *got) {
  enum { CALLS = 6, STALE = 1, BEFORE, LATE, VALUE };
  CUstream reader;
  use(to);
  CK(cuStreamCreate(&reader, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 4 * CALLS; i++) {
    const size_t bytes = i / CALLS > 1 ? 100 : BIG;
    const int value = VALUE + i;
    CUdeviceptr a = from->big, b = to->big;
    CUstream s = i / CALLS % 2 ? to->stream : from->stream;
    use(to);
    CK(cuMemsetD8(b, BEFORE, BIG));
    CK(cuCtxSynchronize());
    CK(cuLaunchHostFunc(NULL, slow, NULL));
    use(from);
    CK(cuMemsetD8(a, STALE, BIG));
    CK(cuCtxSynchronize());
    CK(cuLaunchHostFunc(from->stream, slow, NULL));
    CK(cuMemsetD8Async(a, (unsigned char)value, BIG, from->stream));
    CK(cuEventRecord(from->event, from->stream));
    const int there = s == to->stream && i % CALLS < 3;  // the copy is in the destination's stream
    if (there) CK(cuStreamWaitEvent(s, from->event, 0));
    switch (i % CALLS) {
    case 0: CK(cuMemcpyDtoDAsync(b, a, bytes, s)); break;
    case 1: CK(cuMemcpyAsync(b, a, bytes, s)); break;
    case 2: CK(cuMemcpyPeerAsync(b, to->context, a, from->context, bytes, s)); break;
    case 3: CK(cuMemcpyDtoD(b, a, bytes)); break;
    case 4: CK(cuMemcpy(b, a, bytes)); break;
    case 5: CK(cuMemcpyPeer(b, to->context, a, from->context, bytes)); break;
    }
    CK(cuMemsetD8Async(a, LATE, BIG, from->stream));
    if (there) CK(cuStreamSynchronize(s));
    CK(cuMemcpyDtoHAsync(got, b, BIG, reader));
    CK(cuStreamSynchronize(reader));
    for (size_t k = 0; k < BIG; k++) {
      const int want = k < bytes ? value : BEFORE;
      CHECK(got[k] == want, "copy %d: byte %zu is %d, not %d", i, k, got[k], want);
    }
  }
  CK(cuStreamDestroy(reader));
}

// More than what is copied in one piece.
static void big_between(struct gpu *from, struct gpu *to) {
  const size_t bytes = (40 << 20) + 123;
  CUdeviceptr a, b;
  unsigned char *data = malloc(bytes), *got = malloc(bytes);
  fill(data, bytes, 1);
  use(from);
  CK(cuMemAlloc(&a, bytes));
  CK(cuMemcpyHtoD(a, data, bytes));
  use(to);
  CK(cuMemAlloc(&b, bytes + 1));
  CK(cuMemcpyDtoD(b + 1, a, bytes));
  CK(cuMemcpyDtoH(got, b + 1, bytes));
  CHECK(!memcmp(data, got, bytes), "a copy in pieces");
  CK(cuMemFree(a));
  CK(cuMemFree(b));
  free(data), free(got);
}

static void fill_late(void *p) {
  usleep(20000);
  memset(p, 7, BIG);
}

// A copy in a stream of the other server comes behind what lies there, and before what follows.
static void beside(struct gpu *own, struct gpu *other) {
  unsigned char *sent, *back;
  use(own);
  CK(cuMemHostAlloc((void **)&sent, BIG, 0));
  CK(cuMemHostAlloc((void **)&back, BIG, 0));
  for (int i = 0; i < 4; i++) {
    const int rows = i == 1, within = i > 1;
    CUDA_MEMCPY2D up = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = sent, .srcPitch = 64, .dstPitch = 96,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .WidthInBytes = 64, .Height = 100};
    CUdeviceptr memory, second;
    memset(sent, 1, BIG), memset(back, 2, BIG);
    CK(cuMemAlloc(&memory, BIG));
    CK(cuMemAlloc(&second, BIG));
    CK(cuMemsetD8(memory, 3, BIG));
    CK(cuLaunchHostFunc(other->stream, fill_late, sent));
    up.dstDevice = memory;
    if (rows) CK(cuMemcpy2DAsync(&up, other->stream));
    else CK(cuMemcpyHtoDAsync(memory, sent, BIG, other->stream));
    if (i == 2) CK(cuMemcpyDtoDAsync(second, memory, BIG, other->stream));
    if (i == 3) CK(cuMemcpyPeerAsync(second, own->context, memory, own->context, BIG, other->stream));
    CK(cuMemcpyDtoHAsync(back, within ? second : memory, BIG, other->stream));
    CK(cuStreamSynchronize(other->stream));
    for (int k = 0; k < (rows ? 96 * 100 : BIG); k++)
      CHECK(back[k] == (rows && k % 96 >= 64 ? 3 : 7), "copy %d, byte %d: %d", i, k, back[k]);
    CK(cuMemFree(memory));
    CK(cuMemFree(second));
  }
  CK(cuMemFreeHost(sent));
  CK(cuMemFreeHost(back));
}

int main(int argc, char **argv) {
  start(argc, argv);
  int count, can = 1, value = 1;
  CK(cuDeviceGetCount(&count));
  CUdevice last = count - 1;
  struct gpu one = {0}, two = {0};
  open_gpu(&one, 0);
  open_gpu(&two, last);
  char id[2][32];
  for (int i = 0; i < 2; i++) {
    CUdevice found;
    CK(cuDeviceGetPCIBusId(id[i], sizeof *id, i ? last : 0));
    CK(cuDeviceGetByPCIBusId(&found, id[i]));
    CHECK(found == (i ? last : 0), "%s is device %d", id[i], found);
  }
  CHECK(strcmp(id[0], id[1]), "both are %s", id[0]);

  // each in its context, by turns
  for (int i = 0; i < 20; i++) {
    use(i % 2 ? &two : &one);
    ends_well(i % 2 ? &two : &one, i);
  }

  // streams, events and memory of one while the other's context is current
  use(&one);
  int n = N;
  CK(LAUNCH(one.add, (N + 255) / 256, 256, 0, one.stream, &one.a, &one.b, &one.c, &n));
  CK(cuEventRecord(one.event, one.stream));
  use(&two);
  CK(cuEventSynchronize(one.event));
  CK(cuEventQuery(one.event));
  CK(cuStreamQuery(one.stream));
  CK(cuStreamSynchronize(one.stream));
  CHECK(device_of(one.c) == 0 && device_of(two.c) == last, "memory is of devices %d and %d", device_of(one.c),
        device_of(two.c));
  unsigned char *data = malloc(BIG), *got = malloc(BIG);
  for (int i = 0; i < 4; i++) { // with uploads and downloads that travel beside the commands
    fill(data, BIG, i);
    use(i % 2 ? &one : &two);
    CUdeviceptr there = i % 2 ? two.big : one.big;
    CK(cuMemcpy(there, (CUdeviceptr)(uintptr_t)data, BIG));
    CK(cuMemcpyDtoH(got, there, BIG));
    CHECK(!memcmp(data, got, BIG), "round %d: a big copy", i);
    use(i % 2 ? &two : &one);
    CK(cuMemsetD8(there, 7, 100));
    CK(cuMemcpyDtoH(got, there, 200));
    CHECK(got[99] == 7 && got[100] == data[100], "round %d: a small set", i);
  }

  // a wait for the other's event
  use(&two);
  CK(cuStreamWaitEvent(two.stream, one.event, 0));
  CK(LAUNCH(two.add, (N + 255) / 256, 256, 0, two.stream, &two.a, &two.b, &two.c, &n));
  CK(cuLaunchHostFunc(two.stream, note, &two.called));
  use(&one);
  CK(cuLaunchHostFunc(one.stream, note, &one.called));
  CK(cuStreamSynchronize(one.stream));
  CK(cuStreamSynchronize(two.stream));
  CHECK(one.called == 1 && two.called == 1, "host functions ran %d and %d times", one.called, two.called);

  // a library is on both: its kernels by one handle, its functions and variables each in their context
  CUlibrary library;
  CUkernel kernel;
  CUdeviceptr place[2];
  size_t bytes[2];
  CK(cuLibraryLoadData(&library, read_file("kernels.ptx", NULL), NULL, NULL, 0, NULL, NULL, 0));
  CK(cuLibraryGetKernel(&kernel, library, "vector_add"));
  for (int i = 0; i < 4; i++) {
    struct gpu *g = i % 2 ? &two : &one;
    CUfunction f = (CUfunction)kernel, own = g->add;
    CUmodule module;
    int threads;
    use(g);
    CK(cuLibraryGetModule(&module, library));
    if (i > 1) CK(cuKernelGetFunction(&f, kernel));
    CK(cuKernelGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, i % 2 ? last : 0));
    CHECK(threads > 0, "%d threads", threads);
    CK(cuLibraryGetGlobal(&place[i % 2], &bytes[i % 2], library, "counter"));
    CHECK(device_of(place[i % 2]) == (i % 2 ? last : 0), "a variable is of device %d", device_of(place[i % 2]));
    g->add = f;
    ends_well(g, 5 + i);
    g->add = own;
  }
  CK(cuLibraryUnload(library));
  WANT(cuLibraryGetKernel(&kernel, library, "vector_add"), CUDA_ERROR_INVALID_HANDLE);

  beside(&one, &two);
  beside(&two, &one);

  // what there is not between servers
  use(&one);
  CK(cuDeviceCanAccessPeer(&can, 0, last));
  CK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, last));
  CHECK(can == 0 && value == 0, "peers: %d, %d", can, value);
  WANT(cuCtxEnablePeerAccess(two.context, 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  WANT(cuCtxDisablePeerAccess(two.context), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  CUgraph graph;
  CK(cuStreamBeginCapture(two.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  WANT(cuMemsetD8Async(one.a, 0, 16, two.stream), CUDA_ERROR_NOT_SUPPORTED);
  CK(cuStreamEndCapture(two.stream, &graph));
  CK(cuGraphDestroy(graph));
  WANT(cuStreamWriteValue32(two.stream, one.a, 0, 0), CUDA_ERROR_INVALID_VALUE);
  WANT(cuMemsetD8Async(one.a, 0, 16, two.stream), CUDA_ERROR_INVALID_VALUE);
  WANT(cuMemsetD2D32Async(one.a, 16, 0, 4, 1, two.stream), CUDA_ERROR_INVALID_VALUE);
  WANT(cuMemsetD8(two.a, 0, 16), CUDA_ERROR_INVALID_VALUE);
  use(&two);
  WANT(LAUNCH(one.add, 1, 1, 0, NULL, &two.a, &two.b, &two.c, &n), CUDA_ERROR_INVALID_HANDLE);
  WANT(LAUNCH(two.add, 1, 1, 0, one.stream, &two.a, &two.b, &two.c, &n), CUDA_ERROR_INVALID_HANDLE);
  CK(cuLaunchHostFunc(one.stream, note, &one.called));
  CK(cuStreamSynchronize(one.stream));
  CHECK(one.called == 2, "a host function of the other's stream");
  ends_well(&two, 1);
  use(&one);
  ends_well(&one, 1);

  // copies from one to the other
  use(&one);
  between(&one, &two, got);
  between(&two, &one, got);
  big_between(&two, &one);

  // unified memory goes to where it is used
  CUdeviceptr unified;
  use(&one);
  CK(cuMemAllocManaged(&unified, 4 * N, CU_MEM_ATTACH_GLOBAL));
  CK(LAUNCH(one.add, (N + 255) / 256, 256, 0, one.stream, &one.a, &one.b, &unified, &n));
  use(&two);
  CK(LAUNCH(two.add, (N + 255) / 256, 256, 0, two.stream, &unified, &unified, &two.c, &n));
  CK(cuMemcpyDtoHAsync(got, two.c, 4 * N, two.stream));
  CK(cuStreamSynchronize(two.stream));
  for (int i = 0; i < N; i++) {
    float sum = ((float *)(uintptr_t)unified)[i], twice = ((float *)got)[i];
    CHECK(twice == 2 * sum, "element %d is %f, not 2 * %f", i, twice, sum);
  }
  ends_well(&two, 2);
  use(&one);
  CK(cuMemFree(unified));
  ends_well(&one, 2);

  // contexts and objects end where they are
  CK(cuMemFree(two.big));
  CK(cuStreamDestroy(two.stream));
  CK(cuEventDestroy(two.event));
  CUcontext another;
  CK(cuCtxCreate(&another, 0, last));
  CK(cuCtxSynchronize());
  use(&one);
  CK(cuCtxDestroy(another));
  printf("two servers\n");
  if (argc < 3) return 0;

  // one is lost, the other goes on
  CHECK(system(argv[2]) == 0, "%s", argv[2]);
  use(&two);
  CUresult r;
  while ((r = cuMemcpyDtoH(got, two.a, 16)) == CUDA_SUCCESS) {}
  CHECK(r == CUDA_ERROR_DEVICE_UNAVAILABLE, "after the loss: %d", r);
  WANT(cuMemAlloc(&two.big, 64), CUDA_ERROR_DEVICE_UNAVAILABLE);
  WANT(cuMemcpyDtoH(got, two.a, 16), CUDA_ERROR_DEVICE_UNAVAILABLE);
  use(&one);
  for (int i = 0; i < 10; i++) ends_well(&one, i);
  printf("one server\n");
}
