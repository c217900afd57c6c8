// What is told of hints on unified memory: every attribute of a range after each of them, for parts of the range too;
// and what is refused.
#include "managed.h"

enum { N = 8 << 20, PART = N / 4 };

static CUdevice device;
static CUdeviceptr p;

static const struct { const char *name; CUmem_range_attribute what; int words; } attributes[] = {
  {"read mostly", CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 1},
  {"preferred", CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 1},
  {"accessed by", CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, 3},
  {"prefetched", CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 1},
  {"preferred type", CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, 1},
  {"preferred id", CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID, 1},
  {"prefetched type", CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, 1},
  {"prefetched id", CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID, 1},
};
enum { ALL = sizeof attributes / sizeof *attributes };

static void ask(const char *of, CUdeviceptr from, size_t n) {
  int seen[ALL][3], type = 0;
  memset(seen, 0, sizeof seen);
  printf("  %s:", of);
  for (int i = 0; i < ALL; i++) {
    int r = (int)cuMemRangeGetAttribute(seen[i], 4 * (size_t)attributes[i].words, attributes[i].what, from, n);
    const char *name = attributes[i].name;
    size_t end = strlen(name);
    if (end > 5 && !strcmp(name + end - 5, " type")) type = seen[i][0];
    if (end > 3 && !strcmp(name + end - 3, " id") && type == CU_MEM_LOCATION_TYPE_HOST) continue; // has none
    if (r) printf(" %s = error %d;", name, r);
    else if (attributes[i].words > 1) printf(" %s = %d %d %d;", name, seen[i][0], seen[i][1], seen[i][2]);
    else printf(" %s = %d;", name, seen[i][0]);
  }
  printf("\n");
  void *data[ALL];
  size_t sizes[ALL];
  CUmem_range_attribute what[ALL];
  int again[ALL][3];
  memset(again, 0, sizeof again);
  for (int i = 0; i < ALL; i++)
    data[i] = again[i], sizes[i] = 4 * (size_t)attributes[i].words, what[i] = attributes[i].what;
  int r = (int)cuMemRangeGetAttributes(data, sizes, what, ALL, from, n);
  if (r || memcmp(seen, again, sizeof seen)) printf("  all of it at once: error %d, %s\n", r,
                                                    memcmp(seen, again, sizeof seen) ? "something else" : "the same");
}
static void ask_all(const char *after) {
  printf("after %s\n", after);
  ask("all", p, N);
  for (int i = 0; i < 4; i++) {
    char name[] = "quarter 0";
    name[8] += (char)i;
    ask(name, p + (CUdeviceptr)i * PART, PART);
  }
}
#define AFTER(call) (SHOW(call), ask_all(#call))

static CUmemLocation place(int type, int id) {
  CUmemLocation l;
  memset(&l, 0, sizeof l);
  l.type = (CUmemLocationType)type, l.id = id;
  return l;
}

static void advice(void) {
  ask_all("nothing");
  AFTER(advise(p + PART, 2 * PART, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
  AFTER(advise(p + PART + 5000, 1000, CU_MEM_ADVISE_UNSET_READ_MOSTLY, device)); // whole pages
  ask("the page before", p + PART, 4096);
  ask("the page", p + PART + 4096, 4096);
  ask("a byte of the page", p + PART + 4096, 1);
  ask("a byte of the page behind", p + PART + 8192, 1);
  ask("from before to behind", p + PART, 3 * 4096);
  AFTER(advise(p, N, CU_MEM_ADVISE_UNSET_READ_MOSTLY, CU_DEVICE_CPU)); // the place does not matter
  AFTER(advise(p, N, CU_MEM_ADVISE_SET_READ_MOSTLY, 99));
  AFTER(advise(p, N, CU_MEM_ADVISE_UNSET_READ_MOSTLY, device));
  AFTER(advise(p, 2 * PART, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device));
  AFTER(advise(p + PART, 2 * PART, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU));
  AFTER(advise(p + 2 * PART, PART, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, 99));
  AFTER(advise(p, PART, CU_MEM_ADVISE_SET_ACCESSED_BY, device));
  AFTER(advise(p, N, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_DEVICE_CPU));
  AFTER(advise(p, 2 * PART, CU_MEM_ADVISE_UNSET_ACCESSED_BY, CU_DEVICE_CPU));
  AFTER(advise(p, N, CU_MEM_ADVISE_UNSET_ACCESSED_BY, device));
}

static void places(void) {
  AFTER(advise_at(p, PART, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place(CU_MEM_LOCATION_TYPE_DEVICE, 0)));
  AFTER(advise_at(p, 2 * PART, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place(CU_MEM_LOCATION_TYPE_HOST, 7)));
  AFTER(advise_at(p + 2 * PART, PART, CU_MEM_ADVISE_SET_ACCESSED_BY, place(CU_MEM_LOCATION_TYPE_HOST, 0)));
  SHOW(advise_at(p, N, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place(CU_MEM_LOCATION_TYPE_INVALID, 0)));
  SHOW(advise_at(p, N, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place(CU_MEM_LOCATION_TYPE_DEVICE, 99)));
  SHOW(advise_at(p, N, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place(CU_MEM_LOCATION_TYPE_HOST_NUMA, 999)));
  SHOW(advise_at(p, N, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place(CU_MEM_LOCATION_TYPE_HOST_NUMA, -1)));
  SHOW(advise_at(p, N, CU_MEM_ADVISE_SET_ACCESSED_BY, place(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0)));
  SHOW(advise_at(p, N, CU_MEM_ADVISE_SET_ACCESSED_BY, place(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0)));
  SHOW(advise_at(p, N, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place(77, 0)));
  SHOW(advise_at(p, N, CU_MEM_ADVISE_SET_READ_MOSTLY, place(77, 0)));
  SHOW(advise_at(p, N, CU_MEM_ADVISE_SET_READ_MOSTLY, place(CU_MEM_LOCATION_TYPE_INVALID, 0)));
  ask_all("refusals");
  // what is told of it differs from machine to machine
  SHOW(advise_at(p, N, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0)));
  SHOW(advise_at(p, N, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0)));
  SHOW(advise_at(p, N, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, place(CU_MEM_LOCATION_TYPE_INVALID, 0)));
  SHOW(advise_at(p, N, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, place(CU_MEM_LOCATION_TYPE_HOST, 0)));
  SHOW(advise_at(p, N, CU_MEM_ADVISE_UNSET_ACCESSED_BY, place(CU_MEM_LOCATION_TYPE_HOST, 0)));
  ask_all("all was taken back");
}

static void prefetches(void) {
  memset((void *)(uintptr_t)p, 1, N);
  AFTER(prefetch(p, N, device, 0));
  AFTER(prefetch(p + PART, 2 * PART, CU_DEVICE_CPU, 0));
  AFTER(prefetch_at(p, PART, place(CU_MEM_LOCATION_TYPE_HOST, 0), 0, 0));
  AFTER(prefetch_at(p, PART, place(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0), 0, 0));
  AFTER(prefetch_at(p, 2 * PART, place(CU_MEM_LOCATION_TYPE_DEVICE, 0), 0, 0));
  AFTER(prefetch(p + N - 5000, 5000, CU_DEVICE_CPU, 0));
  SHOW(prefetch(p, N, 99, 0));
  SHOW(prefetch(p, N, CU_DEVICE_INVALID, 0));
  SHOW(prefetch(p, 0, device, 0));
  SHOW(prefetch(p, N + 1, device, 0));
  SHOW(prefetch(p + N, 1, device, 0));
  SHOW(prefetch_at(p, N, place(CU_MEM_LOCATION_TYPE_DEVICE, 0), 1, 0));
  SHOW(prefetch_at(p, N, place(CU_MEM_LOCATION_TYPE_INVALID, 0), 0, 0));
  SHOW(prefetch_at(p, N, place(CU_MEM_LOCATION_TYPE_DEVICE, 99), 0, 0));
  SHOW(prefetch_at(p, N, place(CU_MEM_LOCATION_TYPE_HOST_NUMA, 999), 0, 0));
  CK(cuCtxSynchronize());
  ask_all("refusals");
  SHOW(prefetch_at(p, N, place(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0), 0, 0));
  CK(cuCtxSynchronize());
  for (int i = 0; i < N; i += 4095) CHECK(((unsigned char *)(uintptr_t)p)[i] == 1, "byte %d", i);
}

static void refused(void) {
  CUdeviceptr plain, q;
  int words[4];
  CK(cuMemAlloc(&plain, 65536));
  for (int a = -1; a < 9; a++) {
    int r = (int)advise(p, N, (CUmem_advise)a, device);
    if (a < 1 || a > 6) printf("advice %d = %d\n", a, r);
  }
  for (int a = 2; a < 7; a += 2) CK(advise(p, N, (CUmem_advise)a, device));
  SHOW(advise(p, N, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 99));
  SHOW(advise(p, N, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_INVALID));
  SHOW(advise(p, N, CU_MEM_ADVISE_SET_ACCESSED_BY, 99));
  SHOW(advise(p, 0, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
  SHOW(advise(p, N + 1, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
  SHOW(advise(p - 1, 2, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
  SHOW(advise(plain, 65536, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
  SHOW(prefetch(plain, 65536, device, 0));
  for (int size = 0; size < 13; size++) {
    printf("%d bytes: read mostly %d, preferred %d, accessed by %d, preferred type %d\n", size,
           (int)cuMemRangeGetAttribute(words, (size_t)size, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, N),
           (int)cuMemRangeGetAttribute(words, (size_t)size, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, N),
           (int)cuMemRangeGetAttribute(words, (size_t)size, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, p, N),
           (int)cuMemRangeGetAttribute(words, (size_t)size, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, p, N));
  }
  for (int a = 0; a < 12; a += a ? 9 : 1)
    printf("attribute %d = %d\n", a, (int)cuMemRangeGetAttribute(words, 4, (CUmem_range_attribute)a, p, N));
  SHOW(cuMemRangeGetAttribute(NULL, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, N));
  SHOW(cuMemRangeGetAttribute(words, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 0));
  SHOW(cuMemRangeGetAttribute(words, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, N + 1));
  SHOW(cuMemRangeGetAttribute(words, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, plain, 4096));
  void *data[2] = {words, words + 1};
  size_t sizes[2] = {4, 4};
  CUmem_range_attribute what[2] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, (CUmem_range_attribute)99};
  SHOW(cuMemRangeGetAttributes(data, sizes, what, 2, p, N));
  SHOW(cuMemRangeGetAttributes(data, sizes, what, 0, p, N));
  SHOW(cuMemRangeGetAttributes(NULL, sizes, what, 1, p, N));
  SHOW(cuMemAllocManaged(&q, 4096, 0));
  SHOW(cuMemAllocManaged(&q, 4096, CU_MEM_ATTACH_SINGLE));
  SHOW(cuMemAllocManaged(&q, 4096, 8));
  SHOW(cuMemAllocManaged(&q, 0, CU_MEM_ATTACH_GLOBAL));
  SHOW(cuMemAllocManaged(NULL, 4096, CU_MEM_ATTACH_GLOBAL));
  SHOW(cuMemFree(p + 4096));
  CUstream s;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  // 0 ends an H200's driver
  for (int flags = 1; flags < 6; flags++)
    printf("attach %d = %d\n", flags, (int)cuStreamAttachMemAsync(s, p, 0, (unsigned)flags));
  SHOW(cuStreamAttachMemAsync(s, p, N, CU_MEM_ATTACH_SINGLE));
  SHOW(cuStreamAttachMemAsync(s, p, 4096, CU_MEM_ATTACH_GLOBAL));
  SHOW(cuStreamAttachMemAsync(s, p + 4096, 0, CU_MEM_ATTACH_GLOBAL));
  SHOW(cuStreamAttachMemAsync(NULL, p, 0, CU_MEM_ATTACH_SINGLE));
  SHOW(cuStreamAttachMemAsync(s, plain, 0, CU_MEM_ATTACH_GLOBAL));
  SHOW(cuStreamAttachMemAsync(s, p, 0, CU_MEM_ATTACH_HOST));
  SHOW(cuStreamAttachMemAsync(s, p, 0, CU_MEM_ATTACH_GLOBAL));
  SHOW(cuStreamSynchronize(s));
  CK(cuStreamDestroy(s));
  CK(cuMemFree(plain));
}

int main(int argc, char **argv) {
  start(argc, argv);
  CK(cuCtxGetDevice(&device));
  p = dev(managed(N));
  advice();
  places();
  prefetches();
  refused();
  CK(cuMemFree(p));
  SHOW(cuMemFree(p));
  return 0;
}
