// nvcc: -lcusparse -lcusolver -lcurand -lcublas
// cuSPARSE, cuSOLVER and cuRAND.
#include "check.cuh"
#include <algorithm>
#include <cmath>
#include <curand.h>
#include <cusolverDn.h>
#include <cusparse.h>

#define OK(call) \
  do { \
    int got_ = (int)(call); \
    if (got_) FAIL("%s: %d", #call, got_); \
  } while (0)

void sparse() {
  const int rows = 300, columns = 200;
  std::vector<int> offsets{0}, indices;
  std::vector<float> values;
  for (int r = 0; r < rows; r++) {
    for (int c = r % 7; c < columns; c += 7 + r % 5)
      indices.push_back(c), values.push_back(sample(values.size()) - 0.5f);
    offsets.push_back((int)indices.size());
  }
  const int nnz = (int)values.size();
  Out<int> o(rows + 1), ix(nnz);
  Out<float> v(nnz), x(columns), y(rows), b(columns * 16), c(rows * 16);
  std::vector<float> h(columns * 16);
  for (size_t i = 0; i < h.size(); i++) h[i] = sample(i + 9);
  CK(cudaMemcpy(o.p, offsets.data(), 4 * offsets.size(), cudaMemcpyHostToDevice));
  CK(cudaMemcpy(ix.p, indices.data(), 4 * nnz, cudaMemcpyHostToDevice));
  CK(cudaMemcpy(v.p, values.data(), 4 * nnz, cudaMemcpyHostToDevice));
  CK(cudaMemcpy(x.p, h.data(), 4 * columns, cudaMemcpyHostToDevice));
  CK(cudaMemcpy(b.p, h.data(), 4 * h.size(), cudaMemcpyHostToDevice));
  cusparseHandle_t handle;
  cusparseSpMatDescr_t a;
  cusparseDnVecDescr_t vx, vy;
  cusparseDnMatDescr_t mb, mc;
  OK(cusparseCreate(&handle));
  OK(cusparseCreateCsr(&a, rows, columns, nnz, o.p, ix.p, v.p, CUSPARSE_INDEX_32I,
                       CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F));
  OK(cusparseCreateDnVec(&vx, columns, x.p, CUDA_R_32F));
  OK(cusparseCreateDnVec(&vy, rows, y.p, CUDA_R_32F));
  OK(cusparseCreateDnMat(&mb, columns, 16, columns, b.p, CUDA_R_32F, CUSPARSE_ORDER_COL));
  OK(cusparseCreateDnMat(&mc, rows, 16, rows, c.p, CUDA_R_32F, CUSPARSE_ORDER_COL));
  float one = 1, zero = 0;
  size_t space;
  OK(cusparseSpMV_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one,
                             a, vx, &zero, vy, CUDA_R_32F, CUSPARSE_SPMV_CSR_ALG2, &space));
  Out<char> room(space + 1);
  OK(cusparseSpMV(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, a, vx,
                  &zero, vy, CUDA_R_32F, CUSPARSE_SPMV_CSR_ALG2, room.p));
  show("sparse times vector", y.get());
  OK(cusparseSpMM_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE,
                             &one, a, mb, &zero, mc, CUDA_R_32F, CUSPARSE_SPMM_CSR_ALG3, &space));
  Out<char> more(space + 1);
  OK(cusparseSpMM(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE,
                  &one, a, mb, &zero, mc, CUDA_R_32F, CUSPARSE_SPMM_CSR_ALG3, more.p));
  show("sparse times matrix", c.get());
  OK(cusparseDestroy(handle));
}

void solver() {
  const int n = 96;
  std::vector<double> h(n * n);
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) h[i * n + j] = (i == j ? n : 0) + sample(std::min(i, j) * n + std::max(i, j));
  Out<double> a(n * n), w(n);
  Out<int> info(1);
  cusolverDnHandle_t handle;
  OK(cusolverDnCreate(&handle));
  auto fresh = [&] { CK(cudaMemcpy(a.p, h.data(), 8 * h.size(), cudaMemcpyHostToDevice)); };
  int size;
  fresh();
  OK(cusolverDnDpotrf_bufferSize(handle, CUBLAS_FILL_MODE_LOWER, n, a.p, n, &size));
  Out<double> r1(size + 1);
  OK(cusolverDnDpotrf(handle, CUBLAS_FILL_MODE_LOWER, n, a.p, n, r1.p, size, info.p));
  CHECK(info.get()[0] == 0, "potrf: %d", info.get()[0]);
  show("cholesky", a.get());
  fresh();
  OK(cusolverDnDgeqrf_bufferSize(handle, n, n, a.p, n, &size));
  Out<double> r2(size + 1), tau(n);
  OK(cusolverDnDgeqrf(handle, n, n, a.p, n, tau.p, r2.p, size, info.p));
  show("qr", a.get());
  fresh();
  OK(cusolverDnDsyevd_bufferSize(handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, a.p, n, w.p, &size));
  Out<double> r3(size + 1);
  OK(cusolverDnDsyevd(handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, a.p, n, w.p, r3.p, size, info.p));
  CHECK(info.get()[0] == 0, "syevd: %d", info.get()[0]);
  show("eigenvalues", w.get());
  fresh();
  Out<double> u(n * n), vt(n * n);
  OK(cusolverDnDgesvd_bufferSize(handle, n, n, &size));
  Out<double> r4(size + 1), rest(n);
  OK(cusolverDnDgesvd(handle, 'A', 'A', n, n, a.p, n, w.p, u.p, n, vt.p, n, r4.p, size, rest.p, info.p));
  CHECK(info.get()[0] == 0, "gesvd: %d", info.get()[0]);
  show("singular values", w.get());
  OK(cusolverDnDestroy(handle));
}

void randoms() {
  for (curandRngType_t type
       : {CURAND_RNG_PSEUDO_XORWOW, CURAND_RNG_PSEUDO_MRG32K3A, CURAND_RNG_PSEUDO_MTGP32,
          CURAND_RNG_PSEUDO_PHILOX4_32_10, CURAND_RNG_QUASI_SOBOL32}) {
    curandGenerator_t g;
    OK(curandCreateGenerator(&g, type));
    if (type != CURAND_RNG_QUASI_SOBOL32) OK(curandSetPseudoRandomGeneratorSeed(g, 1234));
    Out<float> uniform(10000), normal(10000);
    Out<unsigned> bits(1000);
    OK(curandGenerateUniform(g, uniform.p, uniform.n));
    OK(curandGenerateNormal(g, normal.p, normal.n, 1, 2));
    OK(curandGenerate(g, bits.p, bits.n));
    show("uniform", uniform.get());
    show("  normal", normal.get());
    show("  bits", bits.get());
    OK(curandDestroyGenerator(g));
  }
  curandGenerator_t g;
  std::vector<float> host(1000);
  OK(curandCreateGeneratorHost(&g, CURAND_RNG_PSEUDO_PHILOX4_32_10));
  OK(curandSetPseudoRandomGeneratorSeed(g, 7));
  OK(curandGenerateUniform(g, host.data(), host.size()));
  show("on the host", host);
  OK(curandDestroyGenerator(g));
}

int main() {
  sparse();
  solver();
  randoms();
}
