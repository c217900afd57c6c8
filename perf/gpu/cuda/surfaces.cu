// Surface objects: rows, planes, solids, layers and cubes that kernels write and read; boundary modes.
#include "check.cuh"

enum { W = 48, H = 20, D = 4 };

__global__ void write1(cudaSurfaceObject_t s) {
  int x = blockIdx.x * blockDim.x + threadIdx.x;
  if (x < W) surf1Dwrite(x * 3.5f, s, x * 4);
}
__global__ void write2(cudaSurfaceObject_t s) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < W && y < H) surf2Dwrite(make_uchar4(x, y, x + y, x ^ y), s, x * 4, y);
}
__global__ void turn2(cudaSurfaceObject_t from, cudaSurfaceObject_t to) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= W || y >= H) return;
  uchar4 v;
  surf2Dread(&v, from, (W - 1 - x) * 4, H - 1 - y);
  surf2Dwrite(make_uchar4(v.w, v.z, v.y, v.x), to, x * 4, y);
}
__global__ void edges(cudaSurfaceObject_t s, uchar4 *out) {
  int i = threadIdx.x;
  uchar4 zero, clamp;
  surf2Dread(&zero, s, (i - 8) * 4, i - 8, cudaBoundaryModeZero);
  surf2Dread(&clamp, s, (i - 8) * 4, i - 8, cudaBoundaryModeClamp);
  out[i] = zero;
  out[i + 64] = clamp;
}
__global__ void write3(cudaSurfaceObject_t s) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < W && y < H)
    for (int z = 0; z < D; z++) surf3Dwrite(make_float2(x + 100 * z, y), s, x * 8, y, z);
}
__global__ void write_layers(cudaSurfaceObject_t s) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < W && y < H)
    for (int l = 0; l < D; l++) surf2DLayeredwrite((unsigned short)(l * 1000 + y * W + x), s, x * 2, y, l);
}
__global__ void write_cube(cudaSurfaceObject_t s, int n) {
  int x = threadIdx.x, y = threadIdx.y;
  for (int f = 0; f < 6; f++) {
    surfCubemapwrite(f * 1000 + y * n + x, s, x * 4, y, f);
    int v;
    surfCubemapread(&v, s, x * 4, y, f);
    surfCubemapwrite(v + 1, s, x * 4, y, f);
  }
}

static cudaSurfaceObject_t surface(cudaArray_t a) {
  cudaResourceDesc r, got;
  memset(&r, 0, sizeof r);
  r.resType = cudaResourceTypeArray;
  r.res.array.array = a;
  cudaSurfaceObject_t s;
  CK(cudaCreateSurfaceObject(&s, &r));
  CK(cudaGetSurfaceObjectResourceDesc(&got, s));
  CHECK(got.res.array.array == a, "resource of a surface object");
  return s;
}

template <typename T> static cudaArray_t array(size_t w, size_t h, size_t d, unsigned flags) {
  cudaChannelFormatDesc f = cudaCreateChannelDesc<T>();
  cudaArray_t a;
  CK(cudaMalloc3DArray(&a, &f, make_cudaExtent(w, h, d), flags | cudaArraySurfaceLoadStore));
  return a;
}

template <typename T> static std::vector<T> contents(cudaArray_t a, size_t w, size_t h, size_t d) {
  std::vector<T> v(w * h * d);
  cudaMemcpy3DParms p;
  memset(&p, 0, sizeof p);
  p.srcArray = a;
  p.dstPtr = make_cudaPitchedPtr(v.data(), w * sizeof(T), w, h);
  p.extent = make_cudaExtent(w, h, d);
  p.kind = cudaMemcpyDeviceToHost;
  CK(cudaMemcpy3D(&p));
  return v;
}

int main() {
  dim3 threads(8, 4), blocks(W / 8, H / 4);
  cudaArray_t one = array<float>(W, 0, 0, 0), two = array<uchar4>(W, H, 0, 0),
      other = array<uchar4>(W, H, 0, 0), three = array<float2>(W, H, D, 0),
              layers = array<unsigned short>(W, H, D, cudaArrayLayered), cube = array<int>(16, 16, 6, cudaArrayCubemap);
  cudaSurfaceObject_t s1 = surface(one), s2 = surface(two), s2b = surface(other),
      s3 = surface(three), sl = surface(layers), sc = surface(cube);
  write1<<<1, W>>>(s1);
  write2<<<blocks, threads>>>(s2);
  turn2<<<blocks, threads>>>(s2, s2b);
  write3<<<blocks, threads>>>(s3);
  write_layers<<<blocks, threads>>>(sl);
  write_cube<<<1, dim3(16, 16)>>>(sc, 16);
  RAN();
  show("row", contents<float>(one, W, 1, 1));
  show("plane", contents<uchar4>(two, W, H, 1));
  show("turned", contents<uchar4>(other, W, H, 1));
  show("solid", contents<float2>(three, W, H, D));
  show("layers", contents<unsigned short>(layers, W, H, D));
  show("cube", contents<int>(cube, 16, 16, 6));
  Out<uchar4> out(128);
  edges<<<1, 64>>>(s2, out.p);
  RAN();
  show("edges", out.get());
  auto row = contents<float>(one, W, 1, 1);
  for (int x = 0; x < W; x++) CHECK(row[x] == x * 3.5f, "row[%d]", x);
  for (cudaSurfaceObject_t s : {s1, s2, s2b, s3, sl, sc}) CK(cudaDestroySurfaceObject(s));
  for (cudaArray_t a : {one, two, other, three, layers, cube}) CK(cudaFreeArray(a));
  return 0;
}
