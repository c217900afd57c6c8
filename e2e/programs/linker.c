// The linker: two PTX texts of which one calls into the other, as data and as a file; logs; errors. Then the ways to
// launch that CUDA 3 had.
#include "check.h"
#include <unistd.h>

static const char caller[] =
    ".version 7.0\n.target sm_52\n.address_size 64\n"
    ".extern .func (.param .b32 r) twice (.param .b32 x);\n"
    ".visible .entry fill(.param .u64 p, .param .u32 v)\n{\n"
    "  .reg .b64 %l<3>; .reg .b32 %r<4>;\n"
    "  ld.param.u64 %l0, [p]; ld.param.u32 %r0, [v]; cvta.to.global.u64 %l0, %l0;\n"
    "  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r0; call.uni (b), twice, (a); ld.param.b32 %r1, [b]; }\n"
    "  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r2, %r2, 4, %r3;\n"
    "  mul.wide.u32 %l1, %r2, 4; add.u64 %l2, %l0, %l1; st.global.u32 [%l2], %r1; ret;\n}\n";
static const char callee[] =
    ".version 7.0\n.target sm_52\n.address_size 64\n"
    ".visible .func (.param .b32 r) twice (.param .b32 x)\n{\n"
    "  .reg .b32 %r<2>; ld.param.b32 %r0, [x]; add.u32 %r1, %r0, %r0; st.param.b32 [r], %r1; ret;\n}\n";

static void check(CUdeviceptr p, int n, unsigned want, const char *what) {
  unsigned got[16] = {0};
  CK(cuMemcpyDtoH(got, p, n * 4));
  for (int i = 0; i < n; i++) CHECK(got[i] == want, "%s: element %d is %u, not %u", what, i, got[i], want);
  CK(cuMemsetD32(p, 0, 16));
  printf("%s: right\n", what);
}

int main(int argc, char **argv) {
  start(argc, argv);
  char info[4096] = "", error[4096] = "";
  CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER,
                            CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_LOG_VERBOSE};
  void *values[] = {info, (void *)sizeof info, error, (void *)sizeof error, (void *)1};
  CUlinkState link;
  void *cubin;
  size_t size = 0;
  CUdeviceptr p;
  CK(cuMemAlloc(&p, 64));

  CK(cuLinkCreate(5, options, values, &link));
  CK(cuLinkAddData(link, CU_JIT_INPUT_PTX, (void *)caller, sizeof caller, "caller.ptx", 0, NULL, NULL));
  char path[] = "/tmp/scuda-linker-XXXXXX";
  int fd = mkstemp(path);
  CHECK(fd >= 0 && write(fd, callee, sizeof callee - 1) == sizeof callee - 1, "%s", path);
  close(fd);
  CK(cuLinkAddFile(link, CU_JIT_INPUT_PTX, path, 0, NULL, NULL));
  unlink(path);
  CK(cuLinkComplete(link, &cubin, &size));
  CHECK(size > 0 && cubin, "an empty cubin");
  CHECK(!error[0], "errors: %s", error);
  CUmodule m;
  CK(cuModuleLoadData(&m, cubin));
  CK(cuLinkDestroy(link));
  CUfunction f = function(m, "fill");
  unsigned v = 21;
  CK(LAUNCH(f, 4, 4, 0, 0, &p, &v));
  check(p, 16, 42, "linked kernel");

  // Errors: text in the log, and the code at the call that adds.
  values[1] = (void *)sizeof info, values[3] = (void *)sizeof error; // they hold what was filled
  CK(cuLinkCreate(5, options, values, &link));
  WANT(cuLinkAddData(link, CU_JIT_INPUT_PTX, ".version 7.0\n.target sm_52\n.address_size 64\nnonsense\n", 53,
                     "wrong.ptx", 0, NULL, NULL), CUDA_ERROR_INVALID_PTX);
  CHECK(error[0], "no text about the error");
  printf("an error has a text\n");
  WANT(cuLinkAddFile(link, CU_JIT_INPUT_PTX, "/does/not/exist", 0, NULL, NULL), CUDA_ERROR_FILE_NOT_FOUND);
  CK(cuLinkDestroy(link));

  // Buffer of parameters, by `extra` and in the manner of CUDA 3.
  struct { CUdeviceptr p; unsigned v; } params = {p, 4};
  size_t bytes = 12;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &params, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  CK(cuLaunchKernel(f, 4, 1, 1, 4, 1, 1, 0, 0, NULL, extra));
  check(p, 16, 8, "extra");
  CK(cuFuncSetBlockShape(f, 4, 1, 1));
  CK(cuFuncSetSharedSize(f, 0));
  CK(cuParamSetv(f, 0, &p, 8));
  CK(cuParamSeti(f, 8, 5));
  CK(cuParamSetSize(f, 12));
  CK(cuLaunchGrid(f, 4, 1));
  check(p, 16, 10, "cuLaunchGrid");
  CK(cuLaunch(f));
  check(p, 4, 10, "cuLaunch");

  unsigned count = 0;
  CUfunction all[4];
  const char *name;
  CK(cuModuleGetFunctionCount(&count, m));
  CK(cuModuleEnumerateFunctions(all, 4, m));
  CHECK(count == 1 && all[0] == f, "%u functions", count);
  CK(cuFuncGetName(&name, all[0]));
  printf("functions: %s\n", name);
  return 0;
}
