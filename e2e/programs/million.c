// Makes 1,000,000 calls, a known number of each function, and prints for each its number and, for one that waits for
// the server, the median by this program's own clock in nanoseconds. With an argument "wait" it prints "ready" first
// and begins when its standard input ends; with "endless" it makes calls until then.
#include <poll.h>
#include <stdlib.h>
#include <time.h>

#include "check.h"

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int less(const void *a, const void *b) {
  return (*(const uint64_t *)a > *(const uint64_t *)b) - (*(const uint64_t *)a < *(const uint64_t *)b);
}

enum { LOCAL = 600000, ATTRIBUTES = 250000, VERSIONS = 100000, MEMSETS = 40000, COPIES = 9000, READS = 500,
       WAITS = 500 };
static uint64_t times[1000];

#define MEDIAN(name, n, call)                                        \
  do {                                                               \
    for (int i = 0; i < (n); i++) {                                  \
      uint64_t from = now();                                         \
      CK(call);                                                   \
      times[i] = now() - from;                                       \
    }                                                                \
    qsort(times, (n), sizeof times[0], less);                        \
    printf("%s %d %llu\n", name, (n), (unsigned long long)times[(n) / 2]); \
  } while (0)

#define MANY(name, n, call)                   \
  do {                                        \
    for (int i = 0; i < (n); i++) CK(call); \
    printf("%s %d 0\n", name, (n));           \
  } while (0)

int main(int argc, char **argv) {
  const char *how = argc > 2 ? argv[2] : "";
  CUdevice device;
  CUcontext context, current;
  CUdeviceptr memory;
  int value;
  static char bytes[256];
  if (*how) {
    CK(cuInit(0));
    puts("ready");
    fflush(stdout);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    if (strcmp(how, "endless") == 0) {
      while (poll(&input, 1, 0) == 0) CK(cuDriverGetVersion(&value));
      return 0;
    }
    poll(&input, 1, -1);
  }
  CK(cuInit(0));
  CK(cuDeviceGet(&device, 0));
  CK(cuDevicePrimaryCtxRetain(&context, device));
  CK(cuCtxSetCurrent(context));
  CK(cuMemAlloc(&memory, sizeof bytes));
  MANY("cuCtxGetCurrent", LOCAL, cuCtxGetCurrent(&current));
  MANY("cuDeviceGetAttribute", ATTRIBUTES, cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device));
  MANY("cuDriverGetVersion", VERSIONS, cuDriverGetVersion(&value));
  MANY("cuMemsetD8_v2", MEMSETS, cuMemsetD8(memory, 1, sizeof bytes));
  MANY("cuMemcpyHtoD_v2", COPIES, cuMemcpyHtoD(memory, bytes, sizeof bytes));
  MEDIAN("cuMemcpyDtoH_v2", READS, cuMemcpyDtoH(bytes, memory, sizeof bytes));
  MANY("cuStreamSynchronize", WAITS, cuStreamSynchronize(0));
  return 0;
}
