// The CUDA runtime of any version above the driver: cudart KERNELS LIBRARY [DEVICE], with LIBRARY a libcudart.so.*;
// "static" when the runtime was linked into this program (gcc -DSTATIC cudart.c libcudart_static.a). Its headers are
// not needed: what is used here has been the same since CUDA 11.
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>

typedef struct { unsigned x, y, z; } dim3;
typedef void *stream;
typedef void *event;

#define FUNCTIONS(F) \
  F(int, cudaRuntimeGetVersion, int *) F(int, cudaDriverGetVersion, int *) F(int, cudaGetDeviceCount, int *) \
  F(int, cudaSetDevice, int) F(int, cudaDeviceGetAttribute, int *, int, int) F(int, cudaMalloc, void **, size_t) \
  F(int, cudaFree, void *) F(int, cudaHostAlloc, void **, size_t, unsigned) F(int, cudaFreeHost, void *) \
  F(int, cudaMallocAsync, void **, size_t, stream) F(int, cudaFreeAsync, void *, stream) \
  F(int, cudaMemcpy, void *, const void *, size_t, int) \
  F(int, cudaMemcpyAsync, void *, const void *, size_t, int, stream) \
  F(int, cudaMemcpy2D, void *, size_t, const void *, size_t, size_t, size_t, int) \
  F(int, cudaMemset, void *, int, size_t) \
  F(int, cudaMemcpyToSymbol, const void *, const void *, size_t, size_t, int) \
  F(int, cudaMemcpyFromSymbol, void *, const void *, size_t, size_t, int) \
  F(int, cudaStreamCreateWithFlags, stream *, unsigned) F(int, cudaStreamSynchronize, stream) \
  F(int, cudaStreamDestroy, stream) F(int, cudaStreamWaitEvent, stream, event, unsigned) \
  F(int, cudaStreamBeginCapture, stream, int) F(int, cudaStreamEndCapture, stream, void **) \
  F(int, cudaGraphInstantiateWithFlags, void **, void *, unsigned long long) F(int, cudaGraphLaunch, void *, stream) \
  F(int, cudaGraphExecDestroy, void *) F(int, cudaGraphDestroy, void *) \
  F(int, cudaEventCreateWithFlags, event *, unsigned) F(int, cudaEventRecord, event, stream) \
  F(int, cudaEventSynchronize, event) F(int, cudaEventElapsedTime, float *, event, event) \
  F(int, cudaEventDestroy, event) F(int, cudaDeviceSynchronize, void) F(int, cudaDeviceReset, void) \
  F(int, cudaGetLastError, void) F(int, cudaPeekAtLastError, void) F(const char *, cudaGetErrorName, int) \
  F(int, cudaLaunchKernel, const void *, dim3, dim3, void **, size_t, stream) \
  F(int, cudaOccupancyMaxActiveBlocksPerMultiprocessor, int *, const void *, int, size_t) \
  F(int, cudaLaunchHostFunc, stream, void (*)(void *), void *) F(int, cudaMemGetInfo, size_t *, size_t *) \
  F(void **, __cudaRegisterFatBinary, const void *) F(void, __cudaRegisterFatBinaryEnd, void **) \
  F(void, __cudaRegisterFunction, void **, const char *, char *, const char *, int, void *, void *, void *, \
    void *, int *) \
  F(void, __cudaRegisterVar, void **, char *, char *, const char *, int, size_t, int, int) \
  F(void, __cudaUnregisterFatBinary, void **)

#ifdef STATIC
#define F(type, name, ...) extern type name(__VA_ARGS__);
FUNCTIONS(F)
static void resolve(const char *path) {}
#else
#define F(type, name, ...) static type (*name)(__VA_ARGS__);
FUNCTIONS(F)
#undef F
static void resolve(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) FAIL("%s", dlerror());
#define F(type, name, ...) \
  name = (type(*)(__VA_ARGS__))dlsym(library, #name); \
  if (!name) FAIL("no %s in %s", #name, path);
  FUNCTIONS(F)
}
#endif

#define RT(call) \
  do { \
    int got_ = (call); \
    if (got_) FAIL("%s: %d (%s)", #call, got_, cudaGetErrorName(got_)); \
  } while (0)

// What nvcc makes of kernels and variables: addresses that stand for them.
static char vector_add, saxpy, counter, fault;
static struct { unsigned magic, version; const void *image; void *unused; } wrapper = {0x466243b1, 1};
static void **registered;

static void register_image(void) {
  wrapper.image = read_file("kernels.fatbin", NULL);
  registered = __cudaRegisterFatBinary(&wrapper);
  __cudaRegisterFunction(registered, &vector_add, "vector_add", "vector_add", -1, NULL, NULL, NULL, NULL, NULL);
  __cudaRegisterFunction(registered, &saxpy, "saxpy", "saxpy", -1, NULL, NULL, NULL, NULL, NULL);
  __cudaRegisterFunction(registered, &fault, "fault", "fault", -1, NULL, NULL, NULL, NULL, NULL);
  __cudaRegisterVar(registered, &counter, "counter", "counter", 0, 4, 0, 0);
  __cudaRegisterFatBinaryEnd(registered);
}

static int called;
static void host_function(void *data) { *(int *)data += 1; }
enum { N = 5000, TO_DEVICE = 1, TO_HOST = 2, PER_THREAD = 2 };

static void compute(const char *what, stream s) {
  float *a, *b, *c, *pinned;
  RT(cudaMalloc((void **)&a, 4 * N));
  RT(cudaMallocAsync((void **)&b, 4 * N, s));
  RT(cudaMalloc((void **)&c, 4 * N));
  RT(cudaHostAlloc((void **)&pinned, 4 * N, 0));
  for (int i = 0; i < N; i++) pinned[i] = i;
  RT(cudaMemcpyAsync(a, pinned, 4 * N, TO_DEVICE, s));
  RT(cudaMemcpyAsync(b, pinned, 4 * N, TO_DEVICE, s));
  int n = N;
  RT(cudaLaunchKernel(&vector_add, (dim3){(N + 127) / 128, 1, 1}, (dim3){128, 1, 1}, ARGS(&a, &b, &c, &n), 0, s));
  float k = 3;
  RT(cudaLaunchKernel(&saxpy, (dim3){8, 1, 1}, (dim3){64, 1, 1}, ARGS(&k, &a, &c, &n), 0, s));
  RT(cudaMemcpyAsync(pinned, c, 4 * N, TO_HOST, s));
  RT(cudaFreeAsync(b, s));
  RT(cudaStreamSynchronize(s));
  for (int i = 0; i < N; i++) CHECK(pinned[i] == 5.0f * i, "%s: element %d is %g", what, i, pinned[i]);
  RT(cudaFree(a));
  RT(cudaFree(c));
  RT(cudaFreeHost(pinned));
  printf("%s: right\n", what);
}

static void *thread(void *name) {
  compute(name, (stream)PER_THREAD);
  return NULL;
}

static void everything(void) {
  stream s;
  event begin, end;
  RT(cudaStreamCreateWithFlags(&s, 1));
  RT(cudaEventCreateWithFlags(&begin, 0));
  RT(cudaEventCreateWithFlags(&end, 0));
  RT(cudaEventRecord(begin, s));
  compute("a stream", s);
  compute("the default stream", NULL);
  pthread_t t;
  CHECK(!pthread_create(&t, NULL, thread, "another thread's stream") && !pthread_join(t, NULL), "no thread");
  RT(cudaEventRecord(end, s));
  RT(cudaEventSynchronize(end));
  float ms = -1;
  RT(cudaEventElapsedTime(&ms, begin, end));
  CHECK(ms >= 0, "%g ms", ms);

  int value = 0, blocks = 0, add = 35;
  RT(cudaMemcpyFromSymbol(&value, &counter, 4, 0, TO_HOST));
  CHECK(value == 7, "the variable is %d", value);
  RT(cudaMemcpyToSymbol(&counter, &add, 4, 0, TO_DEVICE));
  RT(cudaMemcpyFromSymbol(&value, &counter, 4, 0, TO_HOST));
  RT(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, &vector_add, 128, 0));
  printf("variable %d, blocks %d\n", value, blocks > 0);

  float *p, *q, host[N];
  int n = N;
  void *graph, *exec;
  RT(cudaMalloc((void **)&p, 4 * N));
  RT(cudaMalloc((void **)&q, 4 * N));
  for (int i = 0; i < N; i++) host[i] = 1;
  RT(cudaMemcpy(p, host, sizeof host, TO_DEVICE));
  RT(cudaMemset(q, 0, sizeof host));
  RT(cudaStreamBeginCapture(s, 0));
  RT(cudaLaunchKernel(&vector_add, (dim3){(N + 127) / 128, 1, 1}, (dim3){128, 1, 1}, ARGS(&p, &q, &q, &n), 0, s));
  RT(cudaLaunchHostFunc(s, host_function, &called));
  RT(cudaStreamEndCapture(s, &graph));
  RT(cudaGraphInstantiateWithFlags(&exec, graph, 0));
  called = 0;
  for (int i = 0; i < 10; i++) RT(cudaGraphLaunch(exec, s));
  RT(cudaStreamSynchronize(s));
  RT(cudaMemcpy2D(host, 40, q, 40, 40, N / 10, TO_HOST));
  for (int i = 0; i < N; i++) CHECK(host[i] == 10, "element %d is %g", i, host[i]);
  printf("graph: right, host function %d times\n", called);
  RT(cudaGraphExecDestroy(exec));
  RT(cudaGraphDestroy(graph));

  void *none;
  size_t available, total;
  int r = cudaMalloc(&none, (size_t)1 << 60);
  printf("too much: %s", cudaGetErrorName(r));
  printf(", then %s", cudaGetErrorName(cudaGetLastError()));
  printf(" and %s\n", cudaGetErrorName(cudaPeekAtLastError()));
  r = cudaLaunchKernel(&vector_add, (dim3){1, 1, 1}, (dim3){4096, 1, 1}, ARGS(&p, &q, &q, &n), 0, s);
  printf("too many threads: %s\n", cudaGetErrorName(r));
  cudaGetLastError();
  RT(cudaMemGetInfo(&available, &total));
  CHECK(available && available <= total, "%zu of %zu", available, total);
  RT(cudaEventDestroy(begin));
  RT(cudaEventDestroy(end));
  RT(cudaStreamDestroy(s));
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc < 3) FAIL("cudart KERNELS LIBRARY [DEVICE]");
  kernels_folder = argv[1];
  resolve(argv[2]);
  register_image();
  int runtime = 0, driver = 0, count = 0, major = 0;
  RT(cudaRuntimeGetVersion(&runtime));
  RT(cudaDriverGetVersion(&driver));
  RT(cudaGetDeviceCount(&count));
  RT(cudaSetDevice(argc > 3 ? atoi(argv[3]) : 0));
  RT(cudaDeviceGetAttribute(&major, 75, 0));
  CHECK(driver / 1000 >= runtime / 1000, "driver %d, runtime %d", driver, runtime); // a newer minor version does
  printf("runtime %d.%d, devices %d, capability %d\n", runtime / 1000, runtime % 1000 / 10, count > 0, major);
  everything();
  RT(cudaDeviceReset());
  everything();
  int *nowhere = NULL;
  RT(cudaLaunchKernel(&fault, (dim3){1, 1, 1}, (dim3){1, 1, 1}, ARGS(&nowhere), 0, NULL));
  printf("a fault: %s", cudaGetErrorName(cudaDeviceSynchronize()));
  printf(", sticky: %s\n", cudaGetErrorName(cudaFree(NULL)));
  __cudaUnregisterFatBinary(registered);
  return 0;
}
