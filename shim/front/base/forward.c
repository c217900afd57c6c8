/* The interpreter of generic calls: it refuses what the driver would refuse at once, writes the command and reads the
 * reply. The server has its counterpart in server/dispatch. */
#include "base/forward.h"
#include <string.h>

enum { ELEMENTS_MAX = 1 << 20, PARAMS_MAX = 16 };

/* A call under way. */
struct forward {
  const struct scuda_form *form;
  const uint64_t *words;
  uint64_t elements[PARAMS_MAX];
  uint64_t made;               /* the handle of what the call makes */
  uint64_t request, reply;     /* bytes */
};

static uint8_t *at(uint64_t word) { return (uint8_t *)(uintptr_t)word; }

static int is_output(const struct scuda_param *p) {
  return p->dir == SCUDA_OUT || p->dir == SCUDA_INOUT || p->dir == SCUDA_RET;
}

static int is_input(const struct scuda_param *p) { return p->dir == SCUDA_IN || p->dir == SCUDA_INOUT; }

/* How many elements a pointer that is not NULL points to. */
static uint64_t counted(const struct forward *f, const struct scuda_param *p) {
  if (!p->by) return p->count;
  const struct scuda_param *by = &f->form->params[p->by - 1];
  uint64_t n = f->words[p->by - 1];
  if (p->flags & SCUDA_POINTER) {
    if (!n) return 0;
    if (by->size == 8) return scuda_word(at(n));
    uint32_t v = scuda_field(at(n));
    return by->flags & SCUDA_SIGNED ? (uint64_t)(int64_t)(int32_t)v : v;
  }
  if (by->flags & SCUDA_SIGNED ? (int64_t)n <= p->less : n <= p->less) return 0;
  return n - p->less;
}

static int32_t check_value(const struct scuda_param *p, uint64_t word) {
  if (!p->kind) return p->flags & SCUDA_DEVICE && (int32_t)word >= scuda_gpu_count ? CUDA_ERROR_INVALID_DEVICE : 0;
  if (p->kind == KIND_CUstream && p->flags & SCUDA_ENDS && word <= 2) return CUDA_ERROR_INVALID_HANDLE;
  return p->flags & SCUDA_MAYBE && !word ? 0 : scuda_check(word, p->kind);
}

static int32_t check(const struct forward *f) {
  for (unsigned i = 0; i < f->form->count; i++) {
    const struct scuda_param *p = &f->form->params[i];
    if (p->flags & SCUDA_NEEDED && !f->words[i]) return CUDA_ERROR_INVALID_VALUE;
    int32_t r = p->dir == SCUDA_VALUE ? check_value(p, f->words[i]) : 0;
    if (r) return r;
  }
  return 0;
}

static int32_t measure(struct forward *f) {
  for (unsigned i = 0; i < f->form->count; i++) {
    const struct scuda_param *p = &f->form->params[i];
    uint64_t word = f->words[i], n;
    switch (p->dir) {
    case SCUDA_NULL: continue;
    case SCUDA_VALUE: f->request += p->flags & SCUDA_RECORD ? scuda_pad(p->size) : 8; continue;
    case SCUDA_NEW: case SCUDA_OPAQUE: f->request += 8; continue;
    case SCUDA_STRING: n = word ? strlen((const char *)at(word)) + 1 : 0; break;
    default:
      n = word ? counted(f, p) : 0;
      if (n > ELEMENTS_MAX) return CUDA_ERROR_INVALID_VALUE;
    }
    f->elements[i] = n;
    f->request += 8;
    if (is_input(p) || p->dir == SCUDA_STRING) f->request += scuda_pad(n * p->size);
    if (is_output(p)) f->reply += 8 + scuda_pad(n * p->size);
  }
  return 0;
}

static int holds(const struct forward *f, const struct scuda_param *p, const struct scuda_when *when, uint32_t field) {
  uint32_t v = when->at < 0 ? (uint32_t)f->words[p->select - 1] : field;
  for (unsigned i = 0; i < when->count; i++)
    if (when->values[i] == v) return 1;
  return !when->count;
}

static int patched(const struct forward *f, const struct scuda_param *p, const struct scuda_patch *patch, uint8_t *e) {
  return holds(f, p, &patch->when, patch->when.at < 0 || !patch->when.count ? 0 : scuda_field(e + patch->when.at));
}

/* Makes the ordinals of GPUs in elements the server's, or the client's. */
static void translate(const struct forward *f, unsigned i, uint8_t *e, uint64_t n, int32_t (*by)(int32_t)) {
  const struct scuda_param *p = &f->form->params[i];
  for (; n; n--, e += p->size) {
    for (unsigned k = 0; k < p->patches; k++) {
      if (p->patch[k].kind || !patched(f, p, &p->patch[k], e)) continue;
      int32_t v = by((int32_t)scuda_field(e + p->patch[k].offset));
      memcpy(e + p->patch[k].offset, &v, sizeof v);
    }
  }
}

static int32_t to_server(int32_t device) { return scuda_to_server(device); }

static int has_devices(const struct scuda_param *p) {
  for (unsigned k = 0; k < p->patches; k++)
    if (!p->patch[k].kind) return 1;
  return 0;
}

static void put(const struct forward *f, uint8_t *to) {
  for (unsigned i = 0; i < f->form->count; i++) {
    const struct scuda_param *p = &f->form->params[i];
    uint64_t word = f->words[i], n = f->elements[i];
    switch (p->dir) {
    case SCUDA_NULL: break;
    case SCUDA_VALUE:
      if (p->flags & SCUDA_RECORD) to = scuda_put_struct(to, at(word), p->size);
      else to = scuda_put64(to, p->flags & SCUDA_DEVICE ? (uint64_t)(int64_t)scuda_to_server((int32_t)word) : word);
      break;
    case SCUDA_OPAQUE: to = scuda_put64(to, word); break;
    case SCUDA_NEW: to = scuda_put64(to, f->made); break;
    case SCUDA_STRING: to = scuda_put_bytes(to, at(word), n, 1); break;
    case SCUDA_IN: case SCUDA_INOUT:
      if (has_devices(p)) {
        uint8_t *elements = to + 8;
        to = scuda_put_bytes(to, at(word), n, p->size);
        translate(f, i, elements, n, to_server);
      } else {
        to = (p->by ? scuda_put_array : scuda_put_bytes)(to, at(word), n, p->size);
      }
      break;
    default: to = scuda_put64(to, p->by ? scuda_room(at(word), n) : n);
    }
  }
}

static const struct scuda_piece *pieces(const struct forward *f, const struct scuda_param *p,
                                        const struct scuda_reply *reply) {
  const struct scuda_choice *c = p->choices;
  if (!c) return NULL;
  while (c->when.count && !holds(f, p, &c->when, c->when.at < 0 ? 0 : (uint32_t)scuda_peek(reply, c->when.at))) c++;
  return c->pieces;
}

/* Reads what came back, and takes in the handles that the server has made. */
static void get(const struct forward *f, struct scuda_reply *reply) {
  for (unsigned i = 0; i < f->form->count; i++) {
    const struct scuda_param *p = &f->form->params[i];
    if (!is_output(p)) continue;
    uint8_t *e = at(f->words[i]);
    if (p->flags & SCUDA_TEXT) {
      scuda_get_text(reply, (char *)e, f->elements[i]);
      continue;
    }
    uint64_t n = scuda_get_pieces(reply, e, f->elements[i], p->size, pieces(f, p, reply));
    translate(f, i, e, n, scuda_from_server);
    for (; n; n--, e += p->size) {
      if (p->kind) scuda_adopt(scuda_word(e), p->kind);
      for (unsigned k = 0; k < p->patches; k++)
        if (p->patch[k].kind && patched(f, p, &p->patch[k], e))
          scuda_adopt(scuda_word(e + p->patch[k].offset), p->patch[k].kind);
    }
  }
}

/* ---- several servers ---- */

static void name_value(struct scuda_named *n, const struct scuda_param *p, uint64_t word) {
  if (p->kind) scuda_name_object(n, word);
  else if (p->flags & SCUDA_DEVICE) scuda_name_device(n, (int32_t)word);
  else if (p->flags & SCUDA_ADDRESS) scuda_name_address(n, word);
}

/* Unified memory is of the server that the call took it for (uvm/home.c), in whatever structure it stands. */
static void name_managed(struct scuda_named *n, const uint8_t *element, uint64_t bytes) {
  for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
    const struct scuda_range r = scuda_range_of(scuda_word(element + at), SCUDA_AS_MANAGED);
    if (r.flags) scuda_name_range(n, &r);
  }
}

/* The objects, GPUs and addresses among a call's arguments and in the elements that they point to. */
static struct scuda_named names(const struct forward *f) {
  struct scuda_named n = {0};
  for (unsigned i = 0; i < f->form->count; i++) {
    const struct scuda_param *p = &f->form->params[i];
    if (p->dir == SCUDA_VALUE) name_value(&n, p, f->words[i]);
    if (!is_input(p)) continue;
    uint8_t *e = at(f->words[i]);
    for (uint64_t k = 0; k < f->elements[i]; k++, e += p->size) {
      if (p->kind) scuda_name_object(&n, scuda_word(e));
      else name_managed(&n, e, p->size);
      for (unsigned q = 0; q < p->patches; q++) {
        if (!patched(f, p, &p->patch[q], e)) continue;
        if (p->patch[q].kind) scuda_name_object(&n, scuda_word(e + p->patch[q].offset));
        else scuda_name_device(&n, (int32_t)scuda_field(e + p->patch[q].offset));
      }
    }
  }
  return n;
}

/* Writes the command and waits for the answer, if there is one. */
static int32_t exchange(const struct forward *f, uint32_t how) {
  struct scuda_cmd c;
  uint32_t flags = how & ~(uint32_t)(SCUDA_SURE | SCUDA_CHANGES);
  int32_t r = scuda_begin(&c, f->form->op, how & SCUDA_SURE ? flags : flags | SCUDA_ANSWER, f->request);
  if (r) return r;
  put(f, c.payload);
  if (!c.answer) return scuda_send(&c);
  if (!f->reply) return scuda_call(&c, NULL, 0, NULL);
  struct scuda_reply reply;
  r = scuda_call_generic(&c, &reply, f->reply);
  if (!r || (f->form->outs_on_error && reply.at != reply.end)) {
    get(f, &reply);
    if (reply.bad) r = scuda_bad_reply(f->form->name);
  }
  scuda_reply_done(&reply);
  return r;
}

/* A call that is about a graph or a node may change what executable graphs take. */
static int about_graphs(const struct scuda_form *form) {
  for (unsigned i = 0; i < form->count; i++)
    if (form->params[i].kind == KIND_CUgraph || form->params[i].kind == KIND_CUgraphNode) return 1;
  return 0;
}

/* Makes the call on the server that the thread's commands are for. */
static int32_t make(struct forward *f, uint32_t how) {
  const struct scuda_form *form = f->form;
  const uint64_t *words = f->words;
  int changes = !(how & (SCUDA_SURE | SCUDA_CHANGES)) && about_graphs(form);
  for (unsigned i = 0; i < form->count; i++)
    if (form->params[i].dir == SCUDA_NEW && !(f->made = scuda_slot_new(form->params[i].kind)))
      return CUDA_ERROR_OUT_OF_MEMORY;
  int32_t r = exchange(f, how);
  if (changes) atomic_fetch_add(&scuda_graph_exec_epoch, 1);
  for (unsigned i = 0; i < form->count; i++) {
    const struct scuda_param *p = &form->params[i];
    if (p->dir == SCUDA_NEW && r) scuda_slot_free(f->made);
    if (p->dir == SCUDA_NEW && !r) memcpy(at(words[i]), &f->made, sizeof f->made);
    if (p->flags & SCUDA_ENDS && !r) scuda_slot_free(words[i]);
  }
  return r;
}

int32_t scuda_forward(const struct scuda_form *form, const uint64_t *words, uint32_t how) {
  struct forward f = {.form = form, .words = words};
  int32_t r = check(&f);
  if (!r) r = measure(&f);
  if (r) return r;
  if (SCUDA_LIKELY(!scuda_several())) return make(&f, how);
  struct scuda_named n = names(&f);
  struct scuda_visit v;
  if ((r = scuda_visit_named(&v, &n, form->name))) return r;
  r = make(&f, how);
  scuda_visit_end(v);
  return r;
}
