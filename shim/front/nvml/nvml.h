/* The NVML front: what its files share. An exported function is a generated stub that puts its arguments into an array
 * of words and calls nvml_call with the function's generated description; from there everything is driven by the
 * description. */
#ifndef SCUDA_NVML_H
#define SCUDA_NVML_H
#include <stddef.h>
#include <stdint.h>

#include "gen/connect_gen.h"

enum {                        /* nvmlReturn_t values that the front itself answers */
  NVML_OK = 0,
  NVML_UNINITIALIZED = 1,
  NVML_INVALID_ARGUMENT = 2,
  NVML_NOT_SUPPORTED = 3,
  NVML_NOT_FOUND = 6,
  NVML_INSUFFICIENT_SIZE = 7,
  NVML_DRIVER_NOT_LOADED = 9,
  NVML_TIMEOUT = 10,
  NVML_FUNCTION_NOT_FOUND = 13,
  NVML_GPU_IS_LOST = 15,
  NVML_MEMORY = 20,
  NVML_INSUFFICIENT_RESOURCES = 23,
  NVML_VERSION_MISMATCH = 25,
  NVML_UNKNOWN = 999,
};

enum nvml_class { NVML_FORWARD, NVML_UNSUPPORTED };

enum nvml_dir { NVML_VALUE, NVML_IN, NVML_OUT, NVML_INOUT, NVML_STR };

enum {                        /* nvml_param.flags */
  /* the first word of the structure says its size (low 24 bits) and version (high 8 bits) */
  NVML_VERSIONED = 1,
  NVML_COUNT_POINTER = 2,     /* the counting argument is a pointer to the count */
  /* the array has room for what the GPU has, whatever the count says: `count` elements are asked for */
  NVML_FILLS = 4,
  /* the handles in the structure come from the call; before it there may be anything in their place */
  NVML_FRESH = 8,
  NVML_CLEARS = 16,           /* set to 0 before anything else is looked at */
};

struct nvml_patch { uint16_t offset; uint8_t kind; };

/* An array that the structure points at; size is 0 where there is none. */
struct nvml_array { uint16_t pointer, count, size; };

struct nvml_param {
  uint8_t dir;
  uint8_t kind;               /* of the handle that the value or element is, 0: none */
  uint8_t flags;
  uint8_t count_arg;          /* 1 + index of the argument that counts the elements, 0: `count` elements */
  uint32_t size;              /* bytes of an element */
  uint32_t count;
  struct nvml_patch patch[2]; /* handles inside the element */
  struct nvml_array array;
  /* where the structure says how many bytes it ends in, for which it has TAIL_ROOM; 0: it does not */
  uint16_t tail;
  const struct scuda_piece *pieces;   /* what is written of an element; NULL: all of it */
};

struct nvml_func {
  const char *name;
  uint16_t op;                /* 0: never sent */
  uint8_t class;
  uint8_t nparams;
  const struct nvml_param *params;
};

extern const struct nvml_func nvml_funcs[];
extern const uint32_t nvml_func_count;
extern const char *const nvml_error_names[];   /* by code, NULL where there is none */
extern const uint32_t nvml_error_count;
extern const char nvml_digest[];               /* of the description, hexadecimal; the server compares it */

#define NVML_MAX_PARAMS 8

enum nvml_mode { NVML_UNDECIDED, NVML_REMOTE, NVML_PASS, NVML_NO_DRIVER };
int nvml_mode(void);

/* Several servers: their GPUs stand one behind the other, in the order of the configuration (several.c). */
enum { NVML_SERVERS = SCUDA_CONNECT_SERVERS };
enum { NVML_APART = -1 };     /* a call has handles of two servers */
uint32_t nvml_servers(void);  /* how many there are; 1 before somebody knows it */
uint32_t nvml_gpus(uint32_t server);

/* The server that a call is for: that of its handles, else the first. */
struct nvml_route {
  uint32_t server;
  int known;                  /* a handle has said it, or the caller */
  int apart;                  /* another handle says another one */
  /* handles of what belongs to no GPU when it is made, and so to all servers: where they stand in the request */
  struct nvml_common { void *at; unsigned kind; } common[2];
  int commons;
};

int nvml_call(uint32_t index, const uint64_t *args);      /* from the stubs */
/* remote mode: encode, send, decode */
int nvml_forward(uint32_t index, const uint64_t *args, struct nvml_route *route);
int nvml_forward_several(uint32_t index, const uint64_t *args);   /* the same where there are several servers */
int nvml_handle_to_wire(uint64_t value, unsigned kind, uint64_t *id, struct nvml_route *route);

/* The server that has a GPU, by the number in NVML, which becomes that server's own number. */
uint32_t nvml_server_of(uint32_t *index);
int nvml_wait_several(uint32_t index, uint64_t *args);   /* for an event, args[2] ms in all */

/* Event sets and samples of the first server, and those that stand for them on others. */
int nvml_is_common(unsigned kind);
int nvml_deputies(struct nvml_route *route);         /* puts those of the route's server into the request */
uint64_t nvml_deputy(unsigned kind, uint64_t id, uint32_t server);  /* 0: none */
uint32_t nvml_sample_home(uint64_t id);           /* the server that a sample was taken on last */
void nvml_deputies_forget(uint32_t server);          /* its session is a new one */
void nvml_deputies_in_child(void);
int nvml_pass(uint32_t index, const uint64_t *args);      /* to the machine's own library */
void *nvml_real(const char *name);                        /* a function of the machine's own library or NULL */

/* The sessions. Calls of one server are made one at a time. */
int nvml_session_begin(uint32_t flags);
int nvml_session_end(void);
int nvml_session_ready(void);
void nvml_session_holds(uint32_t server);  /* the program gets a handle that is good in this session alone */
int nvml_exchange(uint32_t server, uint16_t op, const void *req, uint32_t req_len, void *reply, uint32_t reply_cap,
                  uint32_t *reply_len);
/* size of the first server's private table; works before nvmlInit */
int nvml_table_size(const uint8_t uuid[16], uint64_t *bytes);
#endif
