/* Decides once what the library is: a way to a server, a pass-through to the machine's driver, or neither; and what
 * holds after fork. */
#define _GNU_SOURCE
#include "base/connect.h"
#include "base/order.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

struct scuda_live scuda_live;
struct scuda_core_api scuda_core;
struct scuda_shared scuda_shared;
struct scuda_boot scuda_boot;
struct scuda_callbacks scuda_callbacks;

static scuda_lock_t decide_lock, connect_lock;
static pid_t core_started;          /* the process that opened the core; a child inherits the value, not the session */
/* of the attempt that succeeded; a failed one is made again by the next cuInit */
static _Atomic int32_t connect_result = -1;
static void *real_driver;

static void set_mode(uint32_t mode) { atomic_store(&scuda_live.mode, mode); }

static uint32_t decide(void) {
  if (core_started && core_started != getpid()) {
    set_mode(SCUDA_CHILD);
    return SCUDA_CHILD;
  }
  scuda_lock(&decide_lock);
  uint32_t mode = atomic_load(&scuda_live.mode);
  if (mode == SCUDA_UNDECIDED) {
    if (scuda_configured()) mode = SCUDA_CONFIGURED;
    else if ((real_driver = scuda_find_real("libcuda.so.1", "SCUDA_REAL_LIBCUDA", &scuda_live))) mode = SCUDA_PASS;
    else mode = SCUDA_NONE;
    if (mode == SCUDA_NONE)
      scuda_log(SCUDA_INFO,
                "no server is configured and this machine has no CUDA driver; "
                "name a server with SCUDA_SERVER=host:port or `scuda login HOST:PORT`");
    set_mode(mode);
  }
  scuda_unlock(&decide_lock);
  return mode;
}

uint32_t scuda_mode(void) {
  uint32_t mode = atomic_load(&scuda_live.mode);
  return mode == SCUDA_UNDECIDED ? decide() : mode;
}

void *scuda_real_driver(void) { return real_driver; }

/* ---- the core ---- */

/* The core's threads look at what lies in this library, so it stays when the program closes it (hashcat does at its
 * end). */
static void stay(void) {
  Dl_info self;
  if (dladdr(&scuda_live, &self)) dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

/* ---- what the core needs of the process ----
 * Its runtime ends the process where it gets no memory or no thread, so that is looked at before. */
enum { CORE_THREADS = 32, CORE_STACK = 64 << 10 };
static const size_t core_space = (size_t)3 << 29;

static void *wait_for_end(void *lock) {
  scuda_lock(lock);
  scuda_unlock(lock);
  return NULL;
}

static int threads_start(void) {
  struct rlimit limit;
  if (!getrlimit(RLIMIT_NPROC, &limit) && limit.rlim_cur > 4096) return 1; /* not worth a third of a millisecond */
  scuda_lock_t end = {0};
  pthread_t list[CORE_THREADS];
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, CORE_STACK);
  scuda_lock(&end);
  int n = 0;
  while (n < CORE_THREADS && !pthread_create(&list[n], &attributes, wait_for_end, &end)) n++;
  scuda_unlock(&end);
  for (int i = 0; i < n; i++) pthread_join(list[i], NULL);
  pthread_attr_destroy(&attributes);
  return n == CORE_THREADS;
}

static int32_t room_for_core(void) {
  static int said; /* programs call cuInit again and again */
  const int level = said++ ? SCUDA_DEBUG : SCUDA_ERROR;
  struct rlimit limit;
  if (!getrlimit(RLIMIT_AS, &limit) && limit.rlim_cur != RLIM_INFINITY) {
    void *p = mmap(NULL, core_space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
      scuda_log(level, "no address space for the session: it takes 1.5 GiB, of which the process uses little; "
                             "raise the limit on virtual memory (ulimit -v)");
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    munmap(p, core_space);
  }
  if (threads_start()) return CUDA_SUCCESS;
  scuda_log(level, "the session needs %d threads, and so many cannot be started; raise the limit on processes "
                         "(ulimit -u)", CORE_THREADS);
  return CUDA_ERROR_OPERATING_SYSTEM;
}

static int32_t open_core(void) {
  int32_t room = room_for_core();
  if (room) return room;
  stay();
  char folder[PATH_MAX], path[PATH_MAX + 32];
  const char *override = getenv("SCUDA_CORE");
  if (override && *override) snprintf(path, sizeof path, "%s", override);
  else if (scuda_folder_of(&scuda_live, folder, sizeof folder))
    snprintf(path, sizeof path, "%s/libscuda-core.so", folder);
  else return CUDA_ERROR_SYSTEM_NOT_READY;

  /* The core's Go runtime takes signals that belong to the program (a Go program, a JVM): they are given back. It runs
   * with asynchronous preemption off and has no use for faults. Its threads inherit a mask that keeps all other signals
   * away from them. */
  static const int taken[] = {SIGURG, SIGSEGV, SIGBUS, SIGFPE};
  enum { TAKEN = sizeof taken / sizeof *taken };
  struct sigaction program[TAKEN];
  sigset_t everything, mask;
  for (int i = 0; i < TAKEN; i++) sigaction(taken[i], NULL, &program[i]);
  sigfillset(&everything);
  pthread_sigmask(SIG_SETMASK, &everything, &mask);
  void *core = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  pthread_sigmask(SIG_SETMASK, &mask, NULL);
  if (!core) {
    static int said; /* programs call cuInit again and again */
    if (!said++)
      scuda_log(SCUDA_ERROR, "cannot open %s: %s; reinstall scuda or point SCUDA_CORE at libscuda-core.so", path,
                dlerror());
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  static const struct { const char *name; void **to; } symbols[] = {
      {"scuda_core_open", (void **)&scuda_core.open},         {"scuda_core_call", (void **)&scuda_core.call},
      {"scuda_core_send", (void **)&scuda_core.send},
      {"scuda_core_bulk", (void **)&scuda_core.bulk},         {"scuda_core_mapped", (void **)&scuda_core.mapped},
      {"scuda_core_transfer", (void **)&scuda_core.transfer},
      {"scuda_core_overlaps", (void **)&scuda_core.overlaps}, {"scuda_core_source", (void **)&scuda_core.source},
      {"scuda_core_hostfn", (void **)&scuda_core.hostfn},     {"scuda_core_image", (void **)&scuda_core.image},
      {"scuda_core_pin", (void **)&scuda_core.pin},
      {"scuda_core_look", (void **)&scuda_core.look},         {"scuda_core_figures", (void **)&scuda_core.figures},
      {"scuda_core_peer", (void **)&scuda_core.peer},         {"scuda_core_peer_lost", (void **)&scuda_core.peer_lost},
      {"scuda_core_close", (void **)&scuda_core.close}};
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    *symbols[i].to = dlsym(core, symbols[i].name);
    if (!*symbols[i].to) {
      scuda_log(SCUDA_ERROR, "%s has no %s: it belongs to another version of scuda; install both from one build", path,
                symbols[i].name);
      return CUDA_ERROR_SYSTEM_NOT_READY;
    }
  }
  int32_t result = scuda_core.open(&scuda_shared, &scuda_boot);
  for (int i = 0; i < TAKEN; i++) { /* a handler may be called on a goroutine's small stack */
    if ((program[i].sa_flags & SA_SIGINFO) || (program[i].sa_handler != SIG_DFL && program[i].sa_handler != SIG_IGN))
      program[i].sa_flags |= SA_ONSTACK;
    sigaction(taken[i], &program[i], NULL);
  }
  return result;
}

/* What a newer driver has beside is not here, so the version that says so is not told. */
static int32_t at_most_ours(int32_t version) { return version < SCUDA_CUDA_VERSION ? version : SCUDA_CUDA_VERSION; }

static int32_t connect_now(void) {
  core_started = getpid();
  if (madvise(&scuda_live, sizeof scuda_live, MADV_WIPEONFORK))
    scuda_log(SCUDA_WARN, "MADV_WIPEONFORK is refused (%s); a forked child must not call CUDA", strerror(errno));
  static int memory;
  if (!memory && (scuda_handles_setup() || scuda_ring_setup())) {
    scuda_log(SCUDA_ERROR, "no address space for the session (%s); raise the limit on virtual memory (ulimit -v)",
              strerror(errno));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memory = 1;
  int32_t result = open_core();
  if (result) return result;
  if (scuda_boot.driver_version > SCUDA_CUDA_VERSION)
    scuda_log(SCUDA_INFO,
              "the server's driver is of CUDA %d.%d; programs are told %d.%d, of which this library has the functions",
              scuda_boot.driver_version / 1000,
              scuda_boot.driver_version % 1000 / 10, SCUDA_CUDA_VERSION / 1000, SCUDA_CUDA_VERSION % 1000 / 10);
  scuda_boot.driver_version = at_most_ours(scuda_boot.driver_version);
  return scuda_devices_setup();
}

static _Atomic int32_t refused; /* result of the last attempt to connect */

int32_t scuda_connect(const struct scuda_callbacks *callbacks) {
  int32_t result = atomic_load(&connect_result);
  if (result < 0) {
    scuda_lock(&connect_lock);
    result = atomic_load(&connect_result);
    if (result < 0) {
      scuda_callbacks = *callbacks;
      scuda_shared.mapped = callbacks->mapped;
    }
    if (result < 0 && !(result = connect_now())) atomic_store(&connect_result, result);
    atomic_store(&refused, result);
    scuda_unlock(&connect_lock);
  }
  return result;
}

/* What our NVML library knows already, where the program has a session with it (PyTorch counts its GPUs so); 0 if
 * not. */
static int32_t version_of_nvml(void) {
  void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return 0;
  int32_t (*ask)(int32_t *) = (int32_t (*)(int32_t *))dlsym(library, "nvmlSystemGetCudaDriverVersion_v2");
  char own[PATH_MAX], its[PATH_MAX];
  int32_t version = 0;
  int ours = ask && scuda_folder_of(&scuda_live, own, sizeof own) &&
             scuda_folder_of((const void *)ask, its, sizeof its) && !strcmp(own, its);
  if (!ours || ask(&version)) version = 0;
  dlclose(library);
  return version;
}

/* Programs ask for the version and fork afterwards, which a process with a Go runtime must not: before cuInit it is
 * asked for without the core. */
static _Atomic int32_t version_asked; /* 0: not yet */

static int32_t version_without_core(int32_t *version) {
  int32_t result = CUDA_SUCCESS;
  if (!atomic_load(&version_asked)) {
    scuda_lock(&connect_lock);
    int32_t answer = 0;
    if (atomic_load(&connect_result) == CUDA_SUCCESS) answer = scuda_boot.driver_version;
    else if (!(answer = version_of_nvml()) && scuda_connect_driver_version(&answer))
      result = CUDA_ERROR_SYSTEM_NOT_READY;
    atomic_store(&version_asked, at_most_ours(answer));
    scuda_unlock(&connect_lock);
  }
  *version = atomic_load(&version_asked);
  return result;
}

int32_t scuda_driver_version(void) {
  return scuda_boot.driver_version ? scuda_boot.driver_version : atomic_load(&version_asked);
}

int32_t scuda_version(int32_t *version) {
  int32_t failed = atomic_load(&refused);
  if (failed) return failed; /* cuInit has said why */
  if (atomic_load(&connect_result)) return version_without_core(version);
  *version = scuda_boot.driver_version;
  return CUDA_SUCCESS;
}

__attribute__((destructor)) static void at_exit(void) {
  uint32_t mode = atomic_load(&scuda_live.mode);
  if (mode != SCUDA_REMOTE && mode != SCUDA_PROFILED && mode != SCUDA_CONFIGURED) return;
  if (scuda_callbacks.last && core_started == getpid()) scuda_callbacks.last();
  set_mode(SCUDA_ENDED);
  scuda_trace_end();
  if (scuda_callbacks.exit) scuda_callbacks.exit();
  if (core_started == getpid() && connect_result == CUDA_SUCCESS) scuda_core.close();
  scuda_order_end();
}
