// CUDA arrays: descriptors, copies of every form, layers, mipmaps, batches; no kernel reads them here.
#include "check.h"

static CUstream s;
static unsigned char *host, *back, *pin, *pin2;
static CUdeviceptr dev;
enum { ROOM = 16 << 20 };

static CUarray make(size_t w, size_t h, size_t d, CUarray_format format, unsigned channels, unsigned flags) {
  CUDA_ARRAY3D_DESCRIPTOR desc, got;
  memset(&desc, 0, sizeof desc);
  desc.Width = w, desc.Height = h, desc.Depth = d, desc.Format = format, desc.NumChannels = channels,
      desc.Flags = flags;
  CUarray a;
  CK(cuArray3DCreate(&a, &desc));
  memset(&got, 0xFF, sizeof got);
  CK(cuArray3DGetDescriptor(&got, a));
  CHECK(got.Width == w && got.Height == h && got.Depth == d && got.Format == format && got.NumChannels == channels &&
        got.Flags == flags, "descriptor of %zux%zux%zu", w, h, d);
  return a;
}

static void rows(void) { // one-dimensional arrays
  enum { N = 4000, E = 8 };
  CUarray a = make(N, 0, 0, CU_AD_FORMAT_FLOAT, 2, 0), b = make(N, 0, 0, CU_AD_FORMAT_FLOAT, 2, 0);
  fill(host, N * E, 1);
  memset(back, 0, N * E);
  CK(cuMemcpyHtoA(a, 0, host, N * E));
  CK(cuMemcpyAtoH(back, a, 0, N * E));
  CHECK(!memcmp(host, back, N * E), "HtoA, AtoH");
  CK(cuMemcpyAtoA(b, 16 * E, a, 8 * E, 1000 * E));
  CK(cuMemcpyAtoD(dev, b, 16 * E, 1000 * E));
  CK(cuMemcpyDtoA(b, 0, dev + 10 * E, 500 * E));
  CK(cuMemcpyAtoH(back, b, 0, 500 * E));
  CHECK(!memcmp(host + 18 * E, back, 500 * E), "AtoA, AtoD, DtoA");
  memcpy(pin, host, N * E);
  CK(cuMemcpyHtoAAsync(b, 0, pin, N * E, s));
  CK(cuMemcpyAtoHAsync(pin2, b, 100 * E, 3000 * E, s));
  CK(cuStreamSynchronize(s));
  CHECK(!memcmp(pin + 100 * E, pin2, 3000 * E), "HtoAAsync, AtoHAsync, pinned");
  CK(cuMemcpyHtoAAsync(b, 8, host + 99, 64, s));
  CK(cuMemcpyAtoHAsync(back, b, 8, 64, s));
  CK(cuStreamSynchronize(s));
  CHECK(!memcmp(host + 99, back, 64), "HtoAAsync, AtoHAsync, pageable");
  SHOW(cuMemcpyHtoA(a, (N - 1) * E, host, 2 * E));
  CK(cuArrayDestroy(a));
  CK(cuArrayDestroy(b));
  printf("rows ok\n");
}

static void planes(size_t w, size_t h, CUarray_format format, unsigned channels, size_t element) {
  CUDA_ARRAY_DESCRIPTOR desc = {w, h, format, channels}, got;
  CUarray a;
  CK(cuArrayCreate(&a, &desc));
  CK(cuArrayGetDescriptor(&got, a));
  CHECK(got.Width == w && got.Height == h, "descriptor");
  size_t width = w * element, pitch = width + 24;
  fill(host, pitch * h, w + h);
  memset(back, 0xEE, pitch * h);
  CUDA_MEMCPY2D up, down;
  memset(&up, 0, sizeof up);
  up.srcMemoryType = CU_MEMORYTYPE_HOST, up.srcHost = host, up.srcPitch = pitch;
  up.dstMemoryType = CU_MEMORYTYPE_ARRAY, up.dstArray = a;
  up.WidthInBytes = width, up.Height = h;
  CK(cuMemcpy2D(&up));
  // from pageable memory it may return before the array has the data, and s is not ordered behind it
  CK(cuCtxSynchronize());
  memset(&down, 0, sizeof down);
  down.srcMemoryType = CU_MEMORYTYPE_ARRAY, down.srcArray = a;
  down.dstMemoryType = CU_MEMORYTYPE_HOST, down.dstHost = back, down.dstPitch = pitch;
  down.WidthInBytes = width, down.Height = h;
  CK(cuMemcpy2DAsync(&down, s));
  CK(cuStreamSynchronize(s));
  for (size_t y = 0; y < h; y++) {
    CHECK(!memcmp(back + y * pitch, host + y * pitch, width), "%zux%zu: row %zu", w, h, y);
    CHECK(y == h - 1 || back[y * pitch + width] == 0xEE, "%zux%zu: gap behind row %zu", w, h, y);
  }
  // a rectangle in the middle, from pinned memory, and to the device
  if (w > 8 && h > 4) {
    fill(pin, 4 * element * 2, 5);
    up.srcHost = pin, up.srcPitch = 4 * element, up.dstXInBytes = 3 * element, up.dstY = 2,
        up.WidthInBytes = 4 * element, up.Height = 2;
    CK(cuMemcpy2DAsync(&up, s));
    down.dstMemoryType = CU_MEMORYTYPE_DEVICE, down.dstDevice = dev, down.dstPitch = width;
    CK(cuMemcpy2DAsync(&down, s));
    CK(cuStreamSynchronize(s));
    CK(cuMemcpyDtoH(back, dev, width * h));
    for (size_t y = 0; y < 2; y++)
      CHECK(!memcmp(back + (2 + y) * width + 3 * element, pin + y * 4 * element, 4 * element), "rectangle");
    CHECK(!memcmp(back, host, width), "row before the rectangle");
  }
  CK(cuArrayDestroy(a));
  printf("%zux%zu of %zu bytes: %016llx\n", w, h, element, (unsigned long long)digest(back, 64));
}

static void solids(size_t w, size_t h, size_t d, unsigned flags, const char *what) {
  enum { E = 4 };
  CUarray a = make(w, h, d, CU_AD_FORMAT_UNSIGNED_INT8, 4, flags);
  size_t rows = h ? h : 1, n = w * E * rows * d;
  CUDA_MEMCPY3D up, down, part;
  memset(&up, 0, sizeof up);
  fill(pin, n, w * h + d);
  memset(back, 0, n);
  up.srcMemoryType = CU_MEMORYTYPE_HOST, up.srcHost = pin, up.srcPitch = w * E, up.srcHeight = rows;
  up.dstMemoryType = CU_MEMORYTYPE_ARRAY, up.dstArray = a;
  up.WidthInBytes = w * E, up.Height = rows, up.Depth = d;
  CK(cuMemcpy3DAsync(&up, s));
  memset(&down, 0, sizeof down);
  down.srcMemoryType = CU_MEMORYTYPE_ARRAY, down.srcArray = a;
  down.dstMemoryType = CU_MEMORYTYPE_HOST, down.dstHost = back, down.dstPitch = w * E, down.dstHeight = rows;
  down.WidthInBytes = w * E, down.Height = rows, down.Depth = d;
  CK(cuMemcpy3DAsync(&down, s));
  CK(cuStreamSynchronize(s));
  CHECK(!memcmp(pin, back, n), "%s %zux%zux%zu", what, w, h, d);
  part = down; // one slice or layer
  part.srcZ = d - 1, part.Depth = 1, part.dstHost = pin2;
  CK(cuMemcpy3D(&part));
  CHECK(!memcmp(pin + (d - 1) * rows * w * E, pin2, rows * w * E), "%s: last slice", what);
  part.srcZ = d;
  SHOW(cuMemcpy3D(&part));
  CK(cuArrayDestroy(a));
  printf("%s %zux%zux%zu: %016llx\n", what, w, h, d, (unsigned long long)digest(back, n));
}

static void mipmaps(void) {
  CUDA_ARRAY3D_DESCRIPTOR desc, got;
  memset(&desc, 0, sizeof desc);
  desc.Width = 64, desc.Height = 32, desc.Format = CU_AD_FORMAT_FLOAT, desc.NumChannels = 1;
  CUmipmappedArray m;
  CK(cuMipmappedArrayCreate(&m, &desc, 4));
  for (unsigned i = 0; i < 4; i++) {
    CUarray level;
    CK(cuMipmappedArrayGetLevel(&level, m, i));
    memset(&got, 0, sizeof got);
    CK(cuArray3DGetDescriptor(&got, level));
    printf("level %u: %zux%zu\n", i, got.Width, got.Height);
    CUDA_MEMCPY2D c;
    memset(&c, 0, sizeof c);
    fill(host, got.Width * got.Height * 4, i);
    c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = host, c.srcPitch = got.Width * 4;
    c.dstMemoryType = CU_MEMORYTYPE_ARRAY, c.dstArray = level, c.WidthInBytes = got.Width * 4, c.Height = got.Height;
    CK(cuMemcpy2D(&c));
  }
  for (unsigned i = 0; i < 4; i++) {
    CUarray level;
    CK(cuMipmappedArrayGetLevel(&level, m, i));
    size_t w = 64 >> i, h = 32 >> i;
    CUDA_MEMCPY2D c;
    memset(&c, 0, sizeof c);
    fill(host, w * h * 4, i);
    c.srcMemoryType = CU_MEMORYTYPE_ARRAY, c.srcArray = level;
    c.dstMemoryType = CU_MEMORYTYPE_HOST, c.dstHost = back, c.dstPitch = w * 4, c.WidthInBytes = w * 4, c.Height = h;
    CK(cuMemcpy2D(&c));
    CHECK(!memcmp(host, back, w * h * 4), "level %u", i);
  }
  CUarray level;
  SHOW(cuMipmappedArrayGetLevel(&level, m, 4));
  CK(cuMipmappedArrayDestroy(m));
}

static void captured(void) {
  CUarray a = make(100, 50, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0);
  CUDA_MEMCPY2D up, down;
  memset(&up, 0, sizeof up);
  up.srcMemoryType = CU_MEMORYTYPE_HOST, up.srcHost = pin, up.srcPitch = 512;
  up.dstMemoryType = CU_MEMORYTYPE_ARRAY, up.dstArray = a, up.WidthInBytes = 400, up.Height = 50;
  memset(&down, 0, sizeof down);
  down.srcMemoryType = CU_MEMORYTYPE_ARRAY, down.srcArray = a;
  down.dstMemoryType = CU_MEMORYTYPE_HOST, down.dstHost = pin2, down.dstPitch = 448, down.WidthInBytes = 400,
      down.Height = 50;
  CUgraph g;
  CUgraphExec x;
  CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CK(cuMemcpy2DAsync(&up, s));
  CK(cuMemcpy2DAsync(&down, s));
  CK(cuStreamEndCapture(s, &g));
  CK(cuGraphInstantiate(&x, g, 0));
  for (int round = 0; round < 3; round++) {
    fill(pin, 512 * 50, round + 40);
    CK(cuGraphLaunch(x, s));
    CK(cuStreamSynchronize(s));
    for (int y = 0; y < 50; y++) CHECK(!memcmp(pin2 + y * 448, pin + y * 512, 400), "graph round %d row %d", round, y);
  }
  CK(cuGraphExecDestroy(x));
  CK(cuGraphDestroy(g));
  CK(cuArrayDestroy(a));
  printf("graph ok\n");
}

static void wrong(void) {
  CUDA_ARRAY_DESCRIPTOR desc = {0, 16, CU_AD_FORMAT_FLOAT, 1};
  CUarray a;
  SHOW(cuArrayCreate(&a, &desc));
  desc.Width = 16, desc.NumChannels = 3;
  SHOW(cuArrayCreate(&a, &desc));
  desc.NumChannels = 1;
  SHOW(cuArrayCreate(NULL, &desc));
  CK(cuArrayCreate(&a, &desc));
  CUDA_MEMCPY2D c;
  memset(&c, 0, sizeof c);
  c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = host, c.srcPitch = 64;
  c.dstMemoryType = CU_MEMORYTYPE_ARRAY, c.dstArray = a, c.WidthInBytes = 64, c.Height = 17;
  SHOW(cuMemcpy2D(&c));
  c.Height = 16, c.dstXInBytes = 4;
  SHOW(cuMemcpy2D(&c));
  CK(cuArrayDestroy(a));
}

int main(int argc, char **argv) {
  start(argc, argv);
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  host = malloc(ROOM), back = malloc(ROOM);
  CK(cuMemAllocHost((void **)&pin, ROOM));
  CK(cuMemAllocHost((void **)&pin2, ROOM));
  CK(cuMemAlloc(&dev, ROOM));
  rows();
  planes(1, 1, CU_AD_FORMAT_FLOAT, 1, 4);
  planes(64, 64, CU_AD_FORMAT_UNSIGNED_INT8, 1, 1);
  planes(333, 77, CU_AD_FORMAT_HALF, 4, 8);
  planes(1000, 900, CU_AD_FORMAT_FLOAT, 4, 16);
  planes(4096, 500, CU_AD_FORMAT_SIGNED_INT16, 2, 4);
  solids(16, 8, 4, 0, "solid");
  solids(300, 200, 50, 0, "solid");
  solids(64, 32, 6, 1, "layers");
  solids(64, 0, 5, 1, "layers of rows");
  solids(32, 32, 6, 4, "cube");
  solids(16, 16, 12, 5, "cubes");
  mipmaps();
  captured();
  wrong();
  return 0;
}
