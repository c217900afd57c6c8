// Memory and events between two processes through the runtime; kernels of both work on the same memory by turns.
#include <sys/wait.h>
#include <unistd.h>

#include "check.cuh"

enum { N = 1 << 18, ROUNDS = 8 };

__global__ void step(int *p, int add, int factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < N) p[i] = p[i] * factor + add + i % 7;
}

struct Names { cudaIpcMemHandle_t memory; cudaIpcEventHandle_t mine, yours; };
static int in, out;

static void put(const void *p, size_t n) { CHECK(write(out, p, n) == (ssize_t)n, "the other process is gone"); }
static void take(void *p, size_t n) {
  for (char *at = (char *)p; n;) {
    ssize_t got = read(in, at, n);
    CHECK(got > 0, "the other process is gone");
    at += got, n -= got;
  }
}
static void turn() { put("", 1); }
static void await() {
  char c;
  take(&c, 1);
}

static void second() {
  Names names;
  int *p;
  cudaEvent_t theirs, mine;
  cudaStream_t s;
  take(&names, sizeof names);
  CK(cudaIpcOpenMemHandle((void **)&p, names.memory, cudaIpcMemLazyEnablePeerAccess));
  CK(cudaIpcOpenEventHandle(&theirs, names.mine));
  CK(cudaEventCreateWithFlags(&mine, cudaEventDisableTiming | cudaEventInterprocess));
  CK(cudaIpcGetEventHandle(&names.yours, mine));
  put(&names.yours, sizeof names.yours);
  CK(cudaStreamCreate(&s));
  for (int round = 0; round < ROUNDS; round++) {
    await();
    CK(cudaStreamWaitEvent(s, theirs, 0));
    step<<<N / 256, 256, 0, s>>>(p, 5, 3);
    CK(cudaGetLastError());
    CK(cudaEventRecord(mine, s));
    turn();
  }
  CK(cudaStreamSynchronize(s));
  await();
  CK(cudaIpcCloseMemHandle(p));
}

static void first(pid_t child) {
  Names names;
  int *p;
  cudaEvent_t mine, theirs;
  cudaStream_t s;
  CK(cudaMalloc(&p, N * 4));
  CK(cudaMemset(p, 0, N * 4));
  CK(cudaDeviceSynchronize());
  CK(cudaEventCreateWithFlags(&mine, cudaEventDisableTiming | cudaEventInterprocess));
  CK(cudaIpcGetMemHandle(&names.memory, p));
  CK(cudaIpcGetEventHandle(&names.mine, mine));
  put(&names, sizeof names);
  take(&names.yours, sizeof names.yours);
  CK(cudaIpcOpenEventHandle(&theirs, names.yours));
  CK(cudaStreamCreate(&s));
  std::vector<int> want(N, 0), got(N);
  for (int round = 0; round < ROUNDS; round++) {
    step<<<N / 256, 256, 0, s>>>(p, round, 2);
    CK(cudaGetLastError());
    CK(cudaEventRecord(mine, s));
    turn();
    await();
    CK(cudaStreamWaitEvent(s, theirs, 0));
    for (int i = 0; i < N; i++) want[i] = (int)(((unsigned)want[i] * 2 + round + i % 7) * 3 + 5 + i % 7);
  }
  CK(cudaMemcpyAsync(got.data(), p, N * 4, cudaMemcpyDeviceToHost, s));
  CK(cudaStreamSynchronize(s));
  CHECK(got == want, "memory that two processes worked on");
  show("shared memory", got);
  turn();
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0, "the second process failed: %#x", status);
  CK(cudaFree(p));
}

int main() {
  int a[2], b[2];
  CHECK(!pipe(a) && !pipe(b), "pipes");
  pid_t child = fork(); // before anything of CUDA
  in = child ? b[0] : a[0];
  out = child ? a[1] : b[1];
  if (child) first(child);
  else second();
  return 0;
}
