/* A stream of ours in each context, which waits for no other: for what travels on the library's own behalf. */
#include "uvm/managed.h"

#include <stdlib.h>

static struct own_stream { struct own_stream *next; uint64_t life, stream; } *own_streams;
static scuda_lock_t lock;

int32_t scuda_uvm_enter(struct scuda_uvm_self *s, uint64_t context) {
  s->self = scuda_self_begin(context);
  s->server = scuda_thread()->server;
  s->stream = 0;
  scuda_thread()->server = 0; /* its context says it */
  return scuda_context_life(context) ? CUDA_SUCCESS : scuda_no_context(); /* with it its streams have ended */
}

int32_t scuda_uvm_begin(struct scuda_uvm_self *s, uint64_t context) {
  int32_t r = scuda_uvm_enter(s, context);
  if (r) return r;
  const uint64_t life = scuda_context_life(context);
  scuda_lock(&lock);
  struct own_stream *c = own_streams;
  while (c && c->life != life) c = c->next;
  if (!c) {
    c = malloc(sizeof *c);
    r = c ? scuda_wire_cuStreamCreate(&c->stream, CU_STREAM_NON_BLOCKING, 0) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!r) {
      c->life = life;
      c->next = own_streams;
      own_streams = c;
    } else {
      free(c);
    }
  }
  if (!r) scuda_thread()->named = s->stream = c->stream;
  scuda_unlock(&lock);
  return r;
}

void scuda_uvm_end(const struct scuda_uvm_self *s) {
  scuda_self_end(s->self);
  scuda_thread()->server = s->server;
}
