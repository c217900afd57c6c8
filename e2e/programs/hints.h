// Hints about unified memory, in the form that the header at hand has: since CUDA 13 it names the second versions of the functions.
#ifndef HINTS_H
#define HINTS_H
#include <cuda.h>

#if CUDA_VERSION >= 13000 && !defined SCUDA_CUDA_H
static inline CUmemLocation location(CUdevice d) {
  CUmemLocation l = {d < 0 ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, d < 0 ? 0 : d};
  return l;
}
static inline CUresult advise(CUdeviceptr p, size_t n, CUmem_advise a, CUdevice d) { return cuMemAdvise(p, n, a, location(d)); }
static inline CUresult prefetch(CUdeviceptr p, size_t n, CUdevice d, CUstream s) { return cuMemPrefetchAsync(p, n, location(d), 0, s); }
#else
static inline CUresult advise(CUdeviceptr p, size_t n, CUmem_advise a, CUdevice d) { return cuMemAdvise(p, n, a, d); }
static inline CUresult prefetch(CUdeviceptr p, size_t n, CUdevice d, CUstream s) { return cuMemPrefetchAsync(p, n, d, s); }
#endif
#endif
