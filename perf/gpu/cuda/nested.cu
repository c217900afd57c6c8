// nvcc: -rdc=true -lcudadevrt
// Dynamic parallelism: kernels that launch kernels, into tail and fire-and-forget streams.
#include "check.cuh"

__global__ void leaf(int *sum, int v) { atomicAdd(sum, v); }
__global__ void node(int *sum, int depth) {
  atomicAdd(sum, 1);
  if (depth && threadIdx.x == 0) {
    node<<<1, 2, 0, cudaStreamFireAndForget>>>(sum, depth - 1);
    leaf<<<2, 3>>>(sum, depth * 100);
  }
}
__global__ void last(int *sum, int *seen) { *seen = *sum; }
__global__ void root(int *sum, int *seen) {
  node<<<1, 2>>>(sum, 3);
  last<<<1, 1, 0, cudaStreamTailLaunch>>>(sum, seen);
}

int main() {
  int *sum, s[2];
  CK(cudaMalloc(&sum, 8));
  CK(cudaMemset(sum, 0, 8));
  root<<<1, 1>>>(sum, sum + 1);
  CK(cudaDeviceSynchronize());
  CK(cudaMemcpy(s, sum, 8, cudaMemcpyDeviceToHost));
  printf("sum %d, seen at the tail %d\n", s[0], s[1]);
  return 0;
}
