// The first runtime call of a new thread is something other than cudaSetDevice, after the main thread made the context.
#include <cstdio>
#include <cstdlib>
#include <thread>

static void check(cudaError_t e, const char *what, const char *call) {
  if (e == cudaSuccess) return;
  printf("%s: %s = %s\n", what, call, cudaGetErrorName(e));
  exit(1);
}
#define CHECK(call) check(call, what, #call)

__global__ void add(int *p, int n) { atomicAdd(p, n); }

int main() {
  const char *what = "main thread";
  int *p, value = 0;
  CHECK(cudaMalloc(&p, sizeof *p));
  CHECK(cudaMemset(p, 0, sizeof *p));
  std::thread([&] {
    const char *what = "launch";
    add<<<1, 32>>>(p, 1);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
  }).join();
  std::thread([&] {
    const char *what = "pinned memory";
    void *h, *d;
    CHECK(cudaHostAlloc(&h, 4096, cudaHostAllocDefault));
    CHECK(cudaHostGetDevicePointer(&d, h, 0));
    CHECK(cudaFreeHost(h));
  }).join();
  std::thread([&] {
    const char *what = "copy";
    CHECK(cudaMemcpy(&value, p, sizeof value, cudaMemcpyDeviceToHost));
  }).join();
  std::thread([&] {
    const char *what = "event";
    cudaEvent_t e;
    CHECK(cudaEventCreate(&e));
    CHECK(cudaEventRecord(e));
    CHECK(cudaEventSynchronize(e));
    CHECK(cudaEventDestroy(e));
  }).join();
  std::thread([&] {
    const char *what = "attributes";
    cudaFuncAttributes a;
    int device = -1, blocks = 0;
    CHECK(cudaFuncGetAttributes(&a, add));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add, 128, 0));
    CHECK(cudaGetDevice(&device));
    printf("device %d, %d blocks\n", device, blocks);
  }).join();
  printf("value %d\n", value);
  return 0;
}
