// Peer access and copies between two GPUs; says so and ends where there is only one.
#include "check.cuh"

__global__ void twice(const int *from, int *to, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = 2 * from[i];
}

int main() {
  int count, can;
  CK(cudaGetDeviceCount(&count));
  if (count < 2) {
    printf("one GPU\n");
    return 0;
  }
  CK(cudaDeviceCanAccessPeer(&can, 0, 1));
  printf("can access: %d\n", can);
  const int n = 1 << 20;
  std::vector<int> data(n), got(n);
  for (int i = 0; i < n; i++) data[i] = i * 7;
  int *a, *b;
  CK(cudaSetDevice(0));
  CK(cudaMalloc(&a, n * 4));
  CK(cudaMemcpy(a, data.data(), n * 4, cudaMemcpyHostToDevice));
  CK(cudaSetDevice(1));
  CK(cudaMalloc(&b, n * 4));
  CK(cudaMemcpyPeer(b, 1, a, 0, n * 4));
  CK(cudaMemcpy(got.data(), b, n * 4, cudaMemcpyDeviceToHost));
  CHECK(got == data, "cudaMemcpyPeer");
  if (can) {
    CK(cudaDeviceEnablePeerAccess(0, 0));
    SHOW(cudaDeviceEnablePeerAccess(0, 0));
    cudaGetLastError();
    twice<<<n / 256, 256>>>(a, b, n);
    RAN();
    CK(cudaMemcpy(got.data(), b, n * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) CHECK(got[i] == 2 * data[i], "element %d read from the other GPU", i);
    CK(cudaDeviceDisablePeerAccess(0));
  }
  CK(cudaMemcpyPeerAsync(a, 0, b, 1, n * 4, 0));
  CK(cudaDeviceSynchronize());
  CK(cudaMemcpy(got.data(), a, n * 4, cudaMemcpyDefault));
  show("back", got);
  return 0;
}
