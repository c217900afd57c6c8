/* A driver of this machine, as far as the pass-through test needs one. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }
int cuDriverGetVersion(int *version) { return *version = 12345, 0; }
int cuDeviceGetCount(int *count) { return *count = 42, 0; }
int cuGetProcAddress_v2(const char *name, void **p, int version, uint64_t flags, int *status) {
  *p = !strcmp(name, "cuInit") && version == 7000 && flags == 0 ? (void *)cuInit : NULL;
  if (status) *status = *p ? 0 : 1;
  return 0;
}
/* 11 arguments, some of them on the stack */
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *s, void **p, void **e) {
  return f == (void *)1 && gx == 2 && gy == 3 && gz == 4 && bx == 5 && by == 6 && bz == 7 && shared == 8 &&
         s == (void *)9 && p == (void *)10 && e == (void *)11 ? 77 : 1;
}
