// Memory from the device's own heap, kept between kernels, and the limit of the heap.
#include "check.cuh"

__device__ int *kept[64];

__global__ void take(int n) {
  int i = threadIdx.x;
  kept[i] = (int *)malloc(n * sizeof(int));
  for (int k = 0; kept[i] && k < n; k++) kept[i][k] = i * 1000 + k;
}
__global__ void give(int n, unsigned long long *sum, int *missing) {
  int i = threadIdx.x;
  if (!kept[i]) atomicAdd(missing, 1);
  for (int k = 0; kept[i] && k < n; k++) atomicAdd(sum, (unsigned long long)kept[i][k]);
  free(kept[i]);
}

int main() {
  CK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 64 << 20));
  size_t limit;
  CK(cudaDeviceGetLimit(&limit, cudaLimitMallocHeapSize));
  unsigned long long *sum, total;
  int *missing, none;
  CK(cudaMalloc(&sum, 8));
  CK(cudaMalloc(&missing, 4));
  for (int round = 0; round < 3; round++) {
    CK(cudaMemset(sum, 0, 8));
    CK(cudaMemset(missing, 0, 4));
    take<<<1, 64>>>(1000);
    give<<<1, 64>>>(1000, sum, missing);
    CK(cudaMemcpy(&total, sum, 8, cudaMemcpyDeviceToHost));
    CK(cudaMemcpy(&none, missing, 4, cudaMemcpyDeviceToHost));
    printf("limit %zu, sum %llu, missing %d\n", limit, total, none);
  }
  return 0;
}
