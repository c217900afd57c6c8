/* Which server a command is for. A program may have the GPUs of several; its commands are one order in one ring, and
 * each names its server (docs/decisions/0021-several-servers-in-one-program.md). */
#include "base/server.h"

uint32_t scuda_servers = 1;

void scuda_servers_setup(uint32_t count) {
  scuda_servers = count;
  if (count > 1) scuda_unusual |= SCUDA_SEVERAL;
}

/* Without a context it is the first GPU's. */
static uint32_t of_context(uint64_t context) {
  const struct scuda_slot *s = scuda_slot_of(context, KIND_CUcontext);
  return s && scuda_device_ok(s->device) ? scuda_gpus[s->device].server : scuda_gpu_count ? scuda_gpus[0].server : 0;
}

uint32_t scuda_server_now(const struct scuda_thread *t) { return t->server ? t->server - 1 : of_context(t->current); }

int32_t scuda_server_gpu(uint32_t server) {
  for (int32_t i = 0; i < scuda_gpu_count; i++)
    if (scuda_gpus[i].server == server) return i;
  return -1;
}

struct scuda_visit scuda_visit(uint32_t server, uint64_t context) {
  struct scuda_thread *t = scuda_thread();
  struct scuda_visit v = {t->current, t->server};
  t->server = server + 1;
  if (of_context(t->current) != server) t->current = scuda_context_usable(context) ? context : 0;
  return v;
}

void scuda_visit_end(struct scuda_visit v) {
  struct scuda_thread *t = scuda_thread();
  t->current = v.current;
  t->server = v.server;
}

static void name_server(struct scuda_named *n, uint32_t server, uint64_t context) {
  if (n->known && n->server != server) n->different = 1;
  if (!n->known || !n->context) n->context = context;
  n->server = server;
  n->known = 1;
}

void scuda_name_object(struct scuda_named *n, uint64_t handle) {
  const struct scuda_slot *s = scuda_slot(handle);
  if (s && s->kind && !scuda_is_common(s))
    name_server(n, scuda_slot_server(handle), s->kind == KIND_CUcontext ? handle : s->context);
}

void scuda_name_device(struct scuda_named *n, int32_t device) {
  if (scuda_device_ok(device)) name_server(n, scuda_gpus[device].server, 0);
}

uint64_t scuda_context_on(uint32_t server, uint64_t context) {
  if (scuda_context_usable(context)) return context;
  for (int32_t i = 0; i < scuda_gpu_count; i++)
    if (scuda_gpus[i].server == server && scuda_context_usable(scuda_gpus[i].primary)) return scuda_gpus[i].primary;
  return 0;
}

void scuda_name_range(struct scuda_named *n, const struct scuda_range *r) {
  if (!scuda_range_is_device(r) || !scuda_device_ok(r->device)) return;
  const uint32_t made = scuda_gpus[r->device].server;
  const uint32_t server = scuda_range_is_managed(r) ? r->flags >> SCUDA_SERVER_SHIFT : made;
  name_server(n, server, server == made ? r->context : scuda_context_on(server, 0));
}

void scuda_name_address(struct scuda_named *n, uint64_t p) {
  const struct scuda_range r = scuda_range_of(p, SCUDA_AS_GPU);
  scuda_name_range(n, &r);
}

int32_t scuda_visit_named(struct scuda_visit *v, const struct scuda_named *n, const char *call) {
  static scuda_lock_t lock;
  static const char *told[256];  /* under the lock */
  if (!n->different) {
    *v = scuda_visit(n->known ? n->server : scuda_server(), n->context);
    return CUDA_SUCCESS;
  }
  scuda_lock(&lock);
  size_t i = 0;
  while (i < sizeof told / sizeof *told - 1 && told[i] && told[i] != call) i++;
  int again = told[i] != NULL;
  told[i] = call;
  scuda_unlock(&lock);
  if (!again)
    scuda_log(SCUDA_WARN, "%s: what it names is of two servers, which it does not support "
              "(CUDA_ERROR_NOT_SUPPORTED)", call);
  return CUDA_ERROR_NOT_SUPPORTED;
}

int scuda_other_server(uint32_t own, uint32_t *server) {
  while (++*server < scuda_servers)
    if (*server != own && scuda_server_gpu(*server) >= 0 && !scuda_server_lost(*server)) return 1;
  return 0;
}

int32_t scuda_to_all(uint32_t op, uint32_t flags, const void *payload, uint32_t bytes) {
  int32_t first = CUDA_SUCCESS;
  if (SCUDA_LIKELY(!scuda_several())) return scuda_simple(op, flags, payload, bytes);
  for (uint32_t server = 0; server < scuda_servers; server++) {
    struct scuda_visit v = scuda_visit(server, 0);
    int32_t r = scuda_simple(op, flags, payload, bytes);
    scuda_visit_end(v);
    if (!first) first = r;
  }
  return first;
}
