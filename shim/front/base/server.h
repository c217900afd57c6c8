/* Which server a command is for, where the program has several. */
#ifndef SCUDA_SERVER_H
#define SCUDA_SERVER_H
#include "base/range.h"

void scuda_servers_setup(uint32_t count);
/* Between the two the thread's commands are for another server, and its context is one of that, or none. The context is
 * that of an object there which a call names, 0: there is none. */
struct scuda_visit { uint64_t current; uint32_t server; };
struct scuda_visit scuda_visit(uint32_t server, uint64_t context);
void scuda_visit_end(struct scuda_visit v);

/* A context to work in on a server: the given one if it is there yet, else a GPU's primary one; 0: there is none. */
uint64_t scuda_context_on(uint32_t server, uint64_t context);

/* What a call names: whose it is, and the context of the first thing. */
struct scuda_named { uint32_t server; uint64_t context; int known, different; };
void scuda_name_object(struct scuda_named *n, uint64_t handle);
void scuda_name_device(struct scuda_named *n, int32_t device);
void scuda_name_range(struct scuda_named *n, const struct scuda_range *r);  /* memory of the device */
void scuda_name_address(struct scuda_named *n, uint64_t p);
/* Begins a visit of the server that has what a call names; 0, or NOT_SUPPORTED, logged once by the call's name, where
 * two servers would have to carry it out. */
int32_t scuda_visit_named(struct scuda_visit *v, const struct scuda_named *n, const char *call);

/* A number that a server gives its contexts, streams or graphs by itself, as the program sees it: no two servers' are
 * the same. 0 stays what it is, and so do all with one server. */
static inline uint64_t scuda_unique(uint32_t server, uint64_t number) {
  return number && scuda_several() ? (number - 1) * scuda_servers + server + 1 : number;
}

/* The next server behind *server, which is UINT32_MAX before the first, that is not `own`, has GPUs that the program
 * sees and is not lost; 0: there are no more. */
int scuda_other_server(uint32_t own, uint32_t *server);
/* as scuda_simple, to each server; the first error */
int32_t scuda_to_all(uint32_t op, uint32_t flags, const void *payload, uint32_t bytes);
#endif
