/* Changes of executable graphs that need no answer. XLA changes every node of its graphs before each launch, and only
 * addresses differ: where each change waited for its answer, a small step took four times as long as natively. The
 * driver takes a change that is like one that it took before, so that one is sent as a launch is. What "like" means is
 * a shape: all that the driver looks at, without what it takes as it comes (a kernel's parameters, addresses in memory
 * that is known here). Of a child graph it is the graph: XLA captures some of its work, and keeps the graphs of the
 * addresses that it had lately.
 *
 * Whatever could make the driver refuse what it took before begins a new epoch, and all shapes are forgotten: an
 * executable graph, a function or a context that ends, an attribute of a function, and each other call that is about a
 * graph or a node. */
#include "calls/graph.h"

#include <stdlib.h>

enum { SHAPES_MAX = 256 };
struct taken {             /* of a node: what the driver took of late, in one epoch */
  uint64_t exec, epoch, context;
  uint32_t i, bytes;       /* of a shape */
  uint32_t count, next;    /* shapes that are there; where the next one goes */
  uint8_t shapes[SHAPES_MAX];
};

/* What the node took may count for this change. */
static int concerns(const struct taken *w, const struct target *t, const struct change *c) {
  return w && w->exec == t->exec && w->i == t->i && w->bytes == c->bytes && w->epoch == c->epoch &&
         w->context == scuda_thread()->current;
}

struct change scuda_change(const struct target *t, const void *shape, uint32_t bytes) {
  struct change c = {.shape = shape, .bytes = bytes, .epoch = atomic_load(&scuda_graph_exec_epoch)};
  /* The server uses its handles again without telling, so what its nodes took says nothing. */
  if (t->verb != SET_EXEC || t->node >= scuda_shared.server_base || bytes > SHAPES_MAX) c.shape = NULL;
  if (!c.shape) return c;
  const struct node *n = scuda_node_lock(t->node, 0);
  const struct taken *w = n ? n->taken : NULL;
  if (concerns(w, t, &c))
    for (uint32_t i = 0; i < w->count && !c.sure; i++) c.sure = !memcmp(w->shapes + i * bytes, shape, bytes);
  scuda_node_unlock();
  return c;
}

int32_t scuda_changed(const struct target *t, const struct change *c, int32_t r) {
  if (r || c->sure || !c->shape) return r;
  struct node *n = scuda_node_lock(t->node, 1);
  struct taken *w = n ? n->taken : NULL;
  if (n && !w) w = n->taken = calloc(1, sizeof *w);
  if (w) {
    if (!concerns(w, t, c))
      *w = (struct taken){.exec = t->exec, .epoch = c->epoch, .context = scuda_thread()->current, .i = t->i,
                          .bytes = c->bytes};
    memcpy(w->shapes + w->next * c->bytes, c->shape, c->bytes);
    if (w->count <= w->next) w->count = w->next + 1;
    w->next = (w->next + 1) % (SHAPES_MAX / c->bytes);
  }
  scuda_node_unlock();
  return r;
}

/* How a generic call makes the change. */
static uint32_t how(const struct change *c) { return c->sure ? SCUDA_SURE : SCUDA_CHANGES; }

int scuda_pre_cuGraphExecChildGraphNodeSetParams(uint64_t exec, uint64_t node, uint64_t child, int32_t *r) {
  struct target t = SETTING_EXEC(cuGraphExecChildGraphNodeSetParams);
  if ((*r = scuda_node_check(&t)) || (*r = is(child, KIND_CUgraph))) return 1;
  struct change c = scuda_change(&t, &child, sizeof child);
  *r = scuda_changed(&t, &c, scuda_wire_cuGraphExecChildGraphNodeSetParams(exec, node, child, how(&c)));
  return 1;
}

void scuda_post_cuMemSetAccess(uint64_t p, uint64_t bytes, const void *access, uint64_t count) {
  (void)p, (void)bytes, (void)access, (void)count;
  atomic_fetch_add(&scuda_graph_exec_epoch, 1);
}

/* What the driver looks at of memory that cuMemAlloc or cuMemMap gave: whose it is. */
struct memory { uint64_t context, owner; uint32_t flags; int32_t device; };
static int known_memory(uint64_t address, uint64_t bytes, struct memory *m) {
  struct scuda_range range = scuda_range_of(address, SCUDA_AS_DEVICE);
  *m = (struct memory){range.context, range.owner, range.flags, range.device};
  return range.flags & (SCUDA_RANGE_ALLOC | SCUDA_RANGE_HANDLE) && scuda_range_covers(&range, address, bytes);
}

struct memset_shape { struct CUDA_MEMSET_NODE_PARAMS_st fill; uint64_t context; struct memory memory; };

static int memset_shape(const struct CUDA_MEMSET_NODE_PARAMS_st *fill, uint64_t ctx, struct memset_shape *shape) {
  if (!fill || fill->height != 1 || fill->elementSize > 4 || fill->width > UINT64_MAX / 4) return 0;
  memset(shape, 0, sizeof *shape);
  shape->fill = *fill;
  shape->fill.dst = shape->fill.value = 0;
  shape->context = ctx;
  return known_memory(fill->dst, fill->width * fill->elementSize, &shape->memory);
}

int scuda_pre_cuGraphExecMemsetNodeSetParams(uint64_t exec, uint64_t node, const void *fill, uint64_t ctx,
                                             int32_t *r) {
  struct target t = SETTING_EXEC(cuGraphExecMemsetNodeSetParams);
  struct memset_shape shape;
  if ((*r = scuda_node_check(&t))) return 1;
  struct change c = scuda_change(&t, memset_shape(fill, ctx, &shape) ? &shape : NULL, sizeof shape);
  *r = scuda_changed(&t, &c, scuda_wire_cuGraphExecMemsetNodeSetParams(exec, node, fill, ctx, how(&c)));
  return 1;
}

struct copy_shape { uint64_t width, context; struct memory src, dst; };

static int copy_shape(const struct scuda_copy3d *c, uint64_t ctx, struct copy_shape *shape) {
  const struct scuda_copy3d_end *ends[] = {&c->src, &c->dst};
  for (int i = 0; i < 2; i++)
    if (ends[i]->type != CU_MEMORYTYPE_DEVICE || ends[i]->x || ends[i]->y || ends[i]->z || ends[i]->lod) return 0;
  *shape = (struct copy_shape){.width = c->width, .context = ctx};
  return c->height == 1 && c->depth == 1 && known_memory(c->src.device, c->width, &shape->src) &&
         known_memory(c->dst.device, c->width, &shape->dst);
}

/* cuGraphExecMemcpyNodeSetParams of a copy that the driver can make alone. */
int32_t scuda_change_copy(uint64_t exec, uint64_t node, const struct scuda_copy3d *copy, uint64_t ctx) {
  struct target t = SETTING_EXEC(cuGraphExecMemcpyNodeSetParams);
  struct copy_shape shape;
  struct change c = scuda_change(&t, copy_shape(copy, ctx, &shape) ? &shape : NULL, sizeof shape);
  return scuda_changed(&t, &c, scuda_wire_cuGraphExecMemcpyNodeSetParams(exec, node, copy, ctx, how(&c)));
}
