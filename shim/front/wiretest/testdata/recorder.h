/* A core that keeps every command and answers by what the case sets. */
#include "base/core.h"
#include "gen/wire_gen.h"

struct command {
  uint32_t size; uint16_t op, flags; uint64_t seq, context; uint32_t thread, reserved; uint8_t payload[];
};

struct recorder {
  struct command *commands[1 << 16];
  uint32_t count;
  int32_t result;                                     /* of answered commands */
  int32_t (*answer)(const struct command *c, void *reply, uint32_t cap, uint32_t *len);  /* overrides result */
  uint64_t bulk_bytes;
  uint8_t bulk_first, bulk_last;
  void *transfer_dst;
  uint32_t transfer_async, transfers, sources, hostfns, hostfn_keep, images, images_sent, calls;
  int32_t overlaps;
  int slow;                                           /* drain only when asked to */
  struct scuda_shared *shared;
  void (*drain)(void);
};
