/* Look-ups by name and number, from the tables of the front. */
#include "calls/proc.h"
#include "gen/procaddress_gen.c"
#include "gen/results_gen.c"

enum { DRIVER_VERSION = 13000 };

extern void *const sim_entries[];

static int32_t lookup(const char *symbol, int32_t version, uint64_t flags, void **function) {
  *function = NULL;
  for (uint32_t i = 0; i < scuda_proc_name_count; i++) {
    const struct scuda_proc_name *name = &scuda_proc_names[i];
    if (strcmp(name->name, symbol)) continue;
    const struct scuda_proc_row *best = NULL;
    for (uint32_t k = 0; k < name->count; k++) {
      const struct scuda_proc_row *row = &scuda_proc_rows[name->first + k];
      if (row->flags == flags && row->since <= version && (row->symbol < 0 || row->since <= DRIVER_VERSION)) best = row;
    }
    if (!best) return CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    if (best->symbol < 0) return best->status;
    *function = sim_entries[best->symbol];
    return CU_GET_PROC_ADDRESS_SUCCESS;
  }
  return CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
}

int32_t sim_cuGetProcAddress_v2(const char *symbol, void **function, int32_t version, uint64_t flags, int32_t *status) {
  if (!symbol || !function || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  int32_t found = lookup(symbol, version, flags, function);
  if (status) *status = found;
  return found == CU_GET_PROC_ADDRESS_SUCCESS || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

int32_t sim_cuGetProcAddress(const char *symbol, void **function, int32_t version, uint64_t flags) {
  return sim_cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}

static const struct scuda_result *find(int32_t value) {
  for (uint32_t i = 0; i < scuda_result_count; i++)
    if (scuda_results[i].value == value) return &scuda_results[i];
  return NULL;
}

int32_t sim_cuGetErrorName(int32_t error, void **name) {
  const struct scuda_result *r = find(error);
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  *name = r ? (void *)r->name : NULL;
  return r ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

int32_t sim_cuGetErrorString(int32_t error, void **text) {
  const struct scuda_result *r = find(error);
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  *text = r ? (void *)r->text : NULL;
  return r ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Private tables, which the CUDA runtime asks for, are not simulated. */
int32_t sim_cuGetExportTable(void **table, const void *id) {
  if (!table || !id) return CUDA_ERROR_INVALID_VALUE;
  *table = NULL;
  return CUDA_ERROR_NOT_FOUND;
}
