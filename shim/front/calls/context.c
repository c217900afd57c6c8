/* Contexts: the stack of each thread, primary contexts and their retain counts. Only creation, destruction and
 * retaining reach the server. */
#include "base/server.h"
#include "calls/calls.h"

#include <stdlib.h>

static scuda_lock_t primary_lock;

/* ---- the stack ---- */

static int32_t push(struct scuda_thread *t, uint64_t ctx) {
  if (t->current || t->depth) {
    if (t->depth == t->below_cap) {
      uint32_t cap = t->below_cap ? 2 * t->below_cap : 8;
      uint64_t *below = realloc(t->below, cap * sizeof *below);
      if (!below) return CUDA_ERROR_OUT_OF_MEMORY;
      t->below = below;
      t->below_cap = cap;
    }
    t->below[t->depth++] = t->current;
  }
  t->current = ctx;
  return CUDA_SUCCESS;
}

static void pop(struct scuda_thread *t) { t->current = t->depth ? t->below[--t->depth] : 0; }

int32_t scuda_hand_cuCtxGetCurrent(uint64_t *ctx) {
  if (!ctx) return CUDA_ERROR_INVALID_VALUE;
  *ctx = scuda_thread()->current;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuCtxSetCurrent(uint64_t ctx) {
  struct scuda_thread *t = scuda_thread();
  if (!ctx) {
    pop(t);
    return CUDA_SUCCESS;
  }
  struct scuda_slot *s;
  int32_t r = scuda_context_of(ctx, &s);
  if (!r) t->current = ctx;
  return r;
}

int32_t scuda_hand_cuCtxPushCurrent_v2(uint64_t ctx) {
  struct scuda_slot *s;
  int32_t r = ctx ? scuda_context_of(ctx, &s) : CUDA_ERROR_INVALID_VALUE;
  return r ? r : push(scuda_thread(), ctx);
}
int32_t scuda_hand_cuCtxPushCurrent(uint64_t ctx) { return scuda_hand_cuCtxPushCurrent_v2(ctx); }

int32_t scuda_hand_cuCtxPopCurrent_v2(uint64_t *ctx) {
  struct scuda_thread *t = scuda_thread();
  if (!t->current) return CUDA_ERROR_INVALID_CONTEXT;
  if (ctx) *ctx = t->current;
  pop(t);
  return CUDA_SUCCESS;
}
int32_t scuda_hand_cuCtxPopCurrent(uint64_t *ctx) { return scuda_hand_cuCtxPopCurrent_v2(ctx); }

/* ---- facts about a context ---- */

/* A program may know the form of CUDA 12, without a context, and call the newest name that it finds (numba 0.61): a
 * register holds anything then, which NVIDIA's library of CUDA 13 follows. What cannot be a context, also none that has
 * ended, means the current one. */
uint64_t scuda_context_meant(uint64_t ctx) {
  const struct scuda_slot *s = scuda_slot(ctx);
  return !s || (s->kind && s->kind != KIND_CUcontext) ? 0 : ctx;
}

int32_t scuda_hand_cuCtxGetDevice_v2(int32_t *device, uint64_t ctx) {
  struct scuda_slot *s;
  ctx = scuda_context_meant(ctx);
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = scuda_context_of(ctx, &s);
  /* the current context's device is known even so */
  if (!ctx && r == CUDA_ERROR_CONTEXT_IS_DESTROYED) r = CUDA_SUCCESS;
  if (!r) *device = s->device;
  return r;
}
int32_t scuda_hand_cuCtxGetDevice(int32_t *device) { return scuda_hand_cuCtxGetDevice_v2(device, 0); }

int32_t scuda_hand_cuCtxGetApiVersion(uint64_t ctx, uint32_t *version) {
  struct scuda_slot *s;
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = scuda_context_of(ctx, &s);
  if (r) return r;
  if (!scuda_context_usable(ctx ? ctx : scuda_thread()->current))
    return ctx ? CUDA_ERROR_INVALID_CONTEXT : scuda_no_context();
  *version = scuda_gpus[s->device].d.ctx_api_version;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuCtxGetFlags(uint32_t *flags) {
  struct scuda_slot *s;
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = scuda_context_of(0, &s);
  if (r && r != CUDA_ERROR_CONTEXT_IS_DESTROYED) return r;
  if (!scuda_context_usable(scuda_thread()->current)) *flags = 0; /* which is no error */
  else *flags = (s->flags & 0xffff) | (s->flags & SCUDA_CTX_PRIMARY ? scuda_gpus[s->device].d.ctx_flags : 0);
  return CUDA_SUCCESS;
}

void scuda_post_cuCtxSetFlags(uint32_t flags) {
  struct scuda_slot *s;
  if (!scuda_context_of(0, &s)) s->flags = (s->flags & ~0xffffu) | (flags & 0xffff);
}

int32_t scuda_hand_cuCtxGetStreamPriorityRange(int32_t *least, int32_t *greatest) {
  struct scuda_slot *s;
  int32_t r = scuda_context_of(0, &s);
  if (!r) r = scuda_context_usable(scuda_thread()->current) ? s->sticky : scuda_no_context();
  if (r) return r;
  if (least) *least = scuda_gpus[s->device].d.priority_least;
  if (greatest) *greatest = scuda_gpus[s->device].d.priority_greatest;
  return CUDA_SUCCESS;
}

/* An id never changes while its context lives, so it is asked for once. */
int32_t scuda_hand_cuCtxGetId(uint64_t ctx, uint64_t *id) {
  struct scuda_slot *s;
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = scuda_context_of(ctx, &s);
  if (!ctx) ctx = scuda_thread()->current;
  if (!r && !scuda_context_usable(ctx)) r = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (!r && !s->id && !(r = scuda_wire_cuCtxGetId(ctx, id, 0))) s->id = scuda_unique(scuda_slot_server(ctx), *id);
  if (!r) *id = s->id;
  return r;
}

int scuda_pre_cuCtxGetLimit(uint64_t *value, int32_t limit, int32_t *r) {
  struct scuda_slot *s;
  if (!value || limit < 0 || limit >= 16 || scuda_context_of(0, &s) || s->sticky ||
      !scuda_context_usable(scuda_thread()->current)) return 0;
  const struct scuda_device *d = &scuda_gpus[s->device].d;
  if (*scuda_limits_changed(s) >> limit & 1 || d->limit_result[limit]) return 0;
  *value = d->limits[limit];
  *r = CUDA_SUCCESS;
  return 1;
}

/* A limit that was set once is asked for ever after: the driver rounds. Some limits move others, so all of them count
 * as set. */
void scuda_post_cuCtxSetLimit(int32_t limit, uint64_t value) {
  struct scuda_slot *s;
  (void)limit;
  (void)value;
  if (!scuda_context_of(0, &s)) *scuda_limits_changed(s) = UINT64_MAX;
}

/* ---- creating and destroying ---- */

static void created(uint64_t ctx, uint32_t flags, int32_t dev) {
  struct scuda_slot *s = scuda_slot(ctx);
  s->flags = flags & 0xffff;
  s->device = dev;
  s->context = 0;
  scuda_context_begins(s);
  push(scuda_thread(), ctx);
}

void scuda_post_cuCtxCreate(uint64_t *ctx, uint32_t flags, int32_t dev) { created(*ctx, flags, dev); }
void scuda_post_cuCtxCreate_v2(uint64_t *ctx, uint32_t flags, int32_t dev) { created(*ctx, flags, dev); }
void scuda_post_cuCtxCreate_v3(uint64_t *ctx, void *params, int32_t count, uint32_t flags, int32_t dev) {
  (void)params;
  (void)count;
  created(*ctx, flags, dev);
}

int32_t scuda_hand_cuCtxCreate_v4(uint64_t *ctx, void *create_params, uint32_t flags, int32_t dev) {
  struct CUctxCreateParams_st *p = create_params;
  if (p && p->cigParams) return scuda_refuse(I_cuCtxCreate_v4, PART_graphics);
  int32_t count = p ? p->numExecAffinityParams : 0;
  int32_t r = count ? scuda_wire_cuCtxCreate_v3(ctx, p->execAffinityParams, count, flags, dev, 0) :
              scuda_wire_cuCtxCreate_v2(ctx, flags, dev, 0);
  if (!r) created(*ctx, flags, dev);
  return r;
}

int scuda_pre_cuCtxDestroy_v2(uint64_t ctx, int32_t *r) {
  struct scuda_slot *s;
  *r = ctx ? scuda_context_of(ctx, &s) : CUDA_ERROR_INVALID_VALUE;
  if (!*r && s->flags & SCUDA_CTX_PRIMARY) *r = CUDA_ERROR_INVALID_CONTEXT;
  if (*r) return 1;
  scuda_managed_leave_context(ctx);
  scuda_storage_context_dies(ctx);
  return 0;
}

void scuda_post_cuCtxDestroy_v2(uint64_t ctx) {
  scuda_managed_forget_context(ctx);
  scuda_ranges_forget_context(ctx);
  scuda_capture_context_dies(ctx);
  struct scuda_thread *t = scuda_thread();
  if (t->current == ctx) pop(t);
}

int scuda_pre_cuCtxDestroy(uint64_t ctx, int32_t *r) { return scuda_pre_cuCtxDestroy_v2(ctx, r); }
void scuda_post_cuCtxDestroy(uint64_t ctx) { scuda_post_cuCtxDestroy_v2(ctx); }

/* ---- counts of uses, which only contexts that were created have: the last detaching ends such a context ---- */

int32_t scuda_hand_cuCtxAttach(uint64_t *ctx, uint32_t flags) {
  struct scuda_slot *s;
  if (!ctx || flags) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = scuda_context_of(0, &s);
  if (!r && !scuda_context_usable(scuda_thread()->current)) r = scuda_no_context();
  if (r) return r;
  if (!(s->flags & SCUDA_CTX_PRIMARY)) __atomic_add_fetch(scuda_attached(s), 1, __ATOMIC_RELAXED);
  *ctx = scuda_thread()->current;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuCtxDetach(uint64_t ctx) {
  struct scuda_slot *s;
  if (!scuda_context_usable(scuda_thread()->current)) return scuda_no_context();
  if (ctx != scuda_thread()->current || scuda_context_of(ctx, &s)) return CUDA_ERROR_INVALID_CONTEXT;
  if (s->flags & SCUDA_CTX_PRIMARY) return CUDA_SUCCESS;
  uint64_t n = __atomic_load_n(scuda_attached(s), __ATOMIC_RELAXED);
  while (n && !__atomic_compare_exchange_n(scuda_attached(s), &n, n - 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  if (n) return CUDA_SUCCESS;
  int32_t r;
  if (scuda_pre_cuCtxDestroy_v2(ctx, &r)) return r;
  if (!(r = scuda_wire_cuCtxDestroy_v2(ctx, 0))) scuda_post_cuCtxDestroy_v2(ctx);
  return r;
}

/* ---- primary contexts ---- */

enum {
  PRIMARY_RETAIN = WIRE_PRIMARY_RETAIN, PRIMARY_RELEASE = WIRE_PRIMARY_RELEASE, PRIMARY_RESET = WIRE_PRIMARY_RESET,
      PRIMARY_FLAGS = WIRE_PRIMARY_SET_FLAGS
};

static int32_t primary(int32_t dev, uint32_t verb, uint32_t flags) {
  struct wire_primary m = {(uint64_t)scuda_gpus[dev].server_ordinal, scuda_gpus[dev].primary, verb, flags};
  struct scuda_visit v = scuda_visit(scuda_gpus[dev].server, scuda_gpus[dev].primary);
  int32_t r = scuda_simple(OP_PRIMARY, SCUDA_ANSWER, &m, sizeof m);
  scuda_visit_end(v);
  return r;
}

/* The program has called exit: what ends with the session needs no command any more. The handler goes before those of
 * CUDA's runtime, which was there before the first context. */
static _Atomic int exiting;
static void note_exit(void) { atomic_store(&exiting, 1); }
static void watch_exit(void) {
  static atomic_flag watched = ATOMIC_FLAG_INIT;
  if (!atomic_flag_test_and_set(&watched)) atexit(note_exit);
}

static struct scuda_slot *primary_slot(int32_t dev) { return scuda_slot(scuda_gpus[dev].primary); }

int32_t scuda_hand_cuDevicePrimaryCtxRetain(uint64_t *ctx, int32_t dev) {
  if (!ctx) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_device_ok(dev)) return CUDA_ERROR_INVALID_DEVICE;
  int32_t r = CUDA_SUCCESS;
  *ctx = scuda_gpus[dev].primary; /* also of one that cannot be had */
  scuda_lock(&primary_lock);
  struct scuda_slot *s = primary_slot(dev);
  if (!(s->flags & SCUDA_CTX_ACTIVE)) {
    uint32_t flags = scuda_gpus[dev].primary_flags;
    if (flags) r = primary(dev, PRIMARY_FLAGS, flags);
    if (!r) r = primary(dev, PRIMARY_RETAIN, flags);
    if (!r) {
      scuda_context_begins(s);
      s->flags = (s->flags & ~0xffffu) | flags | SCUDA_CTX_ACTIVE;
      watch_exit();
    }
  }
  if (!r) ++*scuda_retained(s);
  scuda_unlock(&primary_lock);
  return r;
}

/* The end of a primary context, by the last release or by a reset. The destructors call back into the driver, so no
 * lock is held; where another thread has retained the context meanwhile, or ended it, it is not ended. */
static int32_t primary_ends(int32_t dev, uint32_t verb) {
  struct scuda_slot *s = primary_slot(dev);
  scuda_storage_context_dies(scuda_gpus[dev].primary);
  scuda_lock(&primary_lock);
  if (!(s->flags & SCUDA_CTX_ACTIVE) || (verb == PRIMARY_RELEASE && *scuda_retained(s))) {
    scuda_unlock(&primary_lock);
    return CUDA_SUCCESS;
  }
  if (!atomic_load(&exiting)) scuda_managed_leave_context(scuda_gpus[dev].primary);
  s->flags &= ~(uint32_t)SCUDA_CTX_ACTIVE;
  scuda_gpus[dev].primary_flags = 0;
  *scuda_limits_changed(s) = 0;
  s->id = 0;
  int32_t r = verb == PRIMARY_RELEASE && atomic_load(&exiting) &&
              scuda_context_done(scuda_gpus[dev].primary) ? CUDA_SUCCESS : primary(dev, verb, 0);
  s->sticky = CUDA_SUCCESS;
  /* with the lock: what its next life has, under the same handle, stays */
  scuda_managed_forget_context(scuda_gpus[dev].primary);
  scuda_ranges_forget_context(scuda_gpus[dev].primary);
  scuda_capture_context_dies(scuda_gpus[dev].primary);
  scuda_unlock(&primary_lock);
  return r;
}

int32_t scuda_hand_cuDevicePrimaryCtxRelease_v2(int32_t dev) {
  if (!scuda_device_ok(dev)) return CUDA_ERROR_INVALID_DEVICE;
  scuda_lock(&primary_lock);
  struct scuda_slot *s = primary_slot(dev);
  uint64_t before = *scuda_retained(s);
  if (before) --*scuda_retained(s);
  int ends = before == 1 && s->flags & SCUDA_CTX_ACTIVE;
  scuda_unlock(&primary_lock);
  if (!before) return CUDA_ERROR_INVALID_CONTEXT;
  return ends ? primary_ends(dev, PRIMARY_RELEASE) : CUDA_SUCCESS;
}
/* The older form does not mind that there is nothing to release. */
int32_t scuda_hand_cuDevicePrimaryCtxRelease(int32_t dev) {
  int32_t r = scuda_hand_cuDevicePrimaryCtxRelease_v2(dev);
  return r == CUDA_ERROR_INVALID_CONTEXT ? CUDA_SUCCESS : r;
}

int32_t scuda_hand_cuDevicePrimaryCtxReset_v2(int32_t dev) {
  if (!scuda_device_ok(dev)) return CUDA_ERROR_INVALID_DEVICE;
  if (primary_slot(dev)->flags & SCUDA_CTX_ACTIVE) return primary_ends(dev, PRIMARY_RESET);
  scuda_gpus[dev].primary_flags = 0;
  return CUDA_SUCCESS;
}
/* The older form, which CUDA's runtime uses, drops the references too. */
int32_t scuda_hand_cuDevicePrimaryCtxReset(int32_t dev) {
  int32_t r = scuda_hand_cuDevicePrimaryCtxReset_v2(dev);
  if (r) return r;
  scuda_lock(&primary_lock);
  *scuda_retained(primary_slot(dev)) = 0;
  scuda_unlock(&primary_lock);
  return r;
}

int32_t scuda_hand_cuDevicePrimaryCtxSetFlags_v2(int32_t dev, uint32_t flags) {
  if (!scuda_device_ok(dev)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags & ~(uint32_t)CU_CTX_FLAGS_MASK) return CUDA_ERROR_INVALID_VALUE;
  int32_t r = CUDA_SUCCESS;
  scuda_lock(&primary_lock);
  struct scuda_slot *s = primary_slot(dev);
  if (s->flags & SCUDA_CTX_ACTIVE) r = primary(dev, PRIMARY_FLAGS, flags);
  if (!r) {
    s->flags = (s->flags & ~0xffffu) | flags;
    scuda_gpus[dev].primary_flags = flags;
  }
  scuda_unlock(&primary_lock);
  return r;
}
/* The older form does not change a context that is there. */
int32_t scuda_hand_cuDevicePrimaryCtxSetFlags(int32_t dev, uint32_t flags) {
  if (scuda_device_ok(dev) && !(flags & ~(uint32_t)CU_CTX_FLAGS_MASK) && primary_slot(dev)->flags & SCUDA_CTX_ACTIVE)
    return CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
  return scuda_hand_cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

int32_t scuda_hand_cuDevicePrimaryCtxGetState(int32_t dev, uint32_t *flags, int32_t *active) {
  if (!scuda_device_ok(dev)) return CUDA_ERROR_INVALID_DEVICE;
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  *flags = scuda_gpus[dev].primary_flags; /* not what cuCtxSetFlags has made of them */
  *active = (primary_slot(dev)->flags & SCUDA_CTX_ACTIVE) != 0;
  return CUDA_SUCCESS;
}

/* ---- the mode of stream capture ---- */

int32_t scuda_hand_cuThreadExchangeStreamCaptureMode(int32_t *mode) {
  if (!mode) return CUDA_ERROR_INVALID_VALUE; /* a value that is no mode is taken, as by the driver */
  struct scuda_thread *t = scuda_thread();
  int32_t before = (int32_t)t->capture_mode;
  if (before != *mode) {
    struct wire_capture_mode m = {(uint32_t)*mode, 0};
    int32_t r = scuda_to_all(OP_CAPTURE_MODE, 0, &m, sizeof m);
    if (r) return r;
  }
  t->capture_mode = (uint32_t)*mode;
  *mode = before;
  return CUDA_SUCCESS;
}
