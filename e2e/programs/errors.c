// What the driver answers to wrong calls: at the call, or at the next synchronisation.
#include "check.h"

int main(int argc, char **argv) {
  start(argc, argv);
  CUmodule m = load("kernels.ptx");
  CUfunction add = function(m, "vector_add"), reduce = function(m, "reduce_sum"), spin = function(m, "spin");
  CUdeviceptr d;
  int n = 100, v;
  CK(cuMemAlloc(&d, 4096));
#define SUM(threads, shared) cuLaunchKernel(reduce, 1, 1, 1, threads, 1, 1, shared, 0, ARGS(&d, &d, &n), NULL)
#define TRY(f, gx, gy, gz, bx, by, bz, shared) \
  cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, 0, ARGS(&d, &d, &d, &n), NULL)
  SHOW(TRY(add, 0, 1, 1, 32, 1, 1, 0));
  SHOW(TRY(add, 1, 0, 1, 32, 1, 1, 0));
  SHOW(TRY(add, 1, 1, 1, 0, 1, 1, 0));
  SHOW(TRY(add, 1, 1, 1, 1025, 1, 1, 0));
  SHOW(TRY(add, 1, 1, 1, 32, 33, 1, 0));
  SHOW(TRY(add, 1, 1, 1, 1, 1, 65, 0));
  SHOW(TRY(add, 1, 65536, 1, 32, 1, 1, 0));
  SHOW(TRY(add, 1, 1, 65536, 32, 1, 1, 0));
  SHOW(SUM(32, 1 << 20));
  SHOW(SUM(32, 50000));
  CK(cuCtxSynchronize());
  // More shared memory than usual has to be asked for.
  SHOW(cuFuncSetAttribute(reduce, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60000));
  CK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, reduce));
  printf("shared memory limit now %d\n", v);
  CK(cuMemsetD8(d, 0, 4096));
  SHOW(SUM(64, 60000));
  CK(cuCtxSynchronize());

  SHOW(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, 0, NULL, NULL));
  SHOW(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, 0, NULL, NULL));
  SHOW(cuStreamDestroy(NULL));
  SHOW(cuEventRecord(NULL, 0));
  SHOW(cuEventDestroy(NULL));
  SHOW(cuModuleUnload(NULL));
  SHOW(cuMemAlloc(NULL, 100));
  SHOW(cuMemcpyHtoD(0, &v, 4));
  SHOW(cuMemcpyDtoH(&v, 64, 4));
  SHOW(cuMemsetD32(d + 1, 0, 4));
  SHOW(cuMemFree(0x1000));
  SHOW(cuMemFreeHost(&v));
  CUevent e;
  CUstream s;
  SHOW(cuEventCreate(&e, 0x1000));
  SHOW(cuStreamCreate(&s, 0x1000));
  SHOW(cuCtxSynchronize());

  // Contexts: none current, popped, destroyed.
  CUcontext none = NULL, popped;
  CK(cuCtxSetCurrent(none));
  SHOW(cuMemAlloc(&d, 16));
  SHOW(cuCtxSynchronize());
  SHOW(cuCtxPopCurrent(&popped));
  CK(cuCtxPushCurrent(context));
  CK(cuCtxPopCurrent(&popped));
  CHECK(popped == context, "popped another context");
  CK(cuCtxSetCurrent(context));
  CK(cuCtxSynchronize());
  printf("errors ok\n");
  return 0;
}
