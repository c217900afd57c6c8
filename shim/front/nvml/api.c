/* The NVML functions that are not plain forwarding: the mode, initialisation, error texts, event waits and the private
 * table. */
#define _GNU_SOURCE
#include "nvml/nvml.h"
#include "base/common.h"
#include "nvml/gen/nvml_gen.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT SCUDA_EXPORT

static void *real_library;

int nvml_mode(void) {
  static atomic_int decided = NVML_UNDECIDED;
  int mode = atomic_load_explicit(&decided, memory_order_acquire);
  if (mode != NVML_UNDECIDED) return mode;
  if (scuda_configured()) {
    mode = NVML_REMOTE;
  } else {
    void *lib = scuda_find_real("libnvidia-ml.so.1", "SCUDA_REAL_LIBNVML", (const void *)nvml_mode);
    mode = lib ? NVML_PASS : NVML_NO_DRIVER;
    if (lib) __atomic_store_n(&real_library, lib, __ATOMIC_RELEASE);
  }
  atomic_store_explicit(&decided, mode, memory_order_release);
  return mode;
}

void *nvml_real(const char *name) { return dlsym(__atomic_load_n(&real_library, __ATOMIC_ACQUIRE), name); }

static int init(uint32_t index, uint32_t flags, const uint64_t *args) {
  switch (nvml_mode()) {
  case NVML_PASS: return nvml_pass(index, args);
  case NVML_NO_DRIVER: return NVML_DRIVER_NOT_LOADED;
  default: return nvml_session_begin(flags);
  }
}

EXPORT int nvmlInit(void) { return init(NVML_INDEX_nvmlInit, 0, NULL); }
EXPORT int nvmlInit_v2(void) { return init(NVML_INDEX_nvmlInit_v2, 0, NULL); }

EXPORT int nvmlInitWithFlags(unsigned int flags) {
  uint64_t args[1] = {flags};
  return init(NVML_INDEX_nvmlInitWithFlags, flags, args);
}

EXPORT int nvmlShutdown(void) {
  switch (nvml_mode()) {
  case NVML_PASS: return nvml_pass(NVML_INDEX_nvmlShutdown, NULL);
  case NVML_NO_DRIVER: return NVML_UNINITIALIZED;
  default: return nvml_session_end();
  }
}

/* The server serves one call at a time, so a long wait is made of short ones between which other threads get their
 * turn. */
enum { SLICE_MS = 50 };
enum { EVENT_DATA = 16 };   /* eventData of nvmlEventData_t */

static int wait_event(uint32_t index, uint64_t set, void *data, uint32_t timeout) {
  uint64_t args[3] = {set, (uint64_t)(uintptr_t)data, timeout};
  if (nvml_mode() != NVML_REMOTE || !nvml_session_ready()) return nvml_call(index, args);
  if (set && data) memset((uint8_t *)data + EVENT_DATA, 0, 8);   /* also where nothing happens in time, as natively */
  for (uint32_t left = timeout;;) {
    args[2] = left < SLICE_MS ? left : SLICE_MS;
    int r = nvml_servers() > 1 ? nvml_wait_several(index, args) : nvml_call(index, args);
    left -= (uint32_t)args[2];
    if (r != NVML_TIMEOUT || left == 0) return r;
  }
}

EXPORT int nvmlEventSetWait(void *set, void *data, unsigned int timeout) {
  return wait_event(NVML_INDEX_nvmlEventSetWait, (uint64_t)(uintptr_t)set, data, timeout);
}

EXPORT int nvmlEventSetWait_v2(void *set, void *data, unsigned int timeout) {
  return wait_event(NVML_INDEX_nvmlEventSetWait_v2, (uint64_t)(uintptr_t)set, data, timeout);
}

/* nvmlSystemEventSetWaitRequest_v1_t */
struct system_wait { uint32_t version, timeout; void *set, *data; uint32_t room, events; };

EXPORT int nvmlSystemEventSetWait(void *request) {
  uint64_t args[1] = {(uint64_t)(uintptr_t)request};
  struct system_wait *w = request;
  if (nvml_mode() != NVML_REMOTE || !nvml_session_ready() || !w || w->version != (1u << 24 | sizeof *w))
    return nvml_call(NVML_INDEX_nvmlSystemEventSetWait, args);
  struct system_wait once = *w;
  args[0] = (uint64_t)(uintptr_t)&once;
  for (uint32_t left = w->timeout;;) {
    once.timeout = left < SLICE_MS ? left : SLICE_MS;
    int r = nvml_call(NVML_INDEX_nvmlSystemEventSetWait, args);
    left -= once.timeout;
    if (r == NVML_TIMEOUT && left != 0) continue;
    w->events = once.events;
    return r;
  }
}

/* nvmlGpmMetricsGet: its structure has room for as many metrics as the program's header says, so only those that are
 * asked for travel, and it points at strings, which are kept for good (they are few and always the same). */
struct gpm_metric { uint32_t id; int32_t result; double value; const char *text[3]; };
struct gpm_get { uint32_t version, count; uint64_t sample[2]; struct gpm_metric metrics[]; };
enum { GPM_MAX = 210 };   /* metrics in one call */

static const char *kept_text(const char *text, size_t bytes) {
  static struct kept { struct kept *next; char text[]; } *all;
  static scuda_lock_t lock;
  const char *found = NULL;
  scuda_lock(&lock);
  for (struct kept *k = all; k && !found; k = k->next)
    if (strcmp(k->text, text) == 0) found = k->text;
  if (!found) {
    struct kept *k = malloc(sizeof *k + bytes);
    if (k) {
      memcpy(k->text, text, bytes);
      k->next = all;
      all = k;
      found = k->text;
    }
  }
  scuda_unlock(&lock);
  return found;
}

/* Reads a counted string; -1 if the reply does not have it. */
static int take_text(const uint8_t *reply, uint32_t len, uint32_t *at, const char **text) {
  uint64_t n;
  if (len - *at < 8) return -1;
  memcpy(&n, reply + *at, 8);
  *at += 8;
  *text = NULL;
  if (n == 0) return 0;
  if (n > len - *at || reply[*at + n - 1] != 0 || ((n + 7) & ~(uint64_t)7) > len - *at) return -1;
  *text = kept_text((const char *)reply + *at, n);
  *at += (uint32_t)((n + 7) & ~(uint64_t)7);
  return 0;
}

/* The text of the server's driver, asked for once a code; NULL where that has none. */
static const char *remote_error_text(int result) {
  enum { CODES = 64 };
  static const char *asked[CODES + 1];
  if (result < 0 || (result >= CODES && result != NVML_UNKNOWN)) return NULL;
  const char **slot = &asked[result < CODES ? result : CODES], *text = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
  if (text) return text;
  uint64_t req = (uint64_t)result;
  uint8_t reply[520];
  uint32_t got = 0, at = 0;
  if (nvml_exchange(0, NVML_OP_nvmlErrorString, &req, sizeof req, reply, sizeof reply, &got) != NVML_OK ||
      take_text(reply, got, &at, &text) != 0) return NULL;
  if (text) __atomic_store_n(slot, text, __ATOMIC_RELEASE);
  return text;
}

EXPORT const char *nvmlErrorString(int result) {
  const char *text = NULL;
  if (nvml_mode() == NVML_PASS) {
    const char *(*fn)(int) = (const char *(*)(int))(uintptr_t)nvml_real("nvmlErrorString");
    if (fn) return fn(result);
  }
  if (nvml_mode() == NVML_REMOTE && nvml_session_ready()) text = remote_error_text(result);
  if (!text && result >= 0 && (uint32_t)result < nvml_error_count) text = nvml_error_names[result];
  return text ? text : "Unknown Error";
}

static int take_metrics(const uint8_t *reply, uint32_t len, struct gpm_get *get) {
  uint32_t at = 0;
  for (uint32_t k = 0; k < get->count; k++) {
    struct gpm_metric *m = &get->metrics[k];
    uint64_t result;
    if (len - at < 16) return -1;
    memcpy(&result, reply + at, 8);
    memcpy(&m->value, reply + at + 8, 8);
    m->result = (int32_t)result;
    at += 16;
    for (int t = 0; t < 3; t++)
      if (take_text(reply, len, &at, &m->text[t]) != 0) return -1;
  }
  return 0;
}

static int remote_metrics(struct gpm_get *get) {
  enum { REPLY = 1 << 18 };
  uint64_t req[4 + GPM_MAX / 2];
  if (!get || get->count > GPM_MAX) return NVML_INVALID_ARGUMENT;
  req[0] = get->version;
  req[1] = get->count;
  for (int k = 0; k < 2; k++) {
    int r = nvml_handle_to_wire(get->sample[k], NVML_KIND_nvmlGpmSample_t, &req[2 + k], &(struct nvml_route){0});
    if (r) return r;
  }
  uint32_t home = 0;
  if (nvml_servers() > 1) {   /* what a sample holds is on the server of the GPU that it was taken of */
    home = nvml_sample_home(req[2]);
    if (nvml_sample_home(req[3]) != home) return NVML_INVALID_ARGUMENT;
    for (int k = 2; k < 4; k++)
      if (home != 0) req[k] = nvml_deputy(NVML_KIND_nvmlGpmSample_t, req[k], home);
  }
  size_t words = 4 + (get->count + 1) / 2;
  if (get->count) req[words - 1] = 0;
  for (uint32_t k = 0; k < get->count; k++) memcpy((uint8_t *)(req + 4) + 4 * k, &get->metrics[k].id, 4);
  uint8_t *reply = malloc(REPLY);
  if (!reply) return NVML_MEMORY;
  uint32_t got = 0;
  int r = nvml_exchange(home, NVML_OP_nvmlGpmMetricsGet, req, (uint32_t)(8 * words), reply, REPLY, &got);
  if (r == NVML_OK && take_metrics(reply, got, get) != 0) {
    scuda_log(SCUDA_ERROR,
              "nvmlGpmMetricsGet: the server's reply does not have the promised form; NVML_ERROR_GPU_IS_LOST");
    r = NVML_GPU_IS_LOST;
  }
  free(reply);
  return r;
}

EXPORT int nvmlGpmMetricsGet(void *get) {
  uint64_t args[1] = {(uint64_t)(uintptr_t)get};
  if (nvml_mode() != NVML_REMOTE) return nvml_call(NVML_INDEX_nvmlGpmMetricsGet, args);
  return nvml_session_ready() ? remote_metrics(get) : NVML_UNINITIALIZED;
}

/* The private table of nvidia-smi: its size in bytes, then functions. Those of its slots whose parameters are known are
 * carried out by the server. */
#define TABLE_BYTES 2160u
#define TABLE_MAX 65536u
static const uint8_t smi_table[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e,
                                      0x12, 0xf7, 0xc4};

static int private_slot(void) { return NVML_NOT_SUPPORTED; }

/* Calls a slot of the server's table with a device's or an index's number and room for so much. */
static int call_slot(uint32_t server, uint64_t slot, uint64_t which, uint64_t room, void *reply, uint32_t cap,
                     uint32_t *got) {
  uint64_t req[6] = {16, 0, 0, slot, which, room};
  memcpy(req + 1, smi_table, 16);
  return nvml_exchange(server, NVML_OP_nvmlInternalGetExportTable, req, sizeof req, reply, cap, got);
}

/* A slot whose result is bytes: a number, or a text of at most `room` bytes. */
static int bytes_slot(uint32_t server, uint64_t slot, uint64_t which, void *to, uint32_t room) {
  enum { MOST = 4096 };
  uint64_t reply[1 + MOST / 8], n;
  uint32_t got = 0;
  if (!to || room == 0) return NVML_INVALID_ARGUMENT;
  if (room > MOST) room = MOST;
  int r = call_slot(server, slot, which, room, reply, sizeof reply, &got);
  if (r != NVML_OK) return r;
  n = got < 8 ? 0 : reply[0];
  if (n == 0 || n > got - 8) return NVML_GPU_IS_LOST;
  memcpy(to, reply + 1, n < room ? n : room);
  return NVML_OK;
}

static int device_slot(uint64_t slot, const void *device, void *to, uint32_t room) {
  struct nvml_route route = {0};
  uint64_t id;
  int r = nvml_handle_to_wire((uint64_t)(uintptr_t)device, NVML_KIND_nvmlDevice_t, &id, &route);
  return r ? r : bytes_slot(route.server, slot, id, to, room);
}

/* What processes used since a time, in samples of SAMPLE bytes; without a place for them there is only their number. */
static int slot_145(const void *device, uint64_t since, uint32_t *type, uint32_t *count, void *to) {
  enum { SAMPLE = 488, MOST = 1024 };
  uint64_t id, room = to && count ? *count : 0, n;
  uint32_t got = 0;
  struct nvml_route route = {0};
  if (!count || !type) return NVML_INVALID_ARGUMENT;
  int r = nvml_handle_to_wire((uint64_t)(uintptr_t)device, NVML_KIND_nvmlDevice_t, &id, &route);
  if (r) return r;
  if (room > MOST) room = MOST;
  uint64_t req[7] = {16, 0, 0, 145, id, room, since}, size = 16 + room * SAMPLE;
  memcpy(req + 1, smi_table, 16);
  uint8_t *reply = malloc(size);
  if (!reply) return NVML_MEMORY;
  r = nvml_exchange(route.server, NVML_OP_nvmlInternalGetExportTable, req, sizeof req, reply, (uint32_t)size, &got);
  if (got >= 16) {
    memcpy(&n, reply, 8);
    memcpy(type, reply + 8, sizeof *type);
    if (r == NVML_OK && room) {
      if (n > (got - 16) / SAMPLE) n = (got - 16) / SAMPLE;
      memcpy(to, reply + 16, n * SAMPLE);
    }
    *count = (uint32_t)n;
  }
  free(reply);
  return r;
}

/* An entry of a process list: numbers (the pid first), then the command in a buffer of its own. */
struct slot_process { uint8_t numbers[32]; char command[4096]; };

static int process_slot(uint64_t slot, const void *device, uint32_t *count, struct slot_process *to) {
  enum { REPLY = 1 << 20 };
  uint64_t id, n;
  uint32_t got = 0, at = 8;
  struct nvml_route route = {0};
  if (!count) return NVML_INVALID_ARGUMENT;
  int r = nvml_handle_to_wire((uint64_t)(uintptr_t)device, NVML_KIND_nvmlDevice_t, &id, &route);
  if (r) return r;
  uint8_t *reply = malloc(REPLY);
  if (!reply) return NVML_MEMORY;
  uint32_t room = to ? *count : 0, filled = 0;
  r = call_slot(route.server, slot, id, room < 1024 ? room : 1024, reply, REPLY, &got);
  if (got >= 8) {
    memcpy(&n, reply, 8);
    for (uint64_t k = 0; r == NVML_OK && k < n && k < room; k++) {
      uint64_t length;
      if (got - at < 40) break;
      memcpy(&length, reply + at + 32, 8);
      if (length >= sizeof to->command || length > got - at - 40) break;
      memcpy(to[k].numbers, reply + at, 32);
      memcpy(to[k].command, reply + at + 40, length);
      to[k].command[length] = 0;
      filled++;
      at += 40 + (uint32_t)((length + 7) & ~(uint64_t)7);
      if (at > got) at = got;
    }
    *count = r == NVML_OK ? filled : (uint32_t)n;   /* the program reads so many, whatever the server said */
  }
  free(reply);
  return r;
}

#define VALUE_SLOT(n) static int slot_##n(const void *device, uint32_t *to) { return device_slot(n, device, to, 4); }
#define TEXT_SLOT(n) \
  static int slot_##n(const void *device, char *to, uint32_t room) { return device_slot(n, device, to, room); }
#define PROCESS_SLOT(n) \
  static int slot_##n(const void *device, uint32_t *count, struct slot_process *to) { \
    return process_slot(n, device, count, to); \
  }
VALUE_SLOT(72) VALUE_SLOT(230) VALUE_SLOT(232) VALUE_SLOT(249)
TEXT_SLOT(231) TEXT_SLOT(237)
PROCESS_SLOT(213) PROCESS_SLOT(214) PROCESS_SLOT(215)

static int slot_81(uint32_t index, char *to, uint32_t room) {
  uint32_t server = nvml_server_of(&index);
  return bytes_slot(server, 81, index, to, room);
}

static void fill_table(uint64_t *words, uint64_t bytes) {
  for (size_t k = 1; k < bytes / 8; k++) words[k] = (uint64_t)(uintptr_t)private_slot;
  if (bytes != TABLE_BYTES) return;   /* another driver's table: its slots may be other functions */
#define SLOT(n) words[n] = (uint64_t)(uintptr_t)slot_##n;
  SLOT(72) SLOT(81) SLOT(145) SLOT(213) SLOT(214) SLOT(215) SLOT(230) SLOT(231) SLOT(232) SLOT(237) SLOT(249)
}

static int remote_table(const void **table, const uint8_t *uuid) {
  static uint64_t words[TABLE_MAX / 8];
  static scuda_lock_t lock;
  static atomic_int told;
  if (!table || !uuid) return NVML_INVALID_ARGUMENT;
  if (memcmp(uuid, smi_table, 16) != 0) {
    if (!atomic_exchange(&told, 1)) {
      char hex[33];
      for (int k = 0; k < 16; k++) snprintf(hex + 2 * k, 3, "%02x", uuid[k]);
      scuda_log(SCUDA_WARN, "nvmlInternalGetExportTable: unknown table %s; NVML_ERROR_NOT_FOUND. Please report it",
                hex);
    }
    return NVML_NOT_FOUND;
  }
  scuda_lock(&lock);
  if (words[0] == 0) {
    uint64_t bytes = 0;
    if (nvml_table_size(uuid, &bytes) != NVML_OK || bytes < 16 || bytes > TABLE_MAX || bytes % 8 != 0)
      bytes = TABLE_BYTES;
    fill_table(words, bytes);
    words[0] = bytes;
  }
  scuda_unlock(&lock);
  *table = words;
  return NVML_OK;
}

EXPORT int nvmlInternalGetExportTable(const void **table, const unsigned char *uuid) {
  uint64_t args[2] = {(uint64_t)(uintptr_t)table, (uint64_t)(uintptr_t)uuid};
  switch (nvml_mode()) {
  case NVML_PASS: return nvml_pass(NVML_INDEX_nvmlInternalGetExportTable, args);
  case NVML_NO_DRIVER: return NVML_UNINITIALIZED;
  default: return remote_table(table, uuid);
  }
}
