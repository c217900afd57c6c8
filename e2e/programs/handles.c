// Handles that are none, of the wrong kind, or destroyed: scuda always answers an error, where a driver may crash.
#include "check.h"

int main(int argc, char **argv) {
  start(argc, argv);
  CUmodule m = load("kernels.ptx");
  CUstream s, s2;
  CUevent e;
  CK(cuStreamCreate(&s, 0));
  CK(cuEventCreate(&e, 0));
  uintptr_t wild[] = {3, 64, 0x1234568, 0xdead0, ~(uintptr_t)0, (uintptr_t)&s, (uintptr_t)s + 8,
                      (uintptr_t)s + 64000000, (uintptr_t)main};
  for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
    int n;
    WANT(cuStreamQuery((CUstream)wild[i]), CUDA_ERROR_INVALID_HANDLE);
    WANT(cuStreamSynchronize((CUstream)wild[i]), CUDA_ERROR_INVALID_HANDLE);
    WANT(cuEventQuery((CUevent)wild[i]), CUDA_ERROR_INVALID_HANDLE);
    WANT(cuEventRecord((CUevent)wild[i], 0), CUDA_ERROR_INVALID_HANDLE);
    WANT(cuFuncGetAttribute(&n, CU_FUNC_ATTRIBUTE_NUM_REGS, (CUfunction)wild[i]), CUDA_ERROR_INVALID_HANDLE);
    WANT(cuLaunchKernel((CUfunction)wild[i], 1, 1, 1, 1, 1, 1, 0, 0, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
  }
  // A handle of another kind.
  WANT(cuStreamQuery((CUstream)e), CUDA_ERROR_INVALID_HANDLE);
  WANT(cuEventQuery((CUevent)s), CUDA_ERROR_INVALID_HANDLE);
  WANT(cuEventQuery((CUevent)m), CUDA_ERROR_INVALID_HANDLE);
  // A destroyed one.
  CK(cuStreamDestroy(s));
  WANT(cuStreamQuery(s), CUDA_ERROR_INVALID_HANDLE);
  CK(cuEventDestroy(e));
  WANT(cuEventQuery(e), CUDA_ERROR_INVALID_HANDLE);
  CUlibrary library;
  CUdeviceptr counter;
  size_t bytes;
  CK(cuLibraryLoadData(&library, ".version 6.0\n.target sm_50\n.address_size 64\n.visible .global .u32 counter;\n",
                       NULL, NULL, 0, NULL, NULL, 0));
  CK(cuLibraryGetGlobal(&counter, &bytes, library, "counter"));
  CK(cuLibraryUnload(library));
  WANT(cuLibraryGetGlobal(&counter, &bytes, library, "counter"), CUDA_ERROR_INVALID_HANDLE);
  CK(cuStreamCreate(&s2, 0));
  CK(cuStreamSynchronize(s2));
  CK(cuStreamDestroy(s2));
  CK(cuCtxSynchronize());
  printf("handles ok\n");
  return 0;
}
