// NVIDIA's NCCL in the worker, by dlopen.
#ifndef SCUDA_NCCL_LIBRARY_H
#define SCUDA_NCCL_LIBRARY_H
#include <stddef.h>
#include <stdint.h>

// One operation; the functions' numbers are those of package api/nccl.
struct nccl_operation {
  uint64_t comm, send, recv, count, stream;
  uint32_t function, type, op;
  int32_t peer;
};

// Opens the library and finds its functions; NULL, or why not. It stays open.
const char *nccl_open(const char *path, int *version);
int nccl_unique_id(void *id);
// What a program says of a communicator; INT_MIN and NULL: nothing.
struct nccl_hints {
  int cluster_size, min_ctas, max_ctas, split_share, collnet, cta_policy, shrink_share, nvls_ctas;
  char *net, *name;
};

// All that make communicators wait in the call, whatever the environment says.
int nccl_init_rank(uint64_t *comm, int ranks, int rank, const void *ids, int id_count, const struct nccl_hints *);
int nccl_split(uint64_t parent, uint64_t *made, int color, int key, const struct nccl_hints *);
int nccl_shrink(uint64_t parent, uint64_t *made, int *excluded, int count, int flags, const struct nccl_hints *);
int nccl_place(uint64_t comm, int *rank, int *ranks);
int nccl_make_reduction(uint64_t comm, int *op, uint64_t scalar, int on_device, int type);
int nccl_end_reduction(uint64_t comm, int op);
int nccl_group(const struct nccl_operation *list, size_t count);
int nccl_finalize(uint64_t comm);
int nccl_destroy(uint64_t comm);
int nccl_abort(uint64_t comm);
int nccl_async_error(uint64_t comm, int *state);
const char *nccl_last_error(void);
#endif
