// Calls the functions of driver.c: caller CALLS.
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int cuDriverGetVersion(int *), cuMemcpyHtoD_v2(unsigned long long, const void *, size_t),
    cuMemcpy2D_v2(const void *), cuCtxSynchronize(void);
int cuEventSynchronize(void *), cuInit(unsigned);

__attribute__((noinline)) static int slow_caller(void) { return cuCtxSynchronize() + 1; }

int main(int argc, char **argv) {
  int n = argc > 1 ? atoi(argv[1]) : 1, v;
  char copy[128], byte;
  size_t width = 64, height = 3;
  memset(copy, 0, sizeof copy);
  memcpy(copy + 112, &width, 8); // CUDA_MEMCPY2D: WidthInBytes, Height
  memcpy(copy + 120, &height, 8);
  for (int i = 0; i < n; i++) cuDriverGetVersion(&v);
  for (int i = 0; i < n; i++) cuMemcpyHtoD_v2(1, copy, 100);
  for (int i = 0; i < n; i++) cuMemcpy2D_v2(copy);
  cuInit(3);
  slow_caller();
  for (int i = 0; i < 1000; i++) syscall(SYS_getppid);
  int zero = open("/proc/self/stat", O_RDONLY);
  for (int i = 0; i < 10; i++)
    if (read(zero, &byte, 1) != 1) return 1;
  pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < 7; i++) cuDriverGetVersion(&v);
    return 0;
  }
  waitpid(child, NULL, 0);
  puts("waiting");
  fflush(stdout);
  cuEventSynchronize(NULL);
  return 0;
}
