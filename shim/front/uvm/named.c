#include "uvm/named.h"
#include "uvm/managed.h"

#include <stdlib.h>

enum { GIVEN_MAX = 64 << 20 }; /* bytes; a call with more is refused elsewhere */

static int add(struct scuda_addresses *n, uint64_t address) {
  if (n->count == n->room) {
    uint64_t *more = realloc(n->list == n->few ? NULL : n->list, 2 * sizeof *more * n->room);
    if (!more) return 0;
    if (n->list == n->few) memcpy(more, n->few, sizeof n->few);
    n->list = more;
    n->room *= 2;
  }
  n->list[n->count++] = address;
  return 1;
}

void scuda_named_forget(struct scuda_addresses *n) {
  if (n->list != n->few) free(n->list);
}

int32_t scuda_named_gather(struct scuda_addresses *n, const void *given, uint64_t bytes) {
  n->list = n->few;
  n->count = 0;
  n->room = SCUDA_NAMED_FEW;
  if (!given || bytes > GIVEN_MAX) return CUDA_SUCCESS;
  for (uint64_t i = 0; i < bytes / 8; i++) {
    uint64_t word;
    memcpy(&word, (const uint8_t *)given + 8 * i, 8);
    if (!(word >> 32) || !scuda_is_managed(word) || add(n, word)) continue;
    scuda_named_forget(n);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}
