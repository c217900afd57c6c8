// Texture and surface objects through the driver API, read and written by kernels in PTX.
#include "check.h"
#include <math.h>

static const char *ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    // out[y*w+x] = the texture at (x*dx+x0, y*dy+y0), all four components
    ".visible .entry plane(.param .u64 tex, .param .u64 out, .param .u32 w, .param .f32 x0, .param .f32 y0, .param "
    ".f32 dx, .param .f32 dy) {\n"
    "  .reg .u64 %t, %o, %a; .reg .u32 %x, %y, %w, %i; .reg .f32 %fx, %fy, %c<4>, %p<4>;\n"
    "  ld.param.u64 %t, [tex]; ld.param.u64 %o, [out]; ld.param.u32 %w, [w];\n"
    "  ld.param.f32 %p0, [x0]; ld.param.f32 %p1, [y0]; ld.param.f32 %p2, [dx]; ld.param.f32 %p3, [dy];\n"
    "  mov.u32 %x, %tid.x; mov.u32 %y, %ctaid.x;\n"
    "  cvt.rn.f32.u32 %fx, %x; cvt.rn.f32.u32 %fy, %y; fma.rn.f32 %fx, %fx, %p2, %p0; fma.rn.f32 %fy, %fy, %p3, %p1;\n"
    "  tex.2d.v4.f32.f32 {%c0, %c1, %c2, %c3}, [%t, {%fx, %fy}];\n"
    "  mad.lo.u32 %i, %y, %w, %x; mul.wide.u32 %a, %i, 16; cvta.to.global.u64 %o, %o; add.u64 %o, %o, %a;\n"
    "  st.global.v4.f32 [%o], {%c0, %c1, %c2, %c3}; ret;\n}\n"
    // out[i] = element i of linear memory
    ".visible .entry row(.param .u64 tex, .param .u64 out) {\n"
    "  .reg .u64 %t, %o, %a; .reg .u32 %x, %c<4>;\n"
    "  ld.param.u64 %t, [tex]; ld.param.u64 %o, [out]; mov.u32 %x, %tid.x;\n"
    "  tex.1d.v4.u32.s32 {%c0, %c1, %c2, %c3}, [%t, {%x}];\n"
    "  mul.wide.u32 %a, %x, 4; cvta.to.global.u64 %o, %o; add.u64 %o, %o, %a; st.global.u32 [%o], %c0; ret;\n}\n"
    // one layer of a layered texture
    ".visible .entry layer(.param .u64 tex, .param .u64 out, .param .u32 w, .param .u32 l) {\n"
    "  .reg .u64 %t, %o, %a; .reg .u32 %x, %y, %w, %l, %i; .reg .f32 %fx, %fy, %c<4>;\n"
    "  ld.param.u64 %t, [tex]; ld.param.u64 %o, [out]; ld.param.u32 %w, [w]; ld.param.u32 %l, [l];\n"
    "  mov.u32 %x, %tid.x; mov.u32 %y, %ctaid.x; cvt.rn.f32.u32 %fx, %x; cvt.rn.f32.u32 %fy, %y;\n"
    "  add.f32 %fx, %fx, 0f3F000000; add.f32 %fy, %fy, 0f3F000000;\n"
    "  tex.a2d.v4.f32.f32 {%c0, %c1, %c2, %c3}, [%t, {%l, %fx, %fy, %fy}];\n"
    "  mad.lo.u32 %i, %y, %w, %x; mul.wide.u32 %a, %i, 4; cvta.to.global.u64 %o, %o; add.u64 %o, %o, %a; "
    "st.global.f32 [%o], %c0; ret;\n}\n"
    // a level of a mipmapped texture, at its centre
    ".visible .entry level(.param .u64 tex, .param .u64 out, .param .f32 l) {\n"
    "  .reg .u64 %t, %o; .reg .f32 %l, %h, %c<4>;\n"
    "  ld.param.u64 %t, [tex]; ld.param.u64 %o, [out]; ld.param.f32 %l, [l]; mov.f32 %h, 0f3F000000;\n"
    "  tex.level.2d.v4.f32.f32 {%c0, %c1, %c2, %c3}, [%t, {%h, %h}], %l;\n"
    "  cvta.to.global.u64 %o, %o; st.global.f32 [%o], %c0; ret;\n}\n"
    // adds 1 to each element of a surface
    ".visible .entry increase(.param .u64 surf) {\n"
    "  .reg .u64 %s; .reg .u32 %x, %y, %v;\n"
    "  ld.param.u64 %s, [surf]; mov.u32 %x, %tid.x; mov.u32 %y, %ctaid.x; shl.b32 %x, %x, 2;\n"
    "  suld.b.2d.b32.trap {%v}, [%s, {%x, %y}]; add.u32 %v, %v, 1; sust.b.2d.b32.trap [%s, {%x, %y}], {%v}; ret;\n}\n";

enum { W = 32, H = 20 };
static CUmodule module;
static CUdeviceptr out;
static float data[W * H], got[W * H * 4];

static CUtexObject object(CUDA_RESOURCE_DESC *res, CUaddress_mode mode, CUfilter_mode filter, unsigned flags) {
  CUDA_TEXTURE_DESC desc, back;
  memset(&desc, 0, sizeof desc);
  desc.addressMode[0] = desc.addressMode[1] = desc.addressMode[2] = mode;
  desc.filterMode = filter, desc.flags = flags, desc.borderColor[0] = 0.75f;
  desc.mipmapFilterMode = filter, desc.maxMipmapLevelClamp = 16;
  CUtexObject t;
  CK(cuTexObjectCreate(&t, res, &desc, NULL));
  CUDA_RESOURCE_DESC r;
  CK(cuTexObjectGetResourceDesc(&r, t));
  CK(cuTexObjectGetTextureDesc(&back, t));
  CHECK(r.resType == res->resType && !memcmp(&r.res, &res->res, sizeof(CUarray)) && back.filterMode == filter &&
        back.flags == flags, "descriptions of a texture object");
  return t;
}

static float texel(int x, int y, CUaddress_mode mode) {
  if (mode == CU_TR_ADDRESS_MODE_WRAP) x = (x % W + W) % W, y = (y % H + H) % H;
  if (mode == CU_TR_ADDRESS_MODE_MIRROR) {
    x = (x % (2 * W) + 2 * W) % (2 * W), y = (y % (2 * H) + 2 * H) % (2 * H);
    x = x < W ? x : 2 * W - 1 - x, y = y < H ? y : 2 * H - 1 - y;
  }
  if (mode == CU_TR_ADDRESS_MODE_CLAMP) x = x < 0 ? 0 : x >= W ? W - 1 : x, y = y < 0 ? 0 : y >= H ? H - 1 : y;
  return x < 0 || y < 0 || x >= W || y >= H ? 0.75f : data[y * W + x];
}

static void planes(CUDA_RESOURCE_DESC *res, const char *what) {
  CUfunction f = function(module, "plane");
  static const CUaddress_mode modes[] = {CU_TR_ADDRESS_MODE_WRAP, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_ADDRESS_MODE_MIRROR,
                                         CU_TR_ADDRESS_MODE_BORDER};
  for (int m = 0; m < 4; m++)
    for (int linear = 0; linear < 2; linear++)
      for (int normalised = 0; normalised < 2; normalised++) {
        if (!normalised && (modes[m] == CU_TR_ADDRESS_MODE_WRAP || modes[m] == CU_TR_ADDRESS_MODE_MIRROR)) continue;
        if (res->resType == CU_RESOURCE_TYPE_PITCH2D && modes[m] != CU_TR_ADDRESS_MODE_CLAMP) continue;
        CUtexObject t = object(res, modes[m], linear ? CU_TR_FILTER_MODE_LINEAR : CU_TR_FILTER_MODE_POINT,
                               normalised ? CU_TRSF_NORMALIZED_COORDINATES : 0);
        float x0 = -4.625f, y0 = -3.375f, dx = 1.25f, dy = 1.5f; // never between two texels of a point filter
        float p[4] = {normalised ? x0 / W : x0, normalised ? y0 / H : y0, normalised ? dx / W : dx,
                      normalised ? dy / H : dy};
        unsigned w = W;
        CK(LAUNCH(f, H, W, 0, NULL, &t, &out, &w, &p[0], &p[1], &p[2], &p[3]));
        CK(cuMemcpyDtoH(got, out, sizeof got));
        for (int y = 0; y < H; y++)
          for (int x = 0; x < W; x++) {
            double u = x0 + x * dx, v = y0 + y * dy, want, most = 0;
            if (linear) {
              int i = (int)floor(u - 0.5), j = (int)floor(v - 0.5);
              double a = u - 0.5 - i, b = v - 0.5 - j;
              want = (1 - a) * (1 - b) * texel(i, j, modes[m]) + a * (1 - b) * texel(i + 1, j, modes[m]) +
                     (1 - a) * b * texel(i, j + 1, modes[m]) + a * b * texel(i + 1, j + 1, modes[m]);
              most = 0.02; // 8 bits of weight
            } else {
              want = texel((int)floor(u), (int)floor(v), modes[m]);
            }
            float is = got[(y * W + x) * 4];
            CHECK(fabs(is - want) <= most, "%s mode %d linear %d normalised %d (%d, %d): %g, want %g", what, m, linear,
                  normalised, x, y, is, want);
          }
        CK(cuTexObjectDestroy(t));
      }
  printf("%s ok\n", what);
}

static CUarray array(size_t w, size_t h, size_t d, CUarray_format format, unsigned flags, const void *from) {
  CUDA_ARRAY3D_DESCRIPTOR desc = {w, h, d, format, 1, flags};
  CUarray a;
  CK(cuArray3DCreate(&a, &desc));
  CUDA_MEMCPY3D c;
  memset(&c, 0, sizeof c);
  c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = from, c.srcPitch = w * 4, c.srcHeight = h;
  c.dstMemoryType = CU_MEMORYTYPE_ARRAY, c.dstArray = a;
  c.WidthInBytes = w * 4, c.Height = h, c.Depth = d ? d : 1;
  CK(cuMemcpy3D(&c));
  return a;
}

int main(int argc, char **argv) {
  start(argc, argv);
  CK(cuModuleLoadData(&module, ptx));
  CK(cuMemAlloc(&out, sizeof got));
  for (int i = 0; i < W * H; i++) data[i] = (float)(i * 37 % 256) / 256;
  CUDA_RESOURCE_DESC res;
  memset(&res, 0, sizeof res);
  res.resType = CU_RESOURCE_TYPE_ARRAY;
  CUarray plane = array(W, H, 0, CU_AD_FORMAT_FLOAT, 0, data);
  res.res.array.hArray = plane;
  planes(&res, "array");

  CUdeviceptr pitched;
  size_t pitch;
  CK(cuMemAllocPitch(&pitched, &pitch, W * 4, H, 4));
  CUDA_MEMCPY2D c;
  memset(&c, 0, sizeof c);
  c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = data, c.srcPitch = W * 4;
  c.dstMemoryType = CU_MEMORYTYPE_DEVICE, c.dstDevice = pitched, c.dstPitch = pitch, c.WidthInBytes = W * 4,
      c.Height = H;
  CK(cuMemcpy2D(&c));
  memset(&res, 0, sizeof res);
  res.resType = CU_RESOURCE_TYPE_PITCH2D;
  res.res.pitch2D.devPtr = pitched, res.res.pitch2D.format = CU_AD_FORMAT_FLOAT, res.res.pitch2D.numChannels = 1;
  res.res.pitch2D.width = W, res.res.pitch2D.height = H, res.res.pitch2D.pitchInBytes = pitch;
  planes(&res, "pitched memory");

  memset(&res, 0, sizeof res);
  res.resType = CU_RESOURCE_TYPE_LINEAR;
  res.res.linear.devPtr = pitched, res.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT32, res.res.linear.numChannels = 1,
      res.res.linear.sizeInBytes = W * 4;
  CUtexObject t = object(&res, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, CU_TRSF_READ_AS_INTEGER);
  CK(LAUNCH(function(module, "row"), 1, W, 0, NULL, &t, &out));
  CK(cuMemcpyDtoH(got, out, W * 4));
  CHECK(!memcmp(got, data, W * 4), "linear memory");
  CK(cuTexObjectDestroy(t));
  printf("linear memory ok\n");

  CUarray layers = array(W, H / 4, 4, CU_AD_FORMAT_FLOAT, CUDA_ARRAY3D_LAYERED, data);
  memset(&res, 0, sizeof res);
  res.resType = CU_RESOURCE_TYPE_ARRAY, res.res.array.hArray = layers;
  t = object(&res, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0);
  for (unsigned l = 0; l < 4; l++) {
    unsigned w = W;
    CK(LAUNCH(function(module, "layer"), H / 4, W, 0, NULL, &t, &out, &w, &l));
    CK(cuMemcpyDtoH(got, out, W * H / 4 * 4));
    CHECK(!memcmp(got, data + l * W * H / 4, W * H / 4 * 4), "layer %u", l);
  }
  CK(cuTexObjectDestroy(t));
  printf("layers ok\n");

  CUDA_ARRAY3D_DESCRIPTOR desc = {16, 16, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  CUmipmappedArray m;
  CK(cuMipmappedArrayCreate(&m, &desc, 5));
  for (unsigned l = 0; l < 5; l++) {
    float fill_[256];
    CUarray a;
    for (int i = 0; i < 256; i++) fill_[i] = (float)(l * l);
    CK(cuMipmappedArrayGetLevel(&a, m, l));
    memset(&c, 0, sizeof c);
    c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = fill_, c.srcPitch = (16 >> l) * 4;
    c.dstMemoryType = CU_MEMORYTYPE_ARRAY, c.dstArray = a, c.WidthInBytes = (16 >> l) * 4, c.Height = 16 >> l;
    CK(cuMemcpy2D(&c));
  }
  memset(&res, 0, sizeof res);
  res.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, res.res.mipmap.hMipmappedArray = m;
  t = object(&res, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_LINEAR, CU_TRSF_NORMALIZED_COORDINATES);
  for (float l = 0; l <= 5; l += 0.5f) {
    CK(LAUNCH(function(module, "level"), 1, 1, 0, NULL, &t, &out, &l));
    CK(cuMemcpyDtoH(got, out, 4));
    printf("level %.1f: %g\n", l, got[0]);
  }
  CK(cuTexObjectDestroy(t));
  CK(cuMipmappedArrayDestroy(m));

  CUarray surface = array(W, H, 0, CU_AD_FORMAT_UNSIGNED_INT32, CUDA_ARRAY3D_SURFACE_LDST, data);
  memset(&res, 0, sizeof res);
  res.resType = CU_RESOURCE_TYPE_ARRAY, res.res.array.hArray = surface;
  CUsurfObject s;
  CK(cuSurfObjectCreate(&s, &res));
  CK(LAUNCH(function(module, "increase"), H, W, 0, NULL, &s));
  memset(&c, 0, sizeof c);
  c.srcMemoryType = CU_MEMORYTYPE_ARRAY, c.srcArray = surface;
  c.dstMemoryType = CU_MEMORYTYPE_HOST, c.dstHost = got, c.dstPitch = W * 4, c.WidthInBytes = W * 4, c.Height = H;
  CK(cuMemcpy2D(&c));
  for (int i = 0; i < W * H; i++) {
    uint32_t was, is;
    memcpy(&was, &data[i], 4), memcpy(&is, &got[i], 4);
    CHECK(is == was + 1, "element %d of the surface", i);
  }
  CK(cuSurfObjectDestroy(s));
  printf("surface ok\n");
  res.res.array.hArray = plane; // made without CUDA_ARRAY3D_SURFACE_LDST
  SHOW(cuSurfObjectCreate(&s, &res));
  SHOW(cuTexObjectCreate(&t, NULL, NULL, NULL));
  CK(cuArrayDestroy(surface));
  CK(cuArrayDestroy(layers));
  CK(cuArrayDestroy(plane));
  return 0;
}
