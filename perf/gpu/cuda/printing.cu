// Text of kernels: it comes between the host's own lines, whichever call waits; the host's output is buffered, as into
// a file.
#include "check.cuh"

__global__ void hello(const char *text, int n) {
  if (threadIdx.x < n)
    printf("%s %d of %d: %5.2f %c %s %llx\n", text, threadIdx.x, n, threadIdx.x * 1.5,
           'a' + threadIdx.x, "end", 0x123456789abcull + threadIdx.x);
}
__global__ void silent(int *p) { *p = 1; }
__global__ void child(int depth) { printf("depth %d\n", depth); }

int main() {
  char *text;
  int *flag, value;
  CK(cudaMalloc(&text, 64));
  CK(cudaMalloc(&flag, 4));
  CK(cudaMemcpy(text, "device text", 12, cudaMemcpyHostToDevice));
  printf("begin\n");
  hello<<<1, 32>>>(text, 3);
  CK(cudaDeviceSynchronize());
  printf("after cudaDeviceSynchronize\n");
  cudaStream_t s;
  CK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  hello<<<1, 32, 0, s>>>(text, 2);
  CK(cudaStreamSynchronize(s));
  printf("after cudaStreamSynchronize\n");
  cudaEvent_t e;
  CK(cudaEventCreate(&e));
  hello<<<1, 32, 0, s>>>(text, 1);
  CK(cudaEventRecord(e, s));
  CK(cudaEventSynchronize(e));
  printf("after cudaEventSynchronize\n");
  hello<<<1, 32>>>(text, 2);
  silent<<<1, 1>>>(flag);
  CK(cudaMemcpy(&value, flag, 4, cudaMemcpyDeviceToHost));
  printf("after cudaMemcpy: %d\n", value);
  size_t fifo = 0;
  CK(cudaDeviceGetLimit(&fifo, cudaLimitPrintfFifoSize));
  printf("fifo %zu\n", fifo);
  child<<<1, 1>>>(7);
  CK(cudaDeviceReset());
  printf("after cudaDeviceReset\n");
  child<<<1, 1>>>(8); // everything again
  CK(cudaDeviceSynchronize());
  printf("end\n");
  return 0;
}
