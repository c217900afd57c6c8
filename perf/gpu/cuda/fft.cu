// nvcc: -lcufft -lnvrtc -lnvJitLink
// cuFFT: plans of all kinds, a stream, and callbacks that are linked into its kernels.
#include "check.cuh"
#include <algorithm>
#include <cmath>
#include <cufft.h>
#include <cufftXt.h>
#include <nvrtc.h>

#define FK(call) \
  do { \
    cufftResult got_ = (call); \
    if (got_ != CUFFT_SUCCESS) FAIL("%s: %d", #call, (int)got_); \
  } while (0)
#define NK(call) \
  do { \
    nvrtcResult got_ = (call); \
    if (got_ != NVRTC_SUCCESS) FAIL("%s: %s", #call, nvrtcGetErrorString(got_)); \
  } while (0)

const char *const loads = R"(
struct factors { float scale, shift; };
extern "C" __device__ float2 load_scaled(void *in, unsigned long long i, void *info, void *shared) {
  float2 v = ((float2 *)in)[i];
  const factors *f = (const factors *)info;
  return make_float2(v.x * f->scale, v.y * f->scale + f->shift);
})";
const char *const stores = R"(
extern "C" __device__ void store_swapped(void *out, unsigned long long i, float2 v, void *info, void *shared) {
  ((float2 *)out)[i] = make_float2(v.y, v.x);
})";

std::vector<char> intermediate(const char *text) { // LTO-IR of a callback
  nvrtcProgram p;
  NK(nvrtcCreateProgram(&p, text, "callback.cu", 0, nullptr, nullptr));
  const char *options[] = {"-arch=sm_90", "-dlto", "-rdc=true", "-default-device"};
  if (nvrtcCompileProgram(p, 4, options) != NVRTC_SUCCESS) {
    size_t n;
    nvrtcGetProgramLogSize(p, &n);
    std::vector<char> log(n);
    nvrtcGetProgramLog(p, log.data());
    FAIL("%s", log.data());
  }
  size_t n;
  NK(nvrtcGetLTOIRSize(p, &n));
  std::vector<char> code(n);
  NK(nvrtcGetLTOIR(p, code.data()));
  NK(nvrtcDestroyProgram(&p));
  return code;
}

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
  for (size_t i = 0; i < host.size(); i += 97) CHECK(fabsf(back[i].x / n - host[i].x) < 1e-4f, "not the inverse at %zu", i);
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

  auto load = intermediate(loads), store = intermediate(stores);
  float factors[2] = {0.5f, 0.25f};
  Out<float> info(2);
  CK(cudaMemcpy(info.p, factors, sizeof factors, cudaMemcpyHostToDevice));
  FK(cufftCreate(&plan));
  FK(cufftXtSetJITCallback(plan, "load_scaled", load.data(), load.size(), CUFFT_CB_LD_COMPLEX, (void **)&info.p));
  FK(cufftXtSetJITCallback(plan, "store_swapped", store.data(), store.size(), CUFFT_CB_ST_COMPLEX, nullptr));
  FK(cufftMakePlan1d(plan, n, CUFFT_C2C, batch, &space));
  FK(cufftExecC2C(plan, (cufftComplex *)in.p, (cufftComplex *)out.p, CUFFT_FORWARD));
  CK(cudaDeviceSynchronize());
  auto called = out.get();
  show("with callbacks", called);
  // The shift is a constant in the imaginary part: it shows in the first element of each transform alone.
  for (int k = 1; k < n; k += 61) CHECK(fabsf(called[k].y - plain[k].x * 0.5f) < 0.02f, "element %d: %f, not %f", k, called[k].y, plain[k].x * 0.5f);
  CHECK(fabsf(called[0].x - (plain[0].y * 0.5f + n * 0.25f)) < 0.5f, "the shift is not there");
  FK(cufftDestroy(plan));
}
