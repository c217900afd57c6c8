// Copies and access between the GPUs of one server; with one GPU there is nothing to do.
#include "check.h"

enum { N = 1 << 18 };

// Sets of one GPU's memory, and writes to it, in a stream of the other: the driver wants peer access for them.
static void set_far(CUdeviceptr p, CUcontext other, CUstream far, int can) {
  for (int access = 0; access <= can; access++) {
    CK(cuCtxSetCurrent(other));
    if (access) CK(cuCtxEnablePeerAccess(context, 0));
    for (int i = 0; i < 2; i++) {
      unsigned char got[64];
      CK(cuCtxSetCurrent(i ? other : context));
      CK(cuMemcpyHtoD(p, "________________________________________________________________", sizeof got));
      SHOW(cuMemsetD8Async(p, '1', 8, far));
      SHOW(cuMemsetD2D32Async(p + 8, 8, 0x32323232, 1, 2, far));
      SHOW(cuMemsetD8(p + 24, '3', 8));
      SHOW(cuMemsetD2D8(p + 32, 8, '4', 4, 2));
      SHOW(cuStreamWriteValue32(far, p + 48, 0x35353535, 0));
      SHOW(cuStreamSynchronize(far));
      CK(cuCtxSynchronize());
      CK(cuMemcpyDtoH(got, p, sizeof got));
      printf("access %d, from %d: %.64s\n", access, i, got);
    }
  }
  CK(cuCtxSetCurrent(other));
  if (can) CK(cuCtxDisablePeerAccess(context));
  CK(cuCtxSetCurrent(context));
}

int main(int argc, char **argv) {
  start(argc, argv);
  int count, can, value;
  CUdevice one;
  CUcontext other;
  CK(cuDeviceGetCount(&count));
  if (count < 2) {
    printf("one GPU\n");
    return 0;
  }
  CK(cuDeviceGet(&one, 1));
  CK(cuDeviceCanAccessPeer(&can, 0, 1));
  CK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
  CHECK(!can == !value, "cuDeviceCanAccessPeer says %d, the attribute %d", can, value);
  CK(cuDevicePrimaryCtxRetain(&other, one));
  unsigned char *data = malloc(N), *got = malloc(N);
  fill(data, N, 1);
  CUdeviceptr a, b, c;
  CUstream s;
  CK(cuMemAlloc(&a, N));
  CK(cuMemcpyHtoD(a, data, N));
  CK(cuCtxSetCurrent(other));
  CK(cuMemAlloc(&b, N));
  CK(cuMemAlloc(&c, N));
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuMemcpyPeer(b, other, a, context, N));
  CK(cuMemcpyDtoH(got, b, N));
  CHECK(!memcmp(got, data, N), "cuMemcpyPeer");
  CK(cuMemsetD8Async(b, 7, N / 2, s));
  CK(cuMemcpyPeerAsync(a, context, b, other, N, s));
  CK(cuMemcpyAsync(c, a, N, s));
  CK(cuStreamSynchronize(s));
  CK(cuMemcpyDtoH(got, c, N));
  for (int i = 0; i < N; i++) CHECK(got[i] == (i < N / 2 ? 7 : data[i]), "byte %d through both GPUs", i);
  CUDA_MEMCPY3D_PEER copy;
  memset(&copy, 0, sizeof copy);
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = c, copy.srcContext = other, copy.srcPitch = 512, copy.srcHeight = 8;
  copy.dstDevice = a, copy.dstContext = context, copy.dstPitch = 256, copy.dstHeight = 8;
  copy.WidthInBytes = 200, copy.Height = 8, copy.Depth = 4;
  CK(cuMemcpy3DPeer(&copy));
  CK(cuCtxSetCurrent(context));
  unsigned char *rows = malloc(N);
  CK(cuMemcpyDtoH(rows, a, 256 * 32));
  for (int row = 0; row < 32; row++)
    CHECK(!memcmp(rows + row * 256, got + row * 512, 200), "row %d of a copy between GPUs", row);
  set_far(a, other, s, can);
  if (can) {
    CK(cuCtxEnablePeerAccess(other, 0));
    SHOW(cuCtxEnablePeerAccess(other, 0));
    CK(cuCtxDisablePeerAccess(other));
    SHOW(cuCtxDisablePeerAccess(other));
  }
  SHOW(cuCtxEnablePeerAccess(context, 0)); // with itself
  CK(cuDevicePrimaryCtxRelease(one));
  printf("two GPUs\n");
  return 0;
}
