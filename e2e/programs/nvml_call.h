// Shared by the programs that use NVML, which they load by dlopen as nvidia-smi does: a function by its name, from
// `lib`, and a call that must succeed.
#ifndef NVML_CALL_H
#define NVML_CALL_H
#include <dlfcn.h>
#include <stdio.h>

#define FN(name, ...) int (*name)(__VA_ARGS__) = (int (*)(__VA_ARGS__))dlsym(lib, #name)
#define CK(call) \
  do { \
    int r_ = (call); \
    if (r_) { \
      printf("%s = %d\n", #call, r_); \
      return 1; \
    } \
  } while (0)
#endif
