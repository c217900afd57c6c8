/* What the front has for a profiler in the process: our libcupti.so (shim/cupti), which finds it as a private table of
 * cuGetExportTable under an id of ours. One profiler at a time. While there is one the mode is SCUDA_PROFILED, so that
 * calls come to their profiled_ forms; otherwise it costs calls nothing. */
#ifndef SCUDA_PROFILE_H
#define SCUDA_PROFILE_H
#include "calls/calls.h"
#include "base/profile.h"

enum { SCUDA_RUNTIME_FLAGS = 1024 };
extern uint32_t scuda_runtime_flags[SCUDA_RUNTIME_FLAGS]; /* by the runtime's callback id: its calls are told */
void scuda_profile_runtime(uint32_t id, void *record);    /* of cudart, before and after a call */
void scuda_profile_all_runtime(void);                     /* all of its calls are told from now on, to a timeline */
void scuda_profile_begins(uint64_t connecting);           /* a session began; since when cuInit made it */

int scuda_profile_enter(struct scuda_profiled *c, uint32_t function, const void *params); /* 0: it is not told */
int32_t scuda_profile_exit(struct scuda_profiled *c, int32_t result);

/* the table's functions, see struct scuda_profile_table */
int32_t scuda_profile_serves(void);
int32_t scuda_profile_attach(const struct scuda_profiler *profiler);
uint32_t *scuda_profile_flags(uint32_t *count);
/* as the table has them: a timeline is told as well */
int32_t scuda_profile_asked(uint32_t server, uint32_t kinds, uint32_t *kept, uint64_t *now);
int32_t scuda_profile_fetched(uint32_t server, void *to, uint32_t bytes, uint32_t all, uint32_t *got,
                              struct scuda_profile_times *);
int32_t scuda_profile_control(uint32_t server, uint32_t kinds, uint32_t *kept, uint64_t *now);
/* The first record in an answer of so many bytes, which has all that it says; NULL: it is malformed. */
struct wire_profile_record *scuda_profile_records(void *answer, uint32_t got);
/* Devices are the program's in what it gives, and numbers are what the program sees. */
int32_t scuda_profile_read(uint32_t server, void *to, uint32_t bytes, uint32_t all, uint32_t *got,
                           struct scuda_profile_times *);
void scuda_profile_ids(uint64_t context, uint64_t stream, uint32_t per_thread, struct scuda_profile_ids *ids);
const char *scuda_profile_kernel(uint64_t function);
uint32_t scuda_profile_memory(uint64_t address, uint64_t *bytes);
uint32_t scuda_profile_objects(int streams, uint64_t *pairs, uint32_t most);
int32_t scuda_profile_number(uint32_t kind, uint64_t object, uint64_t *number);
int scuda_profile_next(uint32_t *server);
void scuda_profile_log(int32_t level, const char *text);
#endif
