/* The NVML session: one connection of kind "nvml", one call at a time. It is made in C, without the Go core, because programs ask NVML for
 * the number of GPUs *before* they fork the processes that use CUDA, and a process whose Go runtime runs cannot be forked.
 * A forked child opens its own connection at its next call. */
#define _GNU_SOURCE
#include "nvml.h"
#include "common.h"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "gen/nvml_gen.h"

#define PROTOCOL_VERSION 1u
#define FRAME_MAGIC 0x46435553u
#define FLAG_ANSWER 1u
#define MSG_REPLY 1
#define MSG_TEXT 4
#define MAX_WELCOME (4u << 20)
#define HANDSHAKE_MS 10000
#define CONNECT_MS 5000
static const char magic[8] = "SCUDA\r\n\x1a";

static struct {
  scuda_lock_t lock;
  atomic_int owner;         /* process that the state below belongs to; -1 while a forked child takes over */
  int fd;                   /* -1: not connected */
  int lost;                 /* the connection broke; stays until the program initialises NVML anew */
  uint32_t flags;           /* of nvmlInitWithFlags */
  uint64_t seq;
  char server[320];         /* host:port, for messages */
} session = {.fd = -1};
static atomic_int users;    /* nvmlInit minus nvmlShutdown; a forked child inherits it */

/* Takes the lock. In a forked child the lock and the connection are the parent's: the child starts with its own. */
static void session_lock(void) {
  int self = getpid(), owner = atomic_load(&session.owner);
  while (owner != self) {
    if (owner != -1 && atomic_compare_exchange_strong(&session.owner, &owner, -1)) {
      atomic_store(&session.lock.word, 0);
      if (session.fd >= 0 && owner != 0) close(session.fd);
      session.fd = -1;
      session.lost = 0;
      atomic_store(&session.owner, self);
    }
    owner = atomic_load(&session.owner);
  }
  scuda_lock(&session.lock);
}

static void session_unlock(void) { scuda_unlock(&session.lock); }

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

static int send_all(int fd, const void *data, size_t n, int64_t until) {
  const char *p = data;
  while (n != 0) {
    ssize_t k = send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (k > 0) { p += k; n -= (size_t)k; continue; }
    if (k < 0 && errno == EINTR) continue;
    if (k < 0 && errno != EAGAIN) return -1;
    if (wait_for(fd, POLLOUT, until) != 0) return -1;
  }
  return 0;
}

static int recv_all(int fd, void *data, size_t n, int64_t until) {
  char *p = data;
  while (n != 0) {
    ssize_t k = recv(fd, p, n, MSG_DONTWAIT);
    if (k > 0) { p += k; n -= (size_t)k; continue; }
    if (k == 0) { errno = ECONNRESET; return -1; }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return -1;
    if (wait_for(fd, POLLIN, until) != 0) return -1;
  }
  return 0;
}

static int skip(int fd, size_t n, int64_t until) {
  char waste[4096];
  while (n != 0) {
    size_t k = n < sizeof waste ? n : sizeof waste;
    if (recv_all(fd, waste, k, until) != 0) return -1;
    n -= k;
  }
  return 0;
}

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

static int dial(const char *server) {
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

static int shake_hands(int fd, const char *server) {
  char token[513], name[256] = "", host[256], program[256], json[1024];
  int64_t until = now_ms() + HANDSHAKE_MS;
  size_t tokens = scuda_token(token, sizeof token) ? strlen(token) : 0;
  gethostname(name, sizeof name - 1);
  int jlen = snprintf(json, sizeof json, "{\"Kind\":\"nvml\",\"Version\":\"%s\",\"Digest\":\"%s\",\"Host\":\"%s\",\"Program\":\"%s\",\"PID\":%d}",
                      SCUDA_VERSION, nvml_digest, plain(name, host, sizeof host),
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
  if (send_all(fd, out, n, until) != 0 || recv_all(fd, head, sizeof head, until) != 0) {
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
  if (status == 0 && version == PROTOCOL_VERSION) return skip(fd, len, until);
  char text[1024] = "", why[512];
  size_t want = len < sizeof text - 1 ? len : sizeof text - 1;
  if (recv_all(fd, text, want, until) != 0) text[0] = 0;
  scuda_log(SCUDA_ERROR, "the server %s (protocol version %u, here %u) refuses: %s", server, version, PROTOCOL_VERSION,
            refusal(text, why, sizeof why));
  return -1;
}

static void drop(void) {
  if (session.fd >= 0) close(session.fd);
  session.fd = -1;
}

static int lose(void) {
  char why[128];
  scuda_log(SCUDA_ERROR, "lost the server %s: %s; NVML answers NVML_ERROR_GPU_IS_LOST until the program initialises it again",
            session.server, strerror_r(errno, why, sizeof why));
  drop();
  session.lost = 1;
  return NVML_GPU_IS_LOST;
}

struct message { uint32_t len; uint16_t type, flags; uint32_t id; int32_t result; uint64_t seq, aux; };

static int receive_reply(void *reply, uint32_t cap, uint32_t *got, int32_t *result) {
  struct message m;
  for (;;) {
    if (recv_all(session.fd, &m, sizeof m, 0) != 0) return -1;
    size_t padded = ((size_t)m.len + 7) & ~(size_t)7;
    if (m.type == MSG_REPLY && m.len <= cap) {
      if (recv_all(session.fd, reply, m.len, 0) != 0 || skip(session.fd, padded - m.len, 0) != 0) return -1;
      *got = m.len;
      *result = m.result;
      return 0;
    }
    if (m.type == MSG_TEXT && m.len <= 4096) {
      char text[4097];
      if (recv_all(session.fd, text, m.len, 0) != 0 || skip(session.fd, padded - m.len, 0) != 0) return -1;
      text[m.len] = 0;
      scuda_log(SCUDA_WARN, "server: %s", text);
      continue;
    }
    errno = EPROTO;
    return -1;
  }
}

/* Makes one call; the lock is held and the connection open. */
static int exchange(uint16_t op, const void *req, uint32_t req_len, void *reply, uint32_t reply_cap, uint32_t *reply_len) {
  uint8_t head[40] = {0};
  uint32_t size = 32 + req_len;
  uint16_t flags = FLAG_ANSWER;
  int32_t result = 0;
  le32(head, FRAME_MAGIC);
  le32(head + 4, size);
  le32(head + 8, size);
  memcpy(head + 12, &op, 2);
  memcpy(head + 14, &flags, 2);
  memcpy(head + 16, &session.seq, 8);
  session.seq += size;
  *reply_len = 0;
  if (send_all(session.fd, head, sizeof head, 0) != 0 || send_all(session.fd, req, req_len, 0) != 0 ||
      receive_reply(reply, reply_cap, reply_len, &result) != 0)
    return lose();
  return result;
}

static int connect_session(void) {
  if (!scuda_server(session.server, sizeof session.server)) return NVML_DRIVER_NOT_LOADED;
  int fd = dial(session.server);
  if (fd < 0) return NVML_DRIVER_NOT_LOADED;
  if (shake_hands(fd, session.server) != 0) {
    close(fd);
    return NVML_DRIVER_NOT_LOADED;
  }
  session.fd = fd;
  session.seq = 0;
  return NVML_OK;
}

static int open_session(uint32_t flags) {
  uint64_t arg = flags;
  uint32_t got;
  int r = session.fd >= 0 ? NVML_OK : connect_session();
  if (r == NVML_OK) r = exchange(NVML_OP_nvmlInitWithFlags, &arg, 8, NULL, 0, &got);
  if (r != NVML_OK) drop();
  return r;
}

int nvml_session_begin(uint32_t flags) {
  session_lock();
  int r = NVML_OK;
  if (session.lost || atomic_load(&users) == 0 || session.fd < 0) {
    r = open_session(flags);
    if (r == NVML_OK) {
      session.lost = 0;
      session.flags = flags;
    }
  }
  if (r == NVML_OK) atomic_fetch_add(&users, 1);
  session_unlock();
  return r;
}

int nvml_session_end(void) {
  session_lock();
  int r = NVML_OK;
  if (atomic_load(&users) == 0) {
    r = NVML_UNINITIALIZED;
  } else if (atomic_fetch_sub(&users, 1) == 1) {
    drop();
    session.lost = 0;
  }
  session_unlock();
  return r;
}

int nvml_session_ready(void) { return atomic_load_explicit(&users, memory_order_relaxed) > 0; }

int nvml_exchange(uint16_t op, const void *req, uint32_t req_len, void *reply, uint32_t reply_cap, uint32_t *reply_len) {
  session_lock();
  int r;
  if (session.lost) r = NVML_GPU_IS_LOST;
  else if (session.fd < 0 && (r = open_session(session.flags)) != NVML_OK) session.lost = 1;   /* in a forked child */
  else r = exchange(op, req, req_len, reply, reply_cap, reply_len);
  session_unlock();
  return r;
}

int nvml_table_size(const uint8_t uuid[16], uint64_t *bytes) {
  uint64_t req[3] = {16};
  uint32_t got = 0;
  memcpy(req + 1, uuid, 16);
  *bytes = 0;
  session_lock();
  int r = NVML_OK;
  if (session.lost) r = NVML_GPU_IS_LOST;
  else if (session.fd < 0) r = atomic_load(&users) > 0 ? open_session(session.flags) : connect_session();
  if (r == NVML_OK) r = exchange(NVML_OP_nvmlInternalGetExportTable, req, sizeof req, bytes, 8, &got);
  session_unlock();
  return r == NVML_OK && got != 8 ? NVML_NOT_FOUND : r;
}
