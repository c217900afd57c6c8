/* Handles: addresses of 64-byte slots in two adjacent regions, the client's and the server's. Memory is touched only
 * where slots are used. */
#define _GNU_SOURCE
#include "base/base.h"

#include <sys/mman.h>

enum { CLIENT_SLOTS = 1 << 20, SERVER_SLOTS = 1 << 20 };  /* of all servers together */
uint64_t scuda_slots_base, scuda_slots_bytes;

static scuda_lock_t lock;
/* Free slots wait in line, and not the last few of them are used again while there are fresh ones: a handle that a
 * program still holds stays invalid. */
enum { RESTING = 1024 };
/* A server's part of the client's region. fresh: so many of it were used at some time, beside its first slot, which
 * stays unused, so that 0 can end the list of free slots. */
static struct part { uint32_t fresh, first_free, last_free, free; } parts[SCUDA_SERVERS_MAX];

static uint32_t part_slots(void) { return CLIENT_SLOTS / scuda_servers; }

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
  uint32_t server = scuda_server(), most = part_slots();
  struct part *p = &parts[server];
  scuda_lock(&lock);
  if (p->free > RESTING || (p->free && p->fresh == most - 1)) {
    s = &slots[p->first_free];
    p->first_free = s->next_free;
    p->free--;
  } else if (p->fresh < most - 1) {
    s = &slots[server * most + ++p->fresh];
  }
  scuda_unlock(&lock);
  if (!s) {
    scuda_log(SCUDA_ERROR, "all %u handles are in use; destroy streams, events and graphs that are no longer needed",
              most);
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
  struct part *p = &parts[scuda_slot_server(handle)];
  if (p->free++) ((struct scuda_slot *)(uintptr_t)scuda_slots_base)[p->last_free].next_free = (uint32_t)index;
  else p->first_free = (uint32_t)index;
  p->last_free = (uint32_t)index;
  scuda_unlock(&lock);
}

/* The slot behind s that was used at some time, of any server; NULL: there is none. The lock is held. */
static struct scuda_slot *next_used(const struct scuda_slot *s) {
  struct scuda_slot *slots = (struct scuda_slot *)(uintptr_t)scuda_slots_base;
  uint32_t most = part_slots(), i = s ? (uint32_t)(s - slots) + 1 : 1;
  for (; i / most < scuda_servers; i = (i / most + 1) * most + 1)
    if (i % most <= parts[i / most].fresh) return &slots[i];
  return NULL;
}

void scuda_slots_of(uint64_t context, uint32_t kind, void (*f)(struct scuda_slot *)) {
  scuda_lock(&lock);
  for (struct scuda_slot *s = NULL; (s = next_used(s));)
    if (s->kind == kind && (context == UINT64_MAX || s->context == context)) f(s);
  scuda_unlock(&lock);
}

uint64_t scuda_context_behind(uint64_t context) {
  struct scuda_slot *s = context ? scuda_slot(context) : NULL;
  scuda_lock(&lock);
  do s = next_used(s);
  while (s && !(s->kind == KIND_CUcontext && !s->sticky && scuda_context_usable((uint64_t)(uintptr_t)s)));
  scuda_unlock(&lock);
  return (uint64_t)(uintptr_t)s;
}

void scuda_contexts_fail(int32_t device, int32_t result) {
  scuda_lock(&lock);
  for (struct scuda_slot *s = NULL; (s = next_used(s));)
    if (s->kind == KIND_CUcontext && s->device == device) s->sticky = result;
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
