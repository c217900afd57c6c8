/* How communicators begin: by an id, or as parts of others. What begins within a group begins with its end, and ranks
 * of different devices wait for each other then. So each gets a thread of its own, but that parts of one communicator
 * are made one after the other, as all of its ranks ask for them.
 */
#define _GNU_SOURCE
#include "nccl.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The calling thread's context and device; where there is none yet, as in the runtime, the first device's primary one.
 */
static int current(uint64_t *context, int *device) {
  int (*get)(void *) = (int (*)(void *))(void *)nccl_driver("cuCtxGetCurrent");
  int (*set)(uint64_t) = (int (*)(uint64_t))(void *)nccl_driver("cuCtxSetCurrent");
  int (*retain)(void *, int) = (int (*)(void *, int))(void *)nccl_driver("cuDevicePrimaryCtxRetain");
  int (*of)(void *) = (int (*)(void *))(void *)nccl_driver("cuCtxGetDevice");
  *context = 0;
  int r = get(context);
  if (!r && !*context && !(r = retain(context, 0))) r = set(*context);
  return r ? r : of(device);
}

static int out_of_memory(void) { return nccl_note(nccl_failed(ncclSystemError, "out of memory")); }

/* ---- the configuration ---- */

/* ncclConfig_t as release 2.27 has it; programs may bring less of it, or more. */
struct config {
  size_t size;
  uint32_t magic, version;
  int32_t blocking, cluster_size, min_ctas, max_ctas;
  const char *net;
  int32_t split_share, traffic_class;
  const char *name;
  int32_t collnet, cta_policy, shrink_share, nvls_ctas;
};

/* A release takes what it knew; the rest of the structure may be anything. */
static size_t known_bytes(const struct config *c) {
  size_t n = c->version < 21700 ? offsetof(struct config, cluster_size) :
             c->version < 21800 ? offsetof(struct config, split_share) :
             c->version < 22500 ? offsetof(struct config, traffic_class) :
             c->version < 22700 ? offsetof(struct config, name) : sizeof *c;
  return n < c->size ? n : c->size;
}

/* What the server is to know of a configuration, and the communicator's name; 0, or what is wrong. A communicator that
 * does not block may finish its calls at once, so here it is one that does. */
static int read_config(const void *from, struct wire_nccl_config *to, const char **name) {
  struct config c = {.cluster_size = INT_MIN, .min_ctas = INT_MIN, .max_ctas = INT_MIN, .split_share = INT_MIN,
                     .collnet = INT_MIN, .cta_policy = INT_MIN, .shrink_share = INT_MIN, .nvls_ctas = INT_MIN};
  struct config head = {0};
  memset(to, 0, sizeof *to);
  *name = "";
  if (!from) return ncclSuccess;
  memcpy(&head, from, offsetof(struct config, blocking));
  if (head.magic != 0xcafebeef || head.size < offsetof(struct config, blocking))
    return nccl_failed(ncclInvalidArgument, "the configuration was not initialised");
  memcpy(&c, from, known_bytes(&head));
  to->given = 1;
  to->hints[WIRE_NCCL_HINT_CLUSTER_SIZE] = c.cluster_size;
  to->hints[WIRE_NCCL_HINT_MIN_CTAS] = c.min_ctas;
  to->hints[WIRE_NCCL_HINT_MAX_CTAS] = c.max_ctas;
  to->hints[WIRE_NCCL_HINT_SPLIT_SHARE] = c.split_share;
  to->hints[WIRE_NCCL_HINT_COLLNET] = c.collnet;
  to->hints[WIRE_NCCL_HINT_CTA_POLICY] = c.cta_policy;
  to->hints[WIRE_NCCL_HINT_SHRINK_SHARE] = c.shrink_share;
  to->hints[WIRE_NCCL_HINT_NVLS_CTAS] = c.nvls_ctas;
  if (c.name) *name = c.name;
  to->name_bytes = (uint32_t)strnlen(*name, WIRE_MAX_NCCL_NAME);
  if (!c.net) return ncclSuccess;
  if (strcasecmp(c.net, "Socket") && strcasecmp(c.net, "IB"))
    return nccl_failed(ncclInvalidArgument, "netName can be Socket or IB; others are for the servers to choose");
  to->net = strcasecmp(c.net, "IB") ? WIRE_NCCL_NET_SOCKETS : WIRE_NCCL_NET_INFINIBAND;
  return ncclSuccess;
}

/* ---- one that begins ---- */

struct nccl_start {
  struct nccl_start *next;
  void **made;                 /* the program's place for the handle */
  struct nccl_comm *comm;      /* NULL once it is the program's */
  uint64_t parent;             /* 0: none */
  uint32_t op, bytes;
  int result;
  pthread_t thread;
  uint8_t payload[];
};

/* A new one whose message is a head, a list, a configuration and another list, then the name. */
static struct nccl_start *new_start(void **made, uint32_t op, size_t room) {
  static _Atomic uint64_t last_number;
  struct nccl_start *s = calloc(1, sizeof *s + room);
  if (s && !(s->comm = calloc(1, sizeof *s->comm))) {
    free(s);
    s = NULL;
  }
  if (!s) return NULL;
  s->made = made;
  s->op = op;
  s->comm->number = atomic_fetch_add(&last_number, 1) + 1;
  return s;
}

static void put(struct nccl_start *s, const void *p, size_t n) {
  if (n) memcpy(s->payload + s->bytes, p, n);
  s->bytes += (uint32_t)n;
}

static void end(struct nccl_start *s) {
  free(s->comm);
  free(s);
}

static int begin(struct nccl_start *s) {
  struct { struct wire_nccl_part head; char text[NCCL_TEXT]; } part = {0};
  struct nccl_answer a;
  uint32_t got = 0;
  if (s->op == OP_NCCL_INIT) {
    int r = nccl_ask(s->op, s->comm->server, s->comm->context, s->payload, s->bytes, &a);
    if (r) return r;
  } else {
    int32_t r = nccl_front->ask(s->op, s->comm->server, s->comm->context, s->payload, s->bytes, &part, sizeof part - 1,
                                &got);
    if (r) return nccl_answered(r, NULL, 0);
    if (got < sizeof part.head) return nccl_failed(ncclInternalError, "the server's answer is malformed");
    if (part.head.result) return nccl_failed(part.head.result, part.text);
    if (part.head.rank < 0) return ncclSuccess; /* no part of it is this rank's */
    s->comm->rank = part.head.rank;
    s->comm->ranks = part.head.ranks;
  }
  nccl_remember(s->comm);
  *s->made = s->comm;
  s->comm = NULL;
  return ncclSuccess;
}

/* Those of one parent, from this on. */
static void *begin_all_of(void *argument) {
  struct nccl_start *first = argument;
  for (struct nccl_start *s = first; s; s = first->parent ? s->next : NULL)
    if (s->parent == first->parent) s->result = begin(s);
  return NULL;
}

static int is_first(const struct nccl_start *list, const struct nccl_start *s) {
  for (; s->parent && list != s; list = list->next)
    if (list->parent == s->parent) return 0;
  return 1;
}

int nccl_begin(struct nccl_start *list) {
  int r = ncclSuccess;
  struct nccl_start *next;
  if (list && !list->next) begin_all_of(list);
  else
    for (struct nccl_start *s = list; s; s = s->next) {
      if (!is_first(list, s)) continue;
      s->thread = 0;
      if (pthread_create(&s->thread, NULL, begin_all_of, s)) {
        s->thread = 0;
        r = nccl_failed(ncclSystemError, "no thread for a communicator");
      }
    }
  for (struct nccl_start *s = list; s; s = s->next)
    if (s->thread) pthread_join(s->thread, NULL);
  for (struct nccl_start *s = list; s; s = next) {
    next = s->next;
    if (!r) r = s->result;
    end(s);
  }
  return r;
}

void nccl_drop(struct nccl_start *list) {
  while (list) {
    struct nccl_start *next = list->next;
    end(list);
    list = next;
  }
}

/* Now, or with the group's end. */
static int go(struct nccl_start *s) { return nccl_defer(s) ? ncclSuccess : nccl_begin(s); }

void nccl_append(struct nccl_start **list, struct nccl_start *s) {
  while (*list) list = &(*list)->next;
  *list = s;
}

/* ---- by an id ---- */

static int start_in(uint64_t context, int device, void **comm, int ranks, int rank, const ncclUniqueId *ids, int count,
                    const void *config) {
  struct wire_nccl_init m = {.ranks = ranks, .rank = rank, .ids = (uint32_t)count};
  struct wire_nccl_config hints;
  const char *name;
  int r = read_config(config, &hints, &name);
  if (r) return nccl_note(r);
  struct nccl_start *s =
      new_start(comm, OP_NCCL_INIT, sizeof m + (size_t)count * sizeof *ids + sizeof hints + hints.name_bytes);
  if (!s) return out_of_memory();
  s->comm->context = context;
  s->comm->server = nccl_front->server_of(context);
  s->comm->device = device;
  s->comm->rank = rank;
  s->comm->ranks = ranks;
  m.comm = s->comm->number;
  put(s, &m, sizeof m);
  put(s, ids, (size_t)count * sizeof *ids);
  put(s, &hints, sizeof hints);
  put(s, name, hints.name_bytes);
  return go(s);
}

static int start(void **comm, int ranks, int rank, const ncclUniqueId *ids, int count, const void *config) {
  uint64_t context;
  int device;
  if (!comm || ranks < 1 || rank < 0 || rank >= ranks)
    return nccl_note(nccl_failed(ncclInvalidArgument, "no place for the communicator, or no such rank"));
  *comm = NULL;
  if (!ids || count < 1 || count > ranks || count > WIRE_MAX_NCCL_IDS)
    return nccl_note(nccl_failed(ncclInvalidArgument, "no ids, or more than ranks, or more than 1024"));
  int r = current(&context, &device);
  return r ? nccl_note(nccl_answered(r, NULL, 0)) : start_in(context, device, comm, ranks, rank, ids, count, config);
}

int own_ncclCommInitRank(void *comm, int ranks, ncclUniqueId id, int rank) {
  return start(comm, ranks, rank, &id, 1, NULL);
}
int own_ncclCommInitRankConfig(void *comm, int ranks, ncclUniqueId id, int rank, void *config) {
  return start(comm, ranks, rank, &id, 1, config);
}
int own_ncclCommInitRankScalable(void *comm, int ranks, int rank, int count, void *ids, void *config) {
  return start(comm, ranks, rank, ids, count, config);
}

/* All ranks of a communicator, one a device. */
int own_ncclCommInitAll(void *comms, int count, const void *devices) {
  int (*retain)(void *, int) = (int (*)(void *, int))(void *)nccl_driver("cuDevicePrimaryCtxRetain");
  const int *list = devices;
  ncclUniqueId id;
  if (!comms || count < 1) return nccl_note(nccl_failed(ncclInvalidArgument, "no place for the communicators"));
  int r = own_ncclGetUniqueId(&id);
  if (r) return nccl_note(r);
  own_ncclGroupStart();
  for (int i = 0; i < count && !r; i++) {
    uint64_t context = 0;
    int device = list ? list[i] : i, got = retain(&context, device);
    ((void **)comms)[i] = NULL;
    r = got ? nccl_note(nccl_answered(got, NULL, 0)) :
              start_in(context, device, (void **)comms + i, count, i, &id, 1, NULL);
  }
  int ended = own_ncclGroupEnd();
  return r ? r : ended;
}

/* ---- as a part of another one ---- */

static int part(void *parent, void **made, uint32_t verb, int color, int key, const int *excluded, int count,
                const void *config) {
  struct wire_nccl_split m = {.verb = verb, .color = color, .key = key, .excluded = (uint32_t)count};
  struct wire_nccl_config hints;
  struct nccl_comm of;
  const char *name;
  if (!nccl_comm_of(parent, &of)) return nccl_note(nccl_bad_comm());
  if (!made) return nccl_note(nccl_failed(ncclInvalidArgument, "no place for the communicator"));
  *made = NULL;
  int r = read_config(config, &hints, &name);
  if (r) return nccl_note(r);
  size_t list = (size_t)count * sizeof *excluded;
  struct nccl_start *s = new_start(made, OP_NCCL_SPLIT, sizeof m + sizeof hints + list + hints.name_bytes);
  if (!s) return out_of_memory();
  s->comm->context = of.context;
  s->comm->server = of.server;
  s->comm->device = of.device;
  s->parent = m.comm = of.number;
  m.made = s->comm->number;
  put(s, &m, sizeof m);
  put(s, &hints, sizeof hints);
  put(s, excluded, list);
  put(s, name, hints.name_bytes);
  return go(s);
}

int own_ncclCommSplit(void *comm, int color, int key, void *made, void *config) {
  if (color < -1) return nccl_note(nccl_failed(ncclInvalidArgument, "a colour is not negative, or NCCL_SPLIT_NOCOLOR"));
  return part(comm, made, WIRE_NCCL_SPLIT_SPLIT, color, key, NULL, 0, config);
}
int own_ncclCommShrink(void *comm, void *excluded, int count, void *made, void *config, int flags) {
  if (!excluded || count < 1 || count > WIRE_MAX_NCCL_EXCLUDED || flags & ~1)
    return nccl_note(nccl_failed(ncclInvalidArgument, "no ranks to leave out, or a flag that is none"));
  return part(comm, made, flags ? WIRE_NCCL_SPLIT_SHRINK_ABORT : WIRE_NCCL_SPLIT_SHRINK, 0, 0, excluded, count, config);
}
