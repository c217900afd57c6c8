// Cases of reach.c: numbers that the driver never gave out, arrays that are not there, images whose headers lie, copies
// that leave device memory.
static u64 junk(int i) {
  static u64 tab[3];
  tab[0] = 0x1234;
  tab[1] = (u64)victim;
  tab[2] = 0x4141414141414140ull;
  return tab[i];
}
#define J(name, call)                                                                                                \
  T(name##_small) {                                                                                                  \
    u64 j = junk(0);                                                                                                 \
    DO(call);                                                                                                        \
  }                                                                                                                  \
  T(name##_host) {                                                                                                   \
    u64 j = junk(1);                                                                                                 \
    DO(call);                                                                                                        \
  }                                                                                                                  \
  T(name##_wild) {                                                                                                   \
    u64 j = junk(2);                                                                                                 \
    DO(call);                                                                                                        \
  }
J(mem_release, cuMemRelease(j))
J(mem_map, ({
    CUdeviceptr p;
    cuMemAddressReserve(&p, 2 << 20, 0, 0, 0);
    cuMemMap(p, 2 << 20, 0, j, 0);
  }))
J(mem_export, ({
    int fd;
    cuMemExportToShareableHandle(&fd, j, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  }))
J(mem_props, ({
    CUmemAllocationProp p;
    cuMemGetAllocationPropertiesFromHandle(&p, j);
  }))
J(tex_destroy, cuTexObjectDestroy(j))
J(tex_desc, ({
    CUDA_RESOURCE_DESC r;
    cuTexObjectGetResourceDesc(&r, j);
  }))
J(surf_destroy, cuSurfObjectDestroy(j))
J(surf_desc, ({
    CUDA_RESOURCE_DESC r;
    cuSurfObjectGetResourceDesc(&r, j);
  }))
J(conditional, ({
    CUgraph g;
    CUgraphNode n;
    cuGraphCreate(&g, 0);
    CUgraphNodeParams p;
    memset(&p, 0, sizeof p);
    p.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    p.conditional.handle = j;
    p.conditional.type = CU_GRAPH_COND_TYPE_IF;
    p.conditional.size = 1;
    p.conditional.ctx = ctx;
    cuGraphAddNode_v2(&n, g, 0, 0, 0, &p);
  }))
J(pool_import_ptr, ({
    CUmemPoolPtrExportData d;
    for (int i = 0; i < 8; i++)
      ((u64 *)&d)[i] = j;
    CUmemPoolProps pp;
    memset(&pp, 0, sizeof pp);
    pp.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    pp.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    pp.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemoryPool q, im;
    cuMemPoolCreate(&q, &pp);
    int fd = -1;
    cuMemPoolExportToShareableHandle(&fd, q, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    cuMemPoolImportFromShareableHandle(&im, (void *)(long)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    CUdeviceptr p;
    cuMemPoolImportPointer(&p, im, &d);
  }))
J(ipc_open, ({
    CUipcMemHandle h;
    for (int i = 0; i < 8; i++)
      ((u64 *)&h)[i] = j;
    CUdeviceptr p;
    cuIpcOpenMemHandle_v2(&p, h, 1);
  }))
J(ipc_event, ({
    CUipcEventHandle h;
    for (int i = 0; i < 8; i++)
      ((u64 *)&h)[i] = j;
    CUevent p;
    cuIpcOpenEventHandle(&p, h);
  }))
J(ipc_close, cuIpcCloseMemHandle(j))
J(unmap, cuMemUnmap(j & ~0x1fffffull, 2 << 20))
J(address_free, cuMemAddressFree(j & ~0x1fffffull, 2 << 20))
J(retain_handle, ({
    CUmemGenericAllocationHandle h;
    cuMemRetainAllocationHandle(&h, (void *)j);
  }))
J(mem_range, ({
    unsigned v;
    cuMemRangeGetAttribute(&v, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, j & ~4095ull, 4096);
  }))
J(free_host_fn, cuMemFreeHost((void *)j))
J(stream_attr_policy, ({
    CUstreamAttrValue v;
    memset(&v, 0, sizeof v);
    v.accessPolicyWindow.base_ptr = (void *)j;
    v.accessPolicyWindow.num_bytes = 4096;
    v.accessPolicyWindow.hitRatio = 1;
    v.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_PERSISTING;
    cuStreamSetAttribute(st, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &v);
  }))
J(stream_attr_event, ({
    CUstreamAttrValue v;
    memset(&v, 0, sizeof v);
    v.programmaticEvent.event = (CUevent)j;
    cuStreamSetAttribute(st, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, &v);
  }))
J(stream_attr_completion, ({
    CUstreamAttrValue v;
    memset(&v, 0, sizeof v);
    v.launchCompletionEvent.event = (CUevent)j;
    cuStreamSetAttribute(st, CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT, &v);
  }))
J(stream_attr_node, ({
    CUstreamAttrValue v;
    memset(&v, 0, sizeof v);
    v.deviceUpdatableKernelNode.deviceUpdatable = 1;
    v.deviceUpdatableKernelNode.devNode = (CUgraphDeviceNode)j;
    cuStreamSetAttribute(st, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &v);
  }))
static const char *ptx = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry k(.param .u64 a){ ret; }\n";
static CUfunction kernel(void) {
  CUmodule m;
  CUfunction f = 0;
  cuModuleLoadData(&m, ptx);
  cuModuleGetFunction(&f, m, "k");
  return f;
}
#define NODEATTR(id, field, value)                                                                                   \
  ({                                                                                                                 \
    CUgraph g;                                                                                                       \
    CUgraphNode n;                                                                                                   \
    cuGraphCreate(&g, 0);                                                                                            \
    u64 a = 0;                                                                                                       \
    void *ap = &a;                                                                                                   \
    CUDA_KERNEL_NODE_PARAMS p;                                                                                       \
    memset(&p, 0, sizeof p);                                                                                         \
    p.func = kernel();                                                                                               \
    p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1;                              \
    p.kernelParams = &ap;                                                                                            \
    CUresult q = cuGraphAddKernelNode_v2(&n, g, 0, 0, &p);                                                           \
    CUkernelNodeAttrValue v;                                                                                         \
    memset(&v, 0, sizeof v);                                                                                         \
    v.field = value;                                                                                                 \
    if (!q)                                                                                                          \
      q = cuGraphKernelNodeSetAttribute(n, id, &v);                                                                  \
    q;                                                                                                               \
  })
J(node_attr_event, NODEATTR(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, programmaticEvent.event, (CUevent)j))
J(node_attr_completion,
  NODEATTR(CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT, launchCompletionEvent.event, (CUevent)j))
J(node_attr_policy, NODEATTR(CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, accessPolicyWindow.base_ptr, (void *)j))
J(node_attr_devnode, ({
    CUgraph g;
    CUgraphNode n;
    cuGraphCreate(&g, 0);
    u64 a = 0;
    void *ap = &a;
    CUDA_KERNEL_NODE_PARAMS p;
    memset(&p, 0, sizeof p);
    p.func = kernel();
    p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1;
    p.kernelParams = &ap;
    CUresult q = cuGraphAddKernelNode_v2(&n, g, 0, 0, &p);
    CUkernelNodeAttrValue v;
    memset(&v, 0, sizeof v);
    v.deviceUpdatableKernelNode.deviceUpdatable = 1;
    v.deviceUpdatableKernelNode.devNode = (CUgraphDeviceNode)j;
    if (!q)
      q = cuGraphKernelNodeSetAttribute(n, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &v);
    q;
  }))
#define LAUNCHATTR(ID, field, val)                                                                                   \
  ({                                                                                                                 \
    u64 a = 0;                                                                                                       \
    void *ap = &a;                                                                                                   \
    CUlaunchAttribute at;                                                                                            \
    memset(&at, 0, sizeof at);                                                                                       \
    at.id = ID;                                                                                                      \
    at.value.field = val;                                                                                            \
    CUlaunchConfig c;                                                                                                \
    memset(&c, 0, sizeof c);                                                                                         \
    c.gridDimX = c.gridDimY = c.gridDimZ = c.blockDimX = c.blockDimY = c.blockDimZ = 1;                              \
    c.hStream = st;                                                                                                  \
    c.attrs = &at;                                                                                                   \
    c.numAttrs = 1;                                                                                                  \
    cuLaunchKernelEx(&c, kernel(), &ap, 0);                                                                          \
  })
J(launch_attr_policy, LAUNCHATTR(CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, accessPolicyWindow.base_ptr, (void *)j))
J(launch_attr_40, ({
    u64 a = 0;
    void *ap = &a;
    CUlaunchAttribute at;
    memset(&at, 0, sizeof at);
    at.id = 40;
    for (int i = 0; i < 8; i++)
      ((u64 *)&at.value)[i] = j;
    CUlaunchConfig c;
    memset(&c, 0, sizeof c);
    c.gridDimX = c.gridDimY = c.gridDimZ = c.blockDimX = c.blockDimY = c.blockDimZ = 1;
    c.hStream = st;
    c.attrs = &at;
    c.numAttrs = 1;
    cuLaunchKernelEx(&c, kernel(), &ap, 0);
  }))
// All attribute ids with all words garbage: which of them crash?
static void allids(int how, u64 j) {
  char s[200] = "";
  CUfunction f = kernel();
  u64 a = 0;
  void *ap = &a;
  for (int id = 0; id <= 20; id++) {
    pid_t p = fork();
    (void)p;
    if (p == 0)
      _exit(0);
    waitpid(p, 0, 0); // no CUDA in children; only to keep the pattern simple
    CUlaunchAttributeValue v;
    for (int i = 0; i < 8; i++)
      ((u64 *)&v)[i] = j;
    CUresult r;
    fprintf(stderr, "id %d how %d\n", id, how);
    if (how == 0)
      r = cuStreamSetAttribute(st, id, &v);
    else {
      CUlaunchAttribute at;
      memset(&at, 0, sizeof at);
      at.id = id;
      at.value = v;
      CUlaunchConfig c;
      memset(&c, 0, sizeof c);
      c.gridDimX = c.gridDimY = c.gridDimZ = c.blockDimX = c.blockDimY = c.blockDimZ = 1;
      c.hStream = st;
      c.attrs = &at;
      c.numAttrs = 1;
      r = cuLaunchKernelEx(&c, f, &ap, 0);
    }
    sprintf(s + strlen(s), "%d:%d ", id, r);
  }
  snprintf(note, sizeof note, "%s", s);
}
T(stream_ids_small) { allids(0, 1); }
T(launch_ids_small) { allids(1, 1); }
// NULL arrays with counts
T(null_batchop) { DO(cuStreamBatchMemOp_v2(st, 1, 0, 0)); }
T(null_deps) {
  CUgraph g;
  CUgraphNode n;
  cuGraphCreate(&g, 0);
  DO(cuGraphAddEmptyNode(&n, g, 0, 1));
}
T(null_adddeps) {
  CUgraph g;
  cuGraphCreate(&g, 0);
  DO(cuGraphAddDependencies(g, 0, 0, 1));
}
T(null_adddeps2) {
  CUgraph g;
  cuGraphCreate(&g, 0);
  DO(cuGraphAddDependencies_v2(g, 0, 0, 0, 1));
}
T(null_tensormap) {
  CUtensorMap m;
  DO(cuTensorMapEncodeTiled(&m, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, (void *)dev, 0, 0, 0, 0, 0, 0, 0, 0));
}
T(null_updatecap) {
  cuStreamBeginCapture_v2(st, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUresult r = cuStreamUpdateCaptureDependencies(st, 0, 1, 0);
  snprintf(note, sizeof note, "call %d", r);
}
T(null_setaccess) { DO(cuMemSetAccess(dev, 2 << 20, 0, 1)); }
T(null_maparray) { DO(cuMemMapArrayAsync(0, 1, st)); }
T(null_pointerattrs) {
  void *data[1];
  (void)data;
  DO(cuPointerGetAttributes(1, 0, 0, dev));
}
T(null_affinity) {
  CUcontext c;
  DO(cuCtxCreate_v3(&c, 0, 1, 0, 0));
}
T(null_prefetchbatch) { DO(cuMemPrefetchBatchAsync(0, 0, 1, 0, 0, 1, 0, st)); }
T(null_atomic) {
  unsigned c;
  DO(cuDeviceGetHostAtomicCapabilities(&c, 0, 1, 0));
}
T(null_memset_node) {
  CUgraph g;
  CUgraphNode n;
  cuGraphCreate(&g, 0);
  DO(cuGraphAddMemsetNode(&n, g, 0, 0, 0, ctx));
}
T(null_texcreate) {
  CUtexObject o;
  DO(cuTexObjectCreate(&o, 0, 0, 0));
}
T(null_arraycreate) {
  CUarray a;
  DO(cuArrayCreate_v2(&a, 0));
}
T(null_memcreate) {
  CUmemGenericAllocationHandle h;
  DO(cuMemCreate(&h, 2 << 20, 0, 0));
}
T(null_poolcreate) {
  CUmemoryPool h;
  DO(cuMemPoolCreate(&h, 0));
}
T(null_copy2d) { DO(cuMemcpy2D_v2(0)); }
// images whose headers lie
static void image(int which) {
  unsigned char *m = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(m + 4096, 4096, PROT_NONE);
  unsigned char *b = m + 4096 - 128;
  CUmodule mod;
  memset(b, 0, 128);
  if (which < 3) {
    memcpy(b,
           "\x7f"
           "ELF\2\1\1",
           7);
    b[16] = 2;
    b[18] = 190;
    b[20] = 1;
    *(u64 *)(b + 40) = which == 0 ? 64 : which == 1 ? 1 << 20 : ~0ull - 64;
    b[52] = 64;
    b[54] = 56;
    b[58] = 64;
    *(uint16_t *)(b + 60) = which == 0 ? 60000 : 3;
    b[62] = 2;
  } else {
    *(uint32_t *)b = 0xba55ed50;
    *(uint16_t *)(b + 4) = 1;
    *(uint16_t *)(b + 6) = 16;
    *(u64 *)(b + 8) = which == 3 ? 1 << 20 : 1ull << 62;
    *(uint16_t *)(b + 16) = 2;
    *(uint16_t *)(b + 18) = 0x101;
    *(uint32_t *)(b + 20) = 64;
    *(u64 *)(b + 24) = 1 << 20;
    *(uint32_t *)(b + 44) = 90;
  }
  CUresult r = cuModuleLoadData(&mod, b);
  snprintf(note, sizeof note, "call %d", r);
}
T(image_elf_many) { image(0); }
T(image_elf_far) { image(1); }
T(image_elf_wild) { image(2); }
T(image_fat_long) { image(3); }
T(image_fat_wild) { image(4); }

// Copies that begin in device memory and go on behind it, where memory of the process lies.
static CUdeviceptr edge;
static unsigned char *behind;
static int edge_make(void) {
  CUmemAllocationProp p;
  memset(&p, 0, sizeof p);
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemGenericAllocationHandle h;
  CUmemAccessDesc a;
  memset(&a, 0, sizeof a);
  a.location = p.location;
  a.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  for (u64 hint = 0x100000000000ull; hint < 0x108000000000ull; hint += 0x1000000000ull) {
    CUdeviceptr q = 0;
    if (cuMemAddressReserve(&q, 64ull << 30, 0, hint, 0))
      continue;
    q += (64ull << 30) - (2 << 20);
    behind =
        mmap((void *)(q + (2 << 20)), 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | 0x100000, -1, 0);
    if (behind == MAP_FAILED)
      continue;
    memset(behind, 0x5A, 4 << 20);
    if (cuMemCreate(&h, 2 << 20, &p, 0) || cuMemMap(q, 2 << 20, 0, h, 0) || cuMemSetAccess(q, 2 << 20, &a, 1)) {
      strcpy(note, "no memory");
      return 0;
    }
    edge = q + (2 << 20);
    return 1;
  }
  strcpy(note, "no place");
  return 0;
}
static void edge_report(CUresult r) {
  CUresult s = cuCtxSynchronize();
  int w = 0;
  for (int i = 0; i < 4 << 20; i++)
    w |= behind[i] != 0x5A;
  snprintf(note, sizeof note, "call %d sync %d%s", r, s, w ? " WROTE-HOST" : "");
}
#define EDGE(name, call)                                                                                             \
  T(edge_##name) {                                                                                                   \
    if (edge_make()) {                                                                                               \
      CUresult r = (call);                                                                                           \
      edge_report(r);                                                                                                \
    }                                                                                                                \
  }
EDGE(dtod_to, cuMemcpyDtoD_v2(edge - 64, dev, 4096))
EDGE(dtod_from, cuMemcpyDtoD_v2(dev, edge - 64, 4096))
EDGE(memset, cuMemsetD8_v2(edge - 64, 1, 4096))
EDGE(memset2d, cuMemsetD2D8_v2(edge - 64, 4096, 1, 64, 4))
EDGE(htod, ({
       static char b[4096];
       cuMemcpyHtoD_v2(edge - 64, b, 4096);
     }))
EDGE(htod_big, cuMemcpyHtoD_v2(edge - 64, calloc(1, 2 << 20), 2 << 20))
EDGE(dtoh, ({
       static unsigned char b[4096];
       CUresult q = cuMemcpyDtoH_v2(b, edge - 64, 4096);
       if (!q && b[3000] == 0x5A)
         printf("edge_dtoh READ-HOST\n");
       q;
     }))
EDGE(copy3d, ({
       CUDA_MEMCPY2D b;
       memset(&b, 0, sizeof b);
       b.WidthInBytes = 64;
       b.Height = 8;
       b.srcPitch = 64;
       b.dstPitch = 4096;
       b.srcMemoryType = b.dstMemoryType = CU_MEMORYTYPE_DEVICE;
       b.srcDevice = dev;
       b.dstDevice = edge - 64;
       cuMemcpy2D_v2(&b);
     }))
EDGE(copy3d_unified, ({
       CUDA_MEMCPY2D b;
       memset(&b, 0, sizeof b);
       b.WidthInBytes = 64;
       b.Height = 8;
       b.srcPitch = 64;
       b.dstPitch = 4096;
       b.srcMemoryType = b.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
       b.srcDevice = dev;
       b.dstDevice = edge - 64;
       cuMemcpy2D_v2(&b);
     }))
EDGE(copy3d_offset, ({
       CUDA_MEMCPY2D b;
       memset(&b, 0, sizeof b);
       b.WidthInBytes = 64;
       b.Height = 1;
       b.srcPitch = 64;
       b.dstPitch = 64;
       b.srcMemoryType = b.dstMemoryType = CU_MEMORYTYPE_DEVICE;
       b.srcDevice = dev;
       b.dstDevice = edge - 64;
       b.dstXInBytes = 0;
       b.dstY = 20;
       cuMemcpy2D_v2(&b);
     }))
EDGE(copy3d_offset_unified, ({
       CUDA_MEMCPY2D b;
       memset(&b, 0, sizeof b);
       b.WidthInBytes = 64;
       b.Height = 1;
       b.srcPitch = 64;
       b.dstPitch = 64;
       b.srcMemoryType = b.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
       b.srcDevice = dev;
       b.dstDevice = edge - 64;
       b.dstXInBytes = 0;
       b.dstY = 20;
       cuMemcpy2D_v2(&b);
     }))
EDGE(before_unified, ({
       CUDA_MEMCPY2D b;
       memset(&b, 0, sizeof b);
       b.WidthInBytes = 64;
       b.Height = 1;
       b.srcPitch = 64;
       b.dstPitch = 64;
       b.srcMemoryType = b.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
       b.srcDevice = dev;
       b.dstDevice = edge;
       b.dstY = (size_t)-1;
       cuMemcpy2D_v2(&b);
     }))
EDGE(batch, ({
       CUmemcpyAttributes at;
       memset(&at, 0, sizeof at);
       at.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
       size_t n = 4096, ai = 0;
       CUdeviceptr d = edge - 64, s = dev;
       cuMemcpyBatchAsync_v2(&d, &s, &n, 1, &at, &ai, 1, st);
     }))
EDGE(peer, cuMemcpyPeer(edge - 64, ctx, dev, ctx, 4096))

T(null_event_attr) {
  CUresult r = LAUNCHATTR(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, programmaticEvent.event, 0);
  snprintf(note, sizeof note, "call %d", r);
}
T(null_event_attr2) {
  CUresult r = LAUNCHATTR(CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT, launchCompletionEvent.event, 0);
  snprintf(note, sizeof note, "call %d", r);
}
T(copy3d_reserved) {
  CUDA_MEMCPY3D b;
  memset(&b, 0, sizeof b);
  b.WidthInBytes = 64;
  b.Height = b.Depth = 1;
  b.srcMemoryType = b.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  b.srcDevice = dev;
  b.dstDevice = dev + 4096;
  b.reserved0 = (void *)8;
  CUresult r = cuMemcpy3D_v2(&b);
  b.reserved0 = 0;
  b.reserved1 = (void *)8;
  snprintf(note, sizeof note, "call %d %d", r, cuMemcpy3D_v2(&b));
}
T(copy3d_stale) {
  CUDA_MEMCPY3D b;
  memset(&b, 0, sizeof b);
  b.WidthInBytes = 64;
  b.Height = b.Depth = 1;
  b.srcMemoryType = b.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  b.srcDevice = dev;
  b.dstDevice = dev + 4096;
  b.srcArray = (CUarray)0x1234;
  b.srcHost = (void *)0x77;
  snprintf(note, sizeof note, "call %d", cuMemcpy3D_v2(&b));
}
T(node_unified_type) {
  CUgraph g;
  CUgraphNode n;
  cuGraphCreate(&g, 0);
  CUDA_MEMCPY3D b;
  memset(&b, 0, sizeof b);
  b.WidthInBytes = 64;
  b.Height = b.Depth = 1;
  b.srcMemoryType = b.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  b.srcDevice = dev;
  b.dstDevice = dev + 4096;
  CUresult r = cuGraphAddMemcpyNode(&n, g, 0, 0, &b, ctx);
  memset(&b, 9, sizeof b);
  CUresult s = r ? 0 : cuGraphMemcpyNodeGetParams(n, &b);
  snprintf(note, sizeof note, "call %d %d types %d %d devices %d %d", r, s, b.srcMemoryType, b.dstMemoryType,
           b.srcDevice == dev, b.dstDevice == dev + 4096);
}
