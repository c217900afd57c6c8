// Shared by the programs on unified memory of two servers: device 0 is the first server's, and the last device the
// second's.
#ifndef SEVERAL_MANAGED_H
#define SEVERAL_MANAGED_H
#include "managed.h"

enum { PART = 70000 }; // bytes: more than a block, less than two

static struct gpu {
  CUdevice device;
  CUcontext context;
  CUstream stream;
  CUfunction mix, walk, add;
  CUevent done;
  CUdeviceptr plain;
} gpus[2];

struct range { unsigned char *p, *model; size_t bytes; };

static inline void use(int i) { CK(cuCtxSetCurrent(gpus[i].context)); }
static inline void wait_for(int i) { CK(cuStreamSynchronize(gpus[i].stream)); }

static inline struct range make(int at, size_t bytes) { // where a GPU is current
  use(at);
  struct range r = {managed(bytes), calloc(1, bytes), bytes};
  return r;
}
static inline void drop(struct range *r) {
  release(r->p);
  free(r->model);
}
static inline void mix_on(int i, struct range *r, unsigned long long from, unsigned long long n, unsigned a,
                          unsigned b) {
  use(i);
  CK(LAUNCH(gpus[i].mix, 4, 64, 0, gpus[i].stream, &r->p, &from, &n, &a, &b));
  for (size_t k = from; k < from + n; k++) r->model[k] = (unsigned char)(r->model[k] * a + b);
}
static inline void compare(const struct range *r, size_t from, size_t n, const char *what) {
  for (size_t i = from; i < from + n; i++)
    CHECK(r->p[i] == r->model[i], "%s: byte %zu of %zu is %d, not %d", what, i, r->bytes, r->p[i], r->model[i]);
}
static inline void put(struct range *r, size_t from, size_t n, int value) {
  memset(r->p + from, value, n);
  memset(r->model + from, value, n);
}
// What a GPU is given from now on comes behind what the other one has. Nobody waits here.
static inline void after(int i) {
  use(!i);
  CK(cuEventRecord(gpus[!i].done, gpus[!i].stream));
  use(i);
  CK(cuStreamWaitEvent(gpus[i].stream, gpus[!i].done, 0));
}

static inline void start_two(int argc, char **argv) {
  start(argc, argv);
  int count;
  CK(cuDeviceGetCount(&count));
  for (int i = 0; i < 2; i++) {
    struct gpu *g = &gpus[i];
    g->device = i ? count - 1 : 0;
    CK(cuDevicePrimaryCtxRetain(&g->context, g->device));
    use(i);
    g->mix = function(load("managed.ptx"), "mix");
    g->walk = function(load("managed.ptx"), "walk_list");
    g->add = function(load("kernels.ptx"), "vector_add");
    CK(cuStreamCreate(&g->stream, CU_STREAM_NON_BLOCKING));
    CK(cuEventCreate(&g->done, CU_EVENT_DISABLE_TIMING));
    CK(cuMemAlloc(&g->plain, 2 * PART));
  }
}
#endif
