// Looks in new memory for what a process has left in memory that it freed, or had when it ended.
//
//   canary KERNELS plant     leaves words of its own in memory of every kind, and ends
//   canary KERNELS stay      leaves them, frees the memory, and ends when its input does
//   canary KERNELS look      counts such words in new memory of every kind
//   canary KERNELS again     does both in one process
//
// Only "again" may find any.
#include "check.h"
#include <unistd.h>

enum { BLOCK = 1 << 20, BLOCKS = 8, WORD = 0x5CADACAA };

static uint32_t words[BLOCK / 4];

struct piece {
  CUdeviceptr at;
  CUarray array;
  void *host;
  CUmemGenericAllocationHandle handle;
};

struct kind {
  const char *name;
  void (*take)(struct piece *);
  void (*give)(struct piece *);
};

static void take_malloc(struct piece *p) { CK(cuMemAlloc(&p->at, BLOCK)); }
static void give_malloc(struct piece *p) { CK(cuMemFree(p->at)); }
static void take_async(struct piece *p) { CK(cuMemAllocAsync(&p->at, BLOCK, 0)); }
static void give_async(struct piece *p) { CK(cuMemFreeAsync(p->at, 0)); }
static void take_managed(struct piece *p) { CK(cuMemAllocManaged(&p->at, BLOCK, CU_MEM_ATTACH_GLOBAL)); }
static void take_array(struct piece *p) {
  CUDA_ARRAY_DESCRIPTOR d = {.Width = 1024, .Height = BLOCK / 4096, .Format = CU_AD_FORMAT_UNSIGNED_INT32,
                             .NumChannels = 1};
  CK(cuArrayCreate(&p->array, &d));
}
static void give_array(struct piece *p) { CK(cuArrayDestroy(p->array)); }
static void take_host(struct piece *p) {
  CK(cuMemHostAlloc(&p->host, BLOCK, CU_MEMHOSTALLOC_DEVICEMAP));
  CK(cuMemHostGetDevicePointer(&p->at, p->host, 0));
}
static void give_host(struct piece *p) { CK(cuMemFreeHost(p->host)); }
static void take_vmm(struct piece *p) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CK(cuMemCreate(&p->handle, 2 * BLOCK, &prop, 0));
  CK(cuMemAddressReserve(&p->at, 2 * BLOCK, 0, 0, 0));
  CK(cuMemMap(p->at, 2 * BLOCK, 0, p->handle, 0));
  CK(cuMemSetAccess(p->at, 2 * BLOCK, &access, 1));
}
static void give_vmm(struct piece *p) {
  CK(cuMemUnmap(p->at, 2 * BLOCK));
  CK(cuMemAddressFree(p->at, 2 * BLOCK));
  CK(cuMemRelease(p->handle));
}

static const struct kind kinds[] = {
    {"cuMemAlloc", take_malloc, give_malloc},        {"cuMemAllocAsync", take_async, give_async},
    {"cuMemAllocManaged", take_managed, give_malloc}, {"cuArrayCreate", take_array, give_array},
    {"cuMemHostAlloc", take_host, give_host},         {"cuMemCreate", take_vmm, give_vmm},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void copy(struct piece *p, int to) { // to or from words, through the GPU
  if (!p->array) {
    if (to)
      CK(cuMemcpyHtoD(p->at, words, BLOCK));
    else
      CK(cuMemcpyDtoH(words, p->at, BLOCK));
    return;
  }
  CUDA_MEMCPY2D c = {.WidthInBytes = 4096, .Height = BLOCK / 4096};
  c.srcMemoryType = to ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_ARRAY;
  c.dstMemoryType = to ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_HOST;
  c.srcHost = c.dstHost = words;
  c.srcArray = c.dstArray = p->array;
  c.srcPitch = c.dstPitch = 4096;
  CK(cuMemcpy2D(&c));
}

static void plant(const struct kind *k, int give) {
  struct piece p[BLOCKS] = {0};
  for (int i = 0; i < BLOCKS; i++) k->take(&p[i]);
  for (int i = 0; i < BLOCK / 4; i++) words[i] = WORD;
  for (int i = 0; i < BLOCKS; i++) copy(&p[i], 1);
  CK(cuCtxSynchronize());
  for (int i = 0; give && i < BLOCKS; i++) k->give(&p[i]);
  CK(cuCtxSynchronize());
}

static long look(const struct kind *k) {
  struct piece p[BLOCKS] = {0};
  long found = 0;
  for (int i = 0; i < BLOCKS; i++) k->take(&p[i]);
  CK(cuCtxSynchronize());
  for (int i = 0; i < BLOCKS; i++) {
    memset(words, 0, sizeof words);
    copy(&p[i], 0);
    for (int j = 0; j < BLOCK / 4; j++) found += words[j] == WORD;
  }
  for (int i = 0; i < BLOCKS; i++) k->give(&p[i]);
  return found;
}

int main(int argc, char **argv) {
  start(argc, argv);
  const char *what = argc > 2 ? argv[2] : "again";
  int again = !strcmp(what, "again"), stay = !strcmp(what, "stay");
  long all = 0;
  for (int i = 0; i < KINDS; i++) {
    long found = 0;
    if (strcmp(what, "look")) plant(&kinds[i], again || stay);
    if (again || !strcmp(what, "look")) found = look(&kinds[i]);
    if (!again) printf("%s: %ld words\n", kinds[i].name, found);
    all += found;
  }
  if (again) fprintf(stderr, "found %ld words of its own\n", all); // as many as the driver pleases
  printf("ready\n");
  if (stay) getchar();
  return 0; // with what is there
}
