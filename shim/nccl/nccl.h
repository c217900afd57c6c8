/* libnccl.so.2: NCCL for programs whose GPU is at a server. Collectives and what belongs to them go to the server,
 * whose worker has NVIDIA's carry them out; the rest is exported and refused by name. In a process without a session of
 * scuda, and where the server does not carry NCCL out, every call goes to the program's own NCCL (entry.c).
 *
 * Locks: none is held while the server is asked, but the one that decides where calls go.
 */
#ifndef SCUDA_NCCL_H
#define SCUDA_NCCL_H
#include "base/common.h"
#include "base/collective.h"
#include "gen/wire_gen.h"
#include "gen/cuda_gen.h"
#include "nccl_gen.h"

#define NCCL_EXPORT __attribute__((visibility("default")))

typedef void (*nccl_fn)(void);
extern const char *const nccl_names[NCCL_FUNCTIONS]; /* with a p before them, as profilers call them */

/* ---- where a call goes (entry.c) ---- */
nccl_fn nccl_route(uint32_t function, uint32_t second, const void *caller); /* NULL: to us */
int nccl_refused(uint32_t function);       /* ncclInvalidUsage, which is logged once */
/* likewise, of something that a function was asked for */
int nccl_refused_part(_Atomic uint8_t *said, uint32_t function, const char *what);
extern const struct scuda_collective_table *nccl_front; /* once a call has come to us */
extern uint32_t nccl_version;              /* of the server's NCCL; 0: not known */
nccl_fn nccl_driver(const char *name);     /* a function of the front */

/* ---- answers (comm.c) ---- */
enum { NCCL_TEXT = 1024 };
struct nccl_answer { struct wire_nccl_result head; char text[NCCL_TEXT]; };
/* A command's answer as a result; what was wrong is what ncclGetLastError says from now on. */
int nccl_answered(int32_t driver, const struct nccl_answer *a, uint32_t got);
int nccl_failed(int result, const char *text);
/* Asks for a call of NCCL; the text in the answer ends with a NUL. */
int nccl_ask(uint32_t op, uint32_t server, uint64_t context, const void *payload, uint32_t bytes, struct nccl_answer *);

/* ---- communicators (comm.c) ---- */
struct nccl_comm {
  struct nccl_comm *next;
  uint64_t number, context;
  int rank, ranks, device;
  uint32_t server;     /* the one that has it, of those that the program has */
  uint64_t well_sent;  /* all was well when so many lists of operations had been sent, */
  int64_t well_until;  /* and counts as well until then, in ns of CLOCK_MONOTONIC; 0: not known */
};
/* What a program's handle stands for, as it was; 0: for nothing. */
int nccl_comm_of(const void *handle, struct nccl_comm *copy);
void nccl_remember(struct nccl_comm *); /* from now on it is the program's */
int nccl_bad_comm(void);
void nccl_sent(void); /* what was sent may change a state: what is known of states is old */
int nccl_one_device(void);                 /* all of the process are of one GPU */

/* ---- their beginning (start.c) ---- */
struct nccl_start;
int nccl_begin(struct nccl_start *list);   /* all of a group, or one; frees them */
void nccl_drop(struct nccl_start *list);
void nccl_append(struct nccl_start **list, struct nccl_start *);

/* ---- groups (group.c) ---- */
int nccl_defer(struct nccl_start *);       /* not 0: there is a group, with whose end it begins */
int nccl_note(int result);                 /* a group with a call that failed fails */

/* what other files call of the exported ones */
int own_ncclGetUniqueId(void *id);
int own_ncclGroupStart(void);
int own_ncclGroupEnd(void);
#endif
