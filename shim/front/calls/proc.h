/* Tables behind cuGetProcAddress and cuGetErrorName, generated from the facts. */
#ifndef SCUDA_PROC_H
#define SCUDA_PROC_H
#include "calls/calls.h"

/* symbol: index of scuda_exports, or -1 with a status */
struct scuda_proc_row { uint16_t since; uint8_t flags; int16_t symbol; uint8_t status; };
/* sorted by name; its rows by flags and version */
struct scuda_proc_name { const char *name; uint16_t first, count; };
extern const struct scuda_proc_row scuda_proc_rows[];
extern const struct scuda_proc_name scuda_proc_names[];
extern const uint32_t scuda_proc_name_count;

struct scuda_result { int32_t value; const char *name, *text; };
extern const struct scuda_result scuda_results[];
extern const uint32_t scuda_result_count;
#endif
