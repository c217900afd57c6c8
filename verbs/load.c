/* The libraries' functions, found with dlopen and dlsym. */
#include "load.h"

#ifdef SV_HEADERS
struct sv_ibv ibv;
struct sv_cm cm;

static void *open_library(const char *name, char *why, size_t size) {
  void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    const char *text = dlerror();
    snprintf(why, size, "%s", text ? text : name);
  }
  return lib;
}

static int find(void *lib, void *at, const char *name, char *why, size_t size) {
  void *p = dlsym(lib, name);
  if (!p) {
    snprintf(why, size, "the library has no %s", name);
    return 0;
  }
  memcpy(at, &p, sizeof p);
  return 1;
}

static char ibv_trouble[256], cm_trouble[256];

static void load_ibv(void) {
  void *lib = open_library("libibverbs.so.1", ibv_trouble, sizeof ibv_trouble);
  if (!lib) return;
#define X(result, name, ...) if (!find(lib, &ibv.name, "ibv_" #name, ibv_trouble, sizeof ibv_trouble)) return;
  SV_IBV(X)
#undef X
  void *p = dlsym(lib, "ibv_reg_dmabuf_mr"); /* since rdma-core 34 */
  memcpy(&ibv.reg_dmabuf_mr, &p, sizeof p);
}

static void load_cm(void) {
  void *lib = open_library("librdmacm.so.1", cm_trouble, sizeof cm_trouble);
  if (!lib) return;
#define X(result, name, ...) if (!find(lib, &cm.name, "rdma_" #name, cm_trouble, sizeof cm_trouble)) return;
  SV_CM(X)
#undef X
}

const char *sv_load(void) {
  load_ibv();
  return ibv_trouble[0] ? ibv_trouble : NULL;
}

const char *sv_load_cm(void) {
  load_cm();
  return cm_trouble[0] ? cm_trouble : NULL;
}
#else
const char *sv_load(void) { return "this binary was built without RDMA (the headers of libibverbs-dev and librdmacm-dev were not there)"; }
const char *sv_load_cm(void) { return sv_load(); }
#endif
