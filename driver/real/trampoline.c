#include "trampoline.h"
#include <dlfcn.h>
#include <string.h>

typedef uint64_t w;
#define SIX(a, i) a[i], a[i + 1], a[i + 2], a[i + 3], a[i + 4], a[i + 5]

uint64_t scuda_real_call(void *fn, const uint64_t *a) {
  return ((w(*)(w, w, w, w, w, w, w, w, w, w, w, w, w, w, w, w))fn)(SIX(a, 0), SIX(a, 6), a[12], a[13], a[14], a[15]);
}

uint64_t scuda_real_call_float(void *fn, const uint64_t *a, float f0, float f1) {
  return ((w(*)(float, float, w, w, w, w))fn)(f0, f1, a[0], a[1], a[2], a[3]);
}

uint64_t scuda_real_call_blob64(void *fn, uint64_t out, const void *blob, uint64_t flags) {
  struct blob64 { char bytes[64]; } b;
  memcpy(&b, blob, sizeof b);
  return ((w(*)(w, struct blob64, w))fn)(out, b, flags);
}

uint64_t scuda_real_call_tensor(void *fn, const uint64_t *args) {
  _Alignas(128) unsigned char map[128];
  uint64_t a[16];
  void *where = (void *)args[0];
  if (!where) return scuda_real_call(fn, args);
  memcpy(map, where, sizeof map);
  memcpy(a, args, sizeof a);
  a[0] = (uint64_t)map;
  uint64_t result = scuda_real_call(fn, a);
  memcpy(where, map, sizeof map);
  return result;
}

extern void scudaRealHostFunc(void *handle);

uint64_t scuda_real_launch_host(void *fn, uint64_t stream, uintptr_t handle) {
  return ((w(*)(w, void (*)(void *), void *))fn)(stream, scudaRealHostFunc, (void *)handle);
}

void *scuda_real_open(const char *path, const char **error) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  *error = library ? 0 : dlerror();
  return library;
}

void *scuda_real_symbol(void *library, const char *name) { return dlsym(library, name); }
