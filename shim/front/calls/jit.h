/* Options of the just-in-time compiler and linker. */
#ifndef SCUDA_JIT_H
#define SCUDA_JIT_H
#include "calls/calls.h"

struct scuda_jit { uint32_t count; const int32_t *options; void **values; };
struct scuda_pair { uint64_t option, value; };
/* Variables of the program that code refers to by name; bytes: of the names, with their NULs. */
struct scuda_symbols { uint32_t count, bytes; const char **names; void **addresses; };
enum { SCUDA_PAIRS_MAX = 64 };

/* The options that travel, and the variables. */
int32_t scuda_jit_pairs(const struct scuda_jit *jit, struct scuda_pair *pairs, uint32_t *count,
                        struct scuda_symbols *symbols);
/* In a command: their addresses as kernels see them, found out before the command begins and freed by the caller, and
 * then their names. */
uint64_t *scuda_symbols_addresses(const struct scuda_symbols *s);
static inline uint64_t scuda_symbols_size(const struct scuda_symbols *s) {
  return s->count * 8ull + scuda_pad(s->bytes);
}
void scuda_symbols_put(uint8_t *p, const struct scuda_symbols *s, const uint64_t *addresses);
/* Says why an image is refused where the program does not ask for it. */
void scuda_jit_refused(const struct scuda_jit *jit, int32_t r, const char *why, uint32_t bytes);
/* Gives the program the logs: two texts in a row; r: what the call answers. */
void scuda_jit_logs(const struct scuda_jit *jit, int32_t r, const char *text, uint32_t info, uint32_t error);
void scuda_jit_report(const struct scuda_jit *jit, int32_t r, const uint8_t *reply, uint32_t len); /* load_info */
#endif
