/* The calls of the driver that are written by hand, and what their files share. */
#ifndef SCUDA_CALLS_H
#define SCUDA_CALLS_H
#include "base/range.h"
#include "uvm/managed.h"

/* markers in the extra argument of a launch */
enum { LAUNCH_PARAM_END, LAUNCH_PARAM_BUFFER_POINTER, LAUNCH_PARAM_BUFFER_SIZE };

/* ---- what exported functions do in each mode, and what they refuse (entry.c) ---- */
/* Slow path of exported function number i (an index of scuda_exports): the function to call instead. */
void *scuda_divert(uint32_t i);
int32_t scuda_missing(uint32_t i); /* logs once by name; NOT_SUPPORTED */
int32_t scuda_unsupported(uint32_t i, const char *what);
void scuda_not_supported(uint32_t i);                   /* logs once that another than this library said so */
/* NOT_SUPPORTED for a part of what the function does, logged once by name */
int32_t scuda_refuse(uint32_t i, enum scuda_part part);

/* Every result of an exported function goes through here: errors are kept for cuLogs… and told to whoever registered
 * for them (logs.c). */
int32_t scuda_answer_error(uint32_t i, int32_t result);
/* 1 while this thread is in a call. A signal handler that interrupted it is answered at once: the call may hold our
 * locks, and be in the middle of the core. */
extern __thread uint8_t scuda_inside __attribute__((tls_model("initial-exec")));
int32_t scuda_nested(void);
static inline int32_t scuda_answer(uint32_t i, int32_t result) {
  scuda_inside = 0;
  return SCUDA_LIKELY(!result) ? result : scuda_answer_error(i, result);
}

/* early: the answer before cuInit if not NOT_INITIALIZED. older: the function, by its index, that this one is with a
 * driver that does not know its name, 0: none. Such a name is there for the linker and for dlsym; who finds and calls
 * it knows the older function's parameters (api/gen/names.go). */
struct scuda_export { const char *name; void *entry; void *profiled; void *before_init; int32_t early, older; };
extern const struct scuda_export scuda_exports[];
void *scuda_older(uint32_t i);       /* the entry of .older */

/* ---- contexts (context.c) ---- */
uint64_t scuda_context_meant(uint64_t ctx);   /* by a caller of a _v2 function that may not know that it takes one */
void scuda_storage_context_dies(uint64_t ctx);  /* tables.c: runs the destructors of CTX_LOCAL_STORAGE */

/* ---- questions and waits (wait.c) ---- */
/* the last command of the process was waited for, by its context or its default stream */
int scuda_context_done(uint64_t context);

/* ---- memory (memory.c, copy.c) ---- */
/* It is memory of this process, pinned or ordinary (pointer.c). */
int scuda_range_is_host(const struct scuda_range *r, uint64_t p);
static inline int scuda_is_host(uint64_t p) {
  struct scuda_range r = scuda_range_of(p, SCUDA_AS_ANY);
  return scuda_range_is_host(&r, p);
}
/* Where kernels find pinned memory; they can use it from now on. CUresult. */
int32_t scuda_mapped_address(struct scuda_range *r, uint64_t p, uint64_t *device);
/* CUresult: NOT_SUPPORTED for memory of the server's host */
int32_t scuda_elsewhere(uint32_t i, int32_t allocation_type, const struct CUmemLocation_st *l);
int32_t scuda_allocation_check(uint64_t handle); /* of cuMemCreate; CUresult */
void scuda_allocation_came(uint64_t handle);
void scuda_allocation_share(uint64_t handle);
int scuda_allocation_shared(uint64_t handle);
void scuda_shared_object_gone(void); /* share.c */
int scuda_host_reaches(uint64_t start, uint64_t bytes); /* all of it is memory of this process */

/* ---- pinned memory that kernels use (mapped.c) ---- */
extern _Atomic uint32_t scuda_mapped_count, scuda_mapped_launched;
/* Where pinned memory is put: far from where processes have their libraries and heaps, so that a server can have device
 * memory there. */
#define SCUDA_PINNED_FIRST 0x600000000000u
#define SCUDA_PINNED_END 0x680000000000u  /* behind it: managed memory (pager.c) */
static inline int scuda_in_pinned_space(uint64_t p) {
  return SCUDA_UNLIKELY(p - SCUDA_PINNED_FIRST < SCUDA_PINNED_END - SCUDA_PINNED_FIRST);
}
void scuda_use_pinned(uint64_t p); /* maps the pinned memory at p, if there is any, for kernels */
void scuda_use_pinned_in(const void *data, uint64_t bytes);
int32_t scuda_device_mirror(uint64_t p, uint64_t *device);   /* where the GPU finds the pinned memory at p */
uint64_t scuda_kernel_address(uint64_t p); /* the same, and where kernels find it: p itself for other memory */
uint64_t scuda_mapped_base(uint64_t start); /* address for kernels of a mapped range, 0 when it is not */
int32_t scuda_map_host(uint64_t start, uint64_t bytes, uint64_t *device_address);
void scuda_unmap_host(uint64_t start);
/* Before a launch: how gets the flag by which what changed goes up ahead of it. CUresult. */
int32_t scuda_mapped_before(uint64_t stream, uint32_t ptds, uint32_t *how);
void scuda_mapped_sent(uint64_t stream, uint32_t ptds);       /* behind it, while scuda_mapped_count is not 0 */
/* what changed goes up now, for work that is no launch, or as the call depends on what is in it; CUresult */
int32_t scuda_mapped_upload(uint64_t stream, uint32_t ptds);
int32_t scuda_mapped_next(struct scuda_mapped_upload *u);     /* see struct scuda_shared */
/* before a wait, or a question, for work that may wait for the program */
void scuda_mapped_publish(void);
/* after a call that has waited for the stream of that key */
void scuda_mapped_download(uint64_t finished);
/* 1: it has waited for the stream as well, with this result */
int scuda_mapped_synchronize(uint64_t stream, uint32_t ptds, int32_t *r);

/* ---- modules (module.c) ---- */
struct scuda_param { uint32_t offset, size; };
struct scuda_func {            /* data of a function's or kernel's slot */
  struct scuda_func *next;     /* of the same module or library */
  uint64_t handle, parent;     /* parent: module or library; of a kernel's function: the kernel */
  uint64_t context, life;      /* of a kernel's function: the context that it lies in, and its life */
  struct scuda_func *forms;    /* a kernel's functions, one a context's life */
  uint32_t hash;
  int32_t device;              /* that the attributes belong to */
  int32_t attr[16];            /* INT32_MIN: not known */
  int32_t set[16];             /* what the program set last, INT32_MIN: nothing */
  int32_t around[16];          /* the same, but on this handle or on another of the same kernel */
  uint64_t state;              /* a hash of both: equal whenever the attributes are */
  uint32_t param_count, param_bytes;
  struct scuda_param *params;
  uint64_t good[4];            /* hashes of launches that the driver accepted though it might not have */
  uint32_t good_next;
  /* the only shape of blocks that it takes (.reqntid); 0: it takes others, or that is not known */
  uint32_t block[3];
  char *name;
};
static inline struct scuda_func *scuda_func(uint64_t handle) {
  struct scuda_slot *s = scuda_slot(handle);
  return s && (s->kind == KIND_CUfunction || s->kind == KIND_CUkernel) ? s->data : NULL;
}
/* Parameters of a launch, in one of their two forms: the packed buffer, or NULL and what the array's values take packed
 * (launch.c). */
enum { SCUDA_PARAMS_MAX = 32768 };
int32_t scuda_params_of(const struct scuda_func *f, void **params, void **extra, const void **buffer, uint32_t *bytes);
void scuda_params_pack(const struct scuda_func *f, void **params, uint8_t *p);
int32_t scuda_module_each_function(uint64_t module, void (*each)(void *user, uint64_t function), void *user,
                                   int32_t *count);
void scuda_occupancy_changed(void);
/* CUDART_INTERFACE; the variables of the program that the code refers to */
int32_t scuda_load_wrapper(uint64_t *module, const void *image, const char **names, void **addresses, uint32_t count);

/* ---- host functions (stream.c): kind 0, or 1 for callbacks ---- */
int32_t scuda_host_function(uint64_t stream, void *fn, void *user, uint32_t kind, uint32_t flags, uint32_t ptds);

/* ---- graphs (graph.c) ---- */
/* registers a function that graphs may call until the program ends */
uint64_t scuda_graph_function(void *fn, void *user);
void scuda_graph_host(uint32_t id, int up, void *at);  /* copy3d.c: the program's end of a copy in a graph */
void *scuda_graph_host_of(uint32_t id, int up);
void scuda_graph_dies(struct scuda_slot *s);  /* a graph or a node: with what belongs to it */

/* ---- sets and memory operations ---- */

/* What their hooks answer (memory.c): 1, refused with *r; 2, the driver is asked; 0, it need not be, as what they name
 * is right and of the stream's GPU. A driver that has both GPUs knows whether one reaches the other's memory. Between
 * servers none does, and they are refused with INVALID_VALUE, but for captures. */
int scuda_set_how(const struct scuda_range *at, uint64_t stream, uint32_t ptds, int right, int32_t *r);

/* ---- copies (copy.c): sync is 1 for the forms that wait; how may hold SCUDA_PTDS ---- */
/* SCUDA_COPY_SYNC, SCUDA_COPY_MANAGED */
int32_t scuda_upload(uint64_t dst, const void *src, uint64_t bytes, uint64_t stream, uint32_t how, uint32_t flags);
int32_t scuda_download(void *dst, uint64_t src, uint64_t bytes, uint64_t stream, uint32_t how, int sync);
/* 1 where the copy is from memory of one server to that of another, or within one in a stream of another, with its
 * result (between.c) */
int scuda_between(uint64_t dst, uint64_t src, uint64_t bytes, uint64_t stream, uint32_t ptds, int32_t *r);
int scuda_between_3d(const struct scuda_copy3d *c, uint64_t stream, uint32_t ptds, int peer, int32_t *r);
/* likewise, where it is between the program's memory and that of a server, in a stream of another one */
int scuda_beside_3d(const struct scuda_copy3d *c, uint64_t stream, uint32_t ptds, int32_t *r);
/* finds out what each address is */
int32_t scuda_copy(uint64_t dst, uint64_t src, uint64_t bytes, uint64_t stream, uint32_t how, int sync);

/* ---- 3-D copies (copy3d.c) ---- */
int scuda_copy3d_in_host(const struct scuda_copy3d_end *s);
/* what is not the program's memory is the device's, whatever the copy calls it */
void scuda_copy3d_settle(struct scuda_copy3d_end *s);
void scuda_copy3d_move(void *copy3d);  /* between two straightened ends in host memory; a host function of graphs */
/* Makes one end's first byte its whole position; gives how far the copy reaches, 0 for what cannot be. */
uint64_t scuda_copy3d_straighten(struct scuda_copy3d_end *s, const struct scuda_copy3d *b);
/* Whether an end on the device certainly is what the copy takes it for; else the driver is asked. */
int scuda_copy3d_certain(const struct scuda_copy3d_end *s, const struct scuda_copy3d *b);
struct scuda_named;
void scuda_copy3d_name(struct scuda_named *n, const struct scuda_copy3d_end *s);  /* whose it is (server.h) */
/* at least one end in host memory, both settled */
int32_t scuda_copy3d_start(const struct scuda_copy3d *c, uint64_t stream, uint32_t how, int sync, int peer);
/* In the body of a conditional node: */
int scuda_captures_body(uint64_t stream, uint32_t ptds);  /* 1: what is captured on the stream becomes part of one */
/* host memory becomes where the GPU finds it */
int32_t scuda_copy3d_to_mirror(struct scuda_copy3d_end *s, const struct scuda_copy3d *b, uint32_t i);
int32_t scuda_body_copy(struct scuda_copy3d b, uint64_t stream, uint32_t ptds, uint32_t i);      /* captured */
struct scuda_array { uint64_t width, height, depth; };  /* in bytes of a row, rows, slices or layers */
/* asks where it is not known (array.c) */
int32_t scuda_array_extent(uint64_t array, struct scuda_array *extent, uint32_t *element);

/* ---- private tables (tables.c) ---- */
int32_t scuda_export_table(const void **table, const void *uuid);
#endif
