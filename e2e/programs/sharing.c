// Memory shared by file descriptor between two processes: virtual memory management and memory pools.
#include "check.h"
#include "pair.h"

enum { POSIX = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR };

static CUmemAllocationProp shareable(void) {
  CUmemAllocationProp prop;
  memset(&prop, 0, sizeof prop);
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.requestedHandleTypes = POSIX;
  return prop;
}

static CUdeviceptr map(CUmemGenericAllocationHandle mem, size_t size) {
  CUmemAccessDesc access;
  memset(&access, 0, sizeof access);
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUdeviceptr va;
  CK(cuMemAddressReserve(&va, size, 0, 0, 0));
  CK(cuMemMap(va, size, 0, mem, 0));
  CK(cuMemSetAccess(va, size, &access, 1));
  return va;
}

static void unmap(CUdeviceptr va, size_t size) {
  CK(cuMemUnmap(va, size));
  CK(cuMemAddressFree(va, size));
}

static CUmemoryPool pool(void) {
  CUmemPoolProps props;
  memset(&props, 0, sizeof props);
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  props.handleTypes = POSIX;
  CUmemoryPool p;
  CK(cuMemPoolCreate(&p, &props));
  return p;
}

enum { POOLED = 100000 };

static void first(pid_t child, size_t size) {
  CUmemAllocationProp prop = shareable();
  CUmemGenericAllocationHandle mem, again;
  CK(cuMemCreate(&mem, size, &prop, 0));
  int fd = -1, second = -1;
  CK(cuMemExportToShareableHandle(&fd, mem, POSIX, 0));
  CK(cuMemExportToShareableHandle(&second, mem, POSIX, 0));
  CHECK(fd >= 0 && second >= 0 && fd != second, "descriptors %d, %d", fd, second);
  CUdeviceptr va = map(mem, size);
  unsigned char *data = malloc(size), *got = malloc(size);
  fill(data, size, 11);
  CK(cuMemcpyHtoD(va, data, size));
  tell(&size, sizeof size, fd);
  close(fd);
  await(); // it has written
  fill(data, size, 12);
  CK(cuMemcpyDtoH(got, va, size));
  CHECK(!memcmp(got, data, size), "what the second process wrote");

  CK(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)second, POSIX)); // in the process that exported it
  CUdeviceptr other = map(again, size);
  CK(cuMemcpyDtoH(got, other, size));
  CHECK(!memcmp(got, data, size), "a second mapping of the same memory");
  unmap(other, size);
  CK(cuMemRelease(again));
  close(second);
  unmap(va, size);
  CK(cuMemRelease(mem));
  turn(); // the second process still has it
  printf("allocation shared\n");

  CUmemoryPool p = pool();
  CUdeviceptr d;
  CUmemPoolPtrExportData pointer;
  CUstream s;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuMemPoolExportToShareableHandle(&fd, p, POSIX, 0));
  CK(cuMemAllocFromPoolAsync(&d, POOLED, p, s));
  CK(cuMemsetD8Async(d, 0x5A, POOLED, s));
  CK(cuStreamSynchronize(s));
  CK(cuMemPoolExportPointer(&pointer, d));
  tell(&pointer, sizeof pointer, fd);
  close(fd);
  await();
  CK(cuMemcpyDtoH(got, d, POOLED));
  for (int i = 0; i < POOLED; i++)
    CHECK(got[i] == 0xA5, "byte %d that the second process wrote to the pool's memory", i);
  CK(cuMemFreeAsync(d, s));
  CK(cuStreamSynchronize(s));
  CK(cuMemPoolDestroy(p));
  child_was_right(child);
  printf("pool shared\n");

  int file = dup(0);
  SHOW(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)file, POSIX) != CUDA_SUCCESS);
  prop.requestedHandleTypes = 0;
  CK(cuMemCreate(&mem, size, &prop, 0));
  SHOW(cuMemExportToShareableHandle(&fd, mem, POSIX, 0));
  CK(cuMemRelease(mem));
}

static void second(void) {
  size_t size;
  CUmemGenericAllocationHandle mem;
  int fd = hear(&size, sizeof size);
  CHECK(fd >= 0, "no descriptor came");
  CK(cuMemImportFromShareableHandle(&mem, (void *)(intptr_t)fd, POSIX));
  close(fd);
  CUmemAllocationProp prop;
  CK(cuMemGetAllocationPropertiesFromHandle(&prop, mem));
  CHECK(prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE && prop.location.id == 0, "properties of imported memory");
  CUdeviceptr va = map(mem, size);
  CK(cuMemRelease(mem)); // the mapping keeps it
  unsigned char *data = malloc(size), *got = malloc(size);
  fill(data, size, 11);
  CK(cuMemcpyDtoH(got, va, size));
  CHECK(!memcmp(got, data, size), "what the first process wrote");
  fill(data, size, 12);
  CK(cuMemcpyHtoD(va, data, size));
  turn();
  await();
  CK(cuMemcpyDtoH(got, va, size));
  CHECK(!memcmp(got, data, size), "memory that the first process has given back");
  unmap(va, size);

  CUmemPoolPtrExportData pointer;
  CUmemoryPool p;
  CUdeviceptr d;
  CUstream s;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  fd = hear(&pointer, sizeof pointer);
  CK(cuMemPoolImportFromShareableHandle(&p, (void *)(intptr_t)fd, POSIX, 0));
  close(fd);
  CK(cuMemPoolImportPointer(&d, p, &pointer));
  CK(cuMemcpyDtoH(got, d, POOLED));
  for (int i = 0; i < POOLED; i++) CHECK(got[i] == 0x5A, "byte %d of the pool's memory", i);
  CK(cuMemsetD8Async(d, 0xA5, POOLED, s));
  CK(cuMemFreeAsync(d, s));
  CK(cuStreamSynchronize(s));
  turn();
}

int main(int argc, char **argv) {
  pid_t child;
  int is_first = split(&child);
  start(argc, argv);
  CUmemAllocationProp prop = shareable();
  size_t grain = 0;
  CK(cuMemGetAllocationGranularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  if (!is_first) {
    second();
    return 0;
  }
  int supported = 0;
  CK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0));
  printf("file descriptors: %d\n", supported);
  first(child, 2 * grain);
  return 0;
}
