/* Unified memory. A range has one address on both sides: here its pages are allowed and denied by the pager, on the
 * server device memory lies at the same address (or, for a __managed__ variable, the range lies here where the server's
 * driver put the variable). Blocks of 64 KiB are in one of residency.h's states. Before the GPU works on managed
 * memory, what the program wrote goes up and everything it could touch here is denied, since then the GPU owns it; the
 * program's next access of a block fetches it, and more of its neighbours the more of them were wanted (residency.c).
 * What a program that goes through a range will want next is fetched by threads of ours meanwhile.
 *
 * This file has the ranges: their making and their end, variables, attachment, hints. fault.c is the program's side,
 * take.c the GPU's, blocks.c has the states, fetch.c brings blocks, migrate.c moves bytes, pager.c allows and denies
 * accesses. */
#define _GNU_SOURCE
#include "uvm/va_range.h"
#include "base/range.h"
#include "uvm/named.h"
#include "uvm/work.h"

#include <stdlib.h>

_Atomic uint32_t scuda_managed_count;
struct scuda_uvm scuda_uvm;

/* ---- ranges ---- */

/* The owner of such a range is the struct va_range. */
struct va_range *scuda_va_range_at(uint64_t p) {
  return (struct va_range *)(uintptr_t)scuda_range_of(p, SCUDA_AS_MANAGED).owner;
}

uint64_t scuda_va_range_end(uint64_t address) {
  struct scuda_range r = scuda_range_of(address, SCUDA_AS_MANAGED);
  return r.start + r.bytes;
}

void scuda_va_range_attach(struct va_range *a, uint32_t attachment, uint64_t key) {
  if (a->attachment != CU_MEM_ATTACH_GLOBAL) atomic_fetch_sub(&scuda_uvm.restricted, 1);
  a->attachment = attachment;
  a->attached = key;
  if (attachment != CU_MEM_ATTACH_GLOBAL) atomic_fetch_add(&scuda_uvm.restricted, 1);
}

/* ---- allocation ---- */

/* Makes the range; address 0: one of ours, with memory on the server. */
static int32_t make(uint64_t address, uint64_t bytes, uint32_t attachment, struct va_range **made) {
  uint64_t owner = scuda_thread()->current;
  /* variables of a library are asked for before there is a context */
  if (!owner && address) owner = scuda_gpus[0].primary;
  struct scuda_slot *context = scuda_slot(owner);
  if (!context) return scuda_no_context();
  int32_t r = scuda_pager_start(scuda_uvm_fault, scuda_va_range_end);
  if (r) return r;
  uint64_t blocks = bytes / BLOCK + (bytes % BLOCK != 0);
  if (blocks > UINT32_MAX / 2) return CUDA_ERROR_OUT_OF_MEMORY;
  struct va_range *a = calloc(1, sizeof *a + (2 + sizeof *a->thrashing) * blocks);
  if (!a) return CUDA_ERROR_OUT_OF_MEMORY;
  a->file = a->state + blocks;
  a->thrashing = (struct scuda_thrashing *)(a->file + blocks);
  if ((r = scuda_pages_make(&a->pages, address, bytes))) {
    free(a);
    return r;
  }
  a->asked = bytes;
  a->context = a->home = owner;
  a->attachment = CU_MEM_ATTACH_GLOBAL;
  a->made_for = attachment;
  a->giver = SCUDA_NO_STREAM;
  a->blocks = (uint32_t)blocks;
  a->low = a->blocks;
  a->mirror = !address;
  if (a->mirror) {
    r = scuda_va_range_back(a);
    /* Fresh memory is zero, as natively, before anything else comes to it in any stream. */
    if (!r) r = scuda_wire_cuMemsetD8_v2(a->pages.start, 0, a->pages.bytes, 0);
    if (!r) r = scuda_wire_cuStreamSynchronize(SCUDA_LEGACY_STREAM, 0);
  }
  struct scuda_range range = {
    a->pages.start, bytes, a->context, (uint64_t)(uintptr_t)a,
    SCUDA_RANGE_ALLOC | SCUDA_RANGE_MANAGED | scuda_va_range_server(a) << SCUDA_SERVER_SHIFT, context->device
  };
  if (!r && !scuda_ranges_add(&scuda_managed_ranges, &range)) r = CUDA_ERROR_OUT_OF_MEMORY;
  if (r) {
    scuda_pages_drop(&a->pages);
    free(a);
    return r;
  }
  scuda_lock(&scuda_uvm.lock);
  a->next = scuda_uvm.ranges;
  scuda_uvm.ranges = a;
  scuda_va_range_attach(a, attachment, 0);
  scuda_va_range_mark(a, 0, a->blocks, address ? AWAY : FRESH);
  scuda_unlock(&scuda_uvm.lock);
  atomic_fetch_add(&scuda_managed_count, 1);
  scuda_pages_show(&a->pages);
  *made = a;
  return CUDA_SUCCESS;
}

static void unlink_va_range(struct va_range *a) {
  scuda_pages_hide(&a->pages);
  scuda_va_range_attach(a, CU_MEM_ATTACH_GLOBAL, 0);
  struct va_range **at = &scuda_uvm.ranges;
  while (*at && *at != a) at = &(*at)->next;
  if (*at) *at = a->next;
  for (at = &scuda_uvm.opened; *at && *at != a;) at = &(*at)->next_open;
  if (*at) *at = a->next_open;
  scuda_ranges_remove(&scuda_managed_ranges, a->pages.start, NULL);
}

static void forget(struct va_range *a) {
  atomic_fetch_sub(&scuda_managed_count, 1);
  scuda_pages_drop(&a->pages);
  for (struct extent *e = a->extents, *next; e; e = next) next = e->next, free(e);
  free(a->advices.list);
  free(a);
}

int32_t scuda_hand_cuMemAllocManaged(uint64_t *p, uint64_t bytes, uint32_t flags) {
  struct scuda_slot *context;
  int32_t r = scuda_context_of(0, &context);
  if (r) return r;
  if (!p || !bytes || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) return CUDA_ERROR_INVALID_VALUE;
  struct va_range *a;
  r = make(0, bytes, flags, &a);
  if (!r) *p = a->pages.start;
  if (r == CUDA_ERROR_OUT_OF_MEMORY) scuda_managed_full(bytes);
  return r;
}

/* Frees managed memory: 1 when it is some. Like the driver's, it waits for the work that may use it. */
int scuda_pre_cuMemFree_v2(uint64_t p, int32_t *r) {
  if (!scuda_is_managed(p)) return 0;
  if (SCUDA_UNLIKELY(scuda_several())) scuda_managed_enter();
  *r = scuda_uvm_synchronize(scuda_thread()->current, SCUDA_ALL_STREAMS);
  scuda_lock(&scuda_uvm.lock);
  struct va_range *a;
  do a = scuda_va_range_at(p);
  while (a && a->pages.start == p && a->mirror && scuda_fetch_cancel(a));
  if (!a || a->pages.start != p || !a->mirror) a = NULL;
  else unlink_va_range(a);
  scuda_unlock(&scuda_uvm.lock);
  if (!a) {
    *r = scuda_managed_over(CUDA_ERROR_INVALID_VALUE);
    return 1;
  }
  int32_t gone = scuda_va_range_unback(a);
  if (!*r) *r = gone;
  forget(a);
  scuda_managed_over(*r);
  return 1;
}

void scuda_managed_forget_context(uint64_t context) {
  scuda_lock(&scuda_uvm.lock);
  scuda_work_forget(context);
  scuda_unlock(&scuda_uvm.lock);
  if (!atomic_load(&scuda_managed_count)) return;
  if (SCUDA_UNLIKELY(scuda_several())) scuda_managed_enter();
  scuda_lock(&scuda_uvm.lock);
  for (struct va_range *a = scuda_uvm.ranges, *next; a; a = next) {
    next = a->next;
    if (a->context != context) continue;
    if (scuda_fetch_cancel(a)) {
      next = scuda_uvm.ranges;
      continue;
    }
    unlink_va_range(a);
    if (SCUDA_UNLIKELY(scuda_several())) scuda_va_range_unback(a);
    forget(a);
  }
  scuda_unlock(&scuda_uvm.lock);
  scuda_managed_over(CUDA_SUCCESS);
}

/* ---- __managed__ variables: the server's driver gave them their address, and no more than the variable may be
 * carried: what it says of the memory around it need not be one piece ---- */

int32_t scuda_managed_variable(uint64_t address, uint64_t bytes) {
  uint64_t from = address & ~(uint64_t)4095, to = (address + bytes + 4095) & ~(uint64_t)4095;
  while (from < to && scuda_is_managed(from)) from += 4096; /* variables share pages */
  while (from < to && scuda_is_managed(to - 4096)) to -= 4096;
  struct va_range *a;
  int32_t r = from < to ? make(from, to - from, CU_MEM_ATTACH_GLOBAL, &a) : CUDA_SUCCESS;
  if (r == CUDA_ERROR_OUT_OF_MEMORY)
    scuda_log(SCUDA_ERROR,
              "a __managed__ variable lies at %#llx on the server, where this process has something else; start it "
              "again, or without address randomisation (setarch -R)", (unsigned long long)address);
  /* what is here of the pages lacks the variable */
  if (!r) r = scuda_uvm_acquire(SCUDA_EVERYTHING, &(struct scuda_addresses){0}, SCUDA_ALL_STREAMS, SCUDA_EACH_SERVER);
  scuda_lock(&scuda_uvm.lock);
  for (uint64_t at = address; !r && at < address + bytes &&
       (a = scuda_va_range_at(at)); at = a->pages.start + a->pages.bytes) {
    uint64_t end = a->pages.start + a->pages.bytes;
    struct extent e = {a->extents, at - a->pages.start,
                       (address + bytes < end ? address + bytes : end) - a->pages.start}, *known = a->extents;
    while (known && (known->from != e.from || known->to != e.to)) known = known->next;
    if (known) continue;
    struct extent *new = malloc(sizeof *new);
    if (!new) r = CUDA_ERROR_OUT_OF_MEMORY;
    else *new = e, a->extents = new;
  }
  scuda_unlock(&scuda_uvm.lock);
  return r;
}

/* ---- hints (hints.c) ---- */

static struct va_range *whole(uint64_t p, uint64_t bytes) { /* under the lock; the range that holds all of it */
  struct va_range *a = scuda_va_range_at(p);
  return a && bytes && bytes <= a->pages.start + a->asked - p ? a : NULL;
}

struct scuda_advices *scuda_managed_advices(uint64_t p, uint64_t bytes, uint64_t *from) {
  scuda_lock(&scuda_uvm.lock);
  struct va_range *a = whole(p, bytes);
  if (a) *from = p - a->pages.start;
  else scuda_unlock(&scuda_uvm.lock);
  return a ? &a->advices : NULL;
}

void scuda_managed_advised(void) { scuda_unlock(&scuda_uvm.lock); }

/* Blocks go by what was said of their first page. */
void scuda_managed_heed(uint64_t p, uint64_t bytes) {
  struct va_range *a = scuda_va_range_at(p);
  uint64_t from = p - a->pages.start;
  for (uint64_t b = from / BLOCK; b * BLOCK < from + bytes; b++) {
    int32_t at = scuda_location_device(scuda_advice_at(&a->advices, b * BLOCK)->preferred);
    a->thrashing[b].prefers = at == CU_DEVICE_CPU ? SCUDA_AT_CPU : at == CU_DEVICE_INVALID ? SCUDA_NO_PLACE :
                              SCUDA_AT_GPU;
  }
}

/* With the next wait for the GPU, as what it still does may change it. */
void scuda_managed_want(uint64_t p, uint64_t bytes) {
  struct va_range *a = scuda_va_range_at(p);
  uint64_t from = p - a->pages.start;
  for (uint64_t b = from / BLOCK; b * BLOCK < from + bytes; b++) {
    a->thrashing[b].asked = 1;
    a->coming++;
  }
}

/* Blocks that lie in the stretch as a whole need not travel any more until somebody writes to them. */
int32_t scuda_managed_discard(uint64_t p, uint64_t bytes) {
  struct va_range *a;
  scuda_lock(&scuda_uvm.lock);
  do a = whole(p, bytes);
  while (a && scuda_fetch_cancel(a));
  if (a) {
    uint64_t from = p - a->pages.start, end = from + bytes == a->asked ? (uint64_t)a->blocks * BLOCK : from + bytes;
    uint32_t first = (uint32_t)((from + BLOCK - 1) / BLOCK), last = (uint32_t)(end / BLOCK);
    if (first < last && !a->extents) {
      scuda_pages_unmap(&a->pages, (uint64_t)first * BLOCK, scuda_va_range_bytes(a, first, last - first));
      scuda_pages_unmapped();
      scuda_va_range_mark(a, first, last - first, FRESH);
    }
  }
  scuda_unlock(&scuda_uvm.lock);
  return a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- attachment ---- */

int32_t scuda_hand_cuStreamAttachMemAsync(uint64_t stream, uint64_t p, uint64_t bytes, uint32_t flags, uint32_t ptds) {
  int32_t r = scuda_usable(stream);
  if (r) return r;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
    return CUDA_ERROR_INVALID_VALUE;
  if (flags == CU_MEM_ATTACH_SINGLE && !stream && !ptds) return CUDA_ERROR_INVALID_VALUE;
  scuda_lock(&scuda_uvm.lock);
  struct va_range *a = scuda_va_range_at(p);
  r = a && a->pages.start == p && (!bytes || bytes == a->asked) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (!r) scuda_va_range_attach(a, flags, scuda_stream_key(stream, ptds));
  scuda_unlock(&scuda_uvm.lock);
  return r;
}

/* Its work goes on, so that a fault waits for all there is. */
void scuda_managed_stream_ends(uint64_t stream) {
  if (!atomic_load(&scuda_uvm.restricted)) return;
  scuda_lock(&scuda_uvm.lock);
  for (struct va_range *a = scuda_uvm.ranges; a; a = a->next) {
    if (a->attachment == CU_MEM_ATTACH_SINGLE && a->attached == stream) {
      scuda_va_range_attach(a, a->made_for, 0);
      a->giver = SCUDA_ALL_STREAMS;
    }
    if (a->giver == stream) a->giver = SCUDA_ALL_STREAMS;
  }
  scuda_unlock(&scuda_uvm.lock);
}
