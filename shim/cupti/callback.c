/* The callback API: who is called back for what, and the names of it. */
#include "cupti.h"

#include <string.h>

_Atomic uint8_t cupti_called[CUPTI_DOMAINS][CUPTI_IDS];
_Atomic uint32_t cupti_callbacks;
typedef void (*callback_fn)(void *user, uint32_t domain, uint32_t id, const void *data);
static struct subscriber { callback_fn fn; void *user; } subscriber; /* its address is the handle */
static _Atomic int subscribed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void cupti_call_back(uint32_t domain, uint32_t id, const void *data) {
  struct cupti_thread *t = cupti_self();
  callback_fn fn = subscriber.fn;
  if (!atomic_load(&subscribed) || !fn) return;
  cupti_program(t, 1);
  fn(subscriber.user, domain, id, data);
  cupti_program(t, -1);
}

int own_cuptiSubscribe(struct subscriber **handle, callback_fn fn, void *user) {
  if (!handle) return CUPTI_ERROR_INVALID_PARAMETER;
  pthread_mutex_lock(&lock);
  int taken = atomic_load(&subscribed);
  if (!taken) {
    subscriber = (struct subscriber){fn, user};
    atomic_store(&subscribed, 1);
    *handle = &subscriber;
  }
  pthread_mutex_unlock(&lock);
  return taken ? CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED : CUPTI_SUCCESS;
}

static int known(const struct subscriber *s) { return s == &subscriber && atomic_load(&subscribed); }

static uint32_t ids_of(uint32_t domain) {
  switch (domain) {
  case CUPTI_CB_DOMAIN_DRIVER_API: return CUPTI_DRIVER_IDS;
  case CUPTI_CB_DOMAIN_RUNTIME_API: return CUPTI_RUNTIME_IDS;
  case CUPTI_CB_DOMAIN_RESOURCE: return CUPTI_CBID_RESOURCE_SIZE;
  case CUPTI_CB_DOMAIN_SYNCHRONIZE: return CUPTI_CBID_SYNCHRONIZE_SIZE;
  case CUPTI_CB_DOMAIN_STATE: return CUPTI_CBID_STATE_ERROR + 1;
  case CUPTI_CB_DOMAIN_NVTX: return CUPTI_NVTX_IDS;
  }
  return 0;
}

/* What there are no callbacks for: parts of graphs that change, what PC sampling reads. */
static int missing(uint32_t domain, uint32_t id) {
  if (domain != CUPTI_CB_DOMAIN_RESOURCE) return 0;
  switch (id) {
  case CUPTI_CBID_RESOURCE_MODULE_PROFILED:
  case CUPTI_CBID_RESOURCE_GRAPHNODE_CREATE_STARTING:
  case CUPTI_CBID_RESOURCE_GRAPHNODE_DEPENDENCY_CREATED:
  case CUPTI_CBID_RESOURCE_GRAPHNODE_DEPENDENCY_DESTROY_STARTING:
  case CUPTI_CBID_RESOURCE_STREAM_ATTRIBUTE_CHANGED:
  case CUPTI_CBID_RESOURCE_GRAPH_NODE_UPDATED:
  case CUPTI_CBID_RESOURCE_GRAPH_NODE_SET_PARAMS: return 1;
  }
  return 0;
}

static void set(uint32_t domain, uint32_t id, int on) {
  if (atomic_exchange(&cupti_called[domain][id], on) == on) return;
  if (on) atomic_fetch_add(&cupti_callbacks, 1);
  else atomic_fetch_sub(&cupti_callbacks, 1);
}

static void set_domain(uint32_t domain, int on) {
  for (uint32_t id = 1; id < ids_of(domain); id++) set(domain, id, on && !missing(domain, id));
}

int own_cuptiUnsubscribe(struct subscriber *s) {
  if (!known(s)) return CUPTI_ERROR_INVALID_PARAMETER;
  for (uint32_t d = 1; d < CUPTI_DOMAINS; d++) set_domain(d, 0);
  atomic_store(&subscribed, 0);
  cupti_update();
  return CUPTI_SUCCESS;
}

/* What is behind the ids of NVTX that there are callbacks for. */
static int refuse_nvtx(uint32_t enable) {
  static _Atomic uint8_t said;
  return enable ? cupti_refused(&said, "CUPTI_CB_DOMAIN_NVTX, of more than marks and ranges") : CUPTI_SUCCESS;
}

int own_cuptiEnableCallback(uint32_t enable, struct subscriber *s, uint32_t domain, uint32_t id) {
  static _Atomic uint8_t said[CUPTI_CBID_RESOURCE_SIZE];
  if (!known(s)) return CUPTI_ERROR_INVALID_PARAMETER;
  if (domain == CUPTI_CB_DOMAIN_NVTX && id >= CUPTI_NVTX_IDS) return refuse_nvtx(enable);
  if (id >= ids_of(domain)) return CUPTI_ERROR_INVALID_PARAMETER;
  if (enable && missing(domain, id)) return cupti_refused(&said[id], cupti_resource_names[id]);
  set(domain, id, enable != 0);
  cupti_update();
  return CUPTI_SUCCESS;
}

int own_cuptiEnableDomain(uint32_t enable, struct subscriber *s, uint32_t domain) {
  if (!known(s)) return CUPTI_ERROR_INVALID_PARAMETER;
  if (!ids_of(domain)) return CUPTI_ERROR_INVALID_PARAMETER;
  set_domain(domain, enable != 0);
  cupti_update();
  return CUPTI_SUCCESS;
}

int own_cuptiEnableAllDomains(uint32_t enable, struct subscriber *s) {
  if (!known(s)) return CUPTI_ERROR_INVALID_PARAMETER;
  for (uint32_t d = 1; d < CUPTI_DOMAINS; d++) set_domain(d, enable != 0);
  cupti_update();
  return CUPTI_SUCCESS;
}

int own_cuptiGetCallbackState(uint32_t *enable, struct subscriber *s, uint32_t domain, uint32_t id) {
  if (!enable || !known(s) || id >= ids_of(domain)) return CUPTI_ERROR_INVALID_PARAMETER;
  *enable = cupti_called[domain][id];
  return CUPTI_SUCCESS;
}

int own_cuptiSupportedDomains(size_t *count, const uint32_t **table) {
  static const uint32_t domains[] = {CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_CB_DOMAIN_RESOURCE,
                                     CUPTI_CB_DOMAIN_SYNCHRONIZE, CUPTI_CB_DOMAIN_NVTX};
  if (!count || !table) return CUPTI_ERROR_INVALID_PARAMETER;
  *count = sizeof domains / sizeof *domains;
  *table = domains;
  return CUPTI_SUCCESS;
}

int own_cuptiGetCallbackName(uint32_t domain, uint32_t id, const char **name) {
  if (!name || id >= ids_of(domain)) return CUPTI_ERROR_INVALID_PARAMETER;
  *name = domain == CUPTI_CB_DOMAIN_DRIVER_API ? cupti_driver_names[id] :
          domain == CUPTI_CB_DOMAIN_RUNTIME_API ? cupti_runtime_names[id] :
          domain == CUPTI_CB_DOMAIN_NVTX ? cupti_nvtx_names[id] : NULL;
  return *name ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}

/* ---- what needs no session ---- */

int own_cuptiGetVersion(uint32_t *version) {
  if (!version) return CUPTI_ERROR_INVALID_PARAMETER;
  *version = cupti_major == 12 ? 28 : 130201; /* of CUDA 12.9 and 13.2, whose records we know */
  return CUPTI_SUCCESS;
}

int own_cuptiGetResultString(int32_t result, const char **text) {
  if (!text) return CUPTI_ERROR_INVALID_PARAMETER;
  for (const struct cupti_name *n = cupti_results; n->name; n++)
    if (n->value == result) {
      *text = n->name;
      return CUPTI_SUCCESS;
    }
  return CUPTI_ERROR_INVALID_PARAMETER;
}
int own_cuptiGetErrorMessage(int32_t result, const char **text) { return own_cuptiGetResultString(result, text); }
int own_cuptiGetLastError(void) { return CUPTI_SUCCESS; }

int own_cuptiGetTimestamp(uint64_t *time) {
  if (!time) return CUPTI_ERROR_INVALID_PARAMETER;
  *time = cupti_now();
  return CUPTI_SUCCESS;
}

int own_cuptiComputeCapabilitySupported(int major, int minor, int *supported) {
  if (!supported) return CUPTI_ERROR_INVALID_PARAMETER;
  *supported = major >= 5 && minor >= 0;
  return CUPTI_SUCCESS;
}

/* ---- numbers of the program's objects ---- */

int own_cuptiGetDeviceId(uint64_t context, uint32_t *id) {
  struct scuda_profile_ids ids;
  if (!id) return CUPTI_ERROR_INVALID_PARAMETER;
  cupti_front->ids(context, 0, 0, &ids);
  if (!ids.context) return CUPTI_ERROR_INVALID_CONTEXT;
  *id = ids.device;
  return CUPTI_SUCCESS;
}

int own_cuptiGetContextId(uint64_t context, uint32_t *id) {
  struct scuda_profile_ids ids;
  if (!id) return CUPTI_ERROR_INVALID_PARAMETER;
  cupti_front->ids(context, 0, 0, &ids);
  *id = ids.context;
  return ids.context ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_CONTEXT;
}

int own_cuptiGetStreamIdEx(uint64_t context, uint64_t stream, uint8_t per_thread, uint32_t *id) {
  struct scuda_profile_ids ids;
  if (!id) return CUPTI_ERROR_INVALID_PARAMETER;
  cupti_front->ids(context, stream, per_thread, &ids);
  *id = ids.stream;
  return !ids.context ? CUPTI_ERROR_INVALID_CONTEXT : ids.stream ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_STREAM;
}
int own_cuptiGetStreamId(uint64_t context, uint64_t stream, uint32_t *id) {
  return own_cuptiGetStreamIdEx(context, stream, 0, id);
}
