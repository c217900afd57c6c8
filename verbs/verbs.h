/* The C side of package verbs: libibverbs, loaded with dlopen, behind types of our own. Functions that return int
   give 0 or a positive errno. Without the library's headers at build time every function says ENOSYS and sv_load
   that the binding was left out. */
#ifndef SCUDA_VERBS_H
#define SCUDA_VERBS_H
#include <stdint.h>
#include <stddef.h>

enum { SV_SGES = 4 };

typedef struct { uint64_t addr; uint32_t length, lkey; } sv_sge;

/* A send request; the Go type SendRequest has this layout. */
typedef struct {
  uint64_t id;
  uint32_t opcode, flags;
  uint64_t remote;
  uint32_t rkey, imm; /* imm: also the key to invalidate */
  uint64_t compare, swap;
  uint32_t sges, reserved;
  sv_sge sge[SV_SGES];
} sv_send;

typedef struct {
  uint64_t id;
  uint32_t sges, reserved;
  sv_sge sge[SV_SGES];
} sv_recv;

typedef struct {
  uint64_t id;
  uint32_t status, opcode, vendor, bytes, imm, qp, flags, reserved;
} sv_completion;

typedef struct {
  char firmware[64];
  uint64_t node_guid, max_mr_size, odp_caps;
  uint32_t odp_rc, vendor_id, vendor_part, max_qp, max_qp_wr, max_sge, max_cq, max_cqe, max_mr, max_pd, max_mw, max_srq,
  max_srq_wr, max_srq_sge,
      max_rd_atomic, caps, atomic, ports;
} sv_device;

typedef struct {
  uint32_t state, max_mtu, active_mtu, gids, caps, max_message, lid, link_layer, active_width, active_speed;
} sv_port;

typedef struct {
  uint32_t send_depth, recv_depth, send_sges, recv_sges, inline_bytes, type, signal_all, reserved;
} sv_qp_config; /* in: wishes, out: what there is */

typedef struct {
  uint32_t state, qpn, psn, mtu, port, gid_index, hops, traffic_class, timeout, retries, rnr_retries, rnr_timer,
      max_read, access, dest_qpn, dest_psn, lid, global;
  uint8_t gid[16];
} sv_qp_attr;

typedef struct { uint32_t type, port; void *element; } sv_event;

/* Opens the library; it is called once. The message says what is missing; NULL when everything is there. */
const char *sv_load(void);

int sv_devices(void ***list, int *n);
void sv_free_devices(void **list);
const char *sv_device_name(void *device);
int sv_open(void *device, void **ctx);
int sv_close(void *ctx);
const char *sv_node_name(void *ctx); /* such as uverbs0 */
int sv_query(void *ctx, sv_device *out);
int sv_query_port(void *ctx, int port, sv_port *out);
int sv_query_gid(void *ctx, int port, int index, uint8_t gid[16]);
int sv_async_fd(void *ctx);
int sv_async_event(void *ctx, sv_event *out); /* EAGAIN: none */
const char *sv_event_name(uint32_t type);

int sv_alloc_pd(void *ctx, void **pd);
int sv_dealloc_pd(void *pd);
int sv_reg(void *pd, uint64_t addr, uint64_t length, uint32_t access, void **mr, uint32_t *lkey, uint32_t *rkey);
int sv_reg_dmabuf(void *pd, uint64_t offset, uint64_t length, uint64_t iova, int fd, uint32_t access, void **mr,
                  uint32_t *lkey, uint32_t *rkey);
int sv_dereg(void *mr);
int sv_alloc_mw(void *pd, uint32_t type, void **mw, uint32_t *rkey);
int sv_dealloc_mw(void *mw);
int sv_bind_mw(void *qp, void *mw, void *mr, uint64_t id, uint64_t addr, uint64_t length, uint32_t access,
               uint32_t *rkey);

int sv_create_channel(void *ctx, void **channel, int *fd);
int sv_destroy_channel(void *channel);
int sv_create_cq(void *ctx, int depth, void *channel, void **cq);
int sv_destroy_cq(void *cq);
int sv_cq_event(void *channel); /* takes and acknowledges one; EAGAIN: none */
int sv_arm(void *cq, int solicited);
/* Queues are numbers here and in sv_post_send, as cgo looks up in each call whether a pointer is one of Go's. */
/* >= 0: completions, after so many looks at most, < 0: -errno */
int sv_poll(uintptr_t cq, sv_completion *out, int n, int looks);
/* the same with one look, which where it finds nothing arms the queue and looks again */
int sv_poll_or_arm(uintptr_t cq, sv_completion *out, int n);

int sv_create_srq(void *pd, int depth, int sges, void **srq);
int sv_destroy_srq(void *srq);
int sv_post_srq(void *srq, sv_recv *list, int n, int *done);

int sv_create_qp(void *pd, void *send_cq, void *recv_cq, void *srq, sv_qp_config *config, void **qp, uint32_t *qpn);
int sv_destroy_qp(void *qp);
int sv_to_init(void *qp, const sv_qp_attr *a);
int sv_to_rtr(void *qp, const sv_qp_attr *a);
int sv_to_rts(void *qp, const sv_qp_attr *a);
int sv_to_error(void *qp);
int sv_qp_state(void *qp, uint32_t *state);
int sv_post_send(uintptr_t qp, sv_send *list, int n, int *done);
/* < 0: -errno of either */
int sv_post_spin(uintptr_t qp, sv_send *list, int n, int *done, uintptr_t cq, sv_completion *out, int m, int looks);
int sv_post_recv(void *qp, sv_recv *list, int n, int *done);
#endif
