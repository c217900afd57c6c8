// Unified memory that GPUs of two servers use: several_managed KERNELS [apart]. What is printed is the same where both
// are of one driver. apart: each GPU uses a range of its own, and nothing else is done.
#include "several_managed.h"

enum { N = (1 << 19) + 4321 };

struct list { unsigned value, pad; CUdeviceptr next; };

// Each GPU works on what the other one left, and the CPU reads and writes between, all of it or parts of pages.
static void in_turns(int home) {
  struct range r = make(home, N);
  compare(&r, 0, N, "fresh memory");
  put(&r, 100, 200000, 3);
  for (unsigned round = 0; round < 12; round++) {
    int on = (int)(round & 1) ^ home;
    mix_on(on, &r, round * 31000, PART, 3, round + 1);
    if (round % 3 == 0) {
      after(!on);
      continue;
    }
    wait_for(on);
    if (round % 3 == 1) compare(&r, 0, N, "in turns");
    put(&r, round * 40001, 5, (int)round);
    put(&r, N - 3, 3, (int)round + 7);
  }
  wait_for(0), wait_for(1);
  compare(&r, 0, N, "at the end of the turns");
  use(!home);
  drop(&r);
}

// Nobody waits: what the second GPU does comes behind what the first one does with the range.
static void relay(void) {
  struct range r = make(0, PART);
  put(&r, 0, PART, 1);
  for (int i = 0; i < 8; i++) {
    int on = i & 1;
    if (i) after(on);
    mix_on(on, &r, 0, PART, 3, (unsigned)i);
  }
  CK(cuEventRecord(gpus[1].done, gpus[1].stream));
  CK(cuEventSynchronize(gpus[1].done));
  compare(&r, 0, PART, "one after the other");
  drop(&r);
}

// Each GPU has a part of the range at the same time, and they share a page.
static void halves(void) {
  struct range r = make(1, 2 * PART);
  put(&r, 0, 2 * PART, 5);
  for (unsigned round = 0; round < 3; round++) {
    mix_on(0, &r, 0, PART, 2, round);
    mix_on(1, &r, PART, PART, 3, round);
    wait_for(0), wait_for(1);
    compare(&r, 0, 2 * PART, "halves");
  }
  drop(&r);
}

// One launch names ranges that were made at both.
static void together(void) {
  enum { COUNT = 5000 };
  float *p[3];
  int n = COUNT;
  for (int i = 0; i < 3; i++) {
    use(i & 1);
    p[i] = managed(4 * COUNT);
    for (int k = 0; k < COUNT; k++) p[i][k] = (float)k + i;
  }
  for (int round = 0; round < 6; round++) {
    int on = round & 1, to = 2 - round % 3;
    float want = p[0][COUNT - 1] + p[1][COUNT - 1];
    CUdeviceptr d[3] = {dev(p[0]), dev(p[1]), dev(p[to])};
    use(on);
    CK(LAUNCH(gpus[on].add, (COUNT + 255) / 256, 256, 0, gpus[on].stream, &d[0], &d[1], &d[2], &n));
    wait_for(on);
    CHECK(p[to][COUNT - 1] == want, "several in one launch, round %d: %f, not %f", round, p[to][COUNT - 1], want);
  }
  for (int i = 0; i < 3; i++) release(p[i]);
}

// Kernels get to ranges by pointers in other ranges, in the GPU's memory or in pinned memory: they name one at most.
static void by_pointers(void) {
  enum { NODES = 5 };
  struct list *node[NODES], *pinned, first = {1, 0, 0};
  unsigned value[NODES] = {0};
  unsigned long long sum, want;
  use(0);
  CK(cuMemHostAlloc((void **)&pinned, sizeof *pinned, CU_MEMHOSTALLOC_PORTABLE));
  for (int i = 0; i < NODES; i++) {
    use(i & 1);
    node[i] = managed(sizeof **node);
    *node[i] = (struct list){0, 0, i ? dev(node[i - 1]) : 0};
  }
  *pinned = (struct list){0, 0, dev(node[NODES - 1])};
  for (unsigned round = 0; round < 8; round++) {
    int on = (int)round & 1;
    unsigned n = round + 1;
    struct gpu *g = &gpus[on];
    CUdeviceptr head = dev(node[NODES - 1]), result = g->plain + 64;
    use(on);
    CK(cuMemsetD8Async(result, 0, 8, g->stream));
    if (round / 2 == 1) { // the first node is the GPU's own
      first.next = head, head = g->plain;
      CK(cuMemcpyHtoD(head, &first, sizeof first));
    }
    if (round / 2 == 2) head = g->plain; // it knows the address still
    if (round / 2 == 3) head = (CUdeviceptr)(uintptr_t)pinned;
    CK(LAUNCH(g->walk, 1, 1, 0, g->stream, &head, &n, &result));
    wait_for(on);
    want = 0;
    for (int i = 0; i < NODES; i++) {
      want += value[i] += n;
      CHECK(node[i]->value == value[i], "by pointers, round %u: node %d has %u, not %u", round, i, node[i]->value,
            value[i]);
    }
    if (round < 2) {
      CK(cuMemcpyDtoH(&sum, result, 8));
      CHECK(sum == want, "by pointers, round %u: the sum is %llu, not %llu", round, sum, want);
    }
    node[round % NODES]->value = value[round % NODES] = 7 * round;
  }
  for (int i = 0; i < NODES; i++) release(node[i]);
  CK(cuMemFreeHost(pinned));
}

static int attribute(CUmem_range_attribute what, const struct range *r) {
  int value = 99;
  CK(cuMemRangeGetAttribute(&value, 4, what, dev(r->p), r->bytes));
  return value;
}

// Prefetches and advice change nothing but what is told of them.
static void hints(void) {
  static const int places[] = {1, 0, -1, 1, -1, 0};
  struct range r = make(0, 3 * PART);
  put(&r, 0, r.bytes, 9);
  for (unsigned i = 0; i < sizeof places / sizeof *places; i++) {
    int to = places[i] < 0 ? CU_DEVICE_CPU : gpus[places[i]].device, on = (int)i & 1;
    use(on);
    CK(prefetch(dev(r.p) + 1000, PART, to, gpus[on].stream));
    CK(prefetch(dev(r.p), r.bytes, to, gpus[on].stream));
    CHECK(attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, &r) == to, "last prefetch");
    if (i % 3 == 0) wait_for(on), compare(&r, 0, r.bytes, "after a prefetch");
    if (i % 3 == 0) put(&r, 100, 3, (int)i);
    mix_on(on, &r, 500, PART, 5, i);
    wait_for(on);
    compare(&r, 0, r.bytes, "after a prefetch and a kernel");
  }
  int both[3];
  for (int i = 0; i < 2; i++) CK(advise(dev(r.p), r.bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, gpus[i].device));
  CK(cuMemRangeGetAttribute(both, sizeof both, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, dev(r.p), r.bytes));
  CHECK(both[0] == gpus[0].device && both[1] == gpus[1].device && both[2] == CU_DEVICE_INVALID, "accessed by %d %d %d",
        both[0], both[1], both[2]);
  for (int place = 0; place < 2; place++) {
    CK(advise(dev(r.p), r.bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, gpus[place].device));
    CHECK(attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, &r) == gpus[place].device, "preferred location");
    for (unsigned round = 0; round < 4; round++) {
      if (round == 2) CK(advise(dev(r.p), r.bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, gpus[0].device));
      mix_on((int)round & 1, &r, 0, r.bytes, 7, round);
      wait_for((int)round & 1);
      compare(&r, 0, r.bytes, "advised memory");
    }
    CK(advise(dev(r.p), r.bytes, CU_MEM_ADVISE_UNSET_READ_MOSTLY, gpus[0].device));
  }
  drop(&r);
}

static void told(void) { // where a range was made, wherever it is
  for (int home = 0; home < 2; home++) {
    struct range r = make(home, PART);
    for (int on = 0; on < 2; on++) {
      int ordinal = -1;
      unsigned is = 0;
      CUcontext owner = NULL;
      unsigned long long id[2];
      CUdeviceptr p = dev(r.p) + 5, base;
      size_t bytes;
      CK(cuPointerGetAttribute(&id[0], CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
      mix_on(on, &r, 0, PART, 1, 1);
      wait_for(on);
      use(!on);
      CK(cuPointerGetAttribute(&id[1], CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
      CK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
      CK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p));
      CK(cuPointerGetAttribute(&is, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
      CK(cuMemGetAddressRange(&base, &bytes, p));
      printf("made at %d, used at %d: is that device %d, its context %d, managed %u, from %d, %d bytes, one id %d\n",
             home, on, ordinal == gpus[home].device, owner == gpus[home].context, is & 1, base == dev(r.p),
             bytes >= PART, id[0] == id[1]);
    }
    drop(&r);
  }
}

// Copies and sets of unified memory, and of either GPU's own with it.
static void copies(void) {
  unsigned char *host = malloc(PART);
  for (unsigned i = 0; i < 32; i++) {
    int home = (int)i & 1, plain = (int)i >> 1 & 1, in = (int)i >> 2 & 1, kind = (int)i >> 3;
    struct range r = make(home, PART);
    CUdeviceptr m = dev(r.p), p = gpus[plain].plain;
    mix_on(!home, &r, 10, PART - 10, 1, i + 1);
    CUstream s = gpus[in].stream;
    wait_for(!home);
    use(in);
    if (kind == 0) { // there and back
      CK(cuMemcpyDtoDAsync(p, m, PART, s));
      CK(cuMemsetD8Async(m, 77, PART, s));
      CK(cuMemcpyDtoDAsync(m + 1000, p + 1000, PART - 1000, s));
      memset(r.model, 77, 1000);
    } else if (kind == 1) {
      CK(cuMemcpyDtoD(p, m, PART));
      CK(cuMemsetD8(m, 78, PART));
      CK(cuMemcpy(m + 1000, p + 1000, PART - 1000));
      memset(r.model, 78, 1000);
    } else if (kind == 2) {
      CK(cuMemcpyPeer(p, gpus[plain].context, m, gpus[home].context, PART));
      CK(cuMemsetD8Async(m, 79, PART, s));
      CK(cuMemcpyPeerAsync(m + 1000, gpus[home].context, p + 1000, gpus[plain].context, PART - 1000, s));
      memset(r.model, 79, 1000);
    } else { // with memory of the CPU, and another range
      struct range q = make(!home, PART);
      use(in);
      for (int k = 0; k < PART; k++) host[k] = q.model[k] = (unsigned char)(k * 7 + (int)i);
      CK(cuMemcpyHtoDAsync(dev(q.p), host, PART, s));
      CK(cuMemcpyDtoH(host, m, PART));
      CHECK(!memcmp(host, r.model, PART), "a download");
      CK(cuMemcpyAsync(m + 5, dev(q.p) + 5, 60000, s));
      memcpy(r.model + 5, q.model + 5, 60000);
      CK(cuStreamSynchronize(s));
      compare(&q, 0, PART, "an upload");
      drop(&q);
    }
    CK(cuCtxSynchronize());
    CK(cuStreamSynchronize(s));
    compare(&r, 0, PART, "copies");
    drop(&r);
  }
  free(host);
}

// Rows of it, with gaps between them.
static void rows(void) {
  enum { PITCH = 512, WIDTH = 300, HEIGHT = 100 };
  unsigned char *host = malloc(PITCH * HEIGHT);
  for (unsigned i = 0; i < 24; i++) {
    int home = (int)i & 1, plain = (int)i >> 1 & 1, in = (int)i >> 2 & 1, kind = (int)i >> 3;
    struct range r = make(home, PITCH * HEIGHT);
    CUdeviceptr p = gpus[plain].plain;
    mix_on(!home, &r, 0, r.bytes, 1, i + 1);
    wait_for(!home);
    use(plain);
    CK(cuMemsetD8(p, 200, PITCH * HEIGHT));
    CK(cuCtxSynchronize());
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = dev(r.p), .srcPitch = PITCH,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = p, .dstPitch = PITCH,
                       .WidthInBytes = WIDTH, .Height = HEIGHT};
    CUDA_MEMCPY3D_PEER peer = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = dev(r.p), .srcPitch = PITCH,
                               .srcContext = gpus[home].context, .dstContext = gpus[plain].context,
                               .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = p, .dstPitch = PITCH,
                               .WidthInBytes = WIDTH, .Height = HEIGHT, .Depth = 1};
    use(in);
    if (kind == 0) CK(cuMemcpy2D(&c));
    if (kind == 1) CK(cuMemcpy3DPeer(&peer));
    if (kind == 2) { // to the CPU, and other rows back
      c.dstMemoryType = CU_MEMORYTYPE_HOST, c.dstHost = host;
      CK(cuMemcpy2D(&c));
      for (int k = 0; k < HEIGHT * PITCH; k++)
        CHECK(k % PITCH >= WIDTH || host[k] == r.model[k], "rows to the CPU: byte %d is %d", k, host[k]);
      c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = host + 7 * PITCH;
      c.dstMemoryType = CU_MEMORYTYPE_DEVICE, c.dstDevice = dev(r.p), c.Height = 10;
      CK(cuMemcpy2D(&c));
      for (int k = 0; k < 10 * PITCH; k++)
        if (k % PITCH < WIDTH) r.model[k] = host[7 * PITCH + k];
      CK(cuCtxSynchronize());
    } else {
      CK(cuMemcpyDtoH(host, p, PITCH * HEIGHT));
      for (int k = 0; k < HEIGHT * PITCH; k++)
        CHECK(host[k] == (k % PITCH < WIDTH ? r.model[k] : 200), "rows %u: byte %d is %d", i, k, host[k]);
    }
    compare(&r, 0, r.bytes, "rows");
    drop(&r);
  }
  free(host);
}

// What is freed while the other GPU has it is gone from both: there is room for as much again, which is zero.
static void freed(void) {
  for (unsigned i = 0; i < 12; i++) {
    int home = (int)i & 1;
    struct range r = make(home, 40 << 20);
    mix_on(!home, &r, 1000, PART, 1, i + 1);
    mix_on(home, &r, (30 << 20) + i, PART, 1, i + 2);
    mix_on(!home, &r, 35 << 20, PART, 1, i + 2);
    use((int)i >> 1 & 1);
    wait_for(0), wait_for(1);
    if (i % 3 == 1) compare(&r, 30 << 20, 1 << 20, "before it is freed");
    drop(&r);
  }
}

// A graph has a range that the other GPU used since it was captured. A capture does not move one.
static void graphs(void) {
  unsigned long long from = 0, n = PART;
  unsigned a = 3, b = 1;
  struct range r = make(0, PART);
  for (int on = 0; on < 2; on++) {
    struct gpu *g = &gpus[on];
    CUgraph graph;
    CUgraphExec exec;
    mix_on(on, &r, 0, PART, 1, 1); // so that it is there
    CK(cuStreamBeginCapture(g->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CK(LAUNCH(g->mix, 4, 64, 0, g->stream, &r.p, &from, &n, &a, &b));
    CK(cuStreamEndCapture(g->stream, &graph));
    CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (unsigned round = 0; round < 3; round++) {
      after(!on);
      mix_on(!on, &r, round * 100, 3000, 5, round);
      after(on);
      use(round ? on : !on); // whichever is current
      CK(cuGraphLaunch(exec, g->stream));
      for (int i = 0; i < PART; i++) r.model[i] = (unsigned char)(r.model[i] * a + b);
      if (round == 1) continue;
      wait_for(on);
      compare(&r, 0, PART, "a graph");
    }
    mix_on(!on, &r, 0, PART, 1, 1);
    wait_for(!on);
    use(on);
    CK(cuStreamBeginCapture(g->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUresult got = LAUNCH(g->mix, 4, 64, 0, g->stream, &r.p, &from, &n, &a, &b);
    CHECK(got == CUDA_SUCCESS || got == CUDA_ERROR_NOT_SUPPORTED, "a launch in a capture: %d", got);
    CK(cuGraphDestroy(graph));
    CK(cuStreamEndCapture(g->stream, &graph));
    CK(cuGraphExecDestroy(exec));
    CK(cuGraphDestroy(graph));
    wait_for(!on);
    compare(&r, 0, PART, "after a capture");
  }
  drop(&r);
}

// A context ends that had used the range of another.
static void contexts(void) {
  struct range r = make(0, N);
  put(&r, 0, N, 4);
  CUcontext more;
  CK(cuCtxCreate(&more, 0, gpus[1].device));
  struct gpu g = {.mix = function(load("managed.ptx"), "mix")};
  unsigned long long from = 7, n = PART;
  unsigned a = 3, b = 1;
  CK(LAUNCH(g.mix, 4, 64, 0, NULL, &r.p, &from, &n, &a, &b));
  for (size_t i = from; i < from + n; i++) r.model[i] = (unsigned char)(r.model[i] * a + b);
  CK(cuCtxSynchronize());
  CHECK(r.p[7] == r.model[7], "in a context");
  struct range own = {managed(PART), calloc(1, PART), PART};
  put(&own, 0, PART, 1);
  mix_on(0, &own, 0, PART, 2, 1);
  wait_for(0);
  compare(&own, 0, PART, "of a context");
  free(own.model); // and it goes with its context
  CK(cuCtxDestroy(more));
  use(1);
  compare(&r, 0, N, "after the context's end");
  mix_on(1, &r, 0, N, 5, 2);
  after(0);
  mix_on(0, &r, 0, PART, 5, 2);
  wait_for(0);
  compare(&r, 0, N, "and with others");
  drop(&r);
}

// Each GPU has a range of its own: once it is there, it goes nowhere.
static void apart(void) {
  struct range r[2] = {make(0, 20 * PART), make(0, 20 * PART)};
  for (unsigned round = 0; round < 40; round++) mix_on((int)round & 1, &r[round & 1], 0, PART, 3, round);
  for (int i = 0; i < 2; i++) {
    wait_for(i);
    CHECK(r[i].p[PART - 1] == r[i].model[PART - 1], "apart: range %d", i);
    drop(&r[i]);
  }
}

int main(int argc, char **argv) {
  static const struct { void (*run)(void); const char *name; } parts[] = {
    {relay, "relay"}, {halves, "halves"}, {together, "together"}, {by_pointers, "pointers"}, {hints, "hints"},
    {told, "told"}, {copies, "copies"}, {rows, "rows"}, {freed, "freed"}, {graphs, "graphs"}, {contexts, "contexts"},
    {apart, "apart"},
  };
  start_two(argc, argv);
  if (argc > 2) {
    apart();
    return 0;
  }
  in_turns(0);
  in_turns(1);
  printf("turns\n");
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    parts[i].run();
    printf("%s\n", parts[i].name);
  }
  return 0;
}
