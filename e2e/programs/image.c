// Images that a GPU cannot run: what the calls answer, and where the reason goes.
#include "check.h"

// PTX for a GPU that is newer than any here.
static const char newer[] = ".version 8.7\n.target sm_121\n.address_size 64\n.visible .entry k() { ret; }\n";

int main(int argc, char **argv) {
  start(argc, argv);
  CUmodule module;
  CUlibrary library;
  char log[256] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER};
  void *values[] = {(void *)sizeof log, log};
  WANT(cuModuleLoadDataEx(&module, newer, 2, options, values), CUDA_ERROR_INVALID_PTX);
  printf("with a buffer: %s\n", log);
  fprintf(stderr, "without\n");
  WANT(cuModuleLoadData(&module, newer), CUDA_ERROR_INVALID_PTX);
  WANT(cuLibraryLoadData(&library, newer, NULL, NULL, 0, NULL, NULL, 0), CUDA_ERROR_INVALID_PTX);
  return 0;
}
