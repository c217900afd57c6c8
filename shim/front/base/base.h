/* The base of libcuda.so.1: the mode, the session, handles, threads, the ring of commands, and what is known of
 * contexts, captures and progress. It knows nothing of the rooms above it: what they have to do when something happens
 * here, they say in struct scuda_callbacks. Handles are 64-bit values (addresses of slots), results are CUresult
 * values. */
#ifndef SCUDA_BASE_H
#define SCUDA_BASE_H
#include "base/common.h"
#include "base/core.h"
#include "gen/wire_gen.h"
#include "gen/cuda_gen.h"
#include "gen/structs_gen.h"

#include <string.h>

/* Constants that the headers define as macros. */
enum { CU_MEMHOSTALLOC_DEVICEMAP = 2, CU_MEMHOSTREGISTER_IOMEMORY = 4 };

/* ---- mode (mode.c) ----
 * One word decides what an exported function does. It lies on a page that the kernel zeroes in a forked child, so that
 * a child of a process with a session finds UNDECIDED and is told apart by scuda_core_started, which it inherits. */
enum scuda_mode {
  SCUDA_UNDECIDED,
  SCUDA_REMOTE,      /* cuInit succeeded against a server: the normal paths run */
  SCUDA_PROFILED,    /* the same, and each call of the program's is told to a profiler (calls/profile.c) */
  SCUDA_CONFIGURED,  /* a server is configured, cuInit has not succeeded yet */
  SCUDA_PASS,        /* calls go to the machine's own driver */
  SCUDA_NONE,        /* neither server nor driver */
  SCUDA_CHILD,       /* forked from a process with a session */
  SCUDA_ENDED        /* the process is exiting */
};
struct scuda_live { _Alignas(4096) _Atomic uint32_t mode; uint8_t rest[4092]; };
extern struct scuda_live scuda_live;
static inline int scuda_remote(void) {
  return SCUDA_LIKELY(atomic_load_explicit(&scuda_live.mode, memory_order_relaxed) == SCUDA_REMOTE);
}
static inline int scuda_serving(void) { /* there is a session */
  uint32_t mode = atomic_load_explicit(&scuda_live.mode, memory_order_relaxed);
  return SCUDA_LIKELY(mode - SCUDA_REMOTE <= SCUDA_PROFILED - SCUDA_REMOTE);
}
uint32_t scuda_mode(void);    /* the mode; the first call decides it */
void *scuda_real_driver(void); /* in the mode PASS: the machine's own driver */
/* the answer of cuDriverGetVersion, asked without the core where that is not open; CUresult */
int32_t scuda_version(int32_t *version);
int32_t scuda_driver_version(void);       /* the same, as far as it is known; 0: nobody has asked yet */

/* What the rooms above do when something happens in the base. */
struct scuda_slot;
struct scuda_callbacks {
  void (*slot_ends)(struct scuda_slot *);             /* of a graph or a node of one: with what belongs to it */
  /* these bytes are about to go to the GPU, and may hold addresses of the program's memory */
  void (*upload)(const void *data, uint64_t bytes);
  int32_t (*mapped)(struct scuda_mapped_upload *);    /* see struct scuda_shared */
  void (*waits)(void);                                /* a command may wait for the GPU; it is about to be sent */
  void (*last)(void);                                 /* the process ends, and still has its session */
  void (*exit)(void);                                 /* the process ends, and had a session */
};
extern struct scuda_callbacks scuda_callbacks; /* set before there is a session */
int32_t scuda_connect(const struct scuda_callbacks *callbacks); /* opens the core and the session, once; CUresult */

struct scuda_core_api {
  scuda_core_open_fn open;
  scuda_core_call_fn call;
  scuda_core_send_fn send;
  scuda_core_bulk_fn bulk;
  scuda_core_mapped_fn mapped;
  scuda_core_transfer_fn transfer;
  scuda_core_overlaps_fn overlaps;
  scuda_core_source_fn source;
  scuda_core_hostfn_fn hostfn;
  scuda_core_image_fn image;
  scuda_core_pin_fn pin;
  scuda_core_look_fn look;
  scuda_core_peer_fn peer;
  scuda_core_peer_lost_fn peer_lost;
  scuda_core_figures_fn figures;
  scuda_core_close_fn close;
};
extern struct scuda_core_api scuda_core;
extern struct scuda_shared scuda_shared;
extern struct scuda_boot scuda_boot;

/* ---- devices (device.c) ---- */
#define SCUDA_DEVICES_MAX 64
struct scuda_gpu {             /* a GPU that the program sees */
  struct scuda_device d;       /* with the attributes of unsupported features set to 0 */
  uint32_t server;             /* whose it is, from 0 on */
  int32_t server_ordinal;
  uint32_t place;              /* in scuda_boot.devices */
  uint32_t primary_flags;      /* with which its primary context is made */
  uint64_t primary;            /* context handle */
};
extern struct scuda_gpu *scuda_gpus;
extern int32_t scuda_gpu_count;
int32_t scuda_devices_setup(void);
static inline int scuda_device_ok(int32_t dev) { return (uint32_t)dev < (uint32_t)scuda_gpu_count; }
/* Ordinals between program and server; values that are no ordinals stay what they are. */
static inline int32_t scuda_to_server(int32_t dev) {
  return scuda_device_ok(dev) ? scuda_gpus[dev].server_ordinal : dev;
}
int32_t scuda_device_from(uint32_t server, int32_t ordinal);
int32_t scuda_from_server(int32_t ordinal); /* of the server that the thread's commands are for */

/* ---- threads (thread.c) ---- */
struct scuda_thread {
  uint64_t current;            /* top of the context stack, or 0 */
  uint32_t ordinal, depth;     /* depth: contexts below the top */
  uint64_t *below;             /* the stack without its top */
  uint32_t below_cap;
  uint32_t capture_mode;
  uint64_t captures;           /* 1: the thread's own stream began a capture; see capture.c */
  /* last CTX_LOCAL_STORAGE hit */
  const void *storage_key; uint64_t storage_ctx, storage_generation; void *storage_value;
  void *lists[2]; size_t list_bytes[2];    /* arrays lent to the program until its next call of the same kind */
  uint32_t server;             /* 1 + the server that its commands are for; 0: its context's (server.c) */
  uint32_t own;                /* SCUDA_OWN: what it does is the library's */
  uint32_t turn;               /* its call keeps ranges of unified memory where they are (home.c) */
  uint32_t timed;              /* as in struct scuda_call, of its next call; came is of the last such */
  uint64_t came;
  uint64_t named;              /* the stream that the thread's last call named; see progress.c */
  uint64_t recording;          /* the event that the next command records */
  uint32_t shared;             /* the next command uses memory that other processes have as well; see order.c */
  uint64_t answered;           /* ring offset behind the thread's last answered command */
  uint32_t correlation;        /* of the call that a profiler is told of; 0: none */
  uint64_t per_thread_object;  /* its address stands for the thread's default stream (CTX_STREAM) */
};
extern __thread struct scuda_thread *scuda_self __attribute__((tls_model("initial-exec")));
struct scuda_thread *scuda_thread_new(void);
/* one of ours, detached, that takes none of the program's signals; not 0: there is none */
int scuda_thread_start(void *(*run)(void *), void *argument);
static inline struct scuda_thread *scuda_thread(void) {
  struct scuda_thread *t = scuda_self;
  return SCUDA_LIKELY(t != NULL) ? t : scuda_thread_new();
}

/* ---- handles (handle.c) ---- */
struct scuda_slot {            /* 64 bytes; its address is the handle */
  uint32_t kind;               /* enum scuda_kind; 0: free */
  uint32_t flags;              /* by kind */
  uint64_t context;            /* the context it belongs to, or 0 */
  void *data;                  /* by kind */
  uint64_t id;                 /* cached cuCtxGetId, cuStreamGetId; 0: not known */
  int32_t device;
  union { uint32_t next_free; int32_t sticky; }; /* contexts: the error that ended it; every later call gives it */
  uint64_t word[2];
  /* contexts: its address stands for the legacy stream, streams: for the stream (CTX_STREAM) */
  uint8_t object[8];
};
_Static_assert(sizeof(struct scuda_slot) == 64, "a slot has 64 bytes");
int32_t scuda_handles_setup(void);
/* after a kernel's fault nothing works in any of the process's contexts on that GPU */
void scuda_contexts_fail(int32_t device, int32_t result);
/* the next context of the process that can be used; 0: from the first on, or there is none */
uint64_t scuda_context_behind(uint64_t context);
uint64_t scuda_slot_new(uint32_t kind);  /* 0: no room */
void scuda_slot_free(uint64_t handle);
/* counts what may make the driver refuse a change of an executable graph that it took before (calls/graph_exec.c) */
extern _Atomic uint64_t scuda_graph_exec_epoch;
/* each that the front handed out; UINT64_MAX: of any context */
void scuda_slots_of(uint64_t context, uint32_t kind, void (*f)(struct scuda_slot *));
void scuda_adopt(uint64_t handle, uint32_t kind);  /* a handle that the server minted */
extern uint64_t scuda_slots_base, scuda_slots_bytes;  /* both regions, client's first */
static inline struct scuda_slot *scuda_slot(uint64_t handle) {
  return handle - scuda_slots_base < scuda_slots_bytes && !(handle & 63) ? (struct scuda_slot *)(uintptr_t)handle :
         NULL;
}
static inline struct scuda_slot *scuda_slot_of(uint64_t handle, uint32_t kind) {
  struct scuda_slot *s = scuda_slot(handle);
  return s && s->kind == kind ? s : NULL;
}
/* 0, or the CUresult for a handle that is not of that kind (a kernel passes as a function, 0, 1, 2 as streams). */
int32_t scuda_check(uint64_t handle, uint32_t kind);

/* ---- commands (ring.c) ---- */
/* On the wire, but for the last two: the command only asks about the stream that it names; it gives work to the stream
 * that the thread named last. */
enum {
  SCUDA_ANSWER = WIRE_COMMAND_ANSWER, SCUDA_PTDS = WIRE_COMMAND_PTDS, SCUDA_BULK = WIRE_COMMAND_BULK,
  SCUDA_WATCH = WIRE_COMMAND_WATCH,
  SCUDA_OWN = WIRE_COMMAND_OWN, SCUDA_ASKS = 1 << 16, SCUDA_WORKS = 1 << 17,
  /* Of generic calls without outputs that change a node of an executable graph, and nothing else that such changes
   * depend on: it surely succeeds, so there is no answer; it may fail. */
  SCUDA_SURE = 1 << 18, SCUDA_CHANGES = 1 << 19,
  /* in the ring's headers only: what changed of pinned memory that kernels use goes ahead of it (calls/mapped.c) */
  SCUDA_MAPPED = 1 << 15
};
/* the last two and op: for a trace */
struct scuda_cmd {
  uint8_t *payload; uint64_t begin, end, context; uint32_t answer, shared, op, server; struct scuda_thread *thread;
  uint64_t since, bytes;
};
struct scuda_reply {           /* of a generic call */
  const uint8_t *at, *end;
  int bad;
  uint8_t *big;
  uint8_t small[256];
};
enum { SCUDA_ORDER_TOLD = 1, SCUDA_ORDER_ANSWERED = 2 };
/* memory is shared with other processes: they are told of our calls, or each is answered (order.c) */
extern _Atomic int scuda_ordering;
/* another process may look at our device memory as soon as a synchronous upload has returned */
extern _Atomic int scuda_sharing;
/* what few programs have: SCUDA_LAUNCH_BLOCKING; several servers */
enum { SCUDA_BLOCKING = 1, SCUDA_SEVERAL = 2 };
extern uint32_t scuda_unusual;
static inline int scuda_blocking(void) { return (scuda_unusual & SCUDA_BLOCKING) != 0; }
static inline int scuda_several(void) { return (scuda_unusual & SCUDA_SEVERAL) != 0; }
int32_t scuda_ring_setup(void);
/* Starts a command of so many payload bytes under the ring's lock; 0, or the CUresult. SCUDA_ANSWER is added by
 * scuda_blocking and where the thread has no usable context, so that the driver's own error comes at the call. */
int32_t scuda_begin(struct scuda_cmd *c, uint32_t op, uint32_t flags, uint64_t payload);
int32_t scuda_send(struct scuda_cmd *c);  /* asynchronous; waits only when the command is to be answered */
int32_t scuda_send_bulk(struct scuda_cmd *c, const void *data, uint64_t bytes);  /* for SCUDA_BULK commands */
/* sends a command at once, so that the thread can do something before it makes the call */
void scuda_start(struct scuda_cmd *c);
int32_t scuda_call(struct scuda_cmd *c, void *reply, uint32_t cap, uint32_t *len);
int32_t scuda_call_generic(struct scuda_cmd *c, struct scuda_reply *r, uint64_t cap);
void scuda_reply_done(struct scuda_reply *r);
int32_t scuda_bad_reply(const char *name);
/* a hand-written operation without a reply payload */
int32_t scuda_simple(uint32_t op, uint32_t flags, const void *payload, uint32_t bytes);
uint64_t scuda_header_context(struct scuda_thread *t);  /* 0 when the current context cannot be used */

static inline uint64_t scuda_pad(uint64_t n) { return (n + 7) & ~(uint64_t)7; }
static inline uint8_t *scuda_put64(uint8_t *p, uint64_t v) { memcpy(p, &v, 8); return p + 8; }
static inline uint32_t scuda_field(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint64_t scuda_word(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }
uint8_t *scuda_put_bytes(uint8_t *p, const void *from, uint64_t count, uint64_t size);  /* u64 count, bytes, padding */
/* where the driver tells a place that holds nothing from NULL */
uint8_t *scuda_put_array(uint8_t *p, const void *from, uint64_t count, uint64_t size);
static inline uint64_t scuda_room(const void *place, uint64_t count) { return count || !place ? count : 1ull << 63; }
uint8_t *scuda_put_struct(uint8_t *p, const void *from, uint64_t size);
uint64_t scuda_get(struct scuda_reply *r, void *to, uint64_t cap, uint64_t size);       /* gives the count received */
uint64_t scuda_get_pieces(struct scuda_reply *r, void *to, uint64_t cap, uint64_t size,
                          const struct scuda_piece *pieces);
uint64_t scuda_get_text(struct scuda_reply *r, char *to, uint64_t cap); /* up to its NUL */
uint64_t scuda_peek(const struct scuda_reply *r, uint64_t offset); /* a 32-bit field of the element that comes next */

/* ---- where the time goes (trace.c) ---- */
extern int scuda_tracing;
void scuda_trace_setup(void);
uint64_t scuda_trace_now(void);
/* kind: SCUDA_COUNT_...; since 0: it took no time */
void scuda_trace_note(uint32_t kind, uint32_t op, uint64_t since, uint64_t bytes);
void scuda_trace_error(int32_t result);            /* the program was given it */
void scuda_trace_end(void);
/* Of unified memory: page faults, bytes fetched, bytes sent, bytes that came with waits, pinnings of thrashing
 * blocks */
enum { SCUDA_FAULTS, SCUDA_DOWN, SCUDA_UP, SCUDA_PUSHED, SCUDA_PINNED, SCUDA_MANAGED_STATS };
extern _Atomic uint64_t scuda_managed_stats[SCUDA_MANAGED_STATS];

/* ---- servers (server.c) ---- */
enum { SCUDA_SERVER_SHIFT = 28 };  /* of the server's number in the thread's word of a command's header */
enum { SCUDA_SERVERS = 1 << (32 - SCUDA_SERVER_SHIFT) };  /* a program can have */
extern uint32_t scuda_servers;     /* how many the program has */
uint32_t scuda_server_now(const struct scuda_thread *t);  /* that its next command is for */
/* 0, or the CUresult of every call for the server, as the session has failed */
static inline int32_t scuda_server_lost(uint32_t server) {
  int32_t all = (int32_t)__atomic_load_n(&scuda_shared.lost, __ATOMIC_ACQUIRE);
  return SCUDA_LIKELY(all || !scuda_several()) ? all :
         (int32_t)__atomic_load_n(&scuda_shared.lost_of[server], __ATOMIC_ACQUIRE);
}
static inline uint32_t scuda_server(void) {
  return SCUDA_LIKELY(!scuda_several()) ? 0 : scuda_server_now(scuda_thread());
}
static inline uint32_t scuda_thread_word(void) {
  return scuda_thread()->ordinal | scuda_server() << SCUDA_SERVER_SHIFT;
}
static inline uint32_t scuda_slot_server(uint64_t handle) {
  uint64_t at = (handle - scuda_slots_base) / sizeof(struct scuda_slot);
  if (at < scuda_shared.client_slots) return (uint32_t)(at / (scuda_shared.client_slots / scuda_servers));
  return (uint32_t)((at - scuda_shared.client_slots) / (scuda_shared.server_slots / scuda_servers));
}
/* libraries and their kernels are on all servers, under one handle */
static inline int scuda_is_common(const struct scuda_slot *s) {
  return s->kind == KIND_CUlibrary || s->kind == KIND_CUkernel;
}
/* it is an object of another server than the one that the thread's commands are for */
static inline int scuda_elsewhere_of(uint64_t handle) {
  const struct scuda_slot *s = scuda_slot(handle);
  return s && !scuda_is_common(s) && scuda_slot_server(handle) != scuda_server();
}
int32_t scuda_server_gpu(uint32_t server);  /* the first of its GPUs that the program sees; -1: there is none */

/* ---- what is known of the GPU's progress (progress.c) ---- */
static inline struct scuda_track *scuda_track(uint64_t handle) {  /* of a handle that is a slot */
  return &scuda_shared.tracks[(handle - scuda_slots_base) / sizeof(struct scuda_slot)];
}
void scuda_track_new(uint64_t handle);
void scuda_recorded(struct scuda_thread *t, uint64_t end, uint32_t watched);  /* under the ring's lock */
void scuda_event_elsewhere(uint64_t event);  /* others than cuEventRecord will record it */
int scuda_event_is_elsewhere(uint64_t event);
int scuda_event_is_odd(uint64_t event);  /* never recorded, or last while something was captured */
/* keys that are no stream's: all of them, and one that is not known */
enum { SCUDA_ALL_STREAMS = 0, SCUDA_NO_STREAM = 2 };
uint64_t scuda_stream_key(uint64_t stream, uint32_t ptds); /* the stream as the calling thread means it */
void scuda_stream_idle(uint64_t stream, uint32_t ptds);  /* the thread's last answered command says so */

/* ---- contexts (context.c) ---- */
enum {                         /* flags of a context slot above the CUctx_flags */
  SCUDA_CTX_PRIMARY = 1 << 16,
  SCUDA_CTX_DEAD = 1 << 17,
  SCUDA_CTX_ACTIVE = 1 << 18   /* of a primary one: it is there. A reset ends it, though its references stay. */
};
static inline uint64_t *scuda_retained(struct scuda_slot *s) { return &s->word[0]; }   /* of a primary context */
/* of another one: cuCtxAttach without cuCtxDetach */
static inline uint64_t *scuda_attached(struct scuda_slot *s) { return &s->word[0]; }
/* bit n: CUlimit n was set */
static inline uint64_t *scuda_limits_changed(struct scuda_slot *s) { return &s->word[1]; }
int32_t scuda_context_of(uint64_t ctx, struct scuda_slot **slot);  /* 0: the current one */
/* 0, or why calls that need a context cannot work: there is none, or a kernel's fault has ended it */
int32_t scuda_context_sound(void);
int32_t scuda_current_device(void);  /* of the current context, else the first of the server that commands are for */
static inline int scuda_context_usable(uint64_t ctx) {
  struct scuda_slot *s = scuda_slot_of(ctx, KIND_CUcontext);
  return s && !(s->flags & SCUDA_CTX_DEAD) && (s->flags & (SCUDA_CTX_PRIMARY | SCUDA_CTX_ACTIVE)) != SCUDA_CTX_PRIMARY;
}
/* A context has a new life, of its own number, whenever it comes into being: a primary one may do so often, under the
 * same handle. What a library has in a context (addresses of variables, functions) is that life's. 0: it cannot be
 * used. */
static inline uint64_t scuda_context_life(uint64_t ctx) {
  return scuda_context_usable(ctx) ? (uint64_t)(uintptr_t)scuda_slot(ctx)->data : 0;
}
int32_t scuda_usable(uint64_t stream);  /* 0, or why the calling thread cannot use the stream */
int32_t scuda_usable_anywhere(uint64_t stream); /* the same, whichever server's it is: a visit follows */
void scuda_context_begins(struct scuda_slot *s);  /* a new life */
/* why the thread has no usable context: it never had one, or a primary one that ended */
int32_t scuda_no_context(void);

/* ---- captures (capture.c) ---- */
extern _Atomic uint32_t scuda_captures;  /* captures that may be going on */
int scuda_stream_capturing(uint64_t stream, uint32_t ptds);
/* a capture may forbid work for the stream: the call is to have an answer */
int scuda_capture_doubt(uint64_t stream, uint32_t ptds);
/* an answer while captures may be going on; work: of work for a stream */
void scuda_capture_refused(int32_t result, int work);
/* of a stream that began a capture: not 0; NULL: none can begin there */
uint64_t *scuda_capture_mark(uint64_t stream, uint32_t ptds);
void scuda_capture_begins(uint64_t *mark);
void scuda_capture_ends(uint64_t *mark);
void scuda_capture_stream_dies(struct scuda_slot *s);
void scuda_capture_context_dies(uint64_t ctx);

/* ---- what the library does on its own behalf ---- */
/* Between the two the calling thread's context is another, and no capture forbids its calls; then that, and the stream
 * that its last call named, are the program's again. */
struct scuda_self { uint64_t current, named; uint32_t own; };
static inline struct scuda_self scuda_self_begin(uint64_t context) {
  struct scuda_thread *t = scuda_thread();
  struct scuda_self s = {t->current, t->named, t->own};
  t->current = context;
  t->own = SCUDA_OWN;
  return s;
}
static inline void scuda_self_end(struct scuda_self s) {
  struct scuda_thread *t = scuda_thread();
  t->current = s.current;
  t->named = s.named;
  t->own = s.own;
}

/* ---- bytes to the GPU (upload.c) ---- */
enum {
  SCUDA_INLINE_MAX = WIRE_MAX_INLINE, SCUDA_COPY_SYNC = WIRE_COPY_SYNC, SCUDA_COPY_DONE = WIRE_COPY_DONE,
  SCUDA_COPY_MIRROR = WIRE_COPY_MIRROR, SCUDA_COPY_AHEAD = WIRE_COPY_AHEAD,
  SCUDA_COPY_MANAGED = WIRE_COPY_MANAGED, SCUDA_COPY_PUSH = WIRE_COPY_PUSH,
  SCUDA_LEGACY_STREAM = 0
};
/* The bytes lie in memory of this process, which the caller has made sure of, and change no more before this returns.
 * on_device: all of it goes to a known range, so that it cannot be wrong. */
int32_t scuda_upload_bytes(uint64_t dst, const void *src, uint64_t bytes, uint64_t stream, uint32_t ptds,
                           uint32_t flags, int on_device);
#endif
