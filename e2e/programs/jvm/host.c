// What Host.java calls; without jni.h, which the Java runtime's package does not bring along.
#include "../check.h"

int32_t Java_Host_compute(void *env, void *class, int32_t n) {
  static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                            ".visible .entry twice(.param .u64 to, .param .u32 count) { .reg .u64 a; .reg .u32 i, n, "
                            "b, t; .reg .pred p; ld.param.u64 a, [to]; ld.param.u32 n, [count];"
                            " mov.u32 i, %tid.x; mov.u32 b, %ctaid.x; mov.u32 t, %ntid.x; mad.lo.u32 i, b, t, i; "
                            "setp.ge.u32 p, i, n; @p ret;"
                            " cvta.to.global.u64 a, a; mad.wide.u32 a, i, 4, a; ld.global.u32 b, [a]; add.u32 b, b, "
                            "b; st.global.u32 [a], b; ret; }\n";
  CUdevice device;
  CUmodule m;
  CUdeviceptr p;
  CUstream s;
  CK(cuInit(0));
  CK(cuDeviceGet(&device, 0));
  CUcontext c;
  CK(cuDevicePrimaryCtxRetain(&c, device));
  CK(cuCtxSetCurrent(c));
  CK(cuModuleLoadData(&m, ptx));
  CUfunction f = function(m, "twice");
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  int managed = getenv("HOST_MANAGED") != NULL;
  CK(managed ? cuMemAllocManaged(&p, 4 * n, CU_MEM_ATTACH_GLOBAL) : cuMemAlloc(&p, 4 * n));
  uint32_t *values = managed ? (uint32_t *)(uintptr_t)p : malloc(4 * n);
  for (int32_t i = 0; i < n; i++) values[i] = i;
  if (!managed) CK(cuMemcpyHtoDAsync(p, values, 4 * n, s));
  CK(LAUNCH(f, (n + 127) / 128, 128, 0, s, &p, &n));
  if (!managed) CK(cuMemcpyDtoHAsync(values, p, 4 * n, s));
  CK(cuStreamSynchronize(s));
  int32_t wrong = 0;
  for (int32_t i = 0; i < n && !wrong; i++)
    if (values[i] != 2u * i) wrong = i + 1;
  if (!managed) free(values);
  CK(cuMemFree(p));
  CK(cuStreamDestroy(s));
  CK(cuModuleUnload(m));
  CK(cuDevicePrimaryCtxRelease(device));
  return wrong;
}
