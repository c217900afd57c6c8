/* Markers and ranges of the program's, which it makes by NVTX. NVTX is in headers: a program that uses it opens the
 * library that NVTX_INJECTION64_PATH names, at its first call, and hands it tables of its functions to be filled. */
#include "cupti.h"
#include "../nvtx/nvtx.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *text(const char *t) { return t ? cupti_intern(t, strlen(t)) : NULL; }

static const char *wide(const wchar_t *w) {
  if (!w) return NULL;
  size_t n = 0, most = 4 * wcslen(w) + 1;
  char *p = malloc(most);
  for (; p && *w; w++) n += nvtx_utf8(p + n, (uint32_t)*w);
  const char *t = p ? cupti_intern(p, n) : NULL;
  free(p);
  return t;
}

static const char *text_of(const struct nvtx_attributes *a) {
  if (!a || !a->message) return "";
  switch (a->message_type) {
  case NVTX_MESSAGE_ASCII: return text(a->message);
  case NVTX_MESSAGE_UNICODE: return wide(a->message);
  case NVTX_MESSAGE_REGISTERED: return a->message; /* interned by us */
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

const char *const cupti_nvtx_names[CUPTI_NVTX_IDS] = {
  [CUPTI_NVTX_MARK_A] = "nvtxMarkA", [CUPTI_NVTX_MARK_W] = "nvtxMarkW", [CUPTI_NVTX_MARK_EX] = "nvtxMarkEx",
  [CUPTI_NVTX_START_A] = "nvtxRangeStartA", [CUPTI_NVTX_START_W] = "nvtxRangeStartW",
  [CUPTI_NVTX_START_EX] = "nvtxRangeStartEx", [CUPTI_NVTX_END] = "nvtxRangeEnd",
  [CUPTI_NVTX_PUSH_A] = "nvtxRangePushA", [CUPTI_NVTX_PUSH_W] = "nvtxRangePushW",
  [CUPTI_NVTX_PUSH_EX] = "nvtxRangePushEx", [CUPTI_NVTX_POP] = "nvtxRangePop"};

/* Who subscribed is told of a function once it has done what it does: where its argument lies, and its result. */
static void call_back(uint32_t id, const void *argument, const void *result) {
  if (!cupti_called[CUPTI_CB_DOMAIN_NVTX][id] || cupti_self()->inside) return;
  const struct { const char *name; const void *argument, *result; } data = {cupti_nvtx_names[id], argument, result};
  cupti_call_back(CUPTI_CB_DOMAIN_NVTX, id, &data);
}

/* ---- the functions ---- */

static int off(void) { return !cupti_active[CUPTI_ACTIVITY_KIND_MARKER]; }
#define OF(type, m) (&(struct nvtx_attributes){.message_type = type, .message = m})

static void domain_mark(const char *domain, const struct nvtx_attributes *a) {
  if (!off()) mark(CUPTI_ACTIVITY_FLAG_MARKER_INSTANTANEOUS, next_id(), text_of(a), domain);
}
static void mark_ex(const struct nvtx_attributes *a) {
  domain_mark(NULL, a);
  call_back(CUPTI_NVTX_MARK_EX, &a, NULL);
}
static void mark_text(const char *t) {
  domain_mark(NULL, OF(NVTX_MESSAGE_ASCII, t));
  call_back(CUPTI_NVTX_MARK_A, &t, NULL);
}
static void mark_wide(const wchar_t *t) {
  domain_mark(NULL, OF(NVTX_MESSAGE_UNICODE, t));
  call_back(CUPTI_NVTX_MARK_W, &t, NULL);
}

static uint64_t domain_range_start(const char *domain, const struct nvtx_attributes *a) {
  uint32_t id = next_id();
  if (!off()) mark(CUPTI_ACTIVITY_FLAG_MARKER_START, id, text_of(a), domain);
  return id;
}
static uint64_t range_start_ex(const struct nvtx_attributes *a) {
  uint64_t id = domain_range_start(NULL, a);
  return call_back(CUPTI_NVTX_START_EX, &a, &id), id;
}
static uint64_t range_start(const char *t) {
  uint64_t id = domain_range_start(NULL, OF(NVTX_MESSAGE_ASCII, t));
  return call_back(CUPTI_NVTX_START_A, &t, &id), id;
}
static uint64_t range_start_wide(const wchar_t *t) {
  uint64_t id = domain_range_start(NULL, OF(NVTX_MESSAGE_UNICODE, t));
  return call_back(CUPTI_NVTX_START_W, &t, &id), id;
}
static void domain_range_end(const char *domain, uint64_t id) {
  if (!off()) mark(CUPTI_ACTIVITY_FLAG_MARKER_END, (uint32_t)id, NULL, domain);
}
static void range_end(uint64_t id) {
  domain_range_end(NULL, id);
  call_back(CUPTI_NVTX_END, &id, NULL);
}

/* A thread's ranges, of all domains; what they answer is how many of the domain are around. */
static int depth_of(const struct cupti_thread *t, const char *domain) {
  int n = 0;
  for (uint32_t i = 0; i < t->range_count; i++) n += t->ranges[i].domain == domain;
  return n;
}
static int domain_push(const char *domain, const struct nvtx_attributes *a) {
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
static int push_ex(const struct nvtx_attributes *a) {
  int level = domain_push(NULL, a);
  return call_back(CUPTI_NVTX_PUSH_EX, &a, &level), level;
}
static int push(const char *t) {
  int level = domain_push(NULL, OF(NVTX_MESSAGE_ASCII, t));
  return call_back(CUPTI_NVTX_PUSH_A, &t, &level), level;
}
static int push_wide(const wchar_t *t) {
  int level = domain_push(NULL, OF(NVTX_MESSAGE_UNICODE, t));
  return call_back(CUPTI_NVTX_PUSH_W, &t, &level), level;
}
static int domain_pop(const char *domain) {
  struct cupti_thread *t = cupti_self();
  uint32_t i = t->range_count;
  while (i && t->ranges[i - 1].domain != domain) i--;
  if (!i) return -1;
  if (!off()) mark(CUPTI_ACTIVITY_FLAG_MARKER_END, t->ranges[i - 1].id, NULL, domain);
  memmove(&t->ranges[i - 1], &t->ranges[i], (t->range_count-- - i) * sizeof *t->ranges);
  return depth_of(t, domain);
}
static int pop(void) {
  int level = domain_pop(NULL);
  return call_back(CUPTI_NVTX_POP, NULL, &level), level;
}

/* ---- names ---- */

static int unnamed(void) { return !cupti_active[CUPTI_ACTIVITY_KIND_NAME] || cupti_self()->inside; }

static void name_object(uint32_t kind, const uint32_t id[3], const char *name) {
  struct CUpti_ActivityName n = {.kind = CUPTI_ACTIVITY_KIND_NAME, .objectKind = kind, .name = (uintptr_t)name};
  memcpy(n.objectId, id, sizeof n.objectId);
  cupti_write(&n, sizeof n);
}

/* NVTX takes the kernel's number of a thread. */
static void name_thread(uint32_t thread, const char *t) {
  if (!unnamed()) name_object(CUPTI_ACTIVITY_OBJECT_THREAD, (uint32_t[3]){(uint32_t)getpid(), thread}, text(t));
}
static void name_device(int32_t device, const char *t) {
  if (!unnamed()) name_object(CUPTI_ACTIVITY_OBJECT_DEVICE, (uint32_t[3]){(uint32_t)device}, text(t));
}
static void name_context(uint64_t context, const char *t) {
  struct scuda_profile_ids ids;
  if (unnamed() || !cupti_ids_of(context, 0, &ids)) return;
  name_object(CUPTI_ACTIVITY_OBJECT_CONTEXT, (uint32_t[3]){ids.device, ids.context}, text(t));
}
static void name_stream(uint64_t stream, const char *t) {
  struct scuda_profile_ids ids;
  if (unnamed() || !cupti_ids_of(0, stream, &ids)) return;
  name_object(CUPTI_ACTIVITY_OBJECT_STREAM, (uint32_t[3]){ids.device, ids.context, ids.stream}, text(t));
}
static void name_thread_wide(uint32_t thread, const wchar_t *t) {
  if (!unnamed()) name_thread(thread, wide(t));
}
static void name_device_wide(int32_t device, const wchar_t *t) {
  if (!unnamed()) name_device(device, wide(t));
}
static void name_context_wide(uint64_t context, const wchar_t *t) {
  if (!unnamed()) name_context(context, wide(t));
}
static void name_stream_wide(uint64_t stream, const wchar_t *t) {
  if (!unnamed()) name_stream(stream, wide(t));
}

/* Handles of domains and strings are what they stand for. */
static const char *domain_register(const char *domain, const char *t) { return (void)domain, text(t); }
static const char *domain_register_wide(const char *domain, const wchar_t *t) { return (void)domain, wide(t); }

/* ---- tables ---- */

/* 1: we take its calls. */
static int take(nvtx_tables tables) {
  static const struct nvtx_function core[] = {
    {NVTX_MARK_EX, (void *)mark_ex}, {NVTX_MARK_A, (void *)mark_text}, {NVTX_MARK_W, (void *)mark_wide},
    {NVTX_START_EX, (void *)range_start_ex}, {NVTX_START_A, (void *)range_start},
    {NVTX_START_W, (void *)range_start_wide}, {NVTX_END, (void *)range_end}, {NVTX_PUSH_EX, (void *)push_ex},
    {NVTX_PUSH_A, (void *)push}, {NVTX_PUSH_W, (void *)push_wide}, {NVTX_POP, (void *)pop},
    {NVTX_THREAD_A, (void *)name_thread}, {NVTX_THREAD_W, (void *)name_thread_wide}};
  static const struct nvtx_function cuda[] = {
    {NVTX_CUDA_DEVICE_A, (void *)name_device}, {NVTX_CUDA_DEVICE_W, (void *)name_device_wide},
    {NVTX_CUDA_CONTEXT_A, (void *)name_context}, {NVTX_CUDA_CONTEXT_W, (void *)name_context_wide},
    {NVTX_CUDA_STREAM_A, (void *)name_stream}, {NVTX_CUDA_STREAM_W, (void *)name_stream_wide}};
  static const struct nvtx_function cudart[] = {
    {NVTX_CUDART_DEVICE_A, (void *)name_device}, {NVTX_CUDART_DEVICE_W, (void *)name_device_wide},
    {NVTX_CUDART_STREAM_A, (void *)name_stream}, {NVTX_CUDART_STREAM_W, (void *)name_stream_wide}};
  static const struct nvtx_function core2[] = {
    {NVTX_DOMAIN_MARK, (void *)domain_mark}, {NVTX_DOMAIN_START, (void *)domain_range_start},
    {NVTX_DOMAIN_END, (void *)domain_range_end}, {NVTX_DOMAIN_PUSH, (void *)domain_push},
    {NVTX_DOMAIN_POP, (void *)domain_pop}, {NVTX_DOMAIN_STRING_A, (void *)domain_register},
    {NVTX_DOMAIN_STRING_W, (void *)domain_register_wide}, {NVTX_DOMAIN_CREATE_A, (void *)text},
    {NVTX_DOMAIN_CREATE_W, (void *)wide}};
  const struct nvtx_callbacks *c = tables ? tables(NVTX_TABLE_CALLBACKS) : NULL;
  if (!c || c->bytes < sizeof *c || !c->functions) return 0;
  nvtx_fill(c, NVTX_MODULE_CUDA, cuda, sizeof cuda / sizeof *cuda);
  nvtx_fill(c, NVTX_MODULE_CUDART, cudart, sizeof cudart / sizeof *cudart);
  return nvtx_fill(c, NVTX_MODULE_CORE, core, sizeof core / sizeof *core) &&
    nvtx_fill(c, NVTX_MODULE_CORE2, core2, sizeof core2 / sizeof *core2);
}

int own_InitializeInjectionNvtx(nvtx_tables tables) { return take(tables); }
int own_InitializeInjectionNvtx2(nvtx_tables tables) { return take(tables); }
int own_cuptiNvtxInitialize(nvtx_tables tables) { return take(tables); }
int own_cuptiNvtxInitialize2(nvtx_tables tables) { return take(tables); }
