// Stream-ordered allocation: pools, their attributes and limits, reuse in stream order, allocation in graphs.
#include "check.cuh"

__global__ void fill(int *p, int n, int v) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) p[i] = v + i;
}
__global__ void add(int *to, const int *from, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] += from[i];
}

int main() {
  const int n = 100000;
  cudaStream_t s, t;
  CK(cudaStreamCreate(&s));
  CK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
  Out<int> sum(n);
  std::vector<int> want(n, 0);
  for (int round = 0; round < 100; round++) {
    int *p, *q;
    CK(cudaMallocAsync(&p, (n + round * 1000) * 4, s));
    CK(cudaMallocAsync(&q, n * 4, s));
    fill<<<(n + 255) / 256, 256, 0, s>>>(p, n, round);
    CK(cudaMemcpyAsync(q, p, n * 4, cudaMemcpyDeviceToDevice, s));
    CK(cudaFreeAsync(p, s));
    add<<<(n + 255) / 256, 256, 0, s>>>(sum.p, q, n);
    CK(cudaFreeAsync(q, s));
    for (int i = 0; i < n; i++) want[i] += round + i;
  }
  CK(cudaStreamSynchronize(s));
  CHECK(sum.get() == want, "sums through stream-ordered memory");
  show("rounds", sum.get());

  cudaMemPool_t pool, current;
  cudaMemPoolProps props;
  memset(&props, 0, sizeof props);
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  CK(cudaMemPoolCreate(&pool, &props));
  uint64_t threshold = 64 << 20, value = 0;
  CK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  CK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &value));
  printf("threshold %llu\n", (unsigned long long)value);
  int off = 0, flag = 1;
  CK(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowOpportunistic, &off));
  CK(cudaMemPoolGetAttribute(pool, cudaMemPoolReuseAllowOpportunistic, &flag));
  printf("opportunistic %d\n", flag);
  int *p;
  CK(cudaMallocFromPoolAsync(&p, 1 << 20, pool, s));
  CK(cudaStreamSynchronize(s));
  CK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &value));
  printf("used %llu\n", (unsigned long long)value);
  CK(cudaFreeAsync(p, s));
  CK(cudaStreamSynchronize(s));
  CK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &value));
  printf("used %llu\n", (unsigned long long)value);
  CK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &value));
  printf("high %llu\n", (unsigned long long)value);
  CK(cudaMemPoolTrimTo(pool, 0));
  CK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &value));
  printf("reserved %llu\n", (unsigned long long)value);
  cudaMemAccessDesc access;
  access.location.type = cudaMemLocationTypeDevice, access.location.id = 0;
  access.flags = cudaMemAccessFlagsProtReadWrite;
  CK(cudaMemPoolSetAccess(pool, &access, 1));
  cudaMemAccessFlags got;
  CK(cudaMemPoolGetAccess(&got, pool, &access.location));
  printf("access %d\n", (int)got);
  CK(cudaDeviceSetMemPool(0, pool));
  CK(cudaDeviceGetMemPool(&current, 0));
  CHECK(current == pool, "the device's pool");
  CK(cudaMallocAsync(&p, 4000, t));
  CK(cudaMemsetAsync(p, 1, 4000, t));
  cudaPointerAttributes a;
  CK(cudaStreamSynchronize(t));
  CK(cudaPointerGetAttributes(&a, p));
  printf("type %d device %d\n", (int)a.type, a.device);
  CK(cudaFree(p)); // works for this memory, too
  CK(cudaDeviceGetDefaultMemPool(&current, 0));
  CK(cudaDeviceSetMemPool(0, current));
  CK(cudaMemPoolDestroy(pool));

  cudaGraph_t g;
  cudaGraphExec_t x;
  CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  CK(cudaMallocAsync(&p, n * 4, s));
  fill<<<(n + 255) / 256, 256, 0, s>>>(p, n, 1);
  add<<<(n + 255) / 256, 256, 0, s>>>(sum.p, p, n);
  CK(cudaFreeAsync(p, s));
  CK(cudaStreamEndCapture(s, &g));
  CK(cudaGraphInstantiate(&x, g, 0));
  for (int round = 0; round < 5; round++) CK(cudaGraphLaunch(x, s));
  CK(cudaStreamSynchronize(s));
  for (int i = 0; i < n; i++) want[i] += 5 * (1 + i);
  CHECK(sum.get() == want, "sums through memory of a graph");
  show("graph", sum.get());
  CK(cudaGraphExecDestroy(x));
  CK(cudaGraphDestroy(g));
  SHOW(cudaMallocAsync(&p, (size_t)1 << 50, s));
  return 0;
}
