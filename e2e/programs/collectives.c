// Ranks of NCCL, one a process: collectives, transfers and groups against what they are to give, facts, and an abort.
// Arguments: the kernels' folder, what to do, the rank, and how many there are. Rank 0 prints the id, the others read
// it.
#include "check.h"
#include "collectives.h"

static int rank, ranks;
static ncclComm_t comm;
static CUstream stream;
static CUdeviceptr in, out;
static uint8_t *host_in, *host_out;

static void meet(void) { NCCL(ncclCommInitRank(&comm, ranks, meeting(rank), rank)); }

// An element that a rank brings; small, so that every type holds every result.
static double value(int of, size_t i, int op) {
  return op == ncclProd ? 1 + (of + (int)i) % 2 : 1 + (of * 3 + (int)i) % 8;
}

static double reduced(size_t i, int op) {
  double v = value(0, i, op);
  for (int k = 1; k < ranks; k++) {
    double w = value(k, i, op);
    v = op == ncclProd ? v * w : op == ncclMax ? fmax(v, w) : op == ncclMin ? fmin(v, w) : v + w;
  }
  return op == ncclAvg ? v / ranks : v;
}

static void bring(int type, size_t count, int op, int from) {
  for (size_t i = 0; i < count; i++) put(host_in, type, i, value(rank, (size_t)from + i, op));
  CK(cuMemcpyHtoDAsync(in, host_in, count * size_of(type), stream));
  CK(cuMemsetD8Async(out, 0xee, MOST, stream));
}

static void take(size_t bytes) {
  CK(cuMemcpyDtoHAsync(host_out, out, bytes, stream));
  CK(cuStreamSynchronize(stream));
}

static void expect(const char *what, int type, size_t at, double want) {
  double got = get(host_out, type, at), most = is_whole(type) ? 0 : 0.01 * fabs(want);
  if (is_whole(type)) want = trunc(want);
  CHECK(fabs(got - want) <= most, "%s of type %d, element %zu: %g, want %g", what, type, at, got, want);
}

static void collectives(int type, size_t n) {
  for (int op = ncclSum; op <= ncclAvg; op++) {
    bring(type, n, op, 0);
    NCCL(ncclAllReduce((void *)in, (void *)out, n, type, op, comm, stream));
    take(n * size_of(type));
    for (size_t i = 0; i < n; i++) expect("all-reduce", type, i, reduced(i, op));
    int root = op % ranks;
    bring(type, n, op, 0);
    NCCL(ncclReduce((void *)in, (void *)out, n, type, op, root, comm, stream));
    take(n * size_of(type));
    for (size_t i = 0; i < n && rank == root; i++) expect("reduce", type, i, reduced(i, op));
    for (size_t i = 0; i < n * size_of(type) && rank != root; i++) CHECK(host_out[i] == 0xee, "reduce wrote elsewhere");
    bring(type, n * ranks, op, 0);
    NCCL(ncclReduceScatter((void *)in, (void *)out, n, type, op, comm, stream));
    take(n * size_of(type));
    for (size_t i = 0; i < n; i++) expect("reduce-scatter", type, i, reduced((size_t)rank * n + i, op));
  }
}

static void moves(int type, size_t n) {
  for (int root = 0; root < ranks; root++) {
    bring(type, n, 0, 0);
    NCCL(ncclBroadcast((void *)in, (void *)out, n, type, root, comm, stream));
    take(n * size_of(type));
    for (size_t i = 0; i < n; i++) expect("broadcast", type, i, value(root, i, 0));
  }
  bring(type, n, 0, 0);
  NCCL(ncclAllGather((void *)in, (void *)out, n, type, comm, stream));
  take(n * ranks * size_of(type));
  for (size_t i = 0; i < n * ranks; i++) expect("all-gather", type, i, value((int)(i / n), i % n, 0));
  int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks; // both ways at once, and a collective with them
  bring(type, n, 0, 0);
  NCCL(ncclGroupStart());
  NCCL(ncclSend((void *)in, n, type, next, comm, stream));
  NCCL(ncclGroupStart());
  NCCL(ncclRecv((void *)out, n, type, before, comm, stream));
  NCCL(ncclGroupEnd());
  NCCL(ncclAllReduce((void *)in, (void *)(out + MOST / 2), n, type, ncclMax, comm, stream));
  NCCL(ncclGroupEnd());
  take(MOST);
  for (size_t i = 0; i < n; i++) {
    expect("receive", type, i, value(before, i, 0));
    expect("all-reduce in a group", type, MOST / 2 / size_of(type) + i, reduced(i, ncclMax));
  }
  if (!ncclAlltoAll) return;
  bring(type, n * ranks, 0, 0);
  NCCL(ncclAlltoAll((void *)in, (void *)out, n, type, comm, stream));
  take(n * ranks * size_of(type));
  for (size_t i = 0; i < n * ranks; i++)
    expect("all to all", type, i, value((int)(i / n), (size_t)rank * n + i % n, 0));
}

// A rank that sends to itself has nobody to wait for.
static void alone(void) {
  bring(ncclInt32, 100, 0, 0);
  NCCL(ncclGroupStart());
  NCCL(ncclSend((void *)in, 100, ncclInt32, rank, comm, stream));
  NCCL(ncclRecv((void *)out, 100, ncclInt32, rank, comm, stream));
  NCCL(ncclGroupEnd());
  take(400);
  for (size_t i = 0; i < 100; i++) expect("a rank's own", ncclInt32, i, value(rank, i, 0));
}

static void facts(void) {
  int v = -1;
  CUdevice device;
  CK(cuCtxGetDevice(&device));
  NCCL(ncclGetVersion(&v));
  CHECK(v >= 21800, "version %d", v);
  NCCL(ncclCommCount(comm, &v));
  CHECK(v == ranks, "%d ranks", v);
  NCCL(ncclCommUserRank(comm, &v));
  CHECK(v == rank, "rank %d", v);
  if (ncclCommCuDevice) {
    NCCL(ncclCommCuDevice(comm, &v));
    CHECK(v == device, "device %d", v);
  }
  NCCL(ncclCommGetAsyncError(comm, &v));
  CHECK(v == ncclSuccess, "asynchronous error %d", v);
  CHECK(*ncclGetErrorString(ncclInvalidUsage), "no text for a result");
}

// What a program cannot mean is refused, and what is beside it goes on.
static void refusals(void) {
  static const char *const names[] = {"ncclCommWindowRegister", "ncclGroupSimulateEnd"};
  int local;
  WANT(ncclAllReduce((void *)in, (void *)out, 8, 12, ncclSum, comm, stream), ncclInvalidArgument);
  WANT(ncclAllReduce((void *)in, (void *)out, MOST, ncclFloat64, ncclSum, comm, stream), ncclInvalidArgument);
  WANT(ncclAllReduce((void *)&local, (void *)out, 1, ncclFloat32, ncclSum, comm, stream), ncclInvalidArgument);
  WANT(ncclAllReduce((void *)in, (void *)out, 8, ncclInt8, ncclSum, comm, (CUstream)&local), ncclInvalidArgument);
  WANT(ncclSend((void *)in, 8, ncclInt8, ranks, comm, stream), ncclInvalidArgument);
  WANT(ncclAllReduce((void *)in, (void *)out, 8, ncclInt8, ncclSum, (ncclComm_t)&local, stream), ncclInvalidArgument);
  WANT(ncclGroupEnd(), ncclInvalidUsage);
  NCCL(ncclGroupStart()); // a group with a call that failed does nothing
  WANT(ncclSend((void *)in, 8, ncclInt8, -1, comm, stream), ncclInvalidArgument);
  NCCL(ncclRecv((void *)out, 8, ncclInt8, rank, comm, stream));
  WANT(ncclGroupEnd(), ncclInvalidArgument);
  CHECK(*ncclGetLastError(comm), "no text of the last failure");
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    int (*f)(void *, int, int, void *, void *, void *) = symbol(names[i]);
    CHECK(f, "%s is not exported", names[i]);
    WANT(f(comm, 0, 0, &local, NULL, NULL), ncclInvalidUsage);
  }
  CUgraph graph;
  CK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  WANT(ncclAllReduce((void *)in, (void *)out, 8, ncclInt8, ncclSum, comm, stream), ncclInvalidUsage);
  CK(cuStreamEndCapture(stream, &graph));
  void *pinned;
  CK(cuMemHostAlloc(&pinned, 64, 0));
  WANT(ncclAllReduce(pinned, pinned, 8, ncclInt8, ncclSum, comm, stream), ncclInvalidUsage);
  WANT(ncclAllReduce((void *)in, (void *)out, 0, ncclInt8, ncclSum, comm, stream), ncclSuccess);
}

// The same calls again and again, none of which is waited for, with copies between them that need what they give: a
// sum of sums, modulo 2^32. Then a second stream, and a buffer that is none.
static void repeat(void) {
  enum { N = 256, TIMES = 500 };
  uint32_t want = 0;
  CUstream other;
  CUevent done;
  int state;
  CK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CK(cuEventCreate(&done, 0));
  for (int k = 0; k < ranks; k++) want += (uint32_t)k + 1;
  CK(cuMemsetD32Async(in, (uint32_t)rank + 1, N, other)); // the first sum's stream, which waits for no default stream
  for (int i = 0; i < TIMES; i++) {
    CUstream s = i % 3 ? stream : other;
    CK(cuStreamWaitEvent(s, done, 0));
    NCCL(ncclAllReduce((void *)in, (void *)out, N, ncclUint32, ncclSum, comm, s));
    CK(cuMemcpyDtoDAsync(in, out, 4 * N, s));
    CK(cuEventRecord(done, s));
    if (i) want *= (uint32_t)ranks;
  }
  CK(cuEventSynchronize(done));
  take(4 * N);
  for (int i = 0; i < N; i++) CHECK(((uint32_t *)host_out)[i] == want, "%u, want %u", ((uint32_t *)host_out)[i], want);
  for (int i = 0; i < TIMES; i++) { // as watchdogs do
    NCCL(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclSuccess, "asynchronous error %d", state);
  }
  uint8_t local[4 * N]; // which the server alone sees, so that the call has returned by then
  NCCL(ncclAllReduce(local, (void *)out, N, ncclUint32, ncclSum, comm, stream));
  NCCL(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclInvalidArgument, "asynchronous error %d of a buffer that is none", state);
  WANT(ncclAllReduce((void *)in, (void *)out, 1, ncclUint32, ncclSum, comm, stream), ncclInvalidArgument);
  NCCL(ncclCommAbort(comm));
}

static void *first_call(void *result) {
  CK(cuCtxSetCurrent(context));
  *(int *)result = ncclAllReduce((void *)in, (void *)out, 8, ncclInt32, ncclSum, comm, stream);
  return NULL;
}

// Rank 1 begins, and never calls. Rank 0's call waits for it, and holds nobody up, until it is aborted.
static void abort_call(void) {
  if (rank) {
    CHECK(getchar() == EOF, "there was more on stdin");
    return;
  }
  pthread_t thread;
  int result = ncclSuccess, state;
  CHECK(!pthread_create(&thread, NULL, first_call, &result), "no thread");
  CUstream other;
  CK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 200; i++) {
    int n = i, got = -1;
    CK(cuMemcpyHtoDAsync(in + 4096, &n, 4, other));
    CK(cuMemcpyDtoHAsync(&got, in + 4096, 4, other));
    CK(cuStreamSynchronize(other));
    CHECK(got == i, "beside a call that waits: %d, want %d", got, i);
    NCCL(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclSuccess, "asynchronous error %d", state);
  }
  NCCL(ncclCommAbort(comm));
  CHECK(!pthread_join(thread, NULL) && result != ncclSuccess, "the aborted call gave %d", result);
  WANT(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument);
  CK(cuStreamSynchronize(stream));
  CK(cuMemcpyDtoH(host_out, out, 64));
}

// Rank 1 begins, and goes away. Rank 0 waits for it in its first call, where the library cannot notice, and does
// nothing about it: the server ends the call.
static void vanish(void) {
  if (rank) _exit(0);
  pthread_t thread;
  int result = ncclSuccess, state = ncclSuccess;
  CHECK(!pthread_create(&thread, NULL, first_call, &result), "no thread");
  while (state == ncclSuccess) NCCL(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclRemoteError, "asynchronous error %d", state);
  const char *said = ncclGetLastError(comm);
  CHECK(strstr(said, "rank 1 of the communicator was lost"), "it says %s", said);
  CHECK(!pthread_join(thread, NULL) && result != ncclSuccess, "the call gave %d", result);
  WANT(ncclAllReduce((void *)in, (void *)out, 8, ncclInt32, ncclSum, comm, stream), ncclRemoteError);
  CK(cuStreamSynchronize(stream));
  NCCL(ncclCommAbort(comm));
}

// The same, where both are ranks of a part.
static void vanish_part(void) {
  NCCL(ncclCommSplit(comm, 0, rank, &comm, NULL));
  vanish();
}

// Rank 1 goes away, as a process does that is killed; rank 0 learns of it.
static void lose_peer(void) {
  int state = ncclSuccess;
  bring(ncclInt32, 8, 0, 0);
  NCCL(ncclAllReduce((void *)in, (void *)out, 8, ncclInt32, ncclSum, comm, stream));
  CK(cuStreamSynchronize(stream));
  if (rank) _exit(0);
  NCCL(ncclAllReduce((void *)in, (void *)out, 8, ncclInt32, ncclSum, comm, stream));
  while (state == ncclSuccess) NCCL(ncclCommGetAsyncError(comm, &state));
  CHECK(state == ncclRemoteError, "asynchronous error %d", state);
  NCCL(ncclCommAbort(comm));
  CK(cuStreamSynchronize(stream));
}

// Two ranks of one process, in two threads: each waits for the other, in the start and in the first call, and neither
// holds the other up.
struct of_thread { pthread_t thread; ncclUniqueId id; int rank; };

static void *one_of_two(void *argument) {
  const struct of_thread *t = argument;
  ncclComm_t mine;
  CUstream s;
  CUdeviceptr p;
  int v = 1 + t->rank, other = -1;
  CK(cuCtxSetCurrent(context));
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuMemAlloc(&p, 8));
  NCCL(ncclCommInitRank(&mine, 2, t->id, t->rank));
  for (int i = 0; i < 50; i++) {
    CK(cuMemcpyHtoDAsync(p, &v, 4, s));
    NCCL(ncclAllReduce((void *)p, (void *)(p + 4), 1, ncclInt32, ncclSum, mine, s));
    NCCL(ncclGroupStart());
    NCCL(ncclSend((void *)p, 1, ncclInt32, 1 - t->rank, mine, s));
    NCCL(ncclRecv((void *)p, 1, ncclInt32, 1 - t->rank, mine, s));
    NCCL(ncclGroupEnd());
    CK(cuMemcpyDtoHAsync(&other, p, 4, s));
    CK(cuStreamSynchronize(s));
    CHECK(other == 2 - t->rank, "got %d of the other", other);
    CK(cuMemcpyDtoHAsync(&other, p + 4, 4, s));
    CK(cuStreamSynchronize(s));
    CHECK(other == 3, "a sum of %d", other);
  }
  NCCL(ncclCommDestroy(mine));
  return NULL;
}

static void threads(void) {
  struct of_thread t[2] = {{.rank = 0}, {.rank = 1}};
  NCCL(ncclGetUniqueId(&t[0].id));
  t[1].id = t[0].id;
  for (int i = 0; i < 2; i++) CHECK(!pthread_create(&t[i].thread, NULL, one_of_two, &t[i]), "no thread");
  for (int i = 0; i < 2; i++) CHECK(!pthread_join(t[i].thread, NULL), "a thread");
}

int main(int argc, char **argv) {
  start(argc, argv);
  CHECK(argc > 4, "what, rank, ranks");
  const char *what = argv[2];
  rank = atoi(argv[3]);
  ranks = atoi(argv[4]);
  open_nccl();
  CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CK(cuMemAlloc(&in, MOST));
  CK(cuMemAlloc(&out, MOST));
  host_in = malloc(MOST);
  host_out = malloc(MOST);
  if (!strcmp(what, "threads")) {
    threads();
    printf("right\n");
    return 0;
  }
  meet();
  if (!strcmp(what, "abort")) abort_call();
  else if (!strcmp(what, "lose")) lose_peer();
  else if (!strcmp(what, "repeat")) repeat();
  else if (!strcmp(what, "vanish")) vanish();
  else if (!strcmp(what, "vanish part")) vanish_part();
  else {
    facts();
    for (int type = ncclInt8; type <= ncclBfloat16; type++) {
      collectives(type, type == ncclInt8 ? 1 : 1000);
      moves(type, 1000);
    }
    alone();
    if (!strcmp(what, "scuda")) refusals();
    NCCL(ncclCommFinalize(comm));
    NCCL(ncclCommDestroy(comm));
  }
  printf("right\n");
  return 0;
}
