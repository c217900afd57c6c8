// One client of NVIDIA's MPS, or of the GPU without it; mps.sh starts several and says what it looks for.
//
//   mps see                what this process sees: multiprocessors, free and all memory in MiB, whether MPS serves it
//   mps work SECONDS       launches kernels of about 100 us one after the other; prints how many, and the first error
//   mps fault              a kernel writes where nothing is
//   mps fill               takes memory in pieces of 64 MiB until there is no more; prints how much in MiB
//   mps spin SECONDS       one kernel that takes so long
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <cuda_runtime.h>

__global__ void some(long long cycles) {
  for (long long began = clock64(); clock64() - began < cycles;) {
  }
}
__global__ void wrong(int *p) { *p = 1; }

static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static int say(const char *what, cudaError_t e) {
  printf("%s: %d %s\n", what, (int)e, cudaGetErrorName(e));
  return e != cudaSuccess;
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  const char *how = argc > 1 ? argv[1] : "see";
  double seconds = argc > 2 ? atof(argv[2]) : 1;
  double began = now();
  cudaError_t e = cudaFree(0);
  if (e) return say("start", e);
  printf("started in %.0f ms\n", (now() - began) * 1e3);
  int clock = 0, sms = 0;
  cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, 0); // kHz
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
  if (!strcmp(how, "see")) {
    size_t free = 0, all = 0;
    int mps = -1;
    cudaMemGetInfo(&free, &all);
    cudaDeviceGetAttribute(&mps, cudaDevAttrMpsEnabled, 0);
    printf("%d multiprocessors, %zu of %zu MiB free, MPS %d\n", sms, free >> 20, all >> 20, mps);
  } else if (!strcmp(how, "work")) {
    long n = 0;
    double longest = 0;
    for (double end = now() + seconds; !e && now() < end; n++) {
      double one = now();
      some<<<1, 32>>>(clock / 10); // 100 us at the full clock
      e = cudaDeviceSynchronize();
      if (now() - one > longest) longest = now() - one;
    }
    printf("%ld kernels, %.0f a second, the longest took %.1f ms, ", n, n / seconds, longest * 1e3);
    return say("then", e);
  } else if (!strcmp(how, "fault")) {
    wrong<<<1, 1>>>((int *)0x10);
    return say("fault", cudaDeviceSynchronize());
  } else if (!strcmp(how, "fill")) {
    size_t mib = 0;
    for (void *p; !(e = cudaMalloc(&p, 64 << 20)); mib += 64) {
    }
    printf("%zu MiB, ", mib);
    say("then", e);
  } else if (!strcmp(how, "spin")) {
    some<<<1, 32>>>((long long)(seconds * clock * 1e3));
    return say("spin", cudaDeviceSynchronize());
  }
  return 0;
}
