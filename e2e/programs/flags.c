// What is told of a context before and after its end: flags, version, id, priorities, device, limits. A reset or the
// last release takes the flags that were set for a primary context with it. The lines of an H200's driver are
// testdata/flags.golden.
#include "check.h"

static void tell(const char *when, CUcontext ctx) {
  unsigned flags = 99, version = 99, state = 99;
  unsigned long long id = 77, own = 78;
  int least, greatest, active = 9;
  CUdevice device = 9;
  size_t limit;
  CUfunc_cache cache;
  CUsharedconfig banks;
  CUresult f = cuCtxGetFlags(&flags), v = cuCtxGetApiVersion(0, &version), i = cuCtxGetId(0, &id),
      o = cuCtxGetId(ctx, &own);
  CUresult p = cuCtxGetStreamPriorityRange(&least, &greatest), d = cuCtxGetDevice(&device),
      s = cuDevicePrimaryCtxGetState(0, &state, &active);
  CUresult l = cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE), c = cuCtxGetCacheConfig(&cache),
      b = cuCtxGetSharedMemConfig(&banks);
  const char *same = id == own ? "same" : id == 77 ? "untouched" : id ? "other" : "zero",
      *some = own == 78 ? "untouched" : own ? "some" : "zero";
  printf("%s: flags %d %x, api %d %u, id %d %s, own %d %s, prio %d, device %d %d, state %d %x %d, limit %d, cache "
      "%d, banks %d\n", when, f, flags, v, version, i,
         same, o, some, p, d, device, s, state, active, l, c, b);
}

int main(int argc, char **argv) {
  start(argc, argv);
  CUcontext own, primary = context;
  tell("at first", primary);
  CK(cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_YIELD));
  tell("set", primary);
  CK(cuDevicePrimaryCtxReset_v2(0));
  tell("reset", primary);
  CK(cuDevicePrimaryCtxRetain(&primary, 0));
  CK(cuCtxSetCurrent(primary));
  tell("retained", primary);
  CK(cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_BLOCKING_SYNC));
  tell("set", primary);
  for (CUresult r = CUDA_SUCCESS; !r; printf("release %d\n", r)) r = cuDevicePrimaryCtxRelease_v2(0);
  tell("released", primary);
  CK(cuDevicePrimaryCtxRetain(&primary, 0));
  CK(cuCtxSetCurrent(primary));
  tell("retained", primary);
  CK(cuDevicePrimaryCtxRelease_v2(0));
  tell("released", primary);
  CK(cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_SPIN));
  tell("set when not there", primary);
  CK(cuDevicePrimaryCtxReset_v2(0));
  tell("reset when not there", primary);
  CK(cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_SPIN));
  CK(cuDevicePrimaryCtxRetain(&primary, 0));
  CK(cuCtxSetCurrent(primary));
  tell("retained", primary);
  CK(cuCtxCreate_v2(&own, CU_CTX_SCHED_BLOCKING_SYNC, 0));
  tell("created", own);
  CK(cuCtxDestroy(own));
  tell("destroyed", own);
  CK(cuCtxCreate_v2(&own, CU_CTX_SCHED_BLOCKING_SYNC, 0));
  CK(cuCtxPushCurrent(own));
  CK(cuCtxDestroy(own));
  tell("destroyed below", own);
  CK(cuCtxSetCurrent(NULL));
  tell("none", primary);
  return 0;
}
