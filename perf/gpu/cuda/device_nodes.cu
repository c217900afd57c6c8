// nvcc: -rdc=true -lcudadevrt
// A captured launch that another kernel of the graph changes: its parameter, its grid, and whether it runs.
#include "check.cuh"

__device__ cudaGraphDeviceNode_t node;

__global__ void change(int *round) {
  int n = ++*round;
  if (n == 1) cudaGraphKernelNodeSetParam(node, 8, 7);
  if (n == 2) cudaGraphKernelNodeSetGridDim(node, dim3(5));
  if (n == 3) cudaGraphKernelNodeSetEnabled(node, false);
}
__global__ void add(int *p, int n) { atomicAdd(p, n); }

int main() {
  cudaStream_t s;
  CK(cudaStreamCreate(&s));
  Out<int> sum(1), round(1);
  cudaGraph_t g;
  cudaGraphExec_t x;
  CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  change<<<1, 1, 0, s>>>(round.p);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeDeviceUpdatableKernelNode;
  attribute.val.deviceUpdatableKernelNode.deviceUpdatable = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = 2, config.blockDim = 1, config.stream = s, config.attrs = &attribute, config.numAttrs = 1;
  CK(cudaLaunchKernelEx(&config, add, sum.p, 1));
  CK(cudaStreamEndCapture(s, &g));
  cudaGraphDeviceNode_t handle = attribute.val.deviceUpdatableKernelNode.devNode;
  printf("a handle: %d\n", handle != nullptr);
  CK(cudaMemcpyToSymbol(node, &handle, sizeof handle));
  CK(cudaGraphInstantiate(&x, g, 0));
  CK(cudaGraphUpload(x, s));
  for (int i = 0; i < 5; i++) {
    CK(cudaGraphLaunch(x, s));
    CK(cudaStreamSynchronize(s));
    printf("round %d: %d\n", i + 1, sum.get()[0]);
  }
  return 0;
}
