// Tensor cores by WMMA in half and bfloat16, and inline PTX.
#include "check.cuh"
#include <cuda_bf16.h>
#include <mma.h>
using namespace nvcuda;

template <class T> __global__ void multiply(const T *a, const T *b, float *c) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.5f);
  wmma::load_matrix_sync(fa, a, 16);
  wmma::load_matrix_sync(fb, b, 16);
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}

__global__ void assembly(unsigned *out, unsigned a, unsigned b) {
  unsigned lane, dot, bytes, popc;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(dot) : "r"(a), "r"(b), "r"(lane));
  asm("prmt.b32 %0, %1, %2, 0x3120;" : "=r"(bytes) : "r"(a), "r"(lane));
  asm volatile("{ .reg .pred p; setp.gt.u32 p, %1, 7; selp.u32 %0, 1000, %1, p; }" : "=r"(popc) : "r"(lane));
  out[lane] = dot ^ bytes ^ popc;
}

template <class T> static void matrices(const char *name) {
  T h[512];
  float *c, o[256];
  T *d;
  for (int i = 0; i < 512; i++) h[i] = T((float)((i * 7) % 13 - 6));
  CK(cudaMalloc(&d, sizeof h));
  CK(cudaMalloc(&c, sizeof o));
  CK(cudaMemcpy(d, h, sizeof h, cudaMemcpyHostToDevice));
  multiply<T><<<1, 32>>>(d, d + 256, c);
  CK(cudaMemcpy(o, c, sizeof o, cudaMemcpyDeviceToHost));
  printf("%s:", name);
  for (int i = 0; i < 256; i += 17) printf(" %g", o[i]);
  printf("\n");
}

int main() {
  matrices<half>("half");
  matrices<__nv_bfloat16>("bfloat16");
  unsigned *out, o[32];
  CK(cudaMalloc(&out, sizeof o));
  assembly<<<1, 32>>>(out, 0x01020304, 0x05060708);
  CK(cudaMemcpy(o, out, sizeof o, cudaMemcpyDeviceToHost));
  printf("PTX:");
  for (unsigned v : o) printf(" %x", v);
  printf("\n");
  return 0;
}
