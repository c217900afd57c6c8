// Stands in for the CUPTI of CUDA 13.0: each flush is as if three calls had been made by the calling thread, two of
// which are called back for, and their work was over. FAILING: activities cannot be enabled.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*request_fn)(uint8_t **, size_t *, size_t *);
typedef void (*complete_fn)(void *, uint32_t, uint8_t *, size_t, size_t);
typedef void (*callback_fn)(void *, uint32_t, uint32_t, const void *);
static request_fn request;
static complete_fn complete;
static callback_fn callback;
static int kinds, calls;
static uint32_t correlation = 100;

int cuptiActivityRegisterCallbacks(request_fn r, complete_fn c) { return request = r, complete = c, 0; }
int cuptiActivityEnable(uint32_t kind) {
#ifdef FAILING
  return 35;
#endif
  return kinds++, kind == 51; // a trace of graphs is not asked for
}
int cuptiActivityDisable(uint32_t kind) { return kinds--, kind == 51; }
int cuptiSubscribe(void **s, callback_fn f, void *user) { return *s = &callback, callback = f, 0; }
int cuptiUnsubscribe(void *s) { return callback = NULL, calls = 0, s != &callback; }
int cuptiEnableCallback(uint32_t on, void *s, uint32_t domain, uint32_t id) {
  if (domain != 1 || !id || id > 806) return 1; // CUDA 13.0 has calls up to there
  return calls++, 0;
}
int cuptiActivityGetNumDroppedRecords(void *c, uint32_t s, size_t *n) { return *n = 0, 0; }
int cuptiGetGraphId(uint64_t g, uint32_t *n) { return *n = (uint32_t)g + 1, g == 66; }
int cuptiGetGraphExecId(uint64_t x, uint32_t *n) { return *n = (uint32_t)x + 2, 0; }
int cuptiGetGraphNodeId(uint64_t x, uint64_t *n) { return *n = x << 32 | 3, 0; }
int cuptiGetResultString(int r, const char **text) { return *text = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", 0; }

static void put32(uint8_t *r, int at, uint32_t v) { memcpy(r + at, &v, 4); }
static void put64(uint8_t *r, int at, uint64_t v) { memcpy(r + at, &v, 8); }

static void call(uint32_t id) { // both sites, of which the second says nothing new
  uint8_t data[72] = {0};
  put32(data, 64, id);
  if (callback) callback(NULL, 1, 307, data);
  put32(data, 0, 1);
  if (callback) callback(NULL, 1, 307, data);
}

enum { KERNEL = 208, COPY = 88, MEMSET = 88 }; // as CUDA 12.0 has them

int cuptiActivityFlushAll(uint32_t flag) {
  if (!kinds || !calls) return 0;
  uint8_t *b;
  size_t size, most;
  request(&b, &size, &most);
  memset(b, 0, KERNEL + COPY + MEMSET);
  uint8_t *k = b, *c = b + KERNEL, *m = c + COPY;
  call(++correlation);
  put32(k, 0, 10), put64(k, 16, 1000), put64(k, 24, 2000), put32(k, 40, 0), put32(k, 44, 1), put32(k, 48, 13);
  put32(k, 52, 4), put32(k, 56, 5), put32(k, 60, 6), put32(k, 64, 32), put32(k, 68, 2), put32(k, 72, 1);
  put32(k, 76, 48), put32(k, 80, 64), put32(k, 92, correlation), put64(k, 104, (uintptr_t)"a_kernel");
  k[6] = 17;
  put64(k, 144, 9), put32(k, 156, 8);
  call(++correlation);
  put32(c, 0, 1), c[4] = 1, c[5] = 2, c[6] = 3, put64(c, 8, 4096), put64(c, 16, 3000), put64(c, 24, 4000);
  put32(c, 36, 1), put32(c, 40, 13), put32(c, 44, correlation);
  put32(m, 0, 2), put32(m, 4, 5), put64(m, 8, 64), put64(m, 16, 5000), put64(m, 24, 6000);
  put32(m, 44, ++correlation); // of nobody
  complete(NULL, 0, b, size, KERNEL + COPY + MEMSET);
  return 0;
}

int cuptiActivityGetNextRecord(uint8_t *b, size_t valid, void **record) {
  static const int bytes[] = {[1] = COPY, [2] = MEMSET, [10] = KERNEL};
  uint8_t *next = b;
  if (*record) {
    uint32_t kind;
    memcpy(&kind, *record, 4);
    next = (uint8_t *)*record + bytes[kind];
  }
  if (next >= b + valid) return 12;
  *record = next;
  return 0;
}
