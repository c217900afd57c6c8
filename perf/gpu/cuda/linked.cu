// nvcc: -lnvrtc -lnvJitLink -lcuda
// NVRTC, separable compilation linked at run time by nvJitLink and by the driver's linker, with logs.
#include "check.cuh"
#include <cuda.h>
#include <nvJitLink.h>
#include <nvrtc.h>
#include <string>
#include <vector>

static const char *caller = "extern \"C\" __device__ int twice(int);\nextern \"C\" __global__ void "
                            "fill(int *p, int v) { p[threadIdx.x] = twice(v) + threadIdx.x; }\n";
static const char *callee = "extern \"C\" __device__ int twice(int x) { return 2 * x; }\n";

#define DRIVER(call) do { CUresult r = (call); if (r) { const char *n = "?"; cuGetErrorName(r, &n); \
    printf("%s = %s\n", #call, n); exit(1); } } while (0)

static std::vector<char> compile(const char *source, const char *name, bool cubin) {
  nvrtcProgram p;
  nvrtcCreateProgram(&p, source, name, 0, nullptr, nullptr);
  const char *options[] = {cubin ? "-arch=sm_90" : "-arch=compute_90", "-rdc=true"};
  if (nvrtcCompileProgram(p, 2, options)) printf("%s: not compiled\n", name), exit(1);
  size_t n;
  cubin ? nvrtcGetCUBINSize(p, &n) : nvrtcGetPTXSize(p, &n);
  std::vector<char> out(n);
  cubin ? nvrtcGetCUBIN(p, out.data()) : nvrtcGetPTX(p, out.data());
  nvrtcDestroyProgram(&p);
  return out;
}

static void use(const void *image, const char *what) {
  CUmodule m;
  CUfunction f;
  DRIVER(cuModuleLoadData(&m, image));
  DRIVER(cuModuleGetFunction(&f, m, "fill"));
  int *p, v = 20, o[4];
  CK(cudaMalloc(&p, sizeof o));
  void *args[] = {&p, &v};
  DRIVER(cuLaunchKernel(f, 1, 1, 1, 4, 1, 1, 0, nullptr, args, nullptr));
  CK(cudaMemcpy(o, p, sizeof o, cudaMemcpyDeviceToHost));
  printf("%s: %d %d %d %d\n", what, o[0], o[1], o[2], o[3]);
  CK(cudaFree(p));
  DRIVER(cuModuleUnload(m));
}

int main() {
  CK(cudaFree(nullptr));
  for (bool cubin : {false, true}) {
    auto a = compile(caller, "caller.cu", cubin), b = compile(callee, "callee.cu", cubin);
    CUjitInputType type = cubin ? CU_JIT_INPUT_CUBIN : CU_JIT_INPUT_PTX;
    char info[8192] = "", error[8192] = "";
    CUjit_option options[] =
        {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER,
         CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_LOG_VERBOSE};
    void *values[] = {info, (void *)sizeof info, error, (void *)sizeof error, (void *)1};
    CUlinkState s;
    void *image;
    size_t bytes;
    DRIVER(cuLinkCreate(5, options, values, &s));
    DRIVER(cuLinkAddData(s, type, a.data(), a.size(), "caller", 0, nullptr, nullptr));
    DRIVER(cuLinkAddData(s, type, b.data(), b.size(), "callee", 0, nullptr, nullptr));
    DRIVER(cuLinkComplete(s, &image, &bytes));
    printf("%s: %zu bytes, info log %s, error log '%s'\n",
           cubin ? "cubins" : "PTX", bytes, info[0] ? "with text" : "empty", error);
    use(image, "driver's linker");
    DRIVER(cuLinkDestroy(s));

    DRIVER(cuLinkCreate(5, options, (values[1] = (void *)sizeof info, values[3] = (void *)sizeof error, values), &s));
    DRIVER(cuLinkAddData(s, type, a.data(), a.size(), "caller", 0, nullptr, nullptr));
    CUresult r = cuLinkComplete(s, &image, &bytes);
    printf("without the callee: %d, error log '%s' of %zu\n", r, error, (size_t)values[3]);
    DRIVER(cuLinkDestroy(s));

    nvJitLinkHandle h;
    const char *arch[] = {"-arch=sm_90"};
    nvJitLinkInputType input = cubin ? NVJITLINK_INPUT_CUBIN : NVJITLINK_INPUT_PTX;
    nvJitLinkCreate(&h, 1, arch);
    nvJitLinkAddData(h, input, a.data(), a.size(), "caller");
    nvJitLinkAddData(h, input, b.data(), b.size(), "callee");
    if (nvJitLinkComplete(h)) printf("nvJitLink failed\n"), exit(1);
    size_t n;
    nvJitLinkGetLinkedCubinSize(h, &n);
    std::vector<char> linked(n);
    nvJitLinkGetLinkedCubin(h, linked.data());
    nvJitLinkDestroy(&h);
    use(linked.data(), "nvJitLink");
  }
  CUlinkState s;
  char error[8192] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void *values[] = {error, (void *)sizeof error};
  DRIVER(cuLinkCreate(2, options, values, &s));
  const char *wrong = ".version 8.0\n.target sm_90\n.address_size 64\nnonsense\n";
  CUresult r = cuLinkAddData(s, CU_JIT_INPUT_PTX, (void *)wrong, strlen(wrong) + 1, "wrong.ptx", 0, nullptr, nullptr);
  printf("wrong PTX: %d, '%s'\n", r, error);
  r = cuLinkAddFile(s, CU_JIT_INPUT_PTX, "/does/not/exist", 0, nullptr, nullptr);
  printf("no file: %d\n", r);
  DRIVER(cuLinkDestroy(s));
  return 0;
}
