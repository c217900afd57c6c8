// names FOLDER: a program that looks for each function with _v2 behind its name first, as numba does, and calls what it
// finds as it knows it. Where the driver is older than that form it is the function without _v2; where not, a context
// that cannot be one means the current one.
#include "check.h"

#include <dlfcn.h>

typedef CUresult any();

int main(int argc, char **argv) {
  start(argc, argv);
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) FAIL("%s", dlerror());
#define FIND(name) ((any *)dlsym(library, name "_v2"))
  int version;
  CK(cuDriverGetVersion(&version));
  void *junk = (void *)0x1234567;
  CUdevice device = -1;
  CK(FIND("cuCtxGetDevice")(&device, junk));
  printf("the current context's device: %d\n", device);
  CK(FIND("cuCtxSynchronize")(junk));
  CUevent a, b;
  CK(cuEventCreate(&a, 0));
  CK(cuEventCreate(&b, 0));
  CK(cuEventRecord(a, NULL));
  CK(cuEventRecord(b, NULL));
  CK(cuEventSynchronize(b));
  float ms = -1;
  CK(FIND("cuEventElapsedTime")(&ms, a, b));
  if (ms < 0) FAIL("elapsed time %g", ms);
  if (version < 12030) { // edges without data
    CUgraph g;
    CUgraphNode n[2], from = NULL, to = NULL;
    size_t count = 1;
    CK(cuGraphCreate(&g, 0));
    CK(cuGraphAddEmptyNode(&n[0], g, NULL, 0));
    CK(cuGraphAddEmptyNode(&n[1], g, NULL, 0));
    CK(FIND("cuGraphAddDependencies")(g, &n[0], &n[1], (size_t)1));
    CK(FIND("cuGraphGetEdges")(g, &from, &to, &count));
    if (count != 1 || from != n[0] || to != n[1]) FAIL("%zu edges", count);
    CK(cuGraphDestroy(g));
  }
  if (version < 12020) { // a device instead of a location
    CUdeviceptr managed;
    CK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
    CK(FIND("cuMemAdvise")(managed, (size_t)4096, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
    CK(FIND("cuMemPrefetchAsync")(managed, (size_t)4096, device, NULL));
    CK(cuCtxSynchronize());
    CK(cuMemFree(managed));
  }
  CK(cuEventDestroy(a));
  CK(cuEventDestroy(b));
  printf("all found and called\n");
  return 0;
}
