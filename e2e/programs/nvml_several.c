// What NVML says of the GPUs of several servers: numbers, names, places, and pairs of GPUs. With each line on standard
// input it asks for the memory of each GPU again, and at last begins anew.
#include "nvml_call.h"
#include <string.h>

typedef struct nvmlDevice_st *device;
typedef struct set_st *set;
typedef struct {
  unsigned long long total, free, used;
} memory;
typedef struct {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
} pci;
typedef struct {
  device device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
} event;
static void *lib;
enum { MOST = 8 };

static int events(device first, device last) {
  FN(nvmlEventSetCreate, set *);
  FN(nvmlEventSetFree, set);
  FN(nvmlDeviceRegisterEvents, device, unsigned long long, set);
  FN(nvmlEventSetWait_v2, set, event *, unsigned);
  set s;
  event e;
  CK(nvmlEventSetCreate(&s));
  printf("register %d %d\n", nvmlDeviceRegisterEvents(last, 8, s), nvmlDeviceRegisterEvents(first, 8, s));
  printf("wait %d\n", nvmlEventSetWait_v2(s, &e, 20));
  CK(nvmlEventSetFree(s));
  return 0;
}

static int show(unsigned n, device *d) {
  FN(nvmlDeviceGetHandleByIndex_v2, unsigned, device *);
  FN(nvmlDeviceGetHandleByUUID, const char *, device *);
  FN(nvmlDeviceGetHandleByPciBusId_v2, const char *, device *);
  FN(nvmlDeviceGetHandleBySerial, const char *, device *);
  FN(nvmlDeviceGetSerial, device, char *, unsigned);
  FN(nvmlDeviceGetName, device, char *, unsigned);
  FN(nvmlDeviceGetUUID, device, char *, unsigned);
  FN(nvmlDeviceGetIndex, device, unsigned *);
  FN(nvmlDeviceGetPciInfo_v3, device, pci *);
  for (unsigned i = 0; i < n; i++) {
    char name[96], uuid[96], serial[64];
    device by_uuid, by_bus, by_serial;
    unsigned index = 99;
    pci p;
    CK(nvmlDeviceGetHandleByIndex_v2(i, &d[i]));
    CK(nvmlDeviceGetName(d[i], name, sizeof name));
    CK(nvmlDeviceGetIndex(d[i], &index));
    CK(nvmlDeviceGetUUID(d[i], uuid, sizeof uuid));
    CK(nvmlDeviceGetHandleByUUID(uuid, &by_uuid));
    CK(nvmlDeviceGetPciInfo_v3(d[i], &p));
    CK(nvmlDeviceGetHandleByPciBusId_v2(p.bus_id, &by_bus));
    int serials = nvmlDeviceGetSerial(d[i], serial, sizeof serial);
    if (!serials) serials = nvmlDeviceGetHandleBySerial(serial, &by_serial);
    printf("GPU %u: %s, index %u, found %d %d, %s, %s, domain %x\n", i, name, index, by_uuid == d[i], by_bus == d[i],
           p.bus_id, p.legacy, p.domain);
  }
  device none;
  printf("one more: %d, unknown: %d %d\n", nvmlDeviceGetHandleByIndex_v2(n, &none),
         nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000", &none),
         nvmlDeviceGetHandleByPciBusId_v2("00000F00:01:00.0", &none));
  return 0;
}

static void pairs(const char *whose, device a, device b) {
  FN(nvmlDeviceGetTopologyCommonAncestor, device, device, unsigned *);
  FN(nvmlDeviceGetP2PStatus, device, device, unsigned, unsigned *);
  FN(nvmlDeviceOnSameBoard, device, device, int *);
  unsigned level = 99, status = 99;
  int board = 99;
  printf("%s: %d %d %d, ", whose, nvmlDeviceGetTopologyCommonAncestor(a, b, &level),
         nvmlDeviceGetP2PStatus(a, b, 0, &status), nvmlDeviceOnSameBoard(a, b, &board));
  printf("level %u, P2P %u, board %d\n", level, status, board);
}

int main(void) {
  if (!(lib = dlopen("libnvidia-ml.so.1", RTLD_NOW))) {
    printf("dlopen: %s\n", dlerror());
    return 1;
  }
  FN(nvmlInit_v2, void);
  FN(nvmlShutdown, void);
  FN(nvmlDeviceGetCount_v2, unsigned *);
  FN(nvmlDeviceGetMemoryInfo, device, memory *);
  FN(nvmlSystemGetDriverVersion, char *, unsigned);
  unsigned n = 99;
  char text[96];
  device d[MOST];
  memory m;
  CK(nvmlInit_v2());
  CK(nvmlDeviceGetCount_v2(&n));
  printf("%u devices\n", n);
  if (n > MOST) return 1;
  if (show(n, d)) return 1;
  pairs("one server", d[0], d[1]);
  pairs("first and last", d[0], d[n - 1]);
  if (events(d[0], d[n - 1])) return 1;
  CK(nvmlSystemGetDriverVersion(text, sizeof text));
  printf("ready\n");
  fflush(stdout);
  for (int c; (c = getchar()) != EOF && c != 'x';) {
    if (c != '\n') continue;
    for (unsigned i = 0; i < n; i++) printf("memory of %u: %d\n", i, nvmlDeviceGetMemoryInfo(d[i], &m));
    printf("asked\n");
    fflush(stdout);
  }
  CK(nvmlShutdown());
  int again = nvmlInit_v2();
  if (again == 0) {
    nvmlDeviceGetCount_v2(&n);
    printf("again %u devices, the last %d\n", n, nvmlDeviceGetMemoryInfo(d[n - 1], &m));
    CK(nvmlShutdown());
  } else {
    printf("again %d\n", again);
  }
  printf("nvml ok\n");
  return 0;
}
