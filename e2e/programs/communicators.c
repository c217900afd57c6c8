// Communicators of NCCL that come from others, configurations, and reductions of the program's own. Arguments: the
// kernels' folder, what to do, the rank, and how many there are.
#include "check.h"
#include "collectives.h"

#include <limits.h>

typedef struct {
  size_t size;
  unsigned magic, version;
  int blocking, cluster_size, min_ctas, max_ctas;
  const char *net;
  int split_share, traffic_class;
  const char *name;
  int collnet, cta_policy, shrink_share, nvls_ctas, later[4];
} config_t;
#define UNDEFINED INT_MIN

static int (*commInitRankConfig)(ncclComm_t *, int, ncclUniqueId, int, config_t *);
static int (*commInitRankScalable)(ncclComm_t *, int, int, int, ncclUniqueId *, config_t *);
static int (*commInitAll)(ncclComm_t *, int, const int *);
static int (*commSplit)(ncclComm_t, int, int, ncclComm_t *, config_t *);
static int (*commShrink)(ncclComm_t, int *, int, ncclComm_t *, config_t *, int);
static int (*makePreMulSum)(int *, void *, int, int, ncclComm_t);
static int (*redOpDestroy)(int, ncclComm_t);
static int (*commRegister)(ncclComm_t, void *, size_t, void **);
static int (*commDeregister)(ncclComm_t, void *);
enum { ON_DEVICE, ON_HOST };

static int rank, ranks;
static ncclComm_t comm;
static CUstream stream;
static CUdeviceptr buffer;

static void find(void) {
  static const struct { const char *name; void *at; } list[] = {
      {"ncclCommInitRankConfig", &commInitRankConfig}, {"ncclCommInitRankScalable", &commInitRankScalable},
      {"ncclCommInitAll", &commInitAll}, {"ncclCommSplit", &commSplit}, {"ncclCommShrink", &commShrink},
      {"ncclRedOpCreatePreMulSum", &makePreMulSum}, {"ncclRedOpDestroy", &redOpDestroy},
      {"ncclCommRegister", &commRegister}, {"ncclCommDeregister", &commDeregister}};
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    void *f = symbol(list[i].name);
    CHECK(f, "%s is missing", list[i].name);
    memcpy(list[i].at, &f, sizeof f);
  }
}

static config_t config(void) {
  return (config_t){sizeof(config_t), 0xcafebeef, 22809, UNDEFINED, UNDEFINED, UNDEFINED, UNDEFINED, NULL, UNDEFINED,
                    UNDEFINED, NULL, UNDEFINED, UNDEFINED, UNDEFINED, UNDEFINED,
                    {UNDEFINED, UNDEFINED, UNDEFINED, UNDEFINED}};
}

// The sum of what all of a communicator bring.
static float sum(ncclComm_t of, float mine, int op) {
  float got = -1;
  CK(cuMemcpyHtoDAsync(buffer, &mine, sizeof mine, stream));
  NCCL(ncclAllReduce((void *)buffer, (void *)buffer, 1, ncclFloat32, op, of, stream));
  CK(cuMemcpyDtoHAsync(&got, buffer, sizeof got, stream));
  CK(cuStreamSynchronize(stream));
  return got;
}

static void is(ncclComm_t of, int rank_in, int count, float want) {
  int r = -1, n = -1;
  NCCL(ncclCommUserRank(of, &r));
  NCCL(ncclCommCount(of, &n));
  CHECK(r == rank_in && n == count, "rank %d of %d, want %d of %d", r, n, rank_in, count);
  float got = sum(of, (float)(1 << rank), ncclSum);
  CHECK(got == want, "a sum of %g, want %g", got, want);
}

// An id of rank 0's, by the communicator that there is.
static ncclUniqueId next_id(void) {
  ncclUniqueId id;
  if (!rank) {
    NCCL(ncclGetUniqueId(&id));
    CK(cuMemcpyHtoDAsync(buffer, &id, sizeof id, stream));
  }
  NCCL(ncclBroadcast((void *)buffer, (void *)buffer, sizeof id, ncclInt8, 0, comm, stream));
  CK(cuMemcpyDtoHAsync(&id, buffer, sizeof id, stream));
  CK(cuStreamSynchronize(stream));
  return id;
}

static void splits(void) {
  ncclComm_t part = NULL, other = NULL, none = comm;
  float all = (float)((1 << ranks) - 1), even = 0;
  for (int i = 0; i < ranks; i += 2) even += (float)(1 << i);
  NCCL(commSplit(comm, 7, -rank, &part, NULL)); // all, in the other order
  is(part, ranks - 1 - rank, ranks, all);
  NCCL(commSplit(part, rank % 2, rank, &other, NULL)); // a part of a part
  is(other, rank / 2, rank % 2 ? ranks / 2 : (ranks + 1) / 2, rank % 2 ? all - even : even);
  NCCL(ncclCommDestroy(other));
  NCCL(ncclCommDestroy(part));
  NCCL(commSplit(comm, rank ? 0 : -1, 0, &none, NULL));
  CHECK(rank ? none != NULL : !none, "a communicator %p", (void *)none);
  if (rank) {
    is(none, rank - 1, ranks - 1, all - 1);
    NCCL(ncclCommDestroy(none));
  }
  NCCL(ncclGroupStart()); // two of one group
  NCCL(commSplit(comm, 0, rank, &part, NULL));
  NCCL(commSplit(comm, 0, -rank, &other, NULL));
  NCCL(ncclGroupEnd());
  is(part, rank, ranks, all);
  is(other, ranks - 1 - rank, ranks, all);
  NCCL(ncclCommDestroy(other));
  NCCL(ncclCommDestroy(part));
  WANT(commSplit(comm, -2, 0, &part, NULL), ncclInvalidArgument);
}

static void shrinks(void) {
  int last = ranks - 1, self = rank, far = ranks;
  float rest = (float)((1 << last) - 1);
  ncclComm_t part = NULL;
  WANT(commShrink(comm, &far, 1, &part, NULL, 0), ncclInvalidArgument);
  WANT(commShrink(comm, &self, 1, &part, NULL, 0), ncclInvalidArgument);
  WANT(commShrink(comm, &last, 1, &part, NULL, 2), ncclInvalidArgument);
  if (rank == last) return; // it is left out, and does nothing
  NCCL(commShrink(comm, &last, 1, &part, NULL, 0));
  is(part, rank, last, rest);
  NCCL(ncclCommDestroy(part));
}

static void configurations(void) {
  ncclUniqueId id[2];
  ncclComm_t other = NULL;
  int state = -1;
  config_t c = config();
  id[0] = id[1] = next_id();
  c.magic = 0;
  WANT(commInitRankConfig(&other, ranks, *id, rank, &c), ncclInvalidArgument);
  c = config();
  c.net = "a plugin";
  WANT(commInitRankConfig(&other, ranks, *id, rank, &c), ncclInvalidArgument);
  c.net = NULL;
  c.min_ctas = 4;
  c.max_ctas = 2;
  WANT(commInitRankConfig(&other, ranks, *id, rank, &c), ncclInvalidArgument);
  c = config(); // what PyTorch gives, and more
  c.blocking = 0;
  c.min_ctas = 1;
  c.max_ctas = 2;
  c.net = "socket";
  c.name = "group";
  c.split_share = 1;
  int r = commInitRankConfig(&other, ranks, *id, rank, &c);
  CHECK(!r || r == 7, "a communicator that does not block: %d", r);
  do NCCL(ncclCommGetAsyncError(other, &state));
  while (state == 7);
  CHECK(!state, "asynchronous error %d", state);
  is(other, rank, ranks, (float)((1 << ranks) - 1));
  NCCL(ncclCommDestroy(other));
  id[0] = id[1] = next_id();
  c = config();
  NCCL(commInitRankScalable(&other, ranks, rank, 2, id, &c));
  is(other, rank, ranks, (float)((1 << ranks) - 1));
  c.max_ctas = 1;
  ncclComm_t part = NULL;
  NCCL(commSplit(other, 0, 0, &part, &c));
  is(part, rank, ranks, (float)((1 << ranks) - 1));
  NCCL(ncclCommDestroy(part));
  NCCL(ncclCommDestroy(other));
  WANT(commInitRankScalable(&other, ranks, rank, ranks + 1, id, NULL), ncclInvalidArgument);
}

static void reductions(void) {
  int op, second, third;
  float half = 0.5f, quarter = 0.25f, all = (float)((1 << ranks) - 1), got[2];
  CUdeviceptr scalar;
  CK(cuMemAlloc(&scalar, 4096));
  CK(cuMemcpyHtoD(scalar, &quarter, sizeof quarter));
  NCCL(makePreMulSum(&op, &half, ncclFloat32, ON_HOST, comm));
  NCCL(makePreMulSum(&second, (void *)scalar, ncclFloat32, ON_DEVICE, comm));
  CHECK(op > ncclAvg && second > ncclAvg && op != second, "reductions %d and %d", op, second);
  got[0] = sum(comm, (float)(1 << rank), op);
  CHECK(got[0] == all / 2, "a half of the sum: %g of %g", got[0], all);
  got[0] = sum(comm, (float)(1 << rank), second);
  CHECK(got[0] == all / 4, "a quarter of the sum: %g of %g", got[0], all);
  got[0] = got[1] = (float)(1 << rank);
  CK(cuMemcpyHtoDAsync(buffer, got, sizeof got, stream));
  NCCL(ncclGroupStart()); // it ends before the operations are under way
  NCCL(ncclAllReduce((void *)buffer, (void *)buffer, 1, ncclFloat32, op, comm, stream));
  NCCL(makePreMulSum(&third, &quarter, ncclFloat32, ON_HOST, comm));
  NCCL(ncclAllReduce((void *)(buffer + 4), (void *)(buffer + 4), 1, ncclFloat32, third, comm, stream));
  NCCL(redOpDestroy(op, comm));
  NCCL(redOpDestroy(third, comm));
  NCCL(ncclGroupEnd());
  CK(cuMemcpyDtoHAsync(got, buffer, sizeof got, stream));
  CK(cuStreamSynchronize(stream));
  CHECK(got[0] == all / 2 && got[1] == all / 4, "in a group: %g and %g of %g", got[0], got[1], all);
  WANT(redOpDestroy(op, comm), ncclInvalidArgument);
  WANT(ncclAllReduce((void *)buffer, (void *)buffer, 1, ncclFloat32, op, comm, stream), ncclInvalidArgument);
  WANT(makePreMulSum(&op, &half, ncclFloat32, ON_DEVICE, comm), ncclInvalidArgument);
  NCCL(redOpDestroy(second, comm));
  CK(cuMemFree(scalar));
}

static void registration(void) {
  void *handle = &handle;
  NCCL(commRegister(comm, (void *)buffer, 4096, &handle));
  is(comm, rank, ranks, (float)((1 << ranks) - 1));
  NCCL(commDeregister(comm, handle));
  WANT(commRegister(comm, NULL, 4096, &handle), ncclInvalidArgument);
}

static void aborting_shrink(void) {
  int last = ranks - 1;
  ncclComm_t part = NULL;
  if (rank == last) return;
  NCCL(commShrink(comm, &last, 1, &part, NULL, 1));
  is(part, rank, last, (float)((1 << last) - 1));
  NCCL(ncclCommDestroy(part));
}

// A rank on each device, in one thread.
enum { MOST_DEVICES = 8 };
static ncclComm_t comms[MOST_DEVICES], parts[MOST_DEVICES];
static CUcontext contexts[MOST_DEVICES];
static CUstream streams[MOST_DEVICES];
static CUdeviceptr at[MOST_DEVICES];

static void give_each(int count) {
  for (int i = 0; i < count; i++) {
    float v = (float)(1 << i);
    CK(cuCtxSetCurrent(contexts[i]));
    CK(cuMemcpyHtoDAsync(at[i], &v, sizeof v, streams[i]));
  }
}

static void all_have(int count, float want) {
  for (int i = 0; i < count; i++) {
    float got = -1;
    CK(cuCtxSetCurrent(contexts[i]));
    CK(cuMemcpyDtoHAsync(&got, at[i] + 8, sizeof got, streams[i]));
    CK(cuStreamSynchronize(streams[i]));
    CHECK(got == want, "rank %d has %g, want %g", i, got, want);
  }
}

// What the last call of a group is answered where the ranks add up what they have.
static int add_up(int count, const int *op) {
  NCCL(ncclGroupStart());
  for (int i = 0; i < count; i++)
    ncclAllReduce((void *)at[i], (void *)(at[i] + 8), 1, ncclFloat32, op ? op[i] : ncclSum, comms[i], streams[i]);
  return ncclGroupEnd();
}

static void begin_all(int count) {
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  NCCL(ncclGroupStart());
  for (int i = 0; i < count; i++) {
    CK(cuCtxSetCurrent(contexts[i]));
    NCCL(ncclCommInitRank(&comms[i], count, id, i));
  }
  NCCL(ncclGroupEnd());
}

// The ranks of a part are in the opposite order: its first one is the last.
static void split_all(int count) {
  NCCL(ncclGroupStart());
  for (int i = 0; i < count; i++) NCCL(commSplit(comms[i], 0, count - i, &parts[i], NULL));
  NCCL(ncclGroupEnd());
  NCCL(ncclGroupStart());
  for (int i = 0; i < count; i++)
    NCCL(ncclBroadcast((void *)at[i], (void *)(at[i] + 8), 1, ncclFloat32, 0, parts[i], streams[i]));
  NCCL(ncclGroupEnd());
  all_have(count, (float)(1 << (count - 1)));
  for (int i = 0; i < count; i++) NCCL(ncclCommDestroy(parts[i]));
}

static void reduce_doubled(int count) {
  int ops[MOST_DEVICES];
  float two = 2;
  for (int i = 0; i < count; i++) NCCL(makePreMulSum(&ops[i], &two, ncclFloat32, ON_HOST, comms[i]));
  NCCL(add_up(count, ops));
  for (int i = 0; i < count; i++) NCCL(redOpDestroy(ops[i], comms[i]));
  all_have(count, (float)(2 * ((1 << count) - 1)));
}

// Of a group with a call that is refused nothing is carried out, and no rank waits for another.
static void refuse(int count) {
  CUgraph graph;
  CK(cuCtxSetCurrent(contexts[count - 1]));
  CK(cuStreamBeginCapture_v2(streams[count - 1], CU_STREAM_CAPTURE_MODE_RELAXED));
  WANT(add_up(count, NULL), ncclInvalidUsage);
  CK(cuStreamEndCapture(streams[count - 1], &graph));
  CK(cuGraphDestroy(graph));
}

static void several(int count) {
  int devices = 0, n;
  CK(cuDeviceGetCount(&devices));
  CHECK(devices == count, "%d devices", devices);
  for (int i = 0; i < count; i++) {
    CK(cuDevicePrimaryCtxRetain(&contexts[i], i));
    CK(cuCtxSetCurrent(contexts[i]));
    CK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    CK(cuMemAlloc(&at[i], 4096));
  }
  for (int round = 0; round < 2; round++) {
    if (round) begin_all(count);
    else NCCL(commInitAll(comms, count, NULL));
    for (int i = 0; i < count; i++) {
      NCCL(ncclCommCuDevice(comms[i], &n));
      CHECK(n == i, "device %d, want %d", n, i);
    }
    for (int k = 0; k < 5; k++) {
      give_each(count);
      if (k == 2) refuse(count);
      NCCL(add_up(count, NULL));
      all_have(count, (float)((1 << count) - 1));
    }
    reduce_doubled(count);
    split_all(count);
    for (int i = 0; i < count; i++) {
      NCCL(ncclCommGetAsyncError(comms[i], &n));
      CHECK(n == ncclSuccess, "rank %d: asynchronous error %d", i, n);
      NCCL(ncclCommDestroy(comms[i]));
    }
  }
}

int main(int argc, char **argv) {
  start(argc, argv);
  CHECK(argc > 4, "what, rank, ranks");
  rank = atoi(argv[3]);
  ranks = atoi(argv[4]);
  open_nccl();
  find();
  if (!strcmp(argv[2], "several")) {
    several(ranks);
    printf("right\n");
    return 0;
  }
  CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CK(cuMemAlloc(&buffer, MOST));
  NCCL(ncclCommInitRank(&comm, ranks, meeting(rank), rank));
  splits();
  configurations();
  reductions();
  registration();
  shrinks();
  aborting_shrink();
  NCCL(rank == ranks - 1 ? ncclCommAbort(comm) : ncclCommDestroy(comm));
  printf("right\n");
  return 0;
}
