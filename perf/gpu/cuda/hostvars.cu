// nvcc: -lnvrtc -lcuda
// Code that refers to variables of the host program by name: their addresses are given when a module or a library is
// loaded.
#include "check.cuh"
#include <cuda.h>
#include <nvrtc.h>

static const char *source =
    "extern __device__ unsigned counter; extern __device__ float table[4];\n"
    "extern \"C\" __global__ void bump() { counter += 1; table[threadIdx.x] *= 2; }\n";

#define DRIVER(call) do { CUresult r = (call); if (r) { const char *n = "?"; cuGetErrorName(r, &n); \
    printf("%s = %s\n", #call, n); exit(1); } } while (0)

int main() {
  nvrtcProgram p;
  const char *options[] = {"-arch=sm_90", "-rdc=true"};
  nvrtcCreateProgram(&p, source, "hostvars.cu", 0, nullptr, nullptr);
  if (nvrtcCompileProgram(p, 2, options)) FAIL("not compiled");
  size_t n;
  nvrtcGetCUBINSize(p, &n);
  std::vector<char> image(n);
  nvrtcGetCUBIN(p, image.data());
  CK(cudaFree(nullptr));

  unsigned *counter;
  float *table;
  CK(cudaHostAlloc(&counter, sizeof *counter, cudaHostAllocMapped));
  CK(cudaHostAlloc(&table, 4 * sizeof *table, cudaHostAllocMapped));
  *counter = 41;
  for (int i = 0; i < 4; i++) table[i] = i + 0.5f;
  const char *names[] = {"counter", "table"};
  void *addresses[] = {counter, table};
  CUjit_option jit[] = {CU_JIT_GLOBAL_SYMBOL_NAMES, CU_JIT_GLOBAL_SYMBOL_ADDRESSES, CU_JIT_GLOBAL_SYMBOL_COUNT};
  void *values[] = {names, addresses, (void *)2};

  CUmodule m;
  CUfunction f;
  CUlibrary l;
  CUkernel k;
  DRIVER(cuModuleLoadDataEx(&m, image.data(), 3, jit, values));
  DRIVER(cuModuleGetFunction(&f, m, "bump"));
  DRIVER(cuLaunchKernel(f, 1, 1, 1, 4, 1, 1, 0, nullptr, nullptr, nullptr));
  DRIVER(cuCtxSynchronize());
  printf("module: counter changed %d, table %g %g %g %g\n", *counter != 41, table[0], table[1], table[2], table[3]);
  DRIVER(cuModuleUnload(m));
  *counter = 7; // the program writes, kernels see it
  DRIVER(cuLibraryLoadData(&l, image.data(), jit, values, 3, nullptr, nullptr, 0));
  DRIVER(cuLibraryGetKernel(&k, l, "bump"));
  DRIVER(cuLaunchKernel((CUfunction)k, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  DRIVER(cuCtxSynchronize());
  printf("library: counter %u, table %g %g %g %g\n", *counter, table[0], table[1], table[2], table[3]);
  DRIVER(cuLibraryUnload(l));
  return 0;
}
