// Versions, devices, names, attributes: what a program learns before it computes.
#include "check.h"

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  int version = 0, count = 0;
  CUdevice dev;
  WANT(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
  WANT(cuInit(1), CUDA_ERROR_INVALID_VALUE);
  CK(cuInit(0));
  CK(cuInit(0));
  CK(cuDriverGetVersion(&version));
  CK(cuDeviceGetCount(&count));
  printf("driver %d, devices %d\n", version, count);
  CHECK(version >= 11080 && count >= 1, "driver %d, %d devices", version, count);
  WANT(cuDeviceGet(&dev, count), CUDA_ERROR_INVALID_DEVICE);
  WANT(cuDeviceGet(&dev, -1), CUDA_ERROR_INVALID_DEVICE);
  WANT(cuDeviceGet(NULL, 0), CUDA_ERROR_INVALID_VALUE);
  for (int i = 0; i < count; i++) {
    char name[256], bus[32], small[5];
    size_t total;
    CUuuid uuid;
    CK(cuDeviceGet(&dev, i));
    CK(cuDeviceGetName(name, sizeof name, dev));
    CK(cuDeviceGetName(small, sizeof small, dev));
    CK(cuDeviceTotalMem(&total, dev));
    CK(cuDeviceGetUuid(&uuid, dev));
    CK(cuDeviceGetPCIBusId(bus, sizeof bus, dev));
    CHECK(strlen(small) == 4 && !memcmp(small, name, 4), "short name %s", small);
    printf("device %d: %s, %zu bytes, %s, uuid ", i, name, total, bus);
    for (int k = 0; k < 16; k++) printf("%02x", (unsigned char)uuid.bytes[k]);
    printf("\n");
    CUdevice same;
    CK(cuDeviceGetByPCIBusId(&same, bus));
    CHECK(same == dev, "bus id finds device %d", same);
    for (int a = 0; a < 160; a++) {
      if (a == CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) continue; // 0 remotely, whatever the GPU has
      int value = -1;
      int r = cuDeviceGetAttribute(&value, (CUdevice_attribute)a, dev);
      if (r) printf("attribute %d: error %d\n", a, r);
      else printf("attribute %d = %d\n", a, value);
    }
  }
  const char *text = NULL;
  CK(cuGetErrorName(CUDA_ERROR_INVALID_CONTEXT, &text));
  printf("201 is %s\n", text);
  CK(cuGetErrorString(CUDA_ERROR_INVALID_CONTEXT, &text));
  CHECK(text && *text, "no text for 201");
  WANT(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
  CUcontext c = (CUcontext)1;
  CK(cuCtxGetCurrent(&c));
  CHECK(!c, "a context is current before any was made");
  CUdevice none;
  WANT(cuCtxGetDevice(&none), CUDA_ERROR_INVALID_CONTEXT);
  unsigned flags;
  int active;
  CK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  printf("primary context active %d\n", active);
  return 0;
}
