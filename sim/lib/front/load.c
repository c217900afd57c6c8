/* libcuda.so.1 of the stand-alone simulation: C alone, so that a program may fork before it uses the driver, as it may with NVIDIA's. The simulation
 * itself, in Go, lies beside it and is loaded by the first call that needs it; a process that forks after that has children that are refused, which is
 * what the driver does too. */
#include "front.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
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

static sim_function *load(void) {
  pthread_mutex_lock(&loading);
  sim_function *f = atomic_load(&simulation);
  Dl_info self;
  if (!f && dladdr((void *)load, &self)) {
    char path[PATH_MAX];
    const char *slash = strrchr(self.dli_fname, '/');
    snprintf(path, sizeof path, "%.*slibscuda-sim.so", slash ? (int)(slash - self.dli_fname + 1) : 0, self.dli_fname);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, "sim_call") : NULL;
    if (found) {
      memcpy(&f, &found, sizeof f);
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
