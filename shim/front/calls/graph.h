/* Nodes of graphs that are made by hand: what graph.c and graph_copy.c share. */
#ifndef SCUDA_GRAPH_H
#define SCUDA_GRAPH_H
#include "calls/calls.h"

enum { ADD = WIRE_GRAPH_VERB_ADD, SET = WIRE_GRAPH_VERB_SET, SET_EXEC = WIRE_GRAPH_VERB_SET_EXEC };
enum {
  GENERAL = WIRE_GRAPH_NODE_GENERAL, EDGES = WIRE_GRAPH_NODE_EDGES, HOST_COPY = WIRE_GRAPH_NODE_HOST_COPY,
  REPLACE = WIRE_GRAPH_NODE_REPLACE
};
enum { DEPENDENCIES_MAX = 1 << 15, ACCESS_MAX = 256, GRAPHS_MAX = 1 << 14 };
enum { BODY = 1,               /* flags of a graph's slot */
       CLONED = 2 };           /* of a node's: what it was made of is not known here */
extern _Atomic uint32_t scuda_graph_bodies; /* whether there ever was any body */

/* ---- what nodes keep ---- */

enum keeps { KEEPS_NOTHING, KEEPS_HOST, KEEPS_COPY, KEEPS_ALLOC };
struct node {              /* data of a node's slot */
  enum keeps keeps;        /* only nodes that this process made keep something */
  void *fn, *user;         /* of a host function */
  struct scuda_copy3d copy3d;    /* of a copy with host memory at one end */
  uint64_t *graphs;        /* bodies of a conditional node; the array is the program's to read */
  uint32_t graph_count;
  void *lent;              /* what getters point to */
  uint64_t lent_bytes;
  struct taken *taken;     /* see graph_exec.c */
};
/* A graph has a node that got its handle here. */
void scuda_node_link(uint64_t graph, uint64_t node);
/* Remembers what a getter gives back. */
void scuda_node_keep(uint64_t handle, const struct node *what);
struct node scuda_node_kept(uint64_t handle);
/* What a node keeps, for as long as it is locked; NULL: nothing, or (make) no memory. */
struct node *scuda_node_lock(uint64_t handle, int make);
void scuda_node_unlock(void);
/* Memory that lives as long as the node, until its parameters get another size. */
void *scuda_node_lend(uint64_t handle, uint64_t bytes);

/* ---- adding and changing ---- */

_Static_assert(sizeof((struct wire_graph_node *)0)->params == sizeof(struct CUgraphNodeParams_st),
               "CUgraphNodeParams in a message");

struct target {            /* what a call is about; i is the export's index */
  uint32_t verb, general, i;
  int sure;                /* the driver takes it: there is no answer */
  uint64_t *out;
  uint64_t graph, exec, node;
  const uint64_t *deps;
  const void *edges;
  uint64_t count;
};
#define ADDING(call) \
  (struct target){.verb = ADD, .i = I_##call, .out = out, .graph = graph, .deps = deps, .count = count}
#define SETTING(call) (struct target){.verb = SET, .i = I_##call, .node = node}
#define SETTING_EXEC(call) (struct target){.verb = SET_EXEC, .i = I_##call, .exec = exec, .node = node}
#define ADD_PARAMS uint64_t *out, uint64_t graph, const uint64_t *deps, uint64_t count

static inline int32_t is(uint64_t handle, uint32_t kind) {
  return handle ? scuda_check(handle, kind) : CUDA_ERROR_INVALID_VALUE;
}
static inline uint64_t node_of(const struct target *t) { return t->verb == ADD ? *t->out : t->node; }
int32_t scuda_node_check(const struct target *t);
/* Sends the call. reply has room for the body graphs of a conditional node behind it. */
int32_t scuda_node_send(const struct target *t, const struct CUgraphNodeParams_st *params, uint32_t flags,
                        uint64_t host, const void *tail,
                        uint32_t tail_bytes, struct wire_graph_node_made *reply, uint32_t reply_bytes);
int32_t scuda_node_send_simple(const struct target *t, const struct CUgraphNodeParams_st *params);

/* Asks for a node's parameters. What is behind them is in reply->tail. */
struct got { struct wire_graph_node_params head; uint8_t tail[SCUDA_PARAMS_MAX]; };
int32_t scuda_node_get(uint64_t node, int32_t type, struct got *reply, uint32_t i);
static inline const void *union_of(const struct got *reply) {
  return (const uint8_t *)reply->head.params + offsetof(struct CUgraphNodeParams_st, reserved1);
}

/* ---- host functions; a copy within host memory is one of ours ---- */

int32_t scuda_host_node_with(struct target t, const struct CUDA_HOST_NODE_PARAMS_st *h, uint32_t flags);
/* The function of a registration; 0: it is not known. */
int scuda_graph_function_of(uint64_t id, struct CUDA_HOST_NODE_PARAMS_st *h);

/* ---- copies (graph_copy.c) ---- */

/* Adds or changes a copy's node where the driver cannot; 1: it has, with the result *r. */
int scuda_copy_node(const struct target *t, struct CUDA_MEMCPY_NODE_PARAMS_st *c, int32_t *r);
/* The node is this copy now, which the driver has. */
void scuda_copy_node_is(const struct target *t, const struct scuda_copy3d *c);
/* ---- changes of executable graphs that need no answer (graph_exec.c) ---- */

struct change {
  const void *shape;       /* the caller's; NULL: nothing is known of such changes */
  uint32_t bytes;
  int sure;                /* the driver took one like it, and nothing has happened since that it could refuse it for */
  uint64_t epoch;          /* in which it began */
};
/* A change of a node that is about to be made. */
struct change scuda_change(const struct target *t, const void *shape, uint32_t bytes);
/* The change was made, with that result, which it gives; what the driver took is remembered. */
int32_t scuda_changed(const struct target *t, const struct change *c, int32_t r);
int32_t scuda_change_copy(uint64_t exec, uint64_t node, const struct scuda_copy3d *copy, uint64_t ctx);

/* What a node is for the program, and of a copy what it copies. */
int32_t scuda_node_look(uint64_t node, int32_t *type, struct scuda_copy3d *copy3d, uint32_t i);
#endif
