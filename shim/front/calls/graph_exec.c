/* Changes of executable graphs that need no answer. XLA changes every node of its graphs before each launch, and only
 * addresses differ: where each change waited for its answer, a small step took four times as long as natively. The
 * driver takes a change that is like one that it took before, so that one is sent as a launch is. What "like" means is
 * a shape: all that the driver looks at, without what it takes as it comes (a kernel's parameters, addresses in memory
 * that is known here).
 *
 * Whatever could make the driver refuse what it took before begins a new epoch, and all shapes are forgotten: an
 * executable graph, a function or a context that ends, an update of a whole graph, an attribute of a function. */
#include "calls/graph.h"

#include <stdlib.h>

enum { SHAPE_MAX = 256 };
struct taken {             /* of a node: what the driver took last */
  uint64_t exec, epoch, context;
  uint32_t i, bytes;
  uint8_t shape[SHAPE_MAX];
};

/* The server uses its handles again without telling, so what its nodes took says nothing. */
static int is_known(const struct target *t, uint32_t bytes) {
  return t->verb == SET_EXEC && t->node < scuda_shared.server_base && bytes <= SHAPE_MAX;
}

int scuda_node_takes(const struct target *t, const void *shape, uint32_t bytes) {
  if (!is_known(t, bytes)) return 0;
  int same = 0;
  const struct node *n = scuda_node_lock(t->node, 0);
  const struct taken *w = n ? n->taken : NULL;
  if (w)
    same = w->exec == t->exec && w->i == t->i && w->bytes == bytes && w->context == scuda_thread()->current &&
           w->epoch == atomic_load(&scuda_graph_exec_epoch) && !memcmp(w->shape, shape, bytes);
  scuda_node_unlock();
  return same;
}

/* Of a change that began in that epoch. */
void scuda_node_took(const struct target *t, uint64_t epoch, const void *shape, uint32_t bytes) {
  if (!is_known(t, bytes)) return;
  struct node *n = scuda_node_lock(t->node, 1);
  struct taken *w = n ? n->taken : NULL;
  if (n && !w) w = n->taken = malloc(sizeof *w);
  if (w) {
    *w = (struct taken){.exec = t->exec, .epoch = epoch, .context = scuda_thread()->current, .i = t->i, .bytes = bytes};
    memcpy(w->shape, shape, bytes);
  }
  scuda_node_unlock();
}

int scuda_pre_cuGraphExecUpdate(uint64_t exec, uint64_t graph, uint64_t *node, int32_t *result, int32_t *r) {
  (void)exec, (void)graph, (void)node, (void)result, (void)r;
  atomic_fetch_add(&scuda_graph_exec_epoch, 1);
  return 0;
}
int scuda_pre_cuGraphExecUpdate_v2(uint64_t exec, uint64_t graph, void *result, int32_t *r) {
  (void)exec, (void)graph, (void)result, (void)r;
  atomic_fetch_add(&scuda_graph_exec_epoch, 1);
  return 0;
}

/* An address of memory that cuMemAlloc gave becomes the context that has it, which the driver does look at. */
static int known_memory(uint64_t *address, uint64_t bytes) {
  struct scuda_range range = scuda_range_of(*address, SCUDA_AS_DEVICE);
  if (!(range.flags & SCUDA_RANGE_ALLOC) || !scuda_range_covers(&range, *address, bytes)) return 0;
  *address = range.context;
  return 1;
}

struct memset_shape { struct CUDA_MEMSET_NODE_PARAMS_st fill; uint64_t context; };

static int memset_shape(const struct CUDA_MEMSET_NODE_PARAMS_st *fill, uint64_t ctx, struct memset_shape *shape) {
  if (!fill || fill->height != 1 || fill->elementSize > 4 || fill->width > UINT64_MAX / 4) return 0;
  *shape = (struct memset_shape){*fill, ctx};
  shape->fill.value = 0;
  return known_memory(&shape->fill.dst, fill->width * fill->elementSize);
}

int scuda_pre_cuGraphExecMemsetNodeSetParams(uint64_t exec, uint64_t node, const void *fill, uint64_t ctx,
                                             int32_t *r) {
  struct target t = SETTING_EXEC(cuGraphExecMemsetNodeSetParams);
  struct memset_shape shape;
  if ((*r = scuda_node_check(&t))) return 1;
  uint64_t epoch = atomic_load(&scuda_graph_exec_epoch);
  int known = memset_shape(fill, ctx, &shape), takes = known && scuda_node_takes(&t, &shape, sizeof shape);
  *r = scuda_wire_cuGraphExecMemsetNodeSetParams(exec, node, fill, ctx, takes ? SCUDA_SURE : 0);
  if (!*r && known && !takes) scuda_node_took(&t, epoch, &shape, sizeof shape);
  return 1;
}

struct copy_shape { struct scuda_copy3d copy; uint64_t context; };

static int copy_shape(const struct scuda_copy3d *c, uint64_t ctx, struct copy_shape *shape) {
  *shape = (struct copy_shape){*c, ctx};
  const struct scuda_copy3d_end *ends[] = {&c->src, &c->dst};
  for (int i = 0; i < 2; i++)
    if (ends[i]->type != CU_MEMORYTYPE_DEVICE || ends[i]->x || ends[i]->y || ends[i]->z || ends[i]->lod) return 0;
  return c->height == 1 && c->depth == 1 && known_memory(&shape->copy.src.device, c->width) &&
         known_memory(&shape->copy.dst.device, c->width);
}

/* cuGraphExecMemcpyNodeSetParams of a copy that the driver can make alone. */
int32_t scuda_change_copy(uint64_t exec, uint64_t node, const struct scuda_copy3d *c, uint64_t ctx) {
  struct target t = SETTING_EXEC(cuGraphExecMemcpyNodeSetParams);
  struct copy_shape shape;
  uint64_t epoch = atomic_load(&scuda_graph_exec_epoch);
  int known = copy_shape(c, ctx, &shape), takes = known && scuda_node_takes(&t, &shape, sizeof shape);
  int32_t r = scuda_wire_cuGraphExecMemcpyNodeSetParams(exec, node, c, ctx, takes ? SCUDA_SURE : 0);
  if (!r && known && !takes) scuda_node_took(&t, epoch, &shape, sizeof shape);
  return r;
}
