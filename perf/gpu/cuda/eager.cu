// nvcc: -lcuda
// CUDA_MODULE_LOADING=EAGER and programmatic dependent launch.
#include "check.cuh"
#include <cstdlib>
#include <cuda.h>

__global__ void first(int *p) {
  p[0] = 41;
  cudaTriggerProgrammaticLaunchCompletion();
}
__global__ void second(int *p) {
  cudaGridDependencySynchronize();
  p[1] = p[0] + 1;
}

int main() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  int *p, o[2];
  CK(cudaMalloc(&p, 8));
  CUmoduleLoadingMode mode;
  cuModuleGetLoadingMode(&mode);
  printf("mode %d\n", mode);
  cudaStream_t s;
  CK(cudaStreamCreate(&s));
  for (int i = 0; i < 100; i++) {
    CK(cudaMemsetAsync(p, 0, 8, s));
    first<<<1, 1, 0, s>>>(p);
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = 1;
    config.stream = s;
    cudaLaunchAttribute a[1];
    a[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a[0].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = a;
    config.numAttrs = 1;
    CK(cudaLaunchKernelEx(&config, second, p));
    CK(cudaMemcpyAsync(o, p, 8, cudaMemcpyDeviceToHost, s));
    CK(cudaStreamSynchronize(s));
    if (o[1] != 42) printf("round %d: %d\n", i, o[1]);
  }
  printf("%d %d\n", o[0], o[1]);
  return 0;
}
