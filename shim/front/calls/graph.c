/* Graph nodes made by hand: those whose parameters hold pointers, handles in a union, or the program's memory. All
 * calls are answered, so that errors come at the call, but for changes that surely succeed (graph_exec.c). Nodes
 * without such parameters go by the generated encodings. */
#include "calls/graph.h"

#include <stdlib.h>

/* ---- what belongs to graphs and nodes ---- */

static scuda_lock_t lock;  /* guards the lists of nodes and what nodes keep */

/* A graph's slot lists the nodes that got their handles here, so that these are free again when it ends: word[0] of the
 * graph is the first, a node has its successor in word[0], its predecessor in id and its graph in word[1]. */
void scuda_node_link(uint64_t graph, uint64_t node) {
  scuda_lock(&lock);
  struct scuda_slot *g = scuda_slot(graph), *n = scuda_slot(node), *first = scuda_slot(g->word[0]);
  n->word[0] = g->word[0];
  n->word[1] = graph;
  n->id = 0;
  if (first) first->id = node;
  g->word[0] = node;
  scuda_unlock(&lock);
}

static void node_dies(struct scuda_slot *s) {
  scuda_lock(&lock);
  struct scuda_slot *graph = scuda_slot(s->word[1]), *before = scuda_slot(s->id), *after = scuda_slot(s->word[0]);
  if (graph) {
    if (before) before->word[0] = s->word[0];
    else graph->word[0] = s->word[0];
    if (after) after->id = s->id;
  }
  struct node *n = s->data;
  s->data = NULL;
  scuda_unlock(&lock);
  if (!n) return;
  if (n->keeps == KEEPS_ALLOC) scuda_ranges_forget_owner((uint64_t)(uintptr_t)s);
  for (uint32_t i = 0; i < n->graph_count; i++)
    if (scuda_slot_of(n->graphs[i], KIND_CUgraph)) scuda_slot_free(n->graphs[i]);
  free(n->graphs);
  free(n->lent);
  free(n->taken);
  free(n);
}

void scuda_graph_dies(struct scuda_slot *s) {
  if (s->kind == KIND_CUgraphNode) {
    node_dies(s);
    return;
  }
  scuda_lock(&lock);
  uint64_t node = s->word[0];
  s->word[0] = 0;
  scuda_unlock(&lock);
  for (uint64_t next; node; node = next) {
    struct scuda_slot *n = scuda_slot(node);
    next = n->word[0];
    n->word[1] = 0;
    scuda_slot_free(node);
  }
}

static struct node *node_data(uint64_t handle) { /* under the lock */
  struct scuda_slot *s = scuda_slot_of(handle, KIND_CUgraphNode);
  if (s && !s->data) s->data = calloc(1, sizeof(struct node));
  return s ? s->data : NULL;
}

/* Remembers what a getter gives back. The server uses its handles again, so its nodes keep nothing. */
void scuda_node_keep(uint64_t handle, const struct node *what) {
  if (handle >= scuda_shared.server_base) return;
  scuda_lock(&lock);
  struct node *n = node_data(handle);
  if (n) {
    n->keeps = what->keeps;
    n->fn = what->fn;
    n->user = what->user;
    n->copy3d = what->copy3d;
  }
  scuda_unlock(&lock);
}

struct node scuda_node_kept(uint64_t handle) {
  struct scuda_slot *s = scuda_slot_of(handle, KIND_CUgraphNode);
  struct node n = {0};
  scuda_lock(&lock);
  if (s && s->data) n = *(struct node *)s->data;
  scuda_unlock(&lock);
  return n;
}

/* Memory that lives as long as the node, until its parameters get another size. */
void *scuda_node_lend(uint64_t handle, uint64_t bytes) {
  scuda_lock(&lock);
  struct node *n = node_data(handle);
  void *p = NULL;
  if (n && n->lent_bytes == bytes) p = n->lent;
  else if (n && (p = malloc(bytes ? bytes : 1))) {
    free(n->lent);
    n->lent = p;
    n->lent_bytes = bytes;
  }
  scuda_unlock(&lock);
  return p;
}

struct node *scuda_node_lock(uint64_t handle, int make) {
  scuda_lock(&lock);
  struct scuda_slot *s = scuda_slot_of(handle, KIND_CUgraphNode);
  return make ? node_data(handle) : s ? s->data : NULL;
}
void scuda_node_unlock(void) { scuda_unlock(&lock); }

void scuda_post_cuGraphAddEmptyNode(ADD_PARAMS) {
  (void)deps, (void)count;
  scuda_node_link(graph, *out);
}
void scuda_post_cuGraphAddChildGraphNode(ADD_PARAMS, uint64_t child) {
  (void)deps, (void)count, (void)child;
  scuda_node_link(graph, *out);
}
void scuda_post_cuGraphAddEventRecordNode(ADD_PARAMS, uint64_t event) {
  (void)deps, (void)count;
  scuda_event_elsewhere(event);
  scuda_node_link(graph, *out);
}
void scuda_post_cuGraphAddEventWaitNode(ADD_PARAMS, uint64_t event) {
  (void)deps, (void)count, (void)event;
  scuda_node_link(graph, *out);
}
void scuda_post_cuGraphAddMemFreeNode(ADD_PARAMS, uint64_t address) {
  (void)deps, (void)count, (void)address;
  scuda_node_link(graph, *out);
}
void scuda_post_cuGraphAddMemsetNode(ADD_PARAMS, const void *params, uint64_t ctx) {
  (void)deps, (void)count, (void)params, (void)ctx;
  scuda_node_link(graph, *out);
}

/* ---- adding and changing ---- */

int32_t scuda_node_check(const struct target *t) {
  int32_t r;
  if (t->verb != ADD) {
    if (t->verb == SET_EXEC && (r = is(t->exec, KIND_CUgraphExec))) return r;
    return is(t->node, KIND_CUgraphNode);
  }
  if (!t->out || (t->count && !t->deps) || t->count > DEPENDENCIES_MAX) return CUDA_ERROR_INVALID_VALUE;
  for (uint64_t n = 0; n < t->count; n++)
    if (!scuda_slot_of(t->deps[n], KIND_CUgraphNode)) return CUDA_ERROR_INVALID_VALUE;
  return is(t->graph, KIND_CUgraph);
}

/* Sends the call. reply has room for the body graphs of a conditional node behind it. */
int32_t scuda_node_send(const struct target *t, const struct CUgraphNodeParams_st *params, uint32_t flags,
                        uint64_t host, const void *tail, uint32_t tail_bytes,
                    struct wire_graph_node_made *reply, uint32_t reply_bytes) {
  struct wire_graph_node w =
      {.graph = t->graph, .exec = t->exec, .node = t->node, .host = host, .verb = t->verb, .tail_bytes = tail_bytes};
  w.flags = flags | (t->general ? GENERAL : 0) | (t->edges ? EDGES : 0);
  w.deps = (uint32_t)t->count;
  memcpy(w.params, params, sizeof w.params);
  int32_t r = scuda_managed_held(params, sizeof *params);
  if (!r) r = scuda_managed_held(tail, tail_bytes);
  if (r) return r;
  if (t->verb == ADD && !(w.node = scuda_slot_new(KIND_CUgraphNode))) return CUDA_ERROR_OUT_OF_MEMORY;
  struct scuda_cmd c;
  r = scuda_begin(&c, OP_GRAPH_NODE, t->sure ? 0 : SCUDA_ANSWER,
                  sizeof w + t->count * (t->edges ? 16 : 8) + tail_bytes);
  uint32_t len = 0;
  if (!r) {
    uint8_t *p = scuda_put_struct(c.payload, &w, sizeof w);
    if (t->count) p = scuda_put_struct(p, t->deps, t->count * 8);
    if (t->count && t->edges) p = scuda_put_struct(p, t->edges, t->count * 8);
    scuda_put_struct(p, tail, tail_bytes);
    if (!c.answer) return scuda_send(&c);
    r = scuda_call(&c, reply, reply_bytes, &len);
    if (!r && len < sizeof *reply) r = scuda_bad_reply(scuda_exports[t->i].name);
  }
  if (t->verb != SET_EXEC) atomic_fetch_add(&scuda_graph_exec_epoch, 1);
  if (t->verb != ADD) return r;
  if (r) {
    scuda_slot_free(w.node);
    return r;
  }
  *t->out = w.node;
  scuda_node_link(t->graph, w.node);
  return r;
}

int32_t scuda_node_send_simple(const struct target *t, const struct CUgraphNodeParams_st *params) {
  struct wire_graph_node_made made;
  return scuda_node_send(t, params, 0, 0, NULL, 0, &made, sizeof made);
}

/* ---- kernels ---- */

/* The first version ends before kern. */
enum { KERNEL_V1 = sizeof(struct CUDA_KERNEL_NODE_PARAMS_st) };

static int32_t kernel(struct target t, const void *from, size_t bytes) {
  int32_t r = scuda_node_check(&t);
  if (r) return r;
  if (!from) return CUDA_ERROR_INVALID_VALUE;
  struct CUDA_KERNEL_NODE_PARAMS_v2_st k = {0};
  memcpy(&k, from, bytes);
  uint64_t handle = k.func ? k.func : k.kern;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  struct scuda_func *f = scuda_func(handle);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  if (k.ctx && (r = scuda_check(k.ctx, KIND_CUcontext))) return r;
  const void *buffer;
  uint32_t size;
  if ((r = scuda_params_of(f, k.kernelParams, k.extra, &buffer, &size))) return r;
  uint8_t packed[SCUDA_PARAMS_MAX];
  if (size > sizeof packed) return CUDA_ERROR_INVALID_VALUE;
  if (!buffer) {
    memset(packed, 0, size);
    scuda_params_pack(f, k.kernelParams, packed);
  }
  struct CUgraphNodeParams_st p = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
  k.kernelParams = k.extra = NULL;
  memcpy(&p.kernel, &k, sizeof k);
  struct wire_graph_node_made made;
  struct change c = scuda_change(&t, &k, sizeof k);
  t.sure = c.sure;
  return scuda_changed(&t, &c, scuda_node_send(&t, &p, 0, 0, buffer ? buffer : packed, size, &made, sizeof made));
}

int32_t scuda_hand_cuGraphAddKernelNode(ADD_PARAMS, const void *p) {
  return kernel(ADDING(cuGraphAddKernelNode), p, KERNEL_V1);
}
int32_t scuda_hand_cuGraphAddKernelNode_v2(ADD_PARAMS, const void *p) {
  return kernel(ADDING(cuGraphAddKernelNode_v2), p, sizeof(struct CUDA_KERNEL_NODE_PARAMS_v2_st));
}
int32_t scuda_hand_cuGraphKernelNodeSetParams(uint64_t node, const void *p) {
  return kernel(SETTING(cuGraphKernelNodeSetParams), p, KERNEL_V1);
}
int32_t scuda_hand_cuGraphKernelNodeSetParams_v2(uint64_t node, const void *p) {
  return kernel(SETTING(cuGraphKernelNodeSetParams_v2), p, sizeof(struct CUDA_KERNEL_NODE_PARAMS_v2_st));
}
int32_t scuda_hand_cuGraphExecKernelNodeSetParams(uint64_t exec, uint64_t node, const void *p) {
  return kernel(SETTING_EXEC(cuGraphExecKernelNodeSetParams), p, KERNEL_V1);
}
int32_t scuda_hand_cuGraphExecKernelNodeSetParams_v2(uint64_t exec, uint64_t node, const void *p) {
  return kernel(SETTING_EXEC(cuGraphExecKernelNodeSetParams_v2), p, sizeof(struct CUDA_KERNEL_NODE_PARAMS_v2_st));
}

int32_t scuda_node_get(uint64_t node, int32_t type, struct got *reply, uint32_t i) {
  struct wire_graph_node_get w = {.node = node, .type = (uint32_t)type};
  struct scuda_cmd c;
  uint32_t len = 0;
  int32_t r = is(node, KIND_CUgraphNode);
  if (!r) r = scuda_begin(&c, OP_GRAPH_NODE_GET, SCUDA_ANSWER, sizeof w);
  if (r) return r;
  memcpy(c.payload, &w, sizeof w);
  r = scuda_call(&c, reply, sizeof *reply, &len);
  if (!r && (len < sizeof reply->head || reply->head.tail_bytes > len - sizeof reply->head))
    r = scuda_bad_reply(scuda_exports[i].name);
  return r;
}

static int32_t kernel_params(uint64_t node, void *out, size_t bytes, uint32_t i) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  struct got reply;
  int32_t r = scuda_node_get(node, CU_GRAPH_NODE_TYPE_KERNEL, &reply, i);
  if (r) return r;
  struct CUDA_KERNEL_NODE_PARAMS_v2_st k;
  memcpy(&k, union_of(&reply), sizeof k);
  struct scuda_func *f = scuda_func(k.func ? k.func : k.kern);
  if (!f || reply.head.tail_bytes < f->param_bytes) return scuda_bad_reply(scuda_exports[i].name);
  k.kernelParams = k.extra = NULL;
  if (f->param_count) {
    size_t pointers = f->param_count * sizeof(void *);
    uint8_t *block = scuda_node_lend(node, pointers + f->param_bytes);
    if (!block) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(block + pointers, reply.tail, f->param_bytes);
    k.kernelParams = (void **)block;
    for (uint32_t n = 0; n < f->param_count; n++) k.kernelParams[n] = block + pointers + f->params[n].offset;
  }
  if (bytes == KERNEL_V1 && !k.func) k.func = k.kern;
  memcpy(out, &k, bytes);
  return r;
}
int32_t scuda_hand_cuGraphKernelNodeGetParams(uint64_t node, void *p) {
  return kernel_params(node, p, KERNEL_V1, I_cuGraphKernelNodeGetParams);
}
int32_t scuda_hand_cuGraphKernelNodeGetParams_v2(uint64_t node, void *p) {
  return kernel_params(node, p, sizeof(struct CUDA_KERNEL_NODE_PARAMS_v2_st), I_cuGraphKernelNodeGetParams_v2);
}

/* Attributes with events are those of launches; the driver refuses them to nodes. */
static int of_launches(int32_t attr, int32_t *r) {
  *r = CUDA_ERROR_INVALID_VALUE;
  return attr == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT || attr == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
}
int scuda_pre_cuGraphKernelNodeGetAttribute(uint64_t node, int32_t attr, void *value, int32_t *r) {
  (void)node, (void)value;
  return of_launches(attr, r);
}
int scuda_pre_cuGraphKernelNodeSetAttribute(uint64_t node, int32_t attr, const void *value, int32_t *r) {
  (void)node, (void)value;
  return of_launches(attr, r);
}

/* ---- host functions; a copy within host memory is one of ours ---- */

/* Functions that graphs may call until the program ends, by registration: nodes that were captured or cloned know no
 * more than that. */
static struct { struct CUDA_HOST_NODE_PARAMS_st *list; uint64_t *ids; uint32_t count, cap; } functions;

uint64_t scuda_graph_function(void *fn, void *user) {
  uint64_t id = scuda_core.hostfn(scuda_server(), fn, user, 0, 0, 1);
  scuda_lock(&lock);
  if (functions.count == functions.cap) {
    uint32_t cap = functions.cap ? 2 * functions.cap : 64;
    struct CUDA_HOST_NODE_PARAMS_st *list = realloc(functions.list, cap * sizeof *list);
    if (list) functions.list = list;
    uint64_t *ids = list ? realloc(functions.ids, cap * sizeof *ids) : NULL;
    if (ids) functions.ids = ids, functions.cap = cap;
  }
  if (functions.count < functions.cap) {
    functions.list[functions.count] = (struct CUDA_HOST_NODE_PARAMS_st){fn, user};
    functions.ids[functions.count++] = id;
  }
  scuda_unlock(&lock);
  return id;
}

int scuda_graph_function_of(uint64_t id, struct CUDA_HOST_NODE_PARAMS_st *h) {
  scuda_lock(&lock);
  uint32_t i = functions.count;
  while (i && functions.ids[i - 1] != id) i--;
  if (i) *h = functions.list[i - 1];
  scuda_unlock(&lock);
  return i != 0;
}

int32_t scuda_host_node_with(struct target t, const struct CUDA_HOST_NODE_PARAMS_st *h, uint32_t flags) {
  int32_t r = scuda_node_check(&t);
  if (r) return r;
  if (!h || !h->fn) return CUDA_ERROR_INVALID_VALUE;
  struct CUgraphNodeParams_st p = {.type = CU_GRAPH_NODE_TYPE_HOST};
  struct wire_graph_node_made made;
  r = scuda_node_send(&t, &p, flags, scuda_graph_function(h->fn, h->userData), NULL, 0, &made, sizeof made);
  if (!r && t.verb != SET_EXEC)
    scuda_node_keep(node_of(&t), &(struct node){.keeps = KEEPS_HOST, .fn = h->fn, .user = h->userData});
  return r;
}
int32_t host_node(struct target t, const struct CUDA_HOST_NODE_PARAMS_st *h) { return scuda_host_node_with(t, h, 0); }
int32_t scuda_hand_cuGraphAddHostNode(ADD_PARAMS, const void *p) { return host_node(ADDING(cuGraphAddHostNode), p); }
int32_t scuda_hand_cuGraphHostNodeSetParams(uint64_t node, const void *p) {
  return host_node(SETTING(cuGraphHostNodeSetParams), p);
}
int32_t scuda_hand_cuGraphExecHostNodeSetParams(uint64_t exec, uint64_t node, const void *p) {
  return host_node(SETTING_EXEC(cuGraphExecHostNodeSetParams), p);
}
int32_t scuda_hand_cuGraphHostNodeGetParams(uint64_t node, void *out) {
  int32_t r = is(node, KIND_CUgraphNode), type = 0;
  if (!r && !out) r = CUDA_ERROR_INVALID_VALUE;
  if (r) return r;
  struct node n = scuda_node_kept(node);
  if (n.keeps == KEEPS_HOST) {
    *(struct CUDA_HOST_NODE_PARAMS_st *)out = (struct CUDA_HOST_NODE_PARAMS_st){n.fn, n.user};
    return CUDA_SUCCESS;
  }
  if ((r = scuda_wire_cuGraphNodeGetType(node, &type, 0))) return r;
  if (type != CU_GRAPH_NODE_TYPE_HOST) return CUDA_ERROR_INVALID_VALUE;
  struct got reply;
  if ((r = scuda_node_get(node, type, &reply, I_cuGraphHostNodeGetParams))) return r;
  struct CUDA_HOST_NODE_PARAMS_st h;
  if (!scuda_graph_function_of(scuda_word(union_of(&reply)), &h)) return scuda_bad_reply("cuGraphHostNodeGetParams");
  if (h.fn == (void *)scuda_copy3d_move) return CUDA_ERROR_INVALID_VALUE; /* a copy within host memory */
  *(struct CUDA_HOST_NODE_PARAMS_st *)out = h;
  return CUDA_SUCCESS;
}

int scuda_pre_cuGraphCreate(uint64_t *graph, uint32_t flags, int32_t *r) {
  *r = CUDA_ERROR_INVALID_VALUE;
  return !graph || flags;
}

void scuda_post_cuGraphNodeFindInClone(uint64_t *node, uint64_t original, uint64_t graph) {
  (void)original, (void)graph;
  scuda_slot(*node)->flags |= CLONED;
}

/* A copy is a graph for the driver alone. */
int scuda_pre_cuGraphChildGraphNodeGetGraph(uint64_t node, uint64_t *graph, int32_t *r) {
  int32_t type;
  if (!graph || scuda_node_look(node, &type, NULL, I_cuGraphChildGraphNodeGetGraph) ||
      type != CU_GRAPH_NODE_TYPE_MEMCPY) return 0;
  *r = CUDA_ERROR_INVALID_VALUE;
  return 1;
}

int scuda_pre_cuGraphNodeGetType(uint64_t node, int32_t *type, int32_t *r) {
  int32_t found;
  if (!type || is(node, KIND_CUgraphNode)) return 0;
  if (!(*r = scuda_node_look(node, &found, NULL, I_cuGraphNodeGetType))) *type = found;
  return 1;
}

/* ---- memory of graphs ---- */

static void locate(struct CUmemLocation_st *l, int32_t (*translate)(int32_t)) {
  if (l->type == CU_MEM_LOCATION_TYPE_DEVICE) l->id = translate(l->id);
}
static int32_t to_server(int32_t device) { return scuda_to_server(device); }

static int32_t alloc_node(struct target t, struct CUDA_MEM_ALLOC_NODE_PARAMS_v1_st *a) {
  int32_t r = scuda_node_check(&t);
  if (r) return r;
  if (!a || a->accessDescCount > ACCESS_MAX || (a->accessDescCount && !a->accessDescs)) return CUDA_ERROR_INVALID_VALUE;
  if ((r = scuda_elsewhere(t.i, a->poolProps.allocType, &a->poolProps.location))) return r;
  struct CUDA_MEM_ALLOC_NODE_PARAMS_v1_st w = *a;
  struct CUmemAccessDesc_st list[ACCESS_MAX];
  for (uint64_t n = 0; n < a->accessDescCount; n++) {
    list[n] = a->accessDescs[n];
    locate(&list[n].location, to_server);
  }
  locate(&w.poolProps.location, to_server);
  w.accessDescs = NULL;
  struct CUgraphNodeParams_st p = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
  memcpy(&p.alloc, &w, sizeof w);
  struct wire_graph_node_made made;
  r = scuda_node_send(&t, &p, 0, 0, list, (uint32_t)(a->accessDescCount * sizeof *list), &made, sizeof made);
  if (r || t.verb != ADD) return r;
  a->dptr = made.address;
  scuda_node_keep(*t.out, &(struct node){.keeps = KEEPS_ALLOC});
  scuda_device_range_add(made.address, a->bytesize, SCUDA_RANGE_OTHER | SCUDA_RANGE_GRAPH, *t.out);
  return r;
}
int32_t scuda_hand_cuGraphAddMemAllocNode(ADD_PARAMS, void *p) { return alloc_node(ADDING(cuGraphAddMemAllocNode), p); }

int32_t scuda_hand_cuGraphMemAllocNodeGetParams(uint64_t node, void *out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  struct got reply;
  int32_t r = scuda_node_get(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &reply, I_cuGraphMemAllocNodeGetParams);
  if (r) return r;
  struct CUDA_MEM_ALLOC_NODE_PARAMS_v1_st a;
  memcpy(&a, union_of(&reply), sizeof a);
  struct CUmemAccessDesc_st *list = NULL;
  if (reply.head.tail_bytes != a.accessDescCount * sizeof *list) return scuda_bad_reply("cuGraphMemAllocNodeGetParams");
  locate(&a.poolProps.location, scuda_from_server);
  if (a.accessDescCount) {
    if (!(list = scuda_node_lend(node, reply.head.tail_bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(list, reply.tail, reply.head.tail_bytes);
    for (uint64_t n = 0; n < a.accessDescCount; n++) locate(&list[n].location, scuda_from_server);
  }
  a.accessDescs = list;
  memcpy(out, &a, sizeof a);
  return r;
}

/* ---- batches of memory operations ---- */

enum { BATCH_MAX = 512, OPERATION_BYTES = sizeof(union CUstreamBatchMemOpParams_union) };

static int32_t batch_node(struct target t, const struct CUDA_BATCH_MEM_OP_NODE_PARAMS_v1_st *b) {
  int32_t r = scuda_node_check(&t);
  if (r) return r;
  if (!b || (b->count && !b->paramArray) || b->count > BATCH_MAX) return CUDA_ERROR_INVALID_VALUE;
  if ((r = is(b->ctx, KIND_CUcontext))) return r;
  struct CUgraphNodeParams_st p = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
  struct CUDA_BATCH_MEM_OP_NODE_PARAMS_v1_st w = *b;
  w.paramArray = NULL;
  memcpy(&p.memOp, &w, sizeof w);
  struct wire_graph_node_made made;
  return scuda_node_send(&t, &p, 0, 0, b->paramArray, b->count * OPERATION_BYTES, &made, sizeof made);
}
int32_t scuda_hand_cuGraphAddBatchMemOpNode(ADD_PARAMS, const void *p) {
  return batch_node(ADDING(cuGraphAddBatchMemOpNode), p);
}
int32_t scuda_hand_cuGraphBatchMemOpNodeSetParams(uint64_t node, const void *p) {
  return batch_node(SETTING(cuGraphBatchMemOpNodeSetParams), p);
}
int32_t scuda_hand_cuGraphExecBatchMemOpNodeSetParams(uint64_t exec, uint64_t node, const void *p) {
  return batch_node(SETTING_EXEC(cuGraphExecBatchMemOpNodeSetParams), p);
}
int32_t scuda_hand_cuGraphBatchMemOpNodeGetParams(uint64_t node, void *out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  struct got reply;
  int32_t r = scuda_node_get(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, &reply, I_cuGraphBatchMemOpNodeGetParams);
  if (r) return r;
  struct CUDA_BATCH_MEM_OP_NODE_PARAMS_v1_st b;
  memcpy(&b, union_of(&reply), sizeof b);
  if (reply.head.tail_bytes != (uint64_t)b.count * OPERATION_BYTES)
    return scuda_bad_reply("cuGraphBatchMemOpNodeGetParams");
  if (!(b.paramArray = scuda_node_lend(node, reply.head.tail_bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
  memcpy(b.paramArray, reply.tail, reply.head.tail_bytes);
  memcpy(out, &b, sizeof b);
  return r;
}

/* ---- conditional nodes ---- */

static int32_t conditional(const struct target *t, struct CUDA_CONDITIONAL_NODE_PARAMS *k) {
  int32_t r = k->ctx ? scuda_check(k->ctx, KIND_CUcontext) : CUDA_SUCCESS;
  if (r) return r;
  if (k->size > GRAPHS_MAX) return CUDA_ERROR_INVALID_VALUE;
  struct CUgraphNodeParams_st p = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
  p.conditional = *k;
  p.conditional.phGraph_out = NULL;
  /* the driver says whether a node may become that; its bodies stay */
  if (t->verb != ADD) return scuda_node_send_simple(t, &p);
  uint32_t bytes = (uint32_t)(sizeof(struct wire_graph_node_made) + 8 * k->size);
  struct wire_graph_node_made *made = calloc(1, bytes);
  uint64_t *graphs = calloc(k->size + 1, 8);
  r = made && graphs ? scuda_node_send(t, &p, 0, 0, NULL, 0, made, bytes) : CUDA_ERROR_OUT_OF_MEMORY;
  if (!r) {
    uint32_t n = made->graphs < k->size ? made->graphs : k->size;
    memcpy(graphs, made + 1, 8 * (size_t)n);
    for (uint32_t i = 0; i < n; i++) {
      scuda_adopt(graphs[i], KIND_CUgraph);
      if (scuda_slot_of(graphs[i], KIND_CUgraph)) scuda_slot(graphs[i])->flags = BODY;
    }
    atomic_store(&scuda_graph_bodies, 1);
    scuda_lock(&lock);
    struct node *d = node_data(*t->out);
    if (d) {
      d->graphs = graphs;
      d->graph_count = n;
      k->phGraph_out = graphs;
      graphs = NULL;
    }
    scuda_unlock(&lock);
    if (!d) r = CUDA_ERROR_OUT_OF_MEMORY;
  }
  free(graphs);
  free(made);
  return r;
}

/* ---- nodes of all types ---- */

static int32_t general(struct target t, struct CUgraphNodeParams_st *p) {
  t.general = 1;
  int32_t r = scuda_node_check(&t);
  if (r) return r;
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  uint64_t ctx = 0;
  struct CUgraphNodeParams_st changed;
  switch (p->type) {
  case CU_GRAPH_NODE_TYPE_KERNEL:
    return kernel(t, &p->kernel, sizeof(struct CUDA_KERNEL_NODE_PARAMS_v2_st));
  case CU_GRAPH_NODE_TYPE_HOST:
    return host_node(t, (const struct CUDA_HOST_NODE_PARAMS_st *)&p->host);
  case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    return alloc_node(t, (struct CUDA_MEM_ALLOC_NODE_PARAMS_v1_st *)&p->alloc);
  case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
    return batch_node(t, (const struct CUDA_BATCH_MEM_OP_NODE_PARAMS_v1_st *)&p->memOp);
  case CU_GRAPH_NODE_TYPE_CONDITIONAL:
    return conditional(&t, &p->conditional);
  case CU_GRAPH_NODE_TYPE_MEMCPY:
    ctx = p->memcpy.copyCtx;
    if (ctx && (r = scuda_check(ctx, KIND_CUcontext))) return r;
    changed = *p;
    if (scuda_copy_node(&t, &changed.memcpy, &r)) return r;
    if (!(r = scuda_node_send_simple(&t, &changed))) scuda_copy_node_is(&t, &p->memcpy.copyParams);
    return r;
  case CU_GRAPH_NODE_TYPE_MEMSET:
    ctx = p->memset.ctx;
    if (ctx && (r = scuda_check(ctx, KIND_CUcontext))) return r;
    break;
  case CU_GRAPH_NODE_TYPE_GRAPH:
    if ((r = is(p->graph.graph, KIND_CUgraph))) return r;
    break;
  case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
  case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    if ((r = is(p->eventWait.event, KIND_CUevent))) return r;
    scuda_event_elsewhere(p->eventWait.event);
    break;
  case CU_GRAPH_NODE_TYPE_EMPTY:
  case CU_GRAPH_NODE_TYPE_MEM_FREE:
    break;
  default:
    return scuda_refuse(t.i, PART_semaphores);
  }
  return scuda_node_send_simple(&t, p);
}
int32_t scuda_hand_cuGraphAddNode(ADD_PARAMS, void *p) { return general(ADDING(cuGraphAddNode), p); }
int32_t scuda_hand_cuGraphAddNode_v2(uint64_t *out, uint64_t graph,
                                     const uint64_t *deps, const void *edges, uint64_t count, void *p) {
  struct target t = ADDING(cuGraphAddNode_v2);
  t.edges = count ? edges : NULL;
  return general(t, p);
}
int32_t scuda_hand_cuGraphNodeSetParams(uint64_t node, void *p) { return general(SETTING(cuGraphNodeSetParams), p); }
int32_t scuda_hand_cuGraphExecNodeSetParams(uint64_t exec, uint64_t node, void *p) {
  return general(SETTING_EXEC(cuGraphExecNodeSetParams), p);
}
