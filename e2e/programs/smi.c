// smi: what nvidia-smi shows of each GPU, ten times a second until standard input ends.
#include "nvml_call.h"
#include <poll.h>

typedef struct nvmlDevice_st *device;
typedef struct {
  unsigned long long total, free, used;
} memory;
typedef struct {
  unsigned gpu, memory;
} utilization;
typedef struct {
  unsigned pid;
  unsigned long long used;
  unsigned instance, compute;
} process;

int main(void) {
  void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (!lib) {
    printf("dlopen: %s\n", dlerror());
    return 1;
  }
  FN(nvmlInit_v2, void);
  FN(nvmlDeviceGetCount_v2, unsigned *);
  FN(nvmlDeviceGetHandleByIndex_v2, unsigned, device *);
  FN(nvmlDeviceGetName, device, char *, unsigned);
  FN(nvmlDeviceGetMemoryInfo, device, memory *);
  FN(nvmlDeviceGetUtilizationRates, device, utilization *);
  FN(nvmlDeviceGetTemperature, device, int, unsigned *);
  FN(nvmlDeviceGetPowerUsage, device, unsigned *);
  FN(nvmlDeviceGetEnforcedPowerLimit, device, unsigned *);
  FN(nvmlDeviceGetClockInfo, device, int, unsigned *);
  FN(nvmlDeviceGetComputeRunningProcesses_v3, device, unsigned *, process *);
  CK(nvmlInit_v2());
  unsigned n;
  CK(nvmlDeviceGetCount_v2(&n));
  do {
    for (unsigned i = 0; i < n; i++) {
      device d;
      char name[96];
      memory m;
      utilization u;
      unsigned celsius, power, limit, clock, processes = 64;
      process list[64];
      CK(nvmlDeviceGetHandleByIndex_v2(i, &d));
      CK(nvmlDeviceGetName(d, name, sizeof name));
      CK(nvmlDeviceGetMemoryInfo(d, &m));
      CK(nvmlDeviceGetUtilizationRates(d, &u));
      CK(nvmlDeviceGetTemperature(d, 0, &celsius));
      CK(nvmlDeviceGetPowerUsage(d, &power));
      CK(nvmlDeviceGetEnforcedPowerLimit(d, &limit));
      CK(nvmlDeviceGetClockInfo(d, 1, &clock));
      CK(nvmlDeviceGetComputeRunningProcesses_v3(d, &processes, list));
      printf("GPU %u %s: %u %% (memory %u %%), %llu of %llu MiB, %u C, %u of %u W, %u MHz;", i, name, u.gpu, u.memory,
             m.used >> 20, m.total >> 20, celsius,
        power / 1000, limit / 1000, clock);
      for (unsigned j = 0; j < processes; j++) printf(" process %u has %llu MiB,", list[j].pid, list[j].used >> 20);
      printf("\n");
    }
    fflush(stdout);
  } while (poll(&(struct pollfd){.fd = 0, .events = POLLIN}, 1, 100) == 0);
  return 0;
}
