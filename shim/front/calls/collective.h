/* What the front has for our libnccl.so.2 (shim/nccl), which finds it as a private table of cuGetExportTable under an
 * id of ours. */
#ifndef SCUDA_COLLECTIVE_H
#define SCUDA_COLLECTIVE_H
#include "calls/calls.h"
#include "base/collective.h"

/* the table's functions, see struct scuda_collective_table */
int32_t scuda_collective_serves(void);
int32_t scuda_collective_offered(void);
uint32_t scuda_collective_servers(void);
uint32_t scuda_collective_server_of(uint64_t context);
int32_t scuda_collective_ask(uint32_t op, uint32_t server, uint64_t context, const void *payload, uint32_t bytes,
                             void *reply, uint32_t cap, uint32_t *got);
int32_t scuda_collective_check(const void *operations, uint32_t count);
int32_t scuda_collective_enqueue(uint64_t context, const void *operations, uint32_t count, int32_t sure, void *reply,
                                 uint32_t cap, uint32_t *got);
#endif
