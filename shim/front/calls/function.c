/* What is known about functions and kernels: names, parameters, attributes, and lists of them. */
#include "calls/calls.h"

#include <stdlib.h>

static int32_t param_info(uint64_t handle, uint32_t kind, uint64_t index, uint64_t *offset, uint64_t *size) {
  struct scuda_slot *s = scuda_slot_of(handle, kind);
  if (!s) return handle ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
  struct scuda_func *f = s->data;
  if (!offset || index >= f->param_count) return CUDA_ERROR_INVALID_VALUE;
  *offset = f->params[index].offset;
  if (size) *size = f->params[index].size;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuFuncGetParamInfo(uint64_t function, uint64_t index, uint64_t *offset, uint64_t *size) {
  return param_info(function, scuda_slot_of(function, KIND_CUkernel) ? KIND_CUkernel : KIND_CUfunction, index, offset,
                    size);
}
int32_t scuda_hand_cuKernelGetParamInfo(uint64_t kernel, uint64_t index, uint64_t *offset, uint64_t *size) {
  return param_info(kernel, KIND_CUkernel, index, offset, size);
}

/* The function of a kernel has the kernel's name. */
int32_t scuda_hand_cuFuncGetName(void **name, uint64_t function) {
  struct scuda_func *f = scuda_func(function);
  if (!name || !function) return CUDA_ERROR_INVALID_VALUE;
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  struct scuda_func *kernel = scuda_func(f->parent);
  *name = kernel ? kernel->name : f->name;
  return CUDA_SUCCESS;
}
int32_t scuda_hand_cuKernelGetName(void **name, uint64_t kernel) {
  return !kernel || scuda_slot_of(kernel, KIND_CUkernel) ? scuda_hand_cuFuncGetName(name, kernel) :
         CUDA_ERROR_INVALID_HANDLE;
}

int32_t scuda_hand_cuKernelGetLibrary(uint64_t *library, uint64_t kernel) {
  struct scuda_slot *s = scuda_slot_of(kernel, KIND_CUkernel);
  if (!library) return CUDA_ERROR_INVALID_VALUE;
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  *library = ((struct scuda_func *)s->data)->parent;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuFuncGetModule(uint64_t *module, uint64_t function) {
  struct scuda_func *f = scuda_func(function);
  if (!module || !function) return CUDA_ERROR_INVALID_VALUE;
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  struct scuda_func *kernel = scuda_slot_of(function, KIND_CUkernel) ? f : scuda_func(f->parent);
  if (kernel) return scuda_hand_cuLibraryGetModule(module, kernel->parent);
  *module = f->parent;
  return CUDA_SUCCESS;
}

/* ---- attributes ---- */

static int cached(const struct scuda_func *f, int32_t attribute, int32_t device, int32_t *value) {
  if ((uint32_t)attribute >= 16 || f->device != device) return 0;
  int32_t v = __atomic_load_n(&f->attr[attribute], __ATOMIC_RELAXED);
  if (v == INT32_MIN) return 0;
  *value = v;
  return 1;
}

int32_t scuda_hand_cuFuncGetAttribute(int32_t *value, int32_t attribute, uint64_t function) {
  struct scuda_func *f = scuda_func(function);
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  if (!scuda_context_sound() && cached(f, attribute, scuda_current_device(), value)) return CUDA_SUCCESS;
  int32_t r = scuda_wire_cuFuncGetAttribute(value, attribute, function, 0);
  if (!r && (uint32_t)attribute < 16 && f->device == scuda_current_device())
    __atomic_store_n(&f->attr[attribute], *value, __ATOMIC_RELAXED);
  return r;
}

int32_t scuda_hand_cuKernelGetAttribute(int32_t *value, int32_t attribute, uint64_t kernel, int32_t dev) {
  struct scuda_slot *s = scuda_slot_of(kernel, KIND_CUkernel);
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  if (!scuda_device_ok(dev)) return CUDA_ERROR_INVALID_DEVICE;
  struct scuda_func *f = s->data;
  if (cached(f, attribute, dev, value)) return CUDA_SUCCESS;
  int32_t r = scuda_wire_cuKernelGetAttribute(value, attribute, kernel, dev, 0);
  if (!r && (uint32_t)attribute < 16 && f->device == dev)
    __atomic_store_n(&f->attr[attribute], *value, __ATOMIC_RELAXED);
  return r;
}

/* Whether the driver will surely take the value; anything else is asked about. */
static int surely_valid(const struct scuda_func *f, int32_t attribute, int32_t value, int32_t dev) {
  if (!f || !scuda_device_ok(dev) || f->device != dev) return 0;
  int64_t optin = scuda_gpus[dev].d.attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN];
  switch (attribute) {
  case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
    return value >= 0 && f->attr[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES] >= 0 &&
           (int64_t)value + f->attr[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES] <= optin;
  case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    return value >= -1 && value <= 100;
  case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    return value == 0 || value == 1;
  }
  return 0;
}

/* Moves one word of what was set, and with it the hash; false when it had the value. */
static int moved(struct scuda_func *f, int32_t *word, uint32_t place, int32_t value) {
  const uint64_t odd = 0x9e3779b97f4a7c15u;
  int32_t old = __atomic_exchange_n(word, value, __ATOMIC_RELAXED);
  if (old == value) return 0;
  uint64_t was = ((uint64_t)place << 32 | (uint32_t)old) * odd, is = ((uint64_t)place << 32 | (uint32_t)value) * odd;
  __atomic_fetch_xor(&f->state, (was ^ was >> 29) * odd ^ (is ^ is >> 29) * odd, __ATOMIC_RELAXED);
  return 1;
}

/* What was set reads back as set; of the attributes that may move with it nothing is kept. Libraries set the same
 * values before every launch, which changes nothing, or go to and fro between a few: what was answered for one set of
 * values is found again under its hash. */
static int attribute_set(struct scuda_func *f, int32_t attribute, int32_t value, int32_t dev) {
  if (!f || (uint32_t)attribute >= 16 || f->device != dev) {
    scuda_occupancy_changed();
    return 1;
  }
  if (!(moved(f, &f->set[attribute], (uint32_t)attribute, value) |
        moved(f, &f->around[attribute], 16 + (uint32_t)attribute, value))) return 0;
  __atomic_store_n(&f->attr[attribute],
                   attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? value : INT32_MIN, __ATOMIC_RELAXED);
  return 1;
}

int scuda_pre_cuFuncSetAttribute(uint64_t function, int32_t attribute, int32_t value, int32_t *r) {
  (void)r;
  return surely_valid(scuda_func(function), attribute, value, scuda_current_device()) ? 0 : 2;
}
/* Whether the attributes of a kernel and of its functions are one is the driver's affair. */
static void set_elsewhere(struct scuda_func *f, int32_t attribute, int32_t value) {
  if ((uint32_t)attribute >= 16) return;
  moved(f, &f->around[attribute], 16 + (uint32_t)attribute, value);
  __atomic_store_n(&f->attr[attribute], INT32_MIN, __ATOMIC_RELAXED);
}
void scuda_post_cuFuncSetAttribute(uint64_t function, int32_t attribute, int32_t value) {
  atomic_fetch_add(&scuda_graph_exec_epoch, 1);
  struct scuda_func *f = scuda_func(function), *kernel = f && f->context ? scuda_func(f->parent) : f;
  if (!attribute_set(f, attribute, value, scuda_current_device())) return;
  if (kernel && kernel != f) set_elsewhere(kernel, attribute, value);
  for (struct scuda_func *g = kernel ? kernel->forms : NULL; g; g = g->next)
    if (g != f) set_elsewhere(g, attribute, value);
}

int scuda_pre_cuKernelSetAttribute(int32_t attribute, int32_t value, uint64_t kernel, int32_t dev, int32_t *r) {
  (void)r;
  return surely_valid(scuda_func(kernel), attribute, value, dev) ? 0 : 2;
}
/* A kernel's attribute holds for its functions too. */
void scuda_post_cuKernelSetAttribute(int32_t attribute, int32_t value, uint64_t kernel, int32_t dev) {
  struct scuda_func *k = scuda_func(kernel);
  atomic_fetch_add(&scuda_graph_exec_epoch, 1);
  attribute_set(k, attribute, value, dev);
  for (struct scuda_func *f = k ? k->forms : NULL; f; f = f->next) attribute_set(f, attribute, value, dev);
}

void scuda_post_cuFuncSetCacheConfig(uint64_t function, int32_t config) {
  (void)config;
  struct scuda_func *f = scuda_func(function);
  for (uint32_t i = 0; f && i < 16; i++) {
    moved(f, &f->set[i], i, INT32_MIN);
    moved(f, &f->around[i], 16 + i, INT32_MIN);
  }
  if (f) memset(f->good, 0, sizeof f->good);
  scuda_occupancy_changed();
}

/* ---- lists: the server gives names, so that handles are the same as those got by name ---- */

typedef int32_t (*get_by_name)(uint64_t *handle, uint64_t parent, const char *name);

static int32_t each_name(uint64_t parent, uint32_t kind, get_by_name get, uint32_t limit,
                         void (*each)(void *, uint64_t), void *user, uint32_t *total) {
  enum { REPLY_MAX = 1 << 18 };
  uint8_t *reply = malloc(REPLY_MAX);
  int32_t r = reply ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  uint32_t first = 0, count = 0;
  do {
    struct wire_function_names m = {parent, kind, first};
    struct wire_name_list list;
    struct scuda_cmd c;
    uint32_t len = 0;
    if (!r) r = scuda_begin(&c, OP_FUNCTION_NAMES, SCUDA_ANSWER, sizeof m);
    if (r) break;
    memcpy(c.payload, &m, sizeof m);
    if ((r = scuda_call(&c, reply, REPLY_MAX, &len))) break;
    if (len < sizeof list) {
      r = scuda_bad_reply("list of functions");
      break;
    }
    memcpy(&list, reply, sizeof list);
    count = list.count;
    if (!each || first >= limit) break;
    const char *at = (const char *)reply + sizeof list, *end = (const char *)reply + len;
    for (uint32_t i = 0; i < list.sent && first < limit && !r; i++, first++) {
      const char *nul = memchr(at, 0, (size_t)(end - at));
      if (!nul) {
        r = scuda_bad_reply("list of functions");
        break;
      }
      uint64_t handle;
      if (!(r = get(&handle, parent, at))) each(user, handle);
      at = nul + 1;
    }
    if (!list.sent) break;
  } while (!r && first < count && first < limit);
  free(reply);
  if (total) *total = count;
  return r;
}

int32_t scuda_module_each_function(uint64_t module, void (*each)(void *, uint64_t), void *user, int32_t *count) {
  uint32_t total = 0;
  int32_t r = each_name(module, WIRE_OF_MODULE, scuda_hand_cuModuleGetFunction, UINT32_MAX, each, user, &total);
  *count = (int32_t)total;
  return r;
}

struct sink { uint64_t *to; };
static void put(void *user, uint64_t handle) { *((struct sink *)user)->to++ = handle; }

int32_t scuda_hand_cuModuleEnumerateFunctions(uint64_t *functions, uint32_t count, uint64_t module) {
  if (!functions) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_slot_of(module, KIND_CUmodule)) return CUDA_ERROR_INVALID_HANDLE;
  struct sink sink = {functions};
  return each_name(module, WIRE_OF_MODULE, scuda_hand_cuModuleGetFunction, count, put, &sink, NULL);
}
int32_t scuda_hand_cuLibraryEnumerateKernels(uint64_t *kernels, uint32_t count, uint64_t library) {
  if (!kernels) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_slot_of(library, KIND_CUlibrary)) return CUDA_ERROR_INVALID_HANDLE;
  struct sink sink = {kernels};
  return each_name(library, WIRE_OF_LIBRARY, scuda_hand_cuLibraryGetKernel, count, put, &sink, NULL);
}
int32_t scuda_hand_cuModuleGetFunctionCount(uint32_t *count, uint64_t module) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_slot_of(module, KIND_CUmodule)) return CUDA_ERROR_INVALID_HANDLE;
  return each_name(module, WIRE_OF_MODULE, NULL, 0, NULL, NULL, count);
}
int32_t scuda_hand_cuLibraryGetKernelCount(uint32_t *count, uint64_t library) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  if (!scuda_slot_of(library, KIND_CUlibrary)) return CUDA_ERROR_INVALID_HANDLE;
  return each_name(library, WIRE_OF_LIBRARY, NULL, 0, NULL, NULL, count);
}
