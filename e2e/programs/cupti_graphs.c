// Profiles of graphs that were instantiated before a profile, in it, and between two: cupti_graphs KERNELS [LIBRARY].
// With NVIDIA's library and a GPU it is to print the same.
#include "cupti.h"

enum { KERNELS = 3, GRAPHS = 3 };
static CUstream stream;
static CUfunction add;
static CUdeviceptr d;
static int n = 256;

static struct made {
  CUgraph graph;
  CUgraphExec exec;
  CUgraphNode nodes[KERNELS];
  uint64_t records[KERNELS]; // their numbers
} all[GRAPHS];

// ---- what a tool hears when a graph is instantiated ----

static struct { int cloned, before_exec; uint64_t nodes[64], of[64]; uint32_t graphs[64]; } heard;

static void on_resource(void *user, uint32_t domain, uint32_t id, const void *data) {
  const struct CUpti_ResourceData *r = data;
  if (domain != CUPTI_CB_DOMAIN_RESOURCE) return;
  if (id == CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED) heard.before_exec = heard.cloned;
  if (id != CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED) return;
  const struct CUpti_GraphData *g = (const void *)(uintptr_t)r->resourceDescriptor;
  CHECK(heard.cloned < 64, "too many nodes");
  CK(cuptiGetGraphNodeId((CUgraphNode)(uintptr_t)g->node, &heard.nodes[heard.cloned]));
  CK(cuptiGetGraphNodeId((CUgraphNode)(uintptr_t)g->originalNode, &heard.of[heard.cloned]));
  CK(cuptiGetGraphId((CUgraph)(uintptr_t)g->graph, &heard.graphs[heard.cloned]));
  heard.cloned++;
}

static void make(struct made *m) {
  size_t found = KERNELS;
  CK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  for (uint32_t i = 0; i < KERNELS; i++) CK(LAUNCH(add, i + 1, 128, 0, stream, &d, &d, &d, &n));
  CK(cuStreamEndCapture(stream, &m->graph));
  CK(cuGraphGetNodes(m->graph, m->nodes, &found));
  CHECK(found == KERNELS, "%zu nodes", found);
  CK(cuGraphInstantiateWithFlags(&m->exec, m->graph, 0));
}

static void profile_begins(void) {
  CK(cuptiActivityRegisterCallbacks(request, complete));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_DRIVER));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
}

// What the profile has of two launches of each, and of a kernel in no graph.
static void profile_ends(const char *what, int graphs) {
  uint32_t launches[2 * GRAPHS], stream_id;
  for (int i = 0; i < graphs; i++)
    for (int k = 0; k < 2; k++) CK(cuGraphLaunch(all[i].exec, stream));
  CK(LAUNCH(add, 7, 128, 0, stream, &d, &d, &d, &n));
  CK(cuStreamSynchronize(stream));
  CK(cuptiGetStreamIdEx(context, stream, 0, &stream_id));
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_DRIVER));
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  CK(cuptiActivityFlushAll(1));
  int found = 0, kernels = 0;
  EACH(CUpti_ActivityAPI, a, CUPTI_ACTIVITY_KIND_DRIVER) {
    if (a->cbid != CBID_cuGraphLaunch) continue;
    CHECK(found < 2 * graphs, "%d launches of graphs", found + 1);
    launches[found++] = a->correlationId;
  }
  CHECK(found == 2 * graphs, "%d launches of graphs, want %d", found, 2 * graphs);
  for (int i = 0; i < found; i++) {
    struct made *m = &all[i / 2];
    uint32_t exec, graph;
    int of_launch = 0;
    CK(cuptiGetGraphExecId(m->exec, &exec));
    CK(cuptiGetGraphId(m->graph, &graph));
    CHECK(exec && graph && exec != graph, "graph %u, executable graph %u", graph, exec);
    EACH(CUpti_ActivityKernel11, k, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      if (k->correlationId != launches[i]) continue;
      uint64_t node;
      CHECK(of_launch < KERNELS && k->gridX == (uint32_t)of_launch + 1, "kernel %d has %u blocks", of_launch, k->gridX);
      CK(cuptiGetGraphNodeId(m->nodes[of_launch], &node));
      CHECK(node >> 32 == graph, "node %llx of graph %u", (unsigned long long)node, graph);
      CHECK(k->graphId == exec && k->graphNodeId == ((uint64_t)exec << 32 | (uint32_t)node) &&
            k->streamId == stream_id && !strcmp((const char *)(uintptr_t)k->name, "vector_add"),
            "%s: kernel %s of graph %u, node %llx; the executable graph is %u, its node of %llx", what,
            (const char *)(uintptr_t)k->name, k->graphId, (unsigned long long)k->graphNodeId, exec,
            (unsigned long long)node);
      if (!m->records[of_launch]) m->records[of_launch] = k->graphNodeId;
      CHECK(m->records[of_launch] == k->graphNodeId, "%s: node %llx was %llx", what,
            (unsigned long long)k->graphNodeId, (unsigned long long)m->records[of_launch]);
      of_launch++;
      kernels++;
    }
    CHECK(of_launch == KERNELS, "%s: %d kernels of launch %d", what, of_launch, i);
  }
  EACH(CUpti_ActivityKernel11, k, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    CHECK(k->gridX != 7 || (!k->graphId && !k->graphNodeId), "graph %u of a kernel in none", k->graphId);
    kernels += k->gridX == 7;
  }
  CHECK(kernels == of_kind(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "%d kernels of no launch",
        of_kind(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) - kernels);
  printf("%s: %d launches, %d kernels\n", what, found, kernels);
  forget();
}

// A tool that follows nodes from their graph into the executable one finds them in records.
static void followed(void) {
  subscriber_t s;
  uint32_t exec;
  CK(cuptiSubscribe(&s, on_resource, NULL));
  CK(cuptiEnableDomain(1, s, CUPTI_CB_DOMAIN_RESOURCE));
  make(&all[1]);
  CK(cuptiUnsubscribe(s));
  CK(cuptiGetGraphExecId(all[1].exec, &exec));
  CHECK(heard.cloned == KERNELS && heard.before_exec == KERNELS, "%d nodes were cloned", heard.cloned);
  for (int i = 0; i < KERNELS; i++) {
    uint64_t node;
    CK(cuptiGetGraphNodeId(all[1].nodes[i], &node));
    CHECK(heard.of[i] == node && heard.graphs[i] == exec && heard.nodes[i] >> 32 == exec,
          "node %llx of graph %u is a clone of %llx", (unsigned long long)heard.nodes[i], heard.graphs[i],
          (unsigned long long)heard.of[i]);
    all[1].records[i] = heard.nodes[i];
  }
}

int main(int argc, char **argv) {
  static const char *const libraries[] = {"libcupti.so.13", "libcupti.so.12",
                                          "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"};
  const char *library = argc > 2 ? argv[2] : NULL;
  CHECK(argc > 1, "cupti_graphs KERNELS [LIBRARY]");
  for (size_t i = 0; i < sizeof libraries / sizeof *libraries && !library; i++)
    if (dlopen(libraries[i], RTLD_NOW)) library = libraries[i];
  CHECK(library, "there is no CUPTI: %s", dlerror());
  open_cupti(library, RTLD_NOW);
  start(argc, argv);
  add = function(load("kernels.ptx"), "vector_add");
  CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CK(cuMemAlloc(&d, 4096));
  make(&all[0]); // before anybody has called CUPTI
  CK(cuGraphLaunch(all[0].exec, stream));
  CK(cuStreamSynchronize(stream));
  profile_begins();
  followed();
  profile_ends("first profile", 2);
  make(&all[2]); // where nothing is recorded
  profile_begins();
  profile_ends("second profile", 3);
  CK(cuptiFinalize());
  profile_begins();
  profile_ends("after cuptiFinalize", 3);
  // what has ended is no graph any more, and what comes in its place has numbers of its own
  uint32_t old, id;
  uint64_t node;
  CK(cuptiGetGraphExecId(all[2].exec, &old));
  CK(cuGraphExecDestroy(all[2].exec));
  CK(cuGraphInstantiateWithFlags(&all[2].exec, all[2].graph, 0));
  CK(cuptiGetGraphExecId(all[2].exec, &id));
  CHECK(id != old, "an executable graph has the number %u of one that has ended", id);
  WANT(cuptiGetGraphNodeId(NULL, &node), CUPTI_ERROR_INVALID_PARAMETER);
  WANT(cuptiGetGraphNodeId(all[0].nodes[0], NULL), CUPTI_ERROR_INVALID_PARAMETER);
  CK(cuptiFinalize());
  printf("right\n");
  return 0;
}
