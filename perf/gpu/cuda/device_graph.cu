// nvcc: -rdc=true -lcudadevrt
// Graphs that kernels launch: fire and forget, as a tail, and a graph that launches itself again.
#include "check.cuh"

__global__ void add(int *p, int n) { atomicAdd(p, n); }
__global__ void launcher(cudaGraphExec_t x, int how) {
  if (how == 0) cudaGraphLaunch(x, cudaStreamGraphFireAndForget);
  if (how == 1) cudaGraphLaunch(x, cudaStreamGraphTailLaunch);
}
__global__ void again(int *count) {
  if (atomicAdd(count, 1) < 4) cudaGraphLaunch(cudaGetCurrentGraphExec(), cudaStreamGraphTailLaunch);
}

static cudaGraphExec_t instantiate(cudaGraph_t g, bool device, cudaStream_t s) {
  cudaGraphExec_t x;
  CK(cudaGraphInstantiate(&x, g, device ? cudaGraphInstantiateFlagDeviceLaunch : 0));
  CK(cudaGraphUpload(x, s));
  return x;
}

int main() {
  cudaStream_t s;
  CK(cudaStreamCreate(&s));
  Out<int> sum(1), count(1);
  cudaGraph_t g;
  CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  add<<<2, 3, 0, s>>>(sum.p, 5);
  CK(cudaStreamEndCapture(s, &g));
  cudaGraphExec_t inner = instantiate(g, true, s);
  unsigned long long flags;
  CK(cudaGraphExecGetFlags(inner, &flags));
  printf("flags %llu\n", flags);
  CK(cudaGraphLaunch(inner, s));
  CK(cudaStreamSynchronize(s));
  printf("from the host: %d\n", sum.get()[0]);
  for (int how = 0; how < 2; how++) {
    cudaGraph_t outer;
    CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    launcher<<<1, 1, 0, s>>>(inner, how);
    CK(cudaStreamEndCapture(s, &outer));
    cudaGraphExec_t x = instantiate(outer, true, s);
    for (int round = 0; round < 3; round++) {
      CK(cudaGraphLaunch(x, s));
      CK(cudaStreamSynchronize(s));
    }
    printf("%s: %d\n", how ? "tail" : "fire and forget", sum.get()[0]);
    CK(cudaGraphExecDestroy(x));
    CK(cudaGraphDestroy(outer));
  }
  cudaGraph_t self;
  CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  again<<<1, 1, 0, s>>>(count.p);
  CK(cudaStreamEndCapture(s, &self));
  cudaGraphExec_t x = instantiate(self, true, s);
  CK(cudaGraphLaunch(x, s));
  CK(cudaStreamSynchronize(s));
  printf("itself: %d times\n", count.get()[0]);
  return 0;
}
