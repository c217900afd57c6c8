#define _GNU_SOURCE
/* Modules, libraries, functions and kernels. Images go to the server by content hash; what a function needs for
 * launches (parameter layout, attributes) comes with it once and is kept. */
#include "base/server.h"
#include "calls/calls.h"
#include "calls/jit.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct global { struct global *next; char *name; uint64_t life, address, bytes; uint32_t which; };
struct module { /* data of a module's or library's slot */
  struct scuda_func *functions;
  struct global *globals;
  uint64_t library;          /* of a library's module */
  uint64_t context, life;    /* of a library's module: where it lies */
  uint64_t handle;
  /* of a library: those that were asked for, one a context's life; of such a module: the next one */
  struct module *modules;
};
static scuda_lock_t lock;  /* guards the lists; never held across a call to the server */

/* ---- loading ---- */

static int32_t image_hash(const void *image, uint64_t bytes, uint32_t send, const struct scuda_jit *jit,
                          uint8_t hash[32]) {
  char why[512] = "";
  int32_t device = scuda_current_device();
  uint64_t since = scuda_tracing ? scuda_trace_now() : 0, sent = 0;
  int32_t r = scuda_core.image(image, bytes, scuda_gpus[device].place, send, hash, &sent, why,
                               sizeof why);
  if (SCUDA_UNLIKELY(since)) scuda_trace_note(SCUDA_COUNT_MODULE, OP_MODULE_PUT, since, sent);
  if (r && why[0]) scuda_jit_refused(jit, r, why, (uint32_t)strlen(why));
  return r;
}

/* CUDA_MODULE_LOADING: functions are loaded with their module instead of at their first use. */
static uint32_t eager(void) {
  const char *mode = getenv("CUDA_MODULE_LOADING");
  return mode && !strcmp(mode, "EAGER") ? WIRE_LOAD_EAGER : 0;
}

/* *missing: the server does not have the image, which has to be sent first. The handle is a new one, or `as`, which
 * another server has already for the same. */
static int32_t load_known(uint64_t *out, uint64_t as, uint32_t kind, const void *image, uint64_t bytes, uint32_t send,
                          const struct scuda_jit *jit, int *missing) {
  struct scuda_pair pairs[SCUDA_PAIRS_MAX];
  struct scuda_symbols symbols;
  uint32_t pair_count;
  if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
  if (kind == KIND_CUmodule && !scuda_header_context(scuda_thread())) return scuda_no_context();
  int32_t r = scuda_jit_pairs(jit, pairs, &pair_count, &symbols);
  uint8_t hash[32];
  if (!r) r = image_hash(image, bytes, send, jit, hash);
  if (r) return r;

  struct module *m = calloc(1, sizeof *m);
  uint64_t handle = !m || as ? as : scuda_slot_new(kind);
  enum { REPLY_MAX = 1 << 16 };
  uint8_t *reply = handle ? malloc(REPLY_MAX) : NULL;
  struct scuda_cmd c;
  uint64_t pair_bytes = pair_count * sizeof *pairs, more = pair_bytes + scuda_symbols_size(&symbols);
  uint64_t *addresses = reply ? scuda_symbols_addresses(&symbols) : NULL;
  r = CUDA_ERROR_OUT_OF_MEMORY;
  if (!addresses) goto fail;
  if (kind == KIND_CUmodule) {
    struct wire_module_load w = {
      .module = handle, .jit_count = pair_count, .flags = eager(), .symbols = symbols.count,
      .symbol_bytes = symbols.bytes
    };
    memcpy(w.hash, hash, 32);
    if ((r = scuda_begin(&c, OP_MODULE_LOAD, SCUDA_ANSWER, sizeof w + more))) goto fail;
    scuda_symbols_put(scuda_put_struct(scuda_put_struct(c.payload, &w, sizeof w), pairs, pair_bytes), &symbols,
                      addresses);
  } else {
    struct wire_library_load w = {
      .library = handle, .jit_count = pair_count, .flags = eager(), .symbols = symbols.count,
      .symbol_bytes = symbols.bytes
    };
    memcpy(w.hash, hash, 32);
    if ((r = scuda_begin(&c, OP_LIBRARY_LOAD, SCUDA_ANSWER, sizeof w + more))) goto fail;
    scuda_symbols_put(scuda_put_struct(scuda_put_struct(c.payload, &w, sizeof w), pairs, pair_bytes), &symbols,
                      addresses);
  }
  uint32_t len = 0;
  r = scuda_call(&c, reply, REPLY_MAX, &len);
  if ((*missing = r == CUDA_ERROR_NOT_FOUND && !len)) goto fail;
  scuda_jit_report(jit, r, reply, len);
  if (r) goto fail;
  free(addresses);
  free(reply);
  if (as) {
    free(m);
    return CUDA_SUCCESS;
  }
  struct scuda_slot *s = scuda_slot(handle);
  s->data = m;
  s->device = scuda_current_device();
  m->handle = handle;
  *out = handle;
  return CUDA_SUCCESS;
fail:
  free(addresses);
  free(reply);
  if (handle && !as) scuda_slot_free(handle);
  free(m);
  return r;
}

/* Most images are known to the server from an earlier run, so it is not asked before. */
static int32_t load_here(uint64_t *out, uint64_t as, uint32_t kind, const void *image, uint64_t bytes,
                         const struct scuda_jit *jit) {
  int missing = 0;
  int32_t r = load_known(out, as, kind, image, bytes, 0, jit, &missing);
  return missing ? load_known(out, as, kind, image, bytes, 1, jit, &missing) : r;
}

static void unload_elsewhere(uint64_t library) {
  for (uint32_t own = scuda_server(), server = UINT32_MAX; scuda_other_server(own, &server);) {
    struct scuda_visit v = scuda_visit(server, 0);
    scuda_simple(OP_cuLibraryUnload, SCUDA_ANSWER, &library, sizeof library); /* one that lacks it says so */
    scuda_visit_end(v);
  }
}

/* A library is of no device, so all servers have it. */
static int32_t load(uint64_t *out, uint32_t kind, const void *image, uint64_t bytes, const struct scuda_jit *jit) {
  int32_t r = load_here(out, 0, kind, image, bytes, jit);
  if (SCUDA_LIKELY(!scuda_several()) || kind != KIND_CUlibrary || r) return r;
  for (uint32_t own = scuda_server(), server = UINT32_MAX; !r && scuda_other_server(own, &server);) {
    struct scuda_visit v = scuda_visit(server, 0);
    r = load_here(out, *out, kind, image, bytes, jit);
    scuda_visit_end(v);
  }
  if (!r) return r;
  uint64_t library = *out;
  scuda_hand_cuLibraryUnload(library);
  return r;
}

static int32_t load_file(uint64_t *out, uint32_t kind, const char *path, const struct scuda_jit *jit) {
  if (!out || !path) return CUDA_ERROR_INVALID_VALUE;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_FILE_NOT_FOUND;
  off_t size = lseek(fd, 0, SEEK_END);
  char *image = size > 0 ? malloc((size_t)size + 1) : NULL;
  int32_t r = size > 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_IMAGE;
  if (image) {
    off_t done = 0;
    while (done < size) {
      ssize_t n = pread(fd, image + done, (size_t)(size - done), done);
      if (n <= 0) break;
      done += n;
    }
    image[done] = 0; /* PTX is text; its end is a NUL */
    r = done == size ? load(out, kind, image, (uint64_t)size + 1, jit) : CUDA_ERROR_INVALID_IMAGE;
  }
  free(image);
  close(fd);
  return r;
}

static const struct scuda_jit no_options;

int32_t scuda_hand_cuModuleLoad(uint64_t *module, const char *path) {
  return load_file(module, KIND_CUmodule, path, &no_options);
}
int32_t scuda_hand_cuModuleLoadData(uint64_t *module, const void *image) {
  return load(module, KIND_CUmodule, image, 0, &no_options);
}
int32_t scuda_hand_cuModuleLoadFatBinary(uint64_t *module, const void *image) {
  return load(module, KIND_CUmodule, image, 0, &no_options);
}
int32_t scuda_hand_cuModuleLoadDataEx(uint64_t *module, const void *image, uint32_t count, int32_t *options,
                                      void **values) {
  struct scuda_jit jit = {count, options, values};
  return load(module, KIND_CUmodule, image, 0, &jit);
}
int32_t scuda_load_wrapper(uint64_t *module, const void *image, const char **names, void **addresses, uint32_t count) {
  static const int32_t options[] = {CU_JIT_GLOBAL_SYMBOL_NAMES, CU_JIT_GLOBAL_SYMBOL_ADDRESSES,
                                    CU_JIT_GLOBAL_SYMBOL_COUNT};
  void *values[] = {names, addresses, (void *)(uintptr_t)count};
  struct scuda_jit jit = {count ? 3 : 0, options, values};
  return load(module, KIND_CUmodule, image, 0, &jit);
}

/* BINARY_IS_PRESERVED needs nothing: the image is read before the call returns. */
static int32_t library_options(const int32_t *options, void **values, uint32_t count, uint32_t i) {
  if (count > CU_LIBRARY_NUM_OPTIONS || (count && !options)) return CUDA_ERROR_INVALID_VALUE;
  for (uint32_t n = 0; n < count; n++) {
    /* cuBLASLt gives options without values */
    const struct CUlibraryHostUniversalFunctionAndDataTable_st *table = values ? values[n] : NULL;
    if (options[n] == CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE && table &&
        (table->functionWindowSize || table->dataWindowSize))
      return scuda_refuse(i, PART_unified_functions);
    if ((uint32_t)options[n] >= CU_LIBRARY_NUM_OPTIONS) {
      scuda_log(SCUDA_INFO, "%s: library option %d is not known", scuda_exports[i].name, options[n]);
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuLibraryLoadData(uint64_t *library, const void *code, int32_t *jit_options, void **jit_values,
                                     uint32_t jit_count, int32_t *options,
                                     void **values, uint32_t count) {
  struct scuda_jit jit = {jit_count, jit_options, jit_values};
  int32_t r = library_options(options, values, count, I_cuLibraryLoadData);
  return r ? r : load(library, KIND_CUlibrary, code, 0, &jit);
}

int32_t scuda_hand_cuLibraryLoadFromFile(uint64_t *library, const char *path, int32_t *jit_options, void **jit_values,
                                         uint32_t jit_count, int32_t *options,
                                         void **values, uint32_t count) {
  struct scuda_jit jit = {jit_count, jit_options, jit_values};
  int32_t r = library_options(options, values, count, I_cuLibraryLoadFromFile);
  return r ? r : load_file(library, KIND_CUlibrary, path, &jit);
}

/* ---- unloading ---- */

static void free_functions(struct scuda_func *f) {
  while (f) {
    struct scuda_func *next = f->next;
    free_functions(f->forms);
    if (f->handle) scuda_slot_free(f->handle);
    free(f->params);
    free(f->name);
    free(f);
    f = next;
  }
}

/* Handles of functions die with their module: a later use finds a free slot. So do a library's modules. */
static void free_module(struct module *m) {
  scuda_ranges_forget_owner(m->handle);
  scuda_occupancy_changed();
  free_functions(m->functions);
  while (m->globals) {
    struct global *next = m->globals->next;
    free(m->globals->name);
    free(m->globals);
    m->globals = next;
  }
  while (m->modules && !m->library) {
    struct module *next = m->modules->modules;
    struct scuda_slot *s = scuda_slot_of(m->modules->handle, KIND_CUmodule);
    if (s && s->data == m->modules) scuda_slot_free(m->modules->handle);
    free_module(m->modules);
    m->modules = next;
  }
  free(m);
}

static int32_t unload(uint64_t handle, uint32_t kind, int32_t (*wire)(uint64_t, uint32_t)) {
  struct scuda_slot *s = scuda_slot_of(handle, kind);
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  struct module *m = s->data;
  /* a library's module goes with the library */
  if (kind == KIND_CUmodule && (!m || m->library)) return CUDA_ERROR_INVALID_HANDLE;
  if (SCUDA_UNLIKELY(scuda_several()) && kind == KIND_CUlibrary) unload_elsewhere(handle);
  int32_t r = wire(handle, 0);
  if (r) return r;
  free_module(m);
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuModuleUnload(uint64_t module) { return unload(module, KIND_CUmodule, scuda_wire_cuModuleUnload); }
int32_t scuda_hand_cuLibraryUnload(uint64_t library) {
  return unload(library, KIND_CUlibrary, scuda_wire_cuLibraryUnload);
}

/* ---- functions and kernels ---- */

enum { OF_MODULE = WIRE_OF_MODULE, OF_LIBRARY = WIRE_OF_LIBRARY, OF_KERNEL = WIRE_OF_KERNEL,
       MANAGED_OF_LIBRARY = WIRE_OF_MANAGED };

static uint32_t name_hash(const char *name) {
  uint32_t h = 2166136261u;
  while (*name) h = (h ^ (uint8_t)*name++) * 16777619u;
  return h;
}

static struct scuda_func *find(struct scuda_func *list, const char *name, uint32_t hash, uint64_t life) {
  for (struct scuda_func *f = list; f; f = f->next)
    if (f->hash == hash && f->life == life && !strcmp(f->name, name)) return f;
  return NULL;
}

/* Tells the other servers of a kernel's handle. */
static int32_t fetch_elsewhere(const struct wire_get_function *w, const char *name) {
  int32_t r = CUDA_SUCCESS;
  for (uint32_t own = scuda_server(), server = UINT32_MAX; !r && scuda_other_server(own, &server);) {
    struct scuda_visit v = scuda_visit(server, 0);
    struct scuda_cmd c;
    if (!(r = scuda_begin(&c, OP_GET_FUNCTION, SCUDA_ANSWER, sizeof *w + scuda_pad(w->name_bytes)))) {
      memcpy(c.payload, w, sizeof *w);
      scuda_put_struct(c.payload + sizeof *w, name, w->name_bytes);
      r = scuda_call(&c, NULL, 0, NULL);
    }
    scuda_visit_end(v);
  }
  return r;
}

/* Asks the server for a function; `name` is empty for the function of a kernel. */
static int32_t fetch(uint64_t parent, uint32_t kind, const char *name, struct scuda_func **out) {
  enum { REPLY_MAX = sizeof(struct wire_func_info) + 8 * 4096 };
  size_t name_bytes = strlen(name) + 1;
  struct scuda_func *f = calloc(1, sizeof *f);
  uint8_t *reply = malloc(REPLY_MAX);
  uint64_t handle = f && reply ? scuda_slot_new(kind == OF_LIBRARY ? KIND_CUkernel : KIND_CUfunction) : 0;
  int32_t r = CUDA_ERROR_OUT_OF_MEMORY;
  struct scuda_cmd c;
  struct wire_get_function w = {parent, handle, (uint32_t)name_bytes, kind};
  if (!handle || (r = scuda_begin(&c, OP_GET_FUNCTION, SCUDA_ANSWER, sizeof w + scuda_pad(name_bytes)))) goto fail;
  memcpy(c.payload, &w, sizeof w);
  scuda_put_struct(c.payload + sizeof w, name, name_bytes);
  uint32_t len = 0;
  if ((r = scuda_call(&c, reply, REPLY_MAX, &len))) goto fail;
  if (SCUDA_UNLIKELY(scuda_several()) && kind == OF_LIBRARY && (r = fetch_elsewhere(&w, name))) goto fail;
  struct wire_func_info info;
  if (len < sizeof info || (memcpy(&info, reply, sizeof info), len - sizeof info < 8ull * info.param_count)) {
    r = scuda_bad_reply("cuModuleGetFunction");
    goto fail;
  }
  r = CUDA_ERROR_OUT_OF_MEMORY;
  f->params = malloc(8 * (size_t)info.param_count + 8);
  f->name = strdup(name);
  if (!f->params || !f->name) goto fail;
  memcpy(f->params, reply + sizeof info, 8 * (size_t)info.param_count);
  for (uint32_t i = 0; i < info.param_count; i++) {
    if (info.param_bytes > 32768 || (uint64_t)f->params[i].offset + f->params[i].size > info.param_bytes) {
      r = scuda_bad_reply("cuModuleGetFunction");
      goto fail;
    }
  }
  f->handle = handle;
  f->parent = parent;
  f->hash = name_hash(name);
  f->device = scuda_current_device();
  f->param_count = info.param_count;
  f->param_bytes = info.param_bytes;
  memcpy(f->attr, info.attributes, sizeof f->attr);
  memcpy(f->block, info.block, sizeof f->block);
  for (int i = 0; i < 16; i++) f->set[i] = f->around[i] = INT32_MIN;
  free(reply);
  struct scuda_slot *s = scuda_slot(handle);
  s->device = f->device;
  __atomic_store_n(&s->data, f, __ATOMIC_RELEASE);
  *out = f;
  return CUDA_SUCCESS;
fail:
  if (handle) scuda_slot_free(handle);
  if (f) {
    free(f->params);
    free(f->name);
  }
  free(f);
  free(reply);
  return r;
}

/* The functions that a kernel had in an earlier life of the context ended with it: their handles may be used again. */
static void end_lives(struct scuda_func *forms, uint64_t context, uint64_t life) {
  for (struct scuda_func *f = forms; f; f = f->next) {
    if (f->context != context || f->life == life || !f->handle) continue;
    scuda_slot_free(f->handle);
    f->handle = f->life = 0;
  }
}

/* The function of that name in a list, fetched when it is not there. Of two threads that fetch at once the first one's
 * stays. */
static int32_t get(struct scuda_func **list, uint64_t parent, uint32_t kind, const char *name, uint64_t life,
                   uint64_t *out) {
  uint32_t hash = name_hash(name);
  scuda_lock(&lock);
  struct scuda_func *f = find(*list, name, hash, life);
  scuda_unlock(&lock);
  if (!f) {
    struct scuda_func *fresh = NULL;
    int32_t r = fetch(parent, kind, name, &fresh);
    if (r) return r;
    fresh->context = scuda_thread()->current;
    fresh->life = life;
    scuda_lock(&lock);
    if (life) end_lives(*list, fresh->context, life);
    f = find(*list, name, hash, life);
    fresh->next = *list; /* kept in any case, so that its handle dies with the module */
    if (!f) __atomic_store_n(list, f = fresh, __ATOMIC_RELEASE);
    else {
      fresh->next = f->next;
      f->next = fresh;
    }
    scuda_unlock(&lock);
  }
  *out = f->handle;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuModuleGetFunction(uint64_t *function, uint64_t module, const char *name) {
  struct scuda_slot *s = scuda_slot_of(module, KIND_CUmodule);
  if (!function || !name || !*name) return CUDA_ERROR_INVALID_VALUE;
  if (!s || !s->data) return CUDA_ERROR_INVALID_HANDLE;
  const struct scuda_slot *context = scuda_slot(s->context);
  if (context && context->sticky) return context->sticky;
  return get(&((struct module *)s->data)->functions, module, OF_MODULE, name, 0, function);
}

int32_t scuda_hand_cuLibraryGetKernel(uint64_t *kernel, uint64_t library, const char *name) {
  struct scuda_slot *s = scuda_slot_of(library, KIND_CUlibrary);
  if (!kernel || !name || !*name) return CUDA_ERROR_INVALID_VALUE;
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  return get(&((struct module *)s->data)->functions, library, OF_LIBRARY, name, 0, kernel);
}

int32_t scuda_hand_cuKernelGetFunction(uint64_t *function, uint64_t kernel) {
  struct scuda_slot *s = scuda_slot_of(kernel, KIND_CUkernel);
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t life = scuda_context_life(scuda_thread()->current);
  if (!life) return scuda_no_context();
  struct scuda_func *k = s->data;
  for (struct scuda_func *f = __atomic_load_n(&k->forms, __ATOMIC_ACQUIRE); f; f = f->next) {
    if (f->life != life) continue;
    *function = f->handle;
    return CUDA_SUCCESS;
  }
  return get(&k->forms, kernel, OF_KERNEL, "", life, function);
}

int32_t scuda_hand_cuLibraryGetModule(uint64_t *module, uint64_t library) {
  struct scuda_slot *s = scuda_slot_of(library, KIND_CUlibrary);
  if (!module) return CUDA_ERROR_INVALID_VALUE;
  if (!s) return CUDA_ERROR_INVALID_HANDLE;
  struct module *l = s->data, *m;
  uint64_t handle = 0, life = scuda_context_life(scuda_thread()->current);
  int32_t r = scuda_wire_cuLibraryGetModule(&handle, library, 0);
  if (r) return r;
  struct scuda_slot *ms = scuda_slot_of(handle, KIND_CUmodule);
  if (!ms) return scuda_bad_reply("cuLibraryGetModule");
  uint64_t context = scuda_thread()->current;
  scuda_lock(&lock);
  struct module **link = &l->modules;
  while ((m = *link) && (m->handle != handle || m->life != life)) {
    if (m->context != context || m->life == life) {
      link = &m->modules;
      continue;
    }
    *link = m->modules; /* of an earlier life of the context */
    free_module(m);
  }
  if (!m && (m = calloc(1, sizeof *m))) {
    *m = (struct module){.library = library, .context = context, .life = life, .handle = handle};
    *link = m;
    ms->data = m; /* a module of a later life may have the same handle */
  }
  scuda_unlock(&lock);
  if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
  *module = handle;
  return CUDA_SUCCESS;
}

/* ---- global variables ---- */



static int32_t get_global(uint64_t *address, uint64_t *bytes, uint64_t parent, uint32_t which, const char *name) {
  uint32_t kind = which == OF_MODULE ? KIND_CUmodule : KIND_CUlibrary;
  struct scuda_slot *s = scuda_slot_of(parent, kind);
  if (!name || (!address && !bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (!s || !s->data) return CUDA_ERROR_INVALID_HANDLE;
  struct module *m = s->data;
  /* a module lies in one context, a library in all */
  uint64_t life = kind == KIND_CUmodule ? 0 : scuda_context_life(scuda_thread()->current);
  scuda_lock(&lock);
  struct global *g = m->globals;
  while (g && (g->life != life || g->which != which || strcmp(g->name, name))) g = g->next;
  scuda_unlock(&lock);
  if (!g) {
    size_t name_bytes = strlen(name) + 1;
    struct wire_get_global w = {parent, (uint32_t)name_bytes, which};
    struct wire_global_info info;
    struct scuda_cmd c;
    uint32_t len = 0;
    int32_t r = scuda_begin(&c, OP_GET_GLOBAL, SCUDA_ANSWER, sizeof w + scuda_pad(name_bytes));
    if (r) return r;
    memcpy(c.payload, &w, sizeof w);
    scuda_put_struct(c.payload + sizeof w, name, name_bytes);
    if ((r = scuda_call(&c, &info, sizeof info, &len))) return r;
    if (len < sizeof info) return scuda_bad_reply("cuModuleGetGlobal");
    g = malloc(sizeof *g);
    char *copy = strdup(name);
    if (!g || !copy) {
      free(g);
      free(copy);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *g = (struct global){NULL, copy, life, info.address, info.bytes, which};
    if (!info.managed) scuda_device_range_add(info.address, info.bytes, SCUDA_RANGE_OTHER, parent);
    else if ((r = scuda_managed_variable(info.address, info.bytes))) {
      free(copy);
      free(g);
      return r;
    }
    scuda_lock(&lock);
    g->next = m->globals;
    m->globals = g;
    scuda_unlock(&lock);
  }
  if (address) *address = g->address;
  if (bytes) *bytes = g->bytes;
  return CUDA_SUCCESS;
}

int32_t scuda_hand_cuModuleGetGlobal_v2(uint64_t *address, uint64_t *bytes, uint64_t module, const char *name) {
  return get_global(address, bytes, module, OF_MODULE, name);
}
int32_t scuda_hand_cuLibraryGetGlobal(uint64_t *address, uint64_t *bytes, uint64_t library, const char *name) {
  return get_global(address, bytes, library, OF_LIBRARY, name);
}
int32_t scuda_hand_cuLibraryGetManaged(uint64_t *address, uint64_t *bytes, uint64_t library, const char *name) {
  return get_global(address, bytes, library, MANAGED_OF_LIBRARY, name);
}

int32_t scuda_hand_cuModuleGetLoadingMode(int32_t *mode) {
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  *mode = eager() ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

/* Tables of host functions are refused when a library is loaded, so no library has a unified function. */
int32_t scuda_hand_cuLibraryGetUnifiedFunction(void **function, uint64_t library, const char *symbol) {
  if (!function || !symbol) return CUDA_ERROR_INVALID_VALUE;
  return library ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE; /* which no library here has, as natively */
}
