/* libcuda.so.1 of the stand-alone simulation: C alone, so that a program may fork before it uses the driver, as it may
 * with NVIDIA's. The simulation itself, in Go, lies beside it and is loaded by the first call that needs it; a process
 * that forks after that has children that are refused, which is what the driver does too. */
#include "base/base.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { DRIVER_VERSION = 13000 };

typedef uint64_t sim_function(int32_t function, uint64_t *words);

static _Atomic(sim_function *) simulation;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

static uint64_t refused(int32_t function, uint64_t *words) {
  (void)function, (void)words;
  return CUDA_ERROR_NOT_INITIALIZED;
}

static void in_child(void) {
  if (atomic_load(&simulation)) atomic_store(&simulation, refused);
}

static const int taken[] = {SIGURG, SIGSEGV, SIGBUS, SIGFPE};
enum { TAKEN = sizeof taken / sizeof *taken };

static sim_function *load(void) {
  pthread_mutex_lock(&loading);
  sim_function *f = atomic_load(&simulation);
  Dl_info self;
  if (!f && dladdr((void *)load, &self)) {
    char path[PATH_MAX];
    const char *slash = strrchr(self.dli_fname, '/');
    snprintf(path, sizeof path, "%.*slibscuda-sim.so", slash ? (int)(slash - self.dli_fname + 1) : 0, self.dli_fname);
    /* Go takes signals that are the program's: it gets them back. Go's own threads are to leave all others alone. */
    struct sigaction program[TAKEN];
    sigset_t everything, mask;
    for (int i = 0; i < TAKEN; i++) sigaction(taken[i], NULL, &program[i]);
    sigfillset(&everything);
    pthread_sigmask(SIG_SETMASK, &everything, &mask);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    void *found = library ? dlsym(library, "sim_call") : NULL, *ready = library ? dlsym(library, "sim_ready") : NULL;
    if (found && ready) {
      memcpy(&f, &found, sizeof f);
      void (*wait)(void);
      memcpy(&wait, &ready, sizeof wait);
      wait();
      for (int i = 0; i < TAKEN; i++) { /* a handler may be called on a goroutine's small stack */
        int plain = program[i].sa_handler == SIG_DFL || program[i].sa_handler == SIG_IGN;
        if ((program[i].sa_flags & SA_SIGINFO) || !plain) program[i].sa_flags |= SA_ONSTACK;
        sigaction(taken[i], &program[i], NULL);
      }
      pthread_atfork(NULL, NULL, in_child);
      atomic_store(&simulation, f);
    } else {
      fprintf(stderr, "scuda: the simulation cannot be loaded: %s\n", dlerror());
    }
  }
  pthread_mutex_unlock(&loading);
  return f;
}

uint64_t sim_call(int32_t function, uint64_t *words) {
  sim_function *f = atomic_load_explicit(&simulation, memory_order_acquire);
  if (!f) f = load();
  return f ? f(function, words) : CUDA_ERROR_SYSTEM_NOT_READY;
}

/* Programs ask for the version before they fork. */
int32_t sim_cuDriverGetVersion(int32_t *version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = DRIVER_VERSION;
  return CUDA_SUCCESS;
}
