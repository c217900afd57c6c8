// What PyTorch asks of NVML and of the driver for a process's first tensor, with the time of each step in microseconds:
// a line "STEP MICROSECONDS" each. first.sh runs it.
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double last;
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}
static void step(const char *name, int result) {
  double t = now();
  if (result) {
    fprintf(stderr, "first: %s answers %d\n", name, result);
    exit(1);
  }
  printf("%s %.0f\n", name, t - last);
  last = now();
}

int main(void) {
  double began = last = now();
  void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  step("load NVML", !nvml);
  unsigned gpus = 0;
  step("nvmlInit", ((int (*)(void))dlsym(nvml, "nvmlInit_v2"))());
  step("nvmlDeviceGetCount", ((int (*)(unsigned *))dlsym(nvml, "nvmlDeviceGetCount_v2"))(&gpus));
  CUdevice device;
  CUcontext context;
  CUdeviceptr memory;
  float ones[4] = {1, 1, 1, 1};
  step("cuInit", cuInit(0));
  step("cuDeviceGet", cuDeviceGet(&device, 0));
  step("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
  step("cuCtxSetCurrent", cuCtxSetCurrent(context));
  step("cuMemAlloc", cuMemAlloc(&memory, 2 << 20));
  step("cuMemcpyHtoDAsync", cuMemcpyHtoDAsync(memory, ones, sizeof ones, 0));
  step("cuStreamSynchronize", cuStreamSynchronize(0));
  last = began;
  step("all", 0);
  step("cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease(device));
  return 0;
}
