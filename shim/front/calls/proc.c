/* Lookups by name and by number: cuGetProcAddress as measured, names and texts of results, private tables. */
#include "calls/proc.h"

#include <stdlib.h>

static const struct scuda_proc_name *find_name(const char *name) {
  uint32_t low = 0, high = scuda_proc_name_count;
  while (low < high) {
    uint32_t mid = (low + high) / 2;
    int order = strcmp(scuda_proc_names[mid].name, name);
    if (!order) return &scuda_proc_names[mid];
    if (order < 0) low = mid + 1;
    else high = mid;
  }
  return NULL;
}

/* The newest row for the version. What is newer than the server's driver is not there, as it knows no such name. */
static int32_t lookup(const char *symbol, int32_t version, uint64_t flags, void **function) {
  *function = NULL;
  const struct scuda_proc_name *name = find_name(symbol);
  if (!name) return CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const struct scuda_proc_row *best = NULL;
  int32_t driver = scuda_driver_version();
  int known = 0;
  for (uint32_t i = 0; i < name->count; i++) {
    const struct scuda_proc_row *row = &scuda_proc_rows[name->first + i];
    if (row->flags != flags || (driver && row->since > driver)) continue;
    known |= row->symbol >= 0;
    if ((uint32_t)row->since <= (uint32_t)version) best = row;
  }
  if (driver && !known) return CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (!best) return CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  if (best->symbol < 0) return best->status;
  *function = scuda_exports[best->symbol].entry;
  return CU_GET_PROC_ADDRESS_SUCCESS;
}

int32_t scuda_hand_cuGetProcAddress_v2(const char *symbol, void **function, int32_t version, uint64_t flags,
                                       int32_t *status) {
  if (!symbol || !function || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  int32_t found = lookup(symbol, version, flags, function);
  if (status) *status = found;
  return found == CU_GET_PROC_ADDRESS_SUCCESS || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

int32_t scuda_hand_cuGetProcAddress(const char *symbol, void **function, int32_t version, uint64_t flags) {
  return scuda_hand_cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}

static const struct scuda_result *find_result(int32_t value) {
  for (uint32_t i = 0; i < scuda_result_count; i++)
    if (scuda_results[i].value == value) return &scuda_results[i];
  return NULL;
}

int32_t scuda_hand_cuGetErrorName(int32_t error, void **name) {
  const struct scuda_result *r = find_result(error);
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  *name = r ? (void *)r->name : NULL;
  return r ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The driver's own words, asked for once; ours where there is no answer. */
static void *drivers_text(const struct scuda_result *r) {
  enum { CODES = 1024, TEXT_MAX = 512 };
  static char *known[CODES];
  if ((uint32_t)r->value >= CODES) return (void *)r->text;
  char *text = __atomic_load_n(&known[r->value], __ATOMIC_ACQUIRE);
  if (text) return text;
  struct wire_error_text m = {r->value, 0};
  struct scuda_cmd c;
  uint32_t len = 0;
  text = malloc(TEXT_MAX);
  if (!text || scuda_begin(&c, OP_ERROR_TEXT, SCUDA_ANSWER, sizeof m)) {
    free(text);
    return (void *)r->text;
  }
  memcpy(c.payload, &m, sizeof m);
  char *other = NULL;
  if (scuda_call(&c, text, TEXT_MAX - 1, &len) || !len) {
    free(text);
    return (void *)r->text;
  }
  text[len] = 0;
  if (__atomic_compare_exchange_n(&known[r->value], &other, text, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return text;
  free(text);
  return other;
}

int32_t scuda_hand_cuGetErrorString(int32_t error, void **text) {
  const struct scuda_result *r = find_result(error);
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  *text = r ? scuda_serving() ? drivers_text(r) : (void *)r->text : NULL;
  return r ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int32_t scuda_hand_cuGetExportTable(void **table, const void *id) {
  if (!table || !id) return CUDA_ERROR_INVALID_VALUE;
  return scuda_export_table((const void **)table, id);
}
