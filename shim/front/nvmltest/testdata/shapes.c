/* Calls functions whose arguments have shapes of their own: arrays behind structures, strings in a result, and
 * nvidia-smi's private table. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct utilization { uint64_t time; uint32_t pid, sm, mem, enc, dec, jpg, ofa; };
struct utilizations { uint32_t version, count; uint64_t last; struct utilization *array; };
struct metric { uint32_t id; int32_t result; double value; const char *name, *title, *unit; };
/* the room of an older header */
struct metrics { uint32_t version, count; void *first, *second; struct metric metrics[98]; };
struct counter { uint32_t id, port, status, type; uint64_t value; };
struct counters { uint32_t count; struct counter *list; };
struct set_request { uint32_t version; void *set; };
struct register_request { uint32_t version; uint64_t types; void *set; };
struct wait_request { uint32_t version, timeout; void *set, *data; uint32_t room, events; };
struct process { uint32_t pid, pad; uint64_t memory; uint32_t rest[4]; char command[4096]; };

#define FN(type, name) __typeof__(type) name = (__typeof__(type))dlsym(lib, #name)
typedef int (*call1)(void *);
typedef int (*call2)(const void *, void *);
typedef int (*call4)(const void *, uint32_t, void *, void *);

int main(int argc, char **argv) {
  void *lib = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (!lib) return 2;
  FN(int (*)(void), nvmlInit_v2);
  FN(int (*)(uint32_t, void **), nvmlDeviceGetHandleByIndex_v2);
  FN(call2, nvmlDeviceGetProcessesUtilizationInfo);
  FN(call4, nvmlDeviceGetGpuInstances);
  FN(call1, nvmlGpmSampleAlloc);
  FN(call1, nvmlGpmMetricsGet);
  FN(int (*)(const void **, const void *), nvmlInternalGetExportTable);
  void *device = NULL;
  int r = nvmlInit_v2();
  printf("init %d, device %d\n", r, nvmlDeviceGetHandleByIndex_v2(0, &device));

  struct utilization list[3] = {{0}};
  struct utilizations u = {1u << 24 | sizeof u, 0, 0, NULL};
  r = nvmlDeviceGetProcessesUtilizationInfo(device, &u);
  printf("how many: %d, %u\n", r, u.count);
  u.count = 3, u.array = list;
  r = nvmlDeviceGetProcessesUtilizationInfo(device, &u);
  printf("utilization %d, %u: pid %u %u, sm %u, array %s\n", r, u.count, list[0].pid, list[1].pid, list[1].sm,
         u.array == list ? "kept" : "lost");
  u.version = 2u << 24 | 16;
  printf("other version %d\n", nvmlDeviceGetProcessesUtilizationInfo(device, &u));

  void *instances[8] = {0};
  uint32_t n = 0;
  r = nvmlDeviceGetGpuInstances(device, 0, instances, &n);
  printf("instances %d, %u: %s\n", r, n, instances[0] && instances[1] && !instances[2] ? "two handles" : "wrong");

  struct metrics m = {1, 2, NULL, NULL, {{0}}};
  r = nvmlGpmSampleAlloc(&m.first);
  m.second = m.first, m.metrics[0].id = 10, m.metrics[1].id = 3;
  printf("sample %d, ", r);
  r = nvmlGpmMetricsGet(&m);
  printf("metrics %d: %d %.1f %s, %d\n", r, m.metrics[0].result, m.metrics[0].value, m.metrics[0].unit,
         m.metrics[1].result);
  const char *unit = m.metrics[0].unit;
  r = nvmlGpmMetricsGet(&m);
  printf("again %d, %s\n", r, unit == m.metrics[0].unit ? "the same string" : "another string");

  static const uint8_t smi[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12,
                                  0xf7, 0xc4};
  const void *table = NULL;
  r = nvmlInternalGetExportTable(&table, smi);
  if (r) return 3;
  void *const *slots = table;
  uint32_t value = 0, count = 500;
  char text[80] = "";
  static struct process processes[500];
  r = ((int (*)(void *, uint32_t *))slots[72])(device, &value);
  printf("table of %llu bytes, value %d %u", (unsigned long long)(uintptr_t)slots[0], r, value);
  r = ((int (*)(void *, char *, uint32_t))slots[231])(device, text, sizeof text);
  printf(", text %d %s\n", r, text);
  r = ((int (*)(void *, uint32_t *, struct process *))slots[213])(device, &count, processes);
  printf("processes %d, %u: %u %s, %u %s\n", r, count, processes[0].pid, processes[0].command, processes[1].pid,
         processes[1].command);
  count = 1;
  r = ((int (*)(void *, uint32_t *, struct process *))slots[213])(device, &count, processes);
  printf("too many %d, %u; no such slot %d\n", r, count, ((int (*)(void *))slots[100])(device));

  FN(call2, nvmlDeviceReadPRMCounters_v1);
  struct counter counter[3] = {{.id = 1, .port = 1}, {.id = 2, .port = 2}, {.id = 3, .port = 3}};
  struct counters counters = {2, counter};
  r = nvmlDeviceReadPRMCounters_v1(device, &counters);
  printf("counters %d, %u: %llu %llu %llu\n", r, counters.count, (unsigned long long)counter[0].value,
         (unsigned long long)counter[1].value, (unsigned long long)counter[2].value);

  FN(int (*)(const void *, void *, uint32_t *), nvmlDeviceGetVgpuMetadata);
  FN(int (*)(void *, void *, int *), nvmlGetVgpuCompatibility);
  uint8_t gpu[256] = {0}, vgpu[256] = {0};
  uint32_t room = 100;
  int compatible[2] = {0};
  r = nvmlDeviceGetVgpuMetadata(device, gpu, &room);
  printf("metadata %d, %u bytes", r, room);
  r = nvmlDeviceGetVgpuMetadata(device, gpu, &room);
  printf(", %d: %u", r, gpu[139]);
  r = nvmlGetVgpuCompatibility(vgpu, gpu, compatible);
  printf(", compatibility %d: %d\n", r, compatible[0]);

  FN(call1, nvmlSystemEventSetCreate);
  FN(call1, nvmlSystemRegisterEvents);
  FN(call1, nvmlSystemEventSetWait);
  FN(call1, nvmlSystemEventSetFree);
  struct set_request set = {1u << 24 | sizeof set, &set}; /* there is something in the handle's place */
  r = nvmlSystemEventSetCreate(&set);
  struct register_request types = {1u << 24 | sizeof types, 3, set.set};
  uint64_t events[4];
  struct wait_request wait = {1u << 24 | sizeof wait, 120, set.set, events, 2, 0};
  printf("system's events %d, %d, wait %d", r, nvmlSystemRegisterEvents(&types), nvmlSystemEventSetWait(&wait));
  printf(" %s %u", wait.data == events && wait.timeout == 120 ? "kept" : "lost", wait.events);
  r = nvmlSystemEventSetFree(&set);
  printf(", free %d, again %d, wrong version %d\n", r, nvmlSystemEventSetFree(&set),
         (set.version = 0, nvmlSystemEventSetCreate(&set)));
  return 0;
}
