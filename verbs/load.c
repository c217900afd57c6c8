/* The library's functions, found with dlopen and dlsym. */
#include "load.h"

#ifdef SV_HEADERS
struct sv_ibv ibv;

static char trouble[256];

static int find(void *lib, void *at, const char *name) {
  void *p = dlsym(lib, name);
  if (!p) {
    snprintf(trouble, sizeof trouble, "the library has no %s", name);
    return 0;
  }
  memcpy(at, &p, sizeof p);
  return 1;
}

const char *sv_load(void) {
  void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    const char *text = dlerror();
    snprintf(trouble, sizeof trouble, "%s", text ? text : "libibverbs.so.1");
    return trouble;
  }
#define X(result, name, ...) if (!find(lib, &ibv.name, "ibv_" #name)) return trouble;
  SV_IBV(X)
#undef X
  void *p = dlsym(lib, "ibv_reg_dmabuf_mr"); /* since rdma-core 34 */
  memcpy(&ibv.reg_dmabuf_mr, &p, sizeof p);
  return NULL;
}
#else
const char *sv_load(void) {
  return "this binary was built without RDMA (the headers of libibverbs-dev were not there)";
}
#endif
