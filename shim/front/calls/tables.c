#include "calls/tables.h"
#include "calls/profile.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- finding a table ---- */

const uint64_t *scuda_table_words(const char *name) {
  for (uint32_t i = 0; i < scuda_table_count; i++)
    if (!strcmp(scuda_tables[i].name, name)) return scuda_tables[i].words;
  return NULL;
}

/* Tables of profilers and debuggers: their own message will not say why they cannot work here. */
static const uint8_t tool_ids[][4] = {{0x7c, 0xb6, 0x3f, 0x9b}, {0xa3, 0x17, 0x46, 0xd1}, {0xa6, 0xb1, 0xff, 0x99},
                                      {0x12, 0x7d, 0x48, 0x31}, {0x2c, 0x8e, 0x0a, 0xd8}, {0xd7, 0xbd, 0x8a, 0xf8}};

/* Tables by which libraries for the GPU's engines share what the driver has mapped. */
static const uint8_t engine_ids[][4] = {{0x9a, 0xf0, 0x70, 0x7b}, {0xb1, 0x05, 0x41, 0xe1}};

static int is_among(const uint8_t (*ids)[4], size_t n, const uint8_t *id) {
  for (size_t i = 0; i < n; i++)
    if (!memcmp(ids[i], id, 4)) return 1;
  return 0;
}

int32_t scuda_export_table(const void **table, const void *uuid) {
  const uint8_t *id = uuid;
  for (uint32_t i = 0; i < scuda_table_count; i++) {
    if (memcmp(scuda_tables[i].id, id, 16)) continue;
    if (!strcmp(scuda_tables[i].name, "FP8") && !(scuda_gpu_count && scuda_gpus[0].d.has_fp8)) break;
    *table = scuda_tables[i].words;
    return CUDA_SUCCESS;
  }
  *table = NULL;
  static _Atomic uint8_t warned, told;
  if (is_among(tool_ids, sizeof tool_ids / sizeof *tool_ids, id) && !atomic_exchange(&warned, 1))
    scuda_log(SCUDA_WARN,
              "a profiler or debugger asks for the driver's private tables; run it on the server, next to the GPU");
  if (is_among(engine_ids, sizeof engine_ids / sizeof *engine_ids, id) && !atomic_exchange(&told, 1))
    scuda_log(SCUDA_WARN, "not supported: %s", scuda_parts[PART_engines]);
  char hex[33];
  for (int i = 0; i < 16; i++) snprintf(hex + 2 * i, 3, "%02x", id[i]);
  scuda_log(SCUDA_DEBUG, "private table %s is not offered", hex);
  return CUDA_ERROR_INVALID_VALUE;
}

int32_t scuda_table_stub(const char *table, int slot, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                         uint64_t f) {
  static scuda_lock_t lock;
  static struct { const char *table; int slot; } seen[64];
  static uint32_t count;
  scuda_lock(&lock);
  int known = 0;
  for (uint32_t i = 0; i < count; i++) known |= seen[i].table == table && seen[i].slot == slot;
  if (!known && count < sizeof seen / sizeof *seen) {
    seen[count].table = table;
    seen[count++].slot = slot;
  }
  scuda_unlock(&lock);
  if (!known)
    scuda_log(SCUDA_WARN,
              "private table %s, slot %d (%#llx, %#llx, %#llx, %#llx, %#llx, %#llx): %s; answered "
              "CUDA_ERROR_NOT_SUPPORTED", table, slot,
              (unsigned long long)a, (unsigned long long)b, (unsigned long long)c, (unsigned long long)d,
              (unsigned long long)e, (unsigned long long)f,
              scuda_parts[PART_private_slot]);
  return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- CUDART_INTERFACE ---- */

int32_t scuda_cudart_load(uint64_t *module, const void *wrapper) {
  return scuda_load_wrapper(module, wrapper, NULL, NULL, 0);
}

/* The primary context's handle, not retained: whoever makes it current finds out from CTX_LOCAL_STORAGE that it has to
 * be. */
int32_t scuda_cudart_primary(uint64_t *ctx, int32_t dev) {
  if (!ctx) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_device_ok(dev)) return CUDA_ERROR_INVALID_DEVICE;
  *ctx = scuda_gpus[dev].primary;
  return CUDA_SUCCESS;
}

int32_t scuda_cudart_register(uint64_t *module, const void *wrapper, const char **names, void **addresses,
                              uint32_t count) {
  return scuda_load_wrapper(module, wrapper, names, addresses, count);
}

void scuda_cudart_forget(const void *wrapper) { (void)wrapper; /* nothing is kept by address */ }

int32_t scuda_cudart_register_header(const void *header, uint64_t *module, const char **names, void **addresses,
                                     uint32_t count) {
  return scuda_cudart_register(module, header, names, addresses, count);
}

int32_t scuda_cudart_launch(uint64_t f, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
                            uint32_t shared, uint64_t stream, void **extra) {
  return scuda_hand_cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, NULL, extra, 0);
}

int32_t scuda_cudart_compilers(void) { return CUDA_SUCCESS; }

/* ---- TOOLS_RUNTIME_CALLBACK_HOOKS: the runtime's calls are told where a profiler sets their flags (profile.c); no
 * other callback is ever enabled. The counts are checked by the caller and count 32-bit words. ---- */

static const uint32_t domain_flags[14];

int32_t scuda_hooks_deliver(uint32_t id, void *record) {
  scuda_profile_runtime(id, record);
  return CUDA_SUCCESS;
}
int32_t scuda_hooks_event(uint32_t event, void *record) { (void)event, (void)record; return CUDA_SUCCESS; }
int32_t scuda_hooks_stream_id(uint64_t ctx, uint64_t stream, uint64_t *id) {
  struct scuda_profile_ids ids;
  scuda_profile_ids(ctx, stream, 0, &ids);
  *id = ids.stream;
  return ids.stream ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
int32_t scuda_hooks_context_id(uint64_t ctx, uint64_t *id) { return scuda_hand_cuCtxGetId(ctx, id); }
void scuda_hooks_runtime_flags(const uint32_t **flags, size_t *count) {
  *flags = scuda_runtime_flags;
  *count = SCUDA_RUNTIME_FLAGS;
}
void scuda_hooks_domain_flags(const uint32_t **flags, size_t *count) {
  *flags = domain_flags;
  *count = sizeof domain_flags / sizeof *domain_flags;
}

/* ---- TOOLS_TLS, CONTEXT_CHECKS ---- */

int32_t scuda_tls_current(uint64_t *ctx) {
  if (!ctx) return CUDA_ERROR_INVALID_VALUE;
  *ctx = scuda_thread()->current;
  return CUDA_SUCCESS;
}

int32_t scuda_checks_wrapped(uint64_t ctx, uint32_t *flag, void **other) {
  (void)other;
  if (!ctx && !scuda_thread()->current) return CUDA_ERROR_INVALID_CONTEXT;
  if (flag) *flag = 0;
  return CUDA_SUCCESS;
}
uint32_t scuda_checks_zero(void) { return 0; }

/* ---- CTX_LOCAL_STORAGE ---- */

struct entry { uint64_t ctx; const void *key; void *value; scuda_storage_dtor dtor; };
static scuda_lock_t storage_lock;
static struct entry *entries;      /* in order of insertion */
static uint32_t entry_count, entry_cap;
/* moves with every change; a thread's last hit is good for its generation only */
static _Atomic uint64_t storage_generation = 1;

static struct entry *find_entry(uint64_t ctx, const void *key) {
  for (uint32_t i = 0; i < entry_count; i++)
    if (entries[i].ctx == ctx && entries[i].key == key) return &entries[i];
  return NULL;
}

static void remove_entry(struct entry *e) {
  atomic_fetch_add(&storage_generation, 1);
  memmove(e, e + 1, (size_t)(&entries[--entry_count] - e) * sizeof *e);
}

/* The context meant: 0 and -1 are the current one. Gives 0 for none, which is CUDA_ERROR_INVALID_CONTEXT. */
static uint64_t storage_context(uint64_t ctx) { return ctx == 0 || ctx == UINT64_MAX ? scuda_thread()->current : ctx; }

/* A primary context that is not there: by its handle it has storage all the same once it was, but not as the current
 * one. */
static int absent(uint64_t ctx, int current) {
  struct scuda_slot *s = scuda_slot_of(ctx, KIND_CUcontext);
  return s && (s->flags & (SCUDA_CTX_PRIMARY | SCUDA_CTX_ACTIVE)) == SCUDA_CTX_PRIMARY && (current || !s->data);
}

static int dead(uint64_t ctx) {
  struct scuda_slot *s = scuda_slot_of(ctx, KIND_CUcontext);
  return !s || s->flags & SCUDA_CTX_DEAD;
}

int32_t scuda_storage_get(void **value, uint64_t ctx, const void *key) {
  struct scuda_thread *t = scuda_thread();
  uint64_t given = ctx;
  if (!(ctx = storage_context(ctx))) return CUDA_ERROR_INVALID_CONTEXT;
  uint64_t generation = atomic_load_explicit(&storage_generation, memory_order_acquire);
  if (SCUDA_LIKELY(t->storage_generation == generation && t->storage_ctx == ctx && t->storage_key == key)) {
    *value = t->storage_value;
    return CUDA_SUCCESS;
  }
  if (absent(ctx, ctx != given)) return CUDA_ERROR_INVALID_CONTEXT;
  scuda_lock(&storage_lock);
  struct entry *e = find_entry(ctx, key);
  if (e) {
    t->storage_ctx = ctx;
    t->storage_key = key;
    t->storage_value = *value = e->value;
    t->storage_generation = atomic_load(&storage_generation);
  }
  scuda_unlock(&storage_lock);
  return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

int32_t scuda_storage_put(uint64_t ctx, const void *key, void *value, scuda_storage_dtor dtor) {
  uint64_t given = ctx;
  if (!(ctx = storage_context(ctx))) return CUDA_ERROR_INVALID_CONTEXT;
  if (absent(ctx, ctx != given) || dead(ctx)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  int32_t r = CUDA_SUCCESS;
  scuda_lock(&storage_lock);
  if (find_entry(ctx, key)) r = CUDA_ERROR_INVALID_HANDLE;
  if (!r && entry_count == entry_cap) {
    uint32_t cap = entry_cap ? 2 * entry_cap : 16;
    struct entry *more = realloc(entries, cap * sizeof *more);
    if (more) {
      entries = more;
      entry_cap = cap;
    } else {
      r = CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  if (!r) {
    entries[entry_count++] = (struct entry){ctx, key, value, dtor};
    atomic_fetch_add(&storage_generation, 1);
  }
  scuda_unlock(&storage_lock);
  return r;
}

int32_t scuda_storage_delete(uint64_t ctx, const void *key) {
  if (!(ctx = storage_context(ctx))) return CUDA_ERROR_INVALID_CONTEXT;
  scuda_lock(&storage_lock);
  struct entry *e = find_entry(ctx, key);
  if (e) remove_entry(e);
  scuda_unlock(&storage_lock);
  return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void scuda_storage_context_dies(uint64_t ctx) {
  for (;;) {
    struct entry last = {0};
    scuda_lock(&storage_lock);
    for (uint32_t i = entry_count; i-- > 0;) {
      if (entries[i].ctx != ctx) continue;
      last = entries[i];
      remove_entry(&entries[i]);
      break;
    }
    scuda_unlock(&storage_lock);
    if (!last.ctx) return;
    if (last.dtor) last.dtor(ctx, last.key, last.value);
  }
}

/* ---- CTX_STREAM: an address inside a slot or a thread's state stands for the driver's internal stream ---- */

int32_t scuda_stream_device(uint64_t ctx, int32_t *dev) { return scuda_hand_cuCtxGetDevice_v2(dev, ctx); }

int32_t scuda_stream_object(uint64_t ctx, uint64_t stream, void **object, int32_t per_thread) {
  if (!object) return CUDA_ERROR_INVALID_VALUE;
  struct scuda_slot *s;
  if (stream == 2 || (stream == 0 && per_thread)) {
    *object = &scuda_thread()->per_thread_object;
    return CUDA_SUCCESS;
  }
  if (stream <= 1) {
    if (!(s = scuda_slot_of(ctx ? ctx : scuda_thread()->current, KIND_CUcontext))) return CUDA_ERROR_INVALID_CONTEXT;
  } else if (!(s = scuda_slot_of(stream, KIND_CUstream))) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *object = s->object;
  return CUDA_SUCCESS;
}

int32_t scuda_stream_object_id(uint64_t ctx, const void *object, uint64_t *id) {
  (void)ctx;
  if (!id || !object) return CUDA_ERROR_INVALID_VALUE;
  struct scuda_slot *s = scuda_slot((uint64_t)(uintptr_t)object - offsetof(struct scuda_slot, object));
  if (s && s->kind == KIND_CUstream) {
    int32_t r = s->id ? CUDA_SUCCESS : scuda_hand_cuStreamGetId((uint64_t)(uintptr_t)s, &s->id, 0);
    *id = s->id;
    return r;
  }
  return scuda_hand_cuStreamGetId(s ? 1 : 2, id, 0);
}

/* ---- FUNCTION ---- */

int32_t scuda_function_each(uint64_t ctx, uint64_t module, void (*each)(void *user, uint64_t function), void *user) {
  (void)ctx;
  int32_t count = 0;
  if (!scuda_slot_of(module, KIND_CUmodule) || !each) return 0;
  scuda_module_each_function(module, each, user, &count);
  return count;
}

/* ---- FP8: cuSPARSELt asks whether the driver runs kernels on matrices of fp8 ---- */

int32_t scuda_fp8(void) { return scuda_gpus[0].d.fp8; }

/* ---- TPC_MAP: at least 256 bytes each, so that nobody reads over the end ---- */

int32_t scuda_tpc_map(void **tpc_in_gpc, void **gpc_of_tpc) {
  if (!tpc_in_gpc || !gpc_of_tpc) return CUDA_ERROR_INVALID_VALUE;
  uint8_t *a = calloc(1, 256), *b = calloc(1, 256);
  if (!a || !b) {
    free(a);
    free(b);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (scuda_gpu_count) {
    const struct scuda_device *d = &scuda_gpus[scuda_current_device()].d;
    size_t n = d->tpc_map_bytes < 256 ? d->tpc_map_bytes : 256;
    memcpy(a, d->tpc_in_gpc, n);
    memcpy(b, d->gpc_of_tpc, n);
  }
  *tpc_in_gpc = a;
  *gpc_of_tpc = b;
  return CUDA_SUCCESS;
}

int32_t scuda_tpc_free(void *a, void *b) {
  free(a);
  free(b);
  return CUDA_SUCCESS;
}
