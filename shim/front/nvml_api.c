/* The NVML functions that are not plain forwarding: the mode, initialisation, error texts, event waits and the private table. */
#define _GNU_SOURCE
#include "nvml.h"
#include "common.h"
#include "gen/nvml_gen.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define EXPORT SCUDA_EXPORT

static void *real_library;

int nvml_mode(void) {
  static atomic_int decided = NVML_UNDECIDED;
  int mode = atomic_load_explicit(&decided, memory_order_acquire);
  if (mode != NVML_UNDECIDED) return mode;
  char server[320];
  if (scuda_server(server, sizeof server)) {
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

EXPORT const char *nvmlErrorString(int result) {
  if (nvml_mode() == NVML_PASS) {
    const char *(*fn)(int) = (const char *(*)(int))(uintptr_t)nvml_real("nvmlErrorString");
    if (fn) return fn(result);
  }
  const char *text = NULL;
  if (result >= 0 && (uint32_t)result < nvml_error_count) text = nvml_error_names[result];
  return text ? text : "Unknown Error";
}

/* The server serves one call at a time, so a long wait is made of short ones between which other threads get their turn. */
static int wait_event(uint32_t index, uint64_t set, void *data, uint32_t timeout) {
  enum { SLICE_MS = 50 };
  uint64_t args[3] = {set, (uint64_t)(uintptr_t)data, timeout};
  if (nvml_mode() != NVML_REMOTE || !nvml_session_ready()) return nvml_call(index, args);
  for (uint32_t left = timeout;;) {
    args[2] = left < SLICE_MS ? left : SLICE_MS;
    int r = nvml_call(index, args);
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

/* The private table of nvidia-smi: its size in bytes, then functions, none of which is carried out. */
#define TABLE_BYTES 2160u
#define TABLE_MAX 65536u
static const uint8_t smi_table[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};

static int private_slot(void) { return NVML_NOT_SUPPORTED; }

static int remote_table(const void **table, const uint8_t *uuid) {
  static uint64_t words[TABLE_MAX / 8];
  static scuda_lock_t lock;
  static atomic_int told;
  if (!table || !uuid) return NVML_INVALID_ARGUMENT;
  if (memcmp(uuid, smi_table, 16) != 0) {
    if (!atomic_exchange(&told, 1)) {
      char hex[33];
      for (int k = 0; k < 16; k++) snprintf(hex + 2 * k, 3, "%02x", uuid[k]);
      scuda_log(SCUDA_WARN, "nvmlInternalGetExportTable: unknown table %s; NVML_ERROR_NOT_FOUND. Please report it", hex);
    }
    return NVML_NOT_FOUND;
  }
  scuda_lock(&lock);
  if (words[0] == 0) {
    uint64_t bytes = 0;
    if (nvml_table_size(uuid, &bytes) != NVML_OK || bytes < 16 || bytes > TABLE_MAX || bytes % 8 != 0) bytes = TABLE_BYTES;
    for (size_t k = 1; k < bytes / 8; k++) words[k] = (uint64_t)(uintptr_t)private_slot;
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
