/* A stream of ours in each context, which waits for no other: for what travels on the library's own behalf. */
#include "uvm/managed.h"

#include <stdlib.h>

static struct own_stream { struct own_stream *next; uint64_t life, stream; } *own_streams;
static scuda_lock_t lock;

static int32_t make(uint64_t context, uint64_t life, struct own_stream **made) {
  struct own_stream *c = malloc(sizeof *c);
  struct scuda_self self = scuda_self_begin(context);
  uint64_t stream;
  int32_t r = c ? scuda_wire_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING, 0) : CUDA_ERROR_OUT_OF_MEMORY;
  scuda_self_end(self);
  if (r) {
    free(c);
    return r;
  }
  *c = (struct own_stream){own_streams, life, stream};
  *made = own_streams = c;
  return CUDA_SUCCESS;
}

int32_t scuda_uvm_stream(uint64_t context, uint64_t *stream) {
  uint64_t life = scuda_context_life(context);
  int32_t r = CUDA_SUCCESS;
  scuda_lock(&lock);
  struct own_stream *c = own_streams;
  while (c && c->life != life) c = c->next;
  if (!c) r = make(context, life, &c);
  if (!r) *stream = c->stream;
  scuda_unlock(&lock);
  return r;
}
