/* What exported functions have in common: where a call goes in each mode, how refusals are told, and the two calls with
 * which a program begins. */
#define _GNU_SOURCE
#include "calls/calls.h"
#include "calls/profile.h"
#include "calls/timeline.h"

#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

static void *real_functions[SCUDA_EXPORT_COUNT];
static _Atomic uint32_t refusals[SCUDA_EXPORT_COUNT]; /* which refusals have been logged: a bit for each part */

/* ---- answers of the modes without a session ---- */

static int32_t fail_not_initialized(void) { return CUDA_ERROR_NOT_INITIALIZED; }
static int32_t fail_deinitialized(void) { return CUDA_ERROR_DEINITIALIZED; }
static int32_t fail_invalid_value(void) { return CUDA_ERROR_INVALID_VALUE; }
static int32_t fail_invalid_context(void) { return CUDA_ERROR_INVALID_CONTEXT; }
static int32_t fail_invalid_handle(void) { return CUDA_ERROR_INVALID_HANDLE; }
static int32_t fail_not_found(void) { return CUDA_ERROR_NOT_FOUND; }
static int32_t none_init(uint32_t flags) { (void)flags; return CUDA_ERROR_NO_DEVICE; }
static int32_t none_version(int32_t *version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = 0;
  return CUDA_SUCCESS;
}

/* Natively some functions look at their arguments before they find that cuInit was not called; they cannot have been
 * right. */
static void *before_init(const struct scuda_export *e) {
  if (e->before_init) return e->before_init;
  switch (e->early) {
  case CUDA_ERROR_INVALID_VALUE: return (void *)fail_invalid_value;
  case CUDA_ERROR_INVALID_CONTEXT: return (void *)fail_invalid_context;
  case CUDA_ERROR_INVALID_HANDLE: return (void *)fail_invalid_handle;
  default: return (void *)fail_not_initialized;
  }
}

__thread uint8_t scuda_inside __attribute__((tls_model("initial-exec")));

int32_t scuda_nested(void) {
  static _Atomic int said;
  static const char line[] = "scuda: a signal handler called CUDA in the middle of a CUDA call of its thread. "
                             "Such calls are refused with CUDA_ERROR_NOT_PERMITTED (800).\n";
  const int before = errno;
  if (!atomic_exchange(&said, 1) && write(2, line, sizeof line - 1) < 0) errno = before; /* stdio may be locked */
  return CUDA_ERROR_NOT_PERMITTED;
}

void *scuda_divert(uint32_t i) {
  const struct scuda_export *e = &scuda_exports[i];
  switch (scuda_mode()) {
  case SCUDA_REMOTE:
    return e->entry;
  case SCUDA_PROFILED:
    return e->profiled;
  case SCUDA_CONFIGURED:
    return before_init(e);
  case SCUDA_PASS: {
    void *f = __atomic_load_n(&real_functions[i], __ATOMIC_RELAXED);
    if (!f) {
      f = dlsym(scuda_real_driver(), e->name);
      if (!f && e->older) f = dlsym(scuda_real_driver(), scuda_exports[e->older].name);
      if (!f) {
        scuda_log(SCUDA_INFO, "the machine's driver has no %s", e->name);
        f = (void *)fail_not_found;
      }
      __atomic_store_n(&real_functions[i], f, __ATOMIC_RELAXED);
    }
    return f;
  }
  case SCUDA_NONE:
    if (i == I_cuInit) return (void *)none_init;
    if (i == I_cuDriverGetVersion) return (void *)none_version;
    return before_init(e);
  case SCUDA_CHILD:
    return e->before_init && i != I_cuInit ? e->before_init : (void *)fail_not_initialized;
  default:
    return (void *)fail_deinitialized;
  }
}

void *scuda_older(uint32_t i) { return scuda_exports[scuda_exports[i].older].entry; }

static int32_t not_supported(uint32_t i, uint32_t bit, const char *what) {
  if (!(atomic_fetch_or(&refusals[i], 1u << bit) >> bit & 1))
    scuda_log(SCUDA_WARN, "%s: %s; answered CUDA_ERROR_NOT_SUPPORTED", scuda_exports[i].name, what);
  return CUDA_ERROR_NOT_SUPPORTED;
}

_Static_assert(SCUDA_PARTS < 32, "a bit for each part, and one for the function");
int32_t scuda_unsupported(uint32_t i, const char *what) { return not_supported(i, SCUDA_PARTS, what); }
int32_t scuda_refuse(uint32_t i, enum scuda_part part) { return not_supported(i, part, scuda_parts[part]); }

/* Somebody else's answer: the driver's, or the server's, whose log has the reason. */
void scuda_not_supported(uint32_t i) {
  if (!atomic_fetch_or(&refusals[i], 1u << SCUDA_PARTS))
    scuda_log(SCUDA_INFO,
              "%s: the server answered CUDA_ERROR_NOT_SUPPORTED; if that is not its driver's answer, its log says why",
              scuda_exports[i].name);
}

int32_t scuda_missing(uint32_t i) { return scuda_unsupported(i, "not supported by this version of scuda"); }

/* ---- the first calls ---- */

int32_t scuda_hand_cuInit(uint32_t flags) {
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  static const struct scuda_callbacks callbacks = {.slot_ends = scuda_graph_dies, .upload = scuda_use_pinned_in,
                                                   .mapped = scuda_mapped_next, .waits = scuda_mapped_publish,
                                                   .exit = scuda_managed_end, .last = scuda_timeline_ends};
  uint64_t began = scuda_events_now();
  int32_t result = scuda_connect(&callbacks);
  if (result) return result;
  if (!scuda_gpu_count) return CUDA_ERROR_NO_DEVICE;
  uint32_t configured = SCUDA_CONFIGURED;
  atomic_compare_exchange_strong(&scuda_live.mode, &configured, SCUDA_REMOTE);
  scuda_profile_begins(began);
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuDriverGetVersion(int32_t *version) {
  return version ? scuda_version(version) : CUDA_ERROR_INVALID_VALUE;
}
