// The loads of `scuda perf run`: `scuda-load OPERATION BYTES COUNT` carries an operation out COUNT times after a
// warm-up and prints what each took, in nanoseconds, a line each. With COUNT 0 it says "ready", waits for a line on its
// standard input that gives a time in seconds, and goes on for so long. It uses the driver API alone, so the same
// binary measures NVIDIA's library and scuda's.
#define _GNU_SOURCE
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CK(call) \
  do { \
    int r_ = (int)(call); \
    if (r_) { \
      fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, r_); \
      exit(1); \
    } \
  } while (0)

enum { MOST = 1 << 22 };

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static const char *ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry nothing(.param .u64 p)\n{\n ret;\n}\n"
    ".visible .entry turn(.param .u64 p, .param .u64 n)\n{\n .reg .u64 %rd<4>;\n .reg .u32 %r<2>;\n"
    " .reg .pred %p<2>;\n ld.param.u64 %rd1, [n];\n ld.param.u64 %rd2, [p];\n mov.u64 %rd3, 0;\n mov.u32 %r1, 1;\n"
    "$again:\n mad.lo.u32 %r1, %r1, 1664525, 1013904223;\n add.u64 %rd3, %rd3, 1;\n"
    " setp.lt.u64 %p1, %rd3, %rd1;\n @%p1 bra $again;\n st.global.u32 [%rd2], %r1;\n ret;\n}\n";

static CUdeviceptr device;
static void *host;
static size_t bytes;
static CUfunction nothing, turn;

static void launch(void) {
  void *args[] = {&device};
  CK(cuLaunchKernel(nothing, 1, 1, 1, 32, 1, 1, 0, NULL, args, NULL));
  CK(cuCtxSynchronize());
}
static void up(void) {
  CK(cuMemcpyHtoDAsync(device, host, bytes, NULL));
  CK(cuCtxSynchronize());
}
static void down(void) { CK(cuMemcpyDtoH(host, device, bytes)); }
static void allocate(void) {
  CUdeviceptr p;
  CK(cuMemAlloc(&p, bytes));
  CK(cuMemFree(p));
}
// One side writes the whole range, then the other reads it.
static void managed(void) {
  memset((void *)device, 1, bytes);
  CK(cuMemsetD8Async(device, 2, bytes, NULL));
  CK(cuCtxSynchronize());
  volatile char *p = (volatile char *)device;
  for (size_t i = 0; i < bytes; i += 4096)
    if (p[i] != 2) exit(2);
}
// Eight kernels that count to BYTES, which does not end sooner for what others do meanwhile. A batch has eight more
// on the GPU already, an inference waits for its own, and pauses before the next.
static void kernels(void) {
  uint64_t n = bytes;
  void *args[] = {&device, &n};
  for (int i = 0; i < 8; i++) CK(cuLaunchKernel(turn, 132, 1, 1, 128, 1, 1, 0, NULL, args, NULL));
}
static void batch(void) {
  static CUevent done[2];
  static unsigned long n;
  CUevent *e = &done[n++ % 2], *last = &done[n % 2];
  if (!*e) CK(cuEventCreate(e, CU_EVENT_DISABLE_TIMING));
  kernels();
  CK(cuEventRecord(*e, NULL));
  if (*last) CK(cuEventSynchronize(*last));
}
static void infer(void) {
  kernels();
  CK(cuCtxSynchronize());
}

int main(int argc, char **argv) {
  if (argc != 4) return 64;
  const struct {
    const char *name;
    void (*run)(void);
  } operations[] = {{"launch", launch}, {"up", up}, {"down", down}, {"up-pinned", up}, {"down-pinned", down},
                    {"allocate", allocate}, {"managed", managed}, {"batch", batch}, {"infer", infer}};
  void (*run)(void) = NULL;
  for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
    if (!strcmp(argv[1], operations[i].name)) run = operations[i].run;
  bytes = strtoull(argv[2], NULL, 10);
  long count = strtol(argv[3], NULL, 10);
  if (!run || count < 0 || count > MOST) return 64;
  CUdevice dev;
  CUcontext ctx;
  CK(cuInit(0));
  CK(cuDeviceGet(&dev, 0));
  CK(cuDevicePrimaryCtxRetain(&ctx, dev));
  CK(cuCtxSetCurrent(ctx));
  if (run == managed) {
    CK(cuMemAllocManaged(&device, bytes, CU_MEM_ATTACH_GLOBAL));
  } else if (run != allocate) {
    CK(cuMemAlloc(&device, bytes ? bytes : 4));
  }
  if (strstr(argv[1], "pinned")) {
    CK(cuMemAllocHost(&host, bytes));
  } else {
    host = malloc(bytes ? bytes : 1);
  }
  if (host) memset(host, 1, bytes);
  if (run == launch || run == batch || run == infer) {
    CUmodule m;
    CK(cuModuleLoadData(&m, ptx));
    CK(cuModuleGetFunction(&nothing, m, "nothing"));
    CK(cuModuleGetFunction(&turn, m, "turn"));
  }
  uint64_t *took = malloc(sizeof *took * MOST), until = 0;
  run();
  for (uint64_t end = now() + 20000000u; count != 1 && now() < end;) run();
  if (!count) {
    double seconds = 0;
    puts("ready");
    fflush(stdout);
    if (scanf("%lf", &seconds) != 1) return 64;
    until = now() + (uint64_t)(seconds * 1e9);
    count = MOST;
  }
  long n = 0;
  while (n < count) {
    uint64_t t = now();
    if (until && t >= until) break;
    if (run == infer) {
      nanosleep(&(struct timespec){.tv_nsec = 8000000}, NULL);
      t = now();
    }
    run();
    took[n++] = now() - t;
  }
  for (long i = 0; i < n; i++) printf("%llu\n", (unsigned long long)took[i]);
  return 0;
}
