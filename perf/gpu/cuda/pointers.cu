// nvcc: -rdc=true
// Function pointers, virtual functions, constant memory and recursion on the device.
#include "check.cuh"

typedef float (*operation)(float, float);
__device__ float add(float a, float b) { return a + b; }
__device__ float times(float a, float b) { return a * b; }
__device__ operation table[2] = {add, times};
__device__ operation one = times;
__constant__ float weights[64];
__constant__ int scale = 3;

struct Shape {
  __device__ virtual float area() const = 0;
};
struct Square : Shape {
  float a;
  __device__ Square(float a) : a(a) {}
  __device__ float area() const override { return a * a; }
};
struct Disk : Shape {
  float r;
  __device__ Disk(float r) : r(r) {}
  __device__ float area() const override { return 3 * r * r; }
};

__global__ void apply(float *out, operation f) {
  out[threadIdx.x] = f(weights[threadIdx.x], scale) + table[threadIdx.x % 2](2, 3);
}
__global__ void shapes(float *out) {
  Square s(2);
  Disk d(3);
  Shape *all[2] = {&s, &d};
  out[threadIdx.x] = all[threadIdx.x % 2]->area();
}
__device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__global__ void recurse(float *out) { out[threadIdx.x] = fib(threadIdx.x); }

int main() {
  float *out, o[16], w[64];
  for (int i = 0; i < 64; i++) w[i] = i * 0.5f;
  CK(cudaMalloc(&out, sizeof o));
  CK(cudaMemcpyToSymbol(weights, w, sizeof w));
  operation f;
  CK(cudaMemcpyFromSymbol(&f, one, sizeof f));
  auto show = [&](const char *what) {
    CK(cudaMemcpy(o, out, sizeof o, cudaMemcpyDeviceToHost));
    printf("%s:", what);
    for (float v : o) printf(" %g", v);
    printf("\n");
  };
  apply<<<1, 16>>>(out, f);
  show("pointers");
  int three = 5;
  CK(cudaMemcpyToSymbol(scale, &three, sizeof three));
  apply<<<1, 16>>>(out, f);
  show("another constant");
  shapes<<<1, 16>>>(out);
  show("virtual");
  CK(cudaDeviceSetLimit(cudaLimitStackSize, 8192));
  recurse<<<1, 16>>>(out);
  show("recursion");
  size_t bytes;
  CK(cudaGetSymbolSize(&bytes, weights));
  printf("symbol of %zu bytes\n", bytes);
  return 0;
}
