// A pool over managed memory in the manner of RMM: big slabs, cut into blocks that are handed out and taken back in
// streams, with the CPU looking in.
#include "check.cuh"
#include <algorithm>
#include <map>

class Pool {
  static constexpr size_t slab = 8 << 20;
  std::multimap<size_t, char *> free_;
  std::map<char *, size_t> used_;
  std::vector<char *> slabs_;

public:
  ~Pool() { for (char *s : slabs_) CK(cudaFree(s)); }
  void *take(size_t n) {
    n = (n + 255) / 256 * 256;
    auto at = free_.lower_bound(n);
    if (at == free_.end()) {
      char *s;
      CK(cudaMallocManaged(&s, std::max(slab, n)));
      slabs_.push_back(s);
      at = free_.emplace(std::max(slab, n), s);
    }
    auto [size, p] = *at;
    free_.erase(at);
    if (size > n) free_.emplace(size - n, p + n);
    used_[p] = n;
    return p;
  }
  void give(void *p) {
    auto at = used_.find((char *)p);
    free_.emplace(at->second, at->first);
    used_.erase(at);
  }
  size_t slabs() const { return slabs_.size(); }
};

__global__ void axpy(float a, const float *x, float *y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = fmaf(a, x[i], y[i]);
}

int main() {
  Pool pool;
  cudaStream_t s[3];
  for (auto &x : s) CK(cudaStreamCreate(&x));
  unsigned seed = 7;
  double total = 0;
  for (int round = 0; round < 60; round++) {
    struct Job { float *x, *y; int n; } job[3];
    for (int k = 0; k < 3; k++) {
      seed = seed * 1664525 + 1013904223;
      int n = 1 + (seed >> 8) % 200000;
      job[k] = {(float *)pool.take(4 * n), (float *)pool.take(4 * n), n};
      for (int i = 0; i < n; i++) job[k].x[i] = (float)(i % 100), job[k].y[i] = (float)(round + k);
    }
    for (int k = 0; k < 3; k++) axpy<<<32, 256, 0, s[k]>>>(2, job[k].x, job[k].y, job[k].n);
    CK(cudaGetLastError());
    CK(cudaDeviceSynchronize());
    for (auto &j : job) {
      for (int i = 0; i < j.n; i += 1 + round) total += j.y[i];
      pool.give(j.x);
      pool.give(j.y);
    }
  }
  printf("total %.0f\n", total);
  for (auto &x : s) CK(cudaStreamDestroy(x));
  return 0;
}
