/* Handles: addresses of 64-byte slots in two adjacent regions, the client's and the server's. Memory is touched only
 * where slots are used. */
#define _GNU_SOURCE
#include "base/base.h"

#include <sys/mman.h>

enum { CLIENT_SLOTS = 1 << 20, SERVER_SLOTS = 1 << 20 };
uint64_t scuda_slots_base, scuda_slots_bytes;

static scuda_lock_t lock;
static uint32_t next_fresh = 1;  /* slot 0 stays unused, so that 0 can end the list of free slots */
/* Free slots wait in line, and not the last few of them are used again while there are fresh ones: a handle that a
 * program still holds stays invalid. */
enum { RESTING = 1024 };
static uint32_t first_free, last_free, free_slots;

int32_t scuda_handles_setup(void) {
  size_t count = (size_t)CLIENT_SLOTS + SERVER_SLOTS, bytes = count * sizeof(struct scuda_slot);
  void *base = mmap(NULL, bytes + count * sizeof(struct scuda_track), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  scuda_shared.tracks = (struct scuda_track *)((uint8_t *)base + bytes);
  scuda_slots_base = (uint64_t)(uintptr_t)base;
  scuda_slots_bytes = bytes;
  scuda_shared.client_base = scuda_slots_base;
  scuda_shared.client_slots = CLIENT_SLOTS;
  scuda_shared.server_base = scuda_slots_base + (uint64_t)CLIENT_SLOTS * sizeof(struct scuda_slot);
  scuda_shared.server_slots = SERVER_SLOTS;
  return CUDA_SUCCESS;
}

uint64_t scuda_slot_new(uint32_t kind) {
  struct scuda_slot *slots = (struct scuda_slot *)(uintptr_t)scuda_slots_base, *s = NULL;
  scuda_lock(&lock);
  if (free_slots > RESTING || (free_slots && next_fresh == CLIENT_SLOTS)) {
    s = &slots[first_free];
    first_free = s->next_free;
    free_slots--;
  } else if (next_fresh < CLIENT_SLOTS) {
    s = &slots[next_fresh++];
  }
  scuda_unlock(&lock);
  if (!s) {
    scuda_log(SCUDA_ERROR, "all %d handles are in use; destroy streams, events and graphs that are no longer needed",
              CLIENT_SLOTS);
    return 0;
  }
  memset(s, 0, sizeof *s);
  struct scuda_thread *t = scuda_self;
  s->context = t ? t->current : 0;
  __atomic_store_n(&s->kind, kind, __ATOMIC_RELEASE);
  if (kind == KIND_CUstream || kind == KIND_CUevent) scuda_track_new((uint64_t)(uintptr_t)s);
  return (uint64_t)(uintptr_t)s;
}

_Atomic uint64_t scuda_graph_exec_epoch;

void scuda_slot_free(uint64_t handle) {
  struct scuda_slot *s = scuda_slot(handle);
  if (!s) return;
  switch (s->kind) {
  case KIND_CUcontext: case KIND_CUgraphExec: case KIND_CUfunction: case KIND_CUkernel: case KIND_CUgraph:
  case KIND_CUgraphNode:
    atomic_fetch_add(&scuda_graph_exec_epoch, 1);
  }
  if (s->kind == KIND_CUcontext) { /* never reused: other threads may have it on their stacks */
    s->flags |= SCUDA_CTX_DEAD;
    return;
  }
  if (s->kind == KIND_CUstream) scuda_capture_stream_dies(s);
  if (s->kind == KIND_CUgraph || s->kind == KIND_CUgraphNode) scuda_callbacks.slot_ends(s);
  s->kind = 0;
  uint64_t index = (handle - scuda_slots_base) / sizeof *s;
  if (index >= CLIENT_SLOTS) return; /* the server reuses its own */
  scuda_lock(&lock);
  s->next_free = 0;
  if (free_slots++) ((struct scuda_slot *)(uintptr_t)scuda_slots_base)[last_free].next_free = (uint32_t)index;
  else first_free = (uint32_t)index;
  last_free = (uint32_t)index;
  scuda_unlock(&lock);
}

void scuda_slots_of(uint64_t context, uint32_t kind, void (*f)(struct scuda_slot *)) {
  struct scuda_slot *slots = (struct scuda_slot *)(uintptr_t)scuda_slots_base;
  scuda_lock(&lock);
  for (uint32_t i = 1; i < next_fresh; i++)
    if (slots[i].kind == kind && (context == UINT64_MAX || slots[i].context == context)) f(slots + i);
  scuda_unlock(&lock);
}

void scuda_contexts_fail(int32_t device, int32_t result) {
  struct scuda_slot *slots = (struct scuda_slot *)(uintptr_t)scuda_slots_base;
  scuda_lock(&lock);
  for (uint32_t i = 1; i < next_fresh; i++)
    if (slots[i].kind == KIND_CUcontext && slots[i].device == device) slots[i].sticky = result;
  scuda_unlock(&lock);
}

void scuda_adopt(uint64_t handle, uint32_t kind) {
  struct scuda_slot *s = scuda_slot(handle);
  if (!s || handle < scuda_shared.server_base || s->kind == kind) return;
  memset(s, 0, sizeof *s);
  struct scuda_thread *t = scuda_self;
  s->context = t ? t->current : 0;
  __atomic_store_n(&s->kind, kind, __ATOMIC_RELEASE);
  if (kind == KIND_CUstream || kind == KIND_CUevent) scuda_track_new(handle);
}

int32_t scuda_check(uint64_t handle, uint32_t kind) {
  struct scuda_slot *s = scuda_slot(handle);
  if (kind == KIND_CUstream) scuda_thread()->named = handle;
  if (SCUDA_LIKELY(s && s->kind == kind)) return CUDA_SUCCESS;
  if (kind == KIND_CUstream && handle <= 2) return CUDA_SUCCESS;
  if (kind == KIND_CUfunction && s && s->kind == KIND_CUkernel) return CUDA_SUCCESS;
  switch (kind) {
  case KIND_CUcontext: return CUDA_ERROR_INVALID_CONTEXT;
  case KIND_CUgraph:
  case KIND_CUgraphExec:
  case KIND_CUgraphNode:
  case KIND_CUmemoryPool:
  case KIND_CUuserObject: return CUDA_ERROR_INVALID_VALUE;
  default: return CUDA_ERROR_INVALID_HANDLE;
  }
}
