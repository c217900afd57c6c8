/* The table of functions that are looked up in libibverbs. */
#ifndef SCUDA_VERBS_LOAD_H
#define SCUDA_VERBS_LOAD_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "verbs.h"
#include <errno.h>

#if __has_include(<infiniband/verbs.h>) && !defined(SCUDA_NO_RDMA)
#define SV_HEADERS 1
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Some of these names are macros that take arguments, which therefore must not be followed by a parenthesis here. */
#define SV_IBV(X) \
  X(struct ibv_device **, get_device_list, int *) \
  X(void, free_device_list, struct ibv_device **) \
  X(const char *, get_device_name, struct ibv_device *) \
  X(struct ibv_context *, open_device, struct ibv_device *) \
  X(int, close_device, struct ibv_context *) \
  X(int, query_device, struct ibv_context *, struct ibv_device_attr *) \
  X(int, query_port, struct ibv_context *, uint8_t, struct ibv_port_attr *) \
  X(int, query_gid, struct ibv_context *, uint8_t, int, union ibv_gid *) \
  X(int, get_async_event, struct ibv_context *, struct ibv_async_event *) \
  X(void, ack_async_event, struct ibv_async_event *) \
  X(const char *, event_type_str, enum ibv_event_type) \
  X(struct ibv_pd *, alloc_pd, struct ibv_context *) \
  X(int, dealloc_pd, struct ibv_pd *) \
  X(struct ibv_mr *, reg_mr, struct ibv_pd *, void *, size_t, int) \
  X(int, dereg_mr, struct ibv_mr *) \
  X(struct ibv_comp_channel *, create_comp_channel, struct ibv_context *) \
  X(int, destroy_comp_channel, struct ibv_comp_channel *) \
  X(struct ibv_cq *, create_cq, struct ibv_context *, int, void *, struct ibv_comp_channel *, int) \
  X(int, destroy_cq, struct ibv_cq *) \
  X(int, get_cq_event, struct ibv_comp_channel *, struct ibv_cq **, void **) \
  X(void, ack_cq_events, struct ibv_cq *, unsigned) \
  X(struct ibv_srq *, create_srq, struct ibv_pd *, struct ibv_srq_init_attr *) \
  X(int, destroy_srq, struct ibv_srq *) \
  X(struct ibv_qp *, create_qp, struct ibv_pd *, struct ibv_qp_init_attr *) \
  X(int, modify_qp, struct ibv_qp *, struct ibv_qp_attr *, int) \
  X(int, query_qp, struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *) \
  X(int, destroy_qp, struct ibv_qp *)

#define X(result, name, ...) result (*name)(__VA_ARGS__);
struct sv_ibv {
  SV_IBV(X)
  struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int); /* may be NULL */
};
#undef X
extern struct sv_ibv ibv;

/* What a failed call left in errno; never 0. */
static inline int why(void) { return errno ? errno : EIO; }
#endif
#endif
