// Modules from PTX, fatbins (plain, Zstandard), as file, module and library; every kernel of kernels.ptx with a checked
// result.
#include "check.h"
#include <math.h>

enum { N = 100003 };
static CUdeviceptr d_a, d_b, d_c;
static float *a, *b, *c;

static void up(CUdeviceptr d, const void *p, size_t n) { CK(cuMemcpyHtoD(d, p, n)); }
static void down(void *p, CUdeviceptr d, size_t n) { CK(cuMemcpyDtoH(p, d, n)); }

static void all(const char *what, CUmodule m) {
  int n = N;
  float s = 1.5f;
  up(d_a, a, N * 4);
  up(d_b, b, N * 4);
  CK(LAUNCH(function(m, "vector_add"), (N + 255) / 256, 256, 0, 0, &d_a, &d_b, &d_c, &n));
  down(c, d_c, N * 4);
  for (int i = 0; i < N; i++) CHECK(c[i] == a[i] + b[i], "%s: vector_add[%d] = %g", what, i, c[i]);

  CK(LAUNCH(function(m, "saxpy"), 40, 128, 0, 0, &s, &d_a, &d_b, &n));
  down(c, d_b, N * 4);
  for (int i = 0; i < N; i++)
    CHECK(c[i] == fmaf(s, a[i], b[i]), "%s: saxpy[%d] = %g, not %g", what, i, c[i], fmaf(s, a[i], b[i]));

  for (int i = 0; i < N; i++) c[i] = (float)(i % 17); // whole numbers: the sum is exact in any order
  float want = 0, got = 0;
  for (int i = 0; i < N; i++) want += c[i];
  up(d_a, c, N * 4);
  CK(cuMemsetD32(d_c, 0, 1));
  CK(LAUNCH(function(m, "reduce_sum"), 20, 256, 256 * 4, 0, &d_a, &d_c, &n));
  down(&got, d_c, 4);
  CHECK(got == want, "%s: reduce_sum %g, not %g", what, got, want);

  int total = 0, sum = 0, *ints = (int *)c;
  for (int i = 0; i < N; i++) ints[i] = i % 23 - 11, sum += ints[i];
  up(d_a, ints, N * 4);
  CK(cuMemsetD32(d_c, 0, 1));
  CK(LAUNCH(function(m, "warp_sum"), (N + 127) / 128, 128, 0, 0, &d_a, &d_c, &n));
  down(&total, d_c, 4);
  CHECK(total == sum, "%s: warp_sum %d, not %d", what, total, sum);

  int edge = 70;
  up(d_a, a, edge * edge * 4);
  up(d_b, b, edge * edge * 4);
  CK(cuLaunchKernel(function(m, "matmul_tiled"), 5, 5, 1, 16, 16, 1, 0, 0, ARGS(&d_a, &d_b, &d_c, &edge), NULL));
  down(c, d_c, edge * edge * 4);
  for (int i = 0; i < edge; i++)
    for (int j = 0; j < edge; j++) {
      float v = 0;
      for (int k = 0; k < edge; k++) v = fmaf(a[i * edge + k], b[k * edge + j], v);
      CHECK(c[i * edge + j] == v, "%s: matmul[%d,%d] = %g, not %g", what, i, j, c[i * edge + j], v);
    }

  unsigned char *bytes = (unsigned char *)c;
  unsigned h[256], counts[256] = {0};
  fill(bytes, N, 7);
  for (int i = 0; i < N; i++) counts[bytes[i]]++;
  up(d_a, bytes, N);
  CK(cuMemsetD8(d_c, 0, sizeof h));
  CK(LAUNCH(function(m, "histogram256"), 13, 192, 0, 0, &d_a, &d_c, &n));
  down(h, d_c, sizeof h);
  CHECK(!memcmp(h, counts, sizeof h), "%s: histogram256", what);

  uint16_t half2 = 0x4000, *x = (uint16_t *)c; // 2.0 · 1.0 + 0.5 = 2.5
  for (int i = 0; i < N; i++) x[i] = i % 2 ? 0x3C00 : 0x3800;
  up(d_a, x, N * 2);
  CK(cuMemsetD16(d_b, 0x3800, N));
  CK(LAUNCH(function(m, "half_axpy"), (N + 255) / 256, 256, 0, 0, &half2, &d_a, &d_b, &n));
  down(x, d_b, N * 2);
  for (int i = 0; i < N; i++) CHECK(x[i] == (i % 2 ? 0x4100 : 0x3E00), "%s: half_axpy[%d] = %04x", what, i, x[i]);

  up(d_a, a, N * 4);
  CK(LAUNCH(function(m, "math_mix"), (N + 255) / 256, 256, 0, 0, &d_a, &d_c, &n));
  down(c, d_c, N * 4);
  for (int i = 0; i < N; i++) {
    double v = a[i], w = sin(v) + exp(-v * v) * sqrt(fabs(v)) + log(1 + fabs(v)) / (1 + pow(fabs(v), 1.5));
    CHECK(fabs(c[i] - w) < 1e-5 * (1 + fabs(w)), "%s: math_mix(%g) = %.9g, not %.9g", what, v, c[i], w);
  }

  struct big { int a[64]; float f[64]; char c[13]; } big;
  struct { int o[64]; float f[64]; char c[16]; } out;
  for (int i = 0; i < 64; i++) big.a[i] = i * i - 5, big.f[i] = i / 3.f;
  memcpy(big.c, "Hello, GPU!!", 13);
  CUdeviceptr o = d_c, f = d_c + 256, s8 = d_c + 512;
  CK(LAUNCH(function(m, "struct_arg"), 1, 64, 0, 0, &big, &o, &f, &s8));
  down(&out, d_c, 525);
  CHECK(!memcmp(&out, &big, 525), "%s: struct_arg", what);
  // The same through the packed form of the arguments.
  struct { struct big big; CUdeviceptr o, f, c; } packed = {big, o, f, s8};
  size_t packed_size = sizeof packed;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed_size,
                   CU_LAUNCH_PARAM_END};
  CK(cuMemsetD8(d_c, 0, 525));
  CK(cuLaunchKernel(function(m, "struct_arg"), 1, 1, 1, 64, 1, 1, 0, 0, NULL, extra));
  down(&out, d_c, 525);
  CHECK(!memcmp(&out, &big, 525), "%s: struct_arg in packed form", what);

  CUdeviceptr g;
  size_t size;
  int value = 0;
  float coeff[8];
  CK(cuModuleGetGlobal(&g, &size, m, "counter"));
  CHECK(size == 4, "%s: counter has %zu bytes", what, size);
  down(&value, g, 4);
  CHECK(value == 7, "%s: counter starts as %d", what, value);
  value = 1000;
  up(g, &value, 4);
  CK(cuModuleGetGlobal(&g, &size, m, "coeff"));
  CHECK(size == 32, "%s: coeff has %zu bytes", what, size);
  down(coeff, g, 32);
  for (int i = 0; i < 8; i++) CHECK(coeff[i] == i + 1, "%s: coeff[%d] = %g", what, i, coeff[i]);
  int results[3];
  CK(LAUNCH(function(m, "globals"), 1, 1, 0, 0, &d_c));
  down(results, d_c, 12);
  CHECK(results[0] == 1000 && results[1] == 1 && results[2] == 5, "%s: globals gave %d %d %d", what, results[0],
        results[1], results[2]);
  printf("%s: all kernels right\n", what);
}

// A packed buffer may end before the parameters do: NCCL sends as much of its 4 KiB as a launch needs.
static void shorter(void) {
  static const char *ptx =
      ".version 7.0\n.target sm_70\n.address_size 64\n"
      ".visible .entry first(.param .u64 out, .param .align 4 .b8 list[4000])\n"
      "{\n .reg .u64 %o;\n .reg .u32 %v;\n ld.param.u64 %o, [out];\n ld.param.u32 %v, [list];\n st.global.u32 [%o], "
      "%v;\n ret;\n}\n";
  CUmodule m;
  CUdeviceptr d;
  struct { CUdeviceptr out; unsigned first; } some = {.first = 77};
  size_t bytes = 12;
  unsigned got = 0;
  CK(cuModuleLoadData(&m, ptx));
  CK(cuMemAlloc(&d, 4));
  some.out = d;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &some, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  CK(cuLaunchKernel(function(m, "first"), 1, 1, 1, 1, 1, 1, 0, 0, NULL, extra));
  down(&got, d, 4);
  CHECK(got == 77, "of a shorter buffer: %u", got);
  bytes = 0;
  WANT(cuLaunchKernel(function(m, "first"), 1, 1, 1, 1, 1, 1, 0, 0, NULL, extra), CUDA_ERROR_INVALID_VALUE);
  CK(cuMemFree(d));
  CK(cuModuleUnload(m));
}

int main(int argc, char **argv) {
  start(argc, argv);
  a = malloc(N * 4), b = malloc(N * 4), c = malloc(N * 4);
  for (int i = 0; i < N; i++)
    a[i] = (float)((i * 7919) % 20011) / 1000 - 10, b[i] = (float)((i * 104729) % 30011) / 999 - 15;
  CK(cuMemAlloc(&d_a, N * 4));
  CK(cuMemAlloc(&d_b, N * 4));
  CK(cuMemAlloc(&d_c, N * 4));

  const char *images[] = {"kernels.ptx", "kernels.fatbin", "kernels-uncompressed.fatbin"};
  for (int i = 0; i < 3; i++) {
    CUmodule m = load(images[i]);
    all(images[i], m);
    CK(cuModuleUnload(m));
  }
  char path[4096];
  CUmodule m;
  snprintf(path, sizeof path, "%s/kernels.fatbin", kernels_folder);
  CK(cuModuleLoad(&m, path));
  all("file", m);
  CK(cuModuleUnload(m));

  CUlibrary lib;
  CUkernel k;
  void *image = read_file("kernels.fatbin", NULL);
  CK(cuLibraryLoadData(&lib, image, NULL, NULL, 0, NULL, NULL, 0));
  CK(cuLibraryGetModule(&m, lib));
  all("library", m);
  CK(cuLibraryGetKernel(&k, lib, "saxpy"));
  int n = 1000;
  float s = 2, one[1000];
  for (int i = 0; i < n; i++) one[i] = (float)i;
  up(d_a, one, n * 4);
  CK(cuMemsetD32(d_b, 0, n));
  CK(LAUNCH((CUfunction)k, 10, 100, 0, 0, &s, &d_a, &d_b, &n));
  down(one, d_b, n * 4);
  for (int i = 0; i < n; i++) CHECK(one[i] == 2.f * i, "kernel handle: saxpy[%d] = %g", i, one[i]);
  CK(cuLibraryUnload(lib));

  WANT(cuModuleLoadData(&m, "this is no image, and far from being one"), CUDA_ERROR_INVALID_IMAGE);
  CUfunction f;
  m = load("kernels.ptx");
  WANT(cuModuleGetFunction(&f, m, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
  WANT(cuModuleLoad(&m, "/no/such/file"), CUDA_ERROR_FILE_NOT_FOUND);
  printf("images ok\n");
  shorter();
  return 0;
}
