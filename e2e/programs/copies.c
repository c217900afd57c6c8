// Copies of every size and form, memsets, memory information, out of memory.
#define _GNU_SOURCE
#include "check.h"

#include <sched.h>
#include <sys/mman.h>

static const size_t sizes[] = {0, 1, 2, 3, 4, 7, 8, 9, 63, 64, 1000, 4095, 4096, 4097, 65535, 65536, 65537, 131072,
                               1048575, 1048576, 1048577, 3145729, 16777221, 67108864};
enum { COUNT = sizeof sizes / sizeof *sizes };

// Registered memory of the program may lie, by chance, where the GPU's memory has its address too. Calls that say which
// of the two they mean get that; the others mean the GPU's. Natively no address is both.
static int released;
static void await_release(void *unused) {
  (void)unused;
  while (!__atomic_load_n(&released, __ATOMIC_ACQUIRE)) sched_yield();
}

static void check_both(CUstream s) {
  enum { N = 1 << 16, HALF = N / 2, TRIES = 32 }; // the GPU has the first half
  CUdeviceptr tried[TRIES], e, f, at = 0;
  unsigned char *here = MAP_FAILED, *was = malloc(N), *got = malloc(N);
  int n = 0;
  CK(cuMemAlloc(&e, N));
  CK(cuMemAlloc(&f, N));
  while (n < TRIES && here == MAP_FAILED) {
    CK(cuMemAlloc(&tried[n], HALF + 4096));
    at = (tried[n++] + 4095) & ~(CUdeviceptr)4095;
    here = mmap((void *)at, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (here != MAP_FAILED && (CUdeviceptr)here != at) munmap(here, N), here = MAP_FAILED;
  }
  if (here != MAP_FAILED) {
    CK(cuMemHostRegister(here, N, 0));
    fill(was, N, 7);
    memcpy(here, was, N);
    CK(cuMemsetD8(at, 0x55, HALF));
    CHECK(!memcmp(here, was, N), "a memset of the GPU's memory changed the program's");
    CK(cuMemcpyHtoD(e, here, N));
    CK(cuMemcpyDtoH(got, e, N));
    CHECK(!memcmp(got, was, N), "an upload did not take the program's memory");
    CK(cuMemcpy(e, at, HALF)); // the GPU's at both ends
    CK(cuMemcpyDtoH(here, e, N));
    memset(got, 0x55, HALF);
    CHECK(!memcmp(got, here, N), "a unified copy did not take the GPU's memory");
    // It is page-locked still: what is to come from the GPU goes up again in the order of the stream.
    CK(cuMemsetD8(f, 0, N));
    CK(cuLaunchHostFunc(s, await_release, NULL));
    CK(cuMemcpyDtoHAsync(here, f, N, s));
    CK(cuMemcpyHtoDAsync(e, here, N, s));
    __atomic_store_n(&released, 1, __ATOMIC_RELEASE);
    CK(cuStreamSynchronize(s));
    CK(cuMemcpyDtoH(got, e, N));
    CHECK(!got[0] && !memcmp(got, got + 1, N - 1), "an upload went ahead of the download that its source waits for");
    CUmemorytype type = 0;
    unsigned flags;
    CK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
    CHECK(type == CU_MEMORYTYPE_DEVICE, "the address is of type %d", type);
    CK(cuMemHostGetFlags(&flags, here));
    CK(cuMemHostUnregister(here));
    CK(cuMemsetD8(at, 0x66, HALF));
    munmap(here, N);
  }
  while (n) CK(cuMemFree(tried[--n]));
  CK(cuMemFree(e));
  CK(cuMemFree(f));
  free(was), free(got);
}

int main(int argc, char **argv) {
  start(argc, argv);
  CUstream s;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  size_t largest = sizes[COUNT - 1];
  unsigned char *src = malloc(largest + 64), *dst = malloc(largest + 64), *pin = NULL, *pin2 = NULL;
  CK(cuMemAllocHost((void **)&pin, largest + 64));
  CK(cuMemHostAlloc((void **)&pin2, largest + 64, CU_MEMHOSTALLOC_PORTABLE));
  CUdeviceptr d, e;
  CK(cuMemAlloc(&d, largest + 64));
  CK(cuMemAlloc(&e, largest + 64));
  for (int i = 0; i < COUNT; i++) {
    size_t n = sizes[i];
    for (int offset = 0; offset < 6; offset += 5) {
      fill(src + offset, n, n + offset);
      memset(dst, 0xEE, n + 64);
      // synchronous, pageable
      CK(cuMemcpyHtoD(d + offset, src + offset, n));
      CK(cuMemcpyDtoD(e, d + offset, n));
      CK(cuMemcpyDtoH(dst + offset, e, n));
      CHECK(!memcmp(src + offset, dst + offset, n), "sync copy of %zu bytes at %d", n, offset);
      CHECK(dst[offset + n] == 0xEE && (!offset || dst[offset - 1] == 0xEE), "copy of %zu bytes wrote too much", n);
      // asynchronous, pinned: both ways, then the source is changed after the copy is done
      memcpy(pin + offset, src + offset, n);
      memset(pin2, 0, n + offset);
      CK(cuMemcpyHtoDAsync(d + offset, pin + offset, n, s));
      CK(cuMemcpyDtoDAsync(e + offset, d + offset, n, s));
      CK(cuMemcpyDtoHAsync(pin2 + offset, e + offset, n, s));
      CK(cuStreamSynchronize(s));
      CHECK(!memcmp(src + offset, pin2 + offset, n), "async pinned copy of %zu bytes at %d", n, offset);
      // asynchronous, pageable: the source may be overwritten as soon as the call returns
      memcpy(dst + offset, src + offset, n);
      CK(cuMemcpyHtoDAsync(e + offset, dst + offset, n, s));
      memset(dst, 0x55, n + 64);
      CK(cuMemcpyDtoHAsync(dst + offset, e + offset, n, s));
      CK(cuStreamSynchronize(s));
      CHECK(!memcmp(src + offset, dst + offset, n), "async pageable copy of %zu bytes at %d", n, offset);
      // by unified addresses
      memset(dst, 0, n + 64);
      CK(cuMemcpy((CUdeviceptr)(uintptr_t)(dst + offset), d + offset, n));
      CHECK(!memcmp(src + offset, dst + offset, n), "cuMemcpy of %zu bytes at %d", n, offset);
    }
    printf("%zu bytes %016llx\n", n, (unsigned long long)digest(src + 5, n));
  }

  CK(cuMemsetD8(d, 0xAB, 1001));
  CK(cuMemsetD16(d + 1002, 0xCDEF, 500));
  CK(cuMemsetD32(d + 2004, 0x12345678, 250));
  CK(cuMemsetD8Async(d + 3004, 0x11, 5, s));
  CK(cuMemsetD32Async(d + 3012, 0x22222222, 3, s));
  CK(cuStreamSynchronize(s));
  CK(cuMemcpyDtoH(dst, d, 3024));
  CHECK(dst[0] == 0xAB && dst[1000] == 0xAB && dst[1002] == 0xEF && dst[2001] == 0xCD && dst[2004] == 0x78 &&
        dst[3003] == 0x12 && dst[3008] == 0x11 && dst[3023] == 0x22, "memsets");
  CK(cuMemsetD2D8(d, 100, 0x77, 10, 5));
  CK(cuMemcpyDtoH(dst, d, 500));
  CHECK(dst[9] == 0x77 && dst[10] == 0xAB && dst[409] == 0x77 && dst[410] == 0xAB, "cuMemsetD2D8");
  printf("memsets ok\n");

  // A registered range of the program's own memory.
  char *mine = aligned_alloc(4096, 1 << 20);
  fill(mine, 1 << 20, 3);
  CK(cuMemHostRegister(mine, 1 << 20, 0));
  CK(cuMemcpyHtoDAsync(d, mine, 1 << 20, s));
  CK(cuMemcpyDtoHAsync(pin, d, 1 << 20, s));
  CK(cuStreamSynchronize(s));
  CHECK(!memcmp(mine, pin, 1 << 20), "registered memory");
  WANT(cuMemHostRegister(mine, 1 << 20, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CK(cuMemHostUnregister(mine));
  WANT(cuMemHostUnregister(mine), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);

  size_t free0, free1, total;
  CUdeviceptr big, base;
  CK(cuMemGetInfo(&free0, &total));
  CK(cuMemAlloc(&big, 256 << 20));
  CK(cuMemGetInfo(&free1, &total)); // others may use the GPU as well, so the numbers are only plausible
  CHECK(free1 > 0 && free1 <= total && free0 <= total && total > 512 << 20, "%zu, then %zu of %zu bytes are free",
        free0, free1, total);
  size_t size;
  CK(cuMemGetAddressRange(&base, &size, big + 12345));
  CHECK(base == big && size == 256 << 20, "address range");
  CK(cuMemFree(big));
  WANT(cuMemAlloc(&big, (size_t)1 << 46), CUDA_ERROR_OUT_OF_MEMORY);
  WANT(cuMemAlloc(&big, 0), CUDA_ERROR_INVALID_VALUE);
  WANT(cuMemFree(d + 8), CUDA_ERROR_INVALID_VALUE);
  CK(cuMemFree(0));
  CK(cuMemFree(d));
  CK(cuMemFree(e));
  CK(cuMemFreeHost(pin));
  CK(cuMemFreeHost(pin2));
  check_both(s);
  CK(cuStreamDestroy(s));
  printf("memory ok\n");
  return 0;
}
