/* A core that answers by itself (see ../../base/core.h): it takes the commands off the ring and gives every synchronous
 * call the same answer. FAKECORE_DEVICES (1), FAKECORE_DRIVER (13000), FAKECORE_RESULT (0), FAKECORE_FP8 (none) and
 * FAKECORE_REPLY=none|zeros|noise say what. With FAKECORE_WILD=1 unified memory can be allocated, and is touched by
 * another thread while the server is told of it, and while it is told of its end. */
#define _GNU_SOURCE
#include "../../base/core.h"
#include "../../gen/wire_gen.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct scuda_shared *shared;
static struct scuda_device devices[4];
static uint64_t noise_state = 88172645463325252ull;

static long setting(const char *name, long otherwise) {
  const char *s = getenv(name);
  return s && *s ? strtol(s, NULL, 10) : otherwise;
}

static uint8_t noise(void) {
  noise_state ^= noise_state << 13;
  noise_state ^= noise_state >> 7;
  noise_state ^= noise_state << 17;
  return (uint8_t)noise_state;
}

static void drain(void) {
  __atomic_store_n(&shared->head, __atomic_load_n(&shared->tail, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
}

int32_t scuda_core_open(struct scuda_shared *s, struct scuda_boot *boot) {
  shared = s;
  boot->servers = 1;
  boot->driver_version = (int32_t)setting("FAKECORE_DRIVER", 13000);
  boot->device_count = (int32_t)setting("FAKECORE_DEVICES", 1);
  boot->devices = devices;
  strcpy(boot->server, "fake:1");
  for (int i = 0; i < 4; i++) {
    struct scuda_device *d = &devices[i];
    strcpy(d->name, "fake GPU");
    d->ordinal = i;
    for (int k = 0; k < 16; k++) d->uuid[k] = d->uuid_v1[k] = (uint8_t)(16 * i + k);
    strcpy(d->pci_bus_id, "0000:1B:00.0");
    d->total_mem = 1ull << 36;
    d->has_fp8 = setting("FAKECORE_FP8", -1) >= 0;
    d->fp8 = (int32_t)setting("FAKECORE_FP8", 0);
    d->attributes[1] = d->attributes[2] = d->attributes[3] = 1024;   /* threads in a block, block dimensions */
    d->attributes[4] = 64;
    d->attributes[5] = 2147483647;                                  /* grid dimensions */
    d->attributes[6] = d->attributes[7] = 65535;
    d->attributes[8] = 49152;
    d->attributes[10] = 32;
    d->attributes[33] = 0x1b + i;                                   /* PCI bus, device, domain */
    d->attributes[34] = i;
    d->attributes[50] = 2 * i;
    d->attributes[41] = 1;
    d->attributes[75] = 9;
    d->priority_greatest = -5;
    d->ctx_api_version = 13000;
  }
  return 0;
}

/* ---- accesses of unified memory that the program does not have ---- */

static __thread sigjmp_buf back;
static void on_fault(int number) { siglongjmp(back, number); }

static void *touch(void *address) {
  const char *what = "is memory";
  int fault = sigsetjmp(back, 1);
  if (!fault) (void)*(volatile char *)address;
  else what = fault == SIGSEGV ? "faults" : "is another fault";
  return (void *)what;
}

static void wild(const char *when, uint64_t address) {
  pthread_t thread;
  void *what = "waits for ever";
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 5;
  pthread_create(&thread, NULL, touch, (void *)(uintptr_t)address);
  pthread_timedjoin_np(thread, &what, &until);
  printf("%s: an access %s\n", when, (const char *)what);
}

static void answer_managed(struct scuda_call *c) {
  enum { HEADER = 32 };
  static int handled; /* before the library's own handler */
  if (!handled++) sigaction(SIGSEGV, &(struct sigaction){.sa_handler = on_fault, .sa_flags = SA_NODEFER}, NULL);
  struct wire_host_map m; /* host_unmap is the same */
  uint16_t op;
  const uint8_t *command = shared->ring + ((c->end - sizeof m - HEADER) & (shared->ring_size - 1));
  memcpy(&op, command + 4, 2);
  memcpy(&m, command + HEADER, sizeof m);
  if (op == OP_HOST_MAP) {
    wild("before it is there", m.address);
    *(struct wire_global_info *)c->reply = (struct wire_global_info){.address = m.address, .bytes = m.bytes};
    c->reply_len = c->reply_cap;
  } else if (op == OP_HOST_UNMAP) {
    wild("after it has gone", m.address);
  }
}

void scuda_core_call(struct scuda_call *c) {
  const char *mode = getenv("FAKECORE_REPLY");
  drain();
  c->result = (int32_t)setting("FAKECORE_RESULT", 0);
  c->reply_len = 0;
  if (setting("FAKECORE_WILD", 0)) answer_managed(c);
  if (!mode || !strcmp(mode, "none") || !c->reply) return;
  c->reply_len = c->reply_cap;
  for (uint32_t k = 0; k < c->reply_cap; k++) ((uint8_t *)c->reply)[k] = strcmp(mode, "noise") ? 0 : noise();
}

int32_t scuda_core_bulk(uint32_t server, uint64_t end, const void *data, uint64_t bytes) {
  (void)server, (void)end, (void)data, (void)bytes;
  drain();
  return 0;
}

int32_t scuda_core_mapped(uint32_t server, uint64_t context, uint32_t only_flags) {
  (void)server, (void)context, (void)only_flags;
  drain();
  return 0;
}

uint32_t scuda_core_transfer(void *dst, uint64_t bytes, uint32_t thread, uint32_t async) {
  static uint32_t next = 65536;
  (void)dst, (void)bytes;
  return async ? __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) : thread;
}

void scuda_core_pin(const void *p, uint64_t bytes) { (void)p, (void)bytes; }
void scuda_core_look(void) {}
uint32_t scuda_core_peer(uint32_t from, uint32_t to) { return (void)from, (void)to, 0; }
void scuda_core_peer_lost(uint32_t from, uint32_t to, uint32_t epoch) { (void)from, (void)to, (void)epoch; }
void scuda_core_figures(uint64_t n[4]) { (void)n; }
void scuda_core_send(uint64_t end) { (void)end; }
int32_t scuda_core_overlaps(const void *p, uint64_t bytes) { return (void)p, (void)bytes, 0; }
uint32_t scuda_core_source(uint32_t server, const void *src, uint64_t bytes) {
  return (void)server, (void)src, (void)bytes, 1;
}

uint64_t scuda_core_hostfn(uint32_t server, void *fn, void *user, uint64_t stream, uint32_t kind, uint32_t keep) {
  return (void)server, (void)fn, (void)user, (void)stream, (void)kind, (void)keep, 1;
}

int32_t scuda_core_image(const void *image, uint64_t bytes, uint32_t device, uint32_t send, uint8_t hash[32],
                         uint64_t *sent, char *err, uint32_t err_cap) {
  (void)image, (void)bytes, (void)device, (void)send;
  *sent = 0;
  memset(hash, 7, 32);
  if (err_cap) *err = 0;
  return 0;
}

void scuda_core_close(void) {}
void scuda_core_log(int32_t level, const char *text) { (void)level, (void)text; }
