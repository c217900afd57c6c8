// The devices that a process sees, in their order: devices KERNELS
#include "check.h"

int main(int argc, char **argv) {
  int r = cuInit(0), n = 0;
  if (r) {
    printf("cuInit = %d\n", r);
    return 0;
  }
  CK(cuDeviceGetCount(&n));
  for (int i = 0; i < n; i++) {
    CUdevice d, same;
    CUuuid u;
    char bus[32];
    CK(cuDeviceGet(&d, i));
    CK(cuDeviceGetUuid(&u, d));
    CK(cuDeviceGetPCIBusId(bus, sizeof bus, d));
    CK(cuDeviceGetByPCIBusId(&same, bus));
    CHECK(same == d, "device %d is %d by its bus", d, same);
    CUcontext c;
    CK(cuDevicePrimaryCtxRetain(&c, d));
    CK(cuCtxSetCurrent(c));
    CUdeviceptr p;
    CK(cuMemAlloc(&p, 4096));
    int at = -1;
    CK(cuPointerGetAttribute(&at, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
    CHECK(at == d, "memory of device %d is on %d", d, at);
    printf("GPU-");
    for (int k = 0; k < 16; k++)
      printf(k == 4 || k == 6 || k == 8 || k == 10 ? "-%02x" : "%02x", (unsigned char)u.bytes[k]);
    printf(" ");
  }
  CUdevice none;
  CHECK(cuDeviceGet(&none, n) == CUDA_ERROR_INVALID_DEVICE, "there is a device %d", n);
  printf("\n");
  return 0;
}
