// nvcc: -rdc=true -lcufft_static -lculibos -ldl -lpthread
// cuFFT's older callbacks, whose addresses the program reads from its own device code: they need the static library.
#include "check.cuh"
#include <algorithm>
#include <cmath>
#include <cufft.h>
#include <cufftXt.h>

#define FK(call) \
  do { \
    cufftResult got_ = (call); \
    if (got_ != CUFFT_SUCCESS) FAIL("%s: %d", #call, (int)got_); \
  } while (0)

__device__ cufftComplex scaled(void *in, size_t i, void *info, void *) {
  cufftComplex v = ((cufftComplex *)in)[i];
  float f = *(float *)info;
  return make_cuFloatComplex(v.x * f, v.y * f);
}
__device__ void swapped(void *out, size_t i, cufftComplex v, void *, void *) {
  ((cufftComplex *)out)[i] = make_cuFloatComplex(v.y, v.x);
}
__device__ cufftCallbackLoadC load = scaled;
__device__ cufftCallbackStoreC store = swapped;

int main() {
  const int n = 1024, batch = 4;
  std::vector<float2> host(n * batch);
  for (size_t i = 0; i < host.size(); i++) host[i] = make_float2(sample(i), sample(i + 3) - 0.5f);
  Out<float2> in(n * batch), out(n * batch);
  CK(cudaMemcpy(in.p, host.data(), host.size() * sizeof(float2), cudaMemcpyHostToDevice));
  cufftHandle plan;
  FK(cufftPlan1d(&plan, n, CUFFT_C2C, batch));
  FK(cufftExecC2C(plan, (cufftComplex *)in.p, (cufftComplex *)out.p, CUFFT_FORWARD));
  CK(cudaDeviceSynchronize());
  auto plain = out.get();
  show("plain", plain);
  cufftCallbackLoadC hl;
  cufftCallbackStoreC hs;
  CK(cudaMemcpyFromSymbol(&hl, load, sizeof hl));
  CK(cudaMemcpyFromSymbol(&hs, store, sizeof hs));
  float factor = 0.5f;
  Out<float> info(1);
  CK(cudaMemcpy(info.p, &factor, 4, cudaMemcpyHostToDevice));
  FK(cufftXtSetCallback(plan, (void **)&hl, CUFFT_CB_LD_COMPLEX, (void **)&info.p));
  FK(cufftXtSetCallback(plan, (void **)&hs, CUFFT_CB_ST_COMPLEX, nullptr));
  FK(cufftExecC2C(plan, (cufftComplex *)in.p, (cufftComplex *)out.p, CUFFT_FORWARD));
  CK(cudaDeviceSynchronize());
  auto called = out.get();
  show("with callbacks", called);
  for (int k = 0; k < n; k += 13) CHECK(fabsf(called[k].y - plain[k].x * 0.5f) < 0.02f, "element %d", k);
  FK(cufftDestroy(plan));
}
