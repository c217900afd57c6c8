/* Generic forwarding of NVML calls: the description of a function says how its arguments travel (docs/protocol.md,
 * "Generic calls"). */
#include "nvml/nvml.h"
#include "base/common.h"
#include "nvml/gen/nvml_gen.h"
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES (1u << 20)          /* of a request or of a reply */
#define MAX_VERSIONED 65536u
#define TAIL_ROOM 4u

/* Handles in the program's hands are addresses in this array, which is never touched: which of the servers in the high
 * bits, then the kind, and in the low bits that server's number for it. */
#define KIND_SHIFT 12
#define KINDS 16
#define SERVER_SHIFT 16
static char handle_space[NVML_SERVERS << SERVER_SHIFT];
_Static_assert(KINDS << KIND_SHIFT == 1 << SERVER_SHIFT, "handles");

int nvml_handle_to_wire(uint64_t value, unsigned kind, uint64_t *id, struct nvml_route *route) {
  uint64_t base = (uint64_t)(uintptr_t)handle_space;
  *id = 0;
  if (value == 0) return NVML_OK;
  if (value < base || value - base >= sizeof handle_space) return NVML_INVALID_ARGUMENT;
  if (((value - base) >> KIND_SHIFT) % KINDS != kind) return NVML_INVALID_ARGUMENT;
  *id = (value - base) & ((1u << KIND_SHIFT) - 1);
  uint32_t server = (uint32_t)((value - base) >> SERVER_SHIFT);
  if (nvml_is_common(kind)) return NVML_OK;
  if (route->known && server != route->server) route->apart = 1;
  route->server = server;
  route->known = 1;
  return NVML_OK;
}

static uint64_t handle_from_wire(uint64_t id, unsigned kind, uint32_t server) {
  if (id == 0 || id >> KIND_SHIFT != 0) return 0;
  if (kind != NVML_KIND_nvmlDevice_t) nvml_session_holds(server);
  return (uint64_t)(uintptr_t)&handle_space[server << SERVER_SHIFT | kind << KIND_SHIFT | id];
}

struct cursor { uint8_t *p; size_t used, size; struct nvml_route *route; };

static void put(struct cursor *c, const void *data, size_t bytes) {
  size_t padded = (bytes + 7) & ~(size_t)7;
  if (bytes == 0) return;
  memcpy(c->p + c->used, data, bytes);
  memset(c->p + c->used + bytes, 0, padded - bytes);
  c->used += padded;
}

static void put_word(struct cursor *c, uint64_t v) { put(c, &v, sizeof v); }

/* on the wire: a place for an array of which the program says that it holds nothing; 0 is NULL */
#define EMPTY (1ull << 63)

/* What a parameter occupies: elements and the bytes of one; elements is 0 for NULL and for a place without room.
 * `array` counts the elements of the array that it points at. */
struct extent { uint64_t elements; uint32_t size; uint32_t array; };

static int array_of(const struct nvml_param *p, const uint8_t *at, struct extent *e) {
  uint64_t to;
  memcpy(&to, at + p->array.pointer, 8);
  if (to != 0) memcpy(&e->array, at + p->array.count, 4);
  return e->array > MAX_BYTES / p->array.size ? NVML_MEMORY : NVML_OK;
}

static int extent_of(const struct nvml_func *f, unsigned i, const uint64_t *args, struct extent *e) {
  const struct nvml_param *p = &f->params[i];
  const void *at = (const void *)(uintptr_t)args[i];
  e->size = p->size;
  e->elements = e->array = 0;
  if (p->dir == NVML_VALUE || at == NULL) return NVML_OK;
  if (p->dir == NVML_STR) {
    e->elements = strlen(at) + 1;
  } else if (p->flags & NVML_VERSIONED) {
    uint32_t version, bytes = p->size;
    memcpy(&version, at, sizeof version);
    if (version >> 24 != 0) bytes = version & 0xffffff;
    /* no version of anything: the server's driver refuses it by this word */
    if (bytes < 4 || bytes > MAX_VERSIONED) bytes = 4;
    e->size = 1;
    e->elements = bytes;
    if (p->array.size != 0 && bytes > 4) {
      if (bytes != p->size) return NVML_VERSION_MISMATCH;   /* where its pointer lies is known for this version only */
      return array_of(p, at, e);
    }
  } else if (p->array.size != 0) {
    e->size = 1;
    e->elements = p->size;
    return array_of(p, at, e);
  } else if (p->tail != 0) {
    uint32_t tail;
    memcpy(&tail, (const uint8_t *)at + p->tail, sizeof tail);
    if (tail > MAX_VERSIONED) return NVML_INVALID_ARGUMENT;
    e->size = 1;
    e->elements = p->size + (tail > TAIL_ROOM ? tail - TAIL_ROOM : 0);
  } else if (p->flags & NVML_FILLS) {
    e->elements = p->count;
  } else if (p->count_arg == 0) {
    e->elements = p->count;
  } else if (p->flags & NVML_COUNT_POINTER) {
    const uint32_t *count = (const uint32_t *)(uintptr_t)args[p->count_arg - 1];
    e->elements = count ? *count : 0;
  } else {
    e->elements = (uint32_t)args[p->count_arg - 1];
  }
  if (e->elements > MAX_BYTES / e->size) return NVML_MEMORY;
  return NVML_OK;
}

static int patches_to_wire(const struct nvml_param *p, const struct extent *e, uint8_t *data,
                           struct nvml_route *route) {
  if (p->kind != 0) {
    for (uint64_t k = 0; k < e->elements; k++) {
      uint64_t v;
      memcpy(&v, data + k * 8, 8);
      int r = nvml_handle_to_wire(v, p->kind, &v, route);
      if (r) return r;
      memcpy(data + k * 8, &v, 8);
    }
  }
  for (int n = 0; n < 2 && p->patch[n].kind; n++) {
    uint64_t v, at = p->patch[n].offset;
    if (at + 8 > e->elements * e->size) continue;
    memcpy(&v, data + at, 8);
    if (p->flags & NVML_FRESH) v = 0;
    int r = nvml_handle_to_wire(v, p->patch[n].kind, &v, route);
    if (r) return r;
    memcpy(data + at, &v, 8);
  }
  return NVML_OK;
}

/* Stores handles. The driver gives none that is 0: those are places of an array that it left alone. */
static void handles_from_wire(uint8_t kind, uint32_t server, uint64_t elements, const uint8_t *from, uint8_t *to) {
  for (uint64_t k = 0; k < elements; k++) {
    uint64_t v;
    memcpy(&v, from + k * 8, 8);
    if (!v) continue;
    v = handle_from_wire(v, kind, server);
    memcpy(to + k * 8, &v, 8);
  }
}

static void patches_from_wire(const struct nvml_param *p, uint32_t server, uint64_t elements, uint32_t size,
                              uint8_t *data) {
  for (int n = 0; n < 2 && p->patch[n].kind; n++) {
    uint64_t v, at = p->patch[n].offset;
    if (at + 8 > elements * size) continue;
    memcpy(&v, data + at, 8);
    v = handle_from_wire(v, p->patch[n].kind, server);
    memcpy(data + at, &v, 8);
  }
}

static int encode(const struct nvml_func *f, const uint64_t *args, const struct extent *ext, struct cursor *c) {
  for (unsigned i = 0; i < f->nparams; i++) {
    const struct nvml_param *p = &f->params[i];
    if (p->dir == NVML_VALUE) {
      uint64_t v = args[i];
      if (p->kind != 0) {
        int r = nvml_handle_to_wire(v, p->kind, &v, c->route);
        if (r) return r;
        if (v != 0 && nvml_is_common(p->kind) && c->route->commons < 2)
          c->route->common[c->route->commons++] = (struct nvml_common){c->p + c->used, p->kind};
      }
      put_word(c, v);
      continue;
    }
    put_word(c, ext[i].elements == 0 && args[i] != 0 && p->dir == NVML_OUT && p->count_arg != 0 ? EMPTY :
             ext[i].elements);
    if (p->dir == NVML_OUT || ext[i].elements == 0) continue;
    uint8_t *at = c->p + c->used;
    put(c, (const void *)(uintptr_t)args[i], ext[i].elements * ext[i].size);
    int r = patches_to_wire(p, &ext[i], at, c->route);
    if (r) return r;
    if (p->array.size != 0) {
      uint64_t from = 0;
      if (ext[i].elements > p->array.pointer) {
        memcpy(&from, at + p->array.pointer, 8);
        memset(at + p->array.pointer, 0, 8);
      }
      put_word(c, ext[i].array);
      put(c, (const void *)(uintptr_t)from, (size_t)ext[i].array * p->array.size);
    }
  }
  return NVML_OK;
}

/* Reads a count and so many elements of `size` bytes, at most `room`; gives them in *from. */
static int counted(const uint8_t *reply, uint32_t len, uint32_t *at, uint64_t room, uint32_t size, uint64_t *n,
                   const uint8_t **from) {
  if (len - *at < 8) return -1;
  memcpy(n, reply + *at, 8);
  *at += 8;
  *from = reply + *at;
  if (*n > room) return -1;
  uint64_t padded = (*n * size + 7) & ~(uint64_t)7;
  if (padded > len - *at) return -1;
  *at += (uint32_t)padded;
  return 0;
}

/* Stores the results. After INSUFFICIENT_SIZE only what also went in (the counts) comes back. */
static int decode(const struct nvml_func *f, const uint64_t *args, const struct extent *ext, uint32_t server,
                  int result, const uint8_t *reply, uint32_t len) {
  uint32_t at = 0;
  for (unsigned i = 0; i < f->nparams; i++) {
    const struct nvml_param *p = &f->params[i];
    if (p->dir != NVML_INOUT && !(p->dir == NVML_OUT && result == NVML_OK)) continue;
    uint64_t n, to = 0;
    const uint8_t *from;
    if (counted(reply, len, &at, ext[i].elements, ext[i].size, &n, &from) != 0) return -1;
    if (n == 0) continue;
    uint8_t *p_to = (uint8_t *)(uintptr_t)args[i];
    int has_array = p->array.size != 0 && n > p->array.pointer;
    if (has_array) memcpy(&to, p_to + p->array.pointer, 8);
    if (p->kind) {
      handles_from_wire(p->kind, server, n, from, p_to);
    } else if (p->pieces) {
      for (uint64_t k = 0; k < n; k++)
        scuda_store(p_to + k * ext[i].size, from + k * ext[i].size, ext[i].size, p->pieces);
    } else {
      memcpy(p_to, from, n * ext[i].size);
    }
    patches_from_wire(p, server, n, ext[i].size, p_to);
    if (has_array) memcpy(p_to + p->array.pointer, &to, 8);
    if (p->array.size == 0) continue;
    if (counted(reply, len, &at, ext[i].array, p->array.size, &n, &from) != 0) return -1;
    if (n != 0) memcpy((uint8_t *)(uintptr_t)to, from, n * p->array.size);
  }
  return 0;
}

int nvml_forward(uint32_t index, const uint64_t *args, struct nvml_route *route) {
  const struct nvml_func *f = &nvml_funcs[index];
  struct extent ext[NVML_MAX_PARAMS];
  uint64_t req = 0, rep = 0;
  for (unsigned i = 0; i < f->nparams; i++) {
    int r = extent_of(f, i, args, &ext[i]);
    if (r) return r;
    if (f->params[i].flags & NVML_CLEARS && args[i]) memset((void *)(uintptr_t)args[i], 0, f->params[i].size);
    uint64_t bytes = 8 + ((ext[i].elements * ext[i].size + 7) & ~(uint64_t)7);
    uint8_t dir = f->params[i].dir;
    req += dir == NVML_OUT || dir == NVML_VALUE ? 8 : bytes;
    if (dir == NVML_OUT || dir == NVML_INOUT) rep += bytes;
    if (f->params[i].array.size != 0 && ext[i].elements != 0) {
      uint64_t array = 8 + (((uint64_t)ext[i].array * f->params[i].array.size + 7) & ~(uint64_t)7);
      req += array;
      rep += array;
    }
  }
  if (req > MAX_BYTES - 64 || rep > MAX_BYTES) return NVML_MEMORY;

  _Alignas(8) uint8_t small[2048] = {0};
  uint8_t *buf = small;
  if (req + rep > sizeof small && (buf = malloc(req + rep)) == NULL) return NVML_MEMORY;
  struct cursor c = {buf, 0, req, route};
  int result = encode(f, args, ext, &c);
  if (result == NVML_OK && route->apart) result = NVML_APART;
  if (result == NVML_OK && route->commons) result = nvml_deputies(route);
  if (result == NVML_OK) {
    uint32_t got = 0;
    result = nvml_exchange(route->server, f->op, buf, (uint32_t)req, buf + req, (uint32_t)rep, &got);
    if (result == NVML_OK || (result == NVML_INSUFFICIENT_SIZE && got != 0)) {
      if (decode(f, args, ext, route->server, result, buf + req, got) != 0) {
        scuda_log(SCUDA_ERROR, "%s: the server's reply does not have the promised form; NVML_ERROR_GPU_IS_LOST",
                  f->name);
        result = NVML_GPU_IS_LOST;
      }
    }
  }
  if (buf != small) free(buf);
  return result;
}

typedef uint64_t (*words_fn)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

/* All parameters of NVML are integers and pointers, so every function can be called with words. */
int nvml_pass(uint32_t index, const uint64_t *args) {
  static void *cache[1024];
  const struct nvml_func *f = &nvml_funcs[index];
  void *fn = index < 1024 ? __atomic_load_n(&cache[index], __ATOMIC_ACQUIRE) : NULL;
  if (fn == NULL) {
    fn = nvml_real(f->name);
    if (fn == NULL) return NVML_FUNCTION_NOT_FOUND;
    if (index < 1024) __atomic_store_n(&cache[index], fn, __ATOMIC_RELEASE);
  }
  uint64_t a[NVML_MAX_PARAMS] = {0};
  memcpy(a, args, sizeof(uint64_t) * f->nparams);
  return (int)((words_fn)fn)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
}

static int refuse(uint32_t index) {
  static uint8_t told[1024];
  if (index < 1024 && !__atomic_exchange_n(&told[index], 1, __ATOMIC_RELAXED))
    scuda_log(SCUDA_WARN, "%s is not carried out: not supported (NVML_ERROR_NOT_SUPPORTED)", nvml_funcs[index].name);
  return NVML_NOT_SUPPORTED;
}

int nvml_call(uint32_t index, const uint64_t *args) {
  switch (nvml_mode()) {
  case NVML_PASS: return nvml_pass(index, args);
  case NVML_NO_DRIVER: return NVML_UNINITIALIZED;
  default: break;
  }
  if (!nvml_session_ready()) return NVML_UNINITIALIZED;
  if (nvml_funcs[index].class != NVML_FORWARD) return refuse(index);
  if (nvml_servers() > 1) return nvml_forward_several(index, args);
  return nvml_forward(index, args, &(struct nvml_route){0});
}
