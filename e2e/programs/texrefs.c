// Texture and surface references of CUDA 11: their state, and a module's texture reference that a kernel reads. Only on
// a real GPU.
#include "check.h"

static const char *ptx =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".global .texref picture;\n"
    ".visible .entry read(.param .u64 out) {\n"
    "  .reg .u64 %o, %a; .reg .u32 %x; .reg .f32 %u, %v, %c<4>;\n"
    "  ld.param.u64 %o, [out]; mov.u32 %x, %tid.x; cvt.rn.f32.u32 %u, %x; add.f32 %u, %u, 0f3F000000; mov.f32 %v, "
    "0f3F000000;\n"
    "  tex.2d.v4.f32.f32 {%c0, %c1, %c2, %c3}, [picture, {%u, %v}];\n"
    "  mul.wide.u32 %a, %x, 4; cvta.to.global.u64 %o, %o; add.u64 %o, %o, %a; st.global.f32 [%o], %c0; ret;\n}\n";

int main(int argc, char **argv) {
  start(argc, argv);
  CUtexref t;
  CUaddress_mode mode;
  CUfilter_mode filter;
  CUarray_format format;
  CUarray array, got;
  unsigned flags;
  int channels, aniso;
  float low, high, bias, border[4] = {1, 2, 3, 4}, back[4] = {0};
  CK(cuTexRefCreate(&t));
  CK(cuTexRefSetAddressMode(t, 1, CU_TR_ADDRESS_MODE_MIRROR));
  CK(cuTexRefGetAddressMode(&mode, t, 1));
  CK(cuTexRefSetFilterMode(t, CU_TR_FILTER_MODE_LINEAR));
  CK(cuTexRefGetFilterMode(&filter, t));
  CK(cuTexRefSetFormat(t, CU_AD_FORMAT_HALF, 2));
  CK(cuTexRefGetFormat(&format, &channels, t));
  CK(cuTexRefSetFlags(t, CU_TRSF_NORMALIZED_COORDINATES));
  CK(cuTexRefGetFlags(&flags, t));
  CK(cuTexRefSetMaxAnisotropy(t, 8));
  CK(cuTexRefGetMaxAnisotropy(&aniso, t));
  CK(cuTexRefSetMipmapLevelBias(t, 0.5f));
  CK(cuTexRefGetMipmapLevelBias(&bias, t));
  CK(cuTexRefSetMipmapLevelClamp(t, 1.25f, 3.5f));
  CK(cuTexRefGetMipmapLevelClamp(&low, &high, t));
  CK(cuTexRefSetBorderColor(t, border));
  CK(cuTexRefGetBorderColor(back, t));
  printf("mode %d filter %d format %d x %d flags %u anisotropy %d bias %g clamp %g %g border %g %g %g %g\n", (int)mode,
         (int)filter, (int)format, channels, flags, aniso, bias, low, high,
         back[0], back[1], back[2], back[3]);
  CUDA_ARRAY_DESCRIPTOR desc = {16, 4, CU_AD_FORMAT_FLOAT, 1};
  CK(cuArrayCreate(&array, &desc));
  CK(cuTexRefSetArray(t, array, 1 /* CU_TRSA_OVERRIDE_FORMAT */));
  CK(cuTexRefGetArray(&got, t));
  CHECK(got == array, "array of a texture reference");
  CUdeviceptr d, address;
  size_t offset = 99;
  CK(cuMemAlloc(&d, 4096));
  CK(cuTexRefSetAddress(&offset, t, d, 4096));
  CK(cuTexRefGetAddress(&address, t));
  CHECK(address == d, "address of a texture reference");
  printf("offset %zu\n", offset);
  CK(cuTexRefDestroy(t));

  CUmodule m;
  CUsurfref s;
  CK(cuModuleLoadData(&m, ptx));
  SHOW(cuModuleGetTexRef(&t, m, "nothing"));
  SHOW(cuModuleGetSurfRef(&s, m, "nothing"));
  CK(cuModuleGetTexRef(&t, m, "picture"));
  float data[64], out[16];
  for (int i = 0; i < 64; i++) data[i] = i * 1.5f;
  CUDA_MEMCPY2D c;
  memset(&c, 0, sizeof c);
  c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = data, c.srcPitch = 64;
  c.dstMemoryType = CU_MEMORYTYPE_ARRAY, c.dstArray = array, c.WidthInBytes = 64, c.Height = 4;
  CK(cuMemcpy2D(&c));
  CK(cuTexRefSetFilterMode(t, CU_TR_FILTER_MODE_POINT));
  CK(cuTexRefSetArray(t, array, 1 /* CU_TRSA_OVERRIDE_FORMAT */));
  CK(LAUNCH(function(m, "read"), 1, 16, 0, NULL, &d));
  CK(cuMemcpyDtoH(out, d, sizeof out));
  CHECK(!memcmp(out, data, sizeof out), "texture reference of a module");
  CK(cuModuleUnload(m));
  CK(cuArrayDestroy(array));
  printf("module's reference ok\n");
  return 0;
}
