// Shared by the CUDA C++ programs: they check themselves where they can and print digests, which must be the same
// natively and remotely.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define FAIL(...) (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), \
    fprintf(stderr, "\n"), exit(1))
#define CK(call) \
  do { \
    cudaError_t got_ = (call); \
    if (got_ != cudaSuccess) FAIL("%s: %s (%d)", #call, cudaGetErrorName(got_), (int)got_); \
  } while (0)
#define SHOW(call) printf("%s = %d\n", #call, (int)(call))
#define CHECK(cond, ...) \
  do { \
    if (!(cond)) FAIL(__VA_ARGS__); \
  } while (0)
// The errors of a launch and of its kernel.
#define RAN() \
  do { \
    CK(cudaGetLastError()); \
    CK(cudaDeviceSynchronize()); \
  } while (0)

inline uint64_t digest(const void *data, size_t n) { // FNV-1a
  const unsigned char *p = (const unsigned char *)data;
  uint64_t h = 14695981039346656037ull;
  while (n--) h = (h ^ *p++) * 1099511628211ull;
  return h;
}

template <typename T> void show(const char *what, const std::vector<T> &v) {
  printf("%s %016llx\n", what, (unsigned long long)digest(v.data(), v.size() * sizeof(T)));
}

// Device memory for the results of a kernel.
template <typename T> struct Out {
  T *p = nullptr;
  size_t n;
  explicit Out(size_t count) : n(count) {
    CK(cudaMalloc(&p, n * sizeof(T)));
    CK(cudaMemset(p, 0, n * sizeof(T)));
    CK(cudaStreamSynchronize(nullptr)); // other streams do not wait for it
  }
  Out(Out &&o) : p(o.p), n(o.n) { o.p = nullptr; }
  ~Out() { cudaFree(p); }
  std::vector<T> get() {
    std::vector<T> v(n);
    CK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
  }
};

inline float sample(size_t i) { return (float)((i * 2654435761u >> 8) & 0xFFFF) / 65536.0f; }
