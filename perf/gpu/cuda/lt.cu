// nvcc: -lcublasLt -lcuda
// cuBLASLt in bf16, fp16 and fp8, in two contexts at once: contexts and streams have ids of their own, and each
// thread's results are its own.
#include "check.cuh"
#include <algorithm>
#include <cmath>
#include <cublasLt.h>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <string>
#include <thread>

#define LK(call) \
  do { \
    cublasStatus_t got_ = (call); \
    if (got_ != CUBLAS_STATUS_SUCCESS) FAIL("%s: %s", #call, cublasLtGetStatusName(got_)); \
  } while (0)

template <typename A, typename C>
void product(cublasLtHandle_t lt, cudaStream_t s, const char *name, cudaDataType at, cudaDataType ct, int seed,
             std::string &text) {
  const int m = 256, n = 128, k = 512;
  std::vector<A> a(m * k), b(n * k);
  for (int i = 0; i < m * k; i++) a[i] = A(sample(i + seed) - 0.5f);
  for (int i = 0; i < n * k; i++) b[i] = A(sample(i + seed + 5) - 0.5f);
  Out<A> da(m * k), db(n * k);
  Out<C> dc(m * n);
  Out<char> space(8 << 20);
  CK(cudaMemcpyAsync(da.p, a.data(), a.size() * sizeof(A), cudaMemcpyHostToDevice, s));
  CK(cudaMemcpyAsync(db.p, b.data(), b.size() * sizeof(A), cudaMemcpyHostToDevice, s));
  cublasLtMatmulDesc_t op;
  cublasLtMatrixLayout_t la, lb, lc;
  cublasLtMatmulPreference_t want;
  cublasOperation_t transposed = CUBLAS_OP_T;
  LK(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  LK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_RELU;
  LK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
  LK(cublasLtMatrixLayoutCreate(&la, at, k, m, k));
  LK(cublasLtMatrixLayoutCreate(&lb, at, k, n, k));
  LK(cublasLtMatrixLayoutCreate(&lc, ct, m, n, m));
  LK(cublasLtMatmulPreferenceCreate(&want));
  size_t room = space.n;
  LK(cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room));
  cublasLtMatmulHeuristicResult_t found[4];
  int count = 0;
  LK(cublasLtMatmulAlgoGetHeuristic(lt, op, la, lb, lc, lc, want, 4, found, &count));
  CHECK(count > 0, "no algorithm for %s", name);
  float one = 1, zero = 0;
  for (int round = 0; round < 20; round++)
    LK(cublasLtMatmul(lt, op, &one, da.p, la, db.p, lb, &zero, dc.p, lc, dc.p, lc, &found[0].algo, space.p, room, s));
  CK(cudaStreamSynchronize(s));
  auto c = dc.get();
  double error = 0;
  for (int j = 0; j < n; j += 37)
    for (int i = 0; i < m; i += 29) {
      double sum = 0;
      for (int l = 0; l < k; l++) sum += (double)float(a[i * k + l]) * float(b[j * k + l]);
      error = fmax(error, fabs(fmax(sum, 0.0) - float(c[j * m + i])));
    }
  CHECK(error < 0.2, "%s: an error of %f", name, error);
  char line[200];
  snprintf(line, sizeof line, "  %s %d ways %016llx\n", name, count,
           (unsigned long long)digest(c.data(), c.size() * sizeof(C)));
  text += line;
  cublasLtMatmulPreferenceDestroy(want), cublasLtMatrixLayoutDestroy(la), cublasLtMatrixLayoutDestroy(lb),
      cublasLtMatrixLayoutDestroy(lc), cublasLtMatmulDescDestroy(op);
}

struct Side {
  CUcontext context = nullptr;
  unsigned long long id = 0, stream = 0;
  std::string text;
};

void run(Side &side, int seed, bool own) {
  if (own) {
    #if CUDA_VERSION >= 13000
    CHECK(cuCtxCreate(&side.context, nullptr, 0, 0) == CUDA_SUCCESS, "no context");
#else
    CHECK(cuCtxCreate(&side.context, 0, 0) == CUDA_SUCCESS, "no context");
#endif
  } else {
    CK(cudaSetDevice(0));
    CK(cudaFree(nullptr));
    CHECK(cuCtxGetCurrent(&side.context) == CUDA_SUCCESS, "no context");
  }
  CHECK(cuCtxGetId(side.context, &side.id) == CUDA_SUCCESS, "no id");
  cudaStream_t s;
  CK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  CHECK(cuStreamGetId(s, &side.stream) == CUDA_SUCCESS, "no id of the stream");
  cublasLtHandle_t lt;
  LK(cublasLtCreate(&lt));
  product<__nv_bfloat16, __nv_bfloat16>(lt, s, "bf16", CUDA_R_16BF, CUDA_R_16BF, seed, side.text);
  product<__half, __half>(lt, s, "fp16", CUDA_R_16F, CUDA_R_16F, seed, side.text);
  product<__nv_fp8_e4m3, __nv_bfloat16>(lt, s, "fp8", CUDA_R_8F_E4M3, CUDA_R_16BF, seed, side.text);
  product<float, float>(lt, s, "fp32", CUDA_R_32F, CUDA_R_32F, seed, side.text);
  LK(cublasLtDestroy(lt));
}

int main() {
  CHECK(cuInit(0) == CUDA_SUCCESS, "cuInit");
  Side sides[3];
  std::thread threads[3];
  for (int i = 0; i < 3; i++) threads[i] = std::thread(run, std::ref(sides[i]), i * 100, i > 0);
  for (auto &t : threads) t.join();
  for (auto &side : sides) printf("context\n%s", side.text.c_str());
  CHECK(sides[0].id != sides[1].id && sides[1].id != sides[2].id && sides[0].id != sides[2].id, "contexts share an id");
  printf("streams differ: %d\n", sides[0].stream != sides[1].stream && sides[1].stream != sides[2].stream);
}
