// Memory that the driver would keep on the server's host, where the program could not reach it: refused, and the
// attributes say so.
#include "check.h"

int main(int argc, char **argv) {
  start(argc, argv);
  static const CUdevice_attribute promises[] = {
      CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,   CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED};
  for (size_t i = 0; i < sizeof promises / sizeof *promises; i++) {
    int value = -1;
    CK(cuDeviceGetAttribute(&value, promises[i], 0));
    CHECK(value == 0, "attribute %d says %d", promises[i], value);
  }
  static const CUmemLocationType places[] = {CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA,
                                             CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT};
  for (int i = 0; i < 4; i++) {
    CUmemAllocationProp prop;
    CUmemPoolProps props;
    memset(&prop, 0, sizeof prop);
    memset(&props, 0, sizeof props);
    prop.type = i < 3 ? CU_MEM_ALLOCATION_TYPE_PINNED : CU_MEM_ALLOCATION_TYPE_MANAGED;
    prop.location.type = i < 3 ? places[i] : CU_MEM_LOCATION_TYPE_DEVICE;
    props.allocType = prop.type;
    props.location = prop.location;
    CUmemGenericAllocationHandle memory;
    CUmemoryPool pool;
    WANT(cuMemCreate(&memory, 2 << 20, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
    WANT(cuMemPoolCreate(&pool, &props), CUDA_ERROR_NOT_SUPPORTED);
    WANT(cuMemGetDefaultMemPool(&pool, &prop.location, prop.type), CUDA_ERROR_NOT_SUPPORTED);
    WANT(cuMemGetMemPool(&pool, &prop.location, prop.type), CUDA_ERROR_NOT_SUPPORTED);
    CK(cuDeviceGetDefaultMemPool(&pool, 0));
    WANT(cuMemSetMemPool(&prop.location, prop.type, pool), CUDA_ERROR_NOT_SUPPORTED);

    CUgraph graph;
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    CK(cuGraphCreate(&graph, 0));
    memset(&alloc, 0, sizeof alloc);
    alloc.poolProps = props;
    alloc.bytesize = 4096;
    WANT(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &alloc), CUDA_ERROR_NOT_SUPPORTED);
    CK(cuGraphDestroy(graph));
  }
  puts("memory elsewhere is refused");
  return 0;
}
