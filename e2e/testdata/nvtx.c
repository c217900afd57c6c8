// What a program says by NVIDIA's own header of NVTX, which make runtimes takes from Debian's packages: nvtx KERNELS.
#include <cuda.h>
#include <nvtx3/nvToolsExt.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "line %d: %s\n", __LINE__, #x), exit(1)))

int main(void) {
  CUdevice dev;
  CUcontext ctx;
  CHECK(!cuInit(0) && !cuDeviceGet(&dev, 0) && !cuDevicePrimaryCtxRetain(&ctx, dev) && !cuCtxSetCurrent(ctx));
  nvtxInitialize(NULL);
  nvtxNameOsThreadA((uint32_t)syscall(SYS_gettid), "the thread");
  nvtxNameCategoryA(3, "three");
  nvtxNameCategoryW(4, L"f\u00f6ur");
  nvtxEventAttributes_t a = {
    .version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE, .category = 3, .colorType = NVTX_COLOR_ARGB,
    .color = 0xff112233, .payloadType = NVTX_PAYLOAD_TYPE_DOUBLE, .payload.dValue = 2.5,
    .messageType = NVTX_MESSAGE_TYPE_ASCII, .message.ascii = "attributes"};
  CHECK(nvtxRangePushA("text") == 0 && nvtxRangePushW(L"w\u00efde") == 1 && nvtxRangePushEx(&a) == 2);
  nvtxMarkA("mark");
  nvtxMarkW(L"m\u00e4rk");
  nvtxMarkEx(&a);
  CHECK(nvtxRangePop() == 2 && nvtxRangePop() == 1 && nvtxRangePop() == 0);
  nvtxRangeId_t text = nvtxRangeStartA("start"), wide = nvtxRangeStartW(L"st\u00e4rt"), all = nvtxRangeStartEx(&a);
  nvtxRangeEnd(text);
  nvtxRangeEnd(all);
  nvtxRangeEnd(wide);

  nvtxDomainHandle_t one = nvtxDomainCreateA("one"), two = nvtxDomainCreateW(L"tw\u00f6");
  nvtxDomainNameCategoryA(one, 3, "three of one");
  nvtxDomainNameCategoryW(two, 4, L"four of two");
  a.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  a.message.registered = nvtxDomainRegisterStringA(one, "registered");
  CHECK(nvtxDomainRangePushEx(one, &a) == 0);
  a.category = 4;
  a.payloadType = NVTX_PAYLOAD_TYPE_INT32;
  a.payload.iValue = -7;
  a.message.registered = nvtxDomainRegisterStringW(two, L"regist\u00ebred");
  CHECK(nvtxDomainRangePushEx(two, &a) == 0);
  nvtxDomainMarkEx(two, &a);
  nvtxRangeId_t across = nvtxDomainRangeStartEx(two, &a);
  CHECK(nvtxDomainRangePop(one) == 0 && nvtxDomainRangePop(two) == 0);
  nvtxDomainRangeEnd(two, across);
  nvtxResourceAttributes_t r = {
    .version = NVTX_VERSION, .size = NVTX_RESOURCE_ATTRIB_STRUCT_SIZE,
    .identifierType = NVTX_RESOURCE_TYPE_GENERIC_POINTER, .identifier.pValue = &r,
    .messageType = NVTX_MESSAGE_TYPE_ASCII, .message.ascii = "nobody keeps it"};
  nvtxDomainResourceDestroy(nvtxDomainResourceCreate(one, &r));
  nvtxDomainDestroy(one);
  nvtxDomainDestroy(two);
  puts("right");
  return 0;
}
