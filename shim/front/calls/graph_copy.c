/* Copies in graphs: with host memory at one end, the bytes come and go when the graph runs. */
#include "calls/graph.h"

#include <stdlib.h>

static int32_t host_copy(const struct target *t, const struct CUDA_MEMCPY_NODE_PARAMS_st *copy, uint32_t flags) {
  struct CUgraphNodeParams_st p = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
  p.memcpy = *copy;
  struct scuda_copy3d *c = &p.memcpy.copyParams;
  int up = scuda_copy3d_in_host(&c->src);
  struct scuda_copy3d_end *host = up ? &c->src : &c->dst;
  uint64_t bytes = scuda_copy3d_straighten(host, c);
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  void *at = (void *)(uintptr_t)host->host;
  if (SCUDA_UNLIKELY(scuda_several()) && up) scuda_managed_uploads(0, at, bytes, 1);
  uint64_t id = up ? scuda_core.source(scuda_server(), at, bytes, 1) :
                scuda_core.transfer(at, bytes, scuda_thread_word(), 2);
  scuda_graph_host((uint32_t)id, up, at);
  struct wire_graph_node_made made;
  int32_t r = scuda_node_send(t, &p, flags | HOST_COPY, id, NULL, 0, &made, sizeof made);
  if (!r && t->verb != SET_EXEC)
    scuda_node_keep(node_of(t), &(struct node){.keeps = KEEPS_COPY, .copy3d = copy->copyParams});
  return r;
}

/* A copy within host memory: the function's description lives as long as graphs may call it, which is until the program
 * ends. */
static int32_t copy_within_host(const struct target *t, const struct CUDA_MEMCPY_NODE_PARAMS_st *c, uint32_t flags) {
  struct scuda_copy3d *b = malloc(sizeof *b);
  if (!b) return CUDA_ERROR_OUT_OF_MEMORY;
  *b = c->copyParams;
  if (!scuda_copy3d_straighten(&b->src, b) || !scuda_copy3d_straighten(&b->dst, b)) {
    free(b);
    return CUDA_ERROR_INVALID_VALUE;
  }
  const struct CUDA_HOST_NODE_PARAMS_st h = {(void *)scuda_copy3d_move, b};
  int32_t r = scuda_host_node_with(*t, &h, flags);
  if (r) free(b);
  else if (t->verb != SET_EXEC)
    scuda_node_keep(node_of(t), &(struct node){.keeps = KEEPS_COPY, .copy3d = c->copyParams});
  return r;
}

/* Which ends of a copy lie in host memory. */
static int host_ends(const struct scuda_copy3d *b) {
  return (scuda_copy3d_in_host(&b->src) ? 1 : 0) | (scuda_copy3d_in_host(&b->dst) ? 2 : 0);
}

/* What a node is for the program, and what it copies where that is wanted. For the driver a copy with host memory is a
 * small graph or a host function; a captured or cloned one keeps nothing here, so the server is asked. */
int32_t scuda_node_look(uint64_t node, int32_t *type, struct scuda_copy3d *copy3d, uint32_t i) {
  struct node n = scuda_node_kept(node);
  struct got reply;
  struct CUDA_MEMCPY_NODE_PARAMS_st c;
  struct CUDA_HOST_NODE_PARAMS_st h;
  *type = CU_GRAPH_NODE_TYPE_MEMCPY;
  if (copy3d) *copy3d = n.copy3d;
  if (n.keeps == KEEPS_COPY) return CUDA_SUCCESS;
  int32_t r = scuda_wire_cuGraphNodeGetType(node, type, 0);
  if (r || n.keeps != KEEPS_NOTHING) return r;
  if (*type == CU_GRAPH_NODE_TYPE_HOST) {
    if (!scuda_node_get(node, *type, &reply, i) && scuda_graph_function_of(scuda_word(union_of(&reply)), &h) &&
        h.fn == (void *)scuda_copy3d_move) {
      *type = CU_GRAPH_NODE_TYPE_MEMCPY;
      if (copy3d) *copy3d = *(struct scuda_copy3d *)h.userData;
    }
    return CUDA_SUCCESS;
  }
  if (*type != CU_GRAPH_NODE_TYPE_GRAPH && (*type != CU_GRAPH_NODE_TYPE_MEMCPY || !copy3d)) return r;
  r = scuda_node_get(node, CU_GRAPH_NODE_TYPE_MEMCPY, &reply, i);
  /* a graph of the program's */
  if (r == CUDA_ERROR_INVALID_VALUE && *type == CU_GRAPH_NODE_TYPE_GRAPH) return CUDA_SUCCESS;
  if (r) return r;
  memcpy(&c, union_of(&reply), sizeof c);
  if (*type == CU_GRAPH_NODE_TYPE_GRAPH) {
    int up = c.copyParams.src.type == CU_MEMORYTYPE_HOST;
    struct scuda_copy3d_end *end = up ? &c.copyParams.src : &c.copyParams.dst;
    end->host = (uint64_t)(uintptr_t)scuda_graph_host_of((uint32_t)end->host, up);
    *type = CU_GRAPH_NODE_TYPE_MEMCPY;
  }
  if (copy3d) *copy3d = c.copyParams;
  return CUDA_SUCCESS;
}

/* In the bodies of conditional nodes the driver calls no function of the host. A copy there goes to or from the GPU's
 * mirror of page-locked memory, as kernels do: what the program wrote is there with the launch, what the copy brought
 * with the next wait. */
_Atomic uint32_t scuda_graph_bodies; /* whether there ever was any */

static int in_body(const struct target *t) {
  const struct scuda_slot *node = t->verb == ADD ? NULL : scuda_slot(t->node);
  const struct scuda_slot *graph = scuda_slot_of(node ? node->word[1] : t->graph, KIND_CUgraph);
  return graph && graph->flags & BODY;
}

/* 1: what is captured on the stream becomes part of a body. */
int scuda_captures_body(uint64_t stream, uint32_t ptds) {
  int32_t status = CU_STREAM_CAPTURE_STATUS_NONE;
  uint64_t graph = 0;
  if (!atomic_load(&scuda_graph_bodies) ||
      scuda_hand_cuStreamGetCaptureInfo_v2(stream, &status, NULL, &graph, NULL, NULL, ptds)) return 0;
  const struct scuda_slot *s = scuda_slot_of(graph, KIND_CUgraph);
  return s && s->flags & BODY;
}

/* The driver has made or changed the node of a copy that *c was; getters give back what the program said. */
void scuda_copy_node_is(const struct target *t, const struct scuda_copy3d *c) {
  if (t->verb == SET_EXEC || !in_body(t)) return;
  scuda_node_keep(node_of(t), &(struct node){.keeps = host_ends(c) ? KEEPS_COPY : KEEPS_NOTHING, .copy3d = *c});
}

/* 1: *r is the answer; 0: the driver can do it alone, as *c says now. A node whose copy gets or loses host memory gets
 * another node of the driver's; in an executable graph what is copied may change, but not that. */
int scuda_copy_node(const struct target *t, struct CUDA_MEMCPY_NODE_PARAMS_st *c, int32_t *r) {
  struct scuda_copy3d *now = &c->copyParams;
  scuda_copy3d_settle(&now->src), scuda_copy3d_settle(&now->dst);
  int ends = host_ends(now), old = ends;
  uint32_t flags = 0;
  if ((*r = scuda_node_check(t))) return 1;
  if (in_body(t)) {
    if (ends & 1) *r = scuda_copy3d_to_mirror(&now->src, now, t->i);
    if (ends & 2 && !*r) *r = scuda_copy3d_to_mirror(&now->dst, now, t->i);
    return *r != CUDA_SUCCESS;
  }
  if (t->verb != ADD &&
      (ends || scuda_node_kept(t->node).keeps == KEEPS_COPY ||
       t->node >= scuda_shared.server_base || scuda_slot(t->node)->flags & CLONED)) {
    struct scuda_copy3d copy3d;
    int32_t type;
    if (!(*r = scuda_node_look(t->node, &type, &copy3d, t->i)) && type != CU_GRAPH_NODE_TYPE_MEMCPY)
      *r = CUDA_ERROR_INVALID_VALUE;
    if (*r) return 1;
    old = host_ends(&copy3d);
  }
  if (old != ends && t->verb == SET_EXEC) {
    *r = CUDA_ERROR_INVALID_VALUE;
    return 1;
  }
  if (old != ends) flags = REPLACE;
  if (ends == 3) *r = copy_within_host(t, c, flags);
  else if (ends) *r = host_copy(t, c, flags);
  else if (flags) {
    struct CUgraphNodeParams_st p = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
    p.memcpy = *c;
    struct wire_graph_node_made made;
    if (!(*r = scuda_node_send(t, &p, flags, 0, NULL, 0, &made, sizeof made)))
      scuda_node_keep(t->node, &(struct node){.keeps = KEEPS_NOTHING});
  } else return 0;
  return 1;
}

int32_t scuda_hand_cuGraphAddMemcpyNode(ADD_PARAMS, const void *copy3d, uint64_t ctx) {
  if (!copy3d) return CUDA_ERROR_INVALID_VALUE;
  struct target t = ADDING(cuGraphAddMemcpyNode);
  struct CUDA_MEMCPY_NODE_PARAMS_st c = {.copyCtx = ctx, .copyParams = *(const struct scuda_copy3d *)copy3d};
  int32_t r = ctx ? scuda_check(ctx, KIND_CUcontext) : CUDA_SUCCESS;
  if (r || scuda_copy_node(&t, &c, &r)) return r;
  if ((r = scuda_wire_cuGraphAddMemcpyNode(out, graph, deps, count, &c.copyParams, ctx, 0))) return r;
  scuda_node_link(graph, *out);
  scuda_copy_node_is(&t, copy3d);
  return r;
}
int32_t scuda_hand_cuGraphMemcpyNodeSetParams(uint64_t node, const void *copy3d) {
  if (!copy3d) return CUDA_ERROR_INVALID_VALUE;
  struct target t = SETTING(cuGraphMemcpyNodeSetParams);
  struct CUDA_MEMCPY_NODE_PARAMS_st c = {.copyParams = *(const struct scuda_copy3d *)copy3d};
  int32_t r;
  if (scuda_copy_node(&t, &c, &r)) return r;
  if (!(r = scuda_wire_cuGraphMemcpyNodeSetParams(node, &c.copyParams, 0))) scuda_copy_node_is(&t, copy3d);
  return r;
}
int32_t scuda_hand_cuGraphExecMemcpyNodeSetParams(uint64_t exec, uint64_t node, const void *copy3d, uint64_t ctx) {
  if (!copy3d) return CUDA_ERROR_INVALID_VALUE;
  struct target t = SETTING_EXEC(cuGraphExecMemcpyNodeSetParams);
  struct CUDA_MEMCPY_NODE_PARAMS_st c = {.copyCtx = ctx, .copyParams = *(const struct scuda_copy3d *)copy3d};
  int32_t r = ctx ? scuda_check(ctx, KIND_CUcontext) : CUDA_SUCCESS;
  if (r || scuda_copy_node(&t, &c, &r)) return r;
  return scuda_change_copy(exec, node, &c.copyParams, ctx);
}
int32_t scuda_hand_cuGraphMemcpyNodeGetParams(uint64_t node, void *out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  struct scuda_copy3d copy3d;
  int32_t type, r = is(node, KIND_CUgraphNode);
  if (!r && !(r = scuda_node_look(node, &type, &copy3d, I_cuGraphMemcpyNodeGetParams)) &&
      type != CU_GRAPH_NODE_TYPE_MEMCPY) r = CUDA_ERROR_INVALID_VALUE;
  if (!r) memcpy(out, &copy3d, sizeof copy3d);
  return r;
}
