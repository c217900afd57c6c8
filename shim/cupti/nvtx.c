/* Markers and ranges of the program's, which it makes by NVTX. NVTX is in headers: a program that uses it opens the
 * library that NVTX_INJECTION64_PATH names, at its first call, and hands it tables of its functions to be filled. */
#include "cupti.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

/* Of NVTX 3: a table of functions, modules of it, their functions. */
enum { CALLBACKS = 1, CORE = 1, CORE2 = 5 };
enum {
  MARK_EX = 1, MARK, MARK_WIDE, RANGE_START_EX, RANGE_START, RANGE_START_WIDE, RANGE_END, PUSH_EX, PUSH, PUSH_WIDE, POP,
  DOMAIN_MARK_EX = 1, DOMAIN_RANGE_START_EX, DOMAIN_RANGE_END, DOMAIN_PUSH_EX, DOMAIN_POP,
  DOMAIN_REGISTER = 10, DOMAIN_REGISTER_WIDE, DOMAIN_CREATE, DOMAIN_CREATE_WIDE
};
typedef void (*function)(void);
struct callbacks {
  size_t bytes;
  int (*functions)(uint32_t module, function ***table, uint32_t *count);
};
enum { TEXT = 1, WIDE, REGISTERED };
struct attributes {
  uint16_t version, bytes;
  uint32_t category, color_type, color, payload_type, reserved;
  uint64_t payload;
  uint32_t message_type, padding;
  const void *message;         /* a registered one is interned by us */
};

static const char *text(const char *t) { return t ? cupti_intern(t, strlen(t)) : NULL; }

static const char *wide(const wchar_t *w) {
  if (!w) return NULL;
  size_t n = 0, most = 4 * wcslen(w) + 1;
  char *p = malloc(most);
  for (; p && *w; w++) { /* UTF-8, whatever the locale is */
    uint32_t c = (uint32_t)*w;
    if (c < 0x80) {
      p[n++] = (char)c;
      continue;
    }
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    p[n++] = (char)(0xff00u >> (more + 1) | (c >> 6 * more & (0x3fu >> more)));
    while (more--) p[n++] = (char)(0x80 | (c >> 6 * more & 0x3f));
  }
  const char *t = p ? cupti_intern(p, n) : NULL;
  free(p);
  return t;
}

static const char *text_of(const struct attributes *a) {
  if (!a || !a->message) return "";
  switch (a->message_type) {
  case TEXT: return text(a->message);
  case WIDE: return wide(a->message);
  case REGISTERED: return a->message;
  }
  return "";
}

static void mark(uint32_t flags, uint32_t id, const char *name, const char *domain) {
  if (cupti_self()->inside) return;
  struct CUpti_ActivityMarker2 m = {
    .kind = CUPTI_ACTIVITY_KIND_MARKER, .flags = flags, .timestamp = cupti_now(), .id = id,
    .objectKind = CUPTI_ACTIVITY_OBJECT_THREAD, .name = (uintptr_t)name, .domain = (uintptr_t)domain};
  uint32_t of[] = {(uint32_t)getpid(), cupti_thread_id()};
  memcpy(m.objectId, of, sizeof of);
  cupti_write(&m, sizeof m);
}

static uint32_t next_id(void) {
  static _Atomic uint32_t last;
  return atomic_fetch_add(&last, 1) + 1;
}

/* ---- the functions ---- */

static int off(void) { return !cupti_active[CUPTI_ACTIVITY_KIND_MARKER]; }
#define OF(type, m) (&(struct attributes){.message_type = type, .message = m})

static void domain_mark(const char *domain, const struct attributes *a) {
  if (!off()) mark(CUPTI_ACTIVITY_FLAG_MARKER_INSTANTANEOUS, next_id(), text_of(a), domain);
}
static void mark_ex(const struct attributes *a) { domain_mark(NULL, a); }
static void mark_text(const char *t) { mark_ex(OF(TEXT, t)); }
static void mark_wide(const wchar_t *t) { mark_ex(OF(WIDE, t)); }

static uint64_t domain_range_start(const char *domain, const struct attributes *a) {
  uint32_t id = next_id();
  if (!off()) mark(CUPTI_ACTIVITY_FLAG_MARKER_START, id, text_of(a), domain);
  return id;
}
static uint64_t range_start_ex(const struct attributes *a) { return domain_range_start(NULL, a); }
static uint64_t range_start(const char *t) { return range_start_ex(OF(TEXT, t)); }
static uint64_t range_start_wide(const wchar_t *t) { return range_start_ex(OF(WIDE, t)); }
static void domain_range_end(const char *domain, uint64_t id) {
  if (!off()) mark(CUPTI_ACTIVITY_FLAG_MARKER_END, (uint32_t)id, NULL, domain);
}
static void range_end(uint64_t id) { domain_range_end(NULL, id); }

/* A thread's ranges, of all domains; what they answer is how many of the domain are around. */
static int depth_of(const struct cupti_thread *t, const char *domain) {
  int n = 0;
  for (uint32_t i = 0; i < t->range_count; i++) n += t->ranges[i].domain == domain;
  return n;
}
static int domain_push(const char *domain, const struct attributes *a) {
  struct cupti_thread *t = cupti_self();
  uint32_t id = next_id();
  if (t->range_count == t->range_room) {
    uint32_t more = t->range_room ? 2 * t->range_room : 16;
    struct cupti_range *list = realloc(t->ranges, more * sizeof *list);
    if (!list) return -1;
    t->ranges = list;
    t->range_room = more;
  }
  int depth = depth_of(t, domain);
  t->ranges[t->range_count++] = (struct cupti_range){domain, id};
  if (!off()) mark(CUPTI_ACTIVITY_FLAG_MARKER_START, id, text_of(a), domain);
  return depth;
}
static int push_ex(const struct attributes *a) { return domain_push(NULL, a); }
static int push(const char *t) { return push_ex(OF(TEXT, t)); }
static int push_wide(const wchar_t *t) { return push_ex(OF(WIDE, t)); }
static int domain_pop(const char *domain) {
  struct cupti_thread *t = cupti_self();
  uint32_t i = t->range_count;
  while (i && t->ranges[i - 1].domain != domain) i--;
  if (!i) return -1;
  if (!off()) mark(CUPTI_ACTIVITY_FLAG_MARKER_END, t->ranges[i - 1].id, NULL, domain);
  memmove(&t->ranges[i - 1], &t->ranges[i], (t->range_count-- - i) * sizeof *t->ranges);
  return depth_of(t, domain);
}
static int pop(void) { return domain_pop(NULL); }

/* Handles of domains and strings are what they stand for. */
static const char *domain_register(const char *domain, const char *t) { return (void)domain, text(t); }
static const char *domain_register_wide(const char *domain, const wchar_t *t) { return (void)domain, wide(t); }

/* ---- tables ---- */

struct entry { uint32_t id; function f; };

static int fill(const struct callbacks *c, uint32_t module, const struct entry *list, size_t n) {
  function **table = NULL;
  uint32_t count = 0;
  if (!c->functions(module, &table, &count) || !table) return 0;
  for (size_t i = 0; i < n; i++)
    if (list[i].id < count && table[list[i].id]) *table[list[i].id] = list[i].f;
  return 1;
}

/* 1: we take its calls. */
static int take(const void *(*export_table)(uint32_t id)) {
  static const struct entry core[] = {
    {MARK_EX, (function)mark_ex}, {MARK, (function)mark_text}, {MARK_WIDE, (function)mark_wide},
    {RANGE_START_EX, (function)range_start_ex}, {RANGE_START, (function)range_start},
    {RANGE_START_WIDE, (function)range_start_wide}, {RANGE_END, (function)range_end}, {PUSH_EX, (function)push_ex},
    {PUSH, (function)push}, {PUSH_WIDE, (function)push_wide}, {POP, (function)pop}};
  static const struct entry core2[] = {
    {DOMAIN_MARK_EX, (function)domain_mark}, {DOMAIN_RANGE_START_EX, (function)domain_range_start},
    {DOMAIN_RANGE_END, (function)domain_range_end}, {DOMAIN_PUSH_EX, (function)domain_push},
    {DOMAIN_POP, (function)domain_pop}, {DOMAIN_REGISTER, (function)domain_register},
    {DOMAIN_REGISTER_WIDE, (function)domain_register_wide}, {DOMAIN_CREATE, (function)text},
    {DOMAIN_CREATE_WIDE, (function)wide}};
  const struct callbacks *c = export_table ? export_table(CALLBACKS) : NULL;
  if (!c || c->bytes < sizeof *c || !c->functions) return 0;
  return fill(c, CORE, core, sizeof core / sizeof *core) && fill(c, CORE2, core2, sizeof core2 / sizeof *core2);
}

int own_InitializeInjectionNvtx(const void *(*export_table)(uint32_t id)) { return take(export_table); }
int own_InitializeInjectionNvtx2(const void *(*export_table)(uint32_t id)) { return take(export_table); }
int own_cuptiNvtxInitialize(const void *(*export_table)(uint32_t id)) { return take(export_table); }
int own_cuptiNvtxInitialize2(const void *(*export_table)(uint32_t id)) { return take(export_table); }
