// What is too much: launches beyond the limits of a kernel or a device, and memory that is not there. Nothing of it
// harms the context.
#include "check.h"

static const char *ptx =
  ".version 7.0\n.target sm_70\n.address_size 64\n"
  ".visible .entry nothing() { ret; }\n"
  ".visible .entry most() .maxntid 64, 2, 1 { ret; }\n"
  ".visible .entry exactly() .reqntid 32, 2, 1 { ret; }\n"
  ".visible .entry shared40() { .shared .align 16 .b8 mine[40960]; .reg .u32 %r; mov.u32 %r, %tid.x; "
  "st.volatile.shared.u32 [mine], %r; ret; }\n"
  ".visible .entry one(.param .u64 p) { ret; }\n";

int main(int argc, char **argv) {
  start(argc, argv);
  CUmodule m;
  CK(cuModuleLoadData(&m, ptx));
  CUfunction nothing = function(m, "nothing"), most = function(m, "most"), exactly = function(m, "exactly"),
      shared40 = function(m, "shared40"), one = function(m, "one");
  CUfunction none;
  int v;
#define GO(f, gx, gy, gz, bx, by, bz, shared) SHOW(cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, 0, NULL, NULL))
  GO(nothing, 1, 1, 1, 1024, 1, 1, 0);
  GO(nothing, 1, 1, 1, 1, 1024, 1, 0);
  GO(nothing, 1, 1, 1, 1, 1, 64, 0);
  GO(nothing, 1, 1, 1, 1025, 1, 1, 0);
  GO(nothing, 1, 1, 1, 1, 1025, 1, 0);
  GO(nothing, 1, 1, 1, 1, 1, 65, 0);
  GO(nothing, 1, 1, 1, 33, 32, 1, 0);
  GO(nothing, 1, 1, 1, 0x10000, 0x10000, 1, 0);
  GO(nothing, 1, 65535, 1, 1, 1, 1, 0);
  GO(nothing, 1, 65536, 1, 1, 1, 1, 0);
  GO(nothing, 1, 1, 65536, 1, 1, 1, 0);
  GO(nothing, 0x80000000u, 1, 1, 1, 1, 1, 0);
  GO(nothing, 0, 1, 1, 1, 1, 1, 0);
  GO(nothing, 1, 1, 1, 1, 0, 1, 0);
  GO(most, 1, 1, 1, 64, 2, 1, 0);
  GO(most, 1, 1, 1, 32, 4, 1, 0);
  GO(most, 1, 1, 1, 128, 1, 1, 0);
  GO(most, 1, 1, 1, 129, 1, 1, 0);
  GO(exactly, 1, 1, 1, 32, 2, 1, 0);
  WANT(cuLaunchKernel(exactly, 1, 1, 1, 64, 1, 1, 0, 0, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
  WANT(cuLaunchKernel(exactly, 1, 1, 1, 32, 1, 1, 0, 0, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
  CK(cuLaunchKernel(exactly, 2, 1, 1, 32, 2, 1, 0, 0, NULL, NULL));
  GO(nothing, 1, 1, 1, 1, 1, 1, 49152);
  GO(nothing, 1, 1, 1, 1, 1, 1, 49153);
  GO(shared40, 1, 1, 1, 1, 1, 1, 8192);
  GO(shared40, 1, 1, 1, 1, 1, 1, 8193);
  SHOW(cuFuncSetAttribute(shared40, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
  GO(shared40, 1, 1, 1, 1, 1, 1, 100000);
  GO(shared40, 1, 1, 1, 1, 1, 1, 100001);
  SHOW(cuFuncSetAttribute(shared40, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448 - 40960));
  SHOW(cuFuncSetAttribute(shared40, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448 - 40959));
  SHOW(cuFuncSetAttribute(nothing, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, -1));
  SHOW(cuFuncSetAttribute(nothing, CU_FUNC_ATTRIBUTE_NUM_REGS, 16));
  SHOW(cuFuncSetAttribute(nothing, CU_FUNC_ATTRIBUTE_MAX, 16));
  // Parameters that are missing, and given in two ways.
  SHOW(cuLaunchKernel(one, 1, 1, 1, 1, 1, 1, 0, 0, NULL, NULL));
  CUdeviceptr p = 0;
  size_t size = 8;
  void *both[] = {&p},
      *packed[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &p, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  SHOW(cuLaunchKernel(one, 1, 1, 1, 1, 1, 1, 0, 0, NULL, packed));
  SHOW(cuLaunchKernel(one, 1, 1, 1, 1, 1, 1, 0, 0, both, packed));
  // More blocks than fit at once cannot wait for each other.
  SHOW(cuLaunchCooperativeKernel(nothing, 8, 1, 1, 32, 1, 1, 0, 0, NULL));
  SHOW(cuLaunchCooperativeKernel(nothing, 1000000, 1, 1, 1024, 1, 1, 0, 0, NULL));
  SHOW(cuCtxSynchronize());

  CUdeviceptr d;
  void *h;
  size_t pitch;
  CUarray array;
  CUDA_ARRAY_DESCRIPTOR wide = {1u << 20, 1u << 20, CU_AD_FORMAT_FLOAT, 4}, odd = {64, 64, CU_AD_FORMAT_FLOAT, 3},
      nil = {0, 64, CU_AD_FORMAT_FLOAT, 1};
  SHOW(cuMemAlloc(&d, 0));
  SHOW(cuMemAlloc(&d, (size_t)1 << 50));
  SHOW(cuMemAlloc(&d, ~(size_t)0));
  SHOW(cuMemAlloc(&d, (size_t)1 << 62));
  SHOW(cuMemAllocPitch(&d, &pitch, (size_t)1 << 40, 1 << 20, 4));
  SHOW(cuMemAllocPitch(&d, &pitch, 0, 1, 4));
  SHOW(cuMemAllocPitch(&d, &pitch, 100, 1, 5));
  SHOW(cuMemAllocAsync(&d, (size_t)1 << 50, 0));
  d = 7;
  SHOW(cuMemAllocAsync(&d, 0, 0));
  printf("  none: %d\n", d == 0);
  SHOW(cuMemAllocHost(&h, (size_t)1 << 50));
  SHOW(cuMemHostAlloc(&h, (size_t)1 << 50, 0));
  h = &v;
  SHOW(cuMemHostAlloc(&h, 0, 0));
  printf("  none: %d\n", h == NULL);
  h = &v;
  SHOW(cuMemAllocHost(&h, 0));
  printf("  none: %d\n", h == NULL);
  SHOW(cuMemHostAlloc(&h, 64, 0x100));
  SHOW(cuArrayCreate(&array, &wide));
  SHOW(cuArrayCreate(&array, &odd));
  SHOW(cuArrayCreate(&array, &nil));
  CUmemAllocationProp prop = {CU_MEM_ALLOCATION_TYPE_PINNED, 0, {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemGenericAllocationHandle piece;
  SHOW(cuMemCreate(&piece, (size_t)1 << 50, &prop, 0));
  SHOW(cuMemCreate(&piece, 4096, &prop, 0));
  SHOW(cuMemCreate(&piece, 0, &prop, 0));
  SHOW(cuMemAddressReserve(&d, (size_t)1 << 60, 0, 0, 0));
  SHOW(cuMemAddressReserve(&d, 4096, 0, 0, 0));
  // More than all of it: what is there stays usable.
  size_t rest, total;
  CUdeviceptr more;
  CK(cuMemGetInfo(&rest, &total));
  CK(cuMemAlloc(&d, 1 << 20));
  SHOW(cuMemAlloc(&more, total + 1));
  SHOW(cuMemAllocAsync(&more, total + 1, 0));
  v = 7;
  SHOW(cuMemcpyHtoD(d, &v, 4));
  SHOW(cuMemcpyDtoH(&v, d, 4));
  SHOW(cuMemFree(d));
  SHOW(cuMemFree(d));
  SHOW(cuMemFree(d + 512));
  SHOW(cuModuleGetFunction(&none, m, "missing"));
  SHOW(cuModuleLoadData(&m, ".version 7.0\n.target sm_70\n.address_size 64\n.entry wrong() { nonsense; }\n"));
  SHOW(cuModuleLoadData(&m, ".version 7.0\n.target sm_900\n.address_size 64\n"));
  SHOW(cuModuleLoadData(&m, ".version 99.0\n.target sm_70\n.address_size 64\n"));
  SHOW(cuModuleLoadData(&m,
      "\177ELF nothing of the kind, and a good deal longer than a header of sixty-four bytes would be"));
  SHOW(cuModuleLoadData(&m, NULL));
  SHOW(cuModuleLoad(&m, "/nonexistent"));
  SHOW(cuCtxSynchronize());
  return 0;
}
