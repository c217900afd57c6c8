/* Whether the driver keeps to a part of the process's addresses (docs/decisions/0021): takes all others before the
 * driver starts, as a worker of one of several servers would, and says where memory of each kind lies.
 *
 *   windows N OF      leaves the N-th (from 0) of OF windows free, which are where internal/window has them
 *   windows           takes nothing: where the driver puts things by itself
 *
 *   gcc -O1 -I shim/include -o windows perf/gpu/windows.c -L build/lib -l:libcuda.so.1 -Wl,--allow-shlib-undefined
 *
 * Prints a line for each kind, with "outside" where it does not lie in the part. The exit status is 1 then, and where a
 * call fails. */
#define _GNU_SOURCE
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PIECE = 2 << 20 };  /* smaller holes beside what is in use already stay, but where the system offers them */
/* Windows are parts of what lies from low to high. All from begin on is taken, as by server/addresses; when the driver
 * has begun, also what it may want for itself, from room on, and the client's addresses, which it could not use later
 * if it found them taken. */
static const uint64_t begin = 1ull << 32, room = 1ull << 33, room_end = 1ull << 34;
static const uint64_t low = 1ull << 40, high = 0x550000000000ull;
static const uint64_t client = 0x600000000000ull, client_end = 0x700000000000ull;
static uint64_t from, to, taken;
static int failed;

static void take(uint64_t a, uint64_t b) {
  const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  for (uint64_t step; a + PIECE <= b; a += step) {
    for (step = 1ull << 44; step > PIECE && (step > b - a || a % step); step /= 2) {}
    for (;; step /= 2) {
      void *p = mmap((void *)a, step, PROT_NONE, how, -1, 0);
      if (p != MAP_FAILED) taken += step;
      if (p != MAP_FAILED || step <= PIECE) break;
    }
  }
}

/* Libraries and stacks lie above, with holes between them, which the system offers first, also the small ones. What it
 * does not offer stays free: the first stack grows there. */
static void take_offered(void) {
  for (uint64_t size = 1ull << 40; size >= 4096; size /= 2) {
    for (;;) {
      void *p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) break;
      if ((uint64_t)(uintptr_t)p < client_end) {
        munmap(p, size);
        break;
      }
      taken += size;
    }
  }
}

static void say(const char *what, uint64_t at, CUresult r) {
  if (r) {
    printf("%-28s error %d\n", what, (int)r);
    failed = 1;
    return;
  }
  int wrong = to && (at < from || at >= to);
  printf("%-28s %#14llx%s\n", what, (unsigned long long)at, wrong ? "  outside" : "");
  failed |= wrong;
}

static const char ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .global .align 8 .b8 there[4096];\n";

int main(int argc, char **argv) {
  if (argc == 3) {
    uint64_t n = strtoull(argv[1], NULL, 0), parts = strtoull(argv[2], NULL, 0);
    uint64_t size = (parts ? (high - low) / parts : 0) & ~(uint64_t)(PIECE - 1);
    if (n >= parts) return fprintf(stderr, "windows N OF, with N below OF\n"), 2;
    from = low + n * size, to = from + size;
    take(begin, room);
    take(room_end, from);
    take(to, client);
    take_offered();
    printf("free: %#llx to %#llx; %llu GiB taken\n", (unsigned long long)from, (unsigned long long)to,
           (unsigned long long)(taken >> 30));
  }
  CUcontext c = NULL;
  CUresult r = cuInit(0);
  if (!r && to) {
    take(room, room_end);
    take(client, client_end);
  }
  if (!r) r = cuDevicePrimaryCtxRetain(&c, 0);
  if (!r) r = cuCtxSetCurrent(c);
  if (r) return fprintf(stderr, "no context: error %d\n", (int)r), 1;
  CUdeviceptr d = 0;
  uint64_t sizes[] = {1 << 10, 1 << 20, 64 << 20, 4ull << 30};
  for (int i = 0; i < 4; i++) {
    char name[64];
    snprintf(name, sizeof name, "cuMemAlloc, %llu KiB", (unsigned long long)(sizes[i] >> 10));
    r = cuMemAlloc(&d, sizes[i]);
    say(name, d, r);
    uint8_t byte = 0;
    if (!r && ((r = cuMemsetD8(d, 7, sizes[i])) || (r = cuMemcpyDtoH(&byte, d + sizes[i] - 1, 1)) || byte != 7))
      printf("  its end holds %d, error %d\n", byte, (int)r), failed = 1;
  }
  size_t pitch;
  r = cuMemAllocPitch(&d, &pitch, 1000, 1000, 4);
  say("cuMemAllocPitch", d, r);
  r = cuMemAllocManaged(&d, 64 << 20, CU_MEM_ATTACH_GLOBAL);
  say("cuMemAllocManaged, 64 MiB", d, r);
  if (!r) ((volatile uint8_t *)d)[64 << 19] = 1;  /* the processor reaches it */
  void *h = NULL;
  r = cuMemHostAlloc(&h, 64 << 20, CU_MEMHOSTALLOC_DEVICEMAP);
  say("cuMemHostAlloc", (uint64_t)(uintptr_t)h, r);
  if (!r) r = cuMemHostGetDevicePointer(&d, h, 0);
  say("  its device pointer", d, r);
  r = cuMemAddressReserve(&d, 1ull << 30, 0, 0, 0);
  say("cuMemAddressReserve, 1 GiB", d, r);
  r = cuMemAddressReserve(&d, 1ull << 40, 0, 0, 0);
  say("cuMemAddressReserve, 1 TiB", d, r);
  r = cuMemAllocAsync(&d, 64 << 20, NULL);
  if (!r) r = cuStreamSynchronize(NULL);
  say("cuMemAllocAsync, 64 MiB", d, r);
  CUmodule m;
  size_t bytes;
  r = cuModuleLoadData(&m, ptx);
  if (!r) r = cuModuleGetGlobal(&d, &bytes, m, "there");
  say("a module's variable", d, r);
  for (int i = 0; to && i < 3; i++) {  /* room at the client's addresses, as server/executor asks for it */
    uint64_t size = 1ull << 36, at = client + i * size + (i == 1) * (client_end - client) / 2;
    munmap((void *)at, size);
    r = cuMemAddressReserve(&d, size, 0, at, 0);
    printf("%-28s %#14llx%s\n", "at the client's address", (unsigned long long)d, d == at ? "" : "  elsewhere");
    failed |= r || d != at;
  }
  return failed;
}
