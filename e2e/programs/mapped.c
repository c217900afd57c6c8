// Pinned memory that kernels read and write through the pointer that cuMemHostGetDevicePointer gives.
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev); // newer headers have other forms only

static CUfunction add;

static void run(CUdeviceptr a, CUdeviceptr b, CUdeviceptr c, int n, CUstream s) {
  void *args[] = {&a, &b, &c, &n};
  CK(cuLaunchKernel(add, (n + 127) / 128, 1, 1, 128, 1, 1, 0, s, args, NULL));
}

// What waits for the GPU, or may.
enum waits {
  STREAM, CONTEXT, EVENT, QUERIES, STREAM_QUERIES, DOWNLOAD, DOWNLOAD_ASYNC, UPLOAD, BIG_UPLOAD, UPLOAD_OF_ANOTHER,
  ROWS, ROWS_UP, ARRAY_UP, ARRAY_DOWN, SET, COPY, FREE, FREE_HOST, UNLOAD, WAYS
};
enum { WIDTH = 512, BIG = 96 << 20 };

static struct {
  CUdeviceptr there;
  CUarray array;
  uint8_t *here, *big;
  CUdeviceptr large;
} of;

static atomic_int begun;
static void *upload(void *unused) {
  (void)unused;
  CK(cuCtxSetCurrent(context));
  begun = 1;
  CK(cuMemcpyHtoD(of.there, of.here, WIDTH)); // behind the kernel: natively this waits
  return NULL;
}

static void wait(enum waits how, CUstream s, CUevent e, CUmodule other) {
  CUdeviceptr p;
  void *pinned;
  CUDA_MEMCPY2D down = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = of.there, .srcPitch = WIDTH,
                        .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = of.here, .dstPitch = 2 * WIDTH,
                        .WidthInBytes = WIDTH, .Height = 4};
  CUDA_MEMCPY2D up = {.dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = of.there, .dstPitch = WIDTH,
                      .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = of.here, .srcPitch = 2 * WIDTH,
                      .WidthInBytes = WIDTH, .Height = 4};
  switch (how) {
  case STREAM: CK(cuStreamSynchronize(s)); break;
  case CONTEXT: CK(cuCtxSynchronize()); break;
  case EVENT: CK(cuEventSynchronize(e)); break;
  case QUERIES: while (cuEventQuery(e) == CUDA_ERROR_NOT_READY) {} break;
  case STREAM_QUERIES: while (cuStreamQuery(s) == CUDA_ERROR_NOT_READY) {} break;
  case DOWNLOAD: CK(cuMemcpyDtoH(of.here, of.there, WIDTH)); break;
  case DOWNLOAD_ASYNC: CK(cuMemcpyDtoHAsync(of.here, of.there, WIDTH, s)); break;
  case UPLOAD: CK(cuMemcpyHtoD(of.there, of.here, WIDTH)); break;
  case UPLOAD_OF_ANOTHER: break;
  case BIG_UPLOAD: CK(cuMemcpyHtoDAsync(of.large, of.big, BIG, s)); break;
  case ROWS: CK(cuMemcpy2D(&down)); break;
  case ROWS_UP: CK(cuMemcpy2DAsync(&up, s)); break;
  case ARRAY_UP: CK(cuMemcpyHtoA(of.array, 0, of.here, WIDTH)); break;
  case ARRAY_DOWN: CK(cuMemcpyAtoH(of.here, of.array, 0, WIDTH)); break;
  case SET: CK(cuMemsetD8(of.there, 1, WIDTH)); break;
  case COPY: CK(cuMemcpyDtoD(of.there, of.there + WIDTH, WIDTH)); break;
  case FREE: CK(cuMemAlloc(&p, 1 << 20)); CK(cuMemFree(p)); break;
  case FREE_HOST: CK(cuMemHostAlloc(&pinned, 4096, 0)); CK(cuMemFreeHost(pinned)); break;
  case UNLOAD: CK(cuModuleUnload(other)); break;
  case WAYS: break;
  }
  CK(cuStreamSynchronize(s));
}

// A kernel that waits for the program to write to the memory, which may then be asked about or waited for, in whatever
// way; and one that writes beside the flag.
static void latch(void) {
  CUmodule m, other;
  pthread_t another;
  CUfunction await;
  CUstream s;
  CUevent e;
  volatile uint32_t *flag;
  const CUDA_ARRAY_DESCRIPTOR d = {WIDTH, 1, CU_AD_FORMAT_UNSIGNED_INT8, 1};
  CK(cuModuleLoadData(&m, await_ptx()));
  CK(cuModuleGetFunction(&await, m, "await"));
  CK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  CK(cuMemHostAlloc((void **)&flag, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  CK(cuStreamCreate(&s, CU_STREAM_DEFAULT)); // what is in the legacy stream waits for it
  CK(cuMemAlloc(&of.there, 8 * WIDTH));
  CK(cuMemAlloc(&of.large, BIG));
  CK(cuArrayCreate(&of.array, &d));
  of.here = malloc(8 * WIDTH), of.big = malloc(BIG);
  memset(of.here, 1, 8 * WIDTH), memset(of.big, 1, BIG);
  for (uint32_t round = 1; round <= 2 * WAYS; round++) {
    CUdeviceptr p = (CUdeviceptr)(uintptr_t)flag;
    void *args[] = {&p, &round};
    CK(cuModuleLoadData(&other, await_ptx()));
    flag[0] = 0;
    CK(cuLaunchKernel(await, 1, 1, 1, 1, 1, 1, 0, s, args, NULL));
    CK(cuEventRecord(e, s));
    CHECK(cuStreamQuery(s) == CUDA_ERROR_NOT_READY, "round %u: it did not wait", round);
    if (round % WAYS == UPLOAD_OF_ANOTHER) {
      begun = 0;
      CHECK(!pthread_create(&another, NULL, upload, NULL), "no thread");
      while (!begun) sched_yield();
      for (int i = 0; i < 1000; i++) WANT(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    }
    flag[0] = round;
    flag[2] = round + 1;
    wait(round % WAYS, s, e, other);
    if (round % WAYS == UPLOAD_OF_ANOTHER) CHECK(!pthread_join(another, NULL), "the thread");
    CHECK(flag[0] == round && flag[1] == round && flag[2] == round + 1, "round %u: %u %u %u", round, flag[0], flag[1],
          flag[2]);
    if (round % WAYS != UNLOAD) CK(cuModuleUnload(other));
  }
  CK(cuEventDestroy(e));
  CK(cuStreamDestroy(s));
  CK(cuArrayDestroy(of.array));
  CK(cuMemFree(of.there));
  CK(cuMemFree(of.large));
  CK(cuMemFreeHost((void *)flag));
  CK(cuModuleUnload(m));
  free(of.here), free(of.big);
}

// A kernel finds the address in device memory, where a copy put it; nobody asked for the memory's device pointer.
static void pointers(CUstream s) {
  static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry through(.param .u64 table, .param .u32 v) {\n.reg .u64 %t, %a; .reg .u32 %x, %v;\n"
    "ld.param.u64 %t, [table]; ld.param.u32 %v, [v];\nld.global.u64 %a, [%t+16]; ld.global.u32 %x, [%a]; add.u32 %x, "
    "%x, %v; st.global.u32 [%a+4], %x; ret;\n}\n";
  CUmodule m;
  CUfunction f;
  CUdeviceptr table;
  uint32_t *words;
  CK(cuModuleLoadData(&m, ptx));
  CK(cuModuleGetFunction(&f, m, "through"));
  CK(cuMemAlloc(&table, 4096));
  for (uint32_t round = 1; round <= 3; round++) {
    CK(cuMemHostAlloc((void **)&words, 4096, 0));
    struct { uint64_t before[2]; uint32_t *to; char rest[2000]; } entry = {{5, ~0ull}, words};
    words[0] = round;
    if (round == 2) CK(cuMemcpyHtoDAsync(table, &entry, sizeof entry, s));
    else CK(cuMemcpyHtoD(table, &entry, sizeof entry));
    void *args[] = {&table, &round};
    CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, args, NULL));
    CK(cuStreamSynchronize(s));
    CHECK(words[1] == 2 * round, "round %u: through a pointer in device memory: %u", round, words[1]);
    CK(cuMemFreeHost(words));
  }
  CK(cuMemFree(table));
  CK(cuModuleUnload(m));
}

// A structure of parameters holds addresses that were looked at before: of memory that is mapped by now, of memory that
// was freed, and of memory that came to where other memory had been, or to a page of which a part is mapped already.
static void parameters(CUstream s) {
  static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry within(.param .align 8 .b8 p[4000], .param .u32 v) {\n.reg .u64 %a; .reg .u32 %x, %v;\n"
    "ld.param.u64 %a, [p+1608]; ld.param.u32 %v, [v];\nld.global.u32 %x, [%a]; add.u32 %x, %x, %v; "
    "st.global.u32 [%a+4], %x; ret;\n}\n";
  enum { PAGE = 4096, AT = 201 };
  CUmodule m;
  CUfunction f;
  CK(cuModuleLoadData(&m, ptx));
  CK(cuModuleGetFunction(&f, m, "within"));
  struct { uint64_t word[500]; } table = {{0}};
  uint32_t v, *words[3];
  void *args[] = {&table, &v};
  for (int i = 0; i < 3; i++) CK(cuMemHostAlloc((void **)&words[i], 2 * PAGE, 0));
  // What was written between the question for the memory's address and the first launch, whatever it is.
  CUdeviceptr at;
  CK(cuMemHostGetDevicePointer(&at, words[0], 0));
  memset(words[0], 0xff, 2 * PAGE);
  table.word[AT] = at;
  v = 5;
  CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, args, NULL));
  CK(cuStreamSynchronize(s));
  CHECK(words[0][1] == 4, "written before the first launch: %u", words[0][1]);
  for (int round = 0; round < 6; round++) {
    uint32_t *to = words[round % 2];
    for (int i = 0; i < 500; i++) table.word[i] = (uint64_t)(uintptr_t)words[i % 3] + i;
    table.word[AT] = (uint64_t)(uintptr_t)to;
    to[0] = v = round + 1;
    CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, args, NULL));
    if (round == 3) CK(cuMemFreeHost(words[2])); // from now on its addresses are stale
    CK(cuStreamSynchronize(s));
    CHECK(to[1] == 2 * v, "round %d: within a structure: %u", round, to[1]);
  }
  // The stale address comes to life, half a page at a time. NVIDIA's driver keeps it, so natively it is another.
  const int rights = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
  words[2] = mmap(words[2], PAGE, rights, flags | MAP_FIXED_NOREPLACE, -1, 0);
  if (words[2] == MAP_FAILED && !getenv("SCUDA_SERVER")) words[2] = mmap(NULL, PAGE, rights, flags, -1, 0);
  CHECK(words[2] != MAP_FAILED, "the address cannot be had again");
  for (int half = 0; half < 2; half++) {
    uint32_t *to = words[2] + half * PAGE / 8;
    CK(cuMemHostRegister(to, PAGE / 2, 0));
    for (int round = 0; round < 3; round++) {
      table.word[AT] = (uint64_t)(uintptr_t)to;
      to[0] = v = 10 * half + round + 1;
      CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, args, NULL));
      CK(cuStreamSynchronize(s));
      CHECK(to[1] == 2 * v, "half %d, round %d: registered where memory was freed: %u", half, round, to[1]);
    }
  }
  for (int half = 0; half < 2; half++) CK(cuMemHostUnregister(words[2] + half * PAGE / 8));
  CK(cuModuleUnload(m));
  for (int i = 0; i < 2; i++) CK(cuMemFreeHost(words[i]));
  munmap(words[2], PAGE);
}

// Memory whose blocks are alike, as new memory's are, of which the program and the GPU change some, mostly into such
// as others are.
static void alike(CUstream s, int blocks) {
  enum { BLOCK = 1024 };
  int n = blocks * BLOCK + 25;
  float *p, *model = calloc(n, sizeof *p), *got = malloc(n * sizeof *p);
  CUdeviceptr dp, out;
  CK(cuMemHostAlloc((void **)&p, n * sizeof *p, CU_MEMHOSTALLOC_DEVICEMAP));
  memset(p, 0, n * sizeof *p); // natively it may have been used before
  CK(cuMemHostGetDevicePointer(&dp, p, 0));
  CK(cuMemAlloc(&out, n * sizeof *p));
  uint32_t seed = 1;
  for (int round = 0; round < 60; round++) {
    for (int block = 0; block <= blocks; block++) {
      seed = seed * 1664525 + 1013904223;
      int from = block * BLOCK, many = n - from < BLOCK ? n - from : BLOCK;
      float value = (float)(seed >> 20 & 1);
      uint32_t bits;
      memcpy(&bits, &value, 4);
      switch (seed >> 28) {
      case 0: many = 1; // and on
      case 1: case 2: case 3: case 4:
        for (int i = 0; i < many; i++) p[from + i] = model[from + i] = value;
        break;
      case 5: // the program may change other blocks before the wait
        CK(cuMemsetD32Async(dp + 4ull * from, bits, many, s));
        for (int i = 0; i < many; i++) model[from + i] = value;
      }
    }
    run(dp, dp, out, n, s);
    CK(cuStreamSynchronize(s));
    CK(cuMemcpyDtoH(got, out, n * sizeof *p));
    for (int i = 0; i < n; i++)
      CHECK(p[i] == model[i] && got[i] == 2 * model[i], "blocks alike, round %d: [%d] = %g, twice it %g, not %g", round,
            i, p[i], got[i], model[i]);
  }
  CK(cuMemFree(out));
  CK(cuMemFreeHost(p));
  free(model);
  free(got);
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
    for (int i = 0; i < (round == 2 ? N : N / 2); i++)
      CHECK(c[i] == a[i] + b[i], "first stream, round %d: [%d] = %g", round, i, c[i]);
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
  // Sets and copies take pinned memory for the device's: in the order of the stream, and done on return when they are
  // not asynchronous.
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
  CHECK(c[0] == 0 && c[1] == 9 && c[4] == 0 && c[8] == 0 && c[12] == 9, "columns: %g %g %g %g %g", c[0], c[1], c[4],
        c[8], c[12]);
  CK(cuMemFree(e));
  // Memory that becomes known to kernels after a launch, and before the wait for it, keeps what the program wrote.
  float *late;
  CUdeviceptr dlate;
  CK(cuMemHostAlloc((void **)&late, N * sizeof *late, CU_MEMHOSTALLOC_DEVICEMAP));
  run(da, db, dc, N, s);
  for (int i = 0; i < N; i++) late[i] = (float)(i + 3);
  CK(cuMemHostGetDevicePointer(&dlate, late, 0));
  CK(cuStreamSynchronize(s));
  for (int i = 0; i < N; i++) CHECK(late[i] == (float)(i + 3), "mapped after the launch: [%d] = %g", i, late[i]);
  CK(cuMemFreeHost(late));
  // A large range, of which kernels change pieces: forth, back, and beside pieces that the program changes. Its size is
  // no multiple of anything.
  enum { L = 1000003 };
  float *large, *model = malloc(L * sizeof *model);
  CUdeviceptr dl;
  CK(cuMemHostAlloc((void **)&large, L * sizeof *large, CU_MEMHOSTALLOC_DEVICEMAP));
  CK(cuMemHostGetDevicePointer(&dl, large, 0));
  for (int i = 0; i < L; i++) large[i] = model[i] = (float)i;
  uint32_t seed = 1;
  for (int round = 0; round < 40; round++) {
    int whole = round % 13 == 12;
    for (int piece = 0; piece < 3; piece++) {
      seed = seed * 1664525 + 1013904223;
      int at = whole ? 0 : (int)(seed % (L - N)), n = whole ? L : 1 + (int)(seed >> 8) % N;
      float value = (float)(round % 2);
      uint32_t bits;
      memcpy(&bits, &value, 4);
      CK(cuMemsetD32Async(dl + (uint64_t)at * 4, bits, (size_t)n, s)); // goes to and fro between two values
      for (int i = 0; i < n; i++) model[at + i] = value;
    }
    CK(cuStreamSynchronize(s));
    for (int i = 0; i < L; i++)
      CHECK(large[i] == model[i], "large, round %d: [%d] = %g, not %g", round, i, large[i], model[i]);
    for (int i = round; i < L; i += 70001) large[i] = model[i] = (float)-i;
  }
  free(model);
  CK(cuMemFreeHost(large));
  pointers(s);
  parameters(s);
  alike(s, 15);
  alike(s, 40);
  latch();
  // Freeing waits for what still uses the memory.
  enum { HUGE = 48 << 20 };
  void *huge;
  CUdeviceptr dh;
  CK(cuMemHostAlloc(&huge, HUGE, CU_MEMHOSTALLOC_DEVICEMAP));
  CK(cuMemHostGetDevicePointer(&dh, huge, 0));
  for (int i = 0; i < 20; i++) CK(cuMemsetD8Async(dh, (unsigned char)i, HUGE, s));
  CK(cuMemFreeHost(huge));
  CK(cuCtxSynchronize());
  CK(cuMemFreeHost(a));
  CK(cuMemFreeHost(b));
  CK(cuMemFreeHost(c));
  CK(cuMemFreeHost(d));
  puts("mapped ok");
  return 0;
}
