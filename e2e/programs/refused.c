// What functions do not support though they work otherwise (the `part` lines of api/cuda.semantics): each says so, and
// the library's log names it.
#include "check.h"

#define REFUSED(call) WANT(call, CUDA_ERROR_NOT_SUPPORTED)

static void memory(void) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_HOST}};
  CUmemGenericAllocationHandle handle;
  REFUSED(cuMemCreate(&handle, 2 << 20, &prop, 0));
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED,
                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemoryPool pool;
  REFUSED(cuMemPoolCreate(&pool, &props));
  prop.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE};
  CK(cuMemCreate(&handle, 2 << 20, &prop, 0));
  void *out;
  WANT(cuMemExportToShareableHandle(&out, handle, CU_MEM_HANDLE_TYPE_WIN32, 0), CUDA_ERROR_INVALID_VALUE);
  REFUSED(cuMemImportFromShareableHandle(&handle, &prop, CU_MEM_HANDLE_TYPE_WIN32_KMT));
  CK(cuMemRelease(handle));
  static char page[4096] __attribute__((aligned(4096)));
  // it is no device's
  WANT(cuMemHostRegister(page, sizeof page, CU_MEMHOSTREGISTER_IOMEMORY), CUDA_ERROR_INVALID_VALUE);
  void *pinned;
  unsigned long long tokens[2];
  CK(cuMemAllocHost(&pinned, 4096));
  WANT(cuPointerGetAttribute(tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, (CUdeviceptr)(uintptr_t)pinned),
       CUDA_ERROR_INVALID_VALUE);
  CK(cuMemFreeHost(pinned));
  CUdeviceptr device;
  CK(cuMemAlloc(&device, 4096));
  REFUSED(cuPointerGetAttribute(tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, device));
  CK(cuMemFree(device));
}

static void code(void) {
  void *functions[] = {NULL};
  size_t size;
  void *image = read_file("kernels.fatbin", &size);
  CUlibraryHostUniversalFunctionAndDataTable table = {.functionTable = functions, .functionWindowSize = 8};
  CUlibraryOption option = CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE;
  void *tables[] = {&table};
  CUlibrary library;
  REFUSED(cuLibraryLoadData(&library, image, NULL, NULL, 0, &option, tables, 1));
  free(image);
}

static void graphs(void) {
  CUgraph graph, body;
  CUgraphNode node;
  CUgraphConditionalHandle handle;
  CUdeviceptr dev;
  static char pageable[64];
  CK(cuMemAlloc(&dev, sizeof pageable));
  CK(cuGraphCreate(&graph, 0));
  CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL};
  REFUSED(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &p));
  CK(cuGraphConditionalHandleCreate(&handle, graph, context, 1, 1));
  p = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
  p.conditional.handle = handle, p.conditional.type = CU_GRAPH_COND_TYPE_IF, p.conditional.size = 1,
      p.conditional.ctx = context;
  CK(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &p));
  body = p.conditional.phGraph_out[0];
  CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = pageable, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = dev,
                        .WidthInBytes = sizeof pageable, .Height = 1, .Depth = 1};
  REFUSED(cuGraphAddMemcpyNode(&node, body, NULL, 0, &copy, context));
  REFUSED(cuGraphAddMemcpyNode(&node, body, NULL, 0, &copy, context)); // logged once
  CUstream s;
  CUgraph same;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuStreamBeginCaptureToGraph(s, body, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
  REFUSED(cuMemcpyHtoDAsync(dev, pageable, sizeof pageable, s));
  CK(cuStreamEndCapture(s, &same));
  CK(cuGraphDestroy(graph));
}

int main(int argc, char **argv) {
  start(argc, argv);
  CUctxCigParam cig = {0};
  CUctxCreateParams params = {.cigParams = &cig};
  CUcontext other;
  REFUSED(cuCtxCreate_v4(&other, &params, 0, 0));
  memory();
  code();
  graphs();
  puts("refused");
  return 0;
}
