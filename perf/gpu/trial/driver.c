#include "driver.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { numbers = 1 << 20, threads = 256 };

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                          ".visible .entry add(.param .u64 p) {\n"
                          ".reg .b32 %r<5>;\n.reg .b64 %d<4>;\n"
                          "ld.param.u64 %d1, [p];\n"
                          "mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nmov.u32 %r3, %tid.x;\n"
                          "mad.lo.s32 %r1, %r1, %r2, %r3;\n"
                          "mul.wide.u32 %d2, %r1, 4;\nadd.s64 %d2, %d1, %d2;\n"
                          "ld.global.u32 %r4, [%d2];\nadd.u32 %r4, %r4, 1;\nst.global.u32 [%d2], %r4;\nret;\n}\n";

static void *driver, *context, *function;
static uint64_t memory;
static uint32_t *host;
static uint32_t launches;
static char said[300];

static const char *wrong(const char *what, int result) {
  snprintf(said, sizeof said, "%s: %d", what, result);
  return said;
}

// CALL calls a function of the driver by its name, and ends the trial where that is not there or fails.
#define CALL(name, types, ...)                                                                                         \
  do {                                                                                                                 \
    int(*call) types = (int(*) types)dlsym(driver, name);                                                              \
    if (!call)                                                                                                         \
      return wrong(name " is not there", 0);                                                                           \
    int result = call(__VA_ARGS__);                                                                                    \
    if (result)                                                                                                        \
      return wrong(name, result);                                                                                      \
  } while (0)

const char *trial_open(void) {
  driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver)
    return dlerror();
  CALL("cuInit", (unsigned), 0);
  CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, 0);
  CALL("cuCtxSetCurrent", (void *), context);
  CALL("cuMemAlloc_v2", (uint64_t *, size_t), &memory, numbers * sizeof *host);
  host = malloc(numbers * sizeof *host);
  for (uint32_t i = 0; i < numbers; i++)
    host[i] = i * 3;
  CALL("cuMemcpyHtoD_v2", (uint64_t, const void *, size_t), memory, host, numbers * sizeof *host);
  return NULL;
}

static const char *launch(uint64_t at) {
  void *params[] = {&at};
  typedef unsigned number;
  CALL("cuLaunchKernel", (void *, number, number, number, number, number, number, number, void *, void **, void **),
       function, numbers / threads, 1, 1, threads, 1, 1, 0, NULL, params, NULL);
  CALL("cuCtxSynchronize", (void));
  return NULL;
}

const char *trial_ptx(void) {
  if (!function) {
    void *module;
    CALL("cuModuleLoadData", (void **, const void *), &module, ptx);
    CALL("cuModuleGetFunction", (void **, void *, const char *), &function, module, "add");
  }
  const char *bad = launch(memory);
  if (bad)
    return bad;
  launches++;
  CALL("cuMemcpyDtoH_v2", (void *, uint64_t, size_t), host, memory, numbers * sizeof *host);
  for (uint32_t i = 0; i < numbers; i++)
    if (host[i] != i * 3 + launches)
      return wrong("a wrong number", (int)i);
  return NULL;
}

const char *trial_managed(void) {
  const char *bad = trial_ptx();
  if (bad)
    return bad;
  uint64_t at;
  CALL("cuMemAllocManaged", (uint64_t *, size_t, unsigned), &at, numbers * sizeof *host, 1);
  volatile uint32_t *page = (volatile uint32_t *)(uintptr_t)at;
  for (uint32_t round = 0; round < 3; round++) {
    for (uint32_t i = 0; i < numbers; i++)
      page[i] = i + round;
    if ((bad = launch(at)))
      return bad;
    for (uint32_t i = 0; i < numbers; i++)
      if (page[i] != i + round + 1)
        return wrong("a wrong number", (int)i);
  }
  return NULL;
}

const char *trial_checkpoint(int pid) {
  if (!driver) { // who has started the process
    if (!(driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)))
      return dlerror();
    CALL("cuInit", (unsigned), 0);
  }
  uint64_t arguments[8] = {0};
  int state = -1;
  arguments[0] = 10000; // ms that the lock may take
  CALL("cuCheckpointProcessLock", (int, void *), pid, arguments);
  arguments[0] = 0;
  CALL("cuCheckpointProcessCheckpoint", (int, void *), pid, arguments);
  CALL("cuCheckpointProcessGetState", (int, int *), pid, &state);
  if (state != 2)
    return wrong("the state after the checkpoint", state);
  CALL("cuCheckpointProcessRestore", (int, void *), pid, arguments);
  CALL("cuCheckpointProcessUnlock", (int, void *), pid, arguments);
  return NULL;
}

static void *cupti;
static int kernels;

static void give_buffer(uint8_t **buffer, size_t *size, size_t *most) {
  *size = 1 << 20;
  *most = 0;
  *buffer = aligned_alloc(8, *size);
}

static void take_buffer(void *ctx, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
  typedef int function_next(uint8_t *, size_t, void **);
  function_next *next = (function_next *)dlsym(cupti, "cuptiActivityGetNextRecord");
  void *record = NULL;
  while (next && next(buffer, valid, &record) == 0)
    kernels++;
  free(buffer);
  (void)ctx, (void)stream, (void)size;
}

const char *trial_cupti(const char *library) {
  cupti = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!cupti)
    return dlerror();
  void *ours = driver;
  driver = cupti; // CALL looks there
  CALL("cuptiActivityRegisterCallbacks",
       (void (*)(uint8_t **, size_t *, size_t *), void (*)(void *, uint32_t, uint8_t *, size_t, size_t)), give_buffer,
       take_buffer);
  CALL("cuptiActivityEnable", (int), 10); // kernels that may run at the same time
  driver = ours;
  for (int i = 0; i < 5; i++) {
    const char *bad = trial_ptx();
    if (bad)
      return bad;
  }
  driver = cupti;
  CALL("cuptiActivityFlushAll", (uint32_t), 1);
  driver = ours;
  return kernels == 5 ? NULL : wrong("kernels of 5 that were counted", kernels);
}
