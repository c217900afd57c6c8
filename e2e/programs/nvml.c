// What nvidia-smi and PyTorch ask of NVML first.
#include "nvml_call.h"
#include <string.h>

typedef struct nvmlDevice_st *device;
typedef struct {
  unsigned long long total, free, used;
} memory;

int main(void) {
  void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (!lib) {
    printf("dlopen: %s\n", dlerror());
    return 1;
  }
  FN(nvmlInit_v2, void);
  FN(nvmlShutdown, void);
  FN(nvmlDeviceGetCount_v2, unsigned *);
  FN(nvmlDeviceGetHandleByIndex_v2, unsigned, device *);
  FN(nvmlDeviceGetName, device, char *, unsigned);
  FN(nvmlDeviceGetUUID, device, char *, unsigned);
  FN(nvmlDeviceGetHandleByUUID, const char *, device *);
  FN(nvmlDeviceGetMemoryInfo, device, memory *);
  FN(nvmlSystemGetDriverVersion, char *, unsigned);
  unsigned n = 99;
  char text[96], uuid[96];
  device d, same;
  memory m;
  printf("before init: %d\n", nvmlDeviceGetCount_v2(&n));
  CK(nvmlInit_v2());
  CK(nvmlSystemGetDriverVersion(text, sizeof text));
  CK(nvmlDeviceGetCount_v2(&n));
  printf("%u devices\n", n);
  CK(nvmlDeviceGetHandleByIndex_v2(0, &d));
  CK(nvmlDeviceGetName(d, text, sizeof text));
  CK(nvmlDeviceGetUUID(d, uuid, sizeof uuid));
  CK(nvmlDeviceGetHandleByUUID(uuid, &same));
  CK(nvmlDeviceGetMemoryInfo(d, &m));
  printf("%s, uuid %.4s…, %s\n", text, uuid, m.total && m.free <= m.total ? "memory ok" : "memory wrong");
  printf("no such device: %d\n", nvmlDeviceGetHandleByIndex_v2(n, &d));
  CK(nvmlShutdown());
  printf("nvml ok\n");
  return 0;
}
