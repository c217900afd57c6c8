// Forks: before the driver is used both sides may use it; after cuInit the child is told NOT_INITIALIZED, and nothing
// hangs.
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

static int compute(void) { // 0 when right
  CUdevice dev;
  CUcontext c;
  CUdeviceptr d;
  int v = 0;
  if (cuInit(0) || cuDeviceGet(&dev, 0) || cuDevicePrimaryCtxRetain(&c, dev) || cuCtxSetCurrent(c) || cuMemAlloc(&d, 4))
    return 1;
  if (cuMemsetD32(d, 0xC0FFEE, 1) || cuMemcpyDtoH(&v, d, 4)) return 2;
  return v == 0xC0FFEE ? 0 : 3;
}

static void child(const char *what, int (*f)(void)) {
  fflush(stdout);
  pid_t p = fork();
  if (!p) {
    alarm(60);
    _exit(f());
  }
  int status = 0;
  waitpid(p, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: child ended with status %x", what, status);
  printf("%s ok\n", what);
}

static int refused(void) {
  int n, got[5];
  CUdeviceptr d;
  CUcontext c;
  got[0] = cuInit(0);
  got[1] = cuDeviceGetCount(&n);
  got[2] = cuMemAlloc(&d, 4);
  got[3] = cuCtxSynchronize();
  got[4] = cuDevicePrimaryCtxRetain(&c, 0);
  for (int i = 0; i < 5; i++)
    if (got[i] != CUDA_ERROR_NOT_INITIALIZED) {
      fprintf(stderr, "call %d in the child: %d\n", i, got[i]);
      return 1;
    }
  return 0;
}
static int nothing(void) { return 0; }

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  (void)argc, (void)argv;
  child("before init", compute);
  child("before init again", compute);
  int version;
  CK(cuDriverGetVersion(&version));
  child("after the version was asked for", compute);
  CHECK(compute() == 0, "parent computes wrongly");
  child("after init", refused);
  child("after init, unused", nothing);
  CHECK(compute() == 0, "parent computes wrongly after its children");
  for (int i = 0; i < 20; i++) child("again", i % 2 ? refused : nothing);
  printf("fork ok\n");
  return 0;
}
