/* Options of the just-in-time compiler and linker. */
#ifndef SCUDA_JIT_H
#define SCUDA_JIT_H
#include "front.h"

struct scuda_jit { uint32_t count; const int32_t *options; void **values; };
struct scuda_pair { uint64_t option, value; };
struct scuda_symbols { uint32_t count; const char **names; void **addresses; }; /* variables of the program that code refers to by name */
enum { SCUDA_PAIRS_MAX = 64 };

/* The options that travel, and the variables (NULL: none are allowed); i names the function for messages. */
int32_t scuda_jit_pairs(const struct scuda_jit *jit, struct scuda_pair *pairs, uint32_t *count, struct scuda_symbols *symbols, uint32_t i);
/* Gives the program the logs: two texts in a row. */
void scuda_jit_logs(const struct scuda_jit *jit, const char *text, uint32_t info, uint32_t error);
void scuda_jit_report(const struct scuda_jit *jit, const uint8_t *reply, uint32_t len); /* load_info */
#endif
