// Pinned memory that kernels read and write through the pointer that cuMemHostGetDevicePointer gives.
#include "check.h"

static CUfunction add;

static void run(CUdeviceptr a, CUdeviceptr b, CUdeviceptr c, int n, CUstream s) {
  void *args[] = {&a, &b, &c, &n};
  CK(cuLaunchKernel(add, (n + 127) / 128, 1, 1, 128, 1, 1, 0, s, args, NULL));
}

int main(int argc, char **argv) {
  start(argc, argv);
  add = function(load("kernels.ptx"), "vector_add");
  enum { N = 5000 };
  float *a, *b, *c;
  CUdeviceptr da, db, dc;
  CK(cuMemHostAlloc((void **)&a, N * sizeof *a, CU_MEMHOSTALLOC_DEVICEMAP));
  CK(cuMemHostAlloc((void **)&b, N * sizeof *b, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
  CK(cuMemHostAlloc((void **)&c, N * sizeof *c, CU_MEMHOSTALLOC_DEVICEMAP));
  CK(cuMemHostGetDevicePointer(&da, a, 0));
  CK(cuMemHostGetDevicePointer(&db, b, 0));
  CK(cuMemHostGetDevicePointer(&dc, c, 0));
  CUstream s;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  for (int round = 1; round <= 3; round++) {
    for (int i = 0; i < N; i++) a[i] = (float)(i * round), b[i] = (float)(i + round);
    run(da, db, dc, N, s);
    CK(cuStreamSynchronize(s));
    for (int i = 0; i < N; i++) CHECK(c[i] == a[i] + b[i], "round %d: [%d] = %g", round, i, c[i]);
  }
  // Kernels on several streams, of which one is waited for before the other.
  CUstream other;
  CK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  for (int round = 1; round <= 3; round++) {
    for (int i = 0; i < N; i++) a[i] = (float)(i * round), b[i] = (float)(i - round);
    run(da, db, dc, N / 2, s);
    run(da + N / 2 * sizeof *a, db + N / 2 * sizeof *b, dc + N / 2 * sizeof *c, N - N / 2, round == 2 ? s : other);
    CK(cuStreamSynchronize(s));
    for (int i = 0; i < (round == 2 ? N : N / 2); i++) CHECK(c[i] == a[i] + b[i], "first stream, round %d: [%d] = %g", round, i, c[i]);
    CK(cuStreamSynchronize(other));
    for (int i = 0; i < N; i++) CHECK(c[i] == a[i] + b[i], "second stream, round %d: [%d] = %g", round, i, c[i]);
  }
  CK(cuStreamDestroy(other));
  // A pointer into the middle, and what a kernel wrote as the source of the next.
  CUdeviceptr half;
  CK(cuMemHostGetDevicePointer(&half, c + N / 2, 0));
  CHECK(half == dc + N / 2 * sizeof *c, "a pointer into the middle");
  run(half, half, da, N / 2, s);
  CK(cuCtxSynchronize());
  for (int i = 0; i < N / 2; i++) CHECK(a[i] == 2 * c[N / 2 + i], "middle: [%d] = %g", i, a[i]);
  CK(cuMemFreeHost(b));
  CK(cuMemHostAlloc((void **)&b, N * sizeof *b, CU_MEMHOSTALLOC_DEVICEMAP));
  CK(cuMemHostGetDevicePointer(&db, b, 0));
  for (int i = 0; i < N; i++) b[i] = 7, a[i] = (float)i;
  run(da, db, dc, N, s);
  CK(cuStreamSynchronize(s));
  for (int i = 0; i < N; i++) CHECK(c[i] == (float)i + 7, "allocated again: [%d] = %g", i, c[i]);
  // The address itself, without asking; what the program writes beside a running kernel's results stays.
  float *d;
  CK(cuMemHostAlloc((void **)&d, N * sizeof *d, 0));
  for (int i = 0; i < N; i++) d[i] = (float)-i;
  CUdeviceptr dd = (CUdeviceptr)(uintptr_t)d;
  run(dd, db, dd, N / 2, s);
  d[N - 1] = 99;
  CK(cuStreamSynchronize(s));
  for (int i = 0; i < N - 1; i++) CHECK(d[i] == (i < N / 2 ? 7.f - i : (float)-i), "not asked for: [%d] = %g", i, d[i]);
  CHECK(d[N - 1] == 99, "written by the program meanwhile: %g", d[N - 1]);
  // Sets and copies take pinned memory for the device's: in the order of the stream, and done on return when they are not asynchronous.
  CUdeviceptr e, again = (CUdeviceptr)(uintptr_t)c;
  CK(cuMemAlloc(&e, N * sizeof(float)));
  CK(cuMemsetD32Async(dd, 0x40000000, N, s)); // 2.0
  run(dd, db, dd, N, s);
  CK(cuMemcpyDtoDAsync(e, dd, N * sizeof(float), s));
  CK(cuMemsetD8Async(dd, 0, 4, s));
  CK(cuStreamSynchronize(s));
  CHECK(d[0] == 0 && d[1] == 9 && d[N - 1] == 9, "set and added: %g %g %g", d[0], d[1], d[N - 1]);
  CK(cuMemcpyDtoD(again, e, N * sizeof(float)));
  CHECK(c[0] == 9 && c[N - 1] == 9, "copied from the device: %g %g", c[0], c[N - 1]);
  CK(cuMemsetD16(again, 0x4000, 2));
  CHECK(c[0] == 2.00390625f && c[1] == 9, "set at once: %g %g", c[0], c[1]);
  CK(cuMemsetD2D32(again, 16, 0, 1, 3));
  CHECK(c[0] == 0 && c[1] == 9 && c[4] == 0 && c[8] == 0 && c[12] == 9, "columns: %g %g %g %g %g", c[0], c[1], c[4], c[8], c[12]);
  CK(cuMemFree(e));
  CK(cuMemFreeHost(a));
  CK(cuMemFreeHost(b));
  CK(cuMemFreeHost(c));
  CK(cuMemFreeHost(d));
  puts("mapped ok");
  return 0;
}
