// The front's table for a profiler, with servers in it that have clocks of their own.
#include "front.h"

#include <string.h>
#include <time.h>

static const struct scuda_profiler *profiler;
static uint32_t flags[1024], delay_to, delay_back;
static double drift;
static uint64_t began;
enum { SERVERS = 2, RECORDS = 4096 };
static struct server {
  int64_t skew;
  struct wire_profile_record list[RECORDS];
  uint32_t count, given, named;
} servers[SERVERS];
static uint32_t server_count;

uint64_t front_real(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void front_spin(uint64_t until) {
  while (front_real() < until) {
  }
}

static uint64_t server_clock(const struct server *s, uint64_t real) {
  return real + (uint64_t)s->skew + (uint64_t)(int64_t)((double)(int64_t)(real - began) * drift);
}

void front_server(const int64_t *ns, uint32_t n, double rate, uint32_t to, uint32_t back) {
  began = front_real();
  drift = rate;
  delay_to = to;
  delay_back = back;
  server_count = n;
  memset(servers, 0, sizeof servers);
  for (uint32_t i = 0; i < n; i++) servers[i].skew = ns[i];
}

void front_work(uint32_t server, uint32_t correlation, uint32_t stream, uint64_t start, uint64_t end) {
  struct server *s = &servers[server];
  s->list[s->count++ % RECORDS] = (struct wire_profile_record){
    .kind = WIRE_PROFILE_KERNELS, .correlation = correlation, .stream = stream, .context = 1, .name = 1,
    .device = server, .start = server_clock(s, start), .end = server_clock(s, end), .grid = {1, 1, 1},
    .block = {1, 1, 1}};
}

const struct scuda_profiler *front_profiler(void) { return profiler; }

static int32_t serves(void) { return 2; }
static int32_t attach(const struct scuda_profiler *p) { return profiler = p, 0; }
static uint32_t *hooks(uint32_t *n) { return *n = 1024, flags; }
static int next(uint32_t *server) { return ++*server < server_count; }
static int32_t control(uint32_t server, uint32_t kinds, uint32_t *kept, uint64_t *now) {
  *kept = kinds;
  *now = server_clock(&servers[server], front_real());
  servers[server].named = 0;
  return 0;
}

static uint64_t monotonic(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int32_t read_work(uint32_t server, void *to, uint32_t bytes, uint32_t all, uint32_t *got,
                         struct scuda_profile_times *times) {
  static const struct wire_profile_name name = {1, 8};
  struct server *s = &servers[server];
  struct wire_profile_records head = {0};
  uint8_t *p = to;
  times->sent = monotonic();
  front_spin(front_real() + delay_to * 1000);
  uint64_t came = front_real();
  uint32_t at = sizeof head;
  if (bytes > sizeof head + 1024) {
    head.records = s->count - s->given;
    head.names = head.records && !s->named; /* it is sent once */
    if (head.names) {
      memcpy(p + at, &name, sizeof name);
      memcpy(p + at + sizeof name, server ? "b_kernel" : "a_kernel", 8);
      at += sizeof name + 8;
      s->named = 1;
    }
    memcpy(p + at, &s->list[s->given], head.records * sizeof *s->list);
    at += head.records * (uint32_t)sizeof *s->list;
    s->given = s->count;
  }
  head.now = server_clock(s, front_real());
  head.held = (uint32_t)(head.now - server_clock(s, came));
  memcpy(p, &head, sizeof head);
  *got = at;
  front_spin(front_real() + delay_back * 1000);
  times->came = monotonic();
  return 0;
}

static void numbers(uint64_t context, uint64_t stream, uint32_t per_thread, struct scuda_profile_ids *ids) {
  *ids = (struct scuda_profile_ids){1, stream == UINT64_MAX ? 0 : (uint32_t)stream, 0};
}
static const char *kernel(uint64_t function) { return "a_kernel"; }
static uint32_t memory(uint64_t address, uint64_t *bytes) { return 0; }
static uint32_t objects(int streams, uint64_t *pairs, uint32_t most) { return 0; }
static void message(int32_t level, const char *text) {}
static int32_t number(uint32_t kind, uint64_t object, uint64_t *n) { return 1; }

int cuGetExportTable(const void **table, const void *id) {
  static const struct scuda_profile_table t = {sizeof t, serves, attach, hooks, control, read_work, numbers, kernel,
                                               memory, objects, message, number, next};
  static const uint8_t ours[16] = SCUDA_PROFILE_ID;
  if (memcmp(id, ours, 16)) return 1;
  *table = &t;
  return 0;
}
