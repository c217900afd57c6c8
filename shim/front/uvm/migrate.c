/* Migration: moves the bytes of unified memory between the client and the server. It takes no lock: the caller sees to
 * it that nobody else touches the blocks, and that the calling thread is in the range's context. */
#include "uvm/va_range.h"
#include "base/range.h"

/* Of [from, to) what the server has: all, or what lies in an extent. 0: nothing. */
static int part(const struct extent *e, uint64_t *from, uint64_t *to) {
  if (e && e->from > *from) *from = e->from;
  if (e && e->to < *to) *to = e->to;
  return *from < *to;
}

static int32_t begin_changes(struct scuda_migration *m, uint64_t range, uint64_t stream, uint8_t *here,
                             uint32_t flags) {
  struct wire_host_changes request = {
    range, m->at - range, m->bytes, stream, scuda_core.transfer(here, m->bytes, scuda_thread_word(), 0), flags
  };
  int32_t r = scuda_begin(&m->command, OP_HOST_CHANGES, SCUDA_ANSWER, sizeof request);
  if (!r) memcpy(m->command.payload, &request, sizeof request);
  return r;
}

static int32_t begin_bytes(struct scuda_migration *m, uint64_t stream, uint8_t *here, uint32_t flags) {
  struct wire_copy_d2h request = {
    m->at, m->bytes, stream, scuda_core.transfer(here, m->bytes, scuda_thread_word(), m->soon),
        flags | (m->soon ? SCUDA_COPY_DONE : SCUDA_COPY_SYNC)
  };
  int32_t r = scuda_begin(&m->command, OP_COPY_D2H, m->soon ? SCUDA_WORKS : SCUDA_ANSWER, sizeof request);
  if (!r) memcpy(m->command.payload, &request, sizeof request);
  return r;
}

void scuda_migrate_start(struct scuda_migration *m, const struct scuda_fetch *f, const struct extent *e,
                         uint64_t stream, uint8_t *here, int how) {
  uint64_t range = f->range->pages.start, from = f->from, to = from + f->bytes;
  uint32_t flags = SCUDA_COPY_MANAGED | (how & PUSH ? SCUDA_COPY_PUSH : 0);
  *m = (struct scuda_migration){.way = f->way, .soon = how & SOON && f->way == FETCH && !scuda_blocking()};
  if (!part(e, &from, &to)) return;
  m->at = range + from;
  m->bytes = to - from;
  here += from - f->from;
  m->result = m->way == FETCH_CHANGES ? begin_changes(m, range, stream, here, flags) :
      begin_bytes(m, stream, here, flags);
  if (m->result) return;
  if (m->soon) m->result = scuda_send(&m->command);
  else scuda_start(&m->command);
}

int32_t scuda_migrate_end(struct scuda_migration *m) {
  struct wire_changes changes = {.bytes = m->bytes};
  int all = m->way == FETCH;
  if (!m->bytes) return CUDA_SUCCESS;
  if (!m->result && !m->soon)
    m->result = scuda_call(&m->command, all ? NULL : &changes, all ? 0 : sizeof changes, NULL);
  if (!m->result) count(SCUDA_DOWN, changes.bytes);
  else
    scuda_log(SCUDA_ERROR, "unified memory: %llu bytes at %#llx cannot be fetched (CUresult %d)",
              (unsigned long long)m->bytes, (unsigned long long)m->at, m->result);
  return m->result;
}

int32_t scuda_migrate_push(struct va_range *a, uint32_t first, uint32_t blocks, enum way way, int how) {
  struct scuda_fetch f = {.range = a, .first = first, .blocks = blocks, .way = way, .from = (uint64_t)first * BLOCK,
                          .bytes = scuda_va_range_bytes(a, first, blocks)};
  struct scuda_uvm_self self;
  struct scuda_migration m;
  const struct extent *e = a->extents;
  int32_t r = scuda_uvm_begin(&self, a->home);
  while (!r) {
    scuda_migrate_start(&m, &f, e, self.stream, a->pages.open + f.from, PUSH | how);
    r = scuda_migrate_end(&m);
    if (!e || !(e = e->next)) break;
  }
  memset(a->file + first, OPENED, blocks);
  scuda_uvm_end(&self);
  return r;
}

int32_t scuda_migrate_send(struct va_range *a, uint32_t first, uint32_t blocks) {
  const uint64_t begin = (uint64_t)first * BLOCK, end = begin + scuda_va_range_bytes(a, first, blocks);
  struct scuda_uvm_self self;
  const struct extent *e = a->extents;
  int32_t r = scuda_uvm_begin(&self, a->home);
  if (!r) r = scuda_usable(self.stream);
  while (!r) {
    uint64_t from = begin, to = end;
    if (part(e, &from, &to)) {
      uint64_t at = a->pages.start + from, bytes = to - from;
      count(SCUDA_UP, bytes);
      if (SCUDA_UNLIKELY(scuda_several())) scuda_uvm_sees(scuda_va_range_server(a), a->pages.open + from, bytes);
      r = scuda_upload_bytes(at, a->pages.open + from, bytes, self.stream, 0, SCUDA_COPY_MANAGED,
                             scuda_on_device(at, bytes));
      if (r)
        scuda_log(SCUDA_ERROR, "unified memory: %llu bytes at %#llx cannot be sent (CUresult %d)",
                  (unsigned long long)bytes, (unsigned long long)at, r);
    }
    if (!e || !(e = e->next)) break;
  }
  memset(a->file + first, OPENED, blocks);
  scuda_uvm_end(&self);
  return r;
}

int32_t scuda_migrate_sent(const struct va_range *a) {
  struct scuda_uvm_self self;
  int32_t r = scuda_uvm_begin(&self, a->home);
  if (!r) r = scuda_wire_cuStreamSynchronize(self.stream, 0);
  scuda_uvm_end(&self);
  return r;
}
