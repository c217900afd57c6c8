// Which calls of the driver follow an address of the process's own (pageable) memory, or a number that it never gave
// out: a line a case. Each case runs in a process of its own, so that a crash is an answer like any other. What
// api/cuda.semantics says of words rests on what it prints.
//
//     gcc -w -O1 -I shim/include perf/gpu/reach.c -o reach -L /usr/local/cuda/lib64/stubs -lcuda && ./reach [CASES]
#define _GNU_SOURCE
#include <cuda.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define N 4096
static CUcontext ctx;
static CUstream st;
static CUdeviceptr dev;
static unsigned char *victim, back[N];
static char note[256];
typedef unsigned long long u64;
static CUdeviceptr V;

static int changed(void) {
  for (int i = 0; i < N; i++)
    if (victim[i] != 0x5A)
      return 1;
  return 0;
}
static int seen(void) {
  memset(back, 0, N);
  CUresult r = cuMemcpyDtoH_v2(back, dev, 64);
  return !r && back[0] == 0x5A && back[63] == 0x5A;
}

static void report(CUresult r, CUresult s) {
  int w = changed();
  CUresult r2 = cuCtxSynchronize();
  int rd = seen();
  snprintf(note, sizeof note, "call %d sync %d after %d%s%s", r, s, r2, w ? " WROTE-HOST" : "",
           rd ? " READ-HOST" : "");
}
#define T(name) static void t_##name(void)
#define DO(x)                                                                                                        \
  do {                                                                                                               \
    CUresult r = (x);                                                                                                \
    CUresult s = r ? r : cuCtxSynchronize();                                                                         \
    report(r, s);                                                                                                    \
  } while (0)

T(dtod_from) { DO(cuMemcpyDtoD_v2(dev, V, 64)); }
T(dtod_to) { DO(cuMemcpyDtoD_v2(V, dev, 64)); }
T(dtod_async_from) { DO(cuMemcpyDtoDAsync_v2(dev, V, 64, st)); }
T(dtod_async_to) { DO(cuMemcpyDtoDAsync_v2(V, dev, 64, st)); }
T(cpy_from) { DO(cuMemcpy(dev, V, 64)); }
T(cpy_to) { DO(cuMemcpy(V, dev, 64)); }
T(cpy_async_from) { DO(cuMemcpyAsync(dev, V, 64, st)); }
T(cpy_async_to) { DO(cuMemcpyAsync(V, dev, 64, st)); }
T(peer_from) { DO(cuMemcpyPeer(dev, ctx, V, ctx, 64)); }
T(peer_to) { DO(cuMemcpyPeer(V, ctx, dev, ctx, 64)); }
T(peer_async_from) { DO(cuMemcpyPeerAsync(dev, ctx, V, ctx, 64, st)); }
T(peer_async_to) { DO(cuMemcpyPeerAsync(V, ctx, dev, ctx, 64, st)); }
T(dtoh_src_host) {
  unsigned char b[64];
  CUresult r = cuMemcpyDtoH_v2(b, V, 64);
  snprintf(note, sizeof note, "call %d%s", r, !r && b[5] == 0x5A ? " READ-HOST" : "");
}
T(dtoh_async_src_host) {
  unsigned char b[64];
  CUresult r = cuMemcpyDtoHAsync_v2(b, V, 64, st);
  CUresult s = cuCtxSynchronize();
  snprintf(note, sizeof note, "call %d sync %d%s", r, s, !r && b[5] == 0x5A ? " READ-HOST" : "");
}
T(htod_dst_host) {
  unsigned char b[64] = {1};
  CUresult r = cuMemcpyHtoD_v2(V, b, 64);
  snprintf(note, sizeof note, "call %d%s", r, changed() ? " WROTE-HOST" : "");
}
T(htod_async_dst_host) {
  unsigned char b[64] = {1};
  CUresult r = cuMemcpyHtoDAsync_v2(V, b, 64, st);
  CUresult s = cuCtxSynchronize();
  snprintf(note, sizeof note, "call %d sync %d%s", r, s, changed() ? " WROTE-HOST" : "");
}
T(memset8) { DO(cuMemsetD8_v2(V, 1, 64)); }
T(memset16) { DO(cuMemsetD16_v2(V, 1, 64)); }
T(memset32) { DO(cuMemsetD32_v2(V, 1, 64)); }
T(memset8_async) { DO(cuMemsetD8Async(V, 1, 64, st)); }
T(memset32_async) { DO(cuMemsetD32Async(V, 1, 64, st)); }
T(memset2d8) { DO(cuMemsetD2D8_v2(V, 128, 1, 64, 4)); }
T(memset2d32_async) { DO(cuMemsetD2D32Async(V, 128, 1, 16, 4, st)); }
T(write32) { DO(cuStreamWriteValue32_v2(st, V, 7, 0)); }
T(write64) { DO(cuStreamWriteValue64_v2(st, V, 7, 0)); }
T(wait32) { DO(cuStreamWaitValue32_v2(st, V, 0, CU_STREAM_WAIT_VALUE_GEQ)); }
T(batchop) {
  CUstreamBatchMemOpParams p;
  memset(&p, 0, sizeof p);
  p.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  p.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  p.writeValue.address = V;
  p.writeValue.value = 9;
  DO(cuStreamBatchMemOp_v2(st, 1, &p, 0));
}
static void copy2d(int down, CUmemorytype t) {
  CUDA_MEMCPY2D b;
  memset(&b, 0, sizeof b);
  b.WidthInBytes = 64;
  b.Height = 1;
  b.srcPitch = b.dstPitch = 64;
  b.srcMemoryType = b.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  b.srcDevice = dev;
  b.dstDevice = dev;
  if (down) {
    b.dstMemoryType = t;
    b.dstDevice = V;
  } else {
    b.srcMemoryType = t;
    b.srcDevice = V;
  }
  DO(cuMemcpy2D_v2(&b));
}
T(copy2d_unified_from) { copy2d(0, CU_MEMORYTYPE_UNIFIED); }
T(copy2d_unified_to) { copy2d(1, CU_MEMORYTYPE_UNIFIED); }
T(copy2d_device_from) { copy2d(0, CU_MEMORYTYPE_DEVICE); }
T(copy2d_device_to) { copy2d(1, CU_MEMORYTYPE_DEVICE); }
static void copy3d(int down, CUmemorytype t, int peer, int async) {
  CUDA_MEMCPY3D_PEER b;
  memset(&b, 0, sizeof b);
  b.WidthInBytes = 64;
  b.Height = b.Depth = 1;
  b.srcPitch = b.dstPitch = 64;
  b.srcHeight = b.dstHeight = 1;
  b.srcMemoryType = b.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  b.srcDevice = dev;
  b.dstDevice = dev;
  if (peer)
    b.srcContext = b.dstContext = ctx;
  if (down) {
    b.dstMemoryType = t;
    b.dstDevice = V;
  } else {
    b.srcMemoryType = t;
    b.srcDevice = V;
  }
  if (peer)
    DO(async ? cuMemcpy3DPeerAsync(&b, st) : cuMemcpy3DPeer(&b));
  else
    DO(async ? cuMemcpy3DAsync_v2((void *)&b, st) : cuMemcpy3D_v2((void *)&b));
}
T(copy3d_unified_from) { copy3d(0, CU_MEMORYTYPE_UNIFIED, 0, 0); }
T(copy3d_unified_to) { copy3d(1, CU_MEMORYTYPE_UNIFIED, 0, 0); }
T(copy3d_async_unified_to) { copy3d(1, CU_MEMORYTYPE_UNIFIED, 0, 1); }
T(copy3d_device_from) { copy3d(0, CU_MEMORYTYPE_DEVICE, 0, 0); }
T(copy3d_device_to) { copy3d(1, CU_MEMORYTYPE_DEVICE, 0, 0); }
T(copy3d_async_device_to) { copy3d(1, CU_MEMORYTYPE_DEVICE, 0, 1); }
T(peer3d_unified_from) { copy3d(0, CU_MEMORYTYPE_UNIFIED, 1, 0); }
T(peer3d_async_unified_to) { copy3d(1, CU_MEMORYTYPE_UNIFIED, 1, 1); }
T(peer3d_device_from) { copy3d(0, CU_MEMORYTYPE_DEVICE, 1, 0); }
T(peer3d_async_device_to) { copy3d(1, CU_MEMORYTYPE_DEVICE, 1, 1); }
static void unified_is_device(CUmemorytype t) { // does UNIFIED with device memory equal DEVICE in offsets and pitch?
  CUDA_MEMCPY2D b;
  memset(&b, 0, sizeof b);
  b.WidthInBytes = 64;
  b.Height = 2;
  b.srcPitch = 128;
  b.dstPitch = 256;
  b.srcXInBytes = 16;
  b.dstXInBytes = 4;
  b.srcY = 1;
  b.dstY = 2;
  b.srcMemoryType = b.dstMemoryType = t;
  b.srcDevice = dev;
  b.dstDevice = dev + 4096;
  cuMemsetD32_v2(dev, 0x01020304, 2048);
  DO(cuMemcpy2D_v2(&b));
}
T(unified_as_is) { unified_is_device(CU_MEMORYTYPE_UNIFIED); }
T(atod) {
  CUDA_ARRAY_DESCRIPTOR d = {256, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1};
  CUarray a;
  cuArrayCreate_v2(&a, &d);
  DO(cuMemcpyAtoD_v2(V, a, 0, 64));
}
T(dtoa) {
  CUDA_ARRAY_DESCRIPTOR d = {256, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1};
  CUarray a;
  cuArrayCreate_v2(&a, &d);
  CUresult r = cuMemcpyDtoA_v2(a, 0, V, 64);
  unsigned char b[64] = {0};
  CUresult s = cuMemcpyAtoH_v2(b, a, 0, 64);
  snprintf(note, sizeof note, "call %d %d%s", r, s, b[7] == 0x5A ? " READ-HOST" : "");
}
static void node(int kind, int down, CUmemorytype t) {
  CUgraph g;
  CUgraphNode n;
  CUgraphExec e;
  cuGraphCreate(&g, 0);
  CUresult r;
  if (kind == 0) {
    CUDA_MEMSET_NODE_PARAMS p = {V, 0, 1, 1, 64, 1};
    r = cuGraphAddMemsetNode(&n, g, 0, 0, &p, ctx);
  } else if (kind == 1) {
    CUDA_MEMCPY3D b;
    memset(&b, 0, sizeof b);
    b.WidthInBytes = 64;
    b.Height = b.Depth = 1;
    b.srcPitch = b.dstPitch = 64;
    b.srcHeight = b.dstHeight = 1;
    b.srcMemoryType = b.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    b.srcDevice = dev;
    b.dstDevice = dev;
    if (down) {
      b.dstMemoryType = t;
      b.dstDevice = V;
    } else {
      b.srcMemoryType = t;
      b.srcDevice = V;
    }
    r = cuGraphAddMemcpyNode(&n, g, 0, 0, &b, ctx);
  } else {
    CUDA_BATCH_MEM_OP_NODE_PARAMS p;
    CUstreamBatchMemOpParams o;
    memset(&p, 0, sizeof p);
    memset(&o, 0, sizeof o);
    o.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    o.writeValue.address = V;
    o.writeValue.value = 3;
    p.ctx = ctx;
    p.count = 1;
    p.paramArray = &o;
    r = cuGraphAddBatchMemOpNode(&n, g, 0, 0, &p);
  }
  CUresult ri = 0, rl = 0;
  if (!r)
    ri = cuGraphInstantiateWithFlags(&e, g, 0);
  if (!r && !ri)
    rl = cuGraphLaunch(e, st);
  CUresult s = cuCtxSynchronize();
  report(r ? r : ri ? 10000 + ri : rl, s);
}
T(node_memset) { node(0, 0, 0); }
T(node_copy_unified_from) { node(1, 0, CU_MEMORYTYPE_UNIFIED); }
T(node_copy_unified_to) { node(1, 1, CU_MEMORYTYPE_UNIFIED); }
T(node_copy_device_from) { node(1, 0, CU_MEMORYTYPE_DEVICE); }
T(node_copy_device_to) { node(1, 1, CU_MEMORYTYPE_DEVICE); }
T(node_batchop) { node(2, 0, 0); }
T(batch_copy_to) {
  CUmemcpyAttributes at;
  memset(&at, 0, sizeof at);
  at.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t n = 64, ai = 0;
  CUdeviceptr d = V, s = dev;
  DO(cuMemcpyBatchAsync_v2(&d, &s, &n, 1, &at, &ai, 1, st));
}
T(batch_copy_from) {
  CUmemcpyAttributes at;
  memset(&at, 0, sizeof at);
  at.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t n = 64, ai = 0;
  CUdeviceptr d = dev, s = V;
  DO(cuMemcpyBatchAsync_v2(&d, &s, &n, 1, &at, &ai, 1, st));
}
T(prefetch) {
  CUmemLocation l = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  DO(cuMemPrefetchAsync_v2(V & ~4095ull, 4096, l, 0, st));
}
T(advise) {
  CUmemLocation l = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  DO(cuMemAdvise_v2(V & ~4095ull, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, l));
}
T(free_host) { DO(cuMemFree_v2(V)); }
T(free_async_host) { DO(cuMemFreeAsync(V, st)); }
T(tex_linear) {
  CUDA_RESOURCE_DESC r;
  memset(&r, 0, sizeof r);
  r.resType = CU_RESOURCE_TYPE_LINEAR;
  r.res.linear.devPtr = V & ~511ull;
  r.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT8;
  r.res.linear.numChannels = 1;
  r.res.linear.sizeInBytes = 64;
  CUDA_TEXTURE_DESC t;
  memset(&t, 0, sizeof t);
  CUtexObject o;
  DO(cuTexObjectCreate(&o, &r, &t, 0));
}
T(pointer_attr) {
  unsigned mt = 99;
  CUresult r = cuPointerGetAttribute(&mt, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, V);
  snprintf(note, sizeof note, "call %d type %u", r, mt);
}
#include "reach_numbers.h"

struct test {
  const char *name;
  void (*f)(void);
};
#define E(n)                                                                                                         \
  { #n, t_##n }
#define E3(n) E(n##_small), E(n##_host), E(n##_wild)
static struct test tests[] = {E(null_event_attr),
                              E(null_event_attr2),
                              E(copy3d_reserved),
                              E(copy3d_stale),
                              E(node_unified_type),
                              E(edge_dtod_to),
                              E(edge_dtod_from),
                              E(edge_memset),
                              E(edge_memset2d),
                              E(edge_htod),
                              E(edge_htod_big),
                              E(edge_dtoh),
                              E(edge_copy3d),
                              E(edge_copy3d_unified),
                              E(edge_copy3d_offset),
                              E(edge_copy3d_offset_unified),
                              E(edge_before_unified),
                              E(edge_batch),
                              E(edge_peer),
                              E(dtod_from),
                              E(dtod_to),
                              E(dtod_async_from),
                              E(dtod_async_to),
                              E(cpy_from),
                              E(cpy_to),
                              E(cpy_async_from),
                              E(cpy_async_to),
                              E(peer_from),
                              E(peer_to),
                              E(peer_async_from),
                              E(peer_async_to),
                              E(dtoh_src_host),
                              E(dtoh_async_src_host),
                              E(htod_dst_host),
                              E(htod_async_dst_host),
                              E(memset8),
                              E(memset16),
                              E(memset32),
                              E(memset8_async),
                              E(memset32_async),
                              E(memset2d8),
                              E(memset2d32_async),
                              E(write32),
                              E(write64),
                              E(wait32),
                              E(batchop),
                              E(copy2d_unified_from),
                              E(copy2d_unified_to),
                              E(copy2d_device_from),
                              E(copy2d_device_to),
                              E(copy3d_unified_from),
                              E(copy3d_unified_to),
                              E(copy3d_async_unified_to),
                              E(copy3d_device_from),
                              E(copy3d_device_to),
                              E(copy3d_async_device_to),
                              E(peer3d_unified_from),
                              E(peer3d_async_unified_to),
                              E(peer3d_device_from),
                              E(peer3d_async_device_to),
                              E(unified_as_is),
                              E(atod),
                              E(dtoa),
                              E(node_memset),
                              E(node_copy_unified_from),
                              E(node_copy_unified_to),
                              E(node_copy_device_from),
                              E(node_copy_device_to),
                              E(node_batchop),
                              E(batch_copy_to),
                              E(batch_copy_from),
                              E(prefetch),
                              E(advise),
                              E(free_host),
                              E(free_async_host),
                              E(tex_linear),
                              E(pointer_attr),
                              E3(mem_release),
                              E3(mem_map),
                              E3(mem_export),
                              E3(mem_props),
                              E3(tex_destroy),
                              E3(tex_desc),
                              E3(surf_destroy),
                              E3(surf_desc),
                              E3(conditional),
                              E3(pool_import_ptr),
                              E3(ipc_open),
                              E3(ipc_event),
                              E3(ipc_close),
                              E3(unmap),
                              E3(address_free),
                              E3(retain_handle),
                              E3(mem_range),
                              E3(free_host_fn),
                              E3(stream_attr_policy),
                              E3(stream_attr_event),
                              E3(stream_attr_completion),
                              E3(stream_attr_node),
                              E3(node_attr_event),
                              E3(node_attr_completion),
                              E3(node_attr_policy),
                              E3(node_attr_devnode),
                              E3(launch_attr_policy),
                              E3(launch_attr_40),
                              E(stream_ids_small),
                              E(launch_ids_small),
                              E(null_batchop),
                              E(null_deps),
                              E(null_adddeps),
                              E(null_adddeps2),
                              E(null_tensormap),
                              E(null_updatecap),
                              E(null_setaccess),
                              E(null_maparray),
                              E(null_pointerattrs),
                              E(null_affinity),
                              E(null_prefetchbatch),
                              E(null_atomic),
                              E(null_memset_node),
                              E(null_texcreate),
                              E(null_arraycreate),
                              E(null_memcreate),
                              E(null_poolcreate),
                              E(null_copy2d),
                              E(image_elf_many),
                              E(image_elf_far),
                              E(image_elf_wild),
                              E(image_fat_long),
                              E(image_fat_wild)};

static void one(struct test *t) {
  alarm(20);
  victim = mmap(0, 3 * N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(victim, 0x5A, 3 * N);
  victim += N;
  V = (CUdeviceptr)victim;
  CUdevice d;
  CUresult r;
  if ((r = cuInit(0)) || (r = cuDeviceGet(&d, 0)) || (r = cuDevicePrimaryCtxRetain(&ctx, d)) ||
      (r = cuCtxSetCurrent(ctx)) || (r = cuMemAlloc_v2(&dev, 64 << 10)) ||
      (r = cuStreamCreate(&st, CU_STREAM_NON_BLOCKING)) || (r = cuMemsetD8_v2(dev, 0x11, 64 << 10))) {
    printf("%s: set up failed %d\n", t->name, r);
    exit(1);
  }
  t->f();
  printf("%s: %s\n", t->name, note);
  fflush(stdout);
  _exit(0);
}
int main(int argc, char **argv) {
  int jobs = 12, running = 0, total = sizeof tests / sizeof *tests;
  pid_t pids[512];
  (void)argc;
  setvbuf(stdout, 0, _IOLBF, 0);
  for (int i = 0; i < total || running;) {
    if (i < total && running < jobs) {
      if (argc > 1 && !strstr(tests[i].name, argv[1])) {
        i++;
        continue;
      }
      pid_t p = fork();
      if (!p)
        one(&tests[i]);
      pids[i] = p;
      i++;
      running++;
      continue;
    }
    int status;
    pid_t p = wait(&status);
    if (p < 0)
      break;
    running--;
    if (WIFSIGNALED(status))
      for (int k = 0; k < total; k++)
        if (pids[k] == p)
          printf("%s: SIGNAL %d\n", tests[k].name, WTERMSIG(status));
  }
  return 0;
}
