// What holds a user object that a graph has: clones, child graphs, executable graphs, their launches under way,
// captures, and what lets go of it. The lines of an H200's driver are testdata/object_lives.golden.
#include "check.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_int gone[64]; // by number of the object
static int count;
static CUstream s;
static CUdeviceptr d;

// By name: headers differ in what the plain names mean.
static CUresult (*information)(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **,
                               size_t *);
static CUresult (*update)(CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *);

static void destroy(void *p) { atomic_fetch_add(&gone[(intptr_t)p], 1); }

static CUuserObject object(void) {
  CUuserObject o;
  CK(cuUserObjectCreate(&o, (void *)(intptr_t)count++, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  return o;
}

// Objects end on threads of the driver's, whenever it likes.
static void tell(const char *what) {
  int n = count - 1;
  for (int i = 0; i < 250 && !atomic_load(&gone[n]); i++) usleep(1000);
  printf("%s: %s\n", what, atomic_load(&gone[n]) ? "gone" : "there");
}
static void tell_all(const char *what, int from) {
  usleep(250000);
  printf("%s:", what);
  for (int i = from; i < count; i++) printf(" %d", atomic_load(&gone[i]));
  printf("\n");
}

static CUgraph graph_with(CUuserObject *o) {
  CUgraph g;
  CUgraphNode n;
  CUDA_MEMSET_NODE_PARAMS set = {.dst = d, .value = 1, .elementSize = 1, .width = 4, .height = 1};
  *o = object();
  CK(cuGraphCreate(&g, 0));
  CK(cuGraphAddMemsetNode(&n, g, NULL, 0, &set, context));
  CK(cuGraphRetainUserObject(g, *o, 1, CU_GRAPH_USER_OBJECT_MOVE));
  return g;
}

static void nothing(void *p) { (void)p; }
static atomic_int hold;
static void held(void *p) {
  (void)p;
  while (atomic_load(&hold)) usleep(1000);
}

static void clones(void) {
  CUuserObject o;
  CUgraph g = graph_with(&o), c;
  CK(cuGraphClone(&c, g));
  CK(cuGraphDestroy(g));
  tell("graph destroyed, clone there");
  CK(cuGraphDestroy(c));
  tell("clone destroyed");
}

static void children(void) {
  CUuserObject o;
  CUgraph g = graph_with(&o), outer, copy;
  CUgraphNode n;
  CK(cuGraphCreate(&outer, 0));
  CK(cuGraphAddChildGraphNode(&n, outer, NULL, 0, g));
  CK(cuGraphDestroy(g));
  tell("a child has it");
  CK(cuGraphClone(&copy, outer));
  CK(cuGraphDestroyNode(n));
  tell("the child's node destroyed, a clone of the outer graph there");
  CK(cuGraphDestroy(copy));
  tell("the clone destroyed");
  CK(cuGraphDestroy(outer));
}

static void executables(void) {
  CUuserObject o;
  CUgraphExec x, y;
  CUgraph g = graph_with(&o), outer, other;
  CUgraphNode n;
  CK(cuGraphInstantiateWithFlags(&x, g, 0));
  CK(cuGraphDestroy(g));
  tell("an executable graph has it");
  CK(cuGraphLaunch(x, s));
  CK(cuStreamSynchronize(s));
  tell("launched");
  CK(cuGraphExecDestroy(x));
  tell("the executable graph destroyed");

  g = graph_with(&o);
  CK(cuGraphCreate(&outer, 0));
  CK(cuGraphAddChildGraphNode(&n, outer, NULL, 0, g));
  CK(cuGraphDestroy(g));
  CK(cuGraphInstantiateWithFlags(&x, outer, 0));
  CK(cuGraphInstantiateWithFlags(&y, outer, 0));
  other = graph_with(&o); // number count-1
  CK(cuGraphExecChildGraphNodeSetParams(x, n, other));
  CK(cuGraphDestroy(other));
  tell_all("another child: old, new", count - 2);
  CK(cuGraphDestroy(outer));
  tell_all("the outer graph destroyed", count - 2);
  CK(cuGraphExecDestroy(y));
  tell_all("the second executable graph destroyed", count - 2);
  CK(cuGraphExecDestroy(x));
  tell_all("the first executable graph destroyed", count - 2);

  g = graph_with(&o);
  CK(cuGraphInstantiateWithFlags(&x, g, 0));
  CK(cuGraphDestroy(g));
  g = graph_with(&o);
  CUgraphExecUpdateResultInfo info;
  CK(update(x, g, &info));
  CK(cuGraphDestroy(g));
  tell_all("updated: old, new", count - 2);
  CK(cuGraphExecDestroy(x));
  tell_all("destroyed", count - 2);
}

// Launches under way hold it, whatever becomes of the graph.
static void running(void) {
  CUuserObject o;
  CUgraphExec x;
  CUgraph g = graph_with(&o), outer;
  CUgraphNode n;
  CK(cuGraphCreate(&outer, 0));
  CK(cuGraphAddChildGraphNode(&n, outer, NULL, 0, g));
  CK(cuGraphDestroy(g));
  CK(cuGraphInstantiateWithFlags(&x, outer, 0));
  CK(cuGraphDestroy(outer));
  atomic_store(&hold, 1);
  CK(cuLaunchHostFunc(s, held, NULL));
  CK(cuGraphLaunch(x, s));
  CK(cuGraphExecDestroy(x));
  tell("destroyed before it runs");
  atomic_store(&hold, 0);
  CK(cuStreamSynchronize(s));
  tell("it has run");
}

static void captured(void) {
  CUuserObject o;
  CUgraph of = NULL, g = NULL, inner = graph_with(&o);
  CUstreamCaptureStatus status;
  CUgraphNode n;
  for (int spoilt = 0; spoilt < 2; spoilt++) {
    CK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    CK(cuMemsetD8Async(d, 0, 4, s));
    const CUgraphNode *deps;
    size_t number;
    cuuint64_t id;
    CK(information(s, &status, &id, &of, &deps, &number));
    o = object();
    SHOW(cuGraphRetainUserObject(of, o, 1, CU_GRAPH_USER_OBJECT_MOVE));
    tell("a capture has it");
    g = NULL;
    if (spoilt == 1) SHOW(cuStreamQuery(s));
    SHOW(cuStreamEndCapture(s, &g));
    tell(g ? "a captured graph has it" : "the capture was spoilt");
    if (g) CK(cuGraphDestroy(g));
    tell("destroyed");
  }
  CK(cuGraphDestroy(inner));
}

int main(int argc, char **argv) {
  start(argc, argv);
  CK(cuMemAlloc(&d, 64));
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  *(void **)&information = dlsym(driver, "cuStreamGetCaptureInfo_v2");
  *(void **)&update = dlsym(driver, "cuGraphExecUpdate_v2");
  clones();
  children();
  executables();
  running();
  captured();
  for (int i = 0; i < count; i++) CHECK(atomic_load(&gone[i]) < 2, "object %d ended twice", i);
  return 0;
}
