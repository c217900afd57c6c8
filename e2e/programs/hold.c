// hold FOLDER MIB [loop]: takes memory, prints "ready", and keeps it until standard input ends. With "loop" it calls
// the driver all the time instead and prints the first error. Prints "free N" first: the bytes that were free before.
#include "check.h"
#include <unistd.h>

int main(int argc, char **argv) {
  start(argc, argv);
  size_t mib = argc > 2 ? strtoul(argv[2], NULL, 10) : 64, before, total;
  CUdeviceptr d;
  CK(cuMemGetInfo(&before, &total));
  printf("free %zu\n", before);
  if (mib) {
    CK(cuMemAlloc(&d, mib << 20));
    CK(cuMemsetD8(d, 1, mib << 20));
  }
  CK(cuCtxSynchronize());
  printf("ready\n");
  if (argc > 3) {
    CUresult r;
    int v;
    do
      if (!(r = cuMemcpyDtoH(&v, d, 4))) r = cuCtxSynchronize();
    while (!r);
    printf("error %d\n", (int)r);
    printf("then %d %d %d\n", (int)cuCtxSynchronize(), (int)cuMemAlloc(&d, 64), (int)cuMemsetD8(d, 0, 1));
    return 0;
  }
  char c;
  while (read(0, &c, 1) > 0) {
  }
  return 0;
}
