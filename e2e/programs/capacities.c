// What functions that fill an array or a text do with places below and above what there is: with no place, no count, a
// count of 0. For each function of the list: the result, the count afterwards, and each element: the number of the
// object, 0 (zero), x (something), . (untouched). The lines of an H200's driver are testdata/capacities.golden. A few
// functions have a process together: not every driver survives NULL.
#define _GNU_SOURCE
#include "check.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROOM = 16, MOST = 3, MARK = 0xAB, OBJECTS = 16 };

// ---- What the queries are about.

static CUgraph graph, single, empty;
static CUgraphNode node[6]; // 0 and 1 before 2; 2 before 3 and 4; 5 alone
static CUgraphNode lonely;
static CUmodule module;
static CUlibrary library;
static CUdeviceptr memory, managed;
static CUmemoryPool pool;
static void *known[OBJECTS]; // whose numbers are printed
static int known_count;

static const char three_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry one() { ret; }\n.visible .entry two() { ret; }\n.visible .entry three() { ret; }\n";
static const char wrong_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry one() { no such thing; ret; }\n";

static void know(void *object) { known[known_count++] = object; }

static void make_graphs(void) {
  known_count = 0;
  CK(cuGraphCreate(&graph, 0));
  CK(cuGraphCreate(&single, 0));
  CK(cuGraphCreate(&empty, 0));
  CK(cuGraphAddEmptyNode(&node[0], graph, NULL, 0));
  CK(cuGraphAddEmptyNode(&node[1], graph, NULL, 0));
  CK(cuGraphAddEmptyNode(&node[2], graph, node, 2));
  CK(cuGraphAddEmptyNode(&node[3], graph, node + 2, 1));
  CK(cuGraphAddEmptyNode(&node[4], graph, node + 2, 1));
  CK(cuGraphAddEmptyNode(&node[5], graph, NULL, 0));
  CK(cuGraphAddEmptyNode(&lonely, single, NULL, 0));
  for (int i = 0; i < 6; i++) know(node[i]);
  know(lonely);
}

static void make_functions(void) {
  CK(cuModuleLoadData(&module, three_ptx));
  CK(cuLibraryLoadData(&library, three_ptx, NULL, NULL, 0, NULL, NULL, 0));
}

static void make_memory(void) {
  CK(cuMemAlloc(&memory, 4096));
  CK(cuMemAllocManaged(&managed, 1 << 21, CU_MEM_ATTACH_GLOBAL));
}

// ---- A query: arrays, and a count that is a value or a place.

struct query {
  const char *name;
  void (*make)(void);
  CUresult (*call)(void *const *a, void *count, size_t n);
  int inout;         // the count is a place
  int there;         // elements
  int size[MOST];    // of an element of each array
  int input[MOST];   // the array is read, and holds these words
};

#define Q(name, function, args) \
  static CUresult name(void *const *a, void *c, size_t n) { (void)a, (void)c, (void)n; return function args; }
Q(nodes, cuGraphGetNodes, (graph, a[0], c))
Q(nodes_of_one, cuGraphGetNodes, (single, a[0], c))
Q(nodes_of_none, cuGraphGetNodes, (empty, a[0], c))
Q(roots, cuGraphGetRootNodes, (graph, a[0], c))
Q(roots_of_none, cuGraphGetRootNodes, (empty, a[0], c))
// By name: NVIDIA's header has one of the two forms under the plain name, ours the other.
typedef CUresult first_edges(CUgraph, CUgraphNode *, CUgraphNode *, size_t *);
typedef CUresult second_edges(CUgraph, CUgraphNode *, CUgraphNode *, CUgraphEdgeData *, size_t *);
typedef CUresult first_neighbours(CUgraphNode, CUgraphNode *, size_t *);
typedef CUresult second_neighbours(CUgraphNode, CUgraphNode *, CUgraphEdgeData *, size_t *);
typedef CUresult first_change(CUgraph, const CUgraphNode *, const CUgraphNode *, size_t);
typedef CUresult second_change(CUgraph, const CUgraphNode *, const CUgraphNode *, const CUgraphEdgeData *, size_t);
static void *symbol(const char *name);
Q(edges, ((first_edges *)symbol("cuGraphGetEdges")), (graph, a[0], a[1], c))
Q(edges2, ((second_edges *)symbol("cuGraphGetEdges_v2")), (graph, a[0], a[1], a[2], c))
Q(edges_of_none, ((second_edges *)symbol("cuGraphGetEdges_v2")), (single, a[0], a[1], a[2], c))
Q(before, ((first_neighbours *)symbol("cuGraphNodeGetDependencies")), (node[2], a[0], c))
Q(before2, ((second_neighbours *)symbol("cuGraphNodeGetDependencies_v2")), (node[2], a[0], a[1], c))
Q(before_none, ((second_neighbours *)symbol("cuGraphNodeGetDependencies_v2")), (lonely, a[0], a[1], c))
Q(behind, ((first_neighbours *)symbol("cuGraphNodeGetDependentNodes")), (node[2], a[0], c))
Q(behind2, ((second_neighbours *)symbol("cuGraphNodeGetDependentNodes_v2")), (node[2], a[0], a[1], c))
Q(behind_none, ((second_neighbours *)symbol("cuGraphNodeGetDependentNodes_v2")), (lonely, a[0], a[1], c))
Q(functions, cuModuleEnumerateFunctions, (a[0], (unsigned)n, module))
Q(kernels, cuLibraryEnumerateKernels, (a[0], (unsigned)n, library))
Q(host_atomics, cuDeviceGetHostAtomicCapabilities, (a[0], (const CUatomicOperation *)a[1], (unsigned)n, 0))
Q(peer_atomics, cuDeviceGetP2PAtomicCapabilities, (a[0], (const CUatomicOperation *)a[1], (unsigned)n, 0, 0))

static const struct query queries[] = {
    {"cuGraphGetNodes", make_graphs, nodes, 1, 6, {8}},
    {"cuGraphGetNodes of one", make_graphs, nodes_of_one, 1, 1, {8}},
    {"cuGraphGetNodes of none", make_graphs, nodes_of_none, 1, 0, {8}},
    {"cuGraphGetRootNodes", make_graphs, roots, 1, 3, {8}},
    {"cuGraphGetRootNodes of none", make_graphs, roots_of_none, 1, 0, {8}},
    {"cuGraphGetEdges", make_graphs, edges, 1, 4, {8, 8}},
    {"cuGraphGetEdges_v2", make_graphs, edges2, 1, 4, {8, 8, 8}},
    {"cuGraphGetEdges_v2 of none", make_graphs, edges_of_none, 1, 0, {8, 8, 8}},
    {"cuGraphNodeGetDependencies", make_graphs, before, 1, 2, {8}},
    {"cuGraphNodeGetDependencies_v2", make_graphs, before2, 1, 2, {8, 8}},
    {"cuGraphNodeGetDependencies_v2 of none", make_graphs, before_none, 1, 0, {8, 8}},
    {"cuGraphNodeGetDependentNodes", make_graphs, behind, 1, 2, {8}},
    {"cuGraphNodeGetDependentNodes_v2", make_graphs, behind2, 1, 2, {8, 8}},
    {"cuGraphNodeGetDependentNodes_v2 of none", make_graphs, behind_none, 1, 0, {8, 8}},
    {"cuModuleEnumerateFunctions", make_functions, functions, 0, 3, {8}},
    {"cuLibraryEnumerateKernels", make_functions, kernels, 0, 3, {8}},
    {"cuDeviceGetHostAtomicCapabilities", NULL, host_atomics, 0, 4, {4, 4}, {0, 1}},
    {"cuDeviceGetP2PAtomicCapabilities", NULL, peer_atomics, 0, 4, {4, 4}, {0, 1}},
};

static void show_array(const unsigned char *p, int size) {
  putchar(' ');
  for (int i = 0; i < ROOM; i++, p += size) {
    unsigned char untouched[16], zero[16] = {0};
    void *object = NULL;
    memset(untouched, MARK, sizeof untouched);
    memcpy(&object, p, size < 8 ? size : 8);
    char c = !memcmp(p, untouched, size) ? '.' : !memcmp(p, zero, size) ? '0' : 'x';
    for (int k = 0; k < known_count && c == 'x'; k++)
      if (known[k] == object) c = (char)('a' + k);
    putchar(c);
  }
}

// One call: which says which arrays are given; n < 0: no place for the count.
static void ask(const struct query *q, unsigned which, long n) {
  unsigned char place[MOST][ROOM * 16];
  void *a[MOST] = {0};
  memset(place, MARK, sizeof place);
  printf("%s", q->name);
  for (int i = 0; i < MOST && q->size[i]; i++) {
    if (which >> i & 1) a[i] = place[i];
    if (q->input[i]) memset(place[i], 0, sizeof place[i]);
    printf(" %s", a[i] ? "place" : "null");
  }
  size_t count = (size_t)n;
  if (n < 0) printf(" no count:");
  else printf(" %ld:", n);
  fflush(stdout);
  CUresult r = q->call(a, n < 0 ? NULL : &count, n < 0 ? 0 : (size_t)n);
  printf(" %d", r);
  if (q->inout && n >= 0) printf(" count %zu", count);
  for (int i = 0; i < MOST && q->size[i]; i++)
    if (a[i] && !q->input[i]) show_array(a[i], q->size[i]);
  putchar('\n');
}

static void run_query(const struct query *q) {
  int arrays = 0;
  while (arrays < MOST && q->size[arrays]) arrays++;
  if (q->make) q->make();
  long counts[] = {-1, 0, 1, q->there - 1, q->there, q->there + 1, q->there + 5};
  for (unsigned which = 0; which < 1u << arrays; which++)
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
      int seen = counts[i] < 0 && (i > 0 || !q->inout);
      for (size_t k = 0; k < i; k++) seen |= counts[k] == counts[i];
      if (!seen) ask(q, which, counts[i]);
    }
}

// ---- Texts: what is written of one, in relation to the whole.

static const char *written(const unsigned char *p, size_t n, const char *whole) {
  static char text[200];
  size_t last = 0, same = 0;
  for (size_t i = 0; i < n; i++)
    if (p[i] != MARK) last = i + 1;
  while (same < last && whole[same] && p[same] == (unsigned char)whole[same]) same++;
  const char *rest = same == last ? "no NUL" : last == same + 1 && !p[same] ? "NUL" : "more";
  const char *part = whole[same] ? "of it" : "whole";
  if (!last) return "nothing";
  snprintf(text, sizeof text, "%s %s, %s", same == 0 ? "none" : whole[same] ? "a part" : "all", part, rest);
  return text;
}

typedef CUresult text_function(char *to, int n);
static CUresult name_of_device(char *to, int n) { return cuDeviceGetName(to, n, 0); }
static CUresult bus_id(char *to, int n) { return cuDeviceGetPCIBusId(to, n, 0); }

static void run_text(const char *what, text_function *f) {
  char whole[256];
  CK(f(whole, sizeof whole));
  /* no driver survives a name of no bytes */
  int n = (int)strlen(whole), lengths[] = {1, 2, n - 1, n, n + 1, n + 2, n + 40};
  printf("%s: of no place %d %d\n", what, f(NULL, 0), f(NULL, 10));
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    unsigned char place[256];
    memset(place, MARK, sizeof place);
    CUresult r = f((char *)place, lengths[i]);
    size_t last = 0;
    for (size_t k = 0; k < sizeof place; k++)
      if (place[k] != MARK) last = k + 1;
    printf("%s: room %s%d: %d, %s, bytes %s%d\n", what, i > 1 ? "length+" : "", i > 1 ? lengths[i] - n : lengths[i], r,
           written(place, sizeof place, whole),
           (int)last >= n - 1 ? "length+" : "", (int)last >= n - 1 ? (int)last - n : (int)last);
  }
}
static void run_name(void) { run_text("cuDeviceGetName", name_of_device); }
static void run_bus(void) { run_text("cuDeviceGetPCIBusId", bus_id); }

static void run_luid(void) {
  char luid[16];
  unsigned mask = 77;
  memset(luid, MARK, sizeof luid);
  CUresult r = cuDeviceGetLuid(luid, &mask, 0);
  printf("cuDeviceGetLuid: %d, %s, mask %u\n", r, (unsigned char)*luid == MARK ? "untouched" : "written", mask);
  printf("cuDeviceGetLuid: null %d %d\n", cuDeviceGetLuid(NULL, &mask, 0), cuDeviceGetLuid(luid, NULL, 0));
}

// The text that the driver has for a graph that cannot be instantiated: a second executable graph of one that
// allocates.
static void run_instantiate(void) {
  typedef CUresult instantiate(CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t);
  static const char *const names[] = {"cuGraphInstantiate", "cuGraphInstantiate_v2"};
  static const size_t rooms[] = {0, 1, 10, 4096};
  CUDA_MEM_ALLOC_NODE_PARAMS p;
  memset(&p, 0, sizeof p);
  p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, p.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE,
      p.bytesize = 4096;
  CUgraph good, twice;
  CUgraphNode a;
  CUgraphExec first;
  CK(cuGraphCreate(&twice, 0));
  CK(cuGraphAddMemAllocNode(&a, twice, NULL, 0, &p));
  CK(cuGraphInstantiateWithFlags(&first, twice, 0));
  CK(cuGraphCreate(&good, 0));
  CK(cuGraphAddEmptyNode(&a, good, NULL, 0));
  for (int k = 0; k < 2; k++)
    for (int bad = 0; bad < 2; bad++)
      for (int place = 0; place < 2; place++)
        for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
          unsigned char text[4096];
          CUgraphExec x = (CUgraphExec)5;
          CUgraphNode wrong = (CUgraphNode)5;
          memset(text, MARK, sizeof text);
          CUresult r = ((instantiate *)symbol(names[k]))(&x, bad ? twice : good, &wrong, place ? (char *)text : NULL,
                                                         rooms[i]);
          int last = 0;
          for (size_t n = 0; n < sizeof text; n++)
            if (text[n] != MARK) last = (int)n + 1;
          printf("%s %s %s %zu: %d, exec %s, node %s, %d bytes%s\n", names[k], bad ? "wrong" : "right",
                 place ? "place" : "null", rooms[i], r,
                 x == (CUgraphExec)5 ? "untouched" : x ? "some" : "none",
                 wrong == (CUgraphNode)5 ? "untouched" : wrong ? "some" : "none", last,
                 last && !text[last - 1] ? ", NUL" : "");
          if (!r) CK(cuGraphExecDestroy(x));
        }
}

// Logs of the compiler: what is written, and what the option's value is then.
enum { AS_MODULE, AS_LIBRARY, AS_LINK };
static CUresult compile(int how, const char *image, unsigned n, CUjit_option *options, void **values) {
  CUmodule m = NULL;
  CUlibrary l = NULL;
  CUlinkState s = NULL;
  CUresult r;
  switch (how) {
  case AS_MODULE:
    r = cuModuleLoadDataEx(&m, image, n, options, values);
    if (!r) CK(cuModuleUnload(m));
    return r;
  case AS_LIBRARY:
    r = cuLibraryLoadData(&l, image, options, values, n, NULL, NULL, 0);
    if (!r) CK(cuLibraryUnload(l));
    return r;
  }
  if ((r = cuLinkCreate(n, options, values, &s))) return r;
  r = cuLinkAddData(s, CU_JIT_INPUT_PTX, (void *)image, strlen(image) + 1, "x", 0, NULL, NULL);
  void *cubin;
  size_t size;
  if (!r) r = cuLinkComplete(s, &cubin, &size);
  CK(cuLinkDestroy(s));
  return r;
}

static void log_bounds(int how, const char *what, int bad, int place, const char *of, long room) {
  unsigned char error[8192], info[64];
  memset(error, MARK, sizeof error), memset(info, MARK, sizeof info);
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_INFO_LOG_BUFFER,
                            CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
  void *v[] = {place ? error : NULL, (void *)room, info, (void *)(uintptr_t)sizeof info};
  CUresult r = compile(how, bad ? wrong_ptx : three_ptx, 4, options, v);
  int last = 0;
  for (size_t k = 0; k < sizeof error; k++)
    if (error[k] != MARK) last = (int)k + 1;
  printf("%s %s %s, room %s: %d, value room%+ld, bytes room%+ld%s, info %s, its value %ld\n", what,
         bad ? "wrong" : "right", place ? "place" : "null", of, r,
         (long)(uintptr_t)v[1] - room, (long)last - room, last && !error[last - 1] ? ", NUL" : "",
         *info == MARK ? "untouched" : *info ? "text" : "empty", (long)(uintptr_t)v[3]);
}

// A driver writes a NUL to a log of no bytes; nobody needs that.
static void run_logs(int how, const char *what) {
  for (int place = 1; place >= 0; place--) {
    log_bounds(how, what, 0, place, "1", 1);
    log_bounds(how, what, 0, place, "100", 100);
  }
  log_bounds(how, what, 0, 0, "0", 0);
}
static void run_module_logs(void) { run_logs(AS_MODULE, "cuModuleLoadDataEx"); }
static void run_library_logs(void) { run_logs(AS_LIBRARY, "cuLibraryLoadData"); }
static void run_link_logs(void) { run_logs(AS_LINK, "cuLinkCreate"); }

// Attributes: how many are asked for, with and without places.
static void run_pointer_attributes(void) {
  make_memory();
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_IS_MANAGED};
  CUdeviceptr addresses[] = {memory, managed, 0, 0x1000};
  static const char *const names[] = {"device", "managed", "null", "nowhere"};
  for (int k = 0; k < 4; k++)
    for (unsigned n = 0; n <= 3; n++) {
      unsigned type = 77;
      int device = 77;
      unsigned char is = 77;
      void *data[] = {&type, &device, &is};
      CUresult r = cuPointerGetAttributes(n, which, data, addresses[k]);
      printf("cuPointerGetAttributes %s %u: %d, %u %d %u\n", names[k], n, r, type, device, is);
      void *holes[] = {&type, NULL, &is};
      type = 77, is = 77;
      r = cuPointerGetAttributes(n, which, holes, addresses[k]);
      printf("cuPointerGetAttributes %s %u with a hole: %d, %u %u\n", names[k], n, r, type, is);
      printf("cuPointerGetAttributes %s %u null: %d %d\n", names[k], n,
             cuPointerGetAttributes(n, NULL, data, addresses[k]), cuPointerGetAttributes(n, which, NULL, addresses[k]));
    }
}

static void run_range_attributes(void) {
  make_memory();
  static const CUmem_range_attribute which[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
                                                CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
                                                CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY,
                                                CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
                                                CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE,
                                                CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID,
                                                CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE,
                                                CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID};
  static const size_t sizes[] = {0, 1, 3, 4, 5, 8, 12, 32};
  for (size_t k = 0; k < sizeof which / sizeof *which; k++)
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      unsigned char place[ROOM * 4];
      memset(place, MARK, sizeof place);
      CUmem_range_attribute w = which[k];
      CUresult r = cuMemRangeGetAttribute(place, sizes[i], w, managed, 1 << 21);
      printf("cuMemRangeGetAttribute %d, %zu bytes: %d", w, sizes[i], r);
      show_array(place, 4);
      memset(place, MARK, sizeof place);
      void *data[] = {place, place + 32};
      size_t of[] = {sizes[i], 4};
      CUmem_range_attribute two[] = {w, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY};
      r = cuMemRangeGetAttributes(data, of, two, 2, managed, 1 << 21);
      printf(", of two: %d", r);
      show_array(place, 4);
      putchar('\n');
    }
  unsigned word = 77;
  void *data[] = {&word};
  size_t size = 4;
  CUmem_range_attribute w = CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY;
  printf("cuMemRangeGetAttribute null: %d\n", cuMemRangeGetAttribute(NULL, 4, w, managed, 4096));
  printf("cuMemRangeGetAttribute no range: %d\n", cuMemRangeGetAttribute(&word, 4, w, managed, 0));
  printf("cuMemRangeGetAttributes none: %d, null: %d %d %d\n",
         cuMemRangeGetAttributes(data, &size, &w, 0, managed, 4096),
         cuMemRangeGetAttributes(NULL, &size, &w, 1, managed, 4096),
         cuMemRangeGetAttributes(data, NULL, &w, 1, managed, 4096),
         cuMemRangeGetAttributes(data, &size, NULL, 1, managed, 4096));
  printf("cuMemRangeGetAttributes none of null: %d\n", cuMemRangeGetAttributes(NULL, NULL, NULL, 0, managed, 4096));
}

// The log holds what each call answered: the last lines of it fit.
static void run_log(void) {
  static const size_t rooms[] = {0, 1, 2, 10, 100, 25599, 25600, 30000};
  CUdevice d;
  for (int i = 0; i < 3; i++) cuDeviceGet(&d, 99);
  for (int place = 1; place >= 0; place--)
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
      static unsigned char text[32768];
      memset(text, MARK, sizeof text);
      size_t size = rooms[i], last = 0;
      CUresult r = cuLogsDumpToMemory(NULL, place ? (char *)text : NULL, &size, 0);
      for (size_t k = 0; k < sizeof text; k++)
        if (text[k] != MARK) last = k + 1;
      printf("cuLogsDumpToMemory %s %zu: %d, size %s, %s%s\n", place ? "place" : "null", rooms[i], r,
             size == rooms[i] ? "untouched" : size ? "some" : "none",
             !last ? "nothing" : last == rooms[i] ? "full" : "text", !last ? "" : text[last - 1] ? ", no NUL" :
             size == last ? ", NUL counted" : size + 1 == last ? ", NUL behind" : ", NUL");
    }
  static char text[32768];
  printf("cuLogsDumpToMemory no size: %d\n", cuLogsDumpToMemory(NULL, text, NULL, 0));
}

// A capture's dependencies are the driver's own array; any of the places may be missing but the first.
static void run_capture(void) {
  typedef CUresult info2(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **, size_t *);
  typedef CUresult info3(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **,
                         const CUgraphEdgeData **, size_t *);
  info2 *two = (info2 *)symbol("cuStreamGetCaptureInfo_v2");
  info3 *three = (info3 *)symbol("cuStreamGetCaptureInfo_v3");
  CUstream s, idle;
  CUgraph g;
  make_memory();
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuStreamCreate(&idle, CU_STREAM_NON_BLOCKING));
  CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
  for (int round = 0; round < 2; round++) {
    for (unsigned which = 0; which < 64; which++) {
      CUstreamCaptureStatus status = 77;
      cuuint64_t id = 77;
      CUgraph of = (CUgraph)5;
      const CUgraphNode *nodes = (void *)5;
      const CUgraphEdgeData *data = (void *)5;
      size_t n = 77;
      CUresult r3 = three(s, which & 1 ? &status : NULL, which & 2 ? &id : NULL, which & 4 ? &of : NULL,
                          which & 8 ? &nodes : NULL, which & 16 ? &data : NULL, which & 32 ? &n : NULL);
      printf("cuStreamGetCaptureInfo_v3 %d, %02x: %d, status %d, id %s, graph %s, nodes %s, data %s, count %zu\n",
             round, which, r3, status, id == 77 ? "-" : "some",
             of == (CUgraph)5 ? "-" : of ? "some" : "none", nodes == (void *)5 ? "-" : nodes ? "some" : "none",
             data == (void *)5 ? "-" : data ? "some" : "none", n);
      if (which & 16) continue;
      status = 77, id = 77, of = (CUgraph)5, nodes = (void *)5, n = 77;
      CUresult r2 = two(s, which & 1 ? &status : NULL, which & 2 ? &id : NULL, which & 4 ? &of : NULL,
                        which & 8 ? &nodes : NULL, which & 32 ? &n : NULL);
      printf("cuStreamGetCaptureInfo_v2 %d, %02x: %d, status %d, id %s, graph %s, nodes %s, count %zu\n", round, which,
             r2, status, id == 77 ? "-" : "some",
             of == (CUgraph)5 ? "-" : of ? "some" : "none", nodes == (void *)5 ? "-" : nodes ? "some" : "none", n);
    }
    CK(cuMemsetD8Async(memory, 0, 16, s));
    if (round == 0) CK(cuMemsetD8Async(memory, 0, 32, s));
  }
  CUstreamCaptureStatus status = 77;
  cuuint64_t id = 77;
  g = (CUgraph)5;
  const CUgraphNode *nodes = (void *)5;
  const CUgraphEdgeData *data = (void *)5;
  size_t n = 77;
  CUresult r = three(idle, &status, &id, &g, &nodes, &data, &n);
  printf("cuStreamGetCaptureInfo_v3 idle: %d, status %d, id %s, graph %s, nodes %s, data %s, count %zu\n", r, status,
         id == 77 ? "-" : "some", g == (CUgraph)5 ? "-" : g ? "some" : "none",
         nodes == (void *)5 ? "-" : nodes ? "some" : "none", data == (void *)5 ? "-" : data ? "some" : "none", n);
  CK(cuStreamEndCapture(s, &g));
}

// Arrays that are read: none of them with a count, a place with a count of 0.
static void run_inputs(void) {
  make_graphs();
  make_memory();
  CUgraphNode n;
  CUgraphNode *from = node, *to = node + 3;
  printf("cuGraphAddEmptyNode: null %d", cuGraphAddEmptyNode(&n, graph, NULL, 1));
  printf(", of 0 %d\n", cuGraphAddEmptyNode(&n, graph, from, 0));
  static const char *const firsts[] = {"cuGraphAddDependencies", "cuGraphRemoveDependencies"};
  for (int i = 0; i < 2; i++) {
    first_change *f = (first_change *)symbol(firsts[i]);
    printf("%s: of 0 %d", firsts[i], f(graph, from, to, 0));
    printf(", nulls of 0 %d", f(graph, NULL, NULL, 0));
    printf(", null %d", f(graph, NULL, to, 1));
    printf(", null %d\n", f(graph, from, NULL, 1));
    char name[64];
    snprintf(name, sizeof name, "%s_v2", firsts[i]);
    second_change *g = (second_change *)symbol(name);
    CUgraphEdgeData data[2];
    memset(data, 0, sizeof data);
    printf("%s: of 0 %d", name, g(graph, from, to, data, 0));
    printf(", nulls of 0 %d", g(graph, NULL, NULL, NULL, 0));
    printf(", null %d", g(graph, NULL, to, data, 1));
    printf(", null %d\n", g(graph, from, NULL, data, 1));
  }
}

static const struct {
  const char *name;
  void (*run)(void);
} others[] = {
    {"names", run_name}, {"bus ids", run_bus}, {"luid", run_luid}, {"instantiate", run_instantiate},
    {"module logs", run_module_logs}, {"library logs", run_library_logs},
    {"link logs", run_link_logs}, {"pointer attributes", run_pointer_attributes},
    {"range attributes", run_range_attributes}, {"log", run_log}, {"capture", run_capture},
    {"inputs", run_inputs},
};

#include <dlfcn.h>
static void *symbol(const char *name) {
  static void *driver;
  if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW);
  void *p = driver ? dlsym(driver, name) : NULL;
  CHECK(p, "no %s", name);
  return p;
}

int main(int argc, char **argv) {
  enum { TOGETHER = 6 };
  size_t count = sizeof queries / sizeof *queries, all = count + sizeof others / sizeof *others;
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (size_t i = 0; i < all; i += i < count ? TOGETHER : 1) {
    pid_t child = fork();
    if (child == 0) {
      alarm(20);
      start(argc, argv);
      for (size_t k = i; k < i + TOGETHER && k < count; k++) run_query(&queries[k]);
      if (i >= count) others[i - count].run();
      exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "fork: %s", strerror(errno));
    if (status)
      printf("\n%s: %s %d\n", i < count ? queries[i].name : others[i - count].name,
             WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  }
  return 0;
}
