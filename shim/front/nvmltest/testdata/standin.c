/* Stands in for the machine's own NVML in the pass-through test. */
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlInit(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 7; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetName(void *d, char *name, unsigned n) {
  return d ? (strncpy(name, "the machine's own GPU", n), 0) : 2;
}
const char *nvmlErrorString(int r) { return r ? "no" : "yes"; }
