// A program with known phases, for `scuda trace --kernels`: timeline KERNELS [END], with END exit (the default), kill,
// fork. It speaks NVTX as the header of NVIDIA's does: it opens the library that NVTX_INJECTION64_PATH names and hands
// it tables in which the library puts its functions.
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// ---- NVTX, as far as it is used here ----

struct attributes {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;
  const void *message;
};
static void (*mark_a)(const char *);
static uint64_t (*start_a)(const char *);
static void (*end)(uint64_t);
static int (*push_a)(const char *);
static int (*push_w)(const wchar_t *);
static int (*pop)(void);
static void (*name_thread)(uint32_t, const char *);
static void *(*domain_create)(const char *);
static void *(*domain_string)(void *, const char *);
static void (*domain_category)(void *, uint32_t, const char *);
static int (*domain_push)(void *, const struct attributes *);
static int (*domain_pop)(void *);
static void *unused;

static int functions(uint32_t module, void ***places, uint32_t *count) {
  static void *core[16] = {[2] = &mark_a, [5] = &start_a, [7] = &end, [9] = &push_a, [10] = &push_w, [11] = &pop,
                           [14] = &name_thread};
  static void *core2[16] = {[4] = &domain_push, [5] = &domain_pop, [8] = &domain_category, [10] = &domain_string,
                            [12] = &domain_create};
  if (module != 1 && module != 5) return 0;
  *places = module == 1 ? core : core2;
  for (int i = 1; i < 16; i++)
    if (!(*places)[i]) (*places)[i] = &unused;
  *count = 16;
  return 1;
}
static const void *table(uint32_t id) {
  static const struct { size_t size; int (*functions)(uint32_t, void ***, uint32_t *); } callbacks = {
    sizeof callbacks, functions};
  return id == 1 ? &callbacks : NULL;
}

static void open_nvtx(void) {
  const char *path = getenv("NVTX_INJECTION64_PATH");
  CHECK(path, "NVTX_INJECTION64_PATH is not set");
  void *library = dlopen(path, RTLD_LAZY);
  CHECK(library, "%s", dlerror());
  int (*init)(const void *(*)(uint32_t));
  *(void **)&init = dlsym(library, "InitializeInjectionNvtx2");
  CHECK(init && init(table), "%s takes no part", path);
  CHECK(push_a && pop && domain_push && start_a, "functions are missing");
}

// ---- phases ----

enum { N = 1 << 20, LAUNCHES = 20 };
static CUfunction add;
static CUdeviceptr d;
static CUstream streams[2];

static void rest(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&t, NULL);
}

static void launches(CUstream s) {
  int n = 256;
  for (int i = 0; i < LAUNCHES; i++) CK(LAUNCH(add, 2, 128, 0, s, &d, &d, &d, &n));
}

static void *second(void *nothing) {
  CK(cuCtxSetCurrent(context));
  name_thread((uint32_t)syscall(SYS_gettid), "helper");
  CHECK(push_a("second thread") == 0, "the depth of a thread's first range");
  launches(streams[1]);
  CK(cuStreamSynchronize(streams[1]));
  pop();
  return nothing;
}

int main(int argc, char **argv) {
  const char *how = argc > 2 ? argv[2] : "exit";
  open_nvtx();
  push_a("load");
  start(argc, argv);
  CUmodule m = load("kernels.ptx");
  add = function(m, "vector_add");
  float *host = calloc(N, 4);
  CK(cuMemAlloc(&d, N * 4));
  for (int i = 0; i < 2; i++) CK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
  pop();

  void *domain = domain_create("phases"), *name = domain_string(domain, "copies");
  domain_category(domain, 7, "data");
  struct attributes a = {.version = 3, .size = 48, .category = 7, .color_type = 1, .color = 0xff3366cc,
                         .payload_type = 2, .payload = (uint64_t)-5, .message_type = 3, .message = name};
  CHECK(domain_push(domain, &a) == 0 && push_w(L"l\u00e4nger") == 0, "depths");
  CK(cuMemcpyHtoD(d, host, N * 4));
  CK(cuMemcpyDtoH(host, d, N * 4));
  pop();
  CHECK(domain_pop(domain) == 0, "depth");

  push_a("sleep in the program");
  rest(300);
  pop();

  uint64_t range = start_a("two streams");
  pthread_t t;
  pthread_create(&t, NULL, second, NULL);
  launches(streams[0]);
  CK(cuStreamSynchronize(streams[0]));
  pthread_join(t, NULL);
  end(range);
  CK(cuMemsetD32Async(d, 7, N, streams[0]));
  CK(cuCtxSynchronize());
  mark_a("done");
  if (!strcmp(how, "fork")) {
    pid_t child = fork();
    if (!child) {
      push_a("in the child");
      pop();
      _exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    CHECK(!status, "the child ended with %d", status);
    child = fork();
    if (!child) {
      execl(argv[0], argv[0], argv[1], "exit", NULL);
      _exit(1);
    }
    waitpid(child, &status, 0);
    CHECK(!status, "the executed program ended with %d", status);
  }
  if (!strcmp(how, "kill")) raise(SIGKILL);
  puts("right");
  return 0;
}
