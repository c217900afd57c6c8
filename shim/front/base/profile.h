/* What our libcupti.so and the front say to each other: the front's private table PROFILE, and what the profiler gives
 * it to be called. Both are of one build. */
#ifndef SCUDA_FRONT_PROFILE_H
#define SCUDA_FRONT_PROFILE_H
#include <stdint.h>

#define SCUDA_PROFILE_ID \
  {0x7d, 0x0b, 0x1e, 0x35, 0xc0, 0x6f, 0x4a, 0x1d, 0x9f, 0x52, 0xa3, 0xe4, 0xc8, 0xb9, 0x6d, 0x21}

/* A call of a driver function. The front keeps it on the caller's stack from enter to exit. profiler is NULL where only
 * the front's timeline wants to know. */
struct scuda_profiled {
  const struct scuda_profiler *profiler; /* the front's */
  uint32_t function;           /* index of the exported function */
  uint32_t before;             /* the front's */
  const char *name;
  const void *params;          /* the arguments in order, as a structure */
  uint64_t context;            /* current at enter */
  int32_t result;              /* at exit */
  uint32_t correlation;        /* the profiler's, at enter: what the call's work is known by */
  uint64_t entered;            /* the front's */
  uint64_t began, data;        /* the profiler's */
  uint32_t told, outer;        /* the profiler's */
};

struct scuda_profiler {
  int (*enter)(struct scuda_profiled *);  /* 0: this call is not told further */
  void (*exit)(struct scuda_profiled *);
  void (*runtime)(uint32_t id, void *record); /* of a runtime call whose flag is set, see SCUDA_RUNTIME_... */
};

/* cudart's record of a call, in words: the same place before and after it. */
enum {
  RUNTIME_CONTEXT_ID = 1, RUNTIME_DATA = 4, RUNTIME_RESULT = 5, RUNTIME_NAME = 6, RUNTIME_PARAMS = 7,
  RUNTIME_CONTEXT = 8, RUNTIME_STREAM = 9, RUNTIME_SITE = 10 /* upper half: 1 is the exit */, RUNTIME_SYMBOL = 11
};

/* Numbers as the driver gives them. 0: not known, as that of a stream nobody has asked for before a capture began. */
struct scuda_profile_ids { uint32_t context, stream, device; };

/* What has a number in records; enum profile_object of wire.spec. */
enum { SCUDA_NUMBER_GRAPH, SCUDA_NUMBER_EXEC, SCUDA_NUMBER_NODE };

/* Of a question to the server, by CLOCK_MONOTONIC in ns: it was sent after the one, its answer came to this machine
 * before the other, however long it took to wake who waited for it. */
struct scuda_profile_times { uint64_t sent, came; };

enum { SCUDA_PROFILE_SERVERS = 16 }; /* at most */

struct scuda_profile_table {
  uint64_t bytes;
  int32_t (*serves)(void);     /* not 0: a server is configured, so that calls go there; 2: there is a session */
  int32_t (*attach)(const struct scuda_profiler *); /* NULL: no more. CUresult */
  uint32_t *(*flags)(uint32_t *count);  /* by the runtime's callback ids */
  /* what a server keeps of its GPUs' work from now on (wire.spec, profile), and its clock; CUresult */
  int32_t (*control)(uint32_t server, uint32_t kinds, uint32_t *kept, uint64_t *now);
  /* wire.spec, profile_read; CUresult. Devices, contexts, streams and graphs have the program's numbers */
  int32_t (*read)(uint32_t server, void *to, uint32_t bytes, uint32_t all, uint32_t *got, struct scuda_profile_times *);
  void (*ids)(uint64_t context, uint64_t stream, uint32_t per_thread, struct scuda_profile_ids *);
  const char *(*kernel)(uint64_t function);  /* a kernel's name; NULL: it is none */
  /* what kind it is: wire.spec, profile_memory. bytes, unless NULL: of the whole allocation, 0 if that is not known */
  uint32_t (*memory)(uint64_t address, uint64_t *bytes);
  /* contexts, or streams that the program made: pairs of a context (0 for a context) and a handle; how many */
  uint32_t (*objects)(int streams, uint64_t *pairs, uint32_t most);
  void (*log)(int32_t level, const char *text);
  /* the number by which the server's records know a graph, an executable graph, or a node; CUresult. Only where control
   * has answered that there are numbers */
  int32_t (*number)(uint32_t kind, uint64_t object, uint64_t *number);
  /* the next server behind *server, which is UINT32_MAX before the first, that has GPUs of the program's and is not
   * lost; 0: there are no more. Each has a clock of its own */
  int (*next)(uint32_t *server);
};
#endif
