/* Cases about modules, libraries, the linker and occupancy. */
#include "cases.h"

/* A server that does not have an image until it is sent. */
static int32_t missing_once(const struct command *c, void *reply, uint32_t cap, uint32_t *len) {
  if (c->op != OP_MODULE_LOAD || rec->images_sent) return server(c, reply, cap, len);
  *len = 0;
  return 500;
}

void modules(void) {
  start();
  rec->answer = server;
  CUmodule m, lm;
  CUfunction f, g;
  CUlibrary lib;
  CUkernel k;
  CUdeviceptr p;
  size_t size, offset;
  int v;
  const char *name;
  uint32_t n;
  WANT(cuModuleLoadData(&m, "bad image"), 200);
  CK(cuModuleLoadData(&m, "good"));
  WANT(rec->images_sent, 0);                     /* the server has it */
  rec->answer = missing_once;
  n = sent();
  CK(cuModuleLoadData(&m, "good"));
  WANT(rec->images_sent, 1);
  WANT(sent(), n + 2);
  WANT(last(OP_MODULE_LOAD)->flags, ANSWER);
  rec->answer = server;
  WANT(cuModuleGetFunction(&f, m, "absent"), 500);
  CK(cuModuleGetFunction(&f, m, "kernel"));
  n = sent();
  CK(cuModuleGetFunction(&g, m, "kernel"));
  WANT((uintptr_t)f, (uintptr_t)g);
  CK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f));
  WANT(v, 512);
  CK(cuFuncGetParamInfo(f, 1, &offset, &size));
  WANT(offset * 100 + size, 804);
  WANT(cuFuncGetParamInfo(f, 3, &offset, &size), 1);
  CK(cuFuncGetName(&name, f));
  WANT(strcmp(name, "kernel"), 0);
  CK(cuFuncGetModule(&lm, f));
  WANT((uintptr_t)lm, (uintptr_t)m);
  WANT(sent(), n);
  CK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
  WANT(last(OP_cuFuncSetAttribute)->flags, 0);
  CK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f));
  WANT(v, 100000);
  CK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 300000));
  WANT(last(OP_cuFuncSetAttribute)->flags, ANSWER);
  CK(cuModuleGetGlobal(&p, &size, m, "table"));
  n = sent();
  CK(cuModuleGetGlobal(&p, &size, m, "table"));
  unsigned type;
  CK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 63));
  WANT(type, CU_MEMORYTYPE_DEVICE);
  WANT(sent(), n);
  CK(cuModuleUnload(m));
  WANT(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL), 400);
  WANT(cuModuleGetFunction(&f, m, "kernel"), 400);
  WANT(cuModuleUnload(m), 400);

  CK(cuCtxSetCurrent(NULL));                     /* libraries load without a context */
  WANT(cuModuleLoadData(&m, "good"), 201);
  CUlibraryOption option = CU_LIBRARY_BINARY_IS_PRESERVED;
  CK(cuLibraryLoadData(&lib, "good", NULL, NULL, 0, &option, NULL, 1));
  CK(cuCtxSetCurrent(ctx));
  CK(cuLibraryGetKernel(&k, lib, "kernel"));
  CK(cuKernelGetFunction(&f, k));
  n = sent();
  CK(cuKernelGetFunction(&g, k));
  WANT((uintptr_t)f, (uintptr_t)g);
  CK(cuKernelGetAttribute(&v, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, k, 0));
  WANT(v, 1024);
  CUlibrary l2;
  CK(cuKernelGetLibrary(&l2, k));
  WANT((uintptr_t)l2, (uintptr_t)lib);
  WANT(sent(), n);
  CK(cuKernelGetAttribute(&v, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, k, 1)); /* another device: asked for */
  WANT(v, 1);
  CK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1000, k, 0));
  CK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f));
  WANT(v, 1000);                                 /* holds for the kernel's functions too */
  CK(cuLaunchKernel((CUfunction)k, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL));
  WANT(((const struct wire_launch *)last(OP_LAUNCH)->payload)->func, (uintptr_t)k);
  CK(cuLibraryGetModule(&lm, lib));
  WANT(cuModuleUnload(lm), 400);                 /* goes with its library */
  CK(cuLibraryUnload(lib));
  WANT(cuModuleGetFunction(&f, lm, "kernel"), 400);
  WANT(cuKernelGetFunction(&f, k), 400);
}

void jit(void) {
  start();
  rec->answer = server;
  CUmodule m;
  char info[4] = {0}, error[64] = {0};
  CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_MAX_REGISTERS, CU_JIT_GLOBAL_SYMBOL_COUNT};
  void *values[] = {info, (void *)4, error, (void *)64, (void *)40, (void *)0};
  rec->result = 218;
  WANT(cuModuleLoadDataEx(&m, "good", 6, options, values), 218);
  const struct command *c = last(OP_MODULE_LOAD);
  const struct wire_module_load *l = (const void *)c->payload;
  WANT(l->jit_count, 3);                         /* the sizes of the logs and the register count */
  const uint64_t *pairs = (const void *)(l + 1);
  WANT(pairs[4], CU_JIT_MAX_REGISTERS);
  WANT(pairs[5], 40);
  WANT(strcmp(error, "sorry!"), 0);
  WANT((uintptr_t)values[3], 6);
  WANT(strcmp(info, "hel"), 0);                  /* cut to the buffer */

  /* Variables of the program: their addresses, as kernels see them, and their names. */
  unsigned *pinned, plain;
  CK(cuMemHostAlloc((void **)&pinned, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  const char *names[] = {"counter", "x"};
  void *addresses[] = {pinned, &plain};
  CUjit_option host[] = {CU_JIT_GLOBAL_SYMBOL_NAMES, CU_JIT_GLOBAL_SYMBOL_ADDRESSES,
                         CU_JIT_GLOBAL_SYMBOL_COUNT, CU_JIT_REFERENCED_KERNEL_COUNT};
  void *given[] = {names, addresses, (void *)2, (void *)9};
  rec->result = 0;
  CK(cuModuleLoadDataEx(&m, "good", 4, host, given));
  l = (const void *)(c = last(OP_MODULE_LOAD))->payload;
  WANT(l->jit_count, 0);
  WANT(l->symbols, 2);
  WANT(l->symbol_bytes, 10);
  uint64_t at[2];
  memcpy(at, l + 1, sizeof at);
  WANT(at[0], (uintptr_t)pinned);                /* where the recording server maps it */
  WANT(at[1], (uintptr_t)&plain);
  WANT(memcmp((const char *)(l + 1) + sizeof at, "counter\0x", 10), 0);
  given[0] = NULL;
  WANT(cuModuleLoadDataEx(&m, "good", 4, host, given), 1);
  CUlinkState link;
  given[0] = names;
  CK(cuLinkCreate(4, host, given, &link));
  const struct wire_link_create *made = (const void *)last(OP_LINK_CREATE)->payload;
  WANT(made->jit_count, 0);
  WANT(made->symbols, 2);
  WANT(memcmp(made + 1, at, sizeof at), 0);
  WANT(memcmp((const char *)(made + 1) + sizeof at, "counter\0x", 10), 0);
  CK(cuLinkAddData(link, CU_JIT_INPUT_PTX, "text", 5, "name", 4, host, given));
  const struct wire_link_add *added = (const void *)last(OP_LINK_ADD)->payload;
  WANT(added->symbols, 2);
  WANT(memcmp((const char *)(added + 1) + 8 + sizeof at, "counter\0x", 10), 0);
  given[2] = (void *)5000;
  WANT(cuLinkCreate(4, host, given, &link), 1);
}

void names(void) {
  start();
  rec->answer = server;
  CUmodule m;
  CUfunction f[2] = {0}, by_name;
  unsigned count;
  CK(cuModuleLoadData(&m, "good"));
  CK(cuModuleGetFunctionCount(&count, m));
  WANT(count, 2);
  CK(cuModuleEnumerateFunctions(f, 2, m));
  CK(cuModuleGetFunction(&by_name, m, "other"));
  WANT((uintptr_t)f[1], (uintptr_t)by_name);
}

void occupancy(void) {
  start();
  CUfunction f = kernel();
  int v, grid;
  CK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&v, f, 128, 0));
  uint32_t n = sent();
  CK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&v, f, 128, 0));
  CK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&v, f, 128, 0, 0));
  WANT(sent(), n);
  CK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&v, f, 128, 16));
  WANT(sent(), n + 1);
  CK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50));
  CK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&v, f, 128, 0));
  WANT(sent(), n + 3);                           /* the answer may have changed */
  CK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50));
  CK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&v, f, 128, 0));
  WANT(sent(), n + 4);                           /* it cannot have */
  CUlaunchConfig config =
      {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
  CK(cuOccupancyMaxActiveClusters(&v, f, &config));
  WANT(v, 5);
  n = sent();
  CK(cuOccupancyMaxActiveClusters(&v, f, &config));
  WANT(sent(), n);
  CK(cuOccupancyMaxPotentialBlockSize(&grid, &v, f, NULL, 0, 0)); /* one block fits, so the largest is best */
  WANT(v, 512);
  WANT(grid, 100);
}
