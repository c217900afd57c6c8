// Vector addition with the CUDA runtime; check.py builds it with the static and with the shared cudart.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define CK(call) \
  do { \
    cudaError_t e = (call); \
    if (e != cudaSuccess) { \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); \
      std::exit(1); \
    } \
  } while (0)

__device__ int launches;
__global__ void add(const float *a, const float *b, float *c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
  if (i == 0) launches++;
}

int main() {
  const int n = 1 << 20;
  float *a, *b, *c, *da, *db, *dc;
  int runtime, driver, count = 0;
  cudaDeviceProp p;
  CK(cudaRuntimeGetVersion(&runtime));
  CK(cudaDriverGetVersion(&driver));
  CK(cudaGetDeviceProperties(&p, 0));
  std::printf("runtime %d, driver %d, %s, %zu bytes, sm_%d%d, %d multiprocessors\n", runtime,
              driver, p.name, p.totalGlobalMem, p.major, p.minor, p.multiProcessorCount);
  CK(cudaMallocHost(&a, n * 4));
  b = static_cast<float *>(std::malloc(n * 4));
  c = static_cast<float *>(std::malloc(n * 4));
  for (int i = 0; i < n; i++) a[i] = i * 0.5f, b[i] = 1000 - i * 0.25f;
  CK(cudaMalloc(&da, n * 4));
  CK(cudaMalloc(&db, n * 4));
  CK(cudaMalloc(&dc, n * 4));
  cudaStream_t s;
  CK(cudaStreamCreate(&s));
  CK(cudaMemcpyAsync(da, a, n * 4, cudaMemcpyHostToDevice, s));
  CK(cudaMemcpyAsync(db, b, n * 4, cudaMemcpyHostToDevice, s));
  for (int k = 0; k < 10; k++) add<<<(n + 255) / 256, 256, 0, s>>>(da, db, dc, n);
  CK(cudaGetLastError());
  CK(cudaMemcpyAsync(c, dc, n * 4, cudaMemcpyDeviceToHost, s));
  CK(cudaStreamSynchronize(s));
  for (int i = 0; i < n; i++)
    if (c[i] != a[i] + b[i]) return std::printf("wrong at %d: %g\n", i, c[i]), 1;
  CK(cudaMemcpyFromSymbol(&count, launches, 4));
  add<<<1, 2048>>>(da, db, dc, n);
  cudaError_t e = cudaGetLastError();
  std::printf("right, %d launches, too many threads: %s\n", count, cudaGetErrorName(e));
  return count != 10;
}
