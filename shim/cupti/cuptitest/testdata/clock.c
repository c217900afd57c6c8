// Times of kernels by servers' clocks: clock LIBRARY SKEW_NS RATE TO_US BACK_US [SKEW_NS of a second server, which has
// every other kernel]. Each kernel must lie between its launch and the end of the wait for it, be about as long as it
// was, and begin when it did but for half a round trip.
#include "front.h"
#include "gen/cuda_gen.h"
#include "../../gen/cupti_gen.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KERNELS = 100, LONG = 200000 /* ns */, STREAM = 13 };
#define FAIL(...) (fprintf(stderr, __VA_ARGS__), exit(1))
static struct { uint64_t launch, start, end, waited; uint32_t id, server; } real[KERNELS];
static struct CUpti_ActivityKernel11 got[2 * KERNELS];
static int count;
static int (*next)(uint8_t *, size_t, void **);

static void request(uint8_t **b, size_t *size, size_t *most) {
  *b = aligned_alloc(8, *size = 1 << 16);
  *most = 0;
}
static void complete(void *c, uint32_t s, uint8_t *b, size_t size, size_t valid) {
  for (void *r = NULL; !next(b, valid, &r);) {
    if (count == 2 * KERNELS) FAIL("too many records\n");
    memcpy(&got[count++], r, sizeof *got);
  }
  free(b);
}

// A call as the front tells of it; gives its id.
static uint32_t call(uint32_t function, const char *name, const void *params, uint64_t until) {
  struct scuda_profiled c = {.function = function, .name = name, .params = params, .context = 1};
  const struct scuda_profiler *p = front_profiler();
  if (!p || !p->enter(&c)) FAIL("the call is not recorded\n");
  front_spin(until);
  p->exit(&c);
  return c.correlation;
}

int main(int argc, char **argv) {
  void *lib = dlopen(argv[1], RTLD_NOW);
  if (argc < 6 || !lib) FAIL("%s\n", argc < 6 ? "clock LIBRARY SKEW_NS RATE TO_US BACK_US" : dlerror());
  next = (int (*)(uint8_t *, size_t, void **))dlsym(lib, "cuptiActivityGetNextRecord");
  int (*regist)(void *, void *) = (int (*)(void *, void *))dlsym(lib, "cuptiActivityRegisterCallbacks");
  int (*enable)(uint32_t) = (int (*)(uint32_t))dlsym(lib, "cuptiActivityEnable");
  int (*flush)(uint32_t) = (int (*)(uint32_t))dlsym(lib, "cuptiActivityFlushAll");
  const int64_t skews[] = {atoll(argv[2]), argc > 6 ? atoll(argv[6]) : 0};
  const uint32_t servers = argc > 6 ? 2 : 1;
  front_server(skews, servers, atof(argv[3]), (uint32_t)atoi(argv[4]), (uint32_t)atoi(argv[5]));
  if (regist(request, complete) || enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)) FAIL("not enabled\n");
  uint64_t params[12] = {0};
  for (int i = 0; i < KERNELS; i++) {
    const uint64_t stream[] = {STREAM + (real[i].server = (uint32_t)i % servers)};
    real[i].launch = front_real();
    real[i].id = call(I_cuLaunchKernel, "cuLaunchKernel", params, 0);
    real[i].start = front_real();
    real[i].end = real[i].start + LONG;
    call(I_cuStreamSynchronize, "cuStreamSynchronize", stream, real[i].end);
    real[i].waited = front_real();
    front_work(real[i].server, real[i].id, (uint32_t)*stream, real[i].start, real[i].end);
    if (i == KERNELS / 2 && flush(1)) FAIL("not flushed\n"); /* what comes now has names that are known */
  }
  if (flush(1)) FAIL("not flushed\n");
  if (count != KERNELS) FAIL("%d records\n", count);
  uint64_t sum = 0, worst = 0;
  for (int i = 0; i < KERNELS; i++) {
    const struct CUpti_ActivityKernel11 *k = NULL;
    for (int n = 0; n < count; n++)
      if (got[n].correlationId == real[i].id) k = &got[n];
    if (!k || k->deviceId != real[i].server ||
        strcmp((const char *)(uintptr_t)k->name, real[i].server ? "b_kernel" : "a_kernel"))
      FAIL("there is no record %d, or it is of another server\n", i);
    if (k->start < real[i].launch || k->end > real[i].waited || k->start > k->end)
      FAIL("kernel %d is from %lld to %lld ns, its wait returned at %lld\n", i, (long long)(k->start - real[i].launch),
           (long long)(k->end - real[i].launch), (long long)(real[i].waited - real[i].launch));
    uint64_t wrong = k->start > real[i].start ? k->start - real[i].start : real[i].start - k->start;
    if (wrong > worst) worst = wrong;
    sum += k->end - k->start;
  }
  /* half of what both ways take; 10 us for whoever else wants the processor */
  if (worst > (strtoull(argv[4], NULL, 10) + strtoull(argv[5], NULL, 10)) * 500 + 10000)
    FAIL("a kernel's begin is wrong by %llu ns\n", (unsigned long long)worst);
  printf("worst %llu ns, mean length %llu of %d ns\n", (unsigned long long)worst, (unsigned long long)(sum / KERNELS),
         LONG);
  return sum / KERNELS < LONG / 2;
}
