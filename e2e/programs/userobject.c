// User objects: the destructor is a function of this program and runs in it when the last reference goes.
#include "check.h"
#include <unistd.h>

static _Atomic int ended;
static int expected;

static void CUDA_CB destroy(void *p) {
  CHECK(getpid() == *(int *)p, "the destructor runs in another process");
  ended++;
}

static void more(const char *what) { // the driver may run destructors a little later
  for (expected++; ended < expected;) usleep(100);
  CHECK(ended == expected, "%s: %d destructors ran", what, ended);
  printf("%s\n", what);
}

int main(int argc, char **argv) {
  start(argc, argv);
  int pid = getpid();
  CUuserObject o;
  CUgraph g;
  CUgraphExec x;
  WANT(cuUserObjectCreate(&o, &pid, destroy, 1, 0), CUDA_ERROR_INVALID_VALUE);
  WANT(cuUserObjectCreate(&o, &pid, destroy, 0, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC), CUDA_ERROR_INVALID_VALUE);
  CK(cuUserObjectCreate(&o, &pid, destroy, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  CK(cuUserObjectRetain(o, 1));
  CK(cuUserObjectRelease(o, 2));
  CHECK(!ended, "too early");
  CK(cuUserObjectRelease(o, 1));
  more("released");

  CK(cuUserObjectCreate(&o, &pid, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  CK(cuGraphCreate(&g, 0));
  CK(cuGraphRetainUserObject(g, o, 1, CU_GRAPH_USER_OBJECT_MOVE));
  CK(cuGraphDestroy(g));
  more("with its graph");

  CK(cuUserObjectCreate(&o, &pid, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  CK(cuGraphCreate(&g, 0));
  CUgraphNode n;
  CK(cuGraphAddEmptyNode(&n, g, NULL, 0));
  CK(cuGraphRetainUserObject(g, o, 1, CU_GRAPH_USER_OBJECT_MOVE));
  CK(cuGraphInstantiate(&x, g, 0));
  CK(cuGraphDestroy(g));
  CK(cuGraphLaunch(x, 0));
  CK(cuCtxSynchronize());
  CHECK(ended == expected, "too early");
  CK(cuGraphExecDestroy(x));
  more("with its executable graph");

  CK(cuUserObjectCreate(&o, &pid, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  CK(cuGraphCreate(&g, 0));
  CK(cuGraphRetainUserObject(g, o, 2, 0));
  CK(cuUserObjectRelease(o, 1));
  CHECK(ended == expected, "too early");
  CK(cuGraphReleaseUserObject(g, o, 2));
  more("released by its graph");
  CK(cuGraphDestroy(g));
  return 0;
}
