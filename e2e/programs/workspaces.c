// What libraries such as cuBLASLt do: they keep a workspace for each pair of context and stream, which they know by
// their ids, and work in several contexts at once. So the ids must tell contexts and streams apart, whatever thread
// asks, stay what they are, and not come back with a later context or stream.
#include "check.h"
#include <pthread.h>

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev); // newer headers have other forms only

enum { CONTEXTS = 2, STREAMS = 4, ROUNDS = 20, N = 4096, SEEN = 64 };

static unsigned long long seen[SEEN];
static int known;
static void fresh(unsigned long long id, const char *what) {
  for (int i = 0; i < known; i++) CHECK(seen[i] != id, "%s has the id %llu of another", what, id);
  seen[known++] = id;
}

static struct place {
  CUcontext ctx;
  CUstream stream[STREAMS];      // the first is the context's default stream
  unsigned long long ctx_id, id[STREAMS];
} places[CONTEXTS];

// The ids of the current context and of a stream, as a library asks for them at each call.
static void same(const struct place *p, int i) {
  CUcontext current;
  unsigned long long ctx, stream;
  CK(cuCtxGetCurrent(&current));
  CK(cuCtxGetId(current, &ctx));
  CK(cuStreamGetId(p->stream[i], &stream));
  CHECK(ctx == p->ctx_id && stream == p->id[i], "context %llu, not %llu; stream %llu, not %llu", ctx, p->ctx_id, stream,
        p->id[i]);
}

static void *work(void *arg) { // every thread in both contexts by turns
  int me = (int)(intptr_t)arg;
  CUmodule m[CONTEXTS];
  CUfunction f[CONTEXTS];
  CUdeviceptr workspace[CONTEXTS], a[CONTEXTS], b[CONTEXTS];
  static float host[STREAMS][CONTEXTS][N];
  for (int c = 0; c < CONTEXTS; c++) {
    CK(cuCtxSetCurrent(places[c].ctx));
    m[c] = load("kernels.fatbin");
    f[c] = function(m[c], "vector_add");
    CK(cuMemAlloc(&workspace[c], sizeof host[0][0]));
    CK(cuMemAlloc(&a[c], sizeof host[0][0]));
    CK(cuMemAlloc(&b[c], sizeof host[0][0]));
  }
  for (int round = 0; round < ROUNDS; round++) {
    for (int c = 0; c < CONTEXTS; c++) {
      const struct place *p = &places[c];
      CK(cuCtxSetCurrent(p->ctx));
      same(p, me);
      for (int i = 0; i < N; i++) host[me][c][i] = i + 1000 * c + round;
      CK(cuMemcpyHtoDAsync(a[c], host[me][c], sizeof host[0][0], p->stream[me]));
      CK(cuMemcpyDtoDAsync(b[c], a[c], sizeof host[0][0], p->stream[me]));
      int n = N;
      CK(LAUNCH(f[c], N / 256, 256, 0, p->stream[me], &a[c], &b[c], &workspace[c], &n));
      CK(cuMemcpyDtoHAsync(host[me][c], workspace[c], sizeof host[0][0], p->stream[me]));
    }
    for (int c = 0; c < CONTEXTS; c++) {
      CK(cuCtxSetCurrent(places[c].ctx));
      CK(cuStreamSynchronize(places[c].stream[me]));
      for (int i = 0; i < N; i++)
        CHECK(host[me][c][i] == 2.0f * (i + 1000 * c + round), "round %d, context %d: element %d is %g", round, c, i,
              host[me][c][i]);
    }
  }
  for (int c = 0; c < CONTEXTS; c++) {
    CK(cuCtxSetCurrent(places[c].ctx));
    CK(cuMemFree(workspace[c]));
    CK(cuMemFree(a[c]));
    CK(cuMemFree(b[c]));
    CK(cuModuleUnload(m[c]));
  }
  return NULL;
}

int main(int argc, char **argv) {
  start(argc, argv);
  places[0].ctx = context;
  CK(cuCtxCreate_v2(&places[1].ctx, 0, 0));
  for (int c = 0; c < CONTEXTS; c++) {
    struct place *p = &places[c];
    CK(cuCtxSetCurrent(p->ctx));
    CK(cuCtxGetId(p->ctx, &p->ctx_id));
    fresh(p->ctx_id, "a context");
  }
  known = 0;
  for (int c = 0; c < CONTEXTS; c++) {
    struct place *p = &places[c];
    CK(cuCtxSetCurrent(p->ctx));
    for (int i = 0; i < STREAMS; i++) {
      if (i) CK(cuStreamCreate(&p->stream[i], i % 2 ? CU_STREAM_NON_BLOCKING : 0));
      CK(cuStreamGetId(p->stream[i], &p->id[i]));
      fresh(p->id[i], "a stream");
    }
  }
  pthread_t t[STREAMS];
  for (int i = 0; i < STREAMS; i++) CHECK(!pthread_create(&t[i], NULL, work, (void *)(intptr_t)i), "no thread");
  for (int i = 0; i < STREAMS; i++) pthread_join(t[i], NULL);
  printf("two contexts, four streams each: right\n");

  // A stream and a context that come later are new ones, though they may lie where others did.
  unsigned long long id;
  for (int i = 0; i < 3; i++) {
    CUstream s;
    CK(cuCtxSetCurrent(context));
    CK(cuStreamDestroy(places[0].stream[3]));
    CK(cuStreamCreate(&s, 0));
    CK(cuStreamGetId(s, &id));
    fresh(id, "a later stream");
    places[0].stream[3] = s;
  }
  CK(cuCtxDestroy(places[1].ctx));
  CK(cuCtxCreate_v2(&places[1].ctx, 0, 0));
  CK(cuCtxGetId(places[1].ctx, &id));
  CHECK(id != places[0].ctx_id && id != places[1].ctx_id, "a later context has the id %llu of another", id);
  CK(cuCtxDestroy(places[1].ctx));
  printf("later ones: new\n");
  return 0;
}
