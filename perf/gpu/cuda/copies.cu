// The runtime's forms of copies and sets: 2D, 3D, to and from arrays, symbols, registered and write-combined memory,
// memory that kernels read in place.
#include "check.cuh"

__constant__ int table[64];
__device__ float variable[100];

__global__ void use(int *out) { out[threadIdx.x] = table[threadIdx.x] * 2 + (int)variable[threadIdx.x]; }
__global__ void scale(const float *in, float *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i] * 1.5f;
}

int main() {
  const size_t w = 333, h = 77;
  std::vector<unsigned char> src(w * h * 8), dst(w * h * 8, 0);
  for (size_t i = 0; i < src.size(); i++) src[i] = (unsigned char)(i * 131 >> 3);
  unsigned char *d;
  size_t pitch;
  CK(cudaMallocPitch(&d, &pitch, w * 2, h));
  CK(cudaMemset2D(d, pitch, 7, w * 2, h));
  CK(cudaMemcpy2D(d + 5, pitch, src.data() + 3, w + 20, w, h, cudaMemcpyDefault));
  CK(cudaMemcpy2D(dst.data(), w * 3, d, pitch, w * 2, h, cudaMemcpyDefault));
  show("pitched", dst);

  cudaPitchedPtr solid;
  cudaExtent e = make_cudaExtent(100, 20, 10);
  CK(cudaMalloc3D(&solid, e));
  CK(cudaMemset3D(solid, 9, e));
  cudaMemcpy3DParms p;
  memset(&p, 0, sizeof p);
  p.srcPtr = make_cudaPitchedPtr(src.data(), 100, 100, 20), p.srcPos = make_cudaPos(10, 2, 1);
  p.dstPtr = solid, p.dstPos = make_cudaPos(3, 4, 5);
  p.extent = make_cudaExtent(80, 12, 5), p.kind = cudaMemcpyHostToDevice;
  CK(cudaMemcpy3D(&p));
  memset(&p, 0, sizeof p);
  p.srcPtr = solid, p.dstPtr = make_cudaPitchedPtr(dst.data(), 110, 110, 25);
  p.extent = e, p.kind = cudaMemcpyDeviceToHost;
  CK(cudaMemcpy3DAsync(&p, 0));
  CK(cudaDeviceSynchronize());
  show("solid", dst);

  cudaChannelFormatDesc f = cudaCreateChannelDesc<int>();
  cudaArray_t a, b;
  CK(cudaMallocArray(&a, &f, 64, 32));
  CK(cudaMallocArray(&b, &f, 64, 32));
  CK(cudaMemcpy2DToArray(a, 8, 2, src.data(), 200, 128, 20, cudaMemcpyHostToDevice));
  CK(cudaMemcpy2DArrayToArray(b, 0, 0, a, 8, 2, 128, 20));
  CK(cudaMemcpy2DFromArray(dst.data(), 256, b, 0, 0, 128, 20, cudaMemcpyDeviceToHost));
  for (int y = 0; y < 20; y++) CHECK(!memcmp(&dst[y * 256], &src[y * 200], 128), "row %d through arrays", y);
  CK(cudaMemcpy2DFromArrayAsync(d, pitch, b, 0, 0, 128, 20, cudaMemcpyDeviceToDevice, 0));
  CK(cudaMemcpy2D(dst.data(), 128, d, pitch, 128, 20, cudaMemcpyDeviceToHost));
  for (int y = 0; y < 20; y++)
    CHECK(!memcmp(&dst[y * 128], &src[y * 200], 128), "row %d from an array to the device", y);
  show("arrays", dst);

  int t[64];
  float v[100];
  for (int i = 0; i < 64; i++) t[i] = i * i;
  for (int i = 0; i < 100; i++) v[i] = (float)i;
  CK(cudaMemcpyToSymbol(table, t, sizeof t));
  CK(cudaMemcpyToSymbolAsync(variable, v + 10, 200, 40, cudaMemcpyHostToDevice, 0));
  Out<int> out(64);
  use<<<1, 64>>>(out.p);
  RAN();
  show("symbols", out.get());
  CK(cudaMemcpyFromSymbol(v, variable, sizeof v));
  printf("variable %g %g %g\n", v[9], v[10], v[59]);

  const int n = 50000;
  float *result;
  CK(cudaMalloc(&result, n * 4));
  std::vector<float> got(n);
  float *mapped, *combined, *seen;
  CK(cudaHostAlloc((void **)&mapped, n * 4, cudaHostAllocMapped | cudaHostAllocPortable));
  CK(cudaHostAlloc((void **)&combined, n * 4, cudaHostAllocMapped | cudaHostAllocWriteCombined));
  float *registered = (float *)aligned_alloc(4096, (n * 4 + 4095) / 4096 * 4096);
  CK(cudaHostRegister(registered, n * 4, cudaHostRegisterMapped | cudaHostRegisterPortable));
  unsigned flags;
  CK(cudaHostGetFlags(&flags, mapped));
  printf("flags %u", flags);
  CK(cudaHostGetFlags(&flags, combined));
  printf(" %u\n", flags);
  for (float *host : {mapped, combined, registered}) {
    for (int i = 0; i < n; i++) host[i] = sample(i) + 1;
    CK(cudaHostGetDevicePointer((void **)&seen, host, 0));
    scale<<<(n + 255) / 256, 256>>>(seen, result, n);
    CK(cudaGetLastError());
    CK(cudaMemcpy(got.data(), result, n * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) CHECK(got[i] == host[i] * 1.5f, "element %d of memory read in place", i);
    scale<<<(n + 255) / 256, 256>>>(result, seen, n); // and written in place
    RAN();
    for (int i = 0; i < n; i++) CHECK(host[i] == got[i] * 1.5f, "element %d of memory written in place", i);
  }
  CK(cudaHostUnregister(registered));
  SHOW(cudaHostUnregister(registered));
  CK(cudaFreeHost(mapped));
  CK(cudaFreeHost(combined));
  show("in place", got);
  return 0;
}
