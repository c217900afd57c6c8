// The driver's side of what PyTorch does for tensor.to('cuda:0') in a new process: count the GPUs by NVML, initialise,
// allocate, copy, wait; at the end of the process CUDA's runtime releases the context.
#include "check.h"
#include <dlfcn.h>

static CUdevice device;
static void release(void) { CK(cuDevicePrimaryCtxRelease(device)); }

int main(void) {
  void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  CHECK(nvml, "dlopen: %s", dlerror());
  int (*init)(void) = (int (*)(void))dlsym(nvml, "nvmlInit_v2"),
      (*count)(unsigned *) = (int (*)(unsigned *))dlsym(nvml, "nvmlDeviceGetCount_v2");
  int (*cuda)(int *) = (int (*)(int *))dlsym(nvml, "nvmlSystemGetCudaDriverVersion_v2");
  unsigned gpus = 0;
  CHECK(!init() && !count(&gpus) && !count(&gpus) && gpus > 0, "NVML does not count the GPUs");

  atexit(release);
  int version = 0, same = 0, n = 0, major = 0, least, greatest;
  CK(cuDriverGetVersion(&version));
  CHECK(!cuda(&same) && same == version, "NVML says CUDA %d, the driver %d", same, version);
  CK(cuInit(0));
  CK(cuDriverGetVersion(&same));
  CHECK(same == version, "CUDA %d before cuInit, %d after it", version, same);
  CK(cuDeviceGetCount(&n));
  CK(cuDeviceGet(&device, 0));
  CK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
  CUcontext context;
  CK(cuDevicePrimaryCtxRetain(&context, device));
  CK(cuCtxSetCurrent(context));
  CK(cuCtxGetStreamPriorityRange(&least, &greatest));
  CUdeviceptr memory;
  CK(cuMemAlloc(&memory, 2 << 20));
  float ones[4] = {1, 1, 1, 1};
  CK(cuMemcpyHtoDAsync(memory, ones, sizeof ones, 0));
  CK(cuStreamSynchronize(0));
  printf("first tensor ok\n");
  return 0;
}
