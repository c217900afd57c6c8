// cuInit while there is no server, and again when there is one: reads the line that says so from its standard input.
#include "check.h"

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  int version = 0, count = 0;
  SHOW(cuInit(0));
  SHOW(cuDeviceGetCount(&count));
  printf("waiting\n");
  getchar();
  SHOW(cuInit(0));
  SHOW(cuDriverGetVersion(&version));
  SHOW(cuDeviceGetCount(&count));
  printf("%d devices\n", count);
  return 0;
}
