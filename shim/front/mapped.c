/* Pinned memory that kernels use: the server has device memory for it, at the same address where that can be had (registered memory may lie where
 * the worker has something else). Blocks that the program changed (against a shadow copy) go up
 * before a launch, and what kernels changed comes back with the next call that waits for the GPU. Only ranges that a program asked for, or
 * whose addresses it passed to a kernel, cost anything. */
#include "range.h"

#include <stdlib.h>

enum { BLOCK = 4096, RUN_MAX = 65536 };

struct mapped { struct mapped *next; uint64_t start, bytes, device; uint8_t *shadow, *incoming; };
static struct mapped *list;
static scuda_lock_t lock;
static _Atomic uint32_t launched;  /* a kernel may have written since the last download */
_Atomic uint32_t scuda_mapped_count;

int32_t scuda_map_host(uint64_t start, uint64_t bytes, uint64_t *device_address) {
  struct mapped *m = malloc(sizeof *m);
  uint8_t *shadow = malloc(2 * bytes);
  struct wire_host_map request = {start, bytes};
  struct wire_global_info reply = {0};
  struct scuda_cmd c;
  int32_t r = m && shadow ? scuda_begin(&c, OP_HOST_MAP, SCUDA_ANSWER, sizeof request) : CUDA_ERROR_OUT_OF_MEMORY;
  if (!r) {
    memcpy(c.payload, &request, sizeof request);
    r = scuda_call(&c, &reply, sizeof reply, NULL);
  }
  if (r) {
    free(m);
    free(shadow);
    return r;
  }
  /* What lies in the new memory is unknown: everything differs from the shadow, so that the next launch sends it all. */
  for (uint64_t i = 0; i < bytes; i++) shadow[i] = (uint8_t)~((const uint8_t *)(uintptr_t)start)[i];
  *m = (struct mapped){NULL, start, bytes, reply.address, shadow, shadow + bytes};
  scuda_lock(&lock);
  m->next = list;
  list = m;
  scuda_unlock(&lock);
  atomic_fetch_add(&scuda_mapped_count, 1);
  *device_address = reply.address;
  return CUDA_SUCCESS;
}

uint64_t scuda_mapped_base(uint64_t start) {
  uint64_t device = 0;
  scuda_lock(&lock);
  for (struct mapped *m = list; m && !device; m = m->next)
    if (m->start == start) device = m->device;
  scuda_unlock(&lock);
  return device;
}

void scuda_unmap_host(uint64_t start) {
  scuda_lock(&lock);
  struct mapped **at = &list, *m;
  while ((m = *at) && m->start != start) at = &m->next;
  if (m) *at = m->next;
  scuda_unlock(&lock);
  if (!m) return;
  atomic_fetch_sub(&scuda_mapped_count, 1);
  struct wire_host_unmap request = {start, m->bytes};
  scuda_simple(OP_HOST_UNMAP, SCUDA_ANSWER, &request, sizeof request);
  free(m->shadow); /* and incoming */
  free(m);
}

static int32_t upload_run(const struct mapped *m, uint64_t from, uint64_t bytes, uint64_t stream, uint32_t ptds) {
  struct wire_copy_h2d head = {m->device + from, bytes, stream, 0, 0};
  struct scuda_cmd c;
  int32_t r = scuda_begin(&c, OP_COPY_H2D, ptds, sizeof head + bytes);
  if (r) return r;
  memcpy(c.payload, &head, sizeof head);
  memcpy(m->shadow + from, (const void *)(uintptr_t)(m->start + from), bytes);
  scuda_put_struct(c.payload + sizeof head, m->shadow + from, bytes);
  return scuda_send(&c);
}

int32_t scuda_mapped_upload(uint64_t stream, uint32_t ptds) {
  if (SCUDA_LIKELY(!atomic_load_explicit(&scuda_mapped_count, memory_order_relaxed))) return CUDA_SUCCESS;
  if (scuda_stream_capturing(stream, ptds)) return CUDA_SUCCESS; /* the graph's launch will send what is there by then */
  int32_t r = CUDA_SUCCESS;
  scuda_lock(&lock);
  for (struct mapped *m = list; m && !r; m = m->next) {
    const uint8_t *now = (const uint8_t *)(uintptr_t)m->start;
    uint64_t run = 0, run_bytes = 0;
    for (uint64_t at = 0; at < m->bytes && !r; at += BLOCK) {
      uint64_t n = m->bytes - at < BLOCK ? m->bytes - at : BLOCK;
      int differs = memcmp(now + at, m->shadow + at, n) != 0;
      if (differs && !run_bytes) run = at;
      if (differs) run_bytes += n;
      if (run_bytes && (!differs || run_bytes >= RUN_MAX || at + n == m->bytes)) {
        r = upload_run(m, run, run_bytes, stream, ptds);
        run_bytes = 0;
      }
    }
  }
  scuda_unlock(&lock);
  atomic_store(&launched, 1);
  return r;
}

/* What kernels changed, which is what differs from the shadow, goes to the program's memory; what the program changed meanwhile stays. */
static void merge(struct mapped *m) {
  uint8_t *now = (uint8_t *)(uintptr_t)m->start;
  for (uint64_t at = 0; at < m->bytes; at += BLOCK) {
    uint64_t n = m->bytes - at < BLOCK ? m->bytes - at : BLOCK;
    if (!memcmp(m->incoming + at, m->shadow + at, n)) continue;
    for (uint64_t i = at; i < at + n; i++)
      if (m->incoming[i] != m->shadow[i]) now[i] = m->shadow[i] = m->incoming[i];
  }
}

void scuda_mapped_download(void) {
  if (SCUDA_LIKELY(!atomic_load_explicit(&scuda_mapped_count, memory_order_relaxed)) || !atomic_exchange(&launched, 0)) return;
  uint32_t ordinal = scuda_thread()->ordinal;
  scuda_lock(&lock);
  for (struct mapped *m = list; m; m = m->next) {
    struct wire_copy_d2h head = {m->device, m->bytes, 0, scuda_core.transfer(m->incoming, m->bytes, ordinal, 0), 0};
    if (scuda_simple(OP_COPY_D2H, SCUDA_ANSWER, &head, sizeof head)) break;
    merge(m);
  }
  scuda_unlock(&lock);
}
