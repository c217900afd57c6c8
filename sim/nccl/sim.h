/* The simulated libnccl.so.2: collectives of processes over sockets of this machine, for the simulated driver (and any
 * other: it uses copies, host functions and events of the driver in the process). It waits where NVIDIA's waits: a
 * communicator begins when all ranks have come, and the first collective, or the first transfer between two ranks,
 * returns when those that it is made with have called it.
 *
 * All collectives go over rank 0, which reduces in the order of the ranks, so that every rank has the same bits.
 *
 * Locks: a communicator's lock guards its jobs and its state; it is held for moments. Calls for one communicator come
 * one at a time, but for ncclCommAbort and ncclCommGetAsyncError.
 */
#ifndef SCUDA_SIM_NCCL_H
#define SCUDA_SIM_NCCL_H
#include "nccl_gen.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum { ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };

struct link { int fd, agreed; }; /* agreed: both ranks have made the call that it was made for */
struct peer {
  struct sockaddr_in address;  /* where it listens */
  struct link star;            /* for collectives, between rank 0 and each */
  struct link to, from;        /* for transfers */
};

struct operation {
  int function, type, op, peer;
  size_t count, in_bytes, out_bytes;
  uint64_t send, recv;
  void *stream;
  const struct reduction *own; /* of the program's own; NULL: one of NCCL's */
  uint8_t *in, *out, *scalar;  /* page-locked */
};

struct reduction { int used, type, on_device; uint64_t scalar; }; /* its address, or its bytes */
enum { REDUCTIONS = 64 };

struct job {                   /* the operations of one group for one communicator */
  struct job *next;
  struct comm *comm;
  uint64_t ticket;
  int count, over;
  struct operation *list;
  uint8_t *memory;             /* page-locked */
  size_t room;
};

struct comm {
  int rank, ranks, device, listener;
  int wake[2];                 /* a pipe: readable once the communicator was aborted */
  void *context;               /* the driver's, in which it began */
  struct peer *peers;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  uint64_t issued, done;       /* jobs run one behind the other */
  struct job *jobs;
  int state;                   /* ncclResult_t: the asynchronous error */
  _Atomic int aborted;
  struct reduction own[REDUCTIONS];
};

/* ---- the way to others (net.c) ---- */
int sim_unique_id(ncclUniqueId *id);
int sim_meet(struct comm *c, const ncclUniqueId *id); /* waits for all ranks */
/* A rank's word for all that take part, which bring theirs: where is by rank. */
int sim_exchange(struct comm *c, const uint8_t *takes_part, const void *mine, void *all, size_t bytes);
int sim_listen(struct comm *c, struct sockaddr_in *address);
int sim_connect(struct comm *c, const struct operation *list, int count); /* all that these need; waits for them */
int sim_write(struct comm *c, int fd, const void *p, size_t n); /* 0, or ncclResult_t */
int sim_read(struct comm *c, int fd, void *p, size_t n);
int sim_transfer(struct comm *c, struct operation *list, int count); /* all SEND and RECV of a list */
void sim_close(struct comm *c);

/* ---- collectives (reduce.c) ---- */
extern const uint8_t sim_element_bytes[NCCL_TYPES];
int sim_collective(struct comm *c, struct operation *o);
int sim_reduces(int type);     /* there is a reduction of the type */
#endif
