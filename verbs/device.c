/* Devices, memory, completion queues, queue pairs. */
#include "load.h"

#ifdef SV_HEADERS
_Static_assert(IBV_WR_RDMA_WRITE == 0 && IBV_WR_RDMA_WRITE_WITH_IMM == 1 && IBV_WR_SEND == 2 &&
               IBV_WR_SEND_WITH_IMM == 3 && IBV_WR_RDMA_READ == 4 &&
               IBV_WR_ATOMIC_CMP_AND_SWP == 5 && IBV_WR_ATOMIC_FETCH_AND_ADD == 6 && IBV_WR_LOCAL_INV == 7,
               "opcodes are those of opcode.go");
_Static_assert(IBV_SEND_FENCE == 1 && IBV_SEND_SIGNALED == 2 && IBV_SEND_SOLICITED == 4 && IBV_SEND_INLINE == 8,
               "flags are those of opcode.go");
_Static_assert(IBV_WC_RECV == 128 && IBV_WC_RECV_RDMA_WITH_IMM == 129 && IBV_WC_BIND_MW == 5 && IBV_WC_LOCAL_INV == 6,
               "completions are those of opcode.go");
_Static_assert(IBV_WC_RETRY_EXC_ERR == 12 && IBV_WC_RNR_RETRY_EXC_ERR == 13 && IBV_WC_GENERAL_ERR == 21,
               "statuses are those of opcode.go");
_Static_assert(IBV_ACCESS_LOCAL_WRITE == 1 && IBV_ACCESS_REMOTE_WRITE == 2 && IBV_ACCESS_REMOTE_READ == 4 &&
               IBV_ACCESS_REMOTE_ATOMIC == 8 &&
               IBV_ACCESS_MW_BIND == 16 && IBV_ACCESS_ON_DEMAND == 64 && (IBV_ACCESS_RELAXED_ORDERING & 0xffff) == 0,
               "access is that of opcode.go");
_Static_assert(IBV_QPS_INIT == 1 && IBV_QPS_RTR == 2 && IBV_QPS_RTS == 3 && IBV_QPS_ERR == 6,
               "states are those of opcode.go");
_Static_assert(IBV_EVENT_QP_FATAL == 1 && IBV_EVENT_DEVICE_FATAL == 8 && IBV_EVENT_PORT_ACTIVE == 9 &&
               IBV_EVENT_PORT_ERR == 10, "events are those of opcode.go");

int sv_devices(void ***list, int *n) {
  errno = 0;
  *list = (void **)ibv.get_device_list(n);
  if (*list) return 0;
  return errno == ENOSYS ? ENODEV : why(); /* ENOSYS: the kernel has no RDMA at all */
}
void sv_free_devices(void **list) { ibv.free_device_list((struct ibv_device **)list); }
const char *sv_device_name(void *device) { return ibv.get_device_name(device); }

static int nonblocking(int fd) {
  int flags = fcntl(fd, F_GETFL);
  return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? why() : 0;
}

int sv_open(void *device, void **ctx) {
  errno = 0;
  struct ibv_context *c = ibv.open_device(device);
  if (!c) return why();
  nonblocking(c->async_fd);
  *ctx = c;
  return 0;
}
int sv_close(void *ctx) { return ibv.close_device(ctx) ? why() : 0; }
const char *sv_node_name(void *ctx) { return ((struct ibv_context *)ctx)->device->dev_name; }

int sv_query(void *ctx, sv_device *out) {
  struct ibv_device_attr_ex a;
  memset(&a, 0, sizeof a);
  struct verbs_context *v = verbs_get_ctx_op((struct ibv_context *)ctx, query_device_ex);
  int r = v ? v->query_device_ex(ctx, NULL, &a, sizeof a) : ibv.query_device(ctx, &a.orig_attr);
  if (r) return r;
  struct ibv_device_attr *o = &a.orig_attr;
  memset(out, 0, sizeof *out);
  memcpy(out->firmware, o->fw_ver, sizeof out->firmware - 1);
  out->node_guid = o->node_guid;
  out->max_mr_size = o->max_mr_size;
  out->odp_caps = a.odp_caps.general_caps;
  out->odp_rc = a.odp_caps.per_transport_caps.rc_odp_caps;
  out->vendor_id = o->vendor_id, out->vendor_part = o->vendor_part_id;
  out->max_qp = o->max_qp, out->max_qp_wr = o->max_qp_wr, out->max_sge = o->max_sge, out->max_cq = o->max_cq,
      out->max_cqe = o->max_cqe;
  out->max_mr = o->max_mr, out->max_pd = o->max_pd, out->max_mw = o->max_mw;
  out->max_srq = o->max_srq, out->max_srq_wr = o->max_srq_wr, out->max_srq_sge = o->max_srq_sge;
  out->max_rd_atomic = o->max_qp_rd_atom, out->caps = o->device_cap_flags, out->atomic = o->atomic_cap,
      out->ports = o->phys_port_cnt;
  return 0;
}

int sv_query_port(void *ctx, int port, sv_port *out) {
  struct ibv_port_attr a;
  memset(&a, 0, sizeof a); /* an old library fills only the front */
  int r = ibv.query_port(ctx, port, &a);
  if (r) return r;
  *out = (sv_port){
    a.state, a.max_mtu, a.active_mtu, a.gid_tbl_len, a.port_cap_flags, a.max_msg_sz, a.lid, a.link_layer,
        a.active_width, a.active_speed
  };
  return 0;
}

int sv_query_gid(void *ctx, int port, int index, uint8_t gid[16]) {
  union ibv_gid g;
  errno = 0;
  if (ibv.query_gid(ctx, port, index, &g)) return why();
  memcpy(gid, g.raw, 16);
  return 0;
}

int sv_async_fd(void *ctx) { return ((struct ibv_context *)ctx)->async_fd; }

int sv_async_event(void *ctx, sv_event *out) {
  struct ibv_async_event e;
  errno = 0;
  if (ibv.get_async_event(ctx, &e)) return why();
  *out = (sv_event){.type = e.event_type};
  switch (e.event_type) {
  case IBV_EVENT_PORT_ACTIVE: case IBV_EVENT_PORT_ERR: case IBV_EVENT_LID_CHANGE: case IBV_EVENT_PKEY_CHANGE:
      case IBV_EVENT_SM_CHANGE:
  case IBV_EVENT_CLIENT_REREGISTER: case IBV_EVENT_GID_CHANGE:
    out->port = e.element.port_num;
    break;
  case IBV_EVENT_DEVICE_FATAL:
    break;
  default:
    out->element = e.element.qp; /* or cq, or srq: only compared */
  }
  ibv.ack_async_event(&e);
  return 0;
}
const char *sv_event_name(uint32_t type) { return ibv.event_type_str(type); }

int sv_alloc_pd(void *ctx, void **pd) { errno = 0; return (*pd = ibv.alloc_pd(ctx)) ? 0 : why(); }
int sv_dealloc_pd(void *pd) { return ibv.dealloc_pd(pd); }

static int registered(struct ibv_mr *m, void **mr, uint32_t *lkey, uint32_t *rkey) {
  if (!m) return why();
  *mr = m, *lkey = m->lkey, *rkey = m->rkey;
  return 0;
}

int sv_reg(void *pd, uint64_t addr, uint64_t length, uint32_t access, void **mr, uint32_t *lkey, uint32_t *rkey) {
  errno = 0;
  return registered(ibv.reg_mr(pd, (void *)(uintptr_t)addr, length, access), mr, lkey, rkey);
}
int sv_reg_dmabuf(void *pd, uint64_t offset, uint64_t length, uint64_t iova, int fd, uint32_t access, void **mr,
                  uint32_t *lkey, uint32_t *rkey) {
  if (!ibv.reg_dmabuf_mr) return EOPNOTSUPP;
  errno = 0;
  return registered(ibv.reg_dmabuf_mr(pd, offset, length, iova, fd, access), mr, lkey, rkey);
}
int sv_dereg(void *mr) { return ibv.dereg_mr(mr); }

int sv_alloc_mw(void *pd, uint32_t type, void **mw, uint32_t *rkey) {
  struct ibv_pd *p = pd;
  if (!p->context->ops.alloc_mw) return EOPNOTSUPP;
  errno = 0;
  struct ibv_mw *w = ibv_alloc_mw(p, type);
  if (!w) return why();
  *mw = w, *rkey = w->rkey;
  return 0;
}
int sv_dealloc_mw(void *mw) { return ibv_dealloc_mw(mw); }

int sv_bind_mw(void *qp, void *mw, void *mr, uint64_t id, uint64_t addr, uint64_t length, uint32_t access,
               uint32_t *rkey) {
  struct ibv_mw *w = mw;
  struct ibv_send_wr *bad, wr = {.wr_id = id, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};
  wr.bind_mw.mw = w;
  wr.bind_mw.rkey = ibv_inc_rkey(w->rkey);
  wr.bind_mw.bind_info = (struct ibv_mw_bind_info){.mr = mr, .addr = addr, .length = length, .mw_access_flags = access};
  int r = ibv_post_send(qp, &wr, &bad);
  if (!r) *rkey = w->rkey = wr.bind_mw.rkey;
  return r;
}

int sv_create_channel(void *ctx, void **channel, int *fd) {
  errno = 0;
  struct ibv_comp_channel *c = ibv.create_comp_channel(ctx);
  if (!c) return why();
  nonblocking(c->fd);
  *channel = c, *fd = c->fd;
  return 0;
}
int sv_destroy_channel(void *channel) { return ibv.destroy_comp_channel(channel); }
int sv_create_cq(void *ctx, int depth, void *channel, void **cq) {
  errno = 0;
  return (*cq = ibv.create_cq(ctx, depth, NULL, channel, 0)) ? 0 : why();
}
int sv_destroy_cq(void *cq) { return ibv.destroy_cq(cq); }
int sv_cq_event(void *channel) {
  struct ibv_cq *cq;
  void *user;
  errno = 0;
  if (ibv.get_cq_event(channel, &cq, &user)) return why();
  ibv.ack_cq_events(cq, 1);
  return 0;
}
int sv_arm(void *cq, int solicited) { return ibv_req_notify_cq(cq, solicited); }

enum { BATCH = 32 };

int sv_poll(uintptr_t cq, sv_completion *out, int n, int looks) {
  struct ibv_wc wc[BATCH];
  int total = 0;
  while (total < n) {
    int want = n - total < BATCH ? n - total : BATCH, got = ibv_poll_cq((struct ibv_cq *)cq, want, wc);
    if (got < 0) return total ? total : got == -1 ? -EIO : got;
    if (!got && !total && --looks > 0) continue;
    for (int i = 0; i < got; i++)
      out[total++] = (sv_completion){.id = wc[i].wr_id, .status = wc[i].status, .opcode = wc[i].opcode,
                                     .vendor = wc[i].vendor_err,
                                     .bytes = wc[i].byte_len, .imm = ntohl(wc[i].imm_data), .qp = wc[i].qp_num,
                                     .flags = wc[i].wc_flags};
    if (got < want) break;
  }
  return total;
}

int sv_poll_or_arm(uintptr_t cq, sv_completion *out, int n) {
  int r = sv_poll(cq, out, n, 1);
  if (r) return r;
  r = ibv_req_notify_cq((struct ibv_cq *)cq, 0);
  return r ? -r : sv_poll(cq, out, n, 1);
}

int sv_create_srq(void *pd, int depth, int sges, void **srq) {
  struct ibv_srq_init_attr a = {.attr = {.max_wr = depth, .max_sge = sges}};
  errno = 0;
  return (*srq = ibv.create_srq(pd, &a)) ? 0 : why();
}
int sv_destroy_srq(void *srq) { return ibv.destroy_srq(srq); }

int sv_create_qp(void *pd, void *send_cq, void *recv_cq, void *srq, sv_qp_config *config, void **qp, uint32_t *qpn) {
  struct ibv_qp_init_attr a = {.send_cq = send_cq, .recv_cq = recv_cq, .srq = srq, .sq_sig_all = config->signal_all,
    .qp_type = config->type ? (enum ibv_qp_type)config->type : IBV_QPT_RC,
    .cap = {.max_send_wr = config->send_depth, .max_send_sge = config->send_sges,
            .max_inline_data = config->inline_bytes}};
  if (!srq) a.cap.max_recv_wr = config->recv_depth, a.cap.max_recv_sge = config->recv_sges;
  errno = 0;
  struct ibv_qp *q = ibv.create_qp(pd, &a);
  if (!q) return why();
  config->send_depth = a.cap.max_send_wr, config->send_sges = a.cap.max_send_sge,
      config->inline_bytes = a.cap.max_inline_data;
  config->recv_depth = a.cap.max_recv_wr, config->recv_sges = a.cap.max_recv_sge;
  *qp = q, *qpn = q->qp_num;
  return 0;
}
int sv_destroy_qp(void *qp) { return ibv.destroy_qp(qp); }

int sv_to_init(void *qp, const sv_qp_attr *a) {
  struct ibv_qp_attr q = {.qp_state = IBV_QPS_INIT, .port_num = a->port, .qp_access_flags = a->access};
  return ibv.modify_qp(qp, &q, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}
int sv_to_rtr(void *qp, const sv_qp_attr *a) {
  struct ibv_qp_attr q = {.qp_state = IBV_QPS_RTR, .path_mtu = a->mtu, .dest_qp_num = a->dest_qpn,
                          .rq_psn = a->dest_psn, .max_dest_rd_atomic = a->max_read,
    .min_rnr_timer = a->rnr_timer, .ah_attr = {.dlid = a->lid, .port_num = a->port, .is_global = a->global}};
  if (a->global) {
    q.ah_attr.grh.sgid_index = a->gid_index, q.ah_attr.grh.hop_limit = a->hops,
        q.ah_attr.grh.traffic_class = a->traffic_class;
    memcpy(q.ah_attr.grh.dgid.raw, a->gid, 16);
  }
  return ibv.modify_qp(qp, &q, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}
int sv_to_rts(void *qp, const sv_qp_attr *a) {
  struct ibv_qp_attr q = {
    .qp_state = IBV_QPS_RTS, .timeout = a->timeout, .retry_cnt = a->retries, .rnr_retry = a->rnr_retries,
    .sq_psn = a->psn, .max_rd_atomic = a->max_read
  };
  return ibv.modify_qp(qp, &q, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                       IBV_QP_MAX_QP_RD_ATOMIC);
}
int sv_to_error(void *qp) {
  struct ibv_qp_attr q = {.qp_state = IBV_QPS_ERR};
  return ibv.modify_qp(qp, &q, IBV_QP_STATE);
}
int sv_qp_state(void *qp, uint32_t *state) {
  struct ibv_qp_attr a;
  struct ibv_qp_init_attr i;
  int r = ibv.query_qp(qp, &a, IBV_QP_STATE, &i);
  *state = r ? 0 : a.qp_state;
  return r;
}

static struct ibv_sge *gather(struct ibv_sge *to, const sv_sge *from, uint32_t n) {
  for (uint32_t i = 0; i < n && i < SV_SGES; i++) to[i] = (struct ibv_sge){from[i].addr, from[i].length, from[i].lkey};
  return to;
}

int sv_post_send(uintptr_t qp, sv_send *list, int n, int *done) {
  struct ibv_send_wr wr[BATCH], *bad;
  struct ibv_sge sge[BATCH][SV_SGES];
  for (*done = 0; *done < n;) {
    int k = n - *done < BATCH ? n - *done : BATCH;
    for (int i = 0; i < k; i++) {
      const sv_send *s = &list[*done + i];
      struct ibv_send_wr *w = &wr[i]; /* of its 128 bytes only those that the operation has are written */
      w->wr_id = s->id, w->next = i + 1 < k ? w + 1 : NULL, w->sg_list = gather(sge[i], s->sge, s->sges),
          w->num_sge = s->sges;
      w->opcode = s->opcode, w->send_flags = s->flags;
      switch (s->opcode) {
      case IBV_WR_ATOMIC_CMP_AND_SWP: case IBV_WR_ATOMIC_FETCH_AND_ADD:
        w->wr.atomic.remote_addr = s->remote, w->wr.atomic.rkey = s->rkey, w->wr.atomic.compare_add = s->compare,
            w->wr.atomic.swap = s->swap;
        break;
      case IBV_WR_LOCAL_INV:
        w->invalidate_rkey = s->imm;
        break;
      default:
        w->imm_data = htonl(s->imm), w->wr.rdma.remote_addr = s->remote, w->wr.rdma.rkey = s->rkey;
      }
    }
    int r = ibv_post_send((struct ibv_qp *)qp, wr, &bad);
    if (r) {
      *done += bad >= wr && bad < wr + k ? (int)(bad - wr) : 0;
      return r;
    }
    *done += k;
  }
  return 0;
}

int sv_post_spin(uintptr_t qp, sv_send *list, int n, int *done, uintptr_t cq, sv_completion *out, int m, int looks) {
  int r = sv_post_send(qp, list, n, done);
  return r ? -r : sv_poll(cq, out, m, looks);
}

static int post_recv(void *on, sv_recv *list, int n, int *done, int shared) {
  struct ibv_recv_wr wr[BATCH], *bad;
  struct ibv_sge sge[BATCH][SV_SGES];
  for (*done = 0; *done < n;) {
    int k = n - *done < BATCH ? n - *done : BATCH;
    for (int i = 0; i < k; i++) {
      const sv_recv *s = &list[*done + i];
      wr[i] = (struct ibv_recv_wr){
        .wr_id = s->id, .next = i + 1 < k ? &wr[i + 1] : NULL, .sg_list = gather(sge[i], s->sge, s->sges),
        .num_sge = s->sges
      };
    }
    int r = shared ? ibv_post_srq_recv(on, wr, &bad) : ibv_post_recv(on, wr, &bad);
    if (r) {
      *done += bad >= wr && bad < wr + k ? (int)(bad - wr) : 0;
      return r;
    }
    *done += k;
  }
  return 0;
}
int sv_post_recv(void *qp, sv_recv *list, int n, int *done) { return post_recv(qp, list, n, done, 0); }
int sv_post_srq(void *srq, sv_recv *list, int n, int *done) { return post_recv(srq, list, n, done, 1); }
#endif
