// Profiles in the orders of calls of three tools: cupti KERNELS TOOL LIBRARY, with TOOL kineto (PyTorch), xla (JAX),
// proton (Triton); again: what no tool does alone; early: from before cuInit; none: that there is no profile where
// nobody asks for one.
#include "cupti.h"

#include <sys/wait.h>
#include <unistd.h>

enum { N = 1 << 20, LAUNCHES = 200 };
static CUstream stream;
static CUfunction add;
static CUdeviceptr d;
static float *host;

static void work(int launches) {
  int n = 256;
  CK(cuMemcpyHtoDAsync(d, host, N * 4, stream));
  CK(cuMemsetD32Async(d, 7, 1024, stream));
  for (int i = 0; i < launches; i++) CK(LAUNCH(add, 2, 128, 0, stream, &d, &d, &d, &n));
  CK(cuMemcpyDtoHAsync(host, d, N * 4, stream));
  CK(cuStreamSynchronize(stream));
}

// ---- kineto: everything by records, operators by ids of its own ----

static uint64_t begin, end;

static void kineto(void) {
  subscriber_t s, other;
  uint32_t version = 0;
  size_t dropped = 1;
  CK(cuptiGetVersion(&version));
  CHECK(version >= 18, "version %u", version);
  CK(cuptiSubscribe(&s, NULL, NULL));
  WANT(cuptiSubscribe(&other, NULL, NULL), CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  CK(cuptiEnableCallback(1, s, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED));
  for (int round = 0; round < 3; round++) {
    static const uint32_t kinds[] = {
      CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET,
      CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_DRIVER,
      CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_OVERHEAD, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION};
    CK(cuptiActivityRegisterCallbacks(request, complete));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) CK(cuptiActivityEnable(kinds[i]));
    begin = real_time();
    CK(cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, 77));
    CK(cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1, 78));
    work(LAUNCHES);
    uint64_t last = 0;
    CK(cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1, &last));
    CHECK(last == 78, "popped %llu", (unsigned long long)last);
    CK(cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, NULL));
    WANT(cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, NULL), CUPTI_ERROR_QUEUE_EMPTY);
    CK(cuCtxSynchronize());
    end = real_time();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) CK(cuptiActivityDisable(kinds[i]));
    CHECK(buffers == 1, "%d buffers were asked for", buffers); // where none was, PyTorch does not flush
    CK(cuptiActivityFlushAll(1));
    CHECK(!buffers, "%d buffers did not come back", buffers);
    CK(cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped));
    CHECK(!dropped, "%zu records were lost", dropped);

    CHECK(of_kind(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == LAUNCHES, "%d kernels",
          of_kind(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
    CHECK(of_kind(CUPTI_ACTIVITY_KIND_MEMCPY) == 2, "%d copies", of_kind(CUPTI_ACTIVITY_KIND_MEMCPY));
    CHECK(of_kind(CUPTI_ACTIVITY_KIND_MEMSET) == 1, "%d memsets", of_kind(CUPTI_ACTIVITY_KIND_MEMSET));
    CHECK(of_kind(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION) == 2, "%d waits", of_kind(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION));
    int calls = of_kind(CUPTI_ACTIVITY_KIND_DRIVER);
    CHECK(calls == LAUNCHES + 5, "%d calls", calls);
    CHECK(of_kind(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) == 2 * (calls - 1), "%d external ids for %d calls",
          of_kind(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION), calls);

    // each kernel belongs to its call, begins behind the call's begin, and ends before the wait's end
    uint32_t stream_id = 0;
    uint64_t waited = 0, before = 0;
    CK(cuptiGetStreamIdEx(NULL, stream, 0, &stream_id));
    EACH(CUpti_ActivitySynchronization2, w, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION) {
      if (w->type == CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE) {
        waited = w->end;
        CHECK(w->streamId == stream_id, "waited for stream %u, not %u", w->streamId, stream_id);
      }
    }
    EACH(CUpti_ActivityKernel11, k, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      int found = 0, external = 0;
      CHECK(!strcmp((const char *)(uintptr_t)k->name, "vector_add"), "kernel %s", (const char *)(uintptr_t)k->name);
      CHECK(k->gridX == 2 && k->blockX == 128 && k->streamId == stream_id && k->deviceId == 0 && k->contextId,
            "grid %u, block %u, stream %u, device %u", k->gridX, k->blockX, k->streamId, k->deviceId);
      CHECK(begin <= k->start && k->start <= k->end && k->end <= waited && before <= k->start,
            "from %llu to %llu, waited until %llu", (unsigned long long)k->start, (unsigned long long)k->end,
            (unsigned long long)waited);
      before = k->end;
      EACH(CUpti_ActivityAPI, a, CUPTI_ACTIVITY_KIND_DRIVER) {
        if (a->correlationId != k->correlationId) continue;
        found++;
        CHECK(a->cbid == CBID_cuLaunchKernel && !a->returnValue && a->start <= k->start && a->start <= a->end,
              "call %u from %llu, its kernel from %llu", a->cbid, (unsigned long long)a->start,
              (unsigned long long)k->start);
      }
      EACH(CUpti_ActivityExternalCorrelation, x, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) {
        if (x->correlationId == k->correlationId)
          external += x->externalKind == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0 ? x->externalId == 77 :
                      10 * (x->externalId == 78);
      }
      CHECK(found == 1 && external == 11, "kernel of %u: %d calls, ids %d", k->correlationId, found, external);
    }
    EACH(CUpti_ActivityMemcpy6, m, CUPTI_ACTIVITY_KIND_MEMCPY) {
      int up = m->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
      CHECK(up || m->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH, "copy of kind %u", m->copyKind);
      CHECK(m->bytes == N * 4 && (up ? m->srcKind : m->dstKind) == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE &&
            (up ? m->dstKind : m->srcKind) == CUPTI_ACTIVITY_MEMORY_KIND_DEVICE &&
            m->flags == CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC && m->streamId == stream_id,
            "copy of %llu bytes, %u to %u, flags %u", (unsigned long long)m->bytes, m->srcKind, m->dstKind, m->flags);
      CHECK(begin <= m->start && m->start <= m->end && m->end <= end, "copied at another time");
    }
    EACH(CUpti_ActivityMemset4, m, CUPTI_ACTIVITY_KIND_MEMSET) {
      CHECK(m->bytes == 4096 && m->value == 7, "memset of %llu bytes to %u", (unsigned long long)m->bytes, m->value);
    }
    EACH(CUpti_ActivityOverhead3, o, CUPTI_ACTIVITY_KIND_OVERHEAD) {
      CHECK(o->start <= o->end, "an overhead that ends before it begins");
    }
    forget();
  }
  work(1);
  CK(cuptiActivityFlushAll(1));
  EACH(CUpti_ActivityKernel11, k, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) FAIL("a kernel that nobody asked for");
  // a program that gives no more buffers loses records, and is told
  limit_of_buffers = 0;
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_DRIVER));
  work(10);
  CK(cuptiActivityFlushAll(1));
  CK(cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped));
  CHECK(dropped >= 13, "%zu records were lost, want all", dropped);
  CK(cuptiUnsubscribe(s));
  CK(cuptiFinalize());
}

// ---- XLA: callbacks of driver calls, which say what a record's id means ----

static struct { uint64_t data; uint32_t id; int launches, others, wrong; char symbol[64]; } called;

static void driver_call(void *user, uint32_t domain, uint32_t id, const void *data) {
  const struct CUpti_CallbackData *c = data;
  uint64_t *mark = (uint64_t *)(uintptr_t)c->correlationData;
  if (domain != CUPTI_CB_DOMAIN_DRIVER_API || user != &called) {
    called.wrong++;
    return;
  }
  uint32_t context_id = 0, device = 1;
  if (cuptiGetContextId((CUcontext)(uintptr_t)c->context, &context_id) || context_id != c->contextUid ||
      cuptiGetDeviceId((CUcontext)(uintptr_t)c->context, &device) || device)
    called.wrong++;
  if (c->callbackSite == CUPTI_API_ENTER) {
    if (*mark || c->functionReturnValue) called.wrong++;
    *mark = called.data = c->correlationId;
    called.id = c->correlationId;
    return;
  }
  if (*mark != c->correlationId || called.id != c->correlationId || *(int *)(uintptr_t)c->functionReturnValue)
    called.wrong++;
  if (id == CBID_cuLaunchKernel) {
    const struct { uint64_t f; uint32_t grid[3], block[3], shared; uint64_t stream; } *p =
        (const void *)(uintptr_t)c->functionParams;
    called.launches++;
    if (p->grid[0] != 2 || p->block[0] != 128 || p->stream != (uint64_t)(uintptr_t)stream || !c->symbolName ||
        strcmp((const char *)(uintptr_t)c->symbolName, "vector_add") ||
        strcmp((const char *)(uintptr_t)c->functionName, "cuLaunchKernel"))
      called.wrong++;
  } else {
    called.others++;
  }
}

static void xla(void) {
  subscriber_t s;
  size_t bytes = sizeof(size_t), value = 1 << 20;
  const char *name = NULL;
  CK(cuptiSetThreadIdType(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM));
  CK(cuptiSubscribe(&s, driver_call, &called));
  static const uint32_t ids[] = {CBID_cuLaunchKernel, CBID_cuMemcpyHtoDAsync_v2, CBID_cuMemcpyDtoHAsync_v2,
                                 CBID_cuMemsetD32Async, CBID_cuStreamSynchronize};
  for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
    CK(cuptiEnableCallback(1, s, CUPTI_CB_DOMAIN_DRIVER_API, ids[i]));
  CK(cuptiActivitySetAttribute(0, &bytes, &value));
  CK(cuptiActivityRegisterCallbacks(request, complete));
  CK(cuptiActivityFlushPeriod(100));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_KERNEL));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY2));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_OVERHEAD));
  uint64_t a = 0, b = 0;
  CK(cuptiGetTimestamp(&a));
  work(LAUNCHES);
  CK(cuptiGetTimestamp(&b));
  for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
    CK(cuptiEnableCallback(0, s, CUPTI_CB_DOMAIN_DRIVER_API, ids[i]));
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_KERNEL));
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_MEMCPY));
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_MEMSET));
  CK(cuptiActivityFlushAll(0));
  CK(cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, CBID_cuLaunchKernel, &name));
  CHECK(!strcmp(name, "cuLaunchKernel"), "named %s", name);
  CHECK(!called.wrong && called.launches == LAUNCHES && called.others == 4, "%d launches, %d others, %d wrong",
        called.launches, called.others, called.wrong);
  CHECK(of_kind(CUPTI_ACTIVITY_KIND_KERNEL) == LAUNCHES && of_kind(CUPTI_ACTIVITY_KIND_MEMCPY) == 2 &&
        of_kind(CUPTI_ACTIVITY_KIND_MEMSET) == 1 && count - of_kind(CUPTI_ACTIVITY_KIND_OVERHEAD) == LAUNCHES + 3,
        "%d records, %d kernels", count,
        of_kind(CUPTI_ACTIVITY_KIND_KERNEL));
  EACH(CUpti_ActivityKernel11, k, CUPTI_ACTIVITY_KIND_KERNEL) {
    CHECK(a <= k->start && k->end <= b && k->correlationId, "a kernel outside of the profile");
  }
  CK(cuptiUnsubscribe(s));
  CK(cuptiFinalize());
}

// ---- proton: callbacks around launches, an id of its own for each, the clock its own ----

static uint64_t ticks(void) { return real_time() / 3 + 1000; } // a clock that runs at another speed
static int resources, waits;

static void launch_call(void *user, uint32_t domain, uint32_t id, const void *data) {
  const struct CUpti_CallbackData *c = data;
  if (domain == CUPTI_CB_DOMAIN_RESOURCE) resources++;
  else if (domain == CUPTI_CB_DOMAIN_SYNCHRONIZE) waits++;
  else if (c->callbackSite == CUPTI_API_ENTER)
    cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, c->correlationId + 1000);
  else cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, NULL);
}

static void *flusher(void *stop) {
  while (!__atomic_load_n((int *)stop, __ATOMIC_SEQ_CST)) CK(cuptiActivityFlushAll(0));
  return NULL;
}

static void proton(void) {
  subscriber_t s;
  pthread_t thread;
  int stop = 0;
  CK(cuptiActivityRegisterTimestampCallback(ticks));
  CK(cuptiActivityRegisterCallbacks(request, complete));
  CK(cuptiSubscribe(&s, launch_call, NULL));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_DRIVER));
  CK(cuptiEnableCallback(1, s, CUPTI_CB_DOMAIN_DRIVER_API, CBID_cuLaunchKernel));
  CK(cuptiEnableDomain(1, s, CUPTI_CB_DOMAIN_RESOURCE));
  CK(cuptiEnableDomain(1, s, CUPTI_CB_DOMAIN_SYNCHRONIZE));
  uint64_t a = ticks();
  CUstream other;
  CK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CK(cuStreamDestroy(other));
  CHECK(!pthread_create(&thread, NULL, flusher, &stop), "no thread");
  for (int i = 0; i < 20; i++) work(LAUNCHES); // while another thread flushes
  uint64_t b = ticks();
  __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
  pthread_join(thread, NULL);
  CK(cuptiActivityFlushAll(1));
  CHECK(resources == 2 && waits == 20, "%d resources, %d waits", resources, waits);
  CHECK(of_kind(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == 20 * LAUNCHES, "%d kernels",
        of_kind(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  CHECK(of_kind(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) == 20 * LAUNCHES, "%d external ids",
        of_kind(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION));
  EACH(CUpti_ActivityExternalCorrelation, x, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) {
    CHECK(x->externalId == x->correlationId + 1000, "id %llu of call %u", (unsigned long long)x->externalId,
          x->correlationId);
  }
  EACH(CUpti_ActivityKernel11, k, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    CHECK(a <= k->start && k->start <= k->end && k->end <= b + 1,
          "a kernel from %llu to %llu, profiled from %llu to %llu", (unsigned long long)k->start,
          (unsigned long long)k->end, (unsigned long long)a, (unsigned long long)b);
  }
  WANT(cuptiActivityConfigurePCSampling(NULL, NULL), CUPTI_ERROR_NOT_SUPPORTED);
  WANT(cuptiActivityConfigurePCSampling(NULL, NULL), CUPTI_ERROR_NOT_SUPPORTED);
  WANT(cuptiProfilerInitialize(NULL), CUPTI_ERROR_NOT_SUPPORTED);
  CK(cuptiUnsubscribe(s));
  CK(cuptiFinalize());
}

// ---- what no tool does alone: graphs, many records, a forked child, an end and a new beginning ----

static void graphs(void) {
  CUgraph g;
  CUgraphExec x;
  int n = 256, kernels_in = 0;
  CK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  for (int i = 0; i < 3; i++) CK(LAUNCH(add, 2, 128, 0, stream, &d, &d, &d, &n));
  CK(cuStreamEndCapture(stream, &g));
  CK(cuGraphInstantiateWithFlags(&x, g, 0));
  CK(cuptiActivityRegisterCallbacks(request, complete));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_DRIVER));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  for (int i = 0; i < 5; i++) CK(cuGraphLaunch(x, stream));
  CK(cuStreamSynchronize(stream));
  CK(cuptiActivityFlushAll(1));
  EACH(CUpti_ActivityAPI, a, CUPTI_ACTIVITY_KIND_DRIVER) {
    if (a->cbid != CBID_cuGraphLaunch) continue;
    uint64_t nodes[3] = {0};
    int found = 0;
    EACH(CUpti_ActivityKernel11, k, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      if (k->correlationId != a->correlationId) continue;
      CHECK(found < 3 && k->graphNodeId && k->start >= a->start, "a node %llu", (unsigned long long)k->graphNodeId);
      for (int i = 0; i < found; i++) CHECK(nodes[i] != k->graphNodeId, "two kernels of one node");
      nodes[found++] = k->graphNodeId;
    }
    CHECK(found == 3, "%d kernels of a launch", found);
    kernels_in += found;
  }
  CHECK(kernels_in == 15 && of_kind(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == 15, "%d kernels in graphs", kernels_in);
  forget();
  CK(cuptiFinalize());
}

static void many(void) {
  enum { MANY = 30000 };
  int n = 1;
  size_t dropped = 1;
  CK(cuptiActivityRegisterCallbacks(request, complete));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  for (int i = 0; i < MANY; i++) CK(LAUNCH(add, 1, 1, 0, stream, &d, &d, &d, &n));
  CK(cuStreamSynchronize(stream));
  CK(cuptiActivityFlushAll(1));
  CK(cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped));
  CHECK(count == MANY && !dropped, "%d records of %d kernels, %zu lost", count, MANY, dropped);
  uint64_t before = 0;
  EACH(CUpti_ActivityKernel11, k, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    CHECK(k->start >= before, "record %d begins before the one before it ends", i_);
    before = k->end;
  }
  forget();
}

// A capture that forks and joins, of whose streams nobody may ask the driver: beside callbacks alone, and beside
// records of waits.
static void captures(void) {
  for (int records = 0; records < 2; records++) {
    subscriber_t s;
    CUstream beside;
    CUevent forked, joined;
    CUgraph g;
    CK(cuptiSubscribe(&s, NULL, NULL));
    CK(cuptiEnableCallback(1, s, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED));
    if (records) CK(cuptiActivityRegisterCallbacks(request, complete));
    if (records) CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION));
    CK(cuStreamCreate(&beside, CU_STREAM_NON_BLOCKING));
    CK(cuEventCreate(&forked, CU_EVENT_DISABLE_TIMING));
    CK(cuEventCreate(&joined, CU_EVENT_DISABLE_TIMING));
    CK(cuStreamBeginCapture(beside, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CK(cuEventRecord(forked, beside));
    CK(cuStreamWaitEvent(stream, forked, 0));
    CK(cuEventRecord(joined, stream));
    CK(cuStreamWaitEvent(beside, joined, 0));
    CK(cuStreamEndCapture(beside, &g));
    CK(cuGraphDestroy(g));
    CK(cuEventDestroy(forked));
    CK(cuEventDestroy(joined));
    CK(cuStreamDestroy(beside));
    if (records) CK(cuptiActivityFlushAll(1));
    CHECK(of_kind(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION) == 2 * records && count == 2 * records, "%d records", count);
    CK(cuptiUnsubscribe(s));
    CK(cuptiFinalize());
    forget();
  }
}

// A buffer is asked for when something is switched on, and behind a flush with the next record alone: PyTorch drops
// what a flush gave it where it has given no buffer since. Behind that flush it switches off one kind after the other.
static void asks(void) {
  CK(cuptiActivityRegisterCallbacks(request, complete));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_DRIVER));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_OVERHEAD));
  CHECK(buffers == 1, "%d buffers were asked for", buffers);
  CK(cuptiActivityFlushAll(0));
  CHECK(!buffers, "%d buffers behind a flush", buffers);
  work(1);
  CHECK(buffers == 1, "%d buffers where there are records", buffers);
  CK(cuptiActivityFlushAll(0));
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_DRIVER));
  CK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_OVERHEAD));
  work(1);
  CHECK(!buffers, "%d buffers where nothing is recorded", buffers);
  CK(cuptiFinalize());
  forget();
}

static void again(void) {
  subscriber_t s;
  asks();
  captures();
  graphs();
  many(); // and goes on recording while a child is forked
  pid_t child = fork();
  CHECK(child >= 0, "%s", strerror(errno));
  if (!child) { // whose calls are not recorded, and which has no session
    uint32_t id;
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
    cuptiGetContextId(NULL, &id);
    cuptiActivityFlushAll(1);
    cuptiFinalize();
    _exit(cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && !status, "the child ended with %x", status);
  work(10);
  CK(cuptiActivityFlushAll(1));
  CHECK(of_kind(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == 10, "%d kernels beside a child",
        of_kind(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  CK(cuptiFinalize());
  forget();
  work(10);
  CHECK(!count, "%d records after the end", count);
  // single functions, and a subscription anew
  CK(cuptiSubscribe(&s, launch_call, NULL));
  CK(cuptiActivityRegisterCallbacks(request, complete));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_DRIVER));
  CK(cuptiActivityEnableDriverApi(CBID_cuLaunchKernel, 0));
  work(10);
  CK(cuptiActivityFlushAll(1));
  CHECK(of_kind(CUPTI_ACTIVITY_KIND_DRIVER) == 4 && count == 4, "%d calls, %d records",
        of_kind(CUPTI_ACTIVITY_KIND_DRIVER), count);
  EACH(CUpti_ActivityAPI, a, CUPTI_ACTIVITY_KIND_DRIVER) CHECK(a->cbid != CBID_cuLaunchKernel, "a launch");
  WANT(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_PC_SAMPLING), CUPTI_ERROR_NOT_SUPPORTED);
  WANT(cuptiActivityEnable(1000), CUPTI_ERROR_INVALID_KIND);
  WANT(cuptiEnableCallback(1, NULL, CUPTI_CB_DOMAIN_RESOURCE, 1), CUPTI_ERROR_INVALID_PARAMETER);
  CK(cuptiUnsubscribe(s));
  CK(cuptiFinalize());
}

// Recording that begins before there is a session: contexts are seen as they are made.
static void early(void) {
  subscriber_t s;
  CK(cuptiSubscribe(&s, launch_call, NULL));
  CK(cuptiEnableCallback(1, s, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED));
  CK(cuptiActivityRegisterCallbacks(request, complete));
  CK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
}

static void late(void) {
  CHECK(resources == 1, "%d contexts were made", resources);
  work(10);
  CK(cuptiActivityFlushAll(1));
  CHECK(of_kind(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == 11, "%d kernels",
        of_kind(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  CK(cuptiFinalize());
}

int main(int argc, char **argv) {
  CHECK(argc > 3, "cupti KERNELS TOOL LIBRARY");
  open_cupti(argv[3], RTLD_NOW);
  if (!strcmp(argv[2], "early")) early();
  start(argc, argv);
  add = function(load("kernels.ptx"), "vector_add");
  host = malloc(N * 4);
  memset(host, 0, N * 4);
  CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CK(cuMemAlloc(&d, N * 4));
  work(1);
  if (!strcmp(argv[2], "kineto")) kineto();
  else if (!strcmp(argv[2], "xla")) xla();
  else if (!strcmp(argv[2], "proton")) proton();
  else if (!strcmp(argv[2], "again")) again();
  else if (!strcmp(argv[2], "early")) late();
  work(1);
  printf("%s: right\n", argv[2]);
  return 0;
}
