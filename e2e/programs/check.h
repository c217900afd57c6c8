// Shared by the test programs: they use the driver API alone, so that they build with NVIDIA's cuda.h as well as with
// scuda's own, and print only what must be the same on every GPU, so that a native and a remote run can be compared
// line by line.
#ifndef CHECK_H
#define CHECK_H
#include <cuda.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAIL(...) \
  (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), fprintf(stderr, "\n"), exit(1))
// CK: the call must succeed. WANT: it must answer exactly this. SHOW: print what it answers.
#define CK(call) WANT(call, CUDA_SUCCESS)
#define WANT(call, want) \
  do { \
    int got_ = (int)(call), want_ = (int)(want); \
    if (got_ != want_) FAIL("%s: got %d (%s), want %d", #call, got_, error_name(got_), want_); \
  } while (0)
#define SHOW(call) printf("%s = %d\n", #call, (int)(call))
#define CHECK(cond, ...) \
  do { \
    if (!(cond)) FAIL(__VA_ARGS__); \
  } while (0)

// PTX of a kernel await(p, v): it waits until the word at p is v, and writes v beside it.
static inline const char *await_ptx(void) {
  return ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry await(.param .u64 p, .param .u32 v) {\n.reg .u64 %a; .reg .u32 %x, %v; .reg .pred %q;\n"
    "ld.param.u64 %a, [p]; ld.param.u32 %v, [v];\nagain: ld.volatile.global.u32 %x, [%a]; setp.ne.u32 %q, %x, %v; "
    "@%q bra again;\nst.volatile.global.u32 [%a+4], %v; ret;\n}\n";
}

static inline const char *error_name(int r) {
  const char *name = "?";
  cuGetErrorName((CUresult)r, &name);
  return name ? name : "?";
}

static inline uint64_t digest(const void *data, size_t n) { // FNV-1a over words, then bytes
  const unsigned char *p = data;
  uint64_t h = 14695981039346656037ull, w;
  for (; n >= 8; n -= 8, p += 8) {
    memcpy(&w, p, 8);
    h = (h ^ w) * 1099511628211ull;
    h ^= h >> 29;
  }
  for (; n; n--) h = (h ^ *p++) * 1099511628211ull;
  return h;
}

static inline void fill(void *data, size_t n, uint64_t seed) { // xorshift
  unsigned char *p = data;
  uint64_t x = seed * 0x9E3779B97F4A7C15ull + 1;
  for (size_t i = 0; i < n; i += 8) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    memcpy(p + i, &x, n - i < 8 ? n - i : 8);
  }
}

static const char *kernels_folder = "testdata/kernels"; // argv[1] of every program

static inline void *read_file(const char *name, size_t *size) { // NUL behind the end, for PTX
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", kernels_folder, name);
  FILE *f = fopen(path, "rb");
  if (!f) FAIL("%s: %s", path, strerror(errno));
  fseek(f, 0, SEEK_END);
  long n = ftell(f);
  rewind(f);
  char *data = calloc(1, n + 1);
  if (!data || fread(data, 1, n, f) != (size_t)n) FAIL("%s: cannot read", path);
  fclose(f);
  if (size) *size = n;
  return data;
}

static CUcontext context; // primary context of device 0

static inline void start(int argc, char **argv) {
  if (argc > 1) kernels_folder = argv[1];
  setvbuf(stdout, NULL, _IOLBF, 0);
  CUdevice dev;
  CK(cuInit(0));
  CK(cuDeviceGet(&dev, 0));
  CK(cuDevicePrimaryCtxRetain(&context, dev));
  CK(cuCtxSetCurrent(context));
}

static inline CUmodule load(const char *name) {
  CUmodule m;
  void *image = read_file(name, NULL);
  CK(cuModuleLoadData(&m, image));
  free(image);
  return m;
}

static inline CUfunction function(CUmodule m, const char *name) {
  CUfunction f;
  CK(cuModuleGetFunction(&f, m, name));
  return f;
}

// of the graph's nodes, the one of that type
static inline CUgraphNode only(CUgraph g, CUgraphNodeType want, const char *what) {
  CUgraphNode nodes[16], found = NULL;
  size_t n = 16;
  CK(cuGraphGetNodes(g, nodes, &n));
  for (size_t i = 0; i < n; i++) {
    CUgraphNodeType type;
    CK(cuGraphNodeGetType(nodes[i], &type));
    if (type == want) {
      CHECK(!found, "%s: more than one node of type %d", what, want);
      found = nodes[i];
    }
  }
  CHECK(found, "%s: no node of type %d", what, want);
  return found;
}

#define ARGS(...) ((void *[]){__VA_ARGS__})
#define LAUNCH(f, blocks, threads, shared, stream, ...) \
  cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, shared, stream, ARGS(__VA_ARGS__), NULL)
#endif
