// Per-thread default streams: the _ptsz and _ptds forms, found by dlsym and by cuGetProcAddress with its flag, mean a
// stream of each thread. One thread's waits there for what another thread's writes, which would never come if both were
// one stream.
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>

struct forms { // with stream 0
  CUresult (*wait)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
  CUresult (*write)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
  CUresult (*synchronize)(CUstream);
  CUresult (*query)(CUstream);
  CUresult (*set)(CUdeviceptr, unsigned, size_t, CUstream);
  CUresult (*down)(void *, CUdeviceptr, size_t, CUstream);
  CUresult (*id)(CUstream, unsigned long long *);
  CUresult (*copy)(void *, CUdeviceptr, size_t);
};
static const struct { const char *name, *symbol; int version; } wanted[] = {
    {"cuStreamWaitValue32", "cuStreamWaitValue32_v2_ptsz", 12000},
    {"cuStreamWriteValue32", "cuStreamWriteValue32_v2_ptsz", 12000},
    {"cuStreamSynchronize", "cuStreamSynchronize_ptsz", 12000},
    {"cuStreamQuery", "cuStreamQuery_ptsz", 12000}, {"cuMemsetD32Async", "cuMemsetD32Async_ptsz", 12000},
    {"cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync_v2_ptsz", 12000},
    {"cuStreamGetId", "cuStreamGetId_ptsz", 12000}, {"cuMemcpyDtoH", "cuMemcpyDtoH_v2_ptds", 12000}};
enum { FORMS = sizeof wanted / sizeof *wanted };

static struct forms f;
static CUdeviceptr flag, data;
static pthread_barrier_t begun;
static unsigned long long ids[2];
static uint32_t seen;

static void *waits(void *unused) {
  CK(cuCtxSetCurrent(context));
  CK(f.id(NULL, &ids[0]));
  CK(f.wait(NULL, flag, 1, CU_STREAM_WAIT_VALUE_GEQ));
  CK(f.set(data, 77, 256, NULL));
  CHECK(f.query(NULL) == CUDA_ERROR_NOT_READY, "the stream does not wait");
  pthread_barrier_wait(&begun);
  CK(f.copy(&seen, data + 40, 4)); // of this thread's stream
  return NULL;
}

static void *writes(void *unused) {
  CK(cuCtxSetCurrent(context));
  CK(f.id(NULL, &ids[1]));
  pthread_barrier_wait(&begun);
  CHECK(f.query(NULL) == CUDA_SUCCESS, "another thread's work is on this thread's stream");
  CK(f.write(NULL, flag, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  CK(f.synchronize(NULL));
  return NULL;
}

static void run(const char *how) {
  pthread_t a, b;
  unsigned long long legacy, mine;
  CK(cuMemsetD32(flag, 0, 1));
  CK(cuMemsetD32(data, 0, 256));
  CK(cuCtxSynchronize());
  seen = 0;
  pthread_barrier_init(&begun, NULL, 2);
  CHECK(!pthread_create(&a, NULL, waits, NULL) && !pthread_create(&b, NULL, writes, NULL), "no threads");
  pthread_join(a, NULL);
  pthread_join(b, NULL);
  CK(cuStreamGetId(CU_STREAM_LEGACY, &legacy));
  CK(f.id(NULL, &mine));
  CHECK(ids[0] != legacy && ids[1] != legacy && mine != legacy, "a thread's stream is the legacy one");
  printf("%s: saw %u\n", how, seen);
}

int main(int argc, char **argv) {
  start(argc, argv);
  CK(cuMemAlloc(&flag, 4));
  CK(cuMemAlloc(&data, 1024));
  void *library = dlopen("libcuda.so.1", RTLD_NOW), **form = (void **)&f;
  for (int i = 0; i < FORMS; i++)
    if (!(form[i] = dlsym(library, wanted[i].symbol))) FAIL("no %s", wanted[i].symbol);
  run("by dlsym");
  for (int i = 0; i < FORMS; i++) {
    CUdriverProcAddressQueryResult found = -1;
    void *plain = NULL, *own = form[i];
    CK(cuGetProcAddress(wanted[i].name, &form[i], wanted[i].version, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
                        &found));
    CHECK(found == CU_GET_PROC_ADDRESS_SUCCESS && form[i] == own, "%s: status %d, another function", wanted[i].name,
          found);
    CK(cuGetProcAddress(wanted[i].name, &plain, wanted[i].version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found));
    CHECK(plain && plain != form[i], "%s: one function for both streams", wanted[i].name);
  }
  run("by cuGetProcAddress");
  return 0;
}
