// NCCL by name, as programs load it that are not linked with it, and elements of its types.
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

enum { MOST = 1 << 20 }; // bytes of a buffer

typedef struct { char internal[128]; } ncclUniqueId;
typedef struct ncclComm *ncclComm_t;
enum { ncclSuccess, ncclUnhandledCudaError, ncclSystemError, ncclInternalError, ncclInvalidArgument, ncclInvalidUsage,
       ncclRemoteError };
enum { ncclInt8, ncclUint8, ncclInt32, ncclUint32, ncclInt64, ncclUint64, ncclFloat16, ncclFloat32, ncclFloat64,
       ncclBfloat16 };
enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg };

#define FUNCTIONS(F) \
  F(int, ncclGetVersion, (int *)) F(int, ncclGetUniqueId, (ncclUniqueId *)) \
  F(int, ncclCommInitRank, (ncclComm_t *, int, ncclUniqueId, int)) F(int, ncclCommFinalize, (ncclComm_t)) \
  F(int, ncclCommDestroy, (ncclComm_t)) F(int, ncclCommAbort, (ncclComm_t)) \
  F(int, ncclCommGetAsyncError, (ncclComm_t, int *)) F(int, ncclCommCount, (ncclComm_t, int *)) \
  F(int, ncclCommUserRank, (ncclComm_t, int *)) F(const char *, ncclGetErrorString, (int)) \
  F(const char *, ncclGetLastError, (ncclComm_t)) F(int, ncclGroupStart, (void)) F(int, ncclGroupEnd, (void)) \
  F(int, ncclAllReduce, (const void *, void *, size_t, int, int, ncclComm_t, CUstream)) \
  F(int, ncclBroadcast, (const void *, void *, size_t, int, int, ncclComm_t, CUstream)) \
  F(int, ncclReduce, (const void *, void *, size_t, int, int, int, ncclComm_t, CUstream)) \
  F(int, ncclAllGather, (const void *, void *, size_t, int, ncclComm_t, CUstream)) \
  F(int, ncclReduceScatter, (const void *, void *, size_t, int, int, ncclComm_t, CUstream)) \
  F(int, ncclSend, (const void *, size_t, int, int, ncclComm_t, CUstream)) \
  F(int, ncclRecv, (void *, size_t, int, int, ncclComm_t, CUstream))
#define LATER_FUNCTIONS(F) \
  F(int, ncclCommCuDevice, (ncclComm_t, int *)) \
  F(int, ncclCommSplit, (ncclComm_t, int, int, ncclComm_t *, void *)) \
  F(int, ncclAlltoAll, (const void *, void *, size_t, int, ncclComm_t, CUstream))
#define DECLARE(result, name, parameters) static result (*name) parameters;
FUNCTIONS(DECLARE)
LATER_FUNCTIONS(DECLARE)

static void *nccl_library;
static void *symbol(const char *name) { return dlsym(nccl_library, name); }
static void open_nccl(void) {
  nccl_library = dlopen("libnccl.so.2", RTLD_NOW);
  CHECK(nccl_library, "%s", dlerror());
#define FIND(result, name, parameters) name = symbol(#name);
  FUNCTIONS(FIND)
  LATER_FUNCTIONS(FIND)
#define NEEDED(result, name, parameters) CHECK(name, "%s is missing", #name);
  FUNCTIONS(NEEDED)
}
#define NCCL(call) \
  do { \
    int got_ = (call); \
    if (got_) FAIL("%s: got %d (%s; %s)", #call, got_, ncclGetErrorString(got_), ncclGetLastError(NULL)); \
  } while (0)

static size_t size_of(int type) {
  static const uint8_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return sizes[type];
}
static int is_whole(int type) { return type <= ncclUint64; }

// Small values alone: their halves have few bits.
static void put(void *p, int type, size_t i, double v) {
  uint32_t w;
  float f = (float)v;
  int e;
  switch (type) {
  case ncclInt8: case ncclUint8: ((int8_t *)p)[i] = (int8_t)v; return;
  case ncclInt32: case ncclUint32: ((int32_t *)p)[i] = (int32_t)v; return;
  case ncclInt64: case ncclUint64: ((int64_t *)p)[i] = (int64_t)v; return;
  case ncclFloat32: ((float *)p)[i] = f; return;
  case ncclFloat64: ((double *)p)[i] = v; return;
  case ncclBfloat16: memcpy(&w, &f, 4); ((uint16_t *)p)[i] = (uint16_t)(w >> 16); return;
  default:
    f = frexpf(f, &e);
    ((uint16_t *)p)[i] = (uint16_t)(((e + 14) << 10) + (int)ldexpf(f, 11) - 1024);
  }
}
static double get(const void *p, int type, size_t i) {
  uint32_t w;
  float f;
  switch (type) {
  case ncclInt8: return ((const int8_t *)p)[i];
  case ncclUint8: return ((const uint8_t *)p)[i];
  case ncclInt32: return ((const int32_t *)p)[i];
  case ncclUint32: return ((const uint32_t *)p)[i];
  case ncclInt64: return (double)((const int64_t *)p)[i];
  case ncclUint64: return (double)((const uint64_t *)p)[i];
  case ncclFloat32: return ((const float *)p)[i];
  case ncclFloat64: return ((const double *)p)[i];
  }
  w = ((const uint16_t *)p)[i];
  if (type == ncclFloat16) return ldexp((double)((w & 1023) | 1024), (int)(w >> 10) - 25);
  w <<= 16;
  memcpy(&f, &w, 4);
  return f;
}

// Rank 0 makes an id and prints it, the others read it.
static ncclUniqueId meeting(int rank) {
  ncclUniqueId id;
  char line[2 * sizeof id + 2];
  if (!rank) {
    NCCL(ncclGetUniqueId(&id));
    for (size_t i = 0; i < sizeof id; i++) printf("%02x", (unsigned char)id.internal[i]);
    printf("\n");
    fflush(stdout);
  } else {
    CHECK(fgets(line, sizeof line, stdin), "no id");
    for (size_t i = 0; i < sizeof id; i++) sscanf(line + 2 * i, "%2hhx", (unsigned char *)&id.internal[i]);
  }
  return id;
}
