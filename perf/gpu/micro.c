// Driver-API micro-benchmarks: prints one JSON object of seconds (medians) by name. Builds with NVIDIA's cuda.h and with scuda's own.
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CK(call) \
  do { \
    int r_ = (int)(call); \
    if (r_) { \
      fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, r_); \
      exit(1); \
    } \
  } while (0)

static const char *ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry nothing(.param .u64 p, .param .u32 a, .param .u32 b, .param .f32 c)\n{\n ret;\n}\n";

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}
static double median(double *v, int n) {
  qsort(v, n, sizeof *v, by_value);
  return v[n / 2];
}
static int first = 1;
static void report(const char *name, double seconds) {
  printf("%s\"%s\": %.6g", first ? "{" : ", ", name, seconds);
  first = 0;
}
// The median time of one call over ROUNDS rounds of N calls, with `after` outside the clock.
#define TIME(name, rounds, n, call, after) \
  do { \
    double v_[rounds]; \
    for (int i_ = -1; i_ < (rounds); i_++) { \
      double t_ = now(); \
      for (int k_ = 0; k_ < (n); k_++) CK(call); \
      t_ = now() - t_; \
      CK(after); \
      if (i_ >= 0) v_[i_] = t_ / (n); \
    } \
    report(name, median(v_, rounds)); \
  } while (0)

static long resident(void) { // KiB
  char line[256];
  long kib = 0;
  FILE *f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "VmRSS: %ld", &kib) == 1) break;
  if (f) fclose(f);
  return kib;
}

int main(void) {
  long rss = resident();
  CUdevice dev;
  CUcontext c;
  double t0 = now();
  CK(cuInit(0));
  CK(cuDeviceGet(&dev, 0));
  CK(cuDevicePrimaryCtxRetain(&c, dev));
  CK(cuCtxSetCurrent(c));
  CUdeviceptr d;
  CK(cuMemAlloc(&d, 1 << 20));
  CK(cuMemsetD8(d, 0, 1 << 20));
  CK(cuCtxSynchronize());
  report("first memory", now() - t0);

  CUmodule m;
  CUfunction f;
  CUstream s;
  CUevent e;
  CUcontext current;
  int value;
  unsigned a = 1, b = 2;
  float x = 3;
  CK(cuModuleLoadData(&m, ptx));
  CK(cuModuleGetFunction(&f, m, "nothing"));
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  void *args[] = {&d, &a, &b, &x};
#define LAUNCH cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, s, args, NULL)

  TIME("local: cuCtxGetCurrent", 21, 100000, cuCtxGetCurrent(&current), CUDA_SUCCESS);
  TIME("local: cuDeviceGetAttribute", 21, 100000, cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, dev), CUDA_SUCCESS);
  TIME("local: cuCtxGetDevice", 21, 100000, cuCtxGetDevice(&dev), CUDA_SUCCESS);
  TIME("local: cuFuncGetAttribute", 21, 100000, cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, f), CUDA_SUCCESS);
  TIME("launch: in the call (bursts of 100)", 201, 100, LAUNCH, cuStreamSynchronize(s));
  TIME("launch: in the call (bursts of 1000)", 51, 1000, LAUNCH, cuStreamSynchronize(s));
  CK(cuStreamSynchronize(s));
  {
    double v[31];
    for (int i = -1; i < 31; i++) {
      double t = now();
      for (int k = 0; k < 1000; k++) CK(LAUNCH);
      CK(cuStreamSynchronize(s));
      if (i >= 0) v[i] = now() - t;
    }
    report("1000 launches and a synchronisation", median(v, 31));
    double w[7];
    for (int i = 0; i < 7; i++) {
      double t = now();
      for (int k = 0; k < 50000; k++) CK(LAUNCH);
      CK(cuStreamSynchronize(s));
      w[i] = (now() - t) / 50000;
    }
    report("launch: sustained, each of 50000", median(w, 7));
  }
  TIME("launch and synchronise", 301, 10, (LAUNCH || cuStreamSynchronize(s)), CUDA_SUCCESS);
  TIME("synchronise an idle stream", 301, 10, cuStreamSynchronize(s), CUDA_SUCCESS);
  TIME("record an event", 101, 100, cuEventRecord(e, s), cuStreamSynchronize(s));
  TIME("query an event", 101, 100, cuEventQuery(e), CUDA_SUCCESS);
  TIME("allocate and free 1 MiB", 51, 10, (cuMemAlloc(&d, 1 << 20) || cuMemFree(d)), CUDA_SUCCESS);
  CK(cuMemAlloc(&d, 1 << 20));
  TIME("4 bytes to the device", 301, 10, cuMemcpyHtoD(d, &x, 4), CUDA_SUCCESS);
  TIME("4 bytes to the host", 301, 10, cuMemcpyDtoH(&x, d, 4), CUDA_SUCCESS);
  TIME("64 KiB memset", 101, 100, cuMemsetD8Async(d, 0, 65536, s), cuStreamSynchronize(s));

  size_t n = 256 << 20;
  char *pageable = malloc(n), *pinned;
  memset(pageable, 1, n);
  CK(cuMemAllocHost((void **)&pinned, n));
  memset(pinned, 2, n);
  CUdeviceptr big;
  CK(cuMemAlloc(&big, n));
  TIME("256 MiB pinned to the device", 5, 1, (cuMemcpyHtoDAsync(big, pinned, n, s) || cuStreamSynchronize(s)), CUDA_SUCCESS);
  TIME("256 MiB pinned to the host", 5, 1, (cuMemcpyDtoHAsync(pinned, big, n, s) || cuStreamSynchronize(s)), CUDA_SUCCESS);
  TIME("256 MiB pageable to the device", 5, 1, cuMemcpyHtoD(big, pageable, n), CUDA_SUCCESS);
  TIME("256 MiB pageable to the host", 5, 1, cuMemcpyDtoH(pageable, big, n), CUDA_SUCCESS);
  TIME("1 MiB pinned to the device", 51, 1, (cuMemcpyHtoDAsync(big, pinned, 1 << 20, s) || cuStreamSynchronize(s)), CUDA_SUCCESS);
  TIME("1 MiB pinned to the host", 51, 1, (cuMemcpyDtoHAsync(pinned, big, 1 << 20, s) || cuStreamSynchronize(s)), CUDA_SUCCESS);
  CK(cuMemFree(big));
  CK(cuMemFreeHost(pinned));
  free(pageable);
  printf(", \"resident MiB added\": %.1f}\n", (double)(resident() - rss) / 1024);
  return 0;
}
