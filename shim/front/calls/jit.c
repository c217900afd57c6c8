/* Options of the just-in-time compiler and linker: what travels, and the logs that come back. */
#define _GNU_SOURCE
#include "calls/jit.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { SYMBOLS_MAX = 4096, SYMBOL_BYTES_MAX = 1 << 19 };

/* The options that travel: values, and the sizes of the log buffers. Lists of what other code refers to only allow the
 * compiler to leave out the rest, so they stay here. */
int32_t scuda_jit_pairs(const struct scuda_jit *jit, struct scuda_pair *pairs, uint32_t *count,
                        struct scuda_symbols *s) {
  *s = (struct scuda_symbols){0};
  *count = 0;
  if (jit->count > SCUDA_PAIRS_MAX || (jit->count && (!jit->options || !jit->values))) return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t n = 0; n < jit->count; n++) {
    int32_t option = jit->options[n];
    uint64_t value = (uint64_t)(uintptr_t)jit->values[n];
    switch (option) {
    case CU_JIT_INFO_LOG_BUFFER:
    case CU_JIT_ERROR_LOG_BUFFER:
      if (!value) return CUDA_ERROR_INVALID_VALUE;
      continue;
    case CU_JIT_WALL_TIME:
    case CU_JIT_REFERENCED_KERNEL_NAMES:
    case CU_JIT_REFERENCED_KERNEL_COUNT:
    case CU_JIT_REFERENCED_VARIABLE_NAMES:
    case CU_JIT_REFERENCED_VARIABLE_COUNT:
      continue;
    case CU_JIT_GLOBAL_SYMBOL_NAMES:
      s->names = jit->values[n];
      continue;
    case CU_JIT_GLOBAL_SYMBOL_ADDRESSES:
      s->addresses = jit->values[n];
      continue;
    case CU_JIT_GLOBAL_SYMBOL_COUNT:
      s->count = (uint32_t)value;
      continue;
    default:
      pairs[(*count)++] = (struct scuda_pair){(uint64_t)(uint32_t)option, value};
    }
  }
  if (s->count > SYMBOLS_MAX || (s->count && (!s->names || !s->addresses))) return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t n = 0; n < s->count; n++) {
    if (!s->names[n] || strlen(s->names[n]) >= SYMBOL_BYTES_MAX - s->bytes) return CUDA_ERROR_INVALID_VALUE;
    s->bytes += (uint32_t)strlen(s->names[n]) + 1;
  }
  return CUDA_SUCCESS;
}

uint64_t *scuda_symbols_addresses(const struct scuda_symbols *s) {
  uint64_t *addresses = malloc(8 * (size_t)s->count + 8);
  for (uint32_t n = 0; addresses && n < s->count; n++)
    addresses[n] = scuda_kernel_address((uint64_t)(uintptr_t)s->addresses[n]);
  return addresses;
}

void scuda_symbols_put(uint8_t *p, const struct scuda_symbols *s, const uint64_t *addresses) {
  p = scuda_put_struct(p, addresses, 8ull * s->count);
  for (uint32_t n = 0; n < s->count; n++) p = (uint8_t *)stpcpy((char *)p, s->names[n]) + 1;
  while ((uintptr_t)p & 7) *p++ = 0;
}

/* Gives the program the compiler's log: text into its buffer, and the length into the size option's value. */
static void jit_log(const struct scuda_jit *jit, int32_t buffer_option, int32_t size_option, const char *text,
                    uint32_t bytes) {
  char *buffer = NULL;
  void **size = NULL;
  for (uint32_t n = 0; n < jit->count; n++) {
    if (jit->options[n] == buffer_option) buffer = jit->values[n];
    if (jit->options[n] == size_option) size = &jit->values[n];
  }
  if (!size) return;
  /* a text that is cut counts with its NUL */
  uint64_t cap = (uint32_t)(uintptr_t)*size, n = bytes < cap ? bytes : cap > 1 ? cap : 0;
  if (buffer && cap) {
    memcpy(buffer, text, n);
    buffer[n < cap ? n : cap - 1] = 0;
  }
  *size = (void *)(uintptr_t)n;
}

/* The program has no buffer for it, so a person is told, once: programs try one image after another. */
void scuda_jit_refused(const struct scuda_jit *jit, int32_t r, const char *why, uint32_t bytes) {
  static atomic_int told;
  for (uint32_t n = 0; n < jit->count; n++)
    if (jit->options[n] == CU_JIT_ERROR_LOG_BUFFER) return;
  int level = atomic_exchange(&told, 1) ? SCUDA_INFO : SCUDA_WARN;
  scuda_log(level, "module image refused (%d): %.*s", r, (int)bytes, why);
}

void scuda_jit_logs(const struct scuda_jit *jit, int32_t r, const char *text, uint32_t info, uint32_t error) {
  if (r && error) scuda_jit_refused(jit, r, text + info, error);
  else if (error) scuda_log(SCUDA_DEBUG, "just-in-time compiler: %.*s", (int)error, text + info);
  if (!jit->count) return;
  jit_log(jit, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, text, info);
  jit_log(jit, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, text + info, error);
}

void scuda_jit_report(const struct scuda_jit *jit, int32_t r, const uint8_t *reply, uint32_t len) {
  struct wire_load_info info;
  if (len < sizeof info) return;
  memcpy(&info, reply, sizeof info);
  uint64_t room = len - sizeof info;
  if (info.info_bytes > room || info.error_bytes > room - info.info_bytes) return;
  scuda_jit_logs(jit, r, (const char *)reply + sizeof info, info.info_bytes, info.error_bytes);
}
