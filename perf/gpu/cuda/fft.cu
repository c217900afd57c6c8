// nvcc: -lcufft
// cuFFT: plans of all kinds, a stream, a workspace of the program's. (Callbacks: fft_static.cu)
#include "check.cuh"
#include <algorithm>
#include <cmath>
#include <cufft.h>

#define FK(call) \
  do { \
    cufftResult got_ = (call); \
    if (got_ != CUFFT_SUCCESS) FAIL("%s: %d", #call, (int)got_); \
  } while (0)
int main() {
  const int n = 1 << 12, batch = 8;
  std::vector<float2> host(n * batch);
  for (size_t i = 0; i < host.size(); i++) host[i] = make_float2(sample(i), sample(i + 3) - 0.5f);
  Out<float2> in(n * batch), out(n * batch);
  CK(cudaMemcpy(in.p, host.data(), host.size() * sizeof(float2), cudaMemcpyHostToDevice));
  cudaStream_t s;
  CK(cudaStreamCreate(&s));
  cufftHandle plan;
  FK(cufftPlan1d(&plan, n, CUFFT_C2C, batch));
  FK(cufftSetStream(plan, s));
  FK(cufftExecC2C(plan, (cufftComplex *)in.p, (cufftComplex *)out.p, CUFFT_FORWARD));
  CK(cudaStreamSynchronize(s));
  auto plain = out.get();
  show("one dimension", plain);
  FK(cufftExecC2C(plan, (cufftComplex *)out.p, (cufftComplex *)out.p, CUFFT_INVERSE));
  CK(cudaStreamSynchronize(s));
  auto back = out.get();
  for (size_t i = 0; i < host.size(); i += 97)
    CHECK(fabsf(back[i].x / n - host[i].x) < 1e-4f, "not the inverse at %zu", i);
  FK(cufftDestroy(plan));
  FK(cufftPlan2d(&plan, 60, 77, CUFFT_C2C)); // factors of 7 and 11
  FK(cufftExecC2C(plan, (cufftComplex *)in.p, (cufftComplex *)out.p, CUFFT_FORWARD));
  CK(cudaDeviceSynchronize());
  show("two dimensions", out.get());
  FK(cufftDestroy(plan));
  FK(cufftPlan3d(&plan, 16, 20, 24, CUFFT_R2C));
  FK(cufftExecR2C(plan, (cufftReal *)in.p, (cufftComplex *)out.p));
  CK(cudaDeviceSynchronize());
  show("three dimensions", out.get());
  FK(cufftDestroy(plan));
  size_t space;
  FK(cufftCreate(&plan));
  FK(cufftSetAutoAllocation(plan, 0));
  FK(cufftMakePlan1d(plan, 65537, CUFFT_C2C, 1, &space)); // a prime
  Out<char> work(space ? space : 1);
  FK(cufftSetWorkArea(plan, work.p));
  Out<float2> a(65537);
  FK(cufftExecC2C(plan, (cufftComplex *)a.p, (cufftComplex *)a.p, CUFFT_FORWARD));
  CK(cudaDeviceSynchronize());
  show("prime", a.get());
  FK(cufftDestroy(plan));
}
