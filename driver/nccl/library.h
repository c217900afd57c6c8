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
int nccl_init_rank(uint64_t *comm, int ranks, const void *id, int rank);
int nccl_group(const struct nccl_operation *list, size_t count);
int nccl_finalize(uint64_t comm);
int nccl_destroy(uint64_t comm);
int nccl_abort(uint64_t comm);
int nccl_async_error(uint64_t comm, int *state);
const char *nccl_last_error(void);
#endif
