/* Exercises the private tables of the library argv[1] after cuInit and prints what they say. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int rc;
static void *lib;
#define F(name, ...) ((rc(*)(__VA_ARGS__))dlsym(lib, #name))

static const uint64_t *table(const char *hex, rc *result) {
  uint8_t id[16];
  const void *t = (const void *)1;
  for (int i = 0; i < 16; i++) sscanf(hex + 2 * i, "%2hhx", &id[i]);
  *result = F(cuGetExportTable, const void **, const uint8_t *)(&t, id);
  return t == (const void *)1 ? NULL : t;
}

static const uint64_t *need(const char *hex) {
  rc r;
  const uint64_t *t = table(hex, &r);
  if (r || !t) { printf("table %s: %d\n", hex, r); exit(1); }
  return t;
}

static void sizes(char **ids, int n) {
  for (int i = 0; i < n; i++) {
    rc r;
    const uint64_t *t = table(ids[i], &r);
    if (!t) { printf("table %s: %d\n", ids[i], r); continue; }
    printf("table %s: %d size %" PRIu64 " null", ids[i], r, t[0] > 0x10000 ? 0 : t[0]);
    uint64_t words = t[0] > 0x10000 ? 4 : t[0] / 8;
    for (uint64_t k = 1; k < words; k++)
      if (!t[k]) printf(" %" PRIu64, k);
    printf("\n");
  }
}

static void integrity(void) {
  const uint64_t *cudart = need("6bd5fb6c5bf4e74a8987d93912fd9df9"), *t = need("d4082055bde6704b8d34ba123c66e1f2");
  rc (*check)(uint32_t, uint64_t, uint8_t *) = (rc(*)(uint32_t, uint64_t, uint8_t *))t[1];
  int driver = 0, count = 0;
  F(cuDriverGetVersion, int *)(&driver);
  F(cuDeviceGetCount, int *)(&count);
  static const uint32_t versions[] = {11080, 11081, 11082, 12042, 13002, 13003, 99999};
  for (unsigned i = 0; i < sizeof versions / sizeof *versions; i++) {
    uint8_t out[16] = {0};
    rc r = check(versions[i], 1790000000, out);
    printf("integrity %d %u %d %u %" PRIu64 " %" PRIu64 " %" PRIu64 " 1790000000 ", driver, versions[i], (int)getpid(),
           (uint32_t)pthread_self(),
           (uint64_t)(uintptr_t)cudart, (uint64_t)(uintptr_t)t, t[1]);
    for (int d = 0; d < count; d++) {
      uint8_t uuid[16];
      int domain, bus, device;
      F(cuDeviceGetUuid, uint8_t *, int)(uuid, d);
      F(cuDeviceGetAttribute, int *, int, int)(&domain, 50, d);
      F(cuDeviceGetAttribute, int *, int, int)(&bus, 33, d);
      F(cuDeviceGetAttribute, int *, int, int)(&device, 34, d);
      for (int k = 0; k < 16; k++) printf("%02x", uuid[k]);
      printf(",%d,%d,%d;", domain, bus, device);
    }
    printf(" %d ", r);
    for (int k = 0; k < 16; k++) printf("%02x", out[k]);
    printf("\n");
  }
}

static void *in_thread(void *unused) {
  (void)unused;
  integrity();
  return NULL;
}

static void hooks(void) {
  const uint64_t *t = need("a094798c2e742e7493f20800200c0a66");
  for (int slot = 2; slot <= 6; slot += 4) {
    uint32_t *flags = NULL;
    size_t n = 0, set = 0;
    ((void (*)(uint32_t **, size_t *))t[slot])(&flags, &n);
    for (size_t i = 0; i < n; i++) set += flags[i] != 0;
    printf("hooks %d: %zu entries, %zu set\n", slot, n, set);
  }
}

static char order[64];
static void *expect_ctx;
static void destroyed(void *ctx, void *key, void *value) {
  size_t n = strlen(order);
  if (ctx == expect_ctx && (char *)value == (char *)key + 1) snprintf(order + n, sizeof order - n, " %ld", (long)key);
  else snprintf(order + n, sizeof order - n, " wrong");
}

static void storage(void) {
  const uint64_t *t = need("c693336e1121df11a8c368f355d89593"), *cudart = need("6bd5fb6c5bf4e74a8987d93912fd9df9"),
  *tls = need("42d85a8123f6cb478298f6e78a3aecdc"),
                 *checks = need("263e88607cd2614392f6bbd5006dfa7e");
  rc (*put)(void *, void *, void *, void *) = (rc(*)(void *, void *, void *, void *))t[0];
  rc (*del)(void *, void *) = (rc(*)(void *, void *))t[1];
  rc (*get)(void **, void *, void *) = (rc(*)(void **, void *, void *))t[2];
  rc (*primary)(void **, int) = (rc(*)(void **, int))cudart[2];
  rc (*current)(void **) = (rc(*)(void **))tls[2];
  rc (*wrapped)(void *, uint32_t *, void **) = (rc(*)(void *, uint32_t *, void **))checks[2];
  void *v = (void *)5, *h = NULL, *seen = (void *)5, *same = NULL, *key = (void *)100;
  uint32_t flag = 9;
  unsigned api = 0, flags = 9;
  int active = 9;
  rc r1 = get(&v, NULL, key), r2 = put(NULL, key, key, NULL), r3 = del(NULL, key);
  printf("nothing current: get %d put %d delete %d, v %s\n", r1, r2, r3, v == (void *)5 ? "kept" : "written");
  r1 = current(&seen), r2 = wrapped(NULL, &flag, NULL);
  printf("tls without a context: %d %s; checks %d\n", r1, seen ? "set" : "NULL", r2);
  r1 = primary(&h, 0);
  printf("primary: %d %s\n", r1, h ? "set" : "NULL");
  F(cuDevicePrimaryCtxGetState, int, unsigned *, int *)(0, &flags, &active);
  printf("state: flags %u active %d\n", flags, active);
  int dev = -1;
  r1 = F(cuCtxSetCurrent, void *)(h), r2 = F(cuCtxGetApiVersion, void *, unsigned *)(h, &api),
      r3 = F(cuCtxGetDevice, int *)(&dev);
  printf("unretained: set %d api %d device %d/%d\n", r1, r2, r3, dev);
  seen = NULL;
  r1 = current(&seen), r2 = get(&v, NULL, key), r3 = put(NULL, key, key, NULL);
  printf("unretained: tls %d/%s get %d put %d\n", r1, seen == h ? "same" : "other", r2, r3);
  r1 = F(cuDevicePrimaryCtxRetain, void **, int)(&same, 0);
  printf("retain %d %s\n", r1, same == h ? "same" : "other");
  expect_ctx = h;
  r1 = get(&v, NULL, key), r2 = del(NULL, key);
  printf("absent: get %d delete %d, v %s\n", r1, r2, v == (void *)5 ? "kept" : "written");
  for (long k = 1; k <= 4; k++)
    printf("put %ld: %d\n", k, put(k % 2 ? NULL : h, (void *)k, (void *)(k + 1), (void *)destroyed));
  printf("again: %d", put(NULL, (void *)1, (void *)77, NULL));
  printf(" get %d", get(&v, h, (void *)1));
  printf(" value %ld\n", (long)v);
  printf("delete 3: %d\n", del(NULL, (void *)3));
  printf("null value: put %d", put(NULL, (void *)9, NULL, NULL));
  v = (void *)5;
  printf(" get %d", get(&v, NULL, (void *)9));
  printf(" %s\n", v ? "other" : "NULL");
  flag = 9;
  r1 = wrapped(NULL, &flag, NULL);
  printf("checks: %d flag %u slot3 %d\n", r1, flag, ((int (*)(void))checks[3])());
  r1 = F(cuDevicePrimaryCtxRelease_v2, int)(0);
  printf("release %d; destructors%s\n", r1, order);
  printf("minus one: get %d\n", get(&v, (void *)-1, key));
}

static void strangers(void) {
  const uint64_t *t = need("21318c60971432488ca641ff7324c8f2");
  printf("unknown slot: %d\n", ((rc(*)(int, int, int, int, int, int))t[20])(1, 2, 3, 4, 5, 6));
}

/* There only where the server's driver has it, which says what the answer is. */
static void fp8(void) {
  rc r;
  const uint64_t *t = table("cd3ea2c67076db4b882e52ae6c2d86f7", &r);
  printf("fp8: table %d", r);
  if (t) printf(" size %" PRIu64 " slot 1 %d", t[0], ((int (*)(int, int))t[1])(0, 7));
  printf("\n");
}

int main(int argc, char **argv) {
  pthread_t thread;
  lib = argc > 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (!lib) return 2;
  printf("before cuInit\n");
  sizes(argv + 2, argc - 2);
  const uint64_t *first = need(argv[2]);
  rc r = F(cuInit, unsigned)(0);
  printf("cuInit %d, table %s\n", r, need(argv[2]) == first ? "at the same place" : "moved");
  integrity();
  pthread_create(&thread, NULL, in_thread, NULL);
  pthread_join(thread, NULL);
  hooks();
  storage();
  strangers();
  fp8();
  return 0;
}
