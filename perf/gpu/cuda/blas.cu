// nvcc: -lcublas
// cuBLAS and cuBLASXt: matrices of all types, batches, triangles, workspaces, graphs of calls, host matrices spread by
// cublasXt.
#include "check.cuh"
#include <algorithm>
#include <cmath>
#include <cublasXt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define BK(call) \
  do { \
    cublasStatus_t got_ = (call); \
    if (got_ != CUBLAS_STATUS_SUCCESS) FAIL("%s: %s", #call, cublasGetStatusName(got_)); \
  } while (0)

template <typename T> Out<T> matrix(size_t n, int seed) {
  std::vector<T> v(n);
  for (size_t i = 0; i < n; i++) v[i] = T(sample(i + seed * 7919) - 0.5f);
  Out<T> d(n);
  CK(cudaMemcpy(d.p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice));
  return d;
}

template <typename T, typename S>
void product(cublasHandle_t h, const char *name, cudaDataType type, cublasComputeType_t compute) {
  const int m = 200, n = 136, k = 304;
  auto a = matrix<T>(m * k, 1), b = matrix<T>(k * n, 2);
  Out<T> c(m * n);
  S one = 1, zero = 0;
  BK(cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_T, m, n, k, &one, a.p, type, m, b.p,
                  type, n, &zero, c.p, type, m, compute, CUBLAS_GEMM_DEFAULT));
  show(name, c.get());
  BK(cublasGemmStridedBatchedEx(h, CUBLAS_OP_T, CUBLAS_OP_N, 40, 24, 40, &one, a.p, type, 40, 1600,
                                b.p, type, 40, 1600, &one, c.p, type, 40, 960, 8, compute, CUBLAS_GEMM_DEFAULT));
  show("  batch", c.get());
}

int main() {
  cublasHandle_t h;
  BK(cublasCreate(&h));
  int version;
  BK(cublasGetVersion(h, &version));
  CHECK(version > 0, "version %d", version);
  product<float, float>(h, "float", CUDA_R_32F, CUBLAS_COMPUTE_32F);
  product<float, float>(h, "tf32", CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32);
  product<double, double>(h, "double", CUDA_R_64F, CUBLAS_COMPUTE_64F);
  product<__half, float>(h, "half", CUDA_R_16F, CUBLAS_COMPUTE_32F);
  product<__nv_bfloat16, float>(h, "bfloat16", CUDA_R_16BF, CUBLAS_COMPUTE_32F);

  const int n = 128;
  auto a = matrix<float>(n * n, 3), b = matrix<float>(n * n, 4), x = matrix<float>(n, 5), y = matrix<float>(n, 6);
  float two = 2, norm = 0, dot = 0;
  int largest = 0;
  BK(cublasSgemv(h, CUBLAS_OP_T, n, n, &two, a.p, n, x.p, 1, &two, y.p, 1));
  BK(cublasStrsm(h, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER,
                 CUBLAS_OP_N, CUBLAS_DIAG_UNIT, n, 8, &two, a.p, n, b.p, n));
  BK(cublasSsyrk(h, CUBLAS_FILL_MODE_UPPER, CUBLAS_OP_N, n, n, &two, a.p, n, &two, b.p, n));
  BK(cublasSnrm2(h, n, x.p, 1, &norm));
  BK(cublasSdot(h, n, x.p, 1, y.p, 1, &dot));
  BK(cublasIsamax(h, n, x.p, 1, &largest));
  printf("norm %a dot %a largest %d\n", norm, dot, largest);
  Out<float> on_device(1);
  BK(cublasSetPointerMode(h, CUBLAS_POINTER_MODE_DEVICE));
  BK(cublasSasum(h, n, y.p, 1, on_device.p));
  BK(cublasSetPointerMode(h, CUBLAS_POINTER_MODE_HOST));
  show("sum on the device", on_device.get());
  show("vector", y.get());
  show("triangle", b.get());

  // Calls on a stream, with a workspace of ours, captured.
  cudaStream_t s;
  CK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  Out<char> space(32 << 20);
  BK(cublasSetStream(h, s));
  BK(cublasSetWorkspace(h, space.p, space.n));
  Out<float> c(n * n);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  float one = 1, half = 0.5f;
  CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  BK(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a.p, n, a.p, n, &half, c.p, n));
  CK(cudaStreamEndCapture(s, &graph));
  CK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 5; i++) CK(cudaGraphLaunch(exec, s));
  CK(cudaStreamSynchronize(s));
  show("captured", c.get());
  BK(cublasDestroy(h));

  cublasXtHandle_t xt;
  int device = 0;
  BK(cublasXtCreate(&xt));
  BK(cublasXtDeviceSelect(xt, 1, &device));
  BK(cublasXtSetBlockDim(xt, 256));
  const size_t m = 700;
  std::vector<float> ha(m * m), hb(m * m), hc(m * m);
  for (size_t i = 0; i < m * m; i++) ha[i] = sample(i), hb[i] = sample(i + 11) - 0.5f;
  BK(cublasXtSgemm(xt, CUBLAS_OP_N, CUBLAS_OP_N, m, m, m, &one, ha.data(), m, hb.data(), m, &half, hc.data(), m));
  for (size_t i : {size_t(0), m * m / 2, m * m - 1}) {
    double want = 0;
    for (size_t k = 0; k < m; k++) want += (double)ha[i % m + k * m] * hb[k + i / m * m];
    CHECK(fabs(want - hc[i]) < 1e-2, "cublasXt: element %zu is %f, not %f", i, hc[i], want);
  }
  show("cublasXt", hc);
  BK(cublasXtDestroy(xt));
}
