// Copies in both directions and kernels that overlap in many streams, with priorities, events between them and host
// functions behind them.
#include "check.cuh"
#include <algorithm>
#include <cmath>
#include <atomic>

__global__ void mix(unsigned *p, int n, unsigned k) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) p[i] = p[i] * 1664525u + k;
}

static std::atomic<int> done;
static void finished(void *) { done++; }

int main() {
  const int n = 1 << 20, streams = 8, rounds = 12;
  int least, greatest;
  CK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  printf("priorities %d to %d\n", least, greatest);
  struct {
    cudaStream_t s;
    cudaEvent_t e;
    unsigned *host, *back, *device;
  } w[streams];
  for (int i = 0; i < streams; i++) {
    int want = i % 2 ? least : greatest, got;
    CK(cudaStreamCreateWithPriority(&w[i].s, cudaStreamNonBlocking, want));
    CK(cudaStreamGetPriority(w[i].s, &got));
    CHECK(got == want, "priority %d, not %d", got, want);
    CK(cudaEventCreateWithFlags(&w[i].e, cudaEventDisableTiming));
    CK(cudaMallocHost((void **)&w[i].host, 4 * n));
    CK(cudaMallocHost((void **)&w[i].back, 4 * n));
    CK(cudaMalloc((void **)&w[i].device, 4 * n));
    for (int k = 0; k < n; k++) w[i].host[k] = k * (i + 1);
  }
  for (int r = 0; r < rounds; r++)
    for (int i = 0; i < streams; i++) {
      if (r == 0) CK(cudaMemcpyAsync(w[i].device, w[i].host, 4 * n, cudaMemcpyHostToDevice, w[i].s));
      if (r % 3 == 2) CK(cudaStreamWaitEvent(w[i].s, w[(i + 1) % streams].e, 0));
      mix<<<64, 256, 0, w[i].s>>>(w[i].device, n, r * 77 + i);
      // while others read it
      if (r % 3 == 1)
        CK(cudaMemcpyAsync(w[i].device, w[(i + 3) % streams].host, 4 * (n / 4), cudaMemcpyHostToDevice, w[i].s));
      CK(cudaMemcpyAsync(w[i].back, w[i].device, 4 * n, cudaMemcpyDeviceToHost, w[i].s));
      CK(cudaEventRecord(w[i].e, w[i].s));
      CK(cudaLaunchHostFunc(w[i].s, finished, nullptr));
    }
  for (auto &v : w) CK(cudaStreamSynchronize(v.s));
  printf("host functions %d\n", done.load());
  for (int i = 0; i < streams; i++) {
    std::vector<unsigned> v(w[i].back, w[i].back + n), want(w[i].host, w[i].host + n);
    for (int r = 0; r < rounds; r++) {
      for (auto &x : want) x = x * 1664525u + (r * 77 + i);
      if (r % 3 == 1) std::copy(w[(i + 3) % streams].host, w[(i + 3) % streams].host + n / 4, want.begin());
    }
    CHECK(v == want, "stream %d is wrong", i);
    show("stream", v);
  }
}
