/* Options of the just-in-time compiler and linker: what travels, and the logs that come back. */
#include "jit.h"

/* The options that travel: values, and the sizes of the log buffers. Lists of what other code refers to only allow the compiler to leave out the
 * rest, so they stay here. */
int32_t scuda_jit_pairs(const struct scuda_jit *jit, struct scuda_pair *pairs, uint32_t *count, struct scuda_symbols *symbols, uint32_t i) {
  struct scuda_symbols none, *s = symbols ? symbols : &none;
  *s = (struct scuda_symbols){0};
  *count = 0;
  if (jit->count > SCUDA_PAIRS_MAX || (jit->count && (!jit->options || !jit->values))) return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t n = 0; n < jit->count; n++) {
    int32_t option = jit->options[n];
    uint64_t value = (uint64_t)(uintptr_t)jit->values[n];
    switch (option) {
    case CU_JIT_WALL_TIME:
    case CU_JIT_INFO_LOG_BUFFER:
    case CU_JIT_ERROR_LOG_BUFFER:
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
  if (s->count && (!s->names || !s->addresses)) return CUDA_ERROR_INVALID_VALUE;
  return s->count && !symbols ? scuda_refuse(i, PART_linked_variables) : CUDA_SUCCESS;
}

/* Gives the program the compiler's log: text into its buffer, and the length into the size option's value. */
static void jit_log(const struct scuda_jit *jit, int32_t buffer_option, int32_t size_option, const char *text, uint32_t bytes) {
  char *buffer = NULL;
  void **size = NULL;
  for (uint32_t n = 0; n < jit->count; n++) {
    if (jit->options[n] == buffer_option) buffer = jit->values[n];
    if (jit->options[n] == size_option) size = &jit->values[n];
  }
  if (!size) return;
  uint64_t cap = (uint32_t)(uintptr_t)*size, n = bytes < cap ? bytes : cap;
  if (buffer && cap) {
    memcpy(buffer, text, n);
    buffer[n < cap ? n : cap - 1] = 0;
  }
  *size = (void *)(uintptr_t)n;
}

void scuda_jit_logs(const struct scuda_jit *jit, const char *text, uint32_t info, uint32_t error) {
  if (error) scuda_log(SCUDA_DEBUG, "just-in-time compiler: %.*s", (int)error, text + info);
  if (!jit->count) return;
  jit_log(jit, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, text, info);
  jit_log(jit, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, text + info, error);
}

void scuda_jit_report(const struct scuda_jit *jit, const uint8_t *reply, uint32_t len) {
  struct wire_load_info info;
  if (len < sizeof info) return;
  memcpy(&info, reply, sizeof info);
  uint64_t room = len - sizeof info;
  if (info.info_bytes > room || info.error_bytes > room - info.info_bytes) return;
  scuda_jit_logs(jit, (const char *)reply + sizeof info, info.info_bytes, info.error_bytes);
}
