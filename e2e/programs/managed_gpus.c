// Unified memory that two GPUs and the CPU use in turn, whichever was current when it was made: kernels, hints, copies
// to and from the plain memory of either GPU. With one GPU there is nothing to do.
#include "managed.h"

enum { N = 1 << 20 };

static CUdevice device[2];
static CUcontext on[2];
static CUstream stream[2];
static CUfunction mixers[2];
static unsigned char *made[2], model[2]; // made where each GPU was current; what all bytes of it are

static void work(int d, unsigned char *m, size_t from, size_t n, unsigned a, unsigned b) { // of GPU d, in its stream
  CK(cuCtxSetCurrent(on[d]));
  mixer = mixers[d];
  mix_in(stream[d], m, from, n, a, b);
}
static void finished(void) {
  for (int d = 0; d < 2; d++) {
    CK(cuCtxSetCurrent(on[d]));
    CK(cuCtxSynchronize());
  }
}
static void compare(const unsigned char *m, size_t n, unsigned want, const char *what) {
  for (size_t i = 0; i < n; i++)
    CHECK(m[i] == (unsigned char)want, "%s: byte %zu is %d, not %d", what, i, m[i], (unsigned char)want);
}

static void turns(void) { // each GPU works on what either made; the CPU looks, and writes now and then
  for (unsigned round = 0; round < 12; round++) {
    int d = round & 1, which = round >> 1 & 1;
    work(d, made[which], 0, N, 3, round);
    model[which] = (unsigned char)(model[which] * 3 + round);
    if (round % 3) CK(cuCtxSynchronize());
    else finished(); // and the other's context is current when the CPU looks
    compare(made[which], N, model[which], "in turn");
    if (round % 4 == 1) memset(made[!which], model[!which] = (unsigned char)(round * 7), N);
  }
}

static void relay(void) { // both work on one range, each after the other, and nobody looks meanwhile
  CUevent done[2];
  for (int d = 0; d < 2; d++) {
    CK(cuCtxSetCurrent(on[d]));
    CK(cuEventCreate(&done[d], CU_EVENT_DISABLE_TIMING));
  }
  memset(made[1], model[1] = 1, N);
  for (int i = 0; i < 20; i++) {
    int d = i & 1;
    CK(cuCtxSetCurrent(on[d]));
    if (i) CK(cuStreamWaitEvent(stream[d], done[!d], 0));
    work(d, made[1], 0, N, 3, (unsigned)i);
    model[1] = (unsigned char)(model[1] * 3 + i);
    CK(cuEventRecord(done[d], stream[d]));
  }
  CK(cuEventSynchronize(done[1]));
  compare(made[1], N, model[1], "one after the other");
  finished();
  for (int d = 0; d < 2; d++) CK(cuEventDestroy(done[d]));
}

static void halves(void) { // at the same time, each in its own part, which divide a page between them
  enum { SPLIT = N / 2 + 1001 };
  for (unsigned round = 0; round < 3; round++) {
    memset(made[0], 5, N);
    work(0, made[0], 0, SPLIT, 2, round);
    work(1, made[0], SPLIT, N - SPLIT, 3, round);
    finished();
    compare(made[0], SPLIT, 10 + round, "the first GPU's part");
    compare(made[0] + SPLIT, N - SPLIT, 15 + round, "the second GPU's part");
  }
  memset(made[0], model[0] = 5, N);
}

static int attribute(CUmem_range_attribute what, const unsigned char *m) {
  int value = 99;
  CK(cuMemRangeGetAttribute(&value, 4, what, dev(m), N));
  return value;
}

static void hints(void) { // change nothing but what is asked about them
  static const int places[] = {1, 0, -1, 1, -1, 0};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    int to = places[i] < 0 ? CU_DEVICE_CPU : device[places[i]], d = (int)i & 1;
    for (int which = 0; which < 2; which++) {
      CK(cuCtxSetCurrent(on[d])); // the stream of one GPU, the place of any
      CK(prefetch(dev(made[which]), N, to, stream[d]));
      CHECK(attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, made[which]) == to, "last prefetch %d, not %d",
            attribute(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, made[which]), to);
      work(d, made[which], 0, N, 5, (unsigned)i);
      model[which] = (unsigned char)(model[which] * 5 + i);
      CK(cuStreamSynchronize(stream[d]));
      compare(made[which], N, model[which], "after a prefetch");
    }
  }
  finished();
  for (int which = 0; which < 2; which++) {
    CUdeviceptr p = dev(made[which]);
    int both[3];
    CK(advise(p, N, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device[!which]));
    CK(advise(p, N, CU_MEM_ADVISE_SET_ACCESSED_BY, device[0]));
    CK(advise(p, N, CU_MEM_ADVISE_SET_ACCESSED_BY, device[1]));
    CHECK(attribute(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, made[which]) == device[!which], "preferred location");
    CK(cuMemRangeGetAttribute(both, sizeof both, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, p, N));
    CHECK(both[0] == device[0] && both[1] == device[1] && both[2] == CU_DEVICE_INVALID, "accessed by %d %d %d", both[0],
          both[1], both[2]);
    for (int d = 0; d < 2; d++) {
      work(d, made[which], 0, N, 7, 1);
      model[which] = (unsigned char)(model[which] * 7 + 1);
      CK(cuStreamSynchronize(stream[d]));
      compare(made[which], N, model[which], "where another place is preferred");
    }
    CK(advise(p, N, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, device[0]));
    CK(advise(p, N, CU_MEM_ADVISE_UNSET_ACCESSED_BY, device[0]));
    CK(advise(p, N, CU_MEM_ADVISE_UNSET_ACCESSED_BY, device[1]));
    CK(advise(p, N, CU_MEM_ADVISE_SET_READ_MOSTLY, device[0]));
    CHECK(attribute(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, made[which]) == 1, "read mostly");
    for (int d = 0; d < 2; d++) { // both read it, then one writes
      CK(cuCtxSetCurrent(on[d]));
      CK(cuMemcpyDtoDAsync(dev(made[!which]), p, N, stream[d]));
      CK(cuStreamSynchronize(stream[d]));
      compare(made[!which], N, model[!which] = model[which], "a copy of what is read mostly");
      compare(made[which], N, model[which], "what is read mostly");
      work(d, made[which], 0, N, 3, 2);
      model[which] = (unsigned char)(model[which] * 3 + 2);
      CK(cuStreamSynchronize(stream[d]));
      compare(made[which], N, model[which], "what is read mostly and was written");
    }
    CK(advise(p, N, CU_MEM_ADVISE_UNSET_READ_MOSTLY, device[0]));
  }
}

static void copies(void) { // between unified memory and the plain memory of either GPU
  for (int which = 0; which < 2; which++) {
    for (int d = 0; d < 2; d++) {
      unsigned char *m = made[which];
      CUdeviceptr plain;
      CK(cuCtxSetCurrent(on[d]));
      CK(cuMemAlloc(&plain, N));
      CK(cuMemsetD8(plain, 0, N));
      memset(m, model[which] = (unsigned char)(20 + 2 * which + d), N);
      CK(cuMemcpyPeer(plain, on[d], dev(m), on[which], N));
      CK(cuMemsetD8(dev(m), 0, N));
      CK(cuCtxSynchronize()); // the other GPU's stream waits for none of this
      CK(cuCtxSetCurrent(on[!d])); // whichever is current
      CK(cuMemcpyPeerAsync(dev(m), on[which], plain, on[d], N / 2, stream[!d]));
      CK(cuMemcpyDtoDAsync(dev(m) + N / 2, plain + N / 2, N / 2, stream[!d]));
      CK(cuStreamSynchronize(stream[!d]));
      compare(m, N, model[which], "there and back");
      m[N - 1]++;
      CUDA_MEMCPY3D_PEER copy;
      memset(&copy, 0, sizeof copy);
      copy.srcMemoryType = CU_MEMORYTYPE_DEVICE, copy.srcDevice = dev(m), copy.srcContext = on[which],
          copy.srcPitch = 1024, copy.srcHeight = N / 1024;
      copy.dstMemoryType = CU_MEMORYTYPE_DEVICE, copy.dstDevice = plain, copy.dstContext = on[d], copy.dstPitch = 1024,
          copy.dstHeight = N / 1024;
      copy.WidthInBytes = 1024, copy.Height = N / 1024, copy.Depth = 1;
      CK(cuMemcpy3DPeer(&copy));
      unsigned char last[2];
      CK(cuMemcpyDtoH(last, plain + N - 2, 2));
      CHECK(last[0] == model[which] && last[1] == model[which] + 1, "a copy: %d %d", last[0], last[1]);
      m[N - 1]--;
      CK(cuMemFree(plain));
    }
  }
}

static void pointers(void) { // where it was made is what is told of it
  for (int which = 0; which < 2; which++) {
    int ordinal = -1, type = -1;
    unsigned is = 0;
    CUcontext owner = NULL;
    CUdeviceptr p = dev(made[which]) + 5;
    CK(cuCtxSetCurrent(on[!which]));
    CK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
    CK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    CK(cuPointerGetAttribute(&is, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
    CK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    printf("made at GPU %d: ordinal %d, context of it: %d, managed %u, type %d\n", which, ordinal, owner == on[which],
           is & 1, type);
  }
}

int main(int argc, char **argv) {
  start(argc, argv);
  int count;
  CK(cuDeviceGetCount(&count));
  if (count < 2) {
    puts("one GPU");
    return 0;
  }
  for (int d = 0; d < 2; d++) {
    CK(cuDeviceGet(&device[d], d));
    CK(cuDevicePrimaryCtxRetain(&on[d], device[d]));
    CK(cuCtxSetCurrent(on[d]));
    CK(cuStreamCreate(&stream[d], CU_STREAM_NON_BLOCKING));
    mixers[d] = function(load("managed.ptx"), "mix");
    made[d] = managed(N);
    memset(made[d], model[d] = 1, N);
  }
  turns();
  relay();
  halves();
  hints();
  copies();
  pointers();
  for (int d = 0; d < 2; d++) {
    CK(cuCtxSetCurrent(on[d]));
    release(made[!d]); // where the other's is current
    CK(cuDevicePrimaryCtxRelease(device[d]));
  }
  puts("two GPUs");
  return 0;
}
