/* Which server has a range's pages, where a program has several. It is one at a time, its home. Work on another server
 * that uses the range first moves it: what the old server still does ends, its pages come here, and go to the new one,
 * which gets memory at the same address. The old one keeps its memory, so that the range can come back.
 *
 * What work uses: copies and sets what they name. Kernels use more than that, since pointers lie in memory. But a
 * kernel can only follow an address that its server was given: as a parameter, or in bytes that went there. Both are
 * noted for good, so that ranges which only one server's kernels know stay where they are, however many launches the
 * others have.
 *
 * Between the move and the command that does the work no other thread may move the range away again. So a call has the
 * turn from then on until it is over. */
#include "uvm/va_range.h"
#include "base/range.h"
#include "base/server.h"
#include "uvm/named.h"
#include "uvm/unmap.h"
#include "uvm/work.h"

static scuda_lock_t turn;          /* taken before the lock of unified memory */
static _Atomic uint64_t sightings; /* counts the times that a server was found to know an address */
static _Atomic uint32_t blind;     /* servers that were sent bytes at which we could not look */

void scuda_managed_enter(void) {
  struct scuda_thread *t = scuda_thread();
  if (t->turn) return;
  scuda_lock(&turn);
  t->turn = 1;
}

void scuda_managed_leave_turn(void) {
  struct scuda_thread *t = scuda_thread();
  if (!t->turn) return;
  t->turn = 0;
  scuda_unlock(&turn);
}

/* ---- which server a call is for: as calls/copy.c and base/forward.c decide it ---- */

uint64_t scuda_uvm_place(enum scuda_reach reach, const void *given, uint64_t bytes, uint64_t stream) {
  const struct scuda_slot *s = stream > 2 ? scuda_slot_of(stream, KIND_CUstream) : NULL;
  uint64_t current = scuda_context_on(scuda_server(), scuda_thread()->current), found = 0;
  if (s && s->context) return s->context;
  for (uint64_t i = 0; reach == SCUDA_NAMED && given && i < bytes / 8; i++) {
    uint64_t word = scuda_word((const uint8_t *)given + 8 * i);
    if (!(word >> 32) || scuda_is_managed(word)) continue;
    const struct scuda_range r = scuda_range_of(word, SCUDA_AS_DEVICE);
    if (!scuda_range_is_device(&r) || !scuda_context_usable(r.context)) continue;
    if (scuda_slot_server(r.context) == scuda_server()) return current;
    if (!found) found = r.context;
  }
  return found ? found : current; /* 0: there is none, and so no work */
}

/* ---- which addresses a server's kernels may know ---- */

uint64_t scuda_managed_sightings(void) { return atomic_load(&sightings); }

static uint32_t seen_by(uint32_t server) { return (uint32_t)SCUDA_RANGE_SEEN << server; }

static void sighted(uint64_t address, uint32_t server) {
  uint32_t had = scuda_ranges_change(&scuda_managed_ranges, address, 0, seen_by(server));
  if (had && !(had & seen_by(server))) atomic_fetch_add(&sightings, 1);
}

int scuda_uvm_known(const struct va_range *a, uint32_t server) {
  return atomic_load(&blind) >> server & 1 || !a->mirror ||
         scuda_range_of(a->pages.start, SCUDA_AS_MANAGED).flags & seen_by(server);
}

void scuda_uvm_sees(uint32_t server, const void *data, uint64_t bytes) {
  const uint64_t window = SCUDA_MANAGED_END - SCUDA_MANAGED_FIRST;
  const uint8_t *p = data;
  uint64_t last = 0; /* many addresses of one page are one sighting */
  for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
    uint64_t word = scuda_word(p + at) & UINT64_MAX >> 16; /* programs may have marks in the upper bits */
    if (word - SCUDA_MANAGED_FIRST >= window || word >> 12 == last) continue;
    last = word >> 12;
    sighted(word, server);
  }
}

void scuda_managed_uploaded(uint32_t server, uint64_t to, const void *data, uint64_t bytes) {
  const uint64_t skip = -to & 7; /* addresses lie at multiples of 8 there */
  if (scuda_managed_some() && bytes > skip) scuda_uvm_sees(server, (const uint8_t *)data + skip, bytes - skip);
}

void scuda_managed_uploads(uint64_t to, const void *data, uint64_t bytes, int later) {
  const uint32_t server = scuda_server();
  if (later && !(atomic_fetch_or(&blind, 1u << server) >> server & 1)) atomic_fetch_add(&sightings, 1);
  if (!later) scuda_managed_uploaded(server, to, data, bytes);
}

void scuda_managed_carries(uint32_t from, uint32_t to) {
  if (!scuda_managed_some()) return;
  if (atomic_load(&blind) >> from & 1 && !(atomic_fetch_or(&blind, 1u << to) >> to & 1))
    atomic_fetch_add(&sightings, 1);
  scuda_lock(&scuda_uvm.lock);
  for (const struct va_range *a = scuda_uvm.ranges; a; a = a->next)
    if (scuda_uvm_known(a, from)) sighted(a->pages.start, to);
  scuda_unlock(&scuda_uvm.lock);
}

/* ---- memory for it ---- */

int32_t scuda_va_range_back(struct va_range *a) {
  struct wire_host_map request = {a->pages.start, a->pages.bytes};
  struct wire_global_info reply = {0};
  struct scuda_cmd c;
  int32_t r = scuda_begin(&c, OP_HOST_MAP, SCUDA_ANSWER, sizeof request);
  if (r) return r;
  memcpy(c.payload, &request, sizeof request);
  if ((r = scuda_call(&c, &reply, sizeof reply, NULL))) return r;
  if (reply.address == a->pages.start) {
    a->backed[c.server] = scuda_thread()->current;
    return CUDA_SUCCESS;
  }
  scuda_log(SCUDA_ERROR, "unified memory at %#llx: the server has something else at this address",
            (unsigned long long)a->pages.start);
  struct wire_host_unmap undo = {a->pages.start, a->pages.bytes};
  scuda_simple(OP_HOST_UNMAP, SCUDA_ANSWER, &undo, sizeof undo);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

int32_t scuda_va_range_unback(const struct va_range *a) {
  struct wire_host_unmap request = {a->pages.start, a->pages.bytes};
  if (SCUDA_LIKELY(!scuda_several())) return scuda_simple(OP_HOST_UNMAP, SCUDA_ANSWER, &request, sizeof request);
  const uint32_t home = scuda_va_range_server(a);
  int32_t first = CUDA_SUCCESS;
  for (uint32_t server = 0; server < scuda_servers; server++) {
    if (!a->backed[server]) continue;
    struct scuda_visit v = scuda_visit(server, 0);
    struct scuda_self self = scuda_self_begin(scuda_context_on(server, a->backed[server]));
    int32_t r = scuda_simple(OP_HOST_UNMAP, SCUDA_ANSWER, &request, sizeof request);
    scuda_self_end(self);
    scuda_visit_end(v);
    if (!first && (server == home || !scuda_server_lost(server))) first = r;
  }
  return first;
}

/* ---- moving ---- */

/* All the work that a server was given ends. The lock is let go meanwhile. */
static int32_t finish(uint32_t server) {
  int32_t first = CUDA_SUCCESS;
  uint64_t context;
  for (uint32_t i = 0; (context = scuda_work_place(i));) {
    if (scuda_slot_server(context) != server) {
      i++;
      continue;
    }
    scuda_unlock(&scuda_uvm.lock);
    struct scuda_uvm_self self;
    int32_t r = scuda_uvm_begin(&self, context);
    if (!r) r = scuda_wire_cuCtxSynchronize(0);
    scuda_uvm_end(&self);
    scuda_lock(&scuda_uvm.lock);
    if (!first) first = r;
    i += scuda_work_place(i) == context; /* else it has ended, and another one has its place */
  }
  return first;
}

/* The program's accesses are denied; the states say what it wrote. */
static int32_t unmap_all(struct va_range *a) {
  int32_t r = CUDA_SUCCESS;
  if (a->low >= a->high) return r;
  struct scuda_unmap unmap;
  scuda_unmap_begin(&unmap, &a->pages, (uint64_t)a->low * BLOCK, scuda_va_range_bytes(a, a->low, a->high - a->low));
  scuda_unmap_await(&unmap, UINT64_MAX);
  for (uint32_t b = a->low, end; b < a->high && !r; b = end) {
    for (end = b + 1; end < a->high && a->state[end] == a->state[b]; end++) {}
    if (a->state[b] == CLEAN && scuda_pages_tracked())
      r = scuda_pages_written(&a->pages, (uint64_t)b * BLOCK, scuda_va_range_bytes(a, b, end - b), BLOCK, a->state + b,
                              DIRTY);
  }
  return r;
}

static uint32_t run_of(const struct va_range *a, uint32_t b, int (*is)(uint8_t)) {
  uint32_t end = b;
  while (end < a->blocks && is(a->state[end])) end++;
  return end - b;
}
static int is_away(uint8_t s) { return s == AWAY; }
static int is_used(uint8_t s) { return s != FRESH; }

static int32_t fetch_all(struct va_range *a) {
  for (uint32_t b = 0, n; b < a->blocks; b += n ? n : 1) {
    if (!(n = run_of(a, b, is_away))) continue;
    int32_t r = scuda_migrate_push(a, b, n, FETCH, 0);
    if (r) return r;
    scuda_va_range_mark(a, b, n, READY);
  }
  return CUDA_SUCCESS;
}

static int32_t send_all(struct va_range *a, int zero) {
  int32_t r = CUDA_SUCCESS;
  if (zero) {
    struct scuda_uvm_self self;
    r = scuda_uvm_begin(&self, a->home);
    if (!r) r = scuda_wire_cuMemsetD8Async(a->pages.start, 0, a->pages.bytes, self.stream, 0);
    scuda_uvm_end(&self);
  }
  for (uint32_t b = 0, n; b < a->blocks && !r; b += n ? n : 1)
    if ((n = run_of(a, b, is_used))) r = scuda_migrate_send(a, b, n);
  return r ? r : scuda_migrate_sent(a);
}

static int32_t back_there(struct va_range *a, uint64_t context) {
  struct scuda_uvm_self self;
  int32_t r = scuda_uvm_begin(&self, context);
  if (!r) r = scuda_va_range_back(a);
  scuda_uvm_end(&self);
  return r;
}

/* Calls find the server by the table of ranges. */
static void settle_at(struct va_range *a, uint64_t home) {
  a->home = home;
  scuda_ranges_change(&scuda_managed_ranges, a->pages.start, UINT32_MAX << SCUDA_SERVER_SHIFT,
                      scuda_va_range_server(a) << SCUDA_SERVER_SHIFT);
}

static void shut(struct va_range *a) {
  struct va_range **at = &scuda_uvm.opened;
  while (*at && *at != a) at = &(*at)->next_open;
  if (*at) *at = a->next_open;
  a->open = 0;
}

/* Under the lock, which is let go of while the old server works. After a failure the range is where it was. */
static int32_t move(struct va_range *a, uint64_t context) {
  const uint64_t old = a->home;
  const uint32_t server = scuda_slot_server(context);
  int32_t r = finish(scuda_slot_server(old));
  while (scuda_fetch_cancel(a)) {}
  if (!r) r = unmap_all(a);
  if (!r) r = fetch_all(a);
  int new = !a->backed[server], zero = 0;
  if (!r && new) r = back_there(a, context);
  if (r) return r;
  for (uint32_t b = 0; new && b < a->blocks; b++) zero |= a->state[b] == FRESH;
  settle_at(a, context);
  if ((r = send_all(a, zero))) {
    settle_at(a, old);
    return r;
  }
  a->low = 0;
  a->high = a->blocks;
  scuda_va_range_given(a);
  if (a->open) shut(a);
  return r;
}

/* ---- what a call uses ---- */

static int32_t refuse(_Atomic int *said, const char *why) {
  if (!atomic_exchange(said, 1))
    scuda_log(SCUDA_WARN, "unified memory of one server is to be used by another, %s, which is not supported "
              "(CUDA_ERROR_NOT_SUPPORTED)", why);
  return CUDA_ERROR_NOT_SUPPORTED;
}

int32_t scuda_uvm_backed(const struct scuda_addresses *n) {
  static _Atomic int said;
  const uint32_t server = scuda_server();
  int32_t r = CUDA_SUCCESS;
  scuda_lock(&scuda_uvm.lock);
  for (uint32_t i = 0; i < n->count && !r; i++) {
    const struct va_range *a = scuda_va_range_at(n->list[i]);
    if (a && a->mirror && !a->backed[server]) r = refuse(&said, "in a graph, texture or tensor map");
  }
  scuda_unlock(&scuda_uvm.lock);
  return r;
}

static int32_t bring(struct va_range *a, uint64_t context) {
  static _Atomic int captured, variable;
  if (!a->mirror) return refuse(&variable, "where a __managed__ variable is");
  if (atomic_load(&scuda_captures)) return refuse(&captured, "while a stream is captured");
  return move(a, context);
}

/* A kernel may get to it without a parameter that names it. What has failed there is nothing that it could use. */
static int within_reach(const struct va_range *a, uint32_t server, uint64_t key) {
  if (!a->mirror || scuda_server_lost(scuda_va_range_server(a)) || scuda_slot(a->home)->sticky) return 0;
  return a->held || (scuda_va_range_attached_to(a, key) && scuda_uvm_known(a, server));
}

int32_t scuda_uvm_move(enum scuda_reach reach, const struct scuda_addresses *n, uint64_t context, uint64_t stream,
                       uint32_t ptds) {
  const uint32_t server = scuda_slot_server(context);
  const uint64_t key = scuda_stream_key(stream, ptds);
  int32_t r = CUDA_SUCCESS;
  scuda_lock(&scuda_uvm.lock);
  for (uint32_t i = 0; i < n->count && !r; i++) {
    struct va_range *a = scuda_va_range_at(n->list[i]);
    if (!a) continue;
    if (reach != SCUDA_NAMED) sighted(n->list[i], server);
    if (scuda_va_range_server(a) != server) r = bring(a, context);
  }
  if (reach != SCUDA_NAMED) {
    for (struct va_range *a = scuda_uvm.ranges; a && !r; a = a->next)
      if (scuda_va_range_server(a) != server && within_reach(a, server, key)) r = bring(a, context);
  }
  scuda_work_at(context);
  scuda_unlock(&scuda_uvm.lock);
  return r;
}

void scuda_managed_leave_context(uint64_t context) {
  if (SCUDA_LIKELY(!scuda_several()) || !scuda_managed_some()) return;
  scuda_managed_enter();
  scuda_lock(&scuda_uvm.lock);
  for (struct va_range *a = scuda_uvm.ranges; a; a = a->next)
    if (a->home == context && a->context != context && !scuda_va_range_lost(a)) move(a, a->context);
  scuda_unlock(&scuda_uvm.lock);
  scuda_managed_leave_turn();
}
