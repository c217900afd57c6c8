// The calls that name memory, each on a part of a range, and what they do to a plain model of it.
#ifndef MANAGED_NAMED_H
#define MANAGED_NAMED_H
#include "managed.h"
#include <dlfcn.h>

enum { BYTES = 3 * 65536 + 5000, AT = 65536 - 1024, N = 8192, WIDTH = 512, PITCH = 1024, ROWS = N / PITCH };

// known: whether a byte was ever set; natively memory that is new holds anything
struct range { unsigned char *p, *model, *known; };
static CUstream stream, other;
static unsigned turn;              // changes with every call, so that no two write the same
static int outcome;                // bytes of the target that are wrong
static CUdeviceptr plain;          // device memory, host memory, an array: the other side of copies
// unified memory for nodes that get the range's address later: a driver does not let them change to another kind of
// memory
static CUdeviceptr spare;
static unsigned char *host, *pattern;
static CUarray array;
static CUdevice device;
static unsigned char *m;           // the part that is named
static CUdeviceptr d;              // the same

enum effect { SETS, TAKES, GIVES, MIXES, HINTS, DISCARDS };
struct call { const char *name; void (*run)(void); enum effect effect; int rows, sync; };

#define VALUE ((unsigned char)(turn * 7 + 1))
// Functions that newer headers do not have any more, or by another name.
#define BY_NAME(name, ...) (((CUresult(*)(__VA_ARGS__))dlsym(RTLD_DEFAULT, name)))

// ---- sets
static void set8(void) { CK(cuMemsetD8(d, VALUE, N)); }
static void set8_async(void) { CK(cuMemsetD8Async(d, VALUE, N, stream)); }
static void set16(void) { CK(cuMemsetD16(d, VALUE * 0x0101, N / 2)); }
static void set16_async(void) { CK(cuMemsetD16Async(d, VALUE * 0x0101, N / 2, stream)); }
static void set32(void) { CK(cuMemsetD32(d, VALUE * 0x01010101u, N / 4)); }
static void set32_async(void) { CK(cuMemsetD32Async(d, VALUE * 0x01010101u, N / 4, stream)); }
static void set_rows8(void) { CK(cuMemsetD2D8(d, PITCH, VALUE, WIDTH, ROWS)); }
static void set_rows8_async(void) { CK(cuMemsetD2D8Async(d, PITCH, VALUE, WIDTH, ROWS, stream)); }
static void set_rows16(void) { CK(cuMemsetD2D16(d, PITCH, VALUE * 0x0101, WIDTH / 2, ROWS)); }
static void set_rows16_async(void) { CK(cuMemsetD2D16Async(d, PITCH, VALUE * 0x0101, WIDTH / 2, ROWS, stream)); }
static void set_rows32(void) { CK(cuMemsetD2D32(d, PITCH, VALUE * 0x01010101u, WIDTH / 4, ROWS)); }
static void set_rows32_async(void) { CK(cuMemsetD2D32Async(d, PITCH, VALUE * 0x01010101u, WIDTH / 4, ROWS, stream)); }

// ---- copies of a line; to: the range is the target
static void to_copy(void) { CK(cuMemcpy(d, plain, N)); }
static void from_copy(void) { CK(cuMemcpy(plain, d, N)); }
static void to_copy_async(void) { CK(cuMemcpyAsync(d, plain, N, stream)); }
static void from_copy_async(void) { CK(cuMemcpyAsync(plain, d, N, stream)); }
static void to_within(void) { CK(cuMemcpyDtoD(d, plain, N)); }
static void from_within(void) { CK(cuMemcpyDtoD(plain, d, N)); }
static void to_within_async(void) { CK(cuMemcpyDtoDAsync(d, plain, N, stream)); }
static void from_within_async(void) { CK(cuMemcpyDtoDAsync(plain, d, N, stream)); }
static void to_upload(void) { CK(cuMemcpyHtoD(d, pattern, N)); }
static void to_upload_async(void) { CK(cuMemcpyHtoDAsync(d, pattern, N, stream)); }
static void from_upload(void) { CK(cuMemcpyHtoD(plain, m, N)); }
static void from_upload_async(void) { CK(cuMemcpyHtoDAsync(plain, m, N, stream)); }
static void to_download(void) { CK(cuMemcpyDtoH(m, plain, N)); }
static void to_download_async(void) { CK(cuMemcpyDtoHAsync(m, plain, N, stream)); }
static void from_download(void) { CK(cuMemcpyDtoH(host, d, N)); CK(cuMemcpyHtoD(plain, host, N)); }
static void from_download_async(void) {
  CK(cuMemcpyDtoHAsync(host, d, N, stream));
  CK(cuStreamSynchronize(stream));
  CK(cuMemcpyHtoD(plain, host, N));
}
static void to_peer(void) { CK(cuMemcpyPeer(d, context, plain, context, N)); }
static void from_peer(void) { CK(cuMemcpyPeer(plain, context, d, context, N)); }
static void to_peer_async(void) { CK(cuMemcpyPeerAsync(d, context, plain, context, N, stream)); }
static void from_peer_async(void) { CK(cuMemcpyPeerAsync(plain, context, d, context, N, stream)); }

// ---- arrays
static void fill_array(void) { CK(cuMemcpyHtoA(array, 0, pattern, N)); }
static void empty_array(void) { CK(cuMemcpyAtoH(host, array, 0, N)); CK(cuMemcpyHtoD(plain, host, N)); }
static void to_array_device(void) { fill_array(); CK(cuMemcpyAtoD(d, array, 0, N)); }
static void from_array_device(void) { CK(cuMemcpyDtoA(array, 0, d, N)); empty_array(); }
static void to_array_host(void) { fill_array(); CK(cuMemcpyAtoH(m, array, 0, N)); }
static void to_array_host_async(void) { fill_array(); CK(cuMemcpyAtoHAsync(m, array, 0, N, stream)); }
static void from_array_host(void) { CK(cuMemcpyHtoA(array, 0, m, N)); empty_array(); }
static void from_array_host_async(void) {
  CK(cuMemcpyHtoAAsync(array, 0, m, N, stream));
  CK(cuStreamSynchronize(stream));
  empty_array();
}

// ---- boxes: the range's side is called device memory, host memory or is to be found out; the other side is device
// memory, host memory or an array
enum named { AS_DEVICE = CU_MEMORYTYPE_DEVICE, AS_HOST = CU_MEMORYTYPE_HOST, AS_ANY = CU_MEMORYTYPE_UNIFIED };
static CUDA_MEMCPY2D flat(enum named as, int to, int with_host) {
  CUDA_MEMCPY2D c = {0};
  c.WidthInBytes = WIDTH, c.Height = ROWS;
  c.srcPitch = c.dstPitch = PITCH;
  c.srcMemoryType = to ? with_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE : (CUmemorytype)as;
  c.dstMemoryType = to ? (CUmemorytype)as : with_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  c.srcDevice = to ? plain : d, c.dstDevice = to ? d : plain;
  c.srcHost = to ? pattern : m, c.dstHost = to ? m : host;
  return c;
}
static void back(int with_host) { // what a copy to host memory brought is looked at like the others
  if (!with_host) return;
  CK(cuStreamSynchronize(stream));
  CK(cuMemcpyHtoD(plain, host, N));
}
#define FLAT(name, call, as, to, with_host) \
  static void name(void) { CUDA_MEMCPY2D c = flat(as, to, with_host); CK(call); if (!(to)) back(with_host); }
FLAT(to_flat, cuMemcpy2D(&c), AS_DEVICE, 1, 0)
FLAT(to_flat_host, cuMemcpy2D(&c), AS_HOST, 1, 0)
FLAT(to_flat_from_host, cuMemcpy2D(&c), AS_ANY, 1, 1)
FLAT(from_flat, cuMemcpy2D(&c), AS_ANY, 0, 0)
FLAT(from_flat_host, cuMemcpy2D(&c), AS_HOST, 0, 0)
FLAT(from_flat_to_host, cuMemcpy2D(&c), AS_DEVICE, 0, 1)
FLAT(to_unaligned, cuMemcpy2DUnaligned(&c), AS_ANY, 1, 0)
FLAT(from_unaligned, cuMemcpy2DUnaligned(&c), AS_DEVICE, 0, 1)
FLAT(to_flat_async, cuMemcpy2DAsync(&c, stream), AS_ANY, 1, 1)
FLAT(from_flat_async, cuMemcpy2DAsync(&c, stream), AS_HOST, 0, 0)

static CUDA_MEMCPY3D deep(enum named as, int to, int with_host) {
  CUDA_MEMCPY2D f = flat(as, to, with_host);
  CUDA_MEMCPY3D c = {0};
  c.WidthInBytes = WIDTH, c.Height = ROWS / 2, c.Depth = 2;
  c.srcPitch = c.dstPitch = PITCH, c.srcHeight = c.dstHeight = ROWS / 2;
  c.srcMemoryType = f.srcMemoryType, c.srcDevice = f.srcDevice, c.srcHost = f.srcHost;
  c.dstMemoryType = f.dstMemoryType, c.dstDevice = f.dstDevice, c.dstHost = f.dstHost;
  return c;
}
#define DEEP(name, call, as, to, with_host) \
  static void name(void) { CUDA_MEMCPY3D c = deep(as, to, with_host); CK(call); if (!(to)) back(with_host); }
DEEP(to_deep, cuMemcpy3D(&c), AS_DEVICE, 1, 0)
DEEP(to_deep_host, cuMemcpy3D(&c), AS_HOST, 1, 0)
DEEP(from_deep, cuMemcpy3D(&c), AS_ANY, 0, 1)
DEEP(to_deep_async, cuMemcpy3DAsync(&c, stream), AS_ANY, 1, 1)
DEEP(from_deep_async, cuMemcpy3DAsync(&c, stream), AS_HOST, 0, 0)
static CUDA_MEMCPY3D_PEER deep_peer(int to) {
  CUDA_MEMCPY3D f = deep(AS_DEVICE, to, 0);
  CUDA_MEMCPY3D_PEER c = {0};
  c.WidthInBytes = f.WidthInBytes, c.Height = f.Height, c.Depth = f.Depth;
  c.srcPitch = c.dstPitch = PITCH, c.srcHeight = c.dstHeight = f.srcHeight;
  c.srcMemoryType = c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  c.srcDevice = f.srcDevice, c.dstDevice = f.dstDevice;
  c.srcContext = c.dstContext = context;
  return c;
}
#define PEER(name, call, to) static void name(void) { CUDA_MEMCPY3D_PEER c = deep_peer(to); CK(call); }
PEER(to_deep_peer, cuMemcpy3DPeer(&c), 1)
PEER(from_deep_peer, cuMemcpy3DPeer(&c), 0)
PEER(to_deep_peer_async, cuMemcpy3DPeerAsync(&c, stream), 1)
PEER(from_deep_peer_async, cuMemcpy3DPeerAsync(&c, stream), 0)

// ---- batches
static void batch(int to, int first) {
  CUdeviceptr dst = to ? d : plain, src = to ? plain : d;
  size_t size = N, index = 0, failed = 0;
  CUmemcpyAttributes a;
  memset(&a, 0, sizeof a);
  a.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  if (!first) CK(cuMemcpyBatchAsync_v2(&dst, &src, &size, 1, &a, &index, 1, stream));
  else CK(BY_NAME("cuMemcpyBatchAsync", CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *,
                  size_t *, size_t, size_t *, CUstream)(&dst, &src, &size, 1, &a, &index, 1, &failed, stream));
}
static void to_batch(void) { batch(1, 0); }
static void from_batch(void) { batch(0, 0); }
static void to_batch_first(void) { batch(1, 1); }
static void from_batch_first(void) { batch(0, 1); }
// the lists of the call lie in unified memory that the GPU has, each in two blocks
static void to_batch_described(void) {
  static unsigned char *desk;
  if (!desk) desk = managed(4 * 65536);
  CUdeviceptr *dst = (CUdeviceptr *)(desk + 65536) - 1, *src = (CUdeviceptr *)(desk + 3 * 65536) - 1;
  size_t sizes[2] = {N / 2, N / 2}, index = 0;
  CUmemcpyAttributes a;
  memset(&a, 0, sizeof a);
  a.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  for (int i = 0; i < 2; i++) dst[i] = d + i * (N / 2), src[i] = plain + i * (N / 2);
  for (int i = 0; i < 4; i++) CK(cuMemsetD8Async(dev(desk) + i * 65536 + 100, 1, 100, stream));
  CK(cuStreamSynchronize(stream));
  CK(cuMemcpyBatchAsync_v2(dst, src, sizes, 2, &a, &index, 1, stream));
}
static void batch_boxes(int to, int first) {
  CUDA_MEMCPY3D_BATCH_OP o;
  size_t failed = 0;
  memset(&o, 0, sizeof o);
  o.src.type = o.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  o.src.op.ptr.ptr = to ? plain : d, o.dst.op.ptr.ptr = to ? d : plain;
  o.src.op.ptr.rowLength = o.dst.op.ptr.rowLength = PITCH;
  o.src.op.ptr.layerHeight = o.dst.op.ptr.layerHeight = ROWS;
  o.extent.width = WIDTH, o.extent.height = ROWS, o.extent.depth = 1;
  o.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  if (!first) CK(cuMemcpy3DBatchAsync_v2(1, &o, 0, stream));
  else CK(BY_NAME("cuMemcpy3DBatchAsync", size_t, CUDA_MEMCPY3D_BATCH_OP *,
                  size_t *, unsigned long long, CUstream)(1, &o, &failed, 0, stream));
}
static void to_boxes(void) { batch_boxes(1, 0); }
static void from_boxes(void) { batch_boxes(0, 0); }
static void to_boxes_first(void) { batch_boxes(1, 1); }
static void from_boxes_first(void) { batch_boxes(0, 1); }

// ---- hints
static CUmemLocation place_of(int gpu) {
  CUmemLocation l;
  memset(&l, 0, sizeof l);
  l.type = gpu ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST;
  return l;
}
static void prefetch_first(int gpu) {
  CK(BY_NAME("cuMemPrefetchAsync", CUdeviceptr, size_t, CUdevice, CUstream)(
      d, N, gpu ? device : CU_DEVICE_CPU, stream));
}
static void prefetch_gpu_first(void) { prefetch_first(1); }
static void prefetch_cpu_first(void) { prefetch_first(0); }
static void prefetch_gpu(void) { CK(cuMemPrefetchAsync_v2(d, N, place_of(1), 0, stream)); }
static void prefetch_cpu(void) { CK(cuMemPrefetchAsync_v2(d, N, place_of(0), 0, stream)); }
static void prefetch_batch(int gpu) {
  size_t n = N, index = 0;
  CUmemLocation l = place_of(gpu);
  CK(cuMemPrefetchBatchAsync(&d, &n, 1, &l, &index, 1, 0, stream));
}
static void prefetch_batch_gpu(void) { prefetch_batch(1); }
static void prefetch_batch_cpu(void) { prefetch_batch(0); }
static void advise_all(void) {
  static const CUmem_advise kinds[] =
      {CU_MEM_ADVISE_SET_READ_MOSTLY, CU_MEM_ADVISE_UNSET_READ_MOSTLY, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
       CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_MEM_ADVISE_UNSET_ACCESSED_BY};
  CK(cuMemAdvise_v2(d, N, kinds[turn % 6], place_of(turn / 6 % 2)));
}
static void advise_first(void) {
  CK(BY_NAME("cuMemAdvise", CUdeviceptr, size_t, CUmem_advise, CUdevice)(
      d, N, turn % 2 ? CU_MEM_ADVISE_SET_READ_MOSTLY : CU_MEM_ADVISE_UNSET_READ_MOSTLY, device));
}
static void discard(void) {
  size_t n = N;
  CK(cuMemDiscardBatchAsync(&d, &n, 1, 0, stream));
}
static void discard_and_prefetch(void) {
  size_t n = N, index = 0;
  CUmemLocation l = place_of(turn % 2);
  CK(cuMemDiscardAndPrefetchBatchAsync(&d, &n, 1, &l, &index, 1, 0, stream));
}

// ---- batch memory operations: refused
static void write32(void) { WANT(cuStreamWriteValue32(stream, d, VALUE, 0), CUDA_ERROR_INVALID_VALUE); }
static void write64(void) { WANT(cuStreamWriteValue64(stream, d, VALUE, 0), CUDA_ERROR_INVALID_VALUE); }
static void wait32(void) {
  WANT(cuStreamWaitValue32(stream, d, 0, CU_STREAM_WAIT_VALUE_GEQ), CUDA_ERROR_INVALID_VALUE);
}
static void wait64(void) {
  WANT(cuStreamWaitValue64(stream, d, 0, CU_STREAM_WAIT_VALUE_GEQ), CUDA_ERROR_INVALID_VALUE);
}
static void write_batch(void) {
  CUstreamBatchMemOpParams o[2];
  memset(o, 0, sizeof o);
  for (int i = 0; i < 2; i++)
    o[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
        o[i].writeValue.address = i ? d : plain, o[i].writeValue.value = VALUE;
  WANT(cuStreamBatchMemOp(stream, 2, o, 0), CUDA_ERROR_INVALID_VALUE);
}

// ---- kernels
static unsigned long long zero = 0, length = N;
static unsigned three = 3, value;
static void *arguments[] = {&m, &zero, &length, &three, &value};
static void launched(void) { CK(cuLaunchKernel(mixer, 4, 1, 1, 64, 1, 1, 0, stream, arguments, NULL)); }
static void launched_legacy(void) { CK(cuLaunchKernel(mixer, 4, 1, 1, 64, 1, 1, 0, NULL, arguments, NULL)); }
struct packed { void *p; unsigned long long from, n; unsigned a, b; };
static void launched_packed(void) {
  struct packed p = {m, 0, N, 3, value};
  size_t size = sizeof p;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &p, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  CK(cuLaunchKernel(mixer, 4, 1, 1, 64, 1, 1, 0, stream, NULL, extra));
}
static void launched_ex(void) {
  CUlaunchConfig c;
  memset(&c, 0, sizeof c);
  c.gridDimX = 4, c.blockDimX = 64, c.gridDimY = c.gridDimZ = c.blockDimY = c.blockDimZ = 1, c.hStream = stream;
  CK(cuLaunchKernelEx(&c, mixer, arguments, NULL));
}
static void launched_cooperative(void) {
  CK(cuLaunchCooperativeKernel(mixer, 4, 1, 1, 64, 1, 1, 0, stream, arguments));
}
static void launched_multi(void) { // on several GPUs, of which there is one
  struct { CUfunction f; unsigned grid[3], block[3], shared; CUstream stream; void **params; } l =
      {mixer, {4, 1, 1}, {64, 1, 1}, 0, stream, arguments};
  CK(BY_NAME("cuLaunchCooperativeKernelMultiDevice", void *, unsigned, unsigned)(&l, 1, 0));
}
static void old_parameters(void) {
  struct packed p = {m, 0, N, 3, value};
  CK(BY_NAME("cuFuncSetBlockShape", CUfunction, int, int, int)(mixer, 64, 1, 1));
  CK(BY_NAME("cuParamSetSize", CUfunction, unsigned)(mixer, sizeof p));
  CK(BY_NAME("cuParamSetv", CUfunction, int, void *, unsigned)(mixer, 0, &p, sizeof p));
}
static void launched_old(void) { old_parameters(); CK(BY_NAME("cuLaunch", CUfunction)(mixer)); }
static void launched_grid(void) { old_parameters(); CK(BY_NAME("cuLaunchGrid", CUfunction, int, int)(mixer, 4, 1)); }
static void launched_grid_async(void) {
  old_parameters();
  CK(BY_NAME("cuLaunchGridAsync", CUfunction, int, int, CUstream)(mixer, 4, 1, stream));
}
static CUfunction gatherer;
static void texture(void) { // the kernel's parameters name the texture, which has the address
  CUDA_RESOURCE_DESC res;
  CUDA_TEXTURE_DESC desc;
  CUtexObject t;
  memset(&res, 0, sizeof res), memset(&desc, 0, sizeof desc);
  res.resType = CU_RESOURCE_TYPE_LINEAR;
  res.res.linear.devPtr = d, res.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT32,
      res.res.linear.numChannels = 1, res.res.linear.sizeInBytes = N;
  desc.flags = CU_TRSF_READ_AS_INTEGER;
  CK(cuTexObjectCreate(&t, &res, &desc, NULL));
  CK(LAUNCH(gatherer, N / 4 / 64, 64, 0, stream, &t, &plain));
  CK(cuStreamSynchronize(stream));
  CK(cuTexObjectDestroy(t));
}
static const char gather[] = // out[i] = texel i
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry gather(.param .u64 tex, .param .u64 out) {\n"
    "  .reg .u64 %t, %o, %a; .reg .u32 %x, %n, %b, %c<4>;\n"
    "  ld.param.u64 %t, [tex]; ld.param.u64 %o, [out];\n"
    "  mov.u32 %x, %tid.x; mov.u32 %n, %ntid.x; mov.u32 %b, %ctaid.x; mad.lo.u32 %x, %n, %b, %x;\n"
    "  tex.1d.v4.u32.s32 {%c0, %c1, %c2, %c3}, [%t, {%x}];\n"
    "  mul.wide.u32 %a, %x, 4; cvta.to.global.u64 %o, %o; add.u64 %o, %o, %a; st.global.u32 [%o], %c0; ret;\n}\n";
static void launched_behind(void) { // the address of the range's beginning, and a place far behind it
  unsigned char *p = m - AT;
  unsigned long long from = AT;
  void *some[] = {&p, &from, &length, &three, &value};
  CK(cuLaunchKernel(mixer, 4, 1, 1, 64, 1, 1, 0, stream, some, NULL));
}

#include "managed_graphs.h"

static const struct call calls[] = {
  {"cuMemsetD8_v2", set8, SETS, 0, 1}, {"cuMemsetD8Async", set8_async, SETS},
  {"cuMemsetD16_v2", set16, SETS, 0, 1}, {"cuMemsetD16Async", set16_async, SETS},
  {"cuMemsetD32_v2", set32, SETS, 0, 1}, {"cuMemsetD32Async", set32_async, SETS},
  {"cuMemsetD2D8_v2", set_rows8, SETS, 1, 1}, {"cuMemsetD2D8Async", set_rows8_async, SETS, 1},
  {"cuMemsetD2D16_v2", set_rows16, SETS, 1, 1}, {"cuMemsetD2D16Async", set_rows16_async, SETS, 1},
  {"cuMemsetD2D32_v2", set_rows32, SETS, 1, 1}, {"cuMemsetD2D32Async", set_rows32_async, SETS, 1},
  {"cuMemcpy to", to_copy, TAKES}, {"cuMemcpy from", from_copy, GIVES},
  {"cuMemcpyAsync to", to_copy_async, TAKES}, {"cuMemcpyAsync from", from_copy_async, GIVES},
  {"cuMemcpyDtoD_v2 to", to_within, TAKES}, {"cuMemcpyDtoD_v2 from", from_within, GIVES},
  {"cuMemcpyDtoDAsync_v2 to", to_within_async, TAKES}, {"cuMemcpyDtoDAsync_v2 from", from_within_async, GIVES},
  {"cuMemcpyHtoD_v2 to", to_upload, TAKES}, {"cuMemcpyHtoDAsync_v2 to", to_upload_async, TAKES},
  {"cuMemcpyHtoD_v2 from", from_upload, GIVES}, {"cuMemcpyHtoDAsync_v2 from", from_upload_async, GIVES},
  {"cuMemcpyDtoH_v2 to", to_download, TAKES, 0, 1}, {"cuMemcpyDtoHAsync_v2 to", to_download_async, TAKES},
  {"cuMemcpyDtoH_v2 from", from_download, GIVES}, {"cuMemcpyDtoHAsync_v2 from", from_download_async, GIVES},
  {"cuMemcpyPeer to", to_peer, TAKES}, {"cuMemcpyPeer from", from_peer, GIVES},
  {"cuMemcpyPeerAsync to", to_peer_async, TAKES}, {"cuMemcpyPeerAsync from", from_peer_async, GIVES},
  {"cuMemcpyAtoD_v2", to_array_device, TAKES}, {"cuMemcpyDtoA_v2", from_array_device, GIVES},
  {"cuMemcpyAtoH_v2", to_array_host, TAKES, 0, 1}, {"cuMemcpyAtoHAsync_v2", to_array_host_async, TAKES},
  {"cuMemcpyHtoA_v2", from_array_host, GIVES}, {"cuMemcpyHtoAAsync_v2", from_array_host_async, GIVES},
  {"cuMemcpy2D_v2 to", to_flat, TAKES, 1}, {"cuMemcpy2D_v2 to, as host", to_flat_host, TAKES, 1},
  {"cuMemcpy2D_v2 to, from host", to_flat_from_host, TAKES, 1},
  {"cuMemcpy2D_v2 from", from_flat, GIVES, 1}, {"cuMemcpy2D_v2 from, as host", from_flat_host, GIVES, 1},
  {"cuMemcpy2D_v2 from, to host", from_flat_to_host, GIVES, 1},
  {"cuMemcpy2DUnaligned_v2 to", to_unaligned, TAKES, 1}, {"cuMemcpy2DUnaligned_v2 from", from_unaligned, GIVES, 1},
  {"cuMemcpy2DAsync_v2 to", to_flat_async, TAKES, 1}, {"cuMemcpy2DAsync_v2 from", from_flat_async, GIVES, 1},
  {"cuMemcpy3D_v2 to", to_deep, TAKES, 1}, {"cuMemcpy3D_v2 to, as host", to_deep_host, TAKES, 1},
  {"cuMemcpy3D_v2 from", from_deep, GIVES, 1}, {"cuMemcpy3DAsync_v2 to", to_deep_async, TAKES, 1},
  {"cuMemcpy3DAsync_v2 from", from_deep_async, GIVES, 1},
  {"cuMemcpy3DPeer to", to_deep_peer, TAKES, 1}, {"cuMemcpy3DPeer from", from_deep_peer, GIVES, 1},
  {"cuMemcpy3DPeerAsync to", to_deep_peer_async, TAKES, 1},
  {"cuMemcpy3DPeerAsync from", from_deep_peer_async, GIVES, 1},
  {"cuMemcpyBatchAsync_v2 to", to_batch, TAKES}, {"cuMemcpyBatchAsync_v2 from", from_batch, GIVES},
  {"cuMemcpyBatchAsync to", to_batch_first, TAKES}, {"cuMemcpyBatchAsync from", from_batch_first, GIVES},
  {"cuMemcpyBatchAsync_v2 to, described in unified memory", to_batch_described, TAKES},
  {"cuMemcpy3DBatchAsync_v2 to", to_boxes, TAKES, 1}, {"cuMemcpy3DBatchAsync_v2 from", from_boxes, GIVES, 1},
  {"cuMemcpy3DBatchAsync to", to_boxes_first, TAKES, 1}, {"cuMemcpy3DBatchAsync from", from_boxes_first, GIVES, 1},
  {"cuMemPrefetchAsync to the GPU", prefetch_gpu_first, HINTS},
  {"cuMemPrefetchAsync to the CPU", prefetch_cpu_first, HINTS},
  {"cuMemPrefetchAsync_v2 to the GPU", prefetch_gpu, HINTS}, {"cuMemPrefetchAsync_v2 to the CPU", prefetch_cpu, HINTS},
  {"cuMemPrefetchBatchAsync to the GPU", prefetch_batch_gpu, HINTS},
  {"cuMemPrefetchBatchAsync to the CPU", prefetch_batch_cpu, HINTS},
  {"cuMemAdvise_v2", advise_all, HINTS}, {"cuMemAdvise", advise_first, HINTS},
  {"cuMemDiscardBatchAsync", discard, DISCARDS}, {"cuMemDiscardAndPrefetchBatchAsync", discard_and_prefetch, DISCARDS},
  {"cuLaunchKernel", launched, MIXES}, {"cuLaunchKernel in the legacy stream", launched_legacy, MIXES},
  {"cuLaunchKernel, packed", launched_packed, MIXES}, {"cuLaunchKernel, far behind", launched_behind, MIXES},
  {"cuLaunchKernelEx", launched_ex, MIXES}, {"cuLaunchCooperativeKernel", launched_cooperative, MIXES},
  {"cuLaunchCooperativeKernelMultiDevice", launched_multi, MIXES},
  {"cuLaunch", launched_old, MIXES}, {"cuLaunchGrid", launched_grid, MIXES},
  {"cuLaunchGridAsync", launched_grid_async, MIXES}, {"cuTexObjectCreate", texture, GIVES},
  {"cuGraphAddMemsetNode", graph_set, SETS, 1}, {"cuGraphMemsetNodeSetParams", graph_set_changed, SETS, 1},
  {"cuGraphAddMemcpyNode to", to_graph, TAKES, 1}, {"cuGraphAddMemcpyNode to, as host", to_graph_host, TAKES, 1},
  {"cuGraphAddMemcpyNode from", from_graph, GIVES, 1},
  {"cuGraphAddMemcpyNode from, as host", from_graph_host, GIVES, 1},
  {"cuGraphMemcpyNodeSetParams", to_graph_changed, TAKES, 1},
  {"cuGraphAddKernelNode_v2", graph_kernel, MIXES}, {"cuGraphKernelNodeSetParams_v2", graph_kernel_changed, MIXES},
  {"cuGraphExecKernelNodeSetParams_v2", graph_kernel_later, MIXES},
  {"cuGraphAddKernelNode", graph_kernel_first, MIXES},
  {"cuGraphKernelNodeSetParams", graph_kernel_changed_first, MIXES},
  {"cuGraphExecKernelNodeSetParams", graph_kernel_later_first, MIXES},
  {"cuGraphAddNode_v2", graph_any, MIXES}, {"cuGraphAddNode", graph_any_first, MIXES},
  {"cuGraphNodeSetParams", graph_any_changed, MIXES}, {"cuGraphExecNodeSetParams", graph_any_later, MIXES},
  {"cuGraphLaunch, child", graph_child, MIXES},
  {"cuStreamWriteValue32_v2", write32, HINTS}, {"cuStreamWriteValue64_v2", write64, HINTS},
  {"cuStreamWaitValue32_v2", wait32, HINTS}, {"cuStreamWaitValue64_v2", wait64, HINTS},
  {"cuStreamBatchMemOp_v2", write_batch, HINTS},
  {"cuGraphLaunch, captured set", captured_set, SETS}, {"cuGraphLaunch, captured copy to", captured_to, TAKES},
  {"cuGraphLaunch, captured copy from", captured_from, GIVES},
  {"cuGraphLaunch, captured upload", captured_upload, TAKES},
  {"cuGraphLaunch, captured kernel", captured_kernel, MIXES},
};

static void list(void) {
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) puts(calls[i].name);
}

static void start_named(void) {
  CUDA_ARRAY_DESCRIPTOR a = {N, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1};
  CK(cuDeviceGet(&device, 0));
  CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CK(cuMemAlloc(&plain, N));
  CK(cuMemAllocManaged(&spare, N, CU_MEM_ATTACH_GLOBAL));
  CK(cuArrayCreate(&array, &a));
  host = malloc(N), pattern = malloc(N);
  CUmodule module;
  CK(cuModuleLoadData(&module, gather));
  gatherer = function(module, "gather");
}

static void learn(struct range *r, size_t from, size_t n) { memset(r->known + from, 1, n); }
static void to_model(struct range *r, const unsigned char *from, int rows) {
  for (int y = 0; y < ROWS; y++) {
    int at = y * PITCH, n = rows ? WIDTH : PITCH;
    memcpy(r->model + AT + at, from + at, n);
    learn(r, AT + at, n);
  }
}

// One call on a part of the range, to its end, and what it does to the model.
static void perform(struct range *r, const struct call *c) {
  static unsigned char set[N];
  unsigned char *model = r->model + AT;
  m = r->p + AT, d = dev(m), value = VALUE;
  fill(pattern, N, turn + 1000);
  CK(cuMemcpyHtoD(plain, pattern, N));
  if (c->effect == GIVES) CK(cuMemsetD8(plain, 0, N));
  CK(cuCtxSynchronize());
  c->run();
  if (!c->sync) CK(turn % 2 ? cuStreamSynchronize(stream) : cuCtxSynchronize());
  if (!c->sync && turn % 2) CK(cuStreamSynchronize(NULL));
  outcome = 0;
  switch (c->effect) {
  case SETS: memset(set, VALUE, N), to_model(r, set, c->rows); break;
  case TAKES: to_model(r, pattern, c->rows); break;
  case GIVES:
    CK(cuMemcpyDtoH(host, plain, N));
    for (int i = 0; i < N; i++) outcome += (!c->rows || i % PITCH < WIDTH) && r->known[AT + i] && host[i] != model[i];
    break;
  case MIXES:
    for (int i = 0; i < N; i++) model[i] = (unsigned char)(model[i] * 3 + value);
    break;
  case DISCARDS: // what was there is not defined any more
    memset(m, VALUE, N), memset(model, VALUE, N), learn(r, AT, N);
    break;
  case HINTS: break;
  }
}
#endif
