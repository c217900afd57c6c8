// Prints what the first calls answer; used where no server can be reached, or where there is no GPU at all.
#include "check.h"
#include <dlfcn.h>

int main(void) {
  int n = -1;
  printf("cuInit = %d\n", (int)cuInit(0));
  printf("cuInit = %d\n", (int)cuInit(0));
  printf("cuDriverGetVersion = %d\n", (int)cuDriverGetVersion(&n));
  printf("cuDeviceGetCount = %d\n", (int)cuDeviceGetCount(&n));
  CUdeviceptr d;
  printf("cuMemAlloc = %d\n", (int)cuMemAlloc(&d, 4));
  return 0;
}
