// Order between processes that share memory: what a process had asked for before it told the other, by whatever means,
// comes before what the other asks for then. With "hidden": also where the kernel finds the address in memory; scuda
// sees that only of processes that tell each other by the C library, preloaded. With "both": the process uses the
// second device too, which may be another server's; what it does there is nothing that the other process waits for.
#include "check.h"
#include "pair.h"

#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

enum { WORDS = 64, AHEAD = 60000, ROUNDS = 3, LATEST = 60 }; // seconds
enum { PIPE, SEMAPHORE, WORD, WAYS };
static const char hidden_code[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry set(.param .u64 place, .param .u32 value) {\n"
    "  .reg .b64 %d<5>;\n  .reg .b32 %r<3>;\n"
    "  ld.param.u64 %d1, [place];\n  ld.param.u32 %r1, [value];\n  cvta.to.global.u64 %d1, %d1;\n"
    "  ld.global.u64 %d2, [%d1];\n  cvta.to.global.u64 %d2, %d2;\n"
    "  mov.u32 %r2, %tid.x;\n  mul.wide.u32 %d3, %r2, 4;\n  add.s64 %d4, %d2, %d3;\n  st.global.u32 [%d4], %r1;\n  "
    "ret;\n}\n";
static CUfunction set; // with "hidden"
static CUdeviceptr place;
static CUcontext own, elsewhere; // with "both"
static CUdeviceptr beside;
static const char *const ways[] = {"pipe", "semaphore", "word in memory"};

struct common { // memory of both processes
  sem_t sem[2];
  _Atomic unsigned word[2];
  long behind; // nanoseconds that a process may be ahead of the GPU
};
static struct common *common;
static int me;

static long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void say(int way) {
  if (way == PIPE) turn();
  else if (way == SEMAPHORE) sem_post(&common->sem[!me]);
  else common->word[!me]++;
}

static void listen_for(int way) {
  static unsigned seen;
  if (way == PIPE) await();
  else if (way == SEMAPHORE) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LATEST;
    while (sem_timedwait(&common->sem[me], &until))
      if (errno != EINTR) FAIL("the other process says nothing: %s", strerror(errno));
  } else {
    for (long until = now() + LATEST * 1000000000L; common->word[me] == seen; sched_yield())
      if (now() > until) FAIL("the other process says nothing");
    seen++;
  }
}

// Much for the driver, and nothing for the GPU, stands before the work: over a network the process is far ahead of it
// when this returns.
static void get_ahead(void) {
  for (int i = 0; i < AHEAD; i++) CK(cuCtxSetCacheConfig(i & 1 ? CU_FUNC_CACHE_PREFER_L1 : CU_FUNC_CACHE_PREFER_NONE));
}

static void give(CUdeviceptr d, unsigned value, CUstream s, int way) {
  void *params[] = {&place, &value};
  get_ahead();
  if (set) CK(cuLaunchKernel(set, 1, 1, 1, WORDS, 1, 1, 0, s, params, NULL));
  else CK(cuMemsetD32Async(d, value, WORDS, s));
  if (elsewhere) {
    CK(cuCtxSetCurrent(elsewhere));
    unsigned got[WORDS];
    CK(cuMemcpyDtoH(got, beside, sizeof got));
    CK(cuCtxSetCurrent(own));
  }
  say(way);
}

static unsigned other_than(const unsigned *got, unsigned value) { // the first word that is not it, or WORDS
  unsigned i = 0;
  while (i < WORDS && got[i] == value) i++;
  return i;
}

// The work itself takes a moment, in which a copy may find a part of it done; it gets half of the time by which the
// other process is ahead. Where order is lost it comes later than that each time; on a busy machine it does so now and
// then, so once in the rounds of a way it may.
static void take(CUdeviceptr d, unsigned value, int way, int round) {
  static int late[WAYS];
  unsigned got[WORDS];
  listen_for(way);
  CK(cuMemcpyDtoH(got, d, sizeof got)); // behind what the other process has asked for
  long asked = now();
  for (unsigned i; (i = other_than(got, value)) < WORDS;) {
    if (now() - asked > LATEST * 1000000000L)
      FAIL("told by %s, round %d: word %u is %u, not %u", ways[way], round, i, got[i], value);
    CK(cuMemcpyDtoH(got, d, sizeof got));
  }
  if (now() - asked > common->behind / 2 && ++late[way] > 1)
    FAIL("told by %s, round %d: %u came %ld ms late, for the second time",
         ways[way], round, value, (now() - asked) / 1000000);
}

static void hide(CUdeviceptr d) {
  CUmodule m;
  CK(cuModuleLoadData(&m, hidden_code));
  CK(cuModuleGetFunction(&set, m, "set"));
  CK(cuMemAlloc(&place, 8));
  CK(cuMemcpyHtoD(place, &d, 8));
  unsigned none = 0;
  void *params[] = {&place, &none};
  CK(cuLaunchKernel(set, 1, 1, 1, WORDS, 1, 1, 0, 0, params, NULL)); // its code is there from now on
  CK(cuCtxSynchronize());
}

static void use_both(void) {
  CUdevice second;
  CK(cuCtxGetCurrent(&own));
  CK(cuDeviceGet(&second, 1));
  CK(cuDevicePrimaryCtxRetain(&elsewhere, second));
  CK(cuCtxSetCurrent(elsewhere));
  CK(cuMemAlloc(&beside, 4 * WORDS));
  CK(cuCtxSetCurrent(own));
}

static void both(CUdeviceptr d, int hidden) {
  CUstream s;
  if (hidden) hide(d);
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  if (!me) { // how far is that?
    await();
    CK(cuCtxSynchronize());
    long began = now();
    get_ahead();
    CK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024)); // which is answered
    common->behind = now() - began;
    if (common->behind < 10000000) common->behind = LATEST * 1000000000L; // natively it is none, and nothing is late
    turn();
  } else {
    turn();
    await();
  }
  for (int way = 0; way < (hidden ? WORD : WAYS); way++)
    for (int round = 0; round < ROUNDS; round++)
      for (int who = 0; who < 2; who++) {
        unsigned value = 1000 * (unsigned)way + 10 * (unsigned)round + (unsigned)who + 1;
        if (who == me) give(d, value, s, way);
        else take(d, value, way, round);
      }
  CK(cuCtxSynchronize());
}

int main(int argc, char **argv) {
  common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (common == MAP_FAILED || sem_init(&common->sem[0], 1, 0) || sem_init(&common->sem[1], 1, 0))
    FAIL("no shared memory");
  pid_t child;
  me = !split(&child);
  int hidden = argc > 2 && !strcmp(argv[2], "hidden");
  start(argc, argv);
  if (argc > 2 && !strcmp(argv[2], "both")) use_both();
  CUdeviceptr d;
  CUipcMemHandle h;
  if (!me) {
    CK(cuMemAlloc(&d, WORDS * 4));
    CK(cuIpcGetMemHandle(&h, d));
    tell(&h, sizeof h, -1);
    both(d, hidden);
    turn();
    child_was_right(child);
    CK(cuMemFree(d));
    printf("%d rounds\n", ROUNDS);
  } else {
    hear(&h, sizeof h);
    CK(cuIpcOpenMemHandle(&d, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    both(d, hidden);
    await();
    CK(cuIpcCloseMemHandle(d));
  }
  return 0;
}
