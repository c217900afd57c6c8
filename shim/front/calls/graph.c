/* Graph nodes made by hand: those whose parameters hold pointers, handles in a union, or the program's memory. All calls are answered, so
 * that errors come at the call. Nodes without such parameters go by the generated encodings. */
#include "calls/calls.h"

#include <stdlib.h>

enum { ADD, SET, SET_EXEC };                           /* wire_graph_node.verb */
enum { GENERAL = 1, EDGES = 2, HOST_COPY = 4, REPLACE = 8 }; /* wire_graph_node.flags */
enum { DEPENDENCIES_MAX = 1 << 15, ACCESS_MAX = 256, ACCESS_BYTES = 12, GRAPHS_MAX = 1 << 14 };

/* ---- what belongs to graphs and nodes ---- */

enum keeps { KEEPS_NOTHING, KEEPS_HOST, KEEPS_COPY, KEEPS_ALLOC };
struct node {              /* data of a node's slot */
  enum keeps keeps;        /* only nodes that this process made keep something */
  void *fn, *user;         /* of a host function */
  struct scuda_copy3d copy3d;    /* of a copy with host memory at one end */
  uint64_t *graphs;        /* bodies of a conditional node; the array is the program's to read */
  uint32_t graph_count;
  void *lent;              /* what getters point to */
  uint64_t lent_bytes;
};
static scuda_lock_t lock;  /* guards the lists of nodes and what nodes keep */

/* A graph's slot lists the nodes that got their handles here, so that these are free again when it ends: word[0] of the graph is the first,
 * a node has its successor in word[0], its predecessor in id and its graph in word[1]. */
static void link_node(uint64_t graph, uint64_t node) {
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
static void keep(uint64_t handle, const struct node *what) {
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

static struct node kept(uint64_t handle) {
  struct scuda_slot *s = scuda_slot_of(handle, KIND_CUgraphNode);
  struct node n = {0};
  scuda_lock(&lock);
  if (s && s->data) n = *(struct node *)s->data;
  scuda_unlock(&lock);
  return n;
}

/* Memory that lives as long as the node, until its parameters get another size. */
static void *lend(uint64_t handle, uint64_t bytes) {
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

void scuda_post_cuGraphAddEmptyNode(uint64_t *node, uint64_t graph, const uint64_t *deps, uint64_t count) {
  (void)deps, (void)count;
  link_node(graph, *node);
}
void scuda_post_cuGraphAddChildGraphNode(uint64_t *node, uint64_t graph, const uint64_t *deps, uint64_t count, uint64_t child) {
  (void)deps, (void)count, (void)child;
  link_node(graph, *node);
}
void scuda_post_cuGraphAddEventRecordNode(uint64_t *node, uint64_t graph, const uint64_t *deps, uint64_t count, uint64_t event) {
  (void)deps, (void)count;
  scuda_event_elsewhere(event);
  link_node(graph, *node);
}
void scuda_post_cuGraphAddEventWaitNode(uint64_t *node, uint64_t graph, const uint64_t *deps, uint64_t count, uint64_t event) {
  (void)deps, (void)count, (void)event;
  link_node(graph, *node);
}
void scuda_post_cuGraphAddMemFreeNode(uint64_t *node, uint64_t graph, const uint64_t *deps, uint64_t count, uint64_t address) {
  (void)deps, (void)count, (void)address;
  link_node(graph, *node);
}
void scuda_post_cuGraphAddMemsetNode(uint64_t *node, uint64_t graph, const uint64_t *deps, uint64_t count, const void *params, uint64_t ctx) {
  (void)deps, (void)count, (void)params, (void)ctx;
  link_node(graph, *node);
}

/* ---- adding and changing ---- */

struct params { int32_t type, reserved0[3]; uint64_t u[29], reserved2; };  /* CUgraphNodeParams */
_Static_assert(sizeof(struct params) == 256 && sizeof((struct wire_graph_node *)0)->params == 256, "layout of CUgraphNodeParams");

struct target {            /* what a call is about; i is the export's index */
  uint32_t verb, general, i;
  uint64_t *out;
  uint64_t graph, exec, node;
  const uint64_t *deps;
  const void *edges;
  uint64_t count;
};

static int32_t is(uint64_t handle, uint32_t kind) { return handle ? scuda_check(handle, kind) : CUDA_ERROR_INVALID_VALUE; }

static int32_t check(const struct target *t) {
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
static int32_t send(const struct target *t, const struct params *params, uint32_t flags, uint64_t host, const void *tail, uint32_t tail_bytes,
                    struct wire_graph_node_made *reply, uint32_t reply_bytes) {
  struct wire_graph_node w = {.graph = t->graph, .exec = t->exec, .node = t->node, .host = host, .verb = t->verb, .tail_bytes = tail_bytes};
  w.flags = flags | (t->general ? GENERAL : 0) | (t->edges ? EDGES : 0);
  w.deps = (uint32_t)t->count;
  memcpy(w.params, params, sizeof w.params);
  int32_t r = scuda_managed_held(params, sizeof *params);
  if (!r) r = scuda_managed_held(tail, tail_bytes);
  if (r) return r;
  if (t->verb == ADD && !(w.node = scuda_slot_new(KIND_CUgraphNode))) return CUDA_ERROR_OUT_OF_MEMORY;
  struct scuda_cmd c;
  r = scuda_begin(&c, OP_GRAPH_NODE, SCUDA_ANSWER, sizeof w + t->count * (t->edges ? 16 : 8) + tail_bytes);
  uint32_t len = 0;
  if (!r) {
    uint8_t *p = scuda_put_struct(c.payload, &w, sizeof w);
    if (t->count) p = scuda_put_struct(p, t->deps, t->count * 8);
    if (t->count && t->edges) p = scuda_put_struct(p, t->edges, t->count * 8);
    scuda_put_struct(p, tail, tail_bytes);
    r = scuda_call(&c, reply, reply_bytes, &len);
    if (!r && len < sizeof *reply) r = scuda_bad_reply(scuda_exports[t->i].name);
  }
  if (t->verb != ADD) return r;
  if (r) {
    scuda_slot_free(w.node);
    return r;
  }
  *t->out = w.node;
  link_node(t->graph, w.node);
  return r;
}

static int32_t send_simple(const struct target *t, const struct params *params) {
  struct wire_graph_node_made made;
  return send(t, params, 0, 0, NULL, 0, &made, sizeof made);
}

static uint64_t node_of(const struct target *t) { return t->verb == ADD ? *t->out : t->node; }

/* ---- kernels ---- */

struct kernel {            /* CUDA_KERNEL_NODE_PARAMS; the first version ends before kern */
  uint64_t func;
  uint32_t grid[3], block[3], shared, pad;
  void **params, **extra;
  uint64_t kern, ctx;
};
enum { KERNEL_V1 = 56 };
_Static_assert(sizeof(struct kernel) == 72, "layout of CUDA_KERNEL_NODE_PARAMS");

static int32_t kernel(struct target t, const void *from, size_t bytes) {
  int32_t r = check(&t);
  if (r) return r;
  if (!from) return CUDA_ERROR_INVALID_VALUE;
  struct kernel k = {0};
  memcpy(&k, from, bytes);
  uint64_t handle = k.func ? k.func : k.kern;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  struct scuda_func *f = scuda_func(handle);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  if (k.ctx && (r = scuda_check(k.ctx, KIND_CUcontext))) return r;
  const void *buffer;
  uint32_t size;
  if ((r = scuda_params_of(f, k.params, k.extra, &buffer, &size))) return r;
  uint8_t packed[SCUDA_PARAMS_MAX];
  if (size > sizeof packed) return CUDA_ERROR_INVALID_VALUE;
  if (!buffer) {
    memset(packed, 0, size);
    scuda_params_pack(f, k.params, packed);
  }
  struct params p = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
  k.params = k.extra = NULL;
  memcpy(p.u, &k, sizeof k);
  struct wire_graph_node_made made;
  return send(&t, &p, 0, 0, buffer ? buffer : packed, size, &made, sizeof made);
}

#define ADDING(call) (struct target){.verb = ADD, .i = I_##call, .out = out, .graph = graph, .deps = deps, .count = count}
#define SETTING(call) (struct target){.verb = SET, .i = I_##call, .node = node}
#define SETTING_EXEC(call) (struct target){.verb = SET_EXEC, .i = I_##call, .exec = exec, .node = node}
#define ADD_PARAMS uint64_t *out, uint64_t graph, const uint64_t *deps, uint64_t count

int32_t scuda_hand_cuGraphAddKernelNode(ADD_PARAMS, const void *p) { return kernel(ADDING(cuGraphAddKernelNode), p, KERNEL_V1); }
int32_t scuda_hand_cuGraphAddKernelNode_v2(ADD_PARAMS, const void *p) { return kernel(ADDING(cuGraphAddKernelNode_v2), p, sizeof(struct kernel)); }
int32_t scuda_hand_cuGraphKernelNodeSetParams(uint64_t node, const void *p) { return kernel(SETTING(cuGraphKernelNodeSetParams), p, KERNEL_V1); }
int32_t scuda_hand_cuGraphKernelNodeSetParams_v2(uint64_t node, const void *p) {
  return kernel(SETTING(cuGraphKernelNodeSetParams_v2), p, sizeof(struct kernel));
}
int32_t scuda_hand_cuGraphExecKernelNodeSetParams(uint64_t exec, uint64_t node, const void *p) {
  return kernel(SETTING_EXEC(cuGraphExecKernelNodeSetParams), p, KERNEL_V1);
}
int32_t scuda_hand_cuGraphExecKernelNodeSetParams_v2(uint64_t exec, uint64_t node, const void *p) {
  return kernel(SETTING_EXEC(cuGraphExecKernelNodeSetParams_v2), p, sizeof(struct kernel));
}

/* Asks for a node's parameters. What is behind them is in reply->tail. */
struct got { struct wire_graph_node_params head; uint8_t tail[SCUDA_PARAMS_MAX]; };
static int32_t get(uint64_t node, int32_t type, struct got *reply, uint32_t i) {
  struct wire_graph_node_get w = {.node = node, .type = (uint32_t)type};
  struct scuda_cmd c;
  uint32_t len = 0;
  int32_t r = is(node, KIND_CUgraphNode);
  if (!r) r = scuda_begin(&c, OP_GRAPH_NODE_GET, SCUDA_ANSWER, sizeof w);
  if (r) return r;
  memcpy(c.payload, &w, sizeof w);
  r = scuda_call(&c, reply, sizeof *reply, &len);
  if (!r && (len < sizeof reply->head || reply->head.tail_bytes > len - sizeof reply->head)) r = scuda_bad_reply(scuda_exports[i].name);
  return r;
}

static const void *union_of(const struct got *reply) { return (const uint8_t *)reply->head.params + offsetof(struct params, u); }

static int32_t kernel_params(uint64_t node, void *out, size_t bytes, uint32_t i) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  struct got reply;
  int32_t r = get(node, CU_GRAPH_NODE_TYPE_KERNEL, &reply, i);
  if (r) return r;
  struct kernel k;
  memcpy(&k, union_of(&reply), sizeof k);
  struct scuda_func *f = scuda_func(k.func ? k.func : k.kern);
  if (!f || reply.head.tail_bytes < f->param_bytes) return scuda_bad_reply(scuda_exports[i].name);
  k.params = k.extra = NULL;
  if (f->param_count) {
    size_t pointers = f->param_count * sizeof(void *);
    uint8_t *block = lend(node, pointers + f->param_bytes);
    if (!block) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(block + pointers, reply.tail, f->param_bytes);
    k.params = (void **)block;
    for (uint32_t n = 0; n < f->param_count; n++) k.params[n] = block + pointers + f->params[n].offset;
  }
  if (bytes == KERNEL_V1 && !k.func) k.func = k.kern;
  memcpy(out, &k, bytes);
  return r;
}
int32_t scuda_hand_cuGraphKernelNodeGetParams(uint64_t node, void *p) { return kernel_params(node, p, KERNEL_V1, I_cuGraphKernelNodeGetParams); }
int32_t scuda_hand_cuGraphKernelNodeGetParams_v2(uint64_t node, void *p) {
  return kernel_params(node, p, sizeof(struct kernel), I_cuGraphKernelNodeGetParams_v2);
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

struct host { void *fn, *user; };  /* CUDA_HOST_NODE_PARAMS */

/* Functions that graphs may call until the program ends, by registration: nodes that were captured or cloned know no more than that. */
static struct { struct host *list; uint64_t *ids; uint32_t count, cap; } functions;

uint64_t scuda_graph_function(void *fn, void *user) {
  uint64_t id = scuda_core.hostfn(fn, user, 0, 0, 1);
  scuda_lock(&lock);
  if (functions.count == functions.cap) {
    uint32_t cap = functions.cap ? 2 * functions.cap : 64;
    struct host *list = realloc(functions.list, cap * sizeof *list);
    if (list) functions.list = list;
    uint64_t *ids = list ? realloc(functions.ids, cap * sizeof *ids) : NULL;
    if (ids) functions.ids = ids, functions.cap = cap;
  }
  if (functions.count < functions.cap) {
    functions.list[functions.count] = (struct host){fn, user};
    functions.ids[functions.count++] = id;
  }
  scuda_unlock(&lock);
  return id;
}

static int function_of(uint64_t id, struct host *h) {
  scuda_lock(&lock);
  uint32_t i = functions.count;
  while (i && functions.ids[i - 1] != id) i--;
  if (i) *h = functions.list[i - 1];
  scuda_unlock(&lock);
  return i != 0;
}

static int32_t host_node_with(struct target t, const struct host *h, uint32_t flags) {
  int32_t r = check(&t);
  if (r) return r;
  if (!h || !h->fn) return CUDA_ERROR_INVALID_VALUE;
  struct params p = {.type = CU_GRAPH_NODE_TYPE_HOST};
  struct wire_graph_node_made made;
  r = send(&t, &p, flags, scuda_graph_function(h->fn, h->user), NULL, 0, &made, sizeof made);
  if (!r && t.verb != SET_EXEC) keep(node_of(&t), &(struct node){.keeps = KEEPS_HOST, .fn = h->fn, .user = h->user});
  return r;
}
static int32_t host_node(struct target t, const struct host *h) { return host_node_with(t, h, 0); }
int32_t scuda_hand_cuGraphAddHostNode(ADD_PARAMS, const void *p) { return host_node(ADDING(cuGraphAddHostNode), p); }
int32_t scuda_hand_cuGraphHostNodeSetParams(uint64_t node, const void *p) { return host_node(SETTING(cuGraphHostNodeSetParams), p); }
int32_t scuda_hand_cuGraphExecHostNodeSetParams(uint64_t exec, uint64_t node, const void *p) {
  return host_node(SETTING_EXEC(cuGraphExecHostNodeSetParams), p);
}
int32_t scuda_hand_cuGraphHostNodeGetParams(uint64_t node, void *out) {
  int32_t r = is(node, KIND_CUgraphNode), type = 0;
  if (!r && !out) r = CUDA_ERROR_INVALID_VALUE;
  if (r) return r;
  struct node n = kept(node);
  if (n.keeps == KEEPS_HOST) {
    *(struct host *)out = (struct host){n.fn, n.user};
    return CUDA_SUCCESS;
  }
  if ((r = scuda_wire_cuGraphNodeGetType(node, &type, 0))) return r;
  if (type != CU_GRAPH_NODE_TYPE_HOST) return CUDA_ERROR_INVALID_VALUE;
  struct got reply;
  if ((r = get(node, type, &reply, I_cuGraphHostNodeGetParams))) return r;
  struct host h;
  if (!function_of(scuda_word(union_of(&reply)), &h)) return scuda_bad_reply("cuGraphHostNodeGetParams");
  if (h.fn == (void *)scuda_copy3d_move) return CUDA_ERROR_INVALID_VALUE; /* a copy within host memory */
  *(struct host *)out = h;
  return CUDA_SUCCESS;
}

/* ---- copies: with host memory at one end, the bytes come and go when the graph runs ---- */

struct copy { int32_t flags, reserved; uint64_t ctx; struct scuda_copy3d copy3d; };  /* CUDA_MEMCPY_NODE_PARAMS */

static int32_t host_copy(const struct target *t, const struct copy *copy, uint32_t flags) {
  struct params p = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
  struct copy c = *copy;
  int up = scuda_copy3d_in_host(&c.copy3d.src);
  struct scuda_copy3d_side *host = up ? &c.copy3d.src : &c.copy3d.dst;
  uint64_t bytes = scuda_copy3d_straighten(host, &c.copy3d);
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  void *at = (void *)(uintptr_t)host->host;
  uint64_t id = up ? scuda_core.source(at, bytes, 1) : scuda_core.transfer(at, bytes, scuda_thread()->ordinal, 2);
  scuda_graph_host((uint32_t)id, up, at);
  memcpy(p.u, &c, sizeof c);
  struct wire_graph_node_made made;
  int32_t r = send(t, &p, flags | HOST_COPY, id, NULL, 0, &made, sizeof made);
  if (!r && t->verb != SET_EXEC) keep(node_of(t), &(struct node){.keeps = KEEPS_COPY, .copy3d = copy->copy3d});
  return r;
}

/* A copy within host memory: the function's description lives as long as graphs may call it, which is until the program ends. */
static int32_t copy_within_host(const struct target *t, const struct copy *c, uint32_t flags) {
  struct scuda_copy3d *b = malloc(sizeof *b);
  if (!b) return CUDA_ERROR_OUT_OF_MEMORY;
  *b = c->copy3d;
  if (!scuda_copy3d_straighten(&b->src, b) || !scuda_copy3d_straighten(&b->dst, b)) {
    free(b);
    return CUDA_ERROR_INVALID_VALUE;
  }
  int32_t r = host_node_with(*t, &(struct host){(void *)scuda_copy3d_move, b}, flags);
  if (r) free(b);
  else if (t->verb != SET_EXEC) keep(node_of(t), &(struct node){.keeps = KEEPS_COPY, .copy3d = c->copy3d});
  return r;
}

/* Which ends of a copy lie in host memory. */
static int host_ends(const struct scuda_copy3d *b) { return (scuda_copy3d_in_host(&b->src) ? 1 : 0) | (scuda_copy3d_in_host(&b->dst) ? 2 : 0); }

/* What a node is for the program, and what it copies where that is wanted. For the driver a copy with host memory is a small graph or a host function; a captured or cloned
 * one keeps nothing here, so the server is asked. */
static int32_t look(uint64_t node, int32_t *type, struct scuda_copy3d *copy3d, uint32_t i) {
  struct node n = kept(node);
  struct got reply;
  struct copy c;
  struct host h;
  *type = CU_GRAPH_NODE_TYPE_MEMCPY;
  if (copy3d) *copy3d = n.copy3d;
  if (n.keeps == KEEPS_COPY) return CUDA_SUCCESS;
  int32_t r = scuda_wire_cuGraphNodeGetType(node, type, 0);
  if (r || n.keeps != KEEPS_NOTHING) return r;
  if (*type == CU_GRAPH_NODE_TYPE_HOST) {
    if (!get(node, *type, &reply, i) && function_of(scuda_word(union_of(&reply)), &h) && h.fn == (void *)scuda_copy3d_move) {
      *type = CU_GRAPH_NODE_TYPE_MEMCPY;
      if (copy3d) *copy3d = *(struct scuda_copy3d *)h.user;
    }
    return CUDA_SUCCESS;
  }
  if (*type != CU_GRAPH_NODE_TYPE_GRAPH && (*type != CU_GRAPH_NODE_TYPE_MEMCPY || !copy3d)) return r;
  r = get(node, CU_GRAPH_NODE_TYPE_MEMCPY, &reply, i);
  if (r == CUDA_ERROR_INVALID_VALUE && *type == CU_GRAPH_NODE_TYPE_GRAPH) return CUDA_SUCCESS; /* a graph of the program's */
  if (r) return r;
  memcpy(&c, union_of(&reply), sizeof c);
  if (*type == CU_GRAPH_NODE_TYPE_GRAPH) {
    int up = c.copy3d.src.type == CU_MEMORYTYPE_HOST;
    struct scuda_copy3d_side *side = up ? &c.copy3d.src : &c.copy3d.dst;
    side->host = (uint64_t)(uintptr_t)scuda_graph_host_of((uint32_t)side->host, up);
    *type = CU_GRAPH_NODE_TYPE_MEMCPY;
  }
  if (copy3d) *copy3d = c.copy3d;
  return CUDA_SUCCESS;
}

/* In the bodies of conditional nodes the driver calls no function of the host. A copy there goes to or from the GPU's mirror of page-locked memory, as
 * kernels do: what the program wrote is there with the launch, what the copy brought with the next wait. */
enum { BODY = 1,               /* flags of a graph's slot */
       CLONED = 2 };           /* of a node's: what it was made of is not known here */
static _Atomic uint32_t bodies; /* whether there ever was any */

static int in_body(const struct target *t) {
  const struct scuda_slot *node = t->verb == ADD ? NULL : scuda_slot(t->node);
  const struct scuda_slot *graph = scuda_slot_of(node ? node->word[1] : t->graph, KIND_CUgraph);
  return graph && graph->flags & BODY;
}

/* 1: what is captured on the stream becomes part of a body. */
int scuda_captures_body(uint64_t stream, uint32_t ptds) {
  int32_t status = CU_STREAM_CAPTURE_STATUS_NONE;
  uint64_t graph = 0;
  if (!atomic_load(&bodies) || scuda_hand_cuStreamGetCaptureInfo_v2(stream, &status, NULL, &graph, NULL, NULL, ptds)) return 0;
  const struct scuda_slot *s = scuda_slot_of(graph, KIND_CUgraph);
  return s && s->flags & BODY;
}

/* The driver has made or changed the node of a copy that *c was; getters give back what the program said. */
static void copy_is(const struct target *t, const struct scuda_copy3d *c) {
  if (t->verb == SET_EXEC || !in_body(t)) return;
  keep(node_of(t), &(struct node){.keeps = host_ends(c) ? KEEPS_COPY : KEEPS_NOTHING, .copy3d = *c});
}

/* 1: *r is the answer; 0: the driver can do it alone, as *c says now. A node whose copy gets or loses host memory gets another node of the driver's; in an executable
 * graph what is copied may change, but not that. */
static int copy_node(const struct target *t, struct copy *c, int32_t *r) {
  scuda_copy3d_settle(&c->copy3d.src), scuda_copy3d_settle(&c->copy3d.dst);
  int ends = host_ends(&c->copy3d), old = ends;
  uint32_t flags = 0;
  if ((*r = check(t))) return 1;
  if (in_body(t)) {
    if (ends & 1) *r = scuda_copy3d_to_mirror(&c->copy3d.src, &c->copy3d, t->i);
    if (ends & 2 && !*r) *r = scuda_copy3d_to_mirror(&c->copy3d.dst, &c->copy3d, t->i);
    return *r != CUDA_SUCCESS;
  }
  if (t->verb != ADD && (ends || kept(t->node).keeps == KEEPS_COPY || t->node >= scuda_shared.server_base || scuda_slot(t->node)->flags & CLONED)) {
    struct scuda_copy3d copy3d;
    int32_t type;
    if (!(*r = look(t->node, &type, &copy3d, t->i)) && type != CU_GRAPH_NODE_TYPE_MEMCPY) *r = CUDA_ERROR_INVALID_VALUE;
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
    struct params p = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
    struct wire_graph_node_made made;
    memcpy(p.u, c, sizeof *c);
    if (!(*r = send(t, &p, flags, 0, NULL, 0, &made, sizeof made))) keep(t->node, &(struct node){.keeps = KEEPS_NOTHING});
  } else return 0;
  return 1;
}

int32_t scuda_hand_cuGraphAddMemcpyNode(ADD_PARAMS, const void *copy3d, uint64_t ctx) {
  if (!copy3d) return CUDA_ERROR_INVALID_VALUE;
  struct target t = ADDING(cuGraphAddMemcpyNode);
  struct copy c = {.ctx = ctx, .copy3d = *(const struct scuda_copy3d *)copy3d};
  int32_t r = ctx ? scuda_check(ctx, KIND_CUcontext) : CUDA_SUCCESS;
  if (r || copy_node(&t, &c, &r)) return r;
  if ((r = scuda_wire_cuGraphAddMemcpyNode(out, graph, deps, count, &c.copy3d, ctx, 0))) return r;
  link_node(graph, *out);
  copy_is(&t, copy3d);
  return r;
}
int32_t scuda_hand_cuGraphMemcpyNodeSetParams(uint64_t node, const void *copy3d) {
  if (!copy3d) return CUDA_ERROR_INVALID_VALUE;
  struct target t = SETTING(cuGraphMemcpyNodeSetParams);
  struct copy c = {.copy3d = *(const struct scuda_copy3d *)copy3d};
  int32_t r;
  if (copy_node(&t, &c, &r)) return r;
  if (!(r = scuda_wire_cuGraphMemcpyNodeSetParams(node, &c.copy3d, 0))) copy_is(&t, copy3d);
  return r;
}
int32_t scuda_hand_cuGraphExecMemcpyNodeSetParams(uint64_t exec, uint64_t node, const void *copy3d, uint64_t ctx) {
  if (!copy3d) return CUDA_ERROR_INVALID_VALUE;
  struct target t = SETTING_EXEC(cuGraphExecMemcpyNodeSetParams);
  struct copy c = {.ctx = ctx, .copy3d = *(const struct scuda_copy3d *)copy3d};
  int32_t r = ctx ? scuda_check(ctx, KIND_CUcontext) : CUDA_SUCCESS;
  if (r || copy_node(&t, &c, &r)) return r;
  return scuda_wire_cuGraphExecMemcpyNodeSetParams(exec, node, &c.copy3d, ctx, 0);
}
int32_t scuda_hand_cuGraphMemcpyNodeGetParams(uint64_t node, void *out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  struct scuda_copy3d copy3d;
  int32_t type, r = is(node, KIND_CUgraphNode);
  if (!r && !(r = look(node, &type, &copy3d, I_cuGraphMemcpyNodeGetParams)) && type != CU_GRAPH_NODE_TYPE_MEMCPY) r = CUDA_ERROR_INVALID_VALUE;
  if (!r) memcpy(out, &copy3d, sizeof copy3d);
  return r;
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
  if (!graph || look(node, &type, NULL, I_cuGraphChildGraphNodeGetGraph) || type != CU_GRAPH_NODE_TYPE_MEMCPY) return 0;
  *r = CUDA_ERROR_INVALID_VALUE;
  return 1;
}

int scuda_pre_cuGraphNodeGetType(uint64_t node, int32_t *type, int32_t *r) {
  int32_t found;
  if (!type || is(node, KIND_CUgraphNode)) return 0;
  if (!(*r = look(node, &found, NULL, I_cuGraphNodeGetType))) *type = found;
  return 1;
}

/* ---- memory of graphs ---- */

struct access { struct scuda_location location; int32_t flags; };
struct alloc {             /* CUDA_MEM_ALLOC_NODE_PARAMS */
  int32_t alloc_type, handle_types;
  struct scuda_location location;
  uint64_t pool_rest[9];
  struct access *access;
  uint64_t access_count, bytes, address;
};
_Static_assert(sizeof(struct alloc) == 120 && sizeof(struct access) == ACCESS_BYTES, "layout of CUDA_MEM_ALLOC_NODE_PARAMS");

static void locate(struct scuda_location *l, int32_t (*translate)(int32_t)) {
  if (l->type == CU_MEM_LOCATION_TYPE_DEVICE) l->id = translate(l->id);
}
static int32_t to_server(int32_t device) { return scuda_to_server(device); }

static int32_t alloc_node(struct target t, struct alloc *a) {
  int32_t r = check(&t);
  if (r) return r;
  if (!a || a->access_count > ACCESS_MAX || (a->access_count && !a->access)) return CUDA_ERROR_INVALID_VALUE;
  if ((r = scuda_elsewhere(t.i, a->alloc_type, &a->location))) return r;
  struct alloc w = *a;
  struct access list[ACCESS_MAX];
  for (uint64_t n = 0; n < a->access_count; n++) {
    list[n] = a->access[n];
    locate(&list[n].location, to_server);
  }
  locate(&w.location, to_server);
  w.access = NULL;
  struct params p = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
  memcpy(p.u, &w, sizeof w);
  struct wire_graph_node_made made;
  r = send(&t, &p, 0, 0, list, (uint32_t)(a->access_count * ACCESS_BYTES), &made, sizeof made);
  if (r || t.verb != ADD) return r;
  a->address = made.address;
  keep(*t.out, &(struct node){.keeps = KEEPS_ALLOC});
  scuda_device_range_add(made.address, a->bytes, SCUDA_RANGE_OTHER | SCUDA_RANGE_GRAPH, *t.out);
  return r;
}
int32_t scuda_hand_cuGraphAddMemAllocNode(ADD_PARAMS, void *p) { return alloc_node(ADDING(cuGraphAddMemAllocNode), p); }

int32_t scuda_hand_cuGraphMemAllocNodeGetParams(uint64_t node, void *out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  struct got reply;
  int32_t r = get(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &reply, I_cuGraphMemAllocNodeGetParams);
  if (r) return r;
  struct alloc a;
  memcpy(&a, union_of(&reply), sizeof a);
  if (reply.head.tail_bytes != a.access_count * ACCESS_BYTES) return scuda_bad_reply("cuGraphMemAllocNodeGetParams");
  locate(&a.location, scuda_from_server);
  a.access = NULL;
  if (a.access_count) {
    if (!(a.access = lend(node, reply.head.tail_bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(a.access, reply.tail, reply.head.tail_bytes);
    for (uint64_t n = 0; n < a.access_count; n++) locate(&a.access[n].location, scuda_from_server);
  }
  memcpy(out, &a, sizeof a);
  return r;
}

/* ---- batches of memory operations ---- */

struct batch { uint64_t ctx; uint32_t count, pad; void *ops; uint32_t flags, pad2; };  /* CUDA_BATCH_MEM_OP_NODE_PARAMS */
enum { BATCH_MAX = 512, OPERATION_BYTES = 48 };                                        /* CUstreamBatchMemOpParams */

static int32_t batch_node(struct target t, const struct batch *b) {
  int32_t r = check(&t);
  if (r) return r;
  if (!b || (b->count && !b->ops) || b->count > BATCH_MAX) return CUDA_ERROR_INVALID_VALUE;
  if ((r = is(b->ctx, KIND_CUcontext))) return r;
  struct params p = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
  struct batch w = *b;
  w.ops = NULL;
  memcpy(p.u, &w, sizeof w);
  struct wire_graph_node_made made;
  return send(&t, &p, 0, 0, b->ops, b->count * OPERATION_BYTES, &made, sizeof made);
}
int32_t scuda_hand_cuGraphAddBatchMemOpNode(ADD_PARAMS, const void *p) { return batch_node(ADDING(cuGraphAddBatchMemOpNode), p); }
int32_t scuda_hand_cuGraphBatchMemOpNodeSetParams(uint64_t node, const void *p) { return batch_node(SETTING(cuGraphBatchMemOpNodeSetParams), p); }
int32_t scuda_hand_cuGraphExecBatchMemOpNodeSetParams(uint64_t exec, uint64_t node, const void *p) {
  return batch_node(SETTING_EXEC(cuGraphExecBatchMemOpNodeSetParams), p);
}
int32_t scuda_hand_cuGraphBatchMemOpNodeGetParams(uint64_t node, void *out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  struct got reply;
  int32_t r = get(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, &reply, I_cuGraphBatchMemOpNodeGetParams);
  if (r) return r;
  struct batch b;
  memcpy(&b, union_of(&reply), sizeof b);
  if (reply.head.tail_bytes != (uint64_t)b.count * OPERATION_BYTES) return scuda_bad_reply("cuGraphBatchMemOpNodeGetParams");
  if (!(b.ops = lend(node, reply.head.tail_bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
  memcpy(b.ops, reply.tail, reply.head.tail_bytes);
  memcpy(out, &b, sizeof b);
  return r;
}

/* ---- conditional nodes ---- */

struct conditional { uint64_t handle; int32_t type; uint32_t size; uint64_t *graphs; uint64_t ctx; };  /* CUDA_CONDITIONAL_NODE_PARAMS */

static int32_t conditional(const struct target *t, struct conditional *k) {
  int32_t r = k->ctx ? scuda_check(k->ctx, KIND_CUcontext) : CUDA_SUCCESS;
  if (r) return r;
  if (k->size > GRAPHS_MAX) return CUDA_ERROR_INVALID_VALUE;
  struct params p = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
  struct conditional w = *k;
  w.graphs = NULL;
  memcpy(p.u, &w, sizeof w);
  if (t->verb != ADD) return send_simple(t, &p); /* the driver says whether a node may become that; its bodies stay */
  uint32_t bytes = (uint32_t)(sizeof(struct wire_graph_node_made) + 8 * k->size);
  struct wire_graph_node_made *made = calloc(1, bytes);
  uint64_t *graphs = calloc(k->size + 1, 8);
  r = made && graphs ? send(t, &p, 0, 0, NULL, 0, made, bytes) : CUDA_ERROR_OUT_OF_MEMORY;
  if (!r) {
    uint32_t n = made->graphs < k->size ? made->graphs : k->size;
    memcpy(graphs, made + 1, 8 * (size_t)n);
    for (uint32_t i = 0; i < n; i++) {
      scuda_adopt(graphs[i], KIND_CUgraph);
      if (scuda_slot_of(graphs[i], KIND_CUgraph)) scuda_slot(graphs[i])->flags = BODY;
    }
    atomic_store(&bodies, 1);
    scuda_lock(&lock);
    struct node *d = node_data(*t->out);
    if (d) {
      d->graphs = graphs;
      d->graph_count = n;
      k->graphs = graphs;
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

static int32_t general(struct target t, struct params *p) {
  t.general = 1;
  int32_t r = check(&t);
  if (r) return r;
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  uint64_t ctx = 0;
  struct params changed;
  switch (p->type) {
  case CU_GRAPH_NODE_TYPE_KERNEL:
    return kernel(t, p->u, sizeof(struct kernel));
  case CU_GRAPH_NODE_TYPE_HOST:
    return host_node(t, (const struct host *)p->u);
  case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    return alloc_node(t, (struct alloc *)p->u);
  case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
    return batch_node(t, (const struct batch *)p->u);
  case CU_GRAPH_NODE_TYPE_CONDITIONAL:
    return conditional(&t, (struct conditional *)p->u);
  case CU_GRAPH_NODE_TYPE_MEMCPY:
    ctx = ((const struct copy *)p->u)->ctx;
    if (ctx && (r = scuda_check(ctx, KIND_CUcontext))) return r;
    changed = *p;
    if (copy_node(&t, (struct copy *)changed.u, &r)) return r;
    if (!(r = send_simple(&t, &changed))) copy_is(&t, &((const struct copy *)p->u)->copy3d);
    return r;
  case CU_GRAPH_NODE_TYPE_MEMSET:
    ctx = p->u[5];
    if (ctx && (r = scuda_check(ctx, KIND_CUcontext))) return r;
    break;
  case CU_GRAPH_NODE_TYPE_GRAPH:
    if ((r = is(p->u[0], KIND_CUgraph))) return r;
    break;
  case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
  case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    if ((r = is(p->u[0], KIND_CUevent))) return r;
    scuda_event_elsewhere(p->u[0]);
    break;
  case CU_GRAPH_NODE_TYPE_EMPTY:
  case CU_GRAPH_NODE_TYPE_MEM_FREE:
    break;
  default:
    return scuda_refuse(t.i, PART_semaphores);
  }
  return send_simple(&t, p);
}
int32_t scuda_hand_cuGraphAddNode(ADD_PARAMS, void *p) { return general(ADDING(cuGraphAddNode), p); }
int32_t scuda_hand_cuGraphAddNode_v2(uint64_t *out, uint64_t graph, const uint64_t *deps, const void *edges, uint64_t count, void *p) {
  struct target t = ADDING(cuGraphAddNode_v2);
  t.edges = count ? edges : NULL;
  return general(t, p);
}
int32_t scuda_hand_cuGraphNodeSetParams(uint64_t node, void *p) { return general(SETTING(cuGraphNodeSetParams), p); }
int32_t scuda_hand_cuGraphExecNodeSetParams(uint64_t exec, uint64_t node, void *p) { return general(SETTING_EXEC(cuGraphExecNodeSetParams), p); }
