/* The bytes of a connection that the NVML front reads and writes itself. */
#define _GNU_SOURCE
#include "base/net.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>


static int64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Waits until fd is ready or `until` (0: for ever) has come. */
static int wait_for(int fd, short events, int64_t until) {
  for (;;) {
    int ms = -1;
    if (until) {
      int64_t left = until - now_ms();
      if (left <= 0) { errno = ETIMEDOUT; return -1; }
      ms = (int)left;
    }
    struct pollfd p = {.fd = fd, .events = events};
    int n = poll(&p, 1, ms);
    if (n > 0) return 0;
    if (n < 0 && errno != EINTR) return -1;
  }
}

int scuda_net_send(int fd, const void *data, size_t n, const void *more, size_t m, int64_t until) {
  struct iovec v[2] = {{(void *)(uintptr_t)data, n}, {(void *)(uintptr_t)more, m}};
  struct msghdr h = {.msg_iov = v, .msg_iovlen = 2};
  while (v[0].iov_len + v[1].iov_len != 0) {
    ssize_t k = sendmsg(fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (k < 0 && errno == EINTR) continue;
    if (k < 0 && errno != EAGAIN) return -1;
    if (k < 0 && wait_for(fd, POLLOUT, until) != 0) return -1;
    for (size_t i = 0, left = k > 0 ? (size_t)k : 0; i < 2; i++) {
      size_t part = left < v[i].iov_len ? left : v[i].iov_len;
      v[i].iov_base = (char *)v[i].iov_base + part;
      v[i].iov_len -= part;
      left -= part;
    }
  }
  return 0;
}

/* Takes what there is, once something is. */
static int fill(int fd, struct scuda_inbox *in, int64_t until) {
  for (;;) {
    if (wait_for(fd, POLLIN, until) != 0) return -1;
    ssize_t k = recv(fd, in->bytes, sizeof in->bytes, MSG_DONTWAIT);
    if (k > 0) { in->r = 0; in->w = (size_t)k; return 0; }
    if (k == 0) { errno = ECONNRESET; return -1; }
    if (errno != EINTR && errno != EAGAIN) return -1;
  }
}

/* data may be NULL: the bytes are of no interest. */
int scuda_net_recv(int fd, struct scuda_inbox *in, void *data, size_t n, int64_t until) {
  char *p = data;
  while (n != 0) {
    if (in->r == in->w && fill(fd, in, until) != 0) return -1;
    size_t k = in->w - in->r < n ? in->w - in->r : n;
    if (p) { memcpy(p, in->bytes + in->r, k); p += k; }
    in->r += k;
    n -= k;
  }
  return 0;
}

int scuda_net_skip(int fd, struct scuda_inbox *in, size_t n, int64_t until) {
  return scuda_net_recv(fd, in, NULL, n, until);
}
