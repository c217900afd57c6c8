#include "recorder.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct recorder recorder;
static struct scuda_device devices[3];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { CORE = 65535, MAPPED = 1 << 15 /* SCUDA_MAPPED */ };

static void keep(const struct command *c) {
  if (recorder.count == 1 << 16) abort();
  recorder.commands[recorder.count++] = memcpy(malloc(c->size), c, c->size);
}

/* What goes up ahead of the command at head is a command of the core itself. */
static void bring(uint64_t head, uint32_t server, uint64_t context, uint32_t only_flags) {
  struct scuda_mapped_upload u = {.position = head, .context = context, .server = server, .only_flags = only_flags};
  while (recorder.shared->mapped(&u)) {
    struct wire_copy_h2d m = {u.dst, u.bytes, u.stream, u.flags, 0};
    uint64_t size = sizeof(struct command) + sizeof m + ((u.bytes + 7) & ~7ull);
    struct command *c = calloc(1, size);
    *c = (struct command){.size = (uint32_t)size, .op = OP_COPY_H2D, .context = context, .thread = CORE};
    memcpy(c->payload, &m, sizeof m);
    memcpy(c->payload + sizeof m, u.data, u.bytes);
    keep(c);
    free(c);
  }
}

static void drain_locked(void) {
  struct scuda_shared *s = recorder.shared;
  uint64_t head = __atomic_load_n(&s->head, __ATOMIC_ACQUIRE), tail = __atomic_load_n(&s->tail, __ATOMIC_ACQUIRE);
  while (head < tail) {
    const struct command *c = (const struct command *)(s->ring + (head & (s->ring_size - 1)));
    if (c->size < 32 || c->size % 8 || c->seq != head) abort();
    if (c->flags & MAPPED) bring(head, 0, c->context, 0);
    keep(c);
    recorder.commands[recorder.count - 1]->flags &= (uint16_t)~MAPPED;
    head += c->size;
  }
  __atomic_store_n(&s->head, head, __ATOMIC_SEQ_CST);
  if (__atomic_exchange_n(&s->starved, 0, __ATOMIC_SEQ_CST))
    syscall(SYS_futex, &s->starved, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1 << 30, NULL, NULL, 0);
}

static void drain(void) {
  pthread_mutex_lock(&lock);
  drain_locked();
  pthread_mutex_unlock(&lock);
}

int32_t scuda_core_open(struct scuda_shared *s, struct scuda_boot *boot) {
  if (s->abi != SCUDA_CORE_ABI || s->server_base != s->client_base + 64 * s->client_slots) abort();
  recorder.shared = s;
  recorder.drain = drain;
  s->asleep = 1;
  boot->servers = 1;
  boot->driver_version = 13000;
  boot->device_count = 3;
  boot->devices = devices;
  for (int i = 0; i < 3; i++) {
    struct scuda_device *d = &devices[i];
    snprintf(d->name, sizeof d->name, "recorder %d", i);
    d->ordinal = i;
    for (int k = 0; k < 16; k++) d->uuid[k] = d->uuid_v1[k] = (uint8_t)(16 * i + k);
    snprintf(d->pci_bus_id, sizeof d->pci_bus_id, "0000:%02X:00.0", 0x1b + i);
    d->total_mem = 1ull << 36;
    for (int a = 0; a < 256; a++) d->attributes[a] = 1;
    const int32_t limits[] = {0, 1024, 1024, 1024, 64, 2147483647, 65535, 65535, 49152};
    memcpy(d->attributes, limits, sizeof limits);
    d->attributes[10] = 32;
    d->attributes[39] = 2048;
    d->attributes[16] = 100 + i;
    d->attributes[33] = 0x1b + i;
    d->attributes[34] = d->attributes[50] = 0;
    d->attributes[97] = 232448;
    d->attribute_result[200] = 1;
    d->priority_greatest = -5;
    d->ctx_api_version = 13000;
    for (int k = 0; k < 16; k++) d->limits[k] = 1000 + (uint64_t)k;
  }
  return 0;
}

void scuda_core_call(struct scuda_call *call) {
  pthread_mutex_lock(&lock);
  drain_locked();
  recorder.calls++;
  const struct command *mine = NULL;
  for (uint32_t i = recorder.count; i-- > 0 && !mine;)
    if (recorder.commands[i]->thread == call->thread &&
        recorder.commands[i]->seq + recorder.commands[i]->size == call->end) mine = recorder.commands[i];
  if (!mine || !(mine->flags & 1)) abort(); /* a call is for a command that asks for an answer */
  call->reply_len = 0;
  call->result = recorder.result;
  int32_t (*answer)(const struct command *, void *, uint32_t, uint32_t *) = recorder.answer;
  if (answer) call->result = answer(mine, call->reply, call->reply_cap, &call->reply_len);
  pthread_mutex_unlock(&lock);
}

int32_t scuda_core_bulk(uint32_t server, uint64_t end, const void *data, uint64_t bytes) {
  (void)server;
  drain();
  const struct command *c = recorder.commands[recorder.count - 1];
  if (c->seq + c->size != end || !(c->flags & 4) || (c->flags & 1)) abort();
  recorder.bulk_bytes = bytes;
  recorder.bulk_first = ((const uint8_t *)data)[0];
  recorder.bulk_last = ((const uint8_t *)data)[bytes - 1];
  return 0;
}

int32_t scuda_core_mapped(uint32_t server, uint64_t context, uint32_t only_flags) {
  pthread_mutex_lock(&lock);
  drain_locked();
  bring(recorder.shared->head, server, context, only_flags);
  pthread_mutex_unlock(&lock);
  return 0;
}

uint32_t scuda_core_transfer(void *dst, uint64_t bytes, uint32_t thread, uint32_t async) {
  (void)bytes;
  recorder.transfer_dst = dst;
  recorder.transfer_async = async;
  recorder.transfers++;
  return async ? 65536 + recorder.transfers : thread;
}

void scuda_core_pin(const void *p, uint64_t bytes) { (void)p, (void)bytes; }
void scuda_core_look(void) {}
uint32_t scuda_core_peer(uint32_t from, uint32_t to) { return (void)from, (void)to, 0; }
void scuda_core_peer_lost(uint32_t from, uint32_t to, uint32_t epoch) { (void)from, (void)to, (void)epoch; }
void scuda_core_figures(uint64_t n[4]) { (void)n; }
void scuda_core_send(uint64_t end) { (void)end; }
int32_t scuda_core_overlaps(const void *p, uint64_t bytes) { return (void)p, (void)bytes, recorder.overlaps; }
uint32_t scuda_core_source(uint32_t server, const void *src, uint64_t bytes) {
  return (void)server, (void)src, (void)bytes, ++recorder.sources;
}
uint64_t scuda_core_hostfn(uint32_t server, void *fn, void *user, uint64_t stream, uint32_t kind, uint32_t keep) {
  (void)server, (void)fn, (void)user, (void)stream, (void)kind;
  recorder.hostfn_keep = keep;
  return 100 + ++recorder.hostfns;
}
int32_t scuda_core_image(const void *image, uint64_t bytes, uint32_t device, uint32_t send, uint8_t hash[32],
                         uint64_t *sent, char *err, uint32_t err_cap) {
  (void)bytes, (void)device;
  recorder.images++;
  recorder.images_sent += send;
  *sent = 5 * send;
  memset(hash, 7, 32);
  snprintf(err, err_cap, "not an image");
  return memcmp(image, "good", 4) ? 200 : 0;
}
void scuda_core_close(void) {}
void scuda_core_log(int32_t level, const char *text) { (void)level, (void)text; }
