/* What our libnccl.so.2 and the front say to each other: the front's private table COLLECTIVE. Both are of one build.
 */
#ifndef SCUDA_FRONT_COLLECTIVE_H
#define SCUDA_FRONT_COLLECTIVE_H
#include <stdint.h>

#define SCUDA_COLLECTIVE_ID \
  {0x2e, 0x91, 0x5c, 0x08, 0x7a, 0xd3, 0x4b, 0xf6, 0x8d, 0x14, 0x60, 0xbe, 0x39, 0xc7, 0xf2, 0x5a}

struct scuda_collective_table {
  uint64_t bytes;
  int32_t (*serves)(void);     /* not 0: a server is configured, so that calls go there */
  int32_t (*offered)(void);    /* there is a session, and its server knows the commands */
  uint32_t (*servers)(void);   /* how many the program has */
  uint32_t (*server_of)(uint64_t context); /* a number below that; 0: of what the thread has for its context */
  /* a command of wire.spec, nccl_…, to a server, in a context of the program's there (0: none); CUresult */
  int32_t (*ask)(uint32_t op, uint32_t server, uint64_t context, const void *payload, uint32_t bytes, void *reply,
                 uint32_t cap, uint32_t *got);
  /* whether operations name streams and buffers that a collective can have; what is refused is said in the log */
  int32_t (*check)(const void *operations, uint32_t count);
  /* nccl_group with so many operations, checked as by `check`. Where the call is sure to wait for nobody, no answer is
   * waited for, unless something else asks for one: *got is 0 then */
  int32_t (*enqueue)(uint64_t context, const void *operations, uint32_t count, int32_t sure, void *reply, uint32_t cap,
                     uint32_t *got);
};
#endif
