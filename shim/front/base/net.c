/* Connections that the fronts open themselves, without the Go core: a process whose Go runtime runs cannot be forked. */
#define _GNU_SOURCE
#include "base/net.h"
#include "base/common.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef SCUDA_VERSION
#define SCUDA_VERSION "dev"
#endif
#define MAX_WELCOME (4u << 20)
#define HANDSHAKE_MS 40000 /* longer than a server waits for a worker */
#define CONNECT_MS 5000
static const char magic[8] = "SCUDA\r\n\x1a";

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

int scuda_net_skip(int fd, struct scuda_inbox *in, size_t n, int64_t until) { return scuda_net_recv(fd, in, NULL, n, until); }

/* Splits "host", "host:port", "[v6]:port" or a bare IPv6 address. */
static int split_address(const char *s, char *host, size_t cap, char port[8]) {
  const char *end = s + strlen(s), *colon = strrchr(s, ':');
  size_t n;
  snprintf(port, 8, "14833");
  if (*s == '[') {
    const char *close = strchr(s, ']');
    if (!close) return -1;
    s++;
    n = (size_t)(close - s);
    colon = close[1] == ':' ? close + 1 : NULL;
    if (close[1] != 0 && !colon) return -1;
  } else if (colon && strchr(s, ':') == colon) {
    n = (size_t)(colon - s);
  } else {
    n = (size_t)(end - s);
    colon = NULL;
  }
  if (n == 0 || n >= cap) return -1;
  memcpy(host, s, n);
  host[n] = 0;
  if (colon) {
    if (strlen(colon + 1) == 0 || strlen(colon + 1) > 5 || strspn(colon + 1, "0123456789") != strlen(colon + 1)) return -1;
    snprintf(port, 8, "%s", colon + 1);
  }
  return 0;
}

static void tune(int fd) {
  int one = 1, idle = 5, interval = 3, count = 3;
  unsigned unanswered = 15000;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered, sizeof unanswered);
}

static int dial_one(const struct addrinfo *a) {
  int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
  if (fd < 0) return -1;
  int err = 0;
  socklen_t len = sizeof err;
  if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
    if (errno != EINPROGRESS || wait_for(fd, POLLOUT, now_ms() + CONNECT_MS) != 0) err = errno;
    else getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len);
  }
  if (err) { close(fd); errno = err; return -1; }
  tune(fd);
  return fd;
}

int scuda_net_dial(const char *server) {
  char host[256], port[8];
  if (split_address(server, host, sizeof host, port) != 0) {
    scuda_log(SCUDA_ERROR, "the server address \"%s\" is not HOST:PORT; correct SCUDA_SERVER or the file ~/.config/scuda/host", server);
    return -1;
  }
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *all = NULL;
  int e = getaddrinfo(host, port, &hints, &all);
  if (e != 0) {
    scuda_log(SCUDA_ERROR, "cannot find the server %s: %s; check the name in SCUDA_SERVER or ~/.config/scuda/host", server, gai_strerror(e));
    return -1;
  }
  int fd = -1;
  for (struct addrinfo *a = all; a && fd < 0; a = a->ai_next) fd = dial_one(a);
  e = errno;
  freeaddrinfo(all);
  if (fd < 0) {
    char why[128];
    scuda_log(SCUDA_ERROR, "cannot reach the server %s: %s; check that `scuda -l` runs there and that the port is open", server,
              strerror_r(e, why, sizeof why));
  }
  return fd;
}

static void le32(uint8_t *p, uint32_t v) { memcpy(p, &v, 4); }

/* Text as the inside of a JSON string; what needs escapes is dropped. */
static const char *plain(const char *s, char *out, size_t cap) {
  size_t n = 0;
  for (; *s && n + 1 < cap; s++)
    if ((unsigned char)*s >= ' ' && (unsigned char)*s < 127 && *s != '"' && *s != '\\') out[n++] = *s;
  out[n] = 0;
  return out;
}

/* The text of "error" in a refused welcome. */
static const char *refusal(const char *json, char *out, size_t cap) {
  const char *p = strstr(json, "\"error\":\"");
  size_t n = 0;
  if (!p) return "no reason given";
  for (p += 9; *p && *p != '"' && n + 1 < cap; p++) {
    if (*p == '\\' && p[1]) p++;
    out[n++] = *p;
  }
  out[n] = 0;
  return out;
}

/* Reads the welcome's text into new memory, or past it. */
static int take_welcome(int fd, struct scuda_inbox *in, uint32_t len, char **welcome, int64_t until) {
  if (!welcome) return scuda_net_skip(fd, in, len, until);
  *welcome = malloc((size_t)len + 1);
  if (!*welcome) return -1;
  (*welcome)[len] = 0;
  if (scuda_net_recv(fd, in, *welcome, len, until) == 0) return 0;
  free(*welcome);
  *welcome = NULL;
  return -1;
}

int scuda_net_hello(int fd, struct scuda_inbox *in, const char *server, const char *kind, const char *digest, struct scuda_bytes first, char **welcome) {
  char token[513], name[256] = "", host[256], program[256], json[1024];
  int64_t until = now_ms() + HANDSHAKE_MS;
  size_t tokens = scuda_token(token, sizeof token) ? strlen(token) : 0;
  gethostname(name, sizeof name - 1);
  int jlen = snprintf(json, sizeof json, "{\"Kind\":\"%s\",\"Version\":\"%s\",\"Digest\":\"%s\",\"Host\":\"%s\",\"Program\":\"%s\",\"PID\":%d}",
                      kind, SCUDA_VERSION, digest, plain(name, host, sizeof host),
                      plain(program_invocation_short_name, program, sizeof program), (int)getpid());
  uint8_t out[8 + 4 + 4 + 512 + 4 + sizeof json];
  size_t n = 0;
  memcpy(out, magic, 8);
  le32(out + 8, PROTOCOL_VERSION);
  le32(out + 12, (uint32_t)tokens);
  memcpy(out + 16, token, tokens);
  n = 16 + tokens;
  le32(out + n, (uint32_t)jlen);
  memcpy(out + n + 4, json, (size_t)jlen);
  n += 4 + (size_t)jlen;

  uint8_t head[20];
  if (scuda_net_send(fd, out, n, first.data, first.n, until) != 0 || scuda_net_recv(fd, in, head, sizeof head, until) != 0) {
    char why[128];
    scuda_log(SCUDA_ERROR, "the server %s did not answer the greeting: %s; check that a scuda server listens on that port", server,
              strerror_r(errno, why, sizeof why));
    return -1;
  }
  uint32_t version, status, len;
  memcpy(&version, head + 8, 4);
  memcpy(&status, head + 12, 4);
  memcpy(&len, head + 16, 4);
  if (memcmp(head, magic, 8) != 0 || len > MAX_WELCOME) {
    scuda_log(SCUDA_ERROR, "%s is not a scuda server; check the port in SCUDA_SERVER or ~/.config/scuda/host", server);
    return -1;
  }
  if (status == 0 && version == PROTOCOL_VERSION) return take_welcome(fd, in, len, welcome, until);
  char text[1024] = "", why[512];
  size_t want = len < sizeof text - 1 ? len : sizeof text - 1;
  if (scuda_net_recv(fd, in, text, want, until) != 0) text[0] = 0;
  scuda_log(SCUDA_ERROR, "the server %s (protocol version %u, here %u) refuses: %s", server, version, PROTOCOL_VERSION,
            refusal(text, why, sizeof why));
  return -1;
}

int32_t scuda_net_version_in(const char *welcome) {
  static const char key[] = "\"DriverVersion\":";
  const char *at = strstr(welcome, key);
  return at ? (int32_t)strtol(at + sizeof key - 1, NULL, 10) : 0;
}

int scuda_net_driver_version(int32_t *version) {
  char server[320], *welcome = NULL;
  if (!scuda_server(server, sizeof server)) return -1;
  int fd = scuda_net_dial(server);
  if (fd < 0) return -1;
  struct scuda_inbox in = {0};
  *version = 0;
  if (scuda_net_hello(fd, &in, server, "info", "", (struct scuda_bytes){0}, &welcome) == 0) {
    *version = scuda_net_version_in(welcome);
    if (*version <= 0) scuda_log(SCUDA_ERROR, "the server %s does not say which driver it has; look at its log", server);
    free(welcome);
  }
  close(fd);
  return *version > 0 ? 0 : -1;
}
