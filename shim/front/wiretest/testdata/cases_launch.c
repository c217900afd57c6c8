/* Cases about launches. */
#include "cases.h"

static uint64_t a = 0x1122334455667788;
static int32_t b = 77;
static double x = 2.5;
void *args[] = {&a, &b, &x};

static void check_params(const uint8_t *p) {
  if (memcmp(p, &a, 8) || memcmp(p + 8, &b, 4) || memcmp(p + 16, &x, 8)) FAIL("parameters are packed wrongly");
}

/* A kernel that was made for one shape of blocks: launches with another are asked about. */
void launch_shaped(void) {
  CUmodule m;
  CUfunction f;
  CK(cuModuleLoadData(&m, "good"));
  CK(cuModuleGetFunction(&f, m, "shaped"));
  CK(cuLaunchKernel(f, 1, 1, 1, 2, 1, 1, 0, 0, args, NULL));
  WANT(last(OP_LAUNCH)->flags, 0);
  rec->result = 1;
  WANT(cuLaunchKernel(f, 1, 1, 1, 1, 2, 1, 0, 0, args, NULL), 1);
  WANT(last(OP_LAUNCH)->flags, ANSWER);
  rec->result = 0;
}

void launch(void) {
  start();
  CUfunction f = kernel();
  launch_shaped();
  CUstream s;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  uint32_t calls = rec->calls;
  CK(cuLaunchKernel(f, 2, 3, 4, 8, 4, 2, 100, s, args, NULL));
  const struct command *c = last(OP_LAUNCH);
  const struct wire_launch *l = (const void *)c->payload;
  WANT(c->flags, 0);
  WANT(c->context, (uintptr_t)ctx);
  WANT(l->func, (uintptr_t)f);
  WANT(l->stream, (uintptr_t)s);
  if (l->grid[0] != 2 || l->grid[1] != 3 || l->grid[2] != 4 || l->block[0] != 8 ||
      l->block[1] != 4 || l->block[2] != 2) FAIL("grid or block");
  WANT(l->shared_bytes, 100);
  WANT(l->param_bytes, 24);
  check_params((const uint8_t *)(l + 1));

  uint8_t packed[24] = {0};
  size_t size = sizeof packed;
  memcpy(packed, &a, 8), memcpy(packed + 8, &b, 4), memcpy(packed + 16, &x, 8);
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, NULL, extra));
  check_params(last(OP_LAUNCH)->payload + sizeof *l);
  CK(cuLaunchKernel_ptsz(f, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL));
  WANT(last(OP_LAUNCH)->flags, PTDS);
  WANT(rec->calls, calls);                       /* nothing was waited for */
  CK(cuLaunchCooperativeKernel(f, 1, 1, 1, 1, 1, 1, 0, s, args));
  WANT(((const struct wire_launch *)last(OP_LAUNCH)->payload)->flags, 1);
  WANT(last(OP_LAUNCH)->flags, ANSWER);          /* the grid may not fit */
}

void launch_refusals(void) {
  start();
  CUfunction f = kernel();
  CUevent e;
  CK(cuEventCreate(&e, 0));
  uint32_t n = sent();
  WANT(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL), 400);
  WANT(cuLaunchKernel((CUfunction)e, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL), 400);
  WANT(cuLaunchKernel((CUfunction)((char *)f + 8), 1, 1, 1, 1, 1, 1, 0, 0, args, NULL), 400);
  WANT(cuLaunchKernel((CUfunction)0xdeadbeef, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL), 400);
  WANT(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, (CUstream)e, args, NULL), 400);
  WANT(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, NULL, NULL), 1);
  void *extra[] = {CU_LAUNCH_PARAM_END};
  WANT(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, args, extra), 1);
  WANT(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, NULL, extra), 1);
  CK(cuCtxSetCurrent(NULL));
  WANT(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, args, NULL), 201);
  CK(cuCtxSetCurrent(ctx));
  WANT(sent(), n);
  /* What the driver has to judge is asked for at once: its own code is the answer. */
  static const unsigned bad[][7] = {
      {0, 1, 1, 1, 1, 1, 0}, {1, 65536, 1, 1, 1, 1, 0}, {1, 1, 1, 0, 1, 1, 0}, {1, 1, 1, 1025, 1, 1, 0},
      {1, 1, 1, 1, 1, 65, 0}, {1, 1, 1, 32, 17, 1, 0}, {1, 1, 1, 1, 1, 1, 49153}};
  rec->result = 701;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    WANT(cuLaunchKernel(f, bad[i][0], bad[i][1], bad[i][2], bad[i][3],
                        bad[i][4], bad[i][5], bad[i][6], 0, args, NULL), 701);
    WANT(last(OP_LAUNCH)->flags, ANSWER);
  }
}

void launch_attributes(void) {
  start();
  CUfunction f = kernel();
  CUlaunchAttribute attrs[2] = {{.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION}, {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY}};
  attrs[0].value.clusterDim.x = 2;
  attrs[0].value.clusterDim.y = attrs[0].value.clusterDim.z = 1;
  CUlaunchConfig config = {.gridDimX = 4, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32,
                           .blockDimY = 1, .blockDimZ = 1, .sharedMemBytes = 8, .attrs = attrs, .numAttrs = 2};
  CK(cuLaunchKernelEx(&config, f, args, NULL));
  const struct command *c = last(OP_LAUNCH);
  WANT(c->flags, ANSWER);                        /* the first of its kind */
  const struct wire_launch *l = (const void *)c->payload;
  WANT(l->attr_count, 2);
  if (memcmp(l + 1, attrs, sizeof attrs)) FAIL("attributes differ");
  check_params((const uint8_t *)(l + 1) + sizeof attrs);
  for (int i = 0; i < 2; i++) {
    config.gridDimX = 9;
    CK(cuLaunchKernelEx(&config, f, args, NULL));
    WANT(last(OP_LAUNCH)->flags, ANSWER);        /* no multiple of its clusters, whatever was possible before */
    config.gridDimX = 8;
    CK(cuLaunchKernelEx(&config, f, args, NULL));
    WANT(last(OP_LAUNCH)->flags, 0);             /* known to be possible */
  }
  attrs[0].value.clusterDim.x = 4;
  CK(cuLaunchKernelEx(&config, f, args, NULL));
  WANT(last(OP_LAUNCH)->flags, ANSWER);
  attrs[0].value.clusterDim.x = 2;               /* what was possible still is */
  memset((char *)&attrs[0] + 20, 0xa5, sizeof attrs[0] - 20);
  memset((char *)&attrs[1] + 12, 0xa5, sizeof attrs[1] - 12); /* what a program leaves on its stack */
  CK(cuLaunchKernelEx(&config, f, args, NULL));
  c = last(OP_LAUNCH);
  WANT(c->flags, 0);
  for (int i = 0; i < 2; i++)
    for (size_t k = i ? 12 : 20; k < sizeof *attrs; k++)
      if (c->payload[sizeof *l + (size_t)i * sizeof *attrs + k]) FAIL("byte %zu of attribute %d is not 0", k, i);
  CK(cuLaunchCooperativeKernel(f, 2, 1, 1, 32, 1, 1, 0, 0, args));
  WANT(last(OP_LAUNCH)->flags, ANSWER);
  CK(cuLaunchCooperativeKernel(f, 2, 1, 1, 32, 1, 1, 0, 0, args));
  WANT(last(OP_LAUNCH)->flags, 0);
  CK(cuLaunchCooperativeKernel(f, 3, 1, 1, 32, 1, 1, 0, 0, args));
  WANT(last(OP_LAUNCH)->flags, ANSWER);          /* such a grid has to run at once */
  CK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50));
  CK(cuLaunchCooperativeKernel(f, 2, 1, 1, 32, 1, 1, 0, 0, args));
  WANT(last(OP_LAUNCH)->flags, ANSWER);          /* an attribute may have made it impossible */
  config.numAttrs = 0;
  CK(cuLaunchKernelEx(&config, f, args, NULL));
  WANT(last(OP_LAUNCH)->flags, 0);
  attrs[0].id = CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE;
  attrs[0].value.deviceUpdatableKernelNode.deviceUpdatable = 1;
  config.numAttrs = 1;
  CK(cuLaunchKernelEx(&config, f, args, NULL));
  WANT(last(OP_LAUNCH)->flags, ANSWER);
  WANT((uintptr_t)attrs[0].value.deviceUpdatableKernelNode.devNode, 0xdef1ce);
  attrs[0].value.deviceUpdatableKernelNode.deviceUpdatable = 0;
  attrs[0].value.deviceUpdatableKernelNode.devNode = 0;
  CK(cuLaunchKernelEx(&config, f, args, NULL));
  WANT((uintptr_t)attrs[0].value.deviceUpdatableKernelNode.devNode, 0);
  WANT(cuLaunchKernelEx(NULL, f, args, NULL), 1);
}
