// The driver inside of processes of other kinds. The second argument says which.
//   signals  own handlers for the signals that runtimes (JVM, Go) use, set before and after the first CUDA call; they
//            must stay and work
//   atexit   CUDA calls in a function that runs at exit, registered before and after cuInit
//   forks    children before and after the first CUDA call
//   memory   an allocation of every kind, for builds with AddressSanitizer
#include "check.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

static void compute(const char *what) {
  CUmodule m = load("kernels.fatbin");
  CUfunction f = function(m, "vector_add");
  enum { N = 1000 };
  static float a[N], b[N], c[N];
  for (int i = 0; i < N; i++) a[i] = i, b[i] = 2 * i;
  CUdeviceptr p[3];
  for (int i = 0; i < 3; i++) CK(cuMemAlloc(&p[i], sizeof a));
  CK(cuMemcpyHtoD(p[0], a, sizeof a));
  CK(cuMemcpyHtoD(p[1], b, sizeof b));
  int n = N;
  CK(LAUNCH(f, (N + 255) / 256, 256, 0, 0, &p[0], &p[1], &p[2], &n));
  CK(cuMemcpyDtoH(c, p[2], sizeof c));
  for (int i = 0; i < N; i++) CHECK(c[i] == 3 * i, "%s: element %d is %g", what, i, c[i]);
  for (int i = 0; i < 3; i++) CK(cuMemFree(p[i]));
  CK(cuModuleUnload(m));
  printf("%s: right\n", what);
}

// ---- signals ----

static volatile sig_atomic_t faults, urgent;
static volatile char *page;

// as a JVM does it: the page becomes usable, the access is made again
static void on_fault(int number, siginfo_t *info, void *context) {
  if (info->si_addr != page) _exit(42);
  faults++;
  mprotect((void *)page, 4096, PROT_READ | PROT_WRITE);
}
static void on_urgent(int number) { urgent++; }

static void handlers(void) {
  struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigaction(SIGSEGV, &a, NULL);
  sigaction(SIGBUS, &a, NULL);
  struct sigaction u = {.sa_handler = on_urgent, .sa_flags = SA_RESTART};
  sigaction(SIGURG, &u, NULL);
  sigaction(SIGPROF, &u, NULL);
}

static void poke(const char *what) {
  int before = faults, asked = urgent;
  mprotect((void *)page, 4096, PROT_NONE);
  page[0] = 7;
  raise(SIGURG);
  CHECK(faults == before + 1 && urgent >= asked + 1, "%s: the program's handlers do not run", what);
  struct sigaction now;
  sigaction(SIGSEGV, NULL, &now);
  CHECK(now.sa_sigaction == on_fault, "%s: SIGSEGV has another handler", what);
  printf("%s: handlers run\n", what);
}

static void signals(int argc, char **argv) {
  page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  handlers();
  poke("before CUDA");
  start(argc, argv);
  poke("after cuInit");
  compute("with handlers set before");
  handlers();
  poke("set after cuInit");
  compute("with handlers set after");
  poke("at the end");
}

// ---- exit ----

static CUdeviceptr left;
static CUstream left_stream;
static void late(const char *what) {
  int value = 0;
  CUresult r = cuMemcpyDtoH(&value, left, sizeof value);
  CHECK(r == CUDA_SUCCESS ? value == 0x01010101 : r == CUDA_ERROR_DEINITIALIZED, "%s: %d, value %#x", what, r, value);
  r = cuStreamSynchronize(left_stream);
  CHECK(r == CUDA_SUCCESS || r == CUDA_ERROR_DEINITIALIZED, "%s: %d", what, r);
  r = cuMemFree(left);
  CHECK(r == CUDA_SUCCESS || r == CUDA_ERROR_DEINITIALIZED || r == CUDA_ERROR_INVALID_VALUE, "%s: %d", what, r);
  printf("%s: fine\n", what);
}
static void early_registered(void) { late("registered before cuInit"); }
static void late_registered(void) {
  int value = 0;
  CK(cuMemcpyDtoH(&value, left, sizeof value)); // the library has not ended yet
  CHECK(value == 0x01010101, "value %#x", value);
  printf("registered after cuInit: right\n");
}

static void at_exit(int argc, char **argv) {
  atexit(early_registered);
  start(argc, argv);
  atexit(late_registered);
  CK(cuStreamCreate(&left_stream, 0));
  CK(cuMemAlloc(&left, 64));
  CK(cuMemsetD8(left, 1, 64));
}

// ---- forks ----

static void child(const char *what, void (*f)(int, char **), int argc, char **argv) {
  fflush(stdout);
  pid_t pid = fork();
  if (!pid) {
    f(argc, argv);
    fflush(stdout);
    _exit(0);
  }
  int status;
  CHECK(waitpid(pid, &status, 0) == pid && status == 0, "%s: status %#x", what, status);
}
static void computes(int argc, char **argv) {
  start(argc, argv);
  compute("child from before");
}
static void refuses(int argc, char **argv) {
  int count;
  CUdeviceptr p;
  SHOW(cuInit(0));
  SHOW(cuDeviceGetCount(&count));
  SHOW(cuMemAlloc(&p, 4));
}

static void forks(int argc, char **argv) {
  child("before", computes, argc, argv);
  int version;
  CK(cuDriverGetVersion(&version));
  child("after the version", computes, argc, argv);
  start(argc, argv);
  compute("parent");
  child("after", refuses, argc, argv);
  compute("parent again");
}

// ---- memory ----

static void CUDA_CB host_function(void *p) { ++*(int *)p; }

static void memory(int argc, char **argv) {
  start(argc, argv);
  compute("sanitized");
  void *pinned;
  CK(cuMemHostAlloc(&pinned, 1 << 20, 0));
  char *plain = malloc(3 << 20), *registered = aligned_alloc(4096, 1 << 20);
  memset(plain, 5, 3 << 20);
  CK(cuMemHostRegister(registered, 1 << 20, 0));
  CUdeviceptr p;
  CUstream s;
  CUevent e;
  int called = 0;
  CK(cuMemAlloc(&p, 3 << 20));
  CK(cuStreamCreate(&s, 0));
  CK(cuEventCreate(&e, 0));
  CK(cuMemcpyHtoDAsync(p, plain, 3 << 20, s));
  CK(cuMemcpyDtoHAsync(pinned, p, 1 << 20, s));
  CK(cuMemcpyDtoHAsync(registered, p, 1 << 20, s));
  CK(cuLaunchHostFunc(s, host_function, &called));
  CK(cuEventRecord(e, s));
  CK(cuEventSynchronize(e));
  CHECK(called == 1 && !memcmp(pinned, plain, 1 << 20) && !memcmp(registered, plain, 1 << 20), "wrong bytes");
  CK(cuMemHostUnregister(registered));
  CK(cuMemFreeHost(pinned));
  CK(cuMemFree(p));
  CK(cuEventDestroy(e));
  CK(cuStreamDestroy(s));
  free(plain);
  free(registered);
  printf("memory: right\n");
}

int main(int argc, char **argv) {
  const char *which = argc > 2 ? argv[2] : "memory";
  if (!strcmp(which, "signals")) signals(argc, argv);
  else if (!strcmp(which, "atexit")) at_exit(argc, argv);
  else if (!strcmp(which, "forks")) forks(argc, argv);
  else memory(argc, argv);
  return 0;
}
