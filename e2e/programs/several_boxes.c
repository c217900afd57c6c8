// Boxes between memory of two servers' GPUs: several_boxes KERNELS [wrong]. What is printed is the same where both GPUs
// are of one driver. Wrong copies are made on request alone: NVIDIA's driver takes some of them, and the context fails.
#include "several_managed.h"
#include <unistd.h>

static int wrongs; // wrong copies are made as well

enum kind { LINEAR, PITCHED, UNIFIED, FLAT, DEEP, LAYERS, LINES, CUBE, LEVEL, KINDS };
static const char *const names[] = {"linear", "pitched", "unified", "flat", "deep", "layers", "lines", "cube", "level"};

// Memory of a GPU, all of whose bytes are known. Pitched memory is bytes, with what lies between its rows and behind
// them; an array is its elements.
typedef struct {
  enum kind kind;
  int on, element;
  CUdeviceptr p;
  CUarray array;
  CUmipmappedArray mip;
  size_t pitch, rows, slices, bytes; // the bytes of a row, ...
  unsigned char *model, *got;
} Store;

typedef struct { size_t x, y, z; } At;

static int is_array(const Store *s) { return s->kind >= FLAT; }

static void idle(void) {
  for (int i = 0; i < 2; i++) {
    use(i);
    CK(cuCtxSynchronize());
  }
}

// The whole of it, to or from host memory.
static void whole(const Store *s, unsigned char *host, int up) {
  use(s->on);
  if (!is_array(s)) {
    CK(up ? cuMemcpyHtoD(s->p, host, s->bytes) : cuMemcpyDtoH(host, s->p, s->bytes));
    return;
  }
  CUDA_MEMCPY3D c = {.WidthInBytes = s->pitch, .Height = s->rows, .Depth = s->slices};
  if (up) {
    c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = host, c.srcPitch = s->pitch, c.srcHeight = s->rows;
    c.dstMemoryType = CU_MEMORYTYPE_ARRAY, c.dstArray = s->array;
  } else {
    c.dstMemoryType = CU_MEMORYTYPE_HOST, c.dstHost = host, c.dstPitch = s->pitch, c.dstHeight = s->rows;
    c.srcMemoryType = CU_MEMORYTYPE_ARRAY, c.srcArray = s->array;
  }
  CK(cuMemcpy3D(&c));
}

static void same(Store *s, const char *what) {
  whole(s, s->got, 0);
  for (size_t i = 0; i < s->bytes; i++)
    CHECK(s->got[i] == s->model[i], "%s: byte %zu of %zu (%s, rows of %zu) is %d, not %d", what, i, s->bytes,
          names[s->kind], s->pitch, s->got[i], s->model[i]);
}

static void refill(Store *s, unsigned seed) {
  fill(s->model, s->bytes, seed);
  whole(s, s->model, 1);
  CK(cuCtxSynchronize());
}

// width is in elements
static Store store(enum kind kind, int on, int element, size_t width, size_t rows, size_t slices) {
  static const CUarray_format formats[] = {[1] = CU_AD_FORMAT_UNSIGNED_INT8, [2] = CU_AD_FORMAT_UNSIGNED_INT16,
                                           [4] = CU_AD_FORMAT_FLOAT};
  const int size = element > 4 ? 4 : element;
  Store s = {.kind = kind, .on = on, .element = element, .pitch = width * element, .rows = rows, .slices = slices};
  CUDA_ARRAY3D_DESCRIPTOR d = {.Width = width, .Height = rows, .Depth = slices, .Format = formats[size],
                               .NumChannels = (unsigned)(element / size)};
  use(on);
  if (kind == FLAT) s.slices = 1, d.Depth = 0;
  if (kind == LAYERS) d.Flags = CUDA_ARRAY3D_LAYERED;
  if (kind == LINES) s.rows = 1, d.Height = 0, d.Flags = CUDA_ARRAY3D_LAYERED;
  if (kind == CUBE) s.rows = d.Height = width, s.slices = d.Depth = 6, d.Flags = CUDA_ARRAY3D_CUBEMAP;
  if (kind == PITCHED) s.pitch += 13;
  s.bytes = s.pitch * s.rows * s.slices;
  if (!is_array(&s)) s.bytes += 100; // and what lies behind it
  if (kind == UNIFIED) s.p = dev(managed(s.bytes));
  else if (!is_array(&s)) CK(cuMemAlloc(&s.p, s.bytes));
  if (kind == LEVEL) {
    d.Width *= 2, d.Height *= 2, d.Depth *= 2;
    CK(cuMipmappedArrayCreate(&s.mip, &d, 2));
    CK(cuMipmappedArrayGetLevel(&s.array, s.mip, 1));
  } else if (is_array(&s)) {
    CK(cuArray3DCreate(&s.array, &d));
  }
  s.model = malloc(s.bytes), s.got = malloc(s.bytes);
  return s;
}

static void end(Store *s) {
  if (s->kind == LEVEL) CK(cuMipmappedArrayDestroy(s->mip));
  else if (is_array(s)) CK(cuArrayDestroy(s->array));
  else CK(cuMemFree(s->p));
  free(s->model), free(s->got);
}

static CUDA_MEMCPY3D copy3d(const Store *src, At a, const Store *dst, At b, size_t width, size_t height, size_t depth) {
  return (CUDA_MEMCPY3D){
    .srcXInBytes = a.x, .srcY = a.y, .srcZ = a.z, .srcMemoryType = is_array(src) ? CU_MEMORYTYPE_ARRAY :
    src->kind == LINEAR ? CU_MEMORYTYPE_UNIFIED : CU_MEMORYTYPE_DEVICE, .srcDevice = src->p, .srcArray = src->array,
    .srcPitch = src->pitch, .srcHeight = src->rows,
    .dstXInBytes = b.x, .dstY = b.y, .dstZ = b.z, .dstMemoryType = is_array(dst) ? CU_MEMORYTYPE_ARRAY :
    dst->kind == LINEAR ? CU_MEMORYTYPE_UNIFIED : CU_MEMORYTYPE_DEVICE, .dstDevice = dst->p, .dstArray = dst->array,
    .dstPitch = dst->pitch, .dstHeight = dst->rows, .WidthInBytes = width, .Height = height, .Depth = depth
  };
}

// What the copy does to the destination's bytes.
static void move(const Store *src, At a, Store *dst, At b, size_t width, size_t height, size_t depth) {
  for (size_t z = 0; z < depth; z++)
    for (size_t y = 0; y < height; y++)
      memcpy(dst->model + ((b.z + z) * dst->rows + b.y + y) * dst->pitch + b.x,
             src->model + ((a.z + z) * src->rows + a.y + y) * src->pitch + a.x, width);
}

static CUDA_MEMCPY2D flat(const CUDA_MEMCPY3D *c) {
  return (CUDA_MEMCPY2D){
    .srcXInBytes = c->srcXInBytes, .srcY = c->srcY, .srcMemoryType = c->srcMemoryType, .srcDevice = c->srcDevice,
    .srcArray = c->srcArray, .srcPitch = c->srcPitch,
    .dstXInBytes = c->dstXInBytes, .dstY = c->dstY, .dstMemoryType = c->dstMemoryType, .dstDevice = c->dstDevice,
    .dstArray = c->dstArray, .dstPitch = c->dstPitch, .WidthInBytes = c->WidthInBytes, .Height = c->Height
  };
}

static CUDA_MEMCPY3D_PEER by_peers(const CUDA_MEMCPY3D *c, CUcontext to, CUcontext from) {
  CUDA_MEMCPY3D_PEER p;
  memcpy(&p, c, sizeof p);
  p.dstContext = to, p.srcContext = from;
  return p;
}

static CUmemcpy3DOperand operand(const Store *s, At a) {
  CUmemcpy3DOperand o = {.type = is_array(s) ? CU_MEMCPY_OPERAND_TYPE_ARRAY : CU_MEMCPY_OPERAND_TYPE_POINTER};
  if (is_array(s)) {
    o.op.array.array = s->array;
    o.op.array.offset = (CUoffset3D){a.x / s->element, a.y, a.z};
  } else {
    o.op.ptr.ptr = s->p + (a.z * s->rows + a.y) * s->pitch + a.x;
    o.op.ptr.rowLength = s->pitch, o.op.ptr.layerHeight = s->rows;
  }
  return o;
}

enum form { COPY_3D, COPY_3D_ASYNC, PEER, PEER_ASYNC, COPY_2D, COPY_2D_UNALIGNED, COPY_2D_ASYNC, BATCH, FORMS };

// Forms for one slice copy the first slice alone where there are several: which is why they give how many.
static size_t issue(enum form form, const Store *src, At a, const Store *dst, At b, size_t width, size_t height,
                    size_t depth, CUstream s) {
  CUDA_MEMCPY3D c = copy3d(src, a, dst, b, width, height, depth);
  CUDA_MEMCPY3D_PEER p = by_peers(&c, gpus[dst->on].context, gpus[src->on].context);
  CUDA_MEMCPY2D r = flat(&c);
  CUDA_MEMCPY3D_BATCH_OP op = {.src = operand(src, a), .dst = operand(dst, b),
                               .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
  // where no end is an array, extents are bytes
  const int size = is_array(dst) ? dst->element : is_array(src) ? src->element : 1;
  const int can_batch = s && width % size == 0 && (is_array(src) || src->pitch % size == 0) &&
                        (is_array(dst) || dst->pitch % size == 0) &&
                        (!is_array(src) || !is_array(dst) || src->element == dst->element);
  switch (form) {
  case COPY_3D: CK(cuMemcpy3D(&c)); return depth;
  case PEER: CK(cuMemcpy3DPeer(&p)); return depth;
  case PEER_ASYNC: CK(cuMemcpy3DPeerAsync(&p, s)); return depth;
  case BATCH:
    if (!can_batch) break;
    if (!is_array(src)) op.src.op.ptr.rowLength /= size;
    if (!is_array(dst)) op.dst.op.ptr.rowLength /= size;
    op.extent = (CUextent3D){width / size, height, depth};
#if CUDA_VERSION >= 13000 && !defined SCUDA_CUDA_H
    CK(cuMemcpy3DBatchAsync(1, &op, 0, s));
#else
    size_t failed;
    CK(cuMemcpy3DBatchAsync(1, &op, &failed, 0, s));
#endif
    return depth;
  default:
    if (a.z || b.z) break;
    if (form == COPY_2D) CK(cuMemcpy2D(&r));
    if (form == COPY_2D_UNALIGNED) CK(cuMemcpy2DUnaligned(&r));
    if (form == COPY_2D_ASYNC) CK(cuMemcpy2DAsync(&r, s));
    if (form > COPY_3D_ASYNC) return 1;
  }
  CK(cuMemcpy3DAsync(&c, s));
  return depth;
}

static CUstream stream_of(unsigned i, int src, int dst) {
  return (CUstream[]){gpus[src].stream, gpus[dst].stream, NULL, CU_STREAM_PER_THREAD}[i % 4];
}

// Each kind of memory to each other, from either GPU, by all forms in turn and in all streams.
static void shapes(void) {
  unsigned turn = 0;
  for (int from = 0; from < KINDS; from++) {
    for (int to = 0; to < KINDS; to++) {
      for (int way = 0; way < 2; way++) {
        const int element = (int[]){1, 2, 4, 8, 16}[turn % 5];
        Store src = store((enum kind)from, way, element, 24, 11, 6);
        Store dst = store((enum kind)to, !way, element, 31, 9, 7);
        refill(&src, turn + 1), refill(&dst, turn + 1000);
        for (int form = 0; form < FORMS; form++, turn++) {
          At a = {turn % 3 * element, turn % 2, turn % 5 == 0};
          At b = {(turn + 1) % 4 * element, turn % 3, turn % 4 == 0};
          if (src.rows == 1) a.y = 0;
          if (dst.rows == 1) b.y = 0;
          if (src.slices == 1) a.z = 0;
          if (dst.slices == 1) b.z = 0;
          const size_t width = (1 + turn % 19) * element;
          const size_t height = src.rows == 1 || dst.rows == 1 ? 1 : 1 + turn % 6;
          size_t depth = src.slices == 1 || dst.slices == 1 ? 1 : 1 + turn % 4;
          // NVIDIA's driver 580 finds the first layer alone, natively as well (seen on an H200)
          if (from == UNIFIED && to == LINES) depth = 1, b.z = 0;
          if (from == LINES && to == UNIFIED) depth = 1, a.z = 0;
          CUstream s = stream_of(turn / 3, way, !way);
          use((int)turn / 2 % 2);
          depth = issue((enum form)form, &src, a, &dst, b, width, height, depth, s);
          CK(cuStreamSynchronize(s));
          // the forms without a stream are in the current context's default one, and need not have ended
          idle();
          move(&src, a, &dst, b, width, height, depth);
          char what[100];
          snprintf(what, sizeof what, "%s to %s, form %d, %zu x %zu x %zu", names[from], names[to], form, width, height,
                   depth);
          same(&dst, what), same(&src, what);
        }
        end(&src), end(&dst);
      }
    }
  }
  printf("%u boxes\n", turn);
}

// The forms that copy one row, and those of straight memory.
static void rows_of_arrays(void) {
  for (unsigned i = 0; i < 28; i++) {
    const int way = (int)i & 1, kind = (int)i / 2 % 7;
    Store src = store(kind == 1 || kind == 2 ? FLAT : PITCHED, way, 2, 40, 5, 1),
          dst = store(kind == 0 || kind == 2 ? FLAT : PITCHED, !way, 2, 50, 4, 1);
    CUstream s = stream_of(i / 7, way, !way);
    CUdeviceptr from = src.p + 6, to = dst.p + 10;
    size_t n = 44, failed, first = 0;
    At a = {6, 0, 0}, b = {10, 0, 0};
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    refill(&src, i), refill(&dst, i + 100);
    use((int)i / 2 & 1);
    if (kind == 0) CK(cuMemcpyDtoA(dst.array, b.x, from, n));
    if (kind == 1) CK(cuMemcpyAtoD(to, src.array, a.x, n));
    if (kind == 2) CK(cuMemcpyAtoA(dst.array, b.x, src.array, a.x, n));
    if (kind == 3) CK(cuMemcpyPeer(to, gpus[!way].context, from, gpus[way].context, n));
    if (kind == 4) CK(cuMemcpyPeerAsync(to, gpus[!way].context, from, gpus[way].context, n, s));
    if (kind == 5 && s) {
#if CUDA_VERSION >= 13000 && !defined SCUDA_CUDA_H
      (void)failed;
      CK(cuMemcpyBatchAsync(&to, &from, &n, 1, &attributes, &first, 1, s));
#else
      CK(cuMemcpyBatchAsync(&to, &from, &n, 1, &attributes, &first, 1, &failed, s));
#endif
    } else if (kind > 4) {
      CK(cuMemcpyAsync(to, from, n, s));
    }
    CK(cuStreamSynchronize(s));
    idle();
    move(&src, a, &dst, b, n, 1, 1);
    same(&dst, "a row"), same(&src, "a row");
    end(&src), end(&dst);
  }
  printf("rows\n");
}

// More than goes in one piece: of slices, of rows, and of the bytes of a row.
static void big(void) {
  static const size_t sizes[][3] = {{1 << 20, 3, 9}, {5 << 20, 4, 2}, {(17 << 20) + 5, 2, 1}, {(33 << 20) + 1, 1, 1},
                                    {40, 300, 2000}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    const size_t *n = sizes[i];
    Store src = store(PITCHED, i & 1, 1, n[0], n[1], n[2]), dst = store(PITCHED, !(i & 1), 1, n[0] + 7, n[1] + 1, n[2]);
    refill(&src, (unsigned)i), refill(&dst, (unsigned)i + 100);
    const At a = {0, 0, 0}, b = {3, 1, 0};
    use(i & 1);
    issue(COPY_3D_ASYNC, &src, a, &dst, b, n[0], n[1], n[2], gpus[0].stream);
    wait_for(0);
    move(&src, a, &dst, b, n[0], n[1], n[2]);
    same(&dst, "a big copy");
    if (n[2] > 1) { // of which the last piece alone would go wrong
      const At beyond = {3, 1, 1};
      CUDA_MEMCPY3D c = copy3d(&src, a, &dst, beyond, n[0], n[1], n[2]);
      refill(&dst, (unsigned)i + 200);
      use(i & 1);
      WANT(cuMemcpy3D(&c), CUDA_ERROR_INVALID_VALUE);
      same(&dst, "a big copy that does not fit");
    }
    end(&src), end(&dst);
  }
  printf("big boxes\n");
}

static void slow(void *user) {
  (void)user;
  usleep(5000);
}

// The copy comes behind what its stream has, and before what the stream is given next.
static void order(void) {
  enum { STALE = 1, BEFORE, LATE, VALUE };
  for (unsigned i = 0; i < 24; i++) {
    const int way = (int)i & 1, in_source = i / 2 % 2, form = (int)i / 4 % 6;
    Store src = store(PITCHED, way, 1, 300, 40, 2), dst = store(PITCHED, !way, 1, 300, 40, 2);
    CUstream s = gpus[in_source ? way : !way].stream;
    const int in_stream = form == COPY_3D_ASYNC || form == PEER_ASYNC;
    const At at = {5, 1, 0};
    memset(src.model, VALUE + (int)i, src.bytes), memset(dst.model, BEFORE, dst.bytes);
    use(!way);
    CK(cuMemsetD8(dst.p, BEFORE, dst.bytes));
    CK(cuCtxSynchronize());
    use(way);
    CK(cuMemsetD8(src.p, STALE, src.bytes));
    CK(cuCtxSynchronize());
    CUstream writer = in_stream ? gpus[way].stream : NULL; // other forms are in the default stream
    CK(cuLaunchHostFunc(writer, slow, NULL));
    CK(cuMemsetD8Async(src.p, (unsigned char)(VALUE + i), src.bytes, writer));
    if (in_stream && !in_source) after(!way);
    use(way);
    const size_t depth = issue((enum form)form, &src, at, &dst, at, 200, 30, 2, s);
    if (!in_stream || in_source) CK(cuMemsetD8Async(src.p, LATE, src.bytes, writer));
    CK(cuStreamSynchronize(in_stream ? s : NULL));
    move(&src, at, &dst, at, 200, 30, depth);
    same(&dst, "in order");
    use(way);
    CK(cuCtxSynchronize());
    end(&src), end(&dst);
  }
  printf("order\n");
}

// Memory of two mappings, of which each has a part of the rows.
static void mapped(void) {
  for (int way = 0; way < 2; way++) {
    CUmemAllocationProp kind = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, gpus[way].device}};
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, gpus[way].device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle part[2];
    size_t n;
    use(way);
    CK(cuMemGetAllocationGranularity(&n, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    Store two = {.kind = PITCHED, .on = way, .element = 1, .pitch = n / 16, .rows = 32, .slices = 1, .bytes = 2 * n};
    CK(cuMemAddressReserve(&two.p, 3 * n, 0, 0, 0)); // there is nothing behind them
    for (int i = 0; i < 2; i++) {
      CK(cuMemCreate(&part[i], n, &kind, 0));
      CK(cuMemMap(two.p + i * n, n, 0, part[i], 0));
    }
    CK(cuMemSetAccess(two.p, 2 * n, &access, 1));
    two.model = malloc(2 * n), two.got = malloc(2 * n);
    Store one = store(LINEAR, !way, 1, n / 16, 32, 1);
    for (int i = 0; i < 4; i++) {
      Store *src = i & 1 ? &two : &one, *dst = i & 1 ? &one : &two;
      const At a = {3, 2, 0}, b = {77, 5, 0};
      refill(src, (unsigned)i + 1), refill(dst, (unsigned)i + 7);
      use(i / 2);
      // a copy that names no contexts is the current one's, and that has to have access to both mappings
      issue(i / 2 == way ? COPY_3D_ASYNC : PEER_ASYNC, src, a, dst, b, n / 16 - 100, 25, 1, gpus[way].stream);
      wait_for(way);
      move(src, a, dst, b, n / 16 - 100, 25, 1);
      same(dst, "two mappings"), same(src, "two mappings");
      if (!wrongs) continue;
      use(i / 2);
      CUDA_MEMCPY3D c = copy3d(src, a, dst, b, n / 16 - 100, 28, 1); // one row too many at the destination's end
      SHOW(cuMemcpy3D(&c));
      same(dst, "a row too many");
    }
    use(way);
    CK(cuMemUnmap(two.p, 2 * n));
    for (int i = 0; i < 2; i++) CK(cuMemRelease(part[i]));
    CK(cuMemAddressFree(two.p, 3 * n));
    free(two.model), free(two.got);
    end(&one);
  }
}

static int one_slice(const CUDA_MEMCPY3D *c) {
  return c->Depth == 1 && !c->srcZ && !c->dstZ && !c->srcLOD && !c->dstLOD;
}

#define WRONG(change) \
  do { \
    c = good, p = by_peers(&good, gpus[1].context, gpus[0].context); \
    change; \
    r = flat(&c); \
    printf("%s: ", #change); \
    printf("%d ", cuMemcpy3D(&c)); \
    printf("%d ", cuMemcpy3DAsync(&c, s)); \
    printf("%d ", one_slice(&c) ? cuMemcpy2D(&r) : 0); \
    printf("%d ", one_slice(&c) ? cuMemcpy2DUnaligned(&r) : 0); \
    printf("%d\n", one_slice(&c) ? cuMemcpy2DAsync(&r, s) : 0); \
    same(dst, #change); \
  } while (0)
#define WRONG_PEER(change) \
  do { \
    p = by_peers(&good, gpus[1].context, gpus[0].context); \
    change; \
    printf("%s: ", #change); \
    printf("%d ", cuMemcpy3DPeer(&p)); \
    printf("%d\n", cuMemcpy3DPeerAsync(&p, s)); \
    same(dst, #change); \
  } while (0)

// What cannot be says so before anything is copied.
static void wrong(void) {
  CUDA_MEMCPY3D good, c;
  CUDA_MEMCPY3D_PEER p;
  CUDA_MEMCPY2D r;
  CUstream gone;
  use(1);
  CK(cuStreamCreate(&gone, 0));
  CK(cuStreamDestroy(gone));
  for (int i = 0; i < 4; i++) {
    Store all[2] = {store(i & 1 ? DEEP : PITCHED, 0, 4, 50, 20, 3), store(i & 2 ? DEEP : PITCHED, 1, 4, 50, 20, 3)};
    Store *src = &all[0], *dst = &all[1];
    const At at = {4, 1, 0};
    CUstream s = gpus[i / 2].stream;
    refill(src, 1), refill(dst, 2);
    good = copy3d(src, at, dst, at, 100, 10, 1);
    WRONG(c.WidthInBytes = 0);
    WRONG(c.Height = 0);
    WRONG(c.Depth = 0);
    WRONG(c.WidthInBytes = 220);
    WRONG(c.Depth = 4);
    WRONG(c.Depth = 3; c.dstZ = 1);
    WRONG(c.Depth = 3; c.srcZ = 1);
    WRONG(c.srcLOD = 1);
    WRONG(c.dstLOD = 1);
    WRONG(c.srcMemoryType = 7);
    WRONG(c.dstMemoryType = 0);
    c = good, r = flat(&good);
    SHOW(cuMemcpy3DAsync(&c, gone));
    SHOW(cuMemcpy2DAsync(&r, gone));
    WRONG_PEER(p.dstLOD = 1);
    if (is_array(src)) {
      WRONG(c.srcXInBytes = 3);
      WRONG(c.srcXInBytes = 104);
      WRONG(c.srcY = 11);
      WRONG(c.srcZ = 3);
      WRONG(c.srcArray = (CUarray)(uintptr_t)gone);
      SHOW(cuMemcpyAtoD(gpus[1].plain, src->array, 0, 204));
      SHOW(cuMemcpyAtoD(gpus[1].plain, src->array, 2, 4));
    } else {
      WRONG(c.srcPitch = 50);
      WRONG(c.srcPitch = 103);
      WRONG(c.Height = 9; c.Depth = 2; c.srcHeight = 9);
      WRONG(c.srcY = 55);
      WRONG(c.Height = 80);
      WRONG(c.srcDevice = 0);
    }
    if (is_array(dst)) {
      WRONG(c.dstXInBytes = 3);
      WRONG(c.dstXInBytes = 104);
      WRONG(c.dstY = 11);
      WRONG(c.dstZ = 3);
      WRONG(c.dstArray = NULL);
      SHOW(cuMemcpyDtoA(dst->array, 0, gpus[0].plain, 204));
      SHOW(cuMemcpyDtoA(dst->array, 0, gpus[0].plain, 0));
      SHOW(cuMemcpyDtoA(NULL, 0, gpus[0].plain, 4));
      SHOW(cuMemcpyAtoA(dst->array, 0, NULL, 0, 4));
      if (is_array(src)) SHOW(cuMemcpyAtoA(dst->array, 104, src->array, 0, 100));
    } else {
      WRONG(c.dstPitch = 50);
      WRONG(c.dstPitch = 103);
      WRONG(c.Height = 9; c.Depth = 2; c.dstHeight = 9);
      WRONG(c.dstY = 55);
      WRONG(c.dstDevice = 0);
      if (!is_array(src)) SHOW(cuMemcpyDtoD(dst->p, src->p + src->bytes - 10, 2000));
      if (!is_array(src)) SHOW(cuMemcpyDtoD(dst->p + dst->bytes - 10, src->p, 2000));
      if (!is_array(src)) SHOW(cuMemcpyDtoDAsync(dst->p, src->p, 0, gpus[1].stream));
    }
    same(src, "wrong"), same(dst, "wrong");
    end(src), end(dst);
  }
}

// Both ends on one GPU, or one in host memory, from the other's context; and streams of whichever.
static void apart(void) {
  for (int i = 0; i < 24; i++) {
    const int on = i & 1, kind = i >> 1 & 3;
    Store src = store(kind & 1 ? FLAT : PITCHED, on, 4, 30, 8, 1);
    Store dst = store(kind & 2 ? FLAT : PITCHED, on, 4, 30, 8, 1);
    const At a = {8, 1, 0}, b = {4, 2, 0};
    CUstream s = i & 16 ? gpus[!on].stream : i & 8 ? gpus[on].stream : NULL;
    refill(&src, (unsigned)i), refill(&dst, (unsigned)i + 50);
    use(s ? !on : on);
    const enum form form = (enum form[]){COPY_3D_ASYNC, PEER_ASYNC, COPY_2D_ASYNC}[(i + i / 8) % 3];
    issue(s ? form : COPY_2D, &src, a, &dst, b, 60, 5, 1, s);
    CK(cuStreamSynchronize(s));
    idle();
    move(&src, a, &dst, b, 60, 5, 1);
    same(&dst, "within a GPU");
    unsigned char rows[5 * 60];
    fill(rows, sizeof rows, 9);
    CUDA_MEMCPY3D c = copy3d(&src, a, &dst, b, 60, 5, 1);
    c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = rows, c.srcPitch = 60, c.srcHeight = 5;
    c.srcXInBytes = c.srcY = 0;
    use(!on);
    CK(cuMemcpy3DAsync(&c, gpus[on].stream));
    wait_for(on);
    for (int y = 0; y < 5; y++) memcpy(dst.model + (b.y + y) * dst.pitch + b.x, rows + 60 * y, 60);
    same(&dst, "from the host");
    end(&src), end(&dst);
  }
  printf("apart\n");
}

// A capture takes such a copy, or refuses it and stays what it was. Beside one, copies go on.
static void captured(void) {
  for (int form = 0; form < 3; form++) {
    Store src = store(PITCHED, 0, 1, 100, 10, 2), dst = store(form ? DEEP : PITCHED, 1, 1, 100, 10, 2);
    const At at = {5, 1, 0};
    CUstream s = gpus[form & 1].stream, other = gpus[!(form & 1)].stream;
    CUgraph graph;
    refill(&src, 1), refill(&dst, 2);
    CUDA_MEMCPY3D c = copy3d(&src, at, &dst, at, 60, 5, 1);
    CUDA_MEMCPY2D r = flat(&c);
    CUDA_MEMCPY3D_PEER p = by_peers(&c, gpus[1].context, gpus[0].context);
    CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUresult got = form == 0 ? cuMemcpy2DAsync(&r, s) : form == 1 ? cuMemcpy3DAsync(&c, s) : cuMemcpy3DPeerAsync(&p, s);
    CHECK(got == CUDA_SUCCESS || got == CUDA_ERROR_NOT_SUPPORTED, "a copy in a capture: %d", got);
    c.Depth = 2;
    CK(cuMemcpy3DAsync(&c, other));
    CK(cuMemcpyDtoDAsync(gpus[1].plain, gpus[0].plain, 100, other));
    CK(cuStreamEndCapture(s, &graph));
    CK(cuGraphDestroy(graph));
    CK(cuStreamSynchronize(other));
    move(&src, at, &dst, at, 60, 5, 2);
    same(&dst, "beside a capture");
    end(&src), end(&dst);
  }
  printf("captures\n");
}

int main(int argc, char **argv) {
  start_two(argc, argv);
  wrongs = argc > 2;
  shapes();
  rows_of_arrays();
  big();
  order();
  mapped();
  if (wrongs) wrong();
  apart();
  captured();
  return 0;
}
