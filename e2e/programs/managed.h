// Shared by the programs on unified memory: a range, the kernel that changes one, and hints in the form that the header
// at hand has: since CUDA 13 it names the second versions of the functions.
#ifndef MANAGED_H
#define MANAGED_H
#include "check.h"

static CUfunction mixer; // of the current context

static inline void *managed(size_t n) {
  CUdeviceptr p;
  CK(cuMemAllocManaged(&p, n, CU_MEM_ATTACH_GLOBAL));
  return (void *)(uintptr_t)p;
}
static inline CUdeviceptr dev(const void *p) { return (CUdeviceptr)(uintptr_t)p; }
static inline void release(void *p) { CK(cuMemFree(dev(p))); }

static inline void start_managed(int argc, char **argv) {
  start(argc, argv);
  mixer = function(load("managed.ptx"), "mix");
}
// p[i] = p[i] * a + b
static inline void mix_in(CUstream s, void *p, unsigned long long from, unsigned long long n, unsigned a, unsigned b) {
  CK(LAUNCH(mixer, 8, 256, 0, s, &p, &from, &n, &a, &b));
}
static inline void mix(void *p, unsigned long long n, unsigned a, unsigned b) { // from the beginning, and waits
  mix_in(NULL, p, 0, n, a, b);
  CK(cuCtxSynchronize());
}

#if CUDA_VERSION >= 13000 && !defined SCUDA_CUDA_H
static inline CUmemLocation location(CUdevice d) {
  CUmemLocation l = {d < 0 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, d < 0 ? 0 : d};
  return l;
}
static inline CUresult advise(CUdeviceptr p, size_t n, CUmem_advise a, CUdevice d) {
  return cuMemAdvise(p, n, a, location(d));
}
static inline CUresult prefetch(CUdeviceptr p, size_t n, CUdevice d, CUstream s) {
  return cuMemPrefetchAsync(p, n, location(d), 0, s);
}
static inline CUresult advise_at(CUdeviceptr p, size_t n, CUmem_advise a, CUmemLocation l) {
  return cuMemAdvise(p, n, a, l);
}
static inline CUresult prefetch_at(CUdeviceptr p, size_t n, CUmemLocation l, unsigned flags, CUstream s) {
  return cuMemPrefetchAsync(p, n, l, flags, s);
}
#else
static inline CUresult advise(CUdeviceptr p, size_t n, CUmem_advise a, CUdevice d) { return cuMemAdvise(p, n, a, d); }
static inline CUresult prefetch(CUdeviceptr p, size_t n, CUdevice d, CUstream s) {
  return cuMemPrefetchAsync(p, n, d, s);
}
static inline CUresult advise_at(CUdeviceptr p, size_t n, CUmem_advise a, CUmemLocation l) {
  return cuMemAdvise_v2(p, n, a, l);
}
static inline CUresult prefetch_at(CUdeviceptr p, size_t n, CUmemLocation l, unsigned flags, CUstream s) {
  return cuMemPrefetchAsync_v2(p, n, l, flags, s);
}
#endif
#endif
