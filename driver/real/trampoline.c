#include "trampoline.h"
#include <dlfcn.h>
#include <string.h>

typedef uint64_t w;
#define REST a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15

uint64_t scuda_real_call(void *fn, SCUDA_REAL_WORDS) {
  return ((w(*)(w, w, w, w, w, w, w, w, w, w, w, w, w, w, w, w))fn)(a0, REST);
}

uint64_t scuda_real_call_float(void *fn, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3, float f0, float f1) {
  return ((w(*)(float, float, w, w, w, w))fn)(f0, f1, a0, a1, a2, a3);
}

uint64_t scuda_real_call_blob64(void *fn, uint64_t out, const void *blob, uint64_t flags) {
  struct blob64 { char bytes[64]; } b;
  memcpy(&b, blob, sizeof b);
  return ((w(*)(w, struct blob64, w))fn)(out, b, flags);
}

uint64_t scuda_real_call_tensor(void *fn, SCUDA_REAL_WORDS) {
  _Alignas(128) unsigned char map[128];
  if (!a0) return scuda_real_call(fn, a0, REST);
  memcpy(map, (void *)a0, sizeof map);
  uint64_t result = scuda_real_call(fn, (uint64_t)map, REST);
  memcpy((void *)a0, map, sizeof map);
  return result;
}

extern void scudaRealHostFunc(void *handle);

uint64_t scuda_real_launch_host(void *fn, uint64_t stream, uintptr_t handle) {
  return ((w(*)(w, void (*)(void *), void *))fn)(stream, scudaRealHostFunc, (void *)handle);
}

uintptr_t scuda_real_host_entry(void) { return (uintptr_t)scudaRealHostFunc; }

void *scuda_real_open(const char *path, const char **error) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  *error = library ? 0 : dlerror();
  return library;
}

void *scuda_real_symbol(void *library, const char *name) { return dlsym(library, name); }
