// Unified memory: lists, trees and grids that the CPU and the GPU use in turn at one address, copies and sets of it,
// hints and attributes.
#include "managed.h"
#include <pthread.h>
#include <unistd.h>

static CUfunction walk, sums, step;

struct list { unsigned value, pad; struct list *next; };
struct tree { unsigned value, sum; struct tree *left, *right; };

static void lists(void) {
  enum { N = 1000 };
  struct list *first = NULL, *nodes[N];
  unsigned long long *sum = managed(sizeof *sum), want = 0;
  *sum = 0;
  for (unsigned i = 0; i < N; i++) { // one allocation a node
    nodes[i] = managed(sizeof *first);
    *nodes[i] = (struct list){i, 0, first};
    first = nodes[i];
  }
  for (unsigned round = 1; round <= 3; round++) {
    void *args[] = {&first, &round, &sum};
    CK(cuLaunchKernel(walk, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL));
    CK(cuCtxSynchronize());
    for (struct list *l = first; l; l = l->next) want += l->value;
    CHECK(*sum == want, "round %u: %llu, want %llu", round, *sum, want);
    first->next->value = round; // the CPU changes one in the middle
  }
  for (unsigned i = 0; i < N; i++) release(nodes[i]);
  release(sum);
}

static unsigned build(struct tree **pool, unsigned depth, unsigned *seed, struct tree **out) {
  struct tree *t = (*pool)++;
  *seed = *seed * 1664525 + 1013904223;
  *t = (struct tree){*seed >> 20, 0, NULL, NULL};
  *out = t;
  unsigned total = t->value;
  if (depth) total += build(pool, depth - 1, seed, &t->left) + build(pool, depth - 1, seed, &t->right);
  return total;
}

static void trees(void) {
  enum { N = 64, DEPTH = 7 };
  struct tree *pool = managed(N * 256 * sizeof *pool), **roots = managed(N * sizeof *roots), *next = pool;
  unsigned want[N], seed = 1, n = N;
  for (int i = 0; i < N; i++) want[i] = build(&next, DEPTH, &seed, &roots[i]);
  void *args[] = {&roots, &n};
  CK(cuLaunchKernel(sums, 1, 1, 1, N, 1, 1, 0, 0, args, NULL));
  CK(cuCtxSynchronize());
  for (int i = 0; i < N; i++) CHECK(roots[i]->sum == want[i], "tree %d: %u, want %u", i, roots[i]->sum, want[i]);
  release(pool);
  release(roots);
}

static void grids(void) {
  unsigned width = 300, height = 200, n = width * height, *a = managed(4 * n), *b = managed(4 * n), *x = malloc(4 * n),
      *y = malloc(4 * n);
  for (unsigned i = 0; i < n; i++) x[i] = a[i] = i * 2654435761u >> 16;
  for (int phase = 0; phase < 6; phase++) {
    void *args[] = {&a, &b, &width, &height};
    CK(cuLaunchKernel(step, 16, 1, 1, 128, 1, 1, 0, 0, args, NULL));
    for (unsigned i = 0; i < n; i++) {
      unsigned c = i % width, r = i / width;
      y[i] = !c || !r || c == width - 1 || r == height - 1 ? x[i] :
             (x[i - 1] + x[i + 1] + x[i - width] + x[i + width]) / 4 + 1;
    }
    CK(cuStreamSynchronize(0));
    for (unsigned i = phase; i < n; i += 997) { // the CPU's phase
      CHECK(b[i] == y[i], "phase %d: [%u] = %u, want %u", phase, i, b[i], y[i]);
      b[i] = y[i] = y[i] * 3 + (unsigned)phase;
    }
    unsigned *t = a;
    a = b, b = t, t = x, x = y, y = t;
  }
  CHECK(!memcmp(a, x, 4 * n), "the last grid");
  release(a);
  release(b);
  free(x);
  free(y);
}

static void copies(void) {
  enum { N = 700000 };
  unsigned char *m = managed(N), *m2 = managed(N), *h = malloc(N), *want = malloc(N);
  CUdeviceptr d;
  CUstream s;
  CK(cuMemAlloc(&d, N));
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  fill(h, N, 5);
  memcpy(want, h, N);
  CK(cuMemcpyHtoD(dev(m), h, N));
  CHECK(!memcmp(m, want, N), "host to managed");
  m[17] = want[17] = 99;
  CK(cuMemcpyDtoD(d, dev(m), N));
  CK(cuMemcpyDtoH(h, d, N));
  CHECK(!memcmp(h, want, N), "managed to device");
  mix_in(s, m, 1000, 5000, 3, 1);
  for (int i = 1000; i < 6000; i++) want[i] = (unsigned char)(want[i] * 3 + 1);
  CK(cuMemcpyAsync(dev(m2), dev(m), N, s));
  CK(cuMemsetD8Async(dev(m2) + 100, 7, 50, s));
  CK(cuStreamSynchronize(s));
  CHECK(!memcmp(m, want, N), "after the kernel");
  memset(want + 100, 7, 50);
  CHECK(!memcmp(m2, want, N), "managed to managed");
  CK(cuMemcpyHtoD(d, m2, N)); // called host memory, which it is as well
  CK(cuMemcpyDtoH(m, d, N));
  CHECK(!memcmp(m, want, N), "managed as host memory");
  CK(cuMemcpy(dev(h), dev(m), N));
  CHECK(!memcmp(h, want, N), "managed to host");
  CK(cuMemsetD32(dev(m), 0x01020304, 4));
  CK(cuStreamSynchronize(0));
  CHECK(m[0] == 4 && m[15] == 1 && m[16] == want[16], "set");
  CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = m2, .srcPitch = 100,
                     .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = dev(m), .dstPitch = 200,
                     .WidthInBytes = 50, .Height = 30};
  CK(cuMemcpy2D(&c));
  for (int y = 0; y < 30; y++) CHECK(!memcmp(m + y * 200, m2 + y * 100, 50), "row %d", y);
  release(m);
  release(m2);
  CK(cuMemFree(d));
  CK(cuStreamDestroy(s));
  free(h);
  free(want);
}

static void hints(void) {
  enum { N = 1 << 20 };
  unsigned char *m = managed(N);
  CUdeviceptr p = dev(m);
  CUdevice device;
  int value, both[2];
  CK(cuCtxGetDevice(&device));
  CK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, device));
  CHECK(value == 1, "MANAGED_MEMORY %d", value);
  CK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, N));
  CHECK(value == -2, "preferred location %d", value);
  CK(advise(p, N, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
  CK(advise(p, N, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_DEVICE_CPU));
  CK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, N));
  CHECK(value == 1, "read mostly %d", value);
  CK(cuMemRangeGetAttribute(both, 8, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, p, N));
  CHECK(both[0] == -1 && both[1] == -2, "accessed by %d %d", both[0], both[1]);
  memset(m, 1, N);
  CK(prefetch(p, N, device, 0));
  mix_in(NULL, m, 0, N, 2, 1);
  CK(prefetch(p, N, CU_DEVICE_CPU, 0));
  CK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, N));
  CHECK(value == -1, "last prefetch %d", value);
  CK(cuCtxSynchronize());
  for (int i = 0; i < N; i++) CHECK(m[i] == 3, "[%d] = %d", i, m[i]);
  CUmemorytype type;
  unsigned flag = 9;
  void *host;
  CK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 5));
  CK(cuPointerGetAttribute(&flag, CU_POINTER_ATTRIBUTE_IS_MANAGED, p + 5));
  CK(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, p + 5));
  CHECK(type == CU_MEMORYTYPE_DEVICE && (flag & 1) && host == m + 5, "type %d managed %u host %p", type, flag, host);
  WANT(cuMemAllocManaged(&p, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  WANT(cuMemAllocManaged(&p, 16, CU_MEM_ATTACH_SINGLE), CUDA_ERROR_INVALID_VALUE);
  WANT(prefetch(dev(m), 2 * N, device, 0), CUDA_ERROR_INVALID_VALUE);
  release(m);
}

// System calls read and write managed memory like any other, unless this process may not have the kernel wait for us
// (SCUDA_PAGER=sigsegv).
static void system_calls(void) {
  enum { N = 300000 };
  unsigned char *m = managed(N), *h = malloc(N);
  int ends[2];
  CHECK(!pipe(ends), "pipe");
  memset(m, 4, N);
  mix_in(NULL, m, 0, N, 5, 2);
  CK(cuCtxSynchronize());
  ssize_t n = write(ends[1], m + 200000, 4096);
  const char *kind = getenv("SCUDA_PAGER");
  if (kind && (!strcmp(kind, "sigsegv") || !strcmp(kind, "uffd-user"))) {
    CHECK(n == -1 && errno == EFAULT, "write gives %zd (%s)", n, strerror(errno));
  } else {
    CHECK(n == 4096 && read(ends[0], h, 4096) == 4096 && h[0] == 22 && h[4095] == 22, "written: %zd", n);
    CHECK(write(ends[1], "hello", 5) == 5 && read(ends[0], m + 250000, 5) == 5, "read into managed memory");
    CHECK(!memcmp(m + 249999, "\x16hello\x16", 7), "what was read");
  }
  release(m);
  free(h);
}

struct job { unsigned char *p; int first; };
static void *toucher(void *arg) { // all touch the same blocks and then their own
  struct job *j = arg;
  enum { N = 4 << 20 };
  for (int i = 0; i < N; i += 4096) CHECK(j->p[i] == 7 || j->p[i] == 1, "[%d] = %d", i, j->p[i]);
  for (int i = j->first; i < N; i += 8) j->p[i] = (unsigned char)(j->first + 1);
  return NULL;
}

static void threads(void) {
  enum { N = 4 << 20 };
  unsigned char *m = managed(N);
  for (int round = 0; round < 3; round++) {
    CK(cuMemsetD8(dev(m), 7, N));
    CK(cuCtxSynchronize());
    pthread_t t[8];
    struct job jobs[8];
    for (int i = 0; i < 8; i++) {
      jobs[i] = (struct job){m, i};
      pthread_create(&t[i], NULL, toucher, &jobs[i]);
      if (i) continue;
      pthread_join(t[0], NULL); // alone first
      memset(m, 7, N);
      mix_in(NULL, m, 0, N, 1, 0);
      CK(cuCtxSynchronize());
    }
    for (int i = 1; i < 8; i++) pthread_join(t[i], NULL);
    mix_in(NULL, m, 0, N, 3, 0);
    CK(cuCtxSynchronize());
    for (int i = 1; i < N; i++) CHECK(i % 8 == 0 || m[i] == 3 * (i % 8 + 1), "round %d [%d] = %d", round, i, m[i]);
  }
  release(m);
}

// Memory that is attached to the host stays the CPU's while kernels that do not use it run.
static void attached(void) {
  unsigned char *a = managed(100000), *b = managed(100000);
  CUstream s;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuStreamAttachMemAsync(s, dev(b), 0, CU_MEM_ATTACH_SINGLE));
  CK(cuStreamAttachMemAsync(0, dev(a), 0, CU_MEM_ATTACH_HOST));
  CK(cuStreamSynchronize(s));
  memset(b, 1, 100000);
  mix_in(s, b, 0, 100000, 1, 1);
  for (int i = 0; i < 100000; i++) a[i] = (unsigned char)i;
  CK(cuStreamSynchronize(s));
  for (int i = 0; i < 100000; i++) CHECK(b[i] == 2 && a[i] == (unsigned char)i, "[%d] %d %d", i, a[i], b[i]);
  CK(cuStreamAttachMemAsync(s, dev(a), 0, CU_MEM_ATTACH_GLOBAL));
  mix_in(s, a, 0, 100000, 1, 1);
  CK(cuStreamSynchronize(s));
  CHECK(a[41] == 42, "attached again: %d", a[41]);
  WANT(cuStreamAttachMemAsync(s, dev(a) + 8, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  release(a);
  release(b);
  CK(cuStreamDestroy(s));
}

static void variables(void) { // managed_counter starts as 5; the kernel stores it and adds one
  CUmodule m = load("kernels.ptx");
  CUdeviceptr p;
  size_t n;
  CK(cuModuleGetGlobal(&p, &n, m, "managed_counter"));
  CHECK(n == 4, "%zu bytes", n);
  int *counter = (int *)(uintptr_t)p, *out = managed(16);
  CHECK(*counter == 5, "at first %d", *counter);
  *counter = 40;
  void *args[] = {&out};
  CUfunction f = function(m, "globals");
  for (int i = 0; i < 3; i++) {
    CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL));
    CK(cuCtxSynchronize());
    CHECK(out[2] == 40 + i && *counter == 41 + i, "%d: out %d, counter %d", i, out[2], *counter);
  }
  release(out);
  CK(cuModuleUnload(m));
}

static void cycles(void) {
  for (int i = 0; i < 100; i++) {
    unsigned char *m = managed(200000);
    CHECK(m[i] == 0 && m[199999] == 0, "fresh memory is zero");
    m[i] = 1;
    if (i % 7 == 0) mix_in(NULL, m, 0, 200000, 1, 1);
    release(m);
  }
}

int main(int argc, char **argv) {
  start_managed(argc, argv);
  CUmodule m = load("managed.ptx");
  walk = function(m, "walk_list"), sums = function(m, "sum_trees"), step = function(m, "stencil");
  lists();
  trees();
  grids();
  copies();
  hints();
  system_calls();
  threads();
  attached();
  variables();
  cycles();
  puts("managed ok");
  return 0;
}
