/* Stands in for device.c where the headers of libibverbs are missing. It does not include verbs.h because it gives
   all functions one body; none but sv_load is ever called, as that says that there is nothing. */
#if !__has_include(<infiniband/verbs.h>) || defined(SCUDA_NO_RDMA)
#include <errno.h>

int sv_absent(void) { return ENOSYS; }
const char *sv_nameless(void) { return ""; }
#define A(name) int name(void) __attribute__((alias("sv_absent")));
#define N(name) const char *name(void) __attribute__((alias("sv_nameless")));
A(sv_devices) A(sv_free_devices) A(sv_open) A(sv_close) A(sv_query) A(
    sv_query_port) A(sv_query_gid) A(sv_async_fd) A(sv_async_event)
A(sv_alloc_pd) A(sv_dealloc_pd) A(sv_reg) A(sv_reg_dmabuf) A(sv_dereg) A(sv_alloc_mw) A(sv_dealloc_mw) A(sv_bind_mw)
A(sv_create_channel) A(sv_destroy_channel) A(sv_create_cq) A(sv_destroy_cq) A(
    sv_cq_event) A(sv_arm) A(sv_poll) A(sv_poll_or_arm)
A(sv_create_srq) A(sv_destroy_srq) A(sv_post_srq) A(sv_create_qp) A(
    sv_destroy_qp) A(sv_to_init) A(sv_to_rtr) A(sv_to_rts) A(sv_to_error)
A(sv_qp_state) A(sv_post_send) A(sv_post_spin) A(sv_post_recv)
N(sv_device_name) N(sv_node_name) N(sv_event_name)
#endif
