// An assertion that fails on the device: the error, what comes after it, and the text on standard error.
#include "check.cuh"
#include <cassert>
#include <unistd.h>

__global__ void check(int x) { assert(x > 3 && "as it must be"); }

int main() {
  check<<<1, 1>>>(4);
  CK(cudaDeviceSynchronize());
  printf("holds\n");
  fflush(stdout);
  FILE *text = tmpfile();
  int own = dup(2);
  dup2(fileno(text), 2);
  check<<<1, 2>>>(3);
  cudaError_t first = cudaDeviceSynchronize(), second = cudaDeviceSynchronize();
  cudaError_t third = cudaFree(nullptr);
  fflush(stderr);
  dup2(own, 2);
  printf("%s %s %s\n", cudaGetErrorName(first), cudaGetErrorName(second), cudaGetErrorName(third));
  rewind(text);
  char line[1000];
  int lines = 0;
  while (fgets(line, sizeof line, text))
    if (strstr(line, "Assertion")) {
      const char *base = strrchr(line, '/');
      printf("%s", base ? base + 1 : line);
      lines++;
    }
  printf("%d lines\n", lines);
  return 0;
}
