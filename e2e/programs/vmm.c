// Virtual memory management and stream-ordered allocation.
#include "check.h"

int main(int argc, char **argv) {
  start(argc, argv);
  CUmemAllocationProp prop;
  memset(&prop, 0, sizeof prop);
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = 0;
  size_t grain = 0;
  CK(cuMemGetAllocationGranularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  printf("granularity %zu\n", grain);
  CUdeviceptr va;
  CUmemGenericAllocationHandle one, two;
  CUmemAccessDesc access;
  memset(&access, 0, sizeof access);
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CK(cuMemAddressReserve(&va, 4 * grain, 0, 0, 0));
  CK(cuMemCreate(&one, grain, &prop, 0));
  CK(cuMemCreate(&two, grain, &prop, 0));
  CK(cuMemMap(va, grain, 0, one, 0));
  CK(cuMemMap(va + grain, grain, 0, two, 0));
  CK(cuMemSetAccess(va, 2 * grain, &access, 1));
  unsigned char *src = malloc(2 * grain), *dst = malloc(2 * grain);
  fill(src, 2 * grain, 5);
  CK(cuMemcpyHtoD(va, src, 2 * grain)); // across both
  CK(cuMemcpyDtoH(dst, va, 2 * grain));
  CHECK(!memcmp(src, dst, 2 * grain), "copy over two mappings");
  unsigned long long flags = 0;
  CK(cuMemGetAccess(&flags, &prop.location, va));
  printf("access %llu\n", flags);
  CK(cuMemUnmap(va, grain));
  CK(cuMemMap(va + 2 * grain, grain, 0, one, 0)); // the same memory elsewhere
  CK(cuMemSetAccess(va + 2 * grain, grain, &access, 1));
  CK(cuMemcpyDtoH(dst, va + 2 * grain, grain));
  CHECK(!memcmp(src, dst, grain), "memory kept over a new mapping");
  CK(cuMemUnmap(va + grain, 2 * grain));
  CK(cuMemRelease(one));
  CK(cuMemRelease(two));
  CK(cuMemAddressFree(va, 4 * grain));
  printf("virtual memory ok\n");

  CUstream s;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 50; i++) {
    CUdeviceptr d;
    size_t n = 1000 + i * 4000;
    CK(cuMemAllocAsync(&d, n, s));
    CK(cuMemcpyHtoDAsync(d, src, n, s));
    CK(cuMemcpyDtoHAsync(dst, d, n, s));
    CK(cuMemFreeAsync(d, s));
    CK(cuStreamSynchronize(s));
    CHECK(!memcmp(src, dst, n), "stream-ordered memory, round %d", i);
  }
  printf("pools ok\n");

  CUmemorytype type;
  CUdeviceptr d;
  void *pin;
  CK(cuMemAlloc(&d, 4096));
  CK(cuMemAllocHost(&pin, 4096));
  CK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, d + 100));
  printf("device memory is type %d\n", (int)type);
  CK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)pin));
  printf("pinned memory is type %d\n", (int)type);
  SHOW(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)&type));
  int blocks = 0;
  CUfunction f = function(load("kernels.ptx"), "matmul_tiled");
  CK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 256, 0));
  CHECK(blocks >= 1, "%d blocks", blocks);
  return 0;
}
