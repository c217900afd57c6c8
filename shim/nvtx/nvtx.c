/* libscuda-nvtx.so: what a program says of itself by NVTX goes into the file of its timeline. `scuda trace --kernels`
 * names it in NVTX_INJECTION64_PATH, so that it is opened by programs that use NVTX, and by no others.
 *
 * Locks: none. Handles are numbers that are only counted, or memory that is never given back. */
#define _GNU_SOURCE
#include "nvtx.h"
#include "base/events.h"
#include "base/common.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MOST = 1024 };
struct text { uint32_t length; char bytes[TEXT_MOST]; };

/* What a program registered: a domain has a number, a string its text, which is no longer than it needs. */
struct handle { uint32_t number; struct text text; };

static void put_text(struct text *t, const char *from) {
  t->length = from ? (uint32_t)strnlen(from, TEXT_MOST) : 0;
  memcpy(t->bytes, from ? from : "", t->length);
}

/* As UTF-8; what does not fit is cut off. */
static void put_wide(struct text *t, const wchar_t *from) {
  t->length = 0;
  for (; from && *from && t->length + 4 <= TEXT_MOST; from++)
    t->length += nvtx_utf8(t->bytes + t->length, (uint32_t)*from);
}

static void put_message(struct text *t, const struct nvtx_attributes *a) {
  t->length = 0;
  if (a->bytes < sizeof *a || !a->message) return;
  switch (a->message_type) {
  case NVTX_MESSAGE_ASCII: put_text(t, a->message); break;
  case NVTX_MESSAGE_UNICODE: put_wide(t, a->message); break;
  case NVTX_MESSAGE_REGISTERED: {
    const struct text *of = &((const struct handle *)a->message)->text;
    memcpy(t->bytes, of->bytes, t->length = of->length);
  }
  }
}

/* ---- events ---- */

static uint32_t number_of(const struct handle *h) { return h ? h->number : 0; }

static uint64_t next(void) {
  static _Atomic uint64_t last;
  return atomic_fetch_add(&last, 1) + 1;
}

/* a is NULL for what has a text alone. */
static void tell(uint16_t kind, uint32_t domain, uint64_t id, const struct nvtx_attributes *a, const struct text *t) {
  if (!scuda_events_open("nvtx")) return; /* a forked child begins its own */
  struct event_range e = {.event.kind = kind, .domain = domain, .id = id, .time = scuda_events_now()};
  if (a) {
    e.category = a->category;
    e.color = a->color_type == NVTX_COLOR_ARGB ? a->color : 0;
    e.payload_type = (uint32_t)a->payload_type;
    e.payload = a->payload;
  }
  scuda_event(&e, sizeof e, t ? t->bytes : NULL, t ? t->length : 0);
}
static void tell_attributes(uint16_t kind, uint32_t domain, uint64_t id, const struct nvtx_attributes *a) {
  struct text t;
  if (!a) return;
  put_message(&t, a);
  tell(kind, domain, id, a, &t);
}
static void tell_narrow(uint16_t kind, uint64_t id, const char *message) {
  struct text t;
  put_text(&t, message);
  tell(kind, 0, id, NULL, &t);
}
static void tell_wide(uint16_t kind, uint64_t id, const wchar_t *message) {
  struct text t;
  put_wide(&t, message);
  tell(kind, 0, id, NULL, &t);
}
static void tell_name(uint16_t kind, uint32_t domain, uint32_t id, const struct text *t) {
  if (!scuda_events_open("nvtx")) return;
  struct event_named e = {.event.kind = kind, .domain = domain, .id = id};
  scuda_event(&e, sizeof e, t->bytes, t->length);
}

/* ---- the functions that NVTX calls ---- */

static void mark_ex(const struct nvtx_attributes *a) { tell_attributes(EVENT_MARK, 0, 0, a); }
static void mark_a(const char *m) { tell_narrow(EVENT_MARK, 0, m); }
static void mark_w(const wchar_t *m) { tell_wide(EVENT_MARK, 0, m); }

static uint64_t domain_start(const struct handle *d, const struct nvtx_attributes *a) {
  uint64_t id = next();
  tell_attributes(EVENT_START, number_of(d), id, a);
  return id;
}
static uint64_t start_ex(const struct nvtx_attributes *a) { return domain_start(NULL, a); }
static uint64_t start_a(const char *m) {
  uint64_t id = next();
  tell_narrow(EVENT_START, id, m);
  return id;
}
static uint64_t start_w(const wchar_t *m) {
  uint64_t id = next();
  tell_wide(EVENT_START, id, m);
  return id;
}
static void end(uint64_t id) { tell(EVENT_END, 0, id, NULL, NULL); }

/* The level that push and pop answer: of a range among those of its thread and domain. A thread has them in some
 * domains at a time; of others it is not known. */
enum { DOMAINS = 32, UNKNOWN = -2 /* as where there is no tool */ };
static __thread struct { uint32_t domain; int depth; } open_ranges[DOMAINS];
static int *depth_in(uint32_t domain) {
  int *free = NULL;
  for (int i = 0; i < DOMAINS; i++) {
    if (open_ranges[i].depth && open_ranges[i].domain == domain) return &open_ranges[i].depth;
    if (!open_ranges[i].depth && !free) {
      open_ranges[i].domain = domain;
      free = &open_ranges[i].depth;
    }
  }
  return free;
}
static int pushed(uint32_t domain) {
  int *depth = depth_in(domain);
  return depth ? (*depth)++ : UNKNOWN;
}
static int domain_push(const struct handle *d, const struct nvtx_attributes *a) {
  tell_attributes(EVENT_PUSH, number_of(d), 0, a);
  return pushed(number_of(d));
}
static int push_ex(const struct nvtx_attributes *a) { return domain_push(NULL, a); }
static int push_a(const char *m) {
  tell_narrow(EVENT_PUSH, 0, m);
  return pushed(0);
}
static int push_w(const wchar_t *m) {
  tell_wide(EVENT_PUSH, 0, m);
  return pushed(0);
}
static int domain_pop(const struct handle *d) {
  int *depth = depth_in(number_of(d));
  tell(EVENT_POP, number_of(d), 0, NULL, NULL);
  return depth && *depth ? --*depth : UNKNOWN;
}
static int pop(void) { return domain_pop(NULL); }

static void domain_category_a(const struct handle *d, uint32_t id, const char *name) {
  struct text t;
  put_text(&t, name);
  tell_name(EVENT_CATEGORY, number_of(d), id, &t);
}
static void domain_category_w(const struct handle *d, uint32_t id, const wchar_t *name) {
  struct text t;
  put_wide(&t, name);
  tell_name(EVENT_CATEGORY, number_of(d), id, &t);
}
static void category_a(uint32_t id, const char *name) { domain_category_a(NULL, id, name); }
static void category_w(uint32_t id, const wchar_t *name) { domain_category_w(NULL, id, name); }
static void thread_a(uint32_t thread, const char *name) {
  struct text t;
  put_text(&t, name);
  tell_name(EVENT_THREAD, 0, thread, &t);
}
static void thread_w(uint32_t thread, const wchar_t *name) {
  struct text t;
  put_wide(&t, name);
  tell_name(EVENT_THREAD, 0, thread, &t);
}

static void domain_mark(const struct handle *d, const struct nvtx_attributes *a) {
  tell_attributes(EVENT_MARK, number_of(d), 0, a);
}
static void domain_end(const struct handle *d, uint64_t id) { tell(EVENT_END, number_of(d), id, NULL, NULL); }

/* Domains are counted from 1 on, and strings with them, which does no harm. */
static struct handle *keep(const struct text *t) {
  static _Atomic uint32_t last;
  struct handle *h = malloc(offsetof(struct handle, text.bytes) + t->length);
  if (!h) return NULL;
  h->number = atomic_fetch_add(&last, 1) + 1;
  memcpy(h->text.bytes, t->bytes, h->text.length = t->length);
  return h;
}
static struct handle *string_a(const struct handle *d, const char *text) {
  struct text t;
  (void)d;
  put_text(&t, text);
  return keep(&t);
}
static struct handle *string_w(const struct handle *d, const wchar_t *text) {
  struct text t;
  (void)d;
  put_wide(&t, text);
  return keep(&t);
}
static struct handle *create(const struct text *t) {
  struct handle *h = keep(t);
  if (h) tell_name(EVENT_DOMAIN, h->number, 0, t);
  return h;
}
static struct handle *create_a(const char *name) {
  struct text t;
  put_text(&t, name);
  return create(&t);
}
static struct handle *create_w(const wchar_t *name) {
  struct text t;
  put_wide(&t, name);
  return create(&t);
}

/* ---- coming into the program ---- */

SCUDA_EXPORT int InitializeInjectionNvtx2(nvtx_tables tables) {
  static const struct nvtx_function core[] = {
    {NVTX_MARK_EX, (void *)mark_ex}, {NVTX_MARK_A, (void *)mark_a}, {NVTX_MARK_W, (void *)mark_w},
    {NVTX_START_EX, (void *)start_ex}, {NVTX_START_A, (void *)start_a}, {NVTX_START_W, (void *)start_w},
    {NVTX_END, (void *)end}, {NVTX_PUSH_EX, (void *)push_ex}, {NVTX_PUSH_A, (void *)push_a},
    {NVTX_PUSH_W, (void *)push_w}, {NVTX_POP, (void *)pop}, {NVTX_CATEGORY_A, (void *)category_a},
    {NVTX_CATEGORY_W, (void *)category_w}, {NVTX_THREAD_A, (void *)thread_a}, {NVTX_THREAD_W, (void *)thread_w}};
  static const struct nvtx_function core2[] = {
    {NVTX_DOMAIN_MARK, (void *)domain_mark}, {NVTX_DOMAIN_START, (void *)domain_start},
    {NVTX_DOMAIN_END, (void *)domain_end}, {NVTX_DOMAIN_PUSH, (void *)domain_push},
    {NVTX_DOMAIN_POP, (void *)domain_pop}, {NVTX_DOMAIN_CATEGORY_A, (void *)domain_category_a},
    {NVTX_DOMAIN_CATEGORY_W, (void *)domain_category_w}, {NVTX_DOMAIN_STRING_A, (void *)string_a},
    {NVTX_DOMAIN_STRING_W, (void *)string_w}, {NVTX_DOMAIN_CREATE_A, (void *)create_a},
    {NVTX_DOMAIN_CREATE_W, (void *)create_w}};
  const struct nvtx_callbacks *c = tables ? tables(NVTX_TABLE_CALLBACKS) : NULL;
  if (!c || c->bytes < sizeof *c || !c->functions || !scuda_events_open("nvtx")) return 0;
  nvtx_fill(c, NVTX_MODULE_CORE, core, sizeof core / sizeof *core);
  nvtx_fill(c, NVTX_MODULE_CORE2, core2, sizeof core2 / sizeof *core2);
  return 1;
}
