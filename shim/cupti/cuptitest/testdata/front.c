// The front's table for a profiler, with a server in it that has a clock of its own.
#include "front.h"

#include <string.h>
#include <time.h>

static const struct scuda_profiler *profiler;
static uint32_t flags[1024], delay_to, delay_back;
static int64_t skew;
static double drift;
static uint64_t began;
static struct wire_profile_record list[4096];
static uint32_t count, given;

uint64_t front_real(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void front_spin(uint64_t until) {
  while (front_real() < until) {
  }
}

static uint64_t server_clock(uint64_t real) {
  return real + (uint64_t)skew + (uint64_t)(int64_t)((double)(int64_t)(real - began) * drift);
}

void front_server(int64_t ns, double rate, uint32_t to, uint32_t back) {
  began = front_real();
  skew = ns;
  drift = rate;
  delay_to = to;
  delay_back = back;
  count = given = 0;
}

void front_work(uint32_t correlation, uint32_t stream, uint64_t start, uint64_t end) {
  list[count++ % 4096] = (struct wire_profile_record){
    .kind = WIRE_PROFILE_KERNELS, .correlation = correlation, .stream = stream, .context = 1, .name = 1,
    .start = server_clock(start), .end = server_clock(end), .grid = {1, 1, 1}, .block = {1, 1, 1}};
}

const struct scuda_profiler *front_profiler(void) { return profiler; }

static int32_t serves(void) { return 2; }
static int32_t attach(const struct scuda_profiler *p) { return profiler = p, 0; }
static uint32_t *hooks(uint32_t *n) { return *n = 1024, flags; }
static int32_t control(uint32_t kinds, uint32_t *kept, uint64_t *now) {
  *kept = kinds;
  *now = server_clock(front_real());
  return 0;
}

static uint64_t monotonic(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int32_t read_work(void *to, uint32_t bytes, uint32_t all, uint32_t *got, struct scuda_profile_times *times) {
  static const struct wire_profile_name name = {1, 8};
  struct wire_profile_records head = {0};
  uint8_t *p = to;
  times->sent = monotonic();
  front_spin(front_real() + delay_to * 1000);
  uint64_t came = front_real();
  if (bytes > sizeof head + 1024) { /* names are sent with each answer, which is allowed */
    head.names = 1;
    head.records = count - given;
    memcpy(p + sizeof head, &name, sizeof name);
    memcpy(p + sizeof head + sizeof name, "a_kernel", 8);
    memcpy(p + sizeof head + sizeof name + 8, &list[given], head.records * sizeof *list);
    given = count;
  }
  head.now = server_clock(front_real());
  head.held = (uint32_t)(head.now - server_clock(came));
  memcpy(p, &head, sizeof head);
  *got = (uint32_t)(sizeof head + (head.names ? sizeof name + 8 + head.records * sizeof *list : 0));
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

int cuGetExportTable(const void **table, const void *id) {
  static const struct scuda_profile_table t = {sizeof t, serves, attach, hooks, control, read_work, numbers, kernel,
                                               memory, objects, message};
  static const uint8_t ours[16] = SCUDA_PROFILE_ID;
  if (memcmp(id, ours, 16)) return 1;
  *table = &t;
  return 0;
}
