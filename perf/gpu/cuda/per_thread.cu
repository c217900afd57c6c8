// nvcc: --default-stream per-thread
// Default streams of threads are separate: one thread's kernel that waits for a flag does not hold up another's work,
// priorities are kept.
#include "check.cuh"
#include <thread>

__global__ void spin(volatile int *flag, int *out) {
  long long begin = clock64();
  while (!*flag && clock64() - begin < 20000000000ll) {
  }
  *out = *flag;
}
__global__ void set(volatile int *flag) { *flag = 1; }

int main() {
  int *d, got = -1;
  CK(cudaMalloc(&d, 8));
  CK(cudaMemset(d, 0, 8));
  cudaFuncAttributes loaded; // a kernel that is loaded lazily may have to wait for those that run
  CK(cudaFuncGetAttributes(&loaded, spin));
  CK(cudaFuncGetAttributes(&loaded, set));
  CK(cudaDeviceSynchronize());
  std::thread waits([&] {
    spin<<<1, 1>>>(d, d + 1);
    CK(cudaMemcpyAsync(&got, d + 1, 4, cudaMemcpyDeviceToHost, 0));
    CK(cudaStreamSynchronize(0));
  });
  std::thread sets([&] {
    set<<<1, 1>>>(d); // would never come behind the other on one stream
    CK(cudaStreamSynchronize(0));
  });
  sets.join();
  waits.join();
  printf("flag seen: %d\n", got);
  unsigned long long ids[3];
  for (int i = 0; i < 2; i++) std::thread([&] { CK(cudaStreamGetId(cudaStreamPerThread, &ids[i])); }).join();
  CK(cudaStreamGetId(cudaStreamLegacy, &ids[2]));
  printf("ids differ: %d %d\n", ids[0] != ids[2], ids[1] != ids[2]);
  int least, greatest, p;
  CK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  printf("priorities %d to %d\n", least, greatest);
  for (int want : {least, greatest, greatest - 1, least + 1}) {
    cudaStream_t s;
    unsigned flags;
    CK(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, want));
    CK(cudaStreamGetPriority(s, &p));
    CK(cudaStreamGetFlags(s, &flags));
    printf("asked %d, got %d, flags %u\n", want, p, flags);
    CK(cudaStreamDestroy(s));
  }
  return 0;
}
