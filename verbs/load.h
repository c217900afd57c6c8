/* The tables of functions that are looked up in libibverbs and librdmacm. */
#ifndef SCUDA_VERBS_LOAD_H
#define SCUDA_VERBS_LOAD_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "verbs.h"
#include <errno.h>

#if __has_include(<infiniband/verbs.h>) && __has_include(<rdma/rdma_cma.h>) && !defined(SCUDA_NO_RDMA)
#define SV_HEADERS 1
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
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

#define SV_CM(X) \
  X(struct rdma_event_channel *, create_event_channel, void) \
  X(void, destroy_event_channel, struct rdma_event_channel *) \
  X(int, create_id, struct rdma_event_channel *, struct rdma_cm_id **, void *, enum rdma_port_space) \
  X(int, destroy_id, struct rdma_cm_id *) \
  X(int, bind_addr, struct rdma_cm_id *, struct sockaddr *) \
  X(int, resolve_addr, struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int) \
  X(int, resolve_route, struct rdma_cm_id *, int) \
  X(int, listen, struct rdma_cm_id *, int) \
  X(uint16_t, get_src_port, struct rdma_cm_id *) \
  X(int, get_cm_event, struct rdma_event_channel *, struct rdma_cm_event **) \
  X(int, ack_cm_event, struct rdma_cm_event *) \
  X(const char *, event_str, enum rdma_cm_event_type) \
  X(int, create_qp, struct rdma_cm_id *, struct ibv_pd *, struct ibv_qp_init_attr *) \
  X(void, destroy_qp, struct rdma_cm_id *) \
  X(int, connect, struct rdma_cm_id *, struct rdma_conn_param *) \
  X(int, accept, struct rdma_cm_id *, struct rdma_conn_param *) \
  X(int, reject, struct rdma_cm_id *, const void *, uint8_t) \
  X(int, disconnect, struct rdma_cm_id *)

#define X(result, name, ...) result (*name)(__VA_ARGS__);
struct sv_ibv {
  SV_IBV(X)
  struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int); /* may be NULL */
};
struct sv_cm { SV_CM(X) };
#undef X
extern struct sv_ibv ibv;
extern struct sv_cm cm;

/* What a failed call left in errno; never 0. */
static inline int why(void) { return errno ? errno : EIO; }
#endif
#endif
