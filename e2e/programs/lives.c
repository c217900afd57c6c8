// Libraries in several contexts and in one primary context after another: their variables, kernels and modules are each
// context's own. (What a driver makes of a library that stays loaded while its context is reset, and of calls in a
// primary context that was released for the last time, is left open here: NVIDIA's does not survive the next retain.)
#include "check.h"
#include <pthread.h>

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev); // newer headers have other forms only

static const char ptx[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .global .align 4 .u32 counter = 5;\n"
    ".visible .entry bump(.param .u64 p, .param .u32 n)\n{\n"
    "  .reg .b64 %l; .reg .b32 %r<3>;\n"
    "  ld.param.u64 %l, [p]; ld.param.u32 %r0, [n]; cvta.to.global.u64 %l, %l;\n"
    "  ld.global.u32 %r1, [counter]; add.u32 %r1, %r1, %r0; st.global.u32 [counter], %r1; st.global.u32 [%l], %r1; "
    "ret;\n}\n";

static CUlibrary library;
static CUkernel kernel;

static void load_library(void) {
  CK(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
  CK(cuLibraryGetKernel(&kernel, library, "bump"));
}

static unsigned value(CUdeviceptr p) {
  unsigned v;
  CK(cuMemcpyDtoH(&v, p, 4));
  return v;
}

// In the current context the counter stands at `at`; four ways to add to it, three to read it.
static void use(unsigned at, const char *what) {
  CUdeviceptr p, counter, same;
  size_t bytes;
  CUfunction f, of_module;
  CUmodule m;
  CK(cuMemAlloc(&p, 4));
  CK(cuLibraryGetGlobal(&counter, &bytes, library, "counter"));
  CHECK(bytes == 4 && value(counter) == at, "%s: the counter of %zu bytes is %u, not %u", what, bytes, value(counter),
        at);
  CK(cuLibraryGetModule(&m, library));
  CK(cuModuleGetGlobal(&same, &bytes, m, "counter"));
  CHECK(same == counter, "%s: the module has another counter", what);
  CK(cuKernelGetFunction(&f, kernel));
  CK(cuModuleGetFunction(&of_module, m, "bump"));
  unsigned n = 1;
  CK(LAUNCH((CUfunction)kernel, 1, 1, 0, 0, &p, &n));
  CK(LAUNCH(f, 1, 1, 0, 0, &p, &n));
  CK(LAUNCH(of_module, 1, 1, 0, 0, &p, &n));
  CHECK(value(p) == at + 3 && value(counter) == at + 3, "%s: %u and %u after three launches, not %u", what, value(p),
        value(counter), at + 3);
  CK(cuMemcpyHtoD(counter, &at, 4));
  CK(LAUNCH(f, 1, 1, 0, 0, &p, &n));
  CHECK(value(p) == at + 1, "%s: %u after a store from outside, not %u", what, value(p), at + 1);
  CK(cuMemFree(p));
}

// A thread that has retained the primary context has it, however others come and go.
static void *come_and_go(void *unused) {
  for (unsigned i = 0; i < 20; i++) {
    CUcontext c;
    CUdeviceptr p;
    CK(cuDevicePrimaryCtxRetain(&c, 0));
    CK(cuCtxSetCurrent(c));
    CK(cuMemAlloc(&p, 4));
    CK(cuMemcpyHtoD(p, &i, 4));
    CHECK(value(p) == i, "a thread's memory is another's");
    CK(cuMemFree(p));
    CK(cuDevicePrimaryCtxRelease(0));
  }
  return unused;
}

int main(int argc, char **argv) {
  if (argc > 1) kernels_folder = argv[1];
  int devices;
  CUcontext primary, again, own;
  CUdeviceptr p;
  CK(cuInit(0));
  CK(cuDeviceGetCount(&devices));
  for (int round = 0; round < 3; round++) {
    if (round == 0) load_library(); // before there is any context
    CK(cuDevicePrimaryCtxRetain(&primary, 0));
    CK(cuCtxSetCurrent(primary));
    if (round > 0) load_library();
    use(5, "a fresh primary context");
    use(6, "the same context");
    CK(cuLibraryUnload(library));
    if (round == 0) {
      CK(cuDevicePrimaryCtxReset(0));
      SHOW(cuMemAlloc(&p, 4)); // the context is current, but has ended
      SHOW(cuStreamSynchronize(0));
    }
    CK(cuCtxSetCurrent(NULL));
    CK(cuDevicePrimaryCtxRelease(0)); // a reset leaves the references
    WANT(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
  }
  CK(cuDevicePrimaryCtxRetain(&primary, 0));
  CK(cuCtxSetCurrent(primary));
  load_library();
  use(5, "the last primary context");
  CK(cuCtxCreate_v2(&own, 0, 0));
  use(5, "a context of the program's own");
  CK(cuCtxSetCurrent(primary));
  use(6, "back in the primary context");
  CK(cuCtxDestroy(own));
  for (int i = 1; i < devices; i++) {
    CK(cuDevicePrimaryCtxRetain(&again, i));
    CK(cuCtxSetCurrent(again));
    use(5, "another GPU");
    CK(cuCtxSetCurrent(primary));
    use(6 + i, "back on the first GPU");
    CK(cuDevicePrimaryCtxRelease(i));
  }
  CK(cuLibraryUnload(library));
  CK(cuCtxSetCurrent(NULL));
  CK(cuDevicePrimaryCtxRelease(0));
  pthread_t t[2];
  for (int i = 0; i < 2; i++) pthread_create(&t[i], NULL, come_and_go, NULL);
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
  printf("right\n");
  return 0;
}
