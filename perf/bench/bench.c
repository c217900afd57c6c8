// The measurements of `scuda bench`: prints one JSON object of seconds (medians unless the name says p99; MiB where it
// says so) by name. It uses the driver API alone, so the same binary measures NVIDIA's library and scuda's.
// `scuda-bench few` takes the medians of a third as many rounds. `scuda-bench tcp N` measures instead what N plain TCP
// connections between two processes do.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <cuda.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CK(call) \
  do { \
    int r_ = (int)(call); \
    if (r_) { \
      fprintf(stderr, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, r_); \
      exit(1); \
    } \
  } while (0)

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}
static double at(double *v, int n, double q) {
  qsort(v, (size_t)n, sizeof *v, by_value);
  return v[(int)(q * (n - 1))];
}
static int first = 1;
static void report(const char *name, double seconds) {
  printf("%s\"%s\": %.6g", first ? "{" : ", ", name, seconds);
  first = 0;
}
static int few; // a quick run
static int rounds(int usual) { return !few ? usual : usual > 9 ? usual / 3 : 3; } // usually there are 5 or more
// The median time of one call over MOST rounds of N calls, with `before` and `after` outside the clock.
#define TIME(name, most, n, before, call, after) \
  do { \
    double v_[most]; \
    const int rounds_ = rounds(most); \
    for (int i_ = few ? -1 : -2; i_ < rounds_; i_++) { \
      CK(before); \
      double t_ = now(); \
      for (int k_ = 0; k_ < (n); k_++) CK(call); \
      t_ = now() - t_; \
      CK(after); \
      if (i_ >= 0) v_[i_] = t_ / (n); \
    } \
    report(name, at(v_, rounds_, .5)); \
  } while (0)

static const char *ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry nothing(.param .u64 p, .param .u32 a, .param .u32 b, .param .f32 c)\n{\n ret;\n}\n";

enum { LAUNCHES = 20000, THREADS = 4, HOSTS = 100 };
static CUcontext context;
static CUfunction nothing;
static CUdeviceptr word;
static unsigned a = 1, b = 2;
static float x = 3;
static CUresult launch(CUstream s) {
  void *args[] = {&word, &a, &b, &x};
  return cuLaunchKernel(nothing, 1, 1, 1, 32, 1, 1, 0, s, args, NULL);
}

static pthread_barrier_t gate;
static void *launcher(void *user) {
  CUstream s;
  (void)user;
  CK(cuCtxSetCurrent(context));
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  for (int round = 0; round < 3; round++) {
    pthread_barrier_wait(&gate);
    for (int i = 0; i < LAUNCHES; i++) CK(launch(s));
    CK(cuStreamSynchronize(s));
    pthread_barrier_wait(&gate);
  }
  CK(cuStreamDestroy(s));
  return NULL;
}

static void launches(CUstream s) {
  enum { N = 5000 };
  static double each[N], total[7];
  for (int i = 0; i < N; i++) {
    double t = now();
    CK(launch(s));
    each[i] = now() - t;
    if (i % 200 == 199) CK(cuStreamSynchronize(s));
  }
  report("launch call", at(each, N, .5));
  report("launch call, p99", at(each, N, .99));
  const int all = rounds(7);
  for (int i = -1; i < all; i++) {
    double t = now();
    for (int k = 0; k < LAUNCHES; k++) CK(launch(s));
    CK(cuStreamSynchronize(s));
    if (i >= 0) total[i] = (now() - t) / LAUNCHES;
  }
  report("each of 20000 launches and a synchronise", at(total, all, .5));
  pthread_t t[THREADS];
  pthread_barrier_init(&gate, NULL, THREADS + 1);
  for (int i = 0; i < THREADS; i++) pthread_create(&t[i], NULL, launcher, NULL);
  for (int i = 0; i < 3; i++) {
    pthread_barrier_wait(&gate);
    double began = now();
    pthread_barrier_wait(&gate);
    total[i] = (now() - began) / (THREADS * LAUNCHES);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
  report("each launch of 4 threads on 4 streams", at(total, 3, .5));
}

static void CUDA_CB nobody(void *user) { (void)user; }
static CUresult hosts(CUstream s) {
  for (int i = 0; i < HOSTS; i++) CK(cuLaunchHostFunc(s, nobody, NULL));
  return cuStreamSynchronize(s);
}

static void copies(CUstream s) {
  size_t n = 256 << 20;
  char *pageable = malloc(n), *pinned;
  memset(pageable, 1, n);
  CK(cuMemAllocHost((void **)&pinned, n));
  memset(pinned, 2, n);
  CUdeviceptr d;
  CK(cuMemAlloc(&d, n));
  CK(cuMemsetD8(d, 1, n));
  TIME("4 B to the device", 301, 10, CUDA_SUCCESS, cuMemcpyHtoD(d, &x, 4), cuCtxSynchronize());
  TIME("64 KiB to the device, pageable", 101, 10, CUDA_SUCCESS, cuMemcpyHtoD(d, pageable, 65536), cuCtxSynchronize());
  TIME("4 B to the host", 301, 10, CUDA_SUCCESS, cuMemcpyDtoH(&x, d, 4), CUDA_SUCCESS);
  TIME("64 KiB to the host, pageable", 101, 10, CUDA_SUCCESS, cuMemcpyDtoH(pageable, d, 65536), CUDA_SUCCESS);
  static const struct { size_t bytes; const char *up, *down, *pup, *pdown; } size[] = {
      {16 << 20, "16 MiB pinned to the device", "16 MiB pinned to the host", "16 MiB pageable to the device",
       "16 MiB pageable to the host"},
      {256 << 20, "256 MiB pinned to the device", "256 MiB pinned to the host", "256 MiB pageable to the device",
       "256 MiB pageable to the host"}};
  // The first big copy may open further connections; give them a moment.
  CK(cuMemcpyHtoD(d, pageable, 16 << 20));
  usleep(100000);
  for (int i = 0; i < 2; i++) {
    size_t m = size[i].bytes;
    TIME(size[i].up, 7, 1, CUDA_SUCCESS, (cuMemcpyHtoDAsync(d, pinned, m, s) || cuStreamSynchronize(s)), CUDA_SUCCESS);
    TIME(size[i].down, 7, 1, CUDA_SUCCESS, (cuMemcpyDtoHAsync(pinned, d, m, s) || cuStreamSynchronize(s)),
         CUDA_SUCCESS);
    TIME(size[i].pup, 7, 1, CUDA_SUCCESS, (cuMemcpyHtoD(d, pageable, m) || cuCtxSynchronize()), CUDA_SUCCESS);
    TIME(size[i].pdown, 7, 1, CUDA_SUCCESS, cuMemcpyDtoH(pageable, d, m), CUDA_SUCCESS);
  }
  CK(cuMemFree(d));
  CK(cuMemFreeHost(pinned));
  free(pageable);
}

static CUdeviceptr shared(size_t n) {
  CUdeviceptr p = 0;
  CK(cuMemAllocManaged(&p, n, CU_MEM_ATTACH_GLOBAL));
  return p;
}
static CUresult fill(CUdeviceptr p, unsigned char value, size_t n) {
  return cuMemsetD8Async(p, value, n, 0) || cuCtxSynchronize();
}
// The CPU reads bytes that lie `step` apart.
static CUresult read_all(CUdeviceptr p, size_t n, size_t step) {
  for (size_t i = 0; i < n; i += step) (void)*(volatile char *)(p + i);
  return CUDA_SUCCESS;
}

static void unified(CUstream s) {
  enum { BIG = 256 << 20, FAR = 8 << 20 };
  int has = 0;
  CUdevice dev;
  CK(cuCtxGetDevice(&dev));
  CK(cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, dev));
  if (!has) return;
  CUdeviceptr p = shared(BIG), large = 0;
  /* Each time at other blocks: those that are read each time come without being asked for. First the CPU has never
   * touched them, so that pages must be made for them. */
  TIME("unified memory: a first fault of the CPU far from others", 21, BIG / FAR, fill(p, 1, BIG),
       read_all(p + FAR * (size_t)k_ + 5 * 65536 * (size_t)(i_ + 2), 1, 1), CUDA_SUCCESS);
  memset((void *)p, 1, BIG);
  TIME("unified memory: a fault of the CPU far from others", 21, BIG / FAR, fill(p, 1, BIG),
       read_all(p + FAR * (size_t)k_ + 5 * 65536 * (size_t)(i_ + 2), 1, 1), CUDA_SUCCESS);
  TIME("256 MiB of unified memory read after a kernel", 7, 1, fill(p, 1, BIG), read_all(p, BIG, 4096), CUDA_SUCCESS);
  TIME("256 MiB of unified memory sent with a launch", 7, 1, (memset((void *)p, 1, BIG), 0),
       (launch(s) || cuStreamSynchronize(s)), CUDA_SUCCESS);
  CK(cuMemFree(p));
  p = shared(BIG);
  TIME("256 MiB of unified memory read for the first time, after a kernel", 5, 1,
       (cuMemFree(p) || (p = shared(BIG), 0) || fill(p, 1, BIG)), read_all(p, BIG, 4096), CUDA_SUCCESS);
  CK(cuMemFree(p));
  if (cuMemAllocManaged(&large, 1 << 30, CU_MEM_ATTACH_GLOBAL)) return; // a small GPU
  TIME("launch and synchronise with 1 GiB of unified memory that nobody touched", 301, 10, CUDA_SUCCESS,
       (launch(s) || cuStreamSynchronize(s)), CUDA_SUCCESS);
  CK(read_all(large, 1 << 30, 1 << 20));
  TIME("launch and synchronise with 1 GiB of unified memory that the CPU has read", 301, 10, CUDA_SUCCESS,
       (launch(s) || cuStreamSynchronize(s)), CUDA_SUCCESS);
  CK(cuMemFree(large));
}

static long resident(void) { // KiB
  char line[256];
  long kib = 0;
  FILE *f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "VmRSS: %ld", &kib) == 1) break;
  if (f) fclose(f);
  return kib;
}

static int driver(void) {
  long before = resident();
  CUdevice dev;
  double t0 = now();
  CK(cuInit(0));
  CK(cuDeviceGet(&dev, 0));
  CK(cuDevicePrimaryCtxRetain(&context, dev));
  CK(cuCtxSetCurrent(context));
  CK(cuMemAlloc(&word, 1 << 20));
  CK(cuMemsetD8(word, 0, 1 << 20));
  CK(cuCtxSynchronize());
  report("from cuInit to the first memory", now() - t0);
  report("resident memory that this adds (MiB)", (double)(resident() - before) / 1024);

  CUmodule m;
  CUstream s, other;
  CUevent e, done;
  CUcontext current;
  int value;
  CK(cuModuleLoadData(&m, ptx));
  CK(cuModuleGetFunction(&nothing, m, "nothing"));
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  CK(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));

  TIME("cuCtxGetCurrent", 21, 100000, CUDA_SUCCESS, cuCtxGetCurrent(&current), CUDA_SUCCESS);
  TIME("cuCtxGetDevice", 21, 100000, CUDA_SUCCESS, cuCtxGetDevice(&dev), CUDA_SUCCESS);
  TIME("cuDeviceGetAttribute", 21, 100000, CUDA_SUCCESS,
       cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, dev), CUDA_SUCCESS);
  TIME("cuFuncGetAttribute", 21, 100000, CUDA_SUCCESS, cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, nothing),
       CUDA_SUCCESS);
  CUlibrary library;
  CUkernel kernel;
  CK(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
  CK(cuLibraryGetKernel(&kernel, library, "nothing"));
  TIME("cuKernelGetAttribute", 21, 100000, CUDA_SUCCESS,
       cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel, dev), CUDA_SUCCESS);
  launches(s);
  TIME("launch and synchronise", 301, 10, CUDA_SUCCESS, (launch(s) || cuStreamSynchronize(s)), CUDA_SUCCESS);
  TIME("synchronise an idle stream", 301, 10, cuStreamSynchronize(s), cuStreamSynchronize(s), CUDA_SUCCESS);
  CK(cuEventRecord(done, s));
  CK(cuEventSynchronize(done));
  TIME("synchronise a finished event", 301, 10, CUDA_SUCCESS, cuEventSynchronize(done), CUDA_SUCCESS);
  TIME("query a finished event", 301, 100, CUDA_SUCCESS, cuEventQuery(done), CUDA_SUCCESS);
  TIME("query an idle stream", 301, 100, CUDA_SUCCESS, cuStreamQuery(s), CUDA_SUCCESS);
  TIME("record an event", 101, 100, CUDA_SUCCESS, cuEventRecord(e, s), cuStreamSynchronize(s));
  TIME("wait for an event", 101, 100, CUDA_SUCCESS, cuStreamWaitEvent(other, e, 0), cuStreamSynchronize(other));
  TIME("record an event and query it until it is complete", 101, 1, cuStreamSynchronize(s), (cuEventRecord(e, s) || ({
         int r;
         while ((r = (int)cuEventQuery(e)) == CUDA_ERROR_NOT_READY) {
         }
         r;
       })), CUDA_SUCCESS);
  TIME("100 host functions and a synchronise", 21, 1, CUDA_SUCCESS, hosts(s), CUDA_SUCCESS);
  CUdeviceptr d;
  TIME("allocate and free 1 MiB", 51, 10, CUDA_SUCCESS, (cuMemAlloc(&d, 1 << 20) || cuMemFree(d)), CUDA_SUCCESS);
  copies(s);
  unified(s);
  printf("}\n");
  return 0;
}

// ---- plain TCP ----

enum { CONNS_MAX = 64, PIECE = 1 << 20 };
struct line { int fd; size_t bytes; char *memory; };

static void whole(int fd, char *p, size_t n, int send) {
  while (n) {
    ssize_t k = send ? write(fd, p, n) : read(fd, p, n);
    if (k <= 0) exit(1);
    p += k, n -= (size_t)k;
  }
}
static void *sends(void *user) {
  struct line *l = user;
  for (size_t off = 0; off < l->bytes; off += PIECE)
    whole(l->fd, l->memory + off, l->bytes - off < PIECE ? l->bytes - off : PIECE, 1);
  char byte;
  whole(l->fd, &byte, 1, 0);
  return NULL;
}
static void *receives(void *user) {
  struct line *l = user;
  for (;;) {
    uint64_t n;
    if (recv(l->fd, &n, 8, MSG_WAITALL) != 8) return NULL;
    for (size_t off = 0; off < n; off += PIECE) whole(l->fd, l->memory + off, n - off < PIECE ? n - off : PIECE, 0);
    whole(l->fd, l->memory, 1, 1);
  }
}
static void *announces(void *user) {
  struct line *l = user;
  uint64_t n = l->bytes;
  whole(l->fd, (char *)&n, 8, 1);
  return sends(l);
}

static int tcp(int conns) {
  size_t most = 256 << 20;
  int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof to;
  CK(bind(listener, (void *)&to, len) || listen(listener, conns) || getsockname(listener, (void *)&to, &len));
  static struct line line[CONNS_MAX];
  pthread_t t[CONNS_MAX];
  char *memory = malloc(most);
  memset(memory, 1, most);
  pid_t child = fork();
  if (!child) {
    for (int i = 0; i < conns; i++) {
      line[i] = (struct line){accept(listener, NULL, NULL), 0, malloc(most)};
      memset(line[i].memory, 0, most / (size_t)conns + PIECE);
      pthread_create(&t[i], NULL, receives, &line[i]);
    }
    for (int i = 0; i < conns; i++) pthread_join(t[i], NULL);
    _exit(0);
  }
  for (int i = 0; i < conns; i++) {
    line[i].fd = socket(AF_INET, SOCK_STREAM, 0);
    CK(connect(line[i].fd, (void *)&to, len) || setsockopt(line[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
  }
  static const size_t sizes[] = {16 << 20, 256 << 20};
  static const char *names[] = {"16 MiB over plain TCP", "256 MiB over plain TCP"};
  for (int k = 0; k < 2; k++) {
    double v[9];
    for (int round = -2; round < 9; round++) {
      double began = now();
      for (int i = 0; i < conns; i++) {
        line[i].bytes = sizes[k] / (size_t)conns;
        line[i].memory = memory + (size_t)i * line[i].bytes;
        pthread_create(&t[i], NULL, announces, &line[i]);
      }
      for (int i = 0; i < conns; i++) pthread_join(t[i], NULL);
      if (round >= 0) v[round] = now() - began;
    }
    report(names[k], at(v, 9, .5));
  }
  double v[2001];
  char byte = 0;
  for (int i = -100; i < 2001; i++) {
    uint64_t n = 1;
    double began = now();
    whole(line[0].fd, (char *)&n, 8, 1);
    whole(line[0].fd, &byte, 1, 1);
    whole(line[0].fd, &byte, 1, 0);
    if (i >= 0) v[i] = now() - began;
  }
  report("a round trip over plain TCP", at(v, 2001, .5));
  printf("}\n");
  for (int i = 0; i < conns; i++) close(line[i].fd);
  return waitpid(child, NULL, 0) == child ? 0 : 1;
}

int main(int argc, char **argv) {
  if (argc == 3 && !strcmp(argv[1], "tcp")) {
    int n = atoi(argv[2]);
    return n < 1 || n > CONNS_MAX ? 2 : tcp(n);
  }
  few = argc == 2 && !strcmp(argv[1], "few");
  return driver();
}
