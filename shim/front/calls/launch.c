/* Kernel launches. What looks wrong from the cached facts is sent with a request for an answer, so that the driver's
 * own error comes at the call. */
#include "base/server.h"
#include "calls/calls.h"

#include <stdlib.h>

enum {
  ATTRIBUTE_BYTES = sizeof(struct CUlaunchAttribute_st), ATTRIBUTES_MAX = WIRE_MAX_ATTRIBUTES,
  COOPERATIVE = WIRE_LAUNCH_COOPERATIVE
};

struct launch {
  uint64_t func, stream;
  uint32_t grid[3], block[3], shared, flags;
  const uint8_t *attrs;
  uint32_t attr_count;
};

/* How much of an attribute's value means something. The rest of the union is whatever lay on the program's stack. */
static uint32_t value_bytes(uint32_t id) {
  switch (id) {
  case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: return 32;
  case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT: return 16;
  case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
  case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
  case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT: return 12;
  case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: return 2;
  case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
  case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
  case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
  case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
  case CU_LAUNCH_ATTRIBUTE_PRIORITY:
  case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
  case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE: /* the rest is an answer */
  case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: return 4;
  case CU_LAUNCH_ATTRIBUTE_IGNORE: return 0;
  }
  return 64;
}

/* Attributes as they travel: what means nothing is 0. */
static void put_attributes(uint8_t *p, const struct launch *l) {
  for (uint32_t i = 0; i < l->attr_count; i++, p += ATTRIBUTE_BYTES) {
    const uint8_t *a = l->attrs + i * ATTRIBUTE_BYTES;
    uint32_t id = scuda_field(a);
    memset(p, 0, ATTRIBUTE_BYTES);
    memcpy(p, &id, 4);
    memcpy(p + 8, a + 8, value_bytes(id));
  }
}

static uint64_t fnv(uint64_t h, const void *bytes, size_t n) {
  for (const uint8_t *p = bytes; n; n--, p++) h = (h ^ *p) * 1099511628211u;
  return h;
}

/* FNV-1a over what decides whether a launch that may be refused is possible. The grid decides where all of it has to
 * run at once. */
static uint64_t config_hash(const struct launch *l, const struct scuda_func *f) {
  uint64_t h = fnv(14695981039346656037u, l->block, sizeof l->block);
  h ^= __atomic_load_n(&f->state, __ATOMIC_RELAXED);
  h = fnv(h, &l->shared, sizeof l->shared);
  h = fnv(h, &l->flags, sizeof l->flags);
  int whole = l->flags & COOPERATIVE;
  for (uint32_t i = 0; i < l->attr_count; i++) {
    const uint8_t *a = l->attrs + i * ATTRIBUTE_BYTES;
    uint32_t id = scuda_field(a);
    h = fnv(fnv(h, &id, 4), a + 8, value_bytes(id));
    whole |= id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  }
  if (whole) h = fnv(h, l->grid, sizeof l->grid);
  return h | 1;
}

static int known_good(const struct scuda_func *f, uint64_t config) {
  for (int i = 0; i < 4; i++)
    if (__atomic_load_n(&f->good[i], __ATOMIC_RELAXED) == config) return 1;
  return 0;
}

static void note_good(struct scuda_func *f, uint64_t config) {
  uint32_t i = __atomic_fetch_add(&f->good_next, 1, __ATOMIC_RELAXED);
  __atomic_store_n(&f->good[i % 4], config, __ATOMIC_RELAXED);
}

/* Surely an error. */
static int impossible(const struct launch *l, int32_t dev) {
  const int32_t *a = scuda_gpus[dev].d.attributes;
  uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2];
  return !l->grid[0] || !l->grid[1] || !l->grid[2] || !threads ||
         l->grid[0] > (uint32_t)a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X] ||
         l->grid[1] > (uint32_t)a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y] ||
         l->grid[2] > (uint32_t)a[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z] ||
         l->block[0] > (uint32_t)a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X] ||
         l->block[1] > (uint32_t)a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y] ||
         l->block[2] > (uint32_t)a[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z] ||
         threads > (uint32_t)a[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
}

/* What a kernel requires of its clusters in one direction: 0 nothing, or a driver that knows no clusters; below 0: it
 * was set, and is not known. */
static int32_t required_cluster(const struct scuda_func *f, int direction) {
  int32_t n = f->attr[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH + direction];
  return n != INT32_MIN ? n : f->around[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH + direction] == INT32_MIN ? 0 : -1;
}

/* Perhaps an error: for the driver to say, once. */
static int uncertain(const struct launch *l, const struct scuda_func *f) {
  const int32_t *a = f->attr;
  int32_t threads = a[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK],
      shared = a[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES];
  return l->attr_count || l->flags & COOPERATIVE || required_cluster(f, 0) ||
         a[CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET] > 0 ||
         (threads > 0 && l->block[0] * l->block[1] * l->block[2] > (uint32_t)threads) ||
         (shared >= 0 ? l->shared > (uint32_t)shared : l->shared > 0);
}

/* A kernel may be made for blocks of one shape only (.reqntid), which no attribute tells. */
static int other_shape(const struct launch *l, const struct scuda_func *f) {
  return f->block[0] && memcmp(f->block, l->block, sizeof f->block);
}

/* Whether the grid is no multiple of its clusters, or may be none because what the kernel requires is not known, or has
 * none where it must. */
static int odd_clusters(const struct launch *l, const struct scuda_func *f) {
  uint32_t d[3];
  for (int i = 0; i < 3; i++) d[i] = (uint32_t)required_cluster(f, i);
  for (uint32_t i = 0; i < l->attr_count; i++) {
    const uint8_t *a = l->attrs + i * ATTRIBUTE_BYTES;
    if (scuda_field(a) == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) memcpy(d, a + 8, sizeof d);
  }
  if (!(d[0] | d[1] | d[2])) return f->attr[CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET] > 0;
  for (int i = 0; i < 3; i++)
    if ((int32_t)d[i] <= 0 || l->grid[i] % d[i]) return 1;
  return 0;
}

/* The packed parameters of the `extra` form. */
static int32_t from_extra(void **extra, const void **buffer, uint32_t *bytes) {
  const uint64_t *size = NULL;
  *buffer = NULL;
  for (int i = 0; extra[i] != (void *)LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == (void *)LAUNCH_PARAM_BUFFER_POINTER) *buffer = extra[i + 1];
    else if (extra[i] == (void *)LAUNCH_PARAM_BUFFER_SIZE) size = extra[i + 1];
    else return CUDA_ERROR_INVALID_VALUE;
  }
  if (!*buffer || !size || *size > SCUDA_PARAMS_MAX) return CUDA_ERROR_INVALID_VALUE;
  *bytes = (uint32_t)*size;
  return CUDA_SUCCESS;
}

int32_t scuda_params_of(const struct scuda_func *f, void **params, void **extra, const void **buffer, uint32_t *bytes) {
  *buffer = NULL;
  *bytes = f->param_bytes;
  if (params ? extra != NULL : !extra && f->param_count) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = extra ? from_extra(extra, buffer, bytes) : CUDA_SUCCESS;
  return !r && extra && !*bytes && f->param_count ? CUDA_ERROR_INVALID_VALUE : r;
}

void scuda_params_pack(const struct scuda_func *f, void **params, uint8_t *p) {
  for (uint32_t i = 0; i < f->param_count; i++) {
    const struct scuda_param *param = &f->params[i];
    if (SCUDA_LIKELY(param->size == 8)) memcpy(p + param->offset, params[i], 8);
    else memcpy(p + param->offset, params[i], param->size);
  }
}

/* Most parameters are no larger than an address. */
static inline void use_pinned(const struct scuda_func *f, void **params) {
  uint64_t v;
  for (uint32_t i = 0; i < f->param_count; i++) {
    if (f->params[i].size > 8) scuda_use_pinned_in(params[i], f->params[i].size);
    if (f->params[i].size != 8) continue;
    memcpy(&v, params[i], 8);
    if (scuda_in_pinned_space(v)) scuda_use_pinned(v);
  }
}

/* Where a launch that is captured as a node for kernels to change puts that node's handle for kernels; NULL for other
 * launches. */
static uint8_t *device_node(const struct launch *l) {
  for (uint32_t i = 0; i < l->attr_count; i++) {
    const uint8_t *a = l->attrs + i * ATTRIBUTE_BYTES;
    if (scuda_field(a) == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE && scuda_field(a + 8))
      return (uint8_t *)(uintptr_t)(a + 16);
  }
  return NULL;
}

static int mapped(void) { return atomic_load_explicit(&scuda_mapped_count, memory_order_relaxed) != 0; }

/* Pinned memory has addresses of unified memory too, which decide what a launch takes. */
static __attribute__((noinline, cold)) int32_t pinned_first(const uint8_t *values, uint32_t bytes, uint64_t stream,
                                                            uint32_t ptds) {
  scuda_use_pinned_in(values, bytes);
  return scuda_mapped_upload(stream, ptds);
}

static int32_t launch(const struct launch *l, void **params, void **extra, uint32_t ptds) {
  struct scuda_func *f = scuda_func(l->func);
  if (SCUDA_UNLIKELY(!f)) return CUDA_ERROR_INVALID_HANDLE;
  int32_t r = scuda_check(l->stream, KIND_CUstream);
  if (SCUDA_UNLIKELY(r)) return r;
  struct scuda_thread *t = scuda_thread();
  struct scuda_slot *ctx = scuda_slot(t->current);
  if (SCUDA_UNLIKELY(!ctx || !scuda_context_usable(t->current))) return scuda_no_context();
  if (SCUDA_UNLIKELY(scuda_several())) {
    if (scuda_elsewhere_of(l->func) || scuda_elsewhere_of(l->stream))
      return CUDA_ERROR_INVALID_HANDLE; /* as where they are another context's */
    if (scuda_managed_some() && !t->turn) { /* it ends with the launch */
      scuda_managed_enter();
      return scuda_managed_over(launch(l, params, extra, ptds));
    }
  }

  const void *buffer;
  uint32_t bytes;
  if (SCUDA_UNLIKELY((r = scuda_params_of(f, params, extra, &buffer, &bytes)))) return r;
  int managed = atomic_load_explicit(&scuda_managed_count, memory_order_relaxed) != 0;
  uint8_t early[SCUDA_UNLIKELY(managed) ? bytes + 8 : 1];
  if (SCUDA_UNLIKELY(managed)) { /* the values may lie in memory that the program cannot touch any more in a moment */
    memset(early, 0, bytes);
    if (buffer) memcpy(early, buffer, bytes);
    else scuda_params_pack(f, params, early);
    buffer = early;
    if (SCUDA_UNLIKELY(scuda_several()) && (r = pinned_first(early, bytes, l->stream, ptds))) return r;
    if ((r = scuda_managed_take(SCUDA_REACHABLE, early, bytes, l->stream, ptds))) return r;
  }

  uint32_t how = ptds | SCUDA_WORKS;
  uint64_t config = 0;
  if (SCUDA_UNLIKELY(impossible(l, ctx->device) || other_shape(l, f))) how |= SCUDA_ANSWER;
  else if (SCUDA_UNLIKELY(uncertain(l, f)) && (odd_clusters(l, f) || !known_good(f, config = config_hash(l, f))))
    how |= SCUDA_ANSWER;
  uint8_t *node = SCUDA_UNLIKELY(l->attr_count) ? device_node(l) : NULL;
  if (SCUDA_UNLIKELY(node)) how |= SCUDA_ANSWER;
  if (buffer) scuda_use_pinned_in(buffer, bytes);
  else use_pinned(f, params);
  if (SCUDA_UNLIKELY((r = scuda_mapped_before(l->stream, ptds, &how)))) return r;

  struct scuda_cmd c;
  uint32_t attr_bytes = l->attr_count * ATTRIBUTE_BYTES;
  r = scuda_begin(&c, OP_LAUNCH, how, sizeof(struct wire_launch) + attr_bytes + bytes);
  if (SCUDA_UNLIKELY(r)) return r;
  struct wire_launch *m = (struct wire_launch *)c.payload;
  m->func = l->func;
  m->stream = l->stream;
  memcpy(m->grid, l->grid, sizeof m->grid);
  memcpy(m->block, l->block, sizeof m->block);
  m->shared_bytes = l->shared;
  m->flags = l->flags;
  m->attr_count = l->attr_count;
  m->param_bytes = bytes;
  uint8_t *p = c.payload + sizeof *m;
  put_attributes(p, l);
  p += attr_bytes;
  if (buffer) memcpy(p, buffer, bytes);
  else scuda_params_pack(f, params, p);
  if (SCUDA_UNLIKELY(atomic_load_explicit(&scuda_ordering, memory_order_relaxed)))
    c.shared = (uint32_t)scuda_ranges_any(&scuda_device_ranges, p, bytes, SCUDA_RANGE_SHARED);
  if (SCUDA_UNLIKELY(node)) {
    struct wire_launch_made made;
    uint32_t len = 0;
    r = scuda_call(&c, &made, sizeof made, &len);
    if (!r && len == sizeof made) memcpy(node, &made.device_node, 8);
  } else {
    r = scuda_send(&c);
  }
  if (SCUDA_UNLIKELY(mapped())) scuda_mapped_sent(l->stream, ptds);
  if (SCUDA_UNLIKELY(scuda_blocking()) && !r && !scuda_stream_capturing(l->stream, ptds))
    r = scuda_wire_cuStreamSynchronize(l->stream, ptds);
  if (config && how & SCUDA_ANSWER && !r) note_good(f, config);
  return r;
}

int32_t scuda_hand_cuLaunchKernel(uint64_t f, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by,
                                  uint32_t bz, uint32_t shared,
                                  uint64_t stream, void **params, void **extra, uint32_t ptds) {
  struct launch l = {f, stream, {gx, gy, gz}, {bx, by, bz}, shared, 0, NULL, 0};
  return launch(&l, params, extra, ptds);
}

int32_t scuda_hand_cuLaunchCooperativeKernel(uint64_t f, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx,
                                             uint32_t by, uint32_t bz, uint32_t shared,
                                             uint64_t stream, void **params, uint32_t ptds) {
  struct launch l = {f, stream, {gx, gy, gz}, {bx, by, bz}, shared, COOPERATIVE, NULL, 0};
  return launch(&l, params, NULL, ptds);
}

/* ---- one kernel on several GPUs ---- */

enum { SYNC_FLAGS = 3 }; /* CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC, …_NO_POST_LAUNCH_SYNC */

/* What kernels of a graph, or of several GPUs, may use of pinned memory. */
static int32_t takes(uint64_t stream, uint32_t ptds, uint32_t *how) {
  int32_t r = CUDA_SUCCESS;
  if (SCUDA_UNLIKELY(scuda_several()) && scuda_managed_some()) r = scuda_mapped_upload(stream, ptds);
  return r ? r : scuda_mapped_before(stream, ptds, how);
}

static int32_t launch_all(void *list, uint32_t count, uint32_t flags) {
  const struct CUDA_LAUNCH_PARAMS_st *l = list;
  if (!l || !count || count > SCUDA_DEVICES_MAX || flags & ~(uint32_t)SYNC_FLAGS) return CUDA_ERROR_INVALID_VALUE;
  uint64_t bytes = sizeof(struct wire_launch_several);
  uint32_t how = SCUDA_ANSWER;
  for (uint32_t i = 0; i < count; i++) {
    struct scuda_func *f = scuda_func(l[i].function);
    /* default streams are refused */
    int32_t r = f && l[i].hStream > 2 ? scuda_check(l[i].hStream, KIND_CUstream) : CUDA_ERROR_INVALID_HANDLE;
    if (r) return r;
    if (f->param_count && !l[i].kernelParams) return CUDA_ERROR_INVALID_VALUE;
    use_pinned(f, l[i].kernelParams);
    bytes += sizeof(struct wire_launch) + scuda_pad(f->param_bytes);
    /* and the values are read once more: they may lie in memory that the program cannot touch any more in a moment */
    uint8_t names[f->param_bytes + 8];
    memset(names, 0, f->param_bytes);
    scuda_params_pack(f, l[i].kernelParams, names);
    if ((r = takes(l[i].hStream, 0, &how)) ||
        (r = scuda_managed_take(SCUDA_REACHABLE, names, f->param_bytes, l[i].hStream, 0))) return r;
  }
  struct scuda_cmd c;
  int32_t r = scuda_begin(&c, OP_LAUNCH_SEVERAL, how, bytes);
  if (r) return r;
  struct wire_launch_several m = {count, flags};
  uint8_t *p = scuda_put_struct(c.payload, &m, sizeof m);
  for (uint32_t i = 0; i < count; i++) {
    struct scuda_func *f = scuda_func(l[i].function);
    struct wire_launch w = {
      .func = l[i].function, .stream = l[i].hStream, .shared_bytes = l[i].sharedMemBytes,
      .param_bytes = f->param_bytes, .grid = {l[i].gridDimX, l[i].gridDimY, l[i].gridDimZ},
      .block = {l[i].blockDimX, l[i].blockDimY, l[i].blockDimZ}
    };
    p = scuda_put_struct(p, &w, sizeof w);
    memset(p, 0, scuda_pad(f->param_bytes));
    scuda_params_pack(f, l[i].kernelParams, p);
    p += scuda_pad(f->param_bytes);
  }
  r = scuda_send(&c);
  for (uint32_t i = 0; i < count && mapped(); i++) scuda_mapped_sent(l[i].hStream, 0);
  return r;
}

int32_t scuda_hand_cuLaunchCooperativeKernelMultiDevice(void *list, uint32_t count, uint32_t flags) {
  return scuda_managed_over(launch_all(list, count, flags));
}

static int32_t check_attributes(const struct CUlaunchConfig_st *config) {
  if (config->numAttrs > ATTRIBUTES_MAX || (config->numAttrs && !config->attrs)) return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t n = 0; n < config->numAttrs; n++) {
    const struct CUlaunchAttribute_st *a = &config->attrs[n];
    if (a->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT || a->id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
      scuda_event_elsewhere(a->value.programmaticEvent.event);
  }
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuLaunchKernelEx(const void *launch_config, uint64_t f, void **params, void **extra, uint32_t ptds) {
  const struct CUlaunchConfig_st *config = launch_config;
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = check_attributes(config);
  if (r) return r;
  struct launch l = {
    .func = f, .stream = config->hStream, .shared = config->sharedMemBytes, .attrs = (const uint8_t *)config->attrs,
    .attr_count = config->numAttrs, .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
    .block = {config->blockDimX, config->blockDimY, config->blockDimZ}
  };
  return launch(&l, params, extra, ptds);
}

/* ---- occupancy: pure functions of their arguments, so answers are kept ---- */

struct occupancy {
  uint64_t func, state, generation, shared; uint32_t call; int32_t block; uint32_t flags; uint64_t value;
};
enum { SETS = 256, WAYS = 4 };
static struct occupancy cache[SETS][WAYS];
static scuda_lock_t cache_lock;
static _Atomic uint64_t generation = 1; /* moves when a handle may come to name another function */
void scuda_occupancy_changed(void) { atomic_fetch_add(&generation, 1); }

static struct occupancy *set_of(const struct occupancy *key) {
  const uint64_t odd = 0x9e3779b97f4a7c15u;
  uint64_t h = ((key->func >> 6 ^ key->state) + key->call) * odd;
  h = (h ^ h >> 29 ^ key->shared) * odd;
  h = (h ^ h >> 29 ^ (uint32_t)key->block ^ (uint64_t)key->flags << 32) * odd;
  return cache[h >> 56];
}

static int same(const struct occupancy *e, const struct occupancy *key) {
  return e->func == key->func && e->state == key->state && e->shared == key->shared && e->call == key->call &&
         e->block == key->block && e->flags == key->flags;
}

static int lookup(const struct occupancy *key, uint64_t *value) {
  scuda_lock(&cache_lock);
  struct occupancy *e = set_of(key), *end = e + WAYS;
  while (e < end && !(same(e, key) && e->generation == atomic_load(&generation))) e++;
  if (e < end) *value = e->value;
  scuda_unlock(&cache_lock);
  return e < end;
}

/* The newest comes first, the oldest goes. */
static void keep(struct occupancy key, uint64_t value) {
  key.generation = atomic_load(&generation);
  key.value = value;
  scuda_lock(&cache_lock);
  struct occupancy *set = set_of(&key);
  int i = 0;
  while (i < WAYS - 1 && !same(&set[i], &key)) i++;
  memmove(set + 1, set, (size_t)i * sizeof *set);
  set[0] = key;
  scuda_unlock(&cache_lock);
}

/* Of the function's attributes: answers hold for as long as they are what they are now. */
static uint64_t state_of(uint64_t f) {
  struct scuda_func *func = scuda_func(f);
  return func ? __atomic_load_n(&func->state, __ATOMIC_RELAXED) : 0;
}

#define BLOCKS_KEY {.func = f, .state = state_of(f), .shared = shared, .call = 1, .block = block, .flags = flags}

int scuda_pre_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int32_t *blocks, uint64_t f, int32_t block,
    uint64_t shared, uint32_t flags, int32_t *r) {
  struct occupancy key = BLOCKS_KEY;
  uint64_t value;
  if (!blocks || !lookup(&key, &value)) return 0;
  *blocks = (int32_t)value;
  *r = CUDA_SUCCESS;
  return 1;
}
void scuda_post_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int32_t *blocks, uint64_t f, int32_t block,
    uint64_t shared, uint32_t flags) {
  struct occupancy key = BLOCKS_KEY;
  keep(key, (uint64_t)*blocks);
}
int scuda_pre_cuOccupancyMaxActiveBlocksPerMultiprocessor(int32_t *blocks, uint64_t f, int32_t block, uint64_t shared,
                                                          int32_t *r) {
  return scuda_pre_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, block, shared, 0, r);
}
void scuda_post_cuOccupancyMaxActiveBlocksPerMultiprocessor(int32_t *blocks, uint64_t f, int32_t block,
                                                            uint64_t shared) {
  scuda_post_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, block, shared, 0);
}
int scuda_pre_cuOccupancyAvailableDynamicSMemPerBlock(uint64_t *bytes, uint64_t f, int32_t blocks, int32_t block,
                                                      int32_t *r) {
  struct occupancy key = {.func = f, .state = state_of(f), .shared = (uint64_t)blocks, .call = 2, .block = block};
  if (!bytes || !lookup(&key, bytes)) return 0;
  *r = CUDA_SUCCESS;
  return 1;
}
void scuda_post_cuOccupancyAvailableDynamicSMemPerBlock(uint64_t *bytes, uint64_t f, int32_t blocks, int32_t block) {
  struct occupancy key = {.func = f, .state = state_of(f), .shared = (uint64_t)blocks, .call = 2, .block = block};
  keep(key, *bytes);
}

static int32_t clusters(int32_t *out, uint64_t f, const struct CUlaunchConfig_st *config, uint32_t kind, uint32_t i) {
  if (!out || !config || !f) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = scuda_check(f, KIND_CUfunction);
  const struct scuda_func *func = scuda_func(f);
  if (!r) r = func ? check_attributes(config) : CUDA_ERROR_INVALID_HANDLE;
  if (r) return r;
  /* The grid does not matter for the answer as long as it is valid; the other arguments are folded into one key. */
  struct launch l = {
    .func = f, .shared = config->sharedMemBytes, .attrs = (const uint8_t *)config->attrs,
    .attr_count = config->numAttrs, .block = {config->blockDimX, config->blockDimY, config->blockDimZ}
  };
  struct occupancy key = {.func = f, .shared = config_hash(&l, func), .call = 3 + kind};
  uint64_t value;
  if (lookup(&key, &value)) {
    *out = (int32_t)value;
    return CUDA_SUCCESS;
  }
  struct wire_occupancy_clusters m = {
    .func = f, .stream = config->hStream, .shared_bytes = config->sharedMemBytes, .kind = kind,
    .attr_count = config->numAttrs, .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
    .block = {config->blockDimX, config->blockDimY, config->blockDimZ}
  };
  struct wire_occupancy_value v = {0};
  struct scuda_cmd c;
  r = scuda_begin(&c, OP_OCCUPANCY_CLUSTERS, SCUDA_ANSWER, sizeof m + config->numAttrs * ATTRIBUTE_BYTES);
  if (r) return r;
  memcpy(c.payload, &m, sizeof m);
  if (config->numAttrs) memcpy(c.payload + sizeof m, config->attrs, config->numAttrs * ATTRIBUTE_BYTES);
  uint32_t len = 0;
  r = scuda_call(&c, &v, sizeof v, &len);
  if (r) return r;
  if (len < sizeof v) return scuda_bad_reply(scuda_exports[i].name);
  keep(key, (uint64_t)(uint32_t)v.value);
  *out = v.value;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuOccupancyMaxActiveClusters(int32_t *count, uint64_t f, const void *config) {
  return clusters(count, f, config, WIRE_OCCUPANCY_ACTIVE_CLUSTERS, I_cuOccupancyMaxActiveClusters);
}
int32_t scuda_hand_cuOccupancyMaxPotentialClusterSize(int32_t *size, uint64_t f, const void *config) {
  return clusters(size, f, config, WIRE_OCCUPANCY_CLUSTER_SIZE, I_cuOccupancyMaxPotentialClusterSize);
}

/* The block size with most threads on a multiprocessor; of equals the largest. */
int32_t scuda_hand_cuOccupancyMaxPotentialBlockSizeWithFlags(int32_t *min_grid, int32_t *best_block, uint64_t f,
                                                             void *shared_of_block, uint64_t shared,
                                                             int32_t limit, uint32_t flags) {
  uint64_t (*shared_of)(int32_t) = (uint64_t (*)(int32_t))shared_of_block;
  struct scuda_slot *ctx;
  if (!min_grid || !best_block || limit < 0) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = scuda_context_of(0, &ctx);
  int32_t most = 0;
  if (!r) r = scuda_hand_cuFuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f);
  if (r) return r;
  const int32_t *a = scuda_gpus[ctx->device].d.attributes;
  if (most > a[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK]) most = a[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
  if (limit > 0 && limit < most) most = limit;
  int32_t warp = a[CU_DEVICE_ATTRIBUTE_WARP_SIZE], full = a[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR];
  if (warp <= 0) return CUDA_ERROR_UNKNOWN;
  int32_t best_threads = 0;
  for (int32_t aligned = (most + warp - 1) / warp * warp; aligned > 0 && best_threads < full; aligned -= warp) {
    int32_t block = aligned < most ? aligned : most, blocks = 0;
    uint64_t bytes = shared_of ? shared_of(block) : shared;
    if (!scuda_pre_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, f, block, bytes, flags, &r)) {
      r = scuda_wire_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, f, block, bytes, flags, 0);
      if (!r) scuda_post_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, f, block, bytes, flags);
    }
    if (r) return r;
    if (blocks * block <= best_threads) continue;
    best_threads = blocks * block;
    *best_block = block;
    *min_grid = blocks * a[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
  }
  if (!best_threads) *best_block = *min_grid = 0; /* no block fits */
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuOccupancyMaxPotentialBlockSize(int32_t *min_grid, int32_t *best_block, uint64_t f,
                                                    void *shared_of_block, uint64_t shared, int32_t limit) {
  return scuda_hand_cuOccupancyMaxPotentialBlockSizeWithFlags(min_grid, best_block, f, shared_of_block, shared, limit,
                                                              0);
}

/* A graph's kernels may use mapped memory too. */
static int32_t graph_takes(uint64_t stream, uint32_t ptds, uint32_t *how) {
  int32_t r = takes(stream, ptds, how);
  return r ? r : scuda_managed_take(SCUDA_REACHABLE, NULL, 0, stream, ptds);
}

int scuda_pre_cuGraphLaunch(uint64_t graph, uint64_t stream, uint32_t ptds, int32_t *r) {
  struct scuda_named n = {0};
  struct scuda_visit v;
  *r = graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (*r) return 1;
  int here = SCUDA_LIKELY(!scuda_several());
  if (!here) {
    scuda_name_object(&n, graph);
    scuda_name_object(&n, stream);
    if ((*r = scuda_visit_named(&v, &n, "cuGraphLaunch"))) return 1;
  }
  uint32_t how = ptds;
  *r = graph_takes(stream, ptds, &how);
  int sent = !*r && mapped();
  if (sent && !(*r = scuda_wire_cuGraphLaunch(graph, stream, how))) scuda_mapped_sent(stream, ptds);
  if (!here) scuda_visit_end(v);
  return sent || *r;
}
