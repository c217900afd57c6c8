/* The bytes of a connection that the NVML front reads and writes itself. */
#define _GNU_SOURCE
#include "base/net.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { BEAT_MS = 2500, SILENT_BEATS = 5 };   /* as transport.Beat and transport.SilentBeats */

/* Waits until fd is ready. It counts beats and no time, so that a process that was stopped does not take itself for
 * forsaken. */
static int wait_for(int fd, short events) {
  for (int silent = 0; silent < SILENT_BEATS;) {
    struct pollfd p = {.fd = fd, .events = events};
    int n = poll(&p, 1, BEAT_MS);
    if (n > 0) return 0;
    if (n == 0) silent++;
    else if (errno != EINTR) return -1;
  }
  errno = ETIMEDOUT;
  return -1;
}

int scuda_net_send(int fd, const void *data, size_t n, const void *more, size_t m) {
  struct iovec v[2] = {{(void *)(uintptr_t)data, n}, {(void *)(uintptr_t)more, m}};
  struct msghdr h = {.msg_iov = v, .msg_iovlen = 2};
  while (v[0].iov_len + v[1].iov_len != 0) {
    ssize_t k = sendmsg(fd, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (k < 0 && errno == EINTR) continue;
    if (k < 0 && errno != EAGAIN) return -1;
    if (k < 0 && wait_for(fd, POLLOUT) != 0) return -1;
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
static int fill(int fd, struct scuda_inbox *in) {
  for (;;) {
    if (wait_for(fd, POLLIN) != 0) return -1;
    ssize_t k = recv(fd, in->bytes, sizeof in->bytes, MSG_DONTWAIT);
    if (k > 0) { in->r = 0; in->w = (size_t)k; return 0; }
    if (k == 0) { errno = ECONNRESET; return -1; }
    if (errno != EINTR && errno != EAGAIN) return -1;
  }
}

/* data may be NULL: the bytes are of no interest. */
int scuda_net_recv(int fd, struct scuda_inbox *in, void *data, size_t n) {
  char *p = data;
  while (n != 0) {
    if (in->r == in->w && fill(fd, in) != 0) return -1;
    size_t k = in->w - in->r < n ? in->w - in->r : n;
    if (p) { memcpy(p, in->bytes + in->r, k); p += k; }
    in->r += k;
    n -= k;
  }
  return 0;
}

int scuda_net_skip(int fd, struct scuda_inbox *in, size_t n) {
  return scuda_net_recv(fd, in, NULL, n);
}
