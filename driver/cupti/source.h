// NVIDIA's CUPTI in the worker, by dlopen.
#ifndef SCUDA_CUPTI_SOURCE_H
#define SCUDA_CUPTI_SOURCE_H
#include <stddef.h>
#include <stdint.h>

// Opens a library and finds its functions; NULL, or why not. It stays open.
const char *source_open(const char *path);
// Begins recording: kinds of activities, and callback ids of calls that bring work (0 ends both). site and id are where
// a callback's data have the site and the correlation id. Calls that the library does not know are left out: an older
// one does not know the newest. A result of CUPTI's; step says which of its functions gave it, and for what.
struct source_step { const char *what; uint32_t of; };
int source_begin(const uint32_t *kinds, const uint32_t *calls, size_t site, size_t id, struct source_step *step);
int source_end(const uint32_t *kinds);
const char *source_text(int result);
// The calling thread's next calls belong to this; 0: to nobody.
void source_correlate(uint32_t id);
// Whom a call belonged to; 0: to nobody, or it is forgotten.
uint32_t source_of(uint32_t correlation);
int source_flush(void);
// Numbers of graphs, executable graphs and nodes; not 0: this CUPTI has no such function, or it is none of its objects.
enum { SOURCE_GRAPH, SOURCE_EXEC, SOURCE_NODE };
int source_number(int kind, uint64_t object, uint64_t *number);
int source_has_numbers(void);
// The next record that has come, until the next call; NULL: there is none.
const uint8_t *source_next(void);
// How many were lost since the last question.
size_t source_lost(void);
#endif
