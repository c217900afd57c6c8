// A CUDA program for pods: it says what GPU it has, writes to it, reads back, and holds on to it where it is told to.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *lib;

#define CALL(name, ...) \
  do { \
    int (*f)() = (int (*)())dlsym(lib, name); \
    int rc = f ? f(__VA_ARGS__) : -1; \
    if (rc != 0) { \
      printf("%s: %d\n", name, rc); \
      exit(1); \
    } \
  } while (0)

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  lib = dlopen("libcuda.so.1", RTLD_NOW);
  if (lib == NULL) {
    printf("%s\n", dlerror());
    return 1;
  }
  int count = 0, device = 0;
  char name[100] = "";
  void *context = NULL;
  size_t left = 0, all = 0;
  unsigned long long at = 0;
  char wrote[1 << 16], read[1 << 16];
  memset(wrote, 7, sizeof wrote);
  CALL("cuInit", 0);
  CALL("cuDeviceGetCount", &count);
  CALL("cuDeviceGet", &device, 0);
  CALL("cuDeviceGetName", name, (int)sizeof name, device);
  CALL("cuDevicePrimaryCtxRetain", &context, device);
  CALL("cuCtxSetCurrent", context);
  CALL("cuMemGetInfo_v2", &left, &all);
  CALL("cuMemAlloc_v2", &at, (size_t)(argc > 1 ? strtoull(argv[1], NULL, 10) << 20 : sizeof wrote));
  CALL("cuMemcpyHtoD_v2", at, (const void *)wrote, sizeof wrote);
  CALL("cuMemcpyDtoH_v2", (void *)read, at, sizeof read);
  printf("gpus=%d memory=%zu same=%d name=%s\n", count, all >> 20, memcmp(wrote, read, sizeof wrote) == 0, name);
  for (int n = 1; argc > 1; n++) {
    sleep(1);
    CALL("cuMemcpyDtoH_v2", (void *)read, at, sizeof read);
    printf("round %d\n", n);
  }
  return 0;
}
