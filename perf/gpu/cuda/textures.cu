// Texture objects of every shape: linear memory, pitched memory, arrays, layers, cubes, mipmaps; filters, address
// modes, reads as integers and as normalised floats, gather, gradients.
#include "check.cuh"

enum { W = 40, H = 24, D = 6, L = 5 };

__global__ void fetch1(cudaTextureObject_t t, float *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = tex1Dfetch<float>(t, i - 2);
}
__global__ void fetch4(cudaTextureObject_t t, uchar4 *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = tex1Dfetch<uchar4>(t, i);
}
__global__ void read1(cudaTextureObject_t t, float *out, int n, float from, float step) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = tex1D<float>(t, from + i * step);
}
__global__ void read2(cudaTextureObject_t t, float *out, int w, int h, float x0, float y0, float dx, float dy) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < w && y < h) out[y * w + x] = tex2D<float>(t, x0 + x * dx, y0 + y * dy);
}
__global__ void read2raw(cudaTextureObject_t t, ushort2 *out, int w, int h) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < w && y < h) out[y * w + x] = tex2D<ushort2>(t, x, y);
}
__global__ void read3(cudaTextureObject_t t, float *out, int w, int h, int d) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < w && y < h)
    for (int z = 0; z < d; z++) out[(z * h + y) * w + x] = tex3D<float>(t, x + 0.25f, y + 0.5f, z + 0.75f);
}
__global__ void layers1(cudaTextureObject_t t, float *out, int n, int layers) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    for (int l = 0; l < layers; l++) out[l * n + i] = tex1DLayered<float>(t, i + 0.3f, l);
}
__global__ void layers2(cudaTextureObject_t t, float *out, int w, int h, int layers) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < w && y < h)
    for (int l = 0; l < layers; l++) out[(l * h + y) * w + x] = tex2DLayered<float>(t, x + 0.5f, y + 0.125f, l);
}
__device__ float3 direction(int face, float u, float v) {
  switch (face) {
  case 0: return make_float3(1, -v, -u);
  case 1: return make_float3(-1, -v, u);
  case 2: return make_float3(u, 1, v);
  case 3: return make_float3(u, -1, -v);
  case 4: return make_float3(u, -v, 1);
  default: return make_float3(-u, -v, -1);
  }
}
__global__ void cube(cudaTextureObject_t t, float *out, int n, int cubes) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= n || y >= n) return;
  float u = (x + 0.5f) / n * 2 - 1, v = (y + 0.5f) / n * 2 - 1;
  for (int l = 0; l < (cubes ? cubes : 1); l++)
    for (int f = 0; f < 6; f++) {
      float3 d = direction(f, u, v);
      out[((l * 6 + f) * n + y) * n + x] = cubes ? texCubemapLayered<float>(t, d.x, d.y, d.z, l)
          : texCubemap<float>(t, d.x, d.y, d.z);
    }
}
__global__ void mip(cudaTextureObject_t t, float *out, int w, int h, float level) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < w && y < h) out[y * w + x] = tex2DLod<float>(t, (x + 0.5f) / w, (y + 0.5f) / h, level);
}
__global__ void gradient(cudaTextureObject_t t, float *out, int w, int h, float d) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < w && y < h)
    out[y * w + x] = tex2DGrad<float>(t, (x + 0.5f) / w, (y + 0.5f) / h, make_float2(d, 0), make_float2(0, d));
}
__global__ void gather(cudaTextureObject_t t, float4 *out, int w, int h) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < w && y < h) out[y * w + x] = tex2Dgather<float4>(t, x + 1.0f, y + 1.0f, 0);
}

static dim3 threads(8, 8), blocks(W / 8, H / 8);

static cudaTextureDesc how(cudaTextureAddressMode address, cudaTextureFilterMode filter,
                           bool normalised, cudaTextureReadMode read = cudaReadModeElementType) {
  cudaTextureDesc d;
  memset(&d, 0, sizeof d);
  d.addressMode[0] = d.addressMode[1] = d.addressMode[2] = address;
  d.filterMode = filter;
  d.normalizedCoords = normalised;
  d.readMode = read;
  d.borderColor[0] = 0.625f;
  return d;
}

static cudaTextureObject_t object(const cudaResourceDesc &res, const cudaTextureDesc &d) {
  cudaTextureObject_t t;
  CK(cudaCreateTextureObject(&t, &res, &d, nullptr));
  cudaResourceDesc got;
  cudaTextureDesc gotDesc;
  CK(cudaGetTextureObjectResourceDesc(&got, t));
  CK(cudaGetTextureObjectTextureDesc(&gotDesc, t));
  CHECK(got.resType == res.resType && gotDesc.filterMode == d.filterMode &&
        gotDesc.addressMode[0] == d.addressMode[0], "descriptions of a texture object");
  if (res.resType == cudaResourceTypeArray)
    CHECK(got.res.array.array == res.res.array.array, "array of a texture object");
  return t;
}

static cudaResourceDesc of(cudaArray_t a) {
  cudaResourceDesc r;
  memset(&r, 0, sizeof r);
  r.resType = cudaResourceTypeArray;
  r.res.array.array = a;
  return r;
}

static cudaArray_t array(size_t w, size_t h, size_t d, unsigned flags, const std::vector<float> &data) {
  cudaChannelFormatDesc f = cudaCreateChannelDesc<float>();
  cudaArray_t a;
  CK(cudaMalloc3DArray(&a, &f, make_cudaExtent(w, h, d), flags));
  cudaMemcpy3DParms p;
  memset(&p, 0, sizeof p);
  size_t rows = h ? h : 1;
  p.srcPtr = make_cudaPitchedPtr((void *)data.data(), w * 4, w, rows);
  p.dstArray = a;
  p.extent = make_cudaExtent(w, rows, d ? d : 1);
  p.kind = cudaMemcpyHostToDevice;
  CK(cudaMemcpy3D(&p));
  cudaExtent e;
  unsigned gotFlags;
  CK(cudaArrayGetInfo(&f, &e, &gotFlags, a));
  CHECK(e.width == w && e.height == h && e.depth == d && gotFlags == flags, "information about an array");
  return a;
}

static void linear_memory() {
  const int n = 1000;
  std::vector<float> data(n);
  for (int i = 0; i < n; i++) data[i] = sample(i);
  float *d;
  CK(cudaMalloc(&d, n * 4));
  CK(cudaMemcpy(d, data.data(), n * 4, cudaMemcpyHostToDevice));
  cudaResourceDesc r;
  memset(&r, 0, sizeof r);
  r.resType = cudaResourceTypeLinear;
  r.res.linear.devPtr = d;
  r.res.linear.desc = cudaCreateChannelDesc<float>();
  r.res.linear.sizeInBytes = n * 4;
  cudaTextureObject_t t = object(r, how(cudaAddressModeClamp, cudaFilterModePoint, false));
  Out<float> out(n + 4);
  fetch1<<<(n + 131) / 128, 128>>>(t, out.p, n + 4);
  RAN();
  show("linear memory", out.get());
  CK(cudaDestroyTextureObject(t));
  r.res.linear.desc = cudaCreateChannelDesc<uchar4>();
  t = object(r, how(cudaAddressModeClamp, cudaFilterModePoint, false));
  Out<uchar4> raw(n);
  fetch4<<<(n + 127) / 128, 128>>>(t, raw.p, n);
  RAN();
  CHECK(!memcmp(raw.get().data(), data.data(), n * 4), "bytes of linear memory");
  CK(cudaDestroyTextureObject(t));
  CK(cudaFree(d));
}

static void pitched_memory() {
  float *d;
  size_t pitch;
  CK(cudaMallocPitch(&d, &pitch, W * 4, H));
  std::vector<float> data(W * H);
  for (int i = 0; i < W * H; i++) data[i] = sample(i + 7);
  CK(cudaMemcpy2D(d, pitch, data.data(), W * 4, W * 4, H, cudaMemcpyHostToDevice));
  cudaResourceDesc r;
  memset(&r, 0, sizeof r);
  r.resType = cudaResourceTypePitch2D;
  r.res.pitch2D.devPtr = d;
  r.res.pitch2D.desc = cudaCreateChannelDesc<float>();
  r.res.pitch2D.width = W, r.res.pitch2D.height = H, r.res.pitch2D.pitchInBytes = pitch;
  cudaTextureObject_t t = object(r, how(cudaAddressModeClamp, cudaFilterModeLinear, false));
  Out<float> out(W * H);
  read2<<<blocks, threads>>>(t, out.p, W, H, -1.5f, -0.5f, 1.1f, 1.05f);
  RAN();
  show("pitched memory, linear", out.get());
  CK(cudaDestroyTextureObject(t));
  CK(cudaFree(d));
}

static void arrays() {
  std::vector<float> data(W * H * D);
  for (size_t i = 0; i < data.size(); i++) data[i] = sample(i + 99);
  cudaArray_t one = array(W, 0, 0, 0, data), two = array(W, H, 0, cudaArrayTextureGather, data),
      three = array(W, H, D, 0, data);
  const cudaTextureAddressMode modes[] =
      {cudaAddressModeWrap, cudaAddressModeClamp, cudaAddressModeMirror, cudaAddressModeBorder};
  const char *names[] = {"wrap", "clamp", "mirror", "border"};
  for (int m = 0; m < 4; m++)
    for (int linear = 0; linear < 2; linear++)
      for (int normalised = 0; normalised < 2; normalised++) {
        if (!normalised && (m == 0 || m == 2)) continue; // they need normalised coordinates
        cudaTextureDesc d = how(modes[m], linear ? cudaFilterModeLinear : cudaFilterModePoint, normalised);
        float sx = normalised ? 1.0f / W : 1, sy = normalised ? 1.0f / H : 1;
        char what[64];
        snprintf(what, sizeof what, "%s %s %s", names[m], linear ? "linear" : "point", normalised ? "normalised" : "");
        cudaTextureObject_t t = object(of(one), d);
        Out<float> row(3 * W), plane(W * H);
        read1<<<3, W>>>(t, row.p, 3 * W, -W * sx, 0.9f * sx);
        RAN();
        CK(cudaDestroyTextureObject(t));
        t = object(of(two), d);
        read2<<<blocks, threads>>>(t, plane.p, W, H, -6 * sx, -3 * sy, 1.3f * sx, 1.2f * sy);
        RAN();
        CK(cudaDestroyTextureObject(t));
        show(what, row.get());
        show(what, plane.get());
      }
  cudaTextureObject_t t = object(of(two), how(cudaAddressModeClamp, cudaFilterModePoint, false));
  Out<float4> quads(W * H);
  gather<<<blocks, threads>>>(t, quads.p, W, H);
  RAN();
  show("gather", quads.get());
  CK(cudaDestroyTextureObject(t));
  t = object(of(three), how(cudaAddressModeClamp, cudaFilterModeLinear, false));
  Out<float> solid(W * H * D);
  read3<<<blocks, threads>>>(t, solid.p, W, H, D);
  RAN();
  show("solid", solid.get());
  CK(cudaDestroyTextureObject(t));
  CK(cudaFreeArray(one));
  CK(cudaFreeArray(two));
  CK(cudaFreeArray(three));
}

static void integers() {
  std::vector<unsigned short> data(W * H * 2);
  for (size_t i = 0; i < data.size(); i++) data[i] = (unsigned short)(i * 40503u);
  cudaChannelFormatDesc f = cudaCreateChannelDesc<ushort2>();
  cudaArray_t a;
  CK(cudaMallocArray(&a, &f, W, H));
  CK(cudaMemcpy2DToArray(a, 0, 0, data.data(), W * 4, W * 4, H, cudaMemcpyHostToDevice));
  cudaTextureObject_t t = object(of(a), how(cudaAddressModeClamp, cudaFilterModePoint, false));
  Out<ushort2> raw(W * H);
  read2raw<<<blocks, threads>>>(t, raw.p, W, H);
  RAN();
  CHECK(!memcmp(raw.get().data(), data.data(), data.size() * 2), "integers of an array");
  CK(cudaDestroyTextureObject(t));
  CK(cudaFreeArray(a));
  f = cudaCreateChannelDesc<unsigned short>();
  CK(cudaMallocArray(&a, &f, W, H));
  CK(cudaMemcpy2DToArray(a, 0, 0, data.data(), W * 2, W * 2, H, cudaMemcpyHostToDevice));
  t = object(of(a), how(cudaAddressModeClamp, cudaFilterModeLinear, true, cudaReadModeNormalizedFloat));
  Out<float> out(W * H);
  read2<<<blocks, threads>>>(t, out.p, W, H, 0.01f, 0.02f, 1.0f / W, 1.0f / H);
  RAN();
  show("integers as floats", out.get());
  CK(cudaDestroyTextureObject(t));
  CK(cudaFreeArray(a));
}

static void layers() {
  std::vector<float> data(W * H * L);
  for (size_t i = 0; i < data.size(); i++) data[i] = sample(i + 1234);
  cudaArray_t one = array(W, 0, L, cudaArrayLayered, data), two = array(W, H, L, cudaArrayLayered, data);
  cudaTextureDesc d = how(cudaAddressModeClamp, cudaFilterModeLinear, false);
  cudaTextureObject_t t = object(of(one), d);
  Out<float> rows(W * L), planes(W * H * L);
  layers1<<<1, W>>>(t, rows.p, W, L);
  RAN();
  show("layers of rows", rows.get());
  CK(cudaDestroyTextureObject(t));
  t = object(of(two), d);
  layers2<<<blocks, threads>>>(t, planes.p, W, H, L);
  RAN();
  show("layers of planes", planes.get());
  CK(cudaDestroyTextureObject(t));
  CK(cudaFreeArray(one));
  CK(cudaFreeArray(two));
}

static void cubes() {
  const int n = 16;
  std::vector<float> data(n * n * 12);
  for (size_t i = 0; i < data.size(); i++) data[i] = (float)i;
  cudaArray_t one = array(n, n, 6, cudaArrayCubemap, data),
      two = array(n, n, 12, cudaArrayCubemap | cudaArrayLayered, data);
  cudaTextureDesc d = how(cudaAddressModeClamp, cudaFilterModePoint, true);
  cudaTextureObject_t t = object(of(one), d);
  Out<float> faces(n * n * 6), more(n * n * 12);
  cube<<<dim3(2, 2), threads>>>(t, faces.p, n, 0);
  RAN();
  CHECK(!memcmp(faces.get().data(), data.data(), n * n * 6 * 4), "faces of a cube");
  CK(cudaDestroyTextureObject(t));
  t = object(of(two), d);
  cube<<<dim3(2, 2), threads>>>(t, more.p, n, 2);
  RAN();
  show("cubes", more.get());
  CK(cudaDestroyTextureObject(t));
  CK(cudaFreeArray(one));
  CK(cudaFreeArray(two));
}

static void mipmaps() {
  const int n = 32, levels = 6;
  cudaChannelFormatDesc f = cudaCreateChannelDesc<float>();
  cudaMipmappedArray_t m;
  CK(cudaMallocMipmappedArray(&m, &f, make_cudaExtent(n, n, 0), levels, 0));
  for (int l = 0; l < levels; l++) {
    cudaArray_t a;
    CK(cudaGetMipmappedArrayLevel(&a, m, l));
    int side = n >> l;
    std::vector<float> data(side * side);
    for (size_t i = 0; i < data.size(); i++) data[i] = l + sample(i);
    CK(cudaMemcpy2DToArray(a, 0, 0, data.data(), side * 4, side * 4, side, cudaMemcpyHostToDevice));
  }
  cudaResourceDesc r;
  memset(&r, 0, sizeof r);
  r.resType = cudaResourceTypeMipmappedArray;
  r.res.mipmap.mipmap = m;
  cudaTextureDesc d = how(cudaAddressModeClamp, cudaFilterModeLinear, true);
  d.mipmapFilterMode = cudaFilterModeLinear;
  d.maxMipmapLevelClamp = levels - 1;
  cudaTextureObject_t t = object(r, d);
  Out<float> out(n * n);
  for (float level : {0.0f, 1.0f, 1.5f, 3.25f, 9.0f}) {
    mip<<<dim3(4, 4), threads>>>(t, out.p, n, n, level);
    RAN();
    char what[32];
    snprintf(what, sizeof what, "level %.2f", level);
    show(what, out.get());
  }
  gradient<<<dim3(4, 4), threads>>>(t, out.p, n, n, 0.1f);
  RAN();
  show("gradient", out.get());
  CK(cudaDestroyTextureObject(t));

  cudaResourceViewDesc view; // part of the levels
  memset(&view, 0, sizeof view);
  view.format = cudaResViewFormatFloat1;
  view.width = view.height = n;
  view.firstMipmapLevel = 1, view.lastMipmapLevel = 2;
  CK(cudaCreateTextureObject(&t, &r, &d, &view));
  cudaResourceViewDesc got;
  CK(cudaGetTextureObjectResourceViewDesc(&got, t));
  CHECK(got.firstMipmapLevel == 1 && got.lastMipmapLevel == 2, "view of a texture object");
  CK(cudaDestroyTextureObject(t));
  CK(cudaFreeMipmappedArray(m));
}

int main() {
  linear_memory();
  pitched_memory();
  arrays();
  integers();
  layers();
  cubes();
  mipmaps();
  return 0;
}
