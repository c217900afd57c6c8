// Copies of rectangles and boxes between host and device memory: pitches, offsets, pageable and pinned memory, streams,
// graphs, batches.
#include "check.h"

static CUstream s;
static unsigned char *host, *back, *pin, *pin2;
static CUdeviceptr dev, dev2;
enum { ROOM = 48 << 20 };

typedef struct { size_t x, y, z, pitch, height; } At;

static size_t place(At a, size_t y, size_t z) { return (a.z + z) * a.pitch * a.height + (a.y + y) * a.pitch + a.x; }

static CUDA_MEMCPY3D copy3d(size_t width, size_t height, size_t depth) {
  CUDA_MEMCPY3D c;
  memset(&c, 0, sizeof c);
  c.WidthInBytes = width;
  c.Height = height;
  c.Depth = depth;
  return c;
}

static void from_host(CUDA_MEMCPY3D *c, const void *p, At a, int unified) {
  c->srcMemoryType = unified ? CU_MEMORYTYPE_UNIFIED : CU_MEMORYTYPE_HOST;
  if (unified) c->srcDevice = (CUdeviceptr)(uintptr_t)p;
  else c->srcHost = p;
  c->srcXInBytes = a.x, c->srcY = a.y, c->srcZ = a.z, c->srcPitch = a.pitch, c->srcHeight = a.height;
}
static void to_host(CUDA_MEMCPY3D *c, void *p, At a, int unified) {
  c->dstMemoryType = unified ? CU_MEMORYTYPE_UNIFIED : CU_MEMORYTYPE_HOST;
  if (unified) c->dstDevice = (CUdeviceptr)(uintptr_t)p;
  else c->dstHost = p;
  c->dstXInBytes = a.x, c->dstY = a.y, c->dstZ = a.z, c->dstPitch = a.pitch, c->dstHeight = a.height;
}
static void from_device(CUDA_MEMCPY3D *c, CUdeviceptr p, At a) {
  c->srcMemoryType = CU_MEMORYTYPE_DEVICE, c->srcDevice = p;
  c->srcXInBytes = a.x, c->srcY = a.y, c->srcZ = a.z, c->srcPitch = a.pitch, c->srcHeight = a.height;
}
static void to_device(CUDA_MEMCPY3D *c, CUdeviceptr p, At a) {
  c->dstMemoryType = CU_MEMORYTYPE_DEVICE, c->dstDevice = p;
  c->dstXInBytes = a.x, c->dstY = a.y, c->dstZ = a.z, c->dstPitch = a.pitch, c->dstHeight = a.height;
}

// A two-dimensional description of the same copy.
static CUDA_MEMCPY2D flat(const CUDA_MEMCPY3D *c) {
  CUDA_MEMCPY2D d;
  memset(&d, 0, sizeof d);
  d.srcXInBytes = c->srcXInBytes, d.srcY = c->srcY, d.srcMemoryType = c->srcMemoryType, d.srcHost = c->srcHost,
      d.srcDevice = c->srcDevice, d.srcPitch = c->srcPitch;
  d.dstXInBytes = c->dstXInBytes, d.dstY = c->dstY, d.dstMemoryType = c->dstMemoryType, d.dstHost = c->dstHost,
      d.dstDevice = c->dstDevice, d.dstPitch = c->dstPitch;
  d.WidthInBytes = c->WidthInBytes, d.Height = c->Height;
  return d;
}

static void issue(const CUDA_MEMCPY3D *c, int form) {
  CUDA_MEMCPY2D d = flat(c);
  switch (form) {
  case 0: CK(cuMemcpy3D(c)); break;
  case 1: CK(cuMemcpy3DAsync(c, s)); break;
  case 2: CK(c->Depth == 1 ? cuMemcpy2D(&d) : cuMemcpy3D(c)); break;
  case 3: CK(c->Depth == 1 ? cuMemcpy2DAsync(&d, s) : cuMemcpy3DAsync(c, s)); break;
  case 4: CK(c->Depth == 1 ? cuMemcpy2DUnaligned(&d) : cuMemcpy3D(c)); break;
  }
}

// Up with one set of gaps, over on the device with another, down with a third; what lies in the gaps must not change.
static void trip(size_t w, size_t h, size_t d, At a, At b, At e, At f, unsigned char *src, unsigned char *dst, int form,
                 int unified) {
  size_t reach = place(f, h - 1, d - 1) + w;
  CHECK(reach + 64 < ROOM && place(a, h - 1, d - 1) + w < ROOM && place(b, h - 1, d - 1) + w < ROOM &&
        place(e, h - 1, d - 1) + w < ROOM, "the test's own sizes");
  fill(src, place(a, h - 1, d - 1) + w, w * 31 + h * 7 + d + form);
  memset(dst, 0xEE, reach + 64);
  CK(cuMemsetD8(dev, 0x11, place(b, h - 1, d - 1) + w + 64));
  CK(cuCtxSynchronize());
  CUDA_MEMCPY3D up = copy3d(w, h, d), over = copy3d(w, h, d), down = copy3d(w, h, d);
  from_host(&up, src, a, unified);
  to_device(&up, dev, b);
  from_device(&over, dev, b);
  to_device(&over, dev2, e);
  from_device(&down, dev2, e);
  to_host(&down, dst, f, unified);
  issue(&up, form);
  issue(&over, form);
  issue(&down, form);
  CK(cuStreamSynchronize(s));
  size_t at = 0;
  for (size_t z = 0; z < d; z++)
    for (size_t y = 0; y < h; y++) {
      size_t row = place(f, y, z);
      for (; at < row; at++)
        CHECK(dst[at] == 0xEE, "%zux%zux%zu form %d: byte %zu of a gap was written", w, h, d, form, at);
      CHECK(!memcmp(dst + row, src + place(a, y, z), w), "%zux%zux%zu form %d: row %zu of slice %zu", w, h, d, form, y,
            z);
      at = row + w;
    }
  for (size_t end = at + 64; at < end; at++)
    CHECK(dst[at] == 0xEE, "%zux%zux%zu form %d: wrote behind the end", w, h, d, form);
}

static void shapes(void) {
  static const size_t sizes[][3] = {{1, 1, 1}, {4, 3, 1}, {7, 5, 3}, {64, 64, 1}, {100, 1000, 1}, {1000, 100, 4},
                                    {3, 20000, 1}, {65536, 2, 1},
                                    {40000, 60, 1}, {2000000, 3, 1}, {1048576, 4, 2}, {1500, 33, 40}, {8192, 16, 16},
                                    {12345, 67, 8}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    size_t w = sizes[i][0], h = sizes[i][1], d = sizes[i][2];
    At tight = {0, 0, 0, w, h}, loose = {3, 1, d > 1, w + 13, h + 2},
        wide = {16, 2, 0, (w + 16 + 511) / 512 * 512, h + 3};
    for (int form = 0; form < 5; form++) {
      trip(w, h, d, tight, wide, loose, loose, host, back, form, 0);
      trip(w, h, d, loose, tight, wide, tight, host, back, form, form == 1);
      trip(w, h, d, loose, loose, tight, wide, pin, pin2, form, form > 2);
    }
    trip(w, h, d, tight, tight, tight, tight, pin, pin2, 1, 0);
    printf("%zux%zux%zu %016llx\n", w, h, d, (unsigned long long)digest(back, w));
  }
}

// Pinned memory that is read back while it is on its way: stream order must hold.
static void order(void) {
  At gaps = {5, 1, 0, 300, 40}, tight = {0, 0, 0, 200, 30};
  for (int round = 0; round < 20; round++) {
    fill(pin, 20000, round);
    CUDA_MEMCPY3D up = copy3d(200, 30, 1), down = copy3d(200, 30, 1),
                  again = copy3d(200, 30, 1), last = copy3d(200, 30, 1);
    from_host(&up, pin, gaps, 0), to_device(&up, dev, tight);
    from_device(&down, dev, tight), to_host(&down, pin2, gaps, 0);
    from_host(&again, pin2, gaps, 0), to_device(&again, dev2, gaps);
    from_device(&last, dev2, gaps), to_host(&last, back, tight, 0);
    CK(cuMemcpy3DAsync(&up, s));
    CK(cuMemcpy3DAsync(&down, s));
    CK(cuMemcpy3DAsync(&again, s));
    CK(cuMemcpy3DAsync(&last, s));
    CK(cuStreamSynchronize(s));
    for (size_t y = 0; y < 30; y++)
      CHECK(!memcmp(back + y * 200, pin + place(gaps, y, 0), 200), "round %d row %zu", round, y);
  }
  printf("order ok\n");
}

static void captured(void) {
  At gaps = {5, 1, 0, 3000, 40}, tight = {0, 0, 0, 2000, 30};
  CUDA_MEMCPY3D up = copy3d(2000, 30, 2), down = copy3d(2000, 30, 2);
  from_host(&up, pin, gaps, 0), to_device(&up, dev, tight);
  from_device(&down, dev, tight), to_host(&down, pin2, gaps, 0);
  CUgraph g;
  CUgraphExec x;
  CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CK(cuMemcpy3DAsync(&up, s));
  CK(cuMemcpy3DAsync(&down, s));
  CK(cuStreamEndCapture(s, &g));
  CK(cuGraphInstantiate(&x, g, 0));
  for (int round = 0; round < 3; round++) {
    fill(pin, 300000, 77 + round);
    memset(pin2, 0xEE, 300000);
    CK(cuGraphLaunch(x, s));
    CK(cuStreamSynchronize(s));
    for (size_t z = 0; z < 2; z++)
      for (size_t y = 0; y < 30; y++) {
        size_t at = place(gaps, y, z);
        CHECK(!memcmp(pin2 + at, pin + at, 2000) && pin2[at - 1] == 0xEE && pin2[at + 2000] == 0xEE,
              "graph round %d row %zu", round, y);
      }
  }
  CK(cuGraphExecDestroy(x));
  CK(cuGraphDestroy(g));
  printf("graph ok\n");
}

static void peers(void) {
  CUDA_MEMCPY3D_PEER c;
  At gaps = {8, 2, 1, 160, 20}, tight = {0, 0, 0, 100, 10};
  fill(host, 40000, 3);
  memset(back, 0, 40000);
  CUDA_MEMCPY3D up = copy3d(100, 10, 3);
  from_host(&up, host, gaps, 0), to_device(&up, dev, tight);
  memcpy(&c, &up, sizeof c);
  c.dstContext = context;
  CK(cuMemcpy3DPeer(&c));
  CK(cuCtxSynchronize()); // s is not ordered behind it
  CUDA_MEMCPY3D down = copy3d(100, 10, 3);
  from_device(&down, dev, tight), to_host(&down, back, gaps, 0);
  memcpy(&c, &down, sizeof c);
  c.srcContext = context;
  CK(cuMemcpy3DPeerAsync(&c, s));
  CK(cuStreamSynchronize(s));
  for (size_t z = 0; z < 3; z++)
    for (size_t y = 0; y < 10; y++)
      CHECK(!memcmp(back + place(gaps, y, z), host + place(gaps, y, z), 100), "peer row %zu of slice %zu", y, z);
  CK(cuMemcpyHtoD(dev, host, 5000));
  CK(cuMemcpyPeer(dev2, context, dev, context, 5000));
  CK(cuCtxSynchronize());
  CK(cuMemcpyPeerAsync(dev2 + 5000, context, dev2, context, 5000, s));
  CK(cuStreamSynchronize(s));
  CK(cuMemcpyDtoH(back, dev2, 10000));
  CHECK(!memcmp(back, host, 5000) && !memcmp(back + 5000, host, 5000), "peer copies");
  printf("peer forms ok\n");
}

static void within_the_host(void) {
  At gaps = {8, 2, 0, 160, 20}, tight = {0, 0, 0, 100, 10};
  fill(pin, 8000, 9);
  CUDA_MEMCPY3D c = copy3d(100, 10, 1);
  from_host(&c, pin, gaps, 0), to_host(&c, pin2, tight, 0);
  CK(cuMemcpy3D(&c));
  for (size_t y = 0; y < 10; y++)
    CHECK(!memcmp(pin2 + y * 100, pin + place(gaps, y, 0), 100), "row %zu within the host", y);
  printf("host to host ok\n");
}

static void wrong(void) {
  CUDA_MEMCPY2D c;
  memset(&c, 0, sizeof c);
  c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = host, c.srcPitch = 50;
  c.dstMemoryType = CU_MEMORYTYPE_DEVICE, c.dstDevice = dev, c.dstPitch = 100;
  c.WidthInBytes = 100, c.Height = 4;
  SHOW(cuMemcpy2D(&c));
  c.srcPitch = 100, c.dstPitch = 50;
  SHOW(cuMemcpy2D(&c));
  c.dstPitch = 100, c.srcHost = NULL;
  SHOW(cuMemcpy2D(&c));
  c.srcHost = host, c.Height = 0;
  SHOW(cuMemcpy2D(&c));
  SHOW(cuMemcpy2D(NULL));
}

int main(int argc, char **argv) {
  start(argc, argv);
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  host = malloc(ROOM), back = malloc(ROOM);
  CK(cuMemAllocHost((void **)&pin, ROOM));
  CK(cuMemHostAlloc((void **)&pin2, ROOM, CU_MEMHOSTALLOC_PORTABLE));
  CK(cuMemAlloc(&dev, ROOM));
  CK(cuMemAlloc(&dev2, ROOM));
  shapes();
  order();
  captured();
  peers();
  within_the_host();
  wrong();
  return 0;
}
