// Memory and events shared between two processes by their handles.
#include "check.h"
#include "pair.h"

enum { N = 1 << 20, AT = 4096 };
typedef struct { CUipcMemHandle mem; CUipcEventHandle event; } Shared;

static void first(pid_t child) {
  CUdeviceptr d;
  CUevent e;
  CUstream s;
  Shared h;
  unsigned char *data = malloc(N), *got = malloc(N);
  CK(cuMemAlloc(&d, N));
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
  CK(cuIpcGetMemHandle(&h.mem, d));
  CK(cuIpcGetEventHandle(&h.event, e));
  for (int round = 0; round < 5; round++) {
    fill(data, N, round);
    CK(cuMemcpyHtoDAsync(d, data, N, s));
    CK(cuEventRecord(e, s));
    if (!round) tell(&h, sizeof h, -1);
    else turn();
    await(); // it has recorded the event behind its work
    CK(cuStreamWaitEvent(s, e, 0));
    CK(cuMemcpyDtoHAsync(got, d, N, s));
    CK(cuStreamSynchronize(s));
    for (int i = 0; i < N; i++) CHECK(got[i] == (i < AT ? data[i] : 0x30 + round), "round %d byte %d", round, i);
    CK(cuEventSynchronize(e));
    CK(cuEventQuery(e));
  }
  CUipcMemHandle inside;
  CK(cuIpcGetMemHandle(&inside, d + AT)); // of the allocation
  turn();
  child_was_right(child);
  CK(cuEventDestroy(e));
  CK(cuMemFree(d));
  printf("5 rounds\n");
  CK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  SHOW(cuIpcGetEventHandle(&h.event, e));
  SHOW(cuEventCreate(&e, CU_EVENT_INTERPROCESS)); // needs DISABLE_TIMING
  memset(&h, 0x77, sizeof h);
  SHOW(cuIpcOpenMemHandle(&d, h.mem, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS);
}

static void second(void) {
  Shared h;
  CUdeviceptr d, base;
  CUevent e;
  CUstream s;
  size_t size;
  unsigned char *data = malloc(N), *got = malloc(N);
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  hear(&h, sizeof h);
  CK(cuIpcOpenMemHandle(&d, h.mem, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  CK(cuIpcOpenEventHandle(&e, h.event));
  CK(cuMemGetAddressRange(&base, &size, d + 100));
  CHECK(base == d && size >= N, "range of opened memory: %zu bytes", size);
  for (int round = 0; round < 5; round++) {
    if (round) await();
    CK(cuStreamWaitEvent(s, e, 0));
    CK(cuMemcpyDtoHAsync(got, d, N, s));
    CK(cuStreamSynchronize(s));
    fill(data, N, round);
    CHECK(!memcmp(data, got, N), "round %d: what the first process wrote", round);
    CK(cuMemsetD8Async(d + AT, 0x30 + round, N - AT, s));
    CK(cuEventRecord(e, s));
    turn();
  }
  await();
  CK(cuCtxSynchronize());
  CK(cuIpcCloseMemHandle(d));
  CK(cuEventDestroy(e));
}

int main(int argc, char **argv) {
  pid_t child;
  int is_first = split(&child);
  start(argc, argv);
  if (is_first) first(child);
  else second();
  return 0;
}
