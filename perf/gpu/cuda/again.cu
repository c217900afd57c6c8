// nvcc: -lcuda
// cudaDeviceReset and everything again; contexts that were made current before anybody retained them; wait and write of
// values; batches of them; loading mode; user objects; capture of all modes.
#include "check.cuh"
#include <cuda.h>

__global__ void add(int *p, int n) { *p += n; }
__device__ int counter = 5;
static int destroyed;

static void once(int n) {
  int *p, v, c;
  CK(cudaMalloc(&p, 4));
  CK(cudaMemset(p, 0, 4));
  add<<<1, 1>>>(p, n);
  CK(cudaMemcpy(&v, p, 4, cudaMemcpyDeviceToHost));
  CK(cudaMemcpyFromSymbol(&c, counter, 4));
  c += n;
  CK(cudaMemcpyToSymbol(counter, &c, 4));
  printf("round %d: %d, counter %d\n", n, v, c);
}

static void values() {
  CUstream s;
  CUdeviceptr p;
  unsigned v[4];
  cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
  cuMemAlloc(&p, 64);
  cuMemsetD8(p, 0, 64);
  cuCtxSynchronize(); // the stream is not ordered behind it
  printf("write %d", cuStreamWriteValue32(s, p, 7, 0));
  printf(" wait %d", cuStreamWaitValue32(s, p, 7, CU_STREAM_WAIT_VALUE_EQ));
  printf(" write64 %d", cuStreamWriteValue64(s, p + 8, 0x100000002ull, 0));
  printf(" wait64 %d", cuStreamWaitValue64(s, p + 8, 0x100000000ull, CU_STREAM_WAIT_VALUE_GEQ));
  CUstreamBatchMemOpParams ops[2] = {};
  ops[0].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  ops[0].waitValue.address = p, ops[0].waitValue.value = 7, ops[0].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  ops[1].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  ops[1].writeValue.address = p + 4, ops[1].writeValue.value = 9,
      ops[1].writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  printf(" batch %d", cuStreamBatchMemOp(s, 2, ops, 0));
  printf(" synchronize %d\n", cuStreamSynchronize(s));
  cuMemcpyDtoH(v, p, 16);
  printf("values %u %u %u %u\n", v[0], v[1], v[2], v[3]);
  cuMemFree(p);
  cuStreamDestroy(s);
}

int main() {
  for (int i = 1; i <= 3; i++) {
    once(i);
    CK(cudaDeviceReset());
  }
  CUcontext c, current;
  CUdevice d;
  cuInit(0);
  cuDeviceGet(&d, 0);
  cuDevicePrimaryCtxRetain(&c, d);
  cuDevicePrimaryCtxRelease(d);
  printf("set %d", cuCtxSetCurrent(c));
  printf(" current %d", cuCtxGetCurrent(&current) || current != c);
  CUdeviceptr p;
  printf(" allocate %d\n", cuMemAlloc(&p, 4));
  once(4);
  values();
  CUmoduleLoadingMode mode;
  printf("mode %d", cuModuleGetLoadingMode(&mode));
  printf(" %d\n", mode);

  CUuserObject o;
  CUgraph g;
  CUgraphExec x;
  cuUserObjectCreate(&o, &destroyed, [](void *p) { ++*(int *)p; }, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  cuGraphCreate(&g, 0);
  printf("retain %d", cuGraphRetainUserObject(g, o, 1, CU_GRAPH_USER_OBJECT_MOVE));
  printf(" instantiate %d", cuGraphInstantiate(&x, g, 0));
  cuGraphDestroy(g);
  cuCtxSynchronize();
  printf(" destroyed %d", destroyed);
  cuGraphExecDestroy(x);
  cuCtxSynchronize();
  for (int i = 0; i < 1000000 && !*(volatile int *)&destroyed; i++) cuCtxSynchronize();
  printf(" %d\n", destroyed);

  for (CUstreamCaptureMode m
       : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    CUstream s;
    CUdeviceptr q = 0;
    cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
    printf("mode %d: begin %d", m, cuStreamBeginCapture(s, m));
    CUresult r = cuMemAlloc(&q, 4);
    cuuint64_t id;
    CUstreamCaptureStatus status;
    cuStreamGetCaptureInfo(s, &status, &id, nullptr, nullptr, nullptr, nullptr);
    printf(" unsafe call %d status %d", r, status);
    printf(" end %d\n", cuStreamEndCapture(s, &g));
    cuStreamDestroy(s);
  }
  CUstreamCaptureMode exchange = CU_STREAM_CAPTURE_MODE_RELAXED;
  printf("exchange %d", cuThreadExchangeStreamCaptureMode(&exchange));
  printf(" was %d", exchange);
  exchange = (CUstreamCaptureMode)3;
  printf(" wrong %d\n", cuThreadExchangeStreamCaptureMode(&exchange));
  return 0;
}
