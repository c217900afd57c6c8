/* The NVML sessions: for each configured server one connection of kind "nvml", one call at a time. They are used in C,
 * without the Go core, because programs ask NVML for the number of GPUs *before* they fork the processes that use CUDA,
 * and a process whose Go runtime runs cannot be forked. Another process opens them (connect.h). A forked child is as
 * one that has not called nvmlInit, as natively; its nvmlInit opens connections of its own.
 *
 * Where a connection breaks, another session takes the place of the first and the question is asked again. That is
 * right for questions, and as long as the program has no handles but those of GPUs: these are good in every session of
 * a server, and the server keeps nothing else of a session that would be missed. SCUDA_RESUME=0 switches it off.
 *
 * Each session has a lock of its own, so a server that is away holds up only the calls that are for it. `opening` is
 * taken before them. */
#define _GNU_SOURCE
#include "nvml/nvml.h"
#include "base/common.h"
#include "base/connect.h"
#include "base/net.h"
#include "gen/wire_gen.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "nvml/gen/nvml_gen.h"

enum { KNOWN = 3, COUNTED = 1 };
enum {
  RETURN_MS = 60000,        /* so long a connection that broke is made again; CUDA's sessions usually have as long */
  RETURN_FIRST_MS = 50,     /* behind the first try, which is made at once */
  RETURN_MOST_MS = 2000,
  RETURN_QUIET_MS = 2000,   /* so long nobody is told of it */
  RETURNS = 3,              /* for one question: it may be what breaks them */
};

struct session {
  scuda_lock_t lock;
  int open;                 /* connected */
  int fd;
  /* of the socket: programs close descriptors that they do not know, and use their numbers */
  uint64_t cookie;
  int begun;                /* nvmlInit has come through */
  uint32_t flags;           /* of nvmlInit */
  int told;                 /* the server has said something that nobody asked for: it ends the session */
  int lost;                 /* the connection broke; stays until the program initialises NVML anew */
  uint64_t seq;             /* of the next command */
  uint64_t chain;           /* of the messages that have come */
  struct scuda_inbox in;
  /* answers that stay as they are while the session lasts, by known_index */
  struct known { uint32_t len; uint8_t reply[16]; } known[KNOWN];
  char server[320];         /* host:port, for messages */
  int placed;               /* its GPUs have numbers, which they keep while it is away */
  _Atomic uint32_t gpus;    /* so many */
  atomic_int held;          /* the program has handles that are not good in another session */
};

static struct session sessions[NVML_SERVERS];   /* in the order in which the servers are configured */
static _Atomic uint32_t configured;             /* how many; 0: nobody has said it yet */
static scuda_lock_t opening;                    /* one nvmlInit or nvmlShutdown at a time */
static atomic_int users;                        /* nvmlInit minus nvmlShutdown */

static uint32_t number_of(const struct session *s) { return (uint32_t)(s - sessions); }

uint32_t nvml_servers(void) {
  uint32_t n = atomic_load_explicit(&configured, memory_order_relaxed);
  return n ? n : 1;
}

uint32_t nvml_gpus(uint32_t server) { return atomic_load_explicit(&sessions[server].gpus, memory_order_relaxed); }

void nvml_session_holds(uint32_t server) {
  atomic_store_explicit(&sessions[server].held, 1, memory_order_relaxed);
}

/* What the kernel knows a socket by; 0 for what is none, 1 for any where it does not say. */
static uint64_t cookie_of(int fd) {
  uint64_t cookie = 0;
  socklen_t n = sizeof cookie;
  if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &n) == 0) return cookie;
  return errno == ENOPROTOOPT;
}

static int is_ours(const struct session *s) { return s->cookie != 0 && cookie_of(s->fd) == s->cookie; }

static void drop(struct session *s) {
  if (s->open && is_ours(s)) scuda_connect_close(s->fd, number_of(s));
  s->open = 0;
  s->begun = s->told = 0;
  s->in.r = s->in.w = 0;
  memset(s->known, 0, sizeof s->known);
}

/* Locks and connections are the parent's. */
static void in_child(void) {
  atomic_store(&opening.word, 0);
  for (uint32_t i = 0; i < nvml_servers(); i++) {
    struct session *s = &sessions[i];
    atomic_store(&s->lock.word, 0);
    drop(s);
    s->lost = s->placed = 0;
    atomic_store(&s->held, 0);
  }
  atomic_store(&users, 0);
  nvml_deputies_in_child();
}

static void prepare(void) {
  static atomic_int prepared;
  if (!atomic_exchange(&prepared, 1)) pthread_atfork(NULL, NULL, in_child);
}

static void session_lock(struct session *s) {
  prepare();
  scuda_lock(&s->lock);
}

static void session_unlock(struct session *s) { scuda_unlock(&s->lock); }

static void le32(uint8_t *p, uint32_t v) { memcpy(p, &v, 4); }

static int lose(struct session *s) {
  char why[128];
  scuda_log(SCUDA_ERROR,
            "lost the server %s: %s; NVML answers NVML_ERROR_GPU_IS_LOST until the program initialises it again",
            s->server, strerror_r(errno, why, sizeof why));
  drop(s);
  s->lost = 1;
  return NVML_GPU_IS_LOST;
}

struct message { uint32_t len; uint16_t type, flags; uint32_t id; int32_t result; uint64_t seq, aux; };

static uint64_t mix(uint64_t s, uint64_t v) { return (s ^ v) * 0x9e3779b97f4a7c15u; }

/* The number of the next message, which follows from it and all before it (transport.Chain). */
static uint16_t chain_next(struct session *s, const struct message *m) {
  uint64_t c = mix(s->chain + 1, m->len ^ (uint64_t)m->type << 32);
  c = mix(c ^ c >> 29, m->id ^ (uint64_t)(uint32_t)m->result << 32);
  c = mix(c ^ c >> 29, m->seq);
  c = mix(c ^ c >> 29, m->aux);
  s->chain = c ^ c >> 32;
  return (uint16_t)(c >> 48);
}

/* Receives the reply to the command `seq`. */
static int receive_reply(struct session *s, uint64_t seq, void *reply, uint32_t cap, uint32_t *got, int32_t *result) {
  struct message m;
  for (;;) {
    if (scuda_net_recv(s->fd, &s->in, &m, sizeof m) != 0) return -1;
    size_t padded = ((size_t)m.len + 7) & ~(size_t)7;
    if (m.flags != chain_next(s, &m)) {
      errno = EPROTO;
      return -1;
    }
    if (m.type == WIRE_MESSAGE_REPLY && m.seq == seq && m.len <= cap) {
      if (scuda_net_recv(s->fd, &s->in, reply, m.len) != 0 ||
          scuda_net_skip(s->fd, &s->in, padded - m.len) != 0) return -1;
      *got = m.len;
      *result = m.result;
      return 0;
    }
    if (m.type == WIRE_MESSAGE_ALIVE && m.len == 0) continue;
    if (m.type == WIRE_MESSAGE_NOTICE && m.len <= 4096) {
      char text[4097];
      if (scuda_net_recv(s->fd, &s->in, text, m.len) != 0 ||
          scuda_net_skip(s->fd, &s->in, padded - m.len) != 0) return -1;
      text[m.len] = 0;
      s->told = 1;
      scuda_log(SCUDA_WARN, "server: %s", text);
      continue;
    }
    errno = EPROTO;
    return -1;
  }
}

/* A command's header and the frame's around it; what follows has `size` bytes. */
enum { COMMAND_HEADER = 32, FRAME_HEADER = 8 };

static void frame_header(uint8_t *p, uint32_t bytes) {
  le32(p, WIRE_FRAME_MAGIC);
  le32(p + 4, bytes);
}

/* Returns the command's number. */
static uint64_t command_header(struct session *s, uint8_t *p, uint16_t op, uint16_t flags, uint32_t req_len) {
  uint32_t size = COMMAND_HEADER + req_len;
  uint64_t seq = s->seq;
  memset(p, 0, COMMAND_HEADER);
  le32(p, size);
  memcpy(p + 4, &op, 2);
  memcpy(p + 6, &flags, 2);
  memcpy(p + 8, &seq, 8);
  s->seq += size;
  return seq;
}

/* Ends the session in order, without waiting for anything. */
static void leave(struct session *s) {
  uint8_t bye[FRAME_HEADER + COMMAND_HEADER + sizeof(struct wire_bye)] = {0};
  if (s->open) {
    frame_header(bye, sizeof bye - FRAME_HEADER);
    command_header(s, bye + FRAME_HEADER, OP_BYE, 0, sizeof(struct wire_bye));
    (void)!send(s->fd, bye, sizeof bye, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  drop(s);
}

/* Many programs end without nvmlShutdown. */
__attribute__((destructor)) static void at_exit(void) {
  for (uint32_t i = 0; i < nvml_servers(); i++) {
    uint32_t open = 0;
    struct session *s = &sessions[i];
    if (!atomic_compare_exchange_strong(&s->lock.word, &open, 1)) continue; /* another thread is in a call */
    leave(s);
    scuda_unlock(&s->lock);
  }
}

struct call { uint16_t op; const void *req; uint32_t req_len; void *reply; uint32_t reply_cap, *reply_len; };

/* 0 with the result, or -1 with errno; the lock is held and the connection open. */
static int attempt(struct session *s, const struct call *c, int32_t *result) {
  uint8_t head[FRAME_HEADER + COMMAND_HEADER];
  frame_header(head, COMMAND_HEADER + c->req_len);
  uint64_t seq = command_header(s, head + FRAME_HEADER, c->op, WIRE_COMMAND_ANSWER, c->req_len);
  *c->reply_len = 0;
  if (scuda_net_send(s->fd, head, sizeof head, c->req, c->req_len) == 0)
    return receive_reply(s, seq, c->reply, c->reply_cap, c->reply_len, result);
  int broke = errno;
  if (broke == EPIPE || broke == ECONNRESET)   /* the server may have said why */
    (void)receive_reply(s, seq, c->reply, c->reply_cap, c->reply_len, result);
  errno = broke;
  return -1;
}

static int resumes(void) {
  const char *text = getenv("SCUDA_RESUME");
  return text == NULL || text[strspn(text, " \t")] != '0';
}

/* Whether another session can answer in the place of this one, which broke with errno. */
static int may_return(const struct session *s, uint16_t op) {
  int broke = errno;
  uint32_t i = op - 1u;   /* of the function */
  int asks = i < nvml_func_count && strstr(nvml_funcs[i].name, "Get") && op != NVML_OP_nvmlInternalGetExportTable;
  int by_network = broke != EPROTO && broke != EBADF && broke != ENOTSOCK && is_ours(s);
  int may = asks && by_network && s->begun && !s->told && !atomic_load(&s->held) && resumes();
  errno = broke;
  return may;
}

static int come_back(struct session *s);

/* Makes one call; the lock is held and the connection open. */
static int exchange(struct session *s, uint16_t op, const void *req, uint32_t req_len, void *reply, uint32_t reply_cap,
                    uint32_t *reply_len) {
  struct call c = {op, req, req_len, reply, reply_cap, reply_len};
  int32_t result = 0;
  for (int i = 0; attempt(s, &c, &result) != 0; i++)
    if (i == RETURNS || !may_return(s, op) || come_back(s) != 0) return lose(s);
  return result;
}

static int known_index(uint16_t op) {
  switch (op) {
  case NVML_OP_nvmlDeviceGetCount: return 0; /* the GPUs that nvmlInit found */
  case NVML_OP_nvmlDeviceGetCount_v2: return 1;
  case NVML_OP_nvmlSystemGetCudaDriverVersion_v2: return 2;
  }
  return -1;
}

static void know(struct session *s, uint16_t op, const void *reply, uint32_t len) {
  struct known *k = &s->known[known_index(op)];
  if (len > sizeof k->reply) return;
  memcpy(k->reply, reply, len);
  k->len = len;
}

/* quiet: another try follows, and nobody is to hear of each. */
static int connect_session(struct session *s, struct scuda_bytes first, int quiet) {
  struct scuda_connect_answer answer = {.code = SCUDA_CONNECT_FAILED};
  s->chain = 0;
  s->in.r = s->in.w = 0;
  s->fd = scuda_connect_session(number_of(s), "nvml", nvml_digest, first, quiet, &answer);
  if (answer.servers != 0 && s == sessions && !s->placed)
    atomic_store(&configured, answer.servers < NVML_SERVERS ? answer.servers : NVML_SERVERS);
  if (s->fd < 0) return answer.code == SCUDA_CONNECT_BUSY ? NVML_INSUFFICIENT_RESOURCES : NVML_DRIVER_NOT_LOADED;
  s->open = 1;
  s->cookie = cookie_of(s->fd);
  memcpy(s->server, answer.server, sizeof s->server);
  uint64_t version[2] = {1, (uint64_t)answer.driver_version};
  if (version[1] != 0) know(s, NVML_OP_nvmlSystemGetCudaDriverVersion_v2, version, sizeof version);
  return NVML_OK;
}

/* What programs do first costs one write and one read: nvmlInit, and the question for the number of GPUs that comes
 * next. -1 with errno where the connection broke meanwhile. */
static int connect_and_init(struct session *s, uint64_t flags, int quiet) {
  uint64_t places = 1, reply[2];
  enum { COMMAND = COMMAND_HEADER + sizeof flags };
  uint8_t first[FRAME_HEADER + 2 * COMMAND];
  uint32_t got;
  int32_t result, counted;
  s->seq = 0;
  frame_header(first, 2 * COMMAND);
  uint64_t init = command_header(s, first + FRAME_HEADER, NVML_OP_nvmlInitWithFlags, WIRE_COMMAND_ANSWER, sizeof flags);
  memcpy(first + FRAME_HEADER + COMMAND_HEADER, &flags, sizeof flags);
  uint64_t count = command_header(s, first + FRAME_HEADER + COMMAND, NVML_OP_nvmlDeviceGetCount_v2,
                                  WIRE_COMMAND_ANSWER, sizeof places);
  memcpy(first + FRAME_HEADER + COMMAND + COMMAND_HEADER, &places, sizeof places);
  int r = connect_session(s, (struct scuda_bytes){first, sizeof first}, quiet);
  if (r != NVML_OK) return r;
  if (receive_reply(s, init, NULL, 0, &got, &result) != 0 ||
      receive_reply(s, count, reply, sizeof reply, &got, &counted) != 0)
    return -1;
  if (counted == NVML_OK) know(s, NVML_OP_nvmlDeviceGetCount_v2, reply, got);
  s->begun = result == NVML_OK;
  s->flags = (uint32_t)flags;
  return result;
}

static int64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int same_gpus(const struct session *s, const struct known *before) {
  const struct known *now = &s->known[COUNTED];
  return before->len == now->len && memcmp(before->reply, now->reply, now->len) == 0;
}

/* Opens another session, which has the same GPUs. 0, or -1 with errno as it was. */
static int come_back(struct session *s) {
  struct known gpus = s->known[COUNTED];
  uint32_t flags = s->flags;
  int why = errno, told = 0, pause = 0, r;
  int64_t began = now_ms();
  for (;;) {
    drop(s);
    r = connect_and_init(s, flags, 1);
    int64_t away = now_ms() - began;
    if (r == NVML_OK && told)
      scuda_log(SCUDA_WARN, "back at the scuda server %s after %d s", s->server, (int)((away + 500) / 1000));
    if (r == NVML_OK || away >= RETURN_MS) break;
    if (!told && away >= RETURN_QUIET_MS) {
      told = 1;
      scuda_log(SCUDA_WARN, "the connection to the scuda server %s is lost; trying again for %d s", s->server,
                RETURN_MS / 1000);
    }
    pause = pause == 0 ? RETURN_FIRST_MS : pause * 2 > RETURN_MOST_MS ? RETURN_MOST_MS : pause * 2;
    usleep((useconds_t)(pause / 2 + (int)((unsigned)getpid() % (unsigned)(pause / 2 + 1))) * 1000);
  }
  errno = why;
  return r == NVML_OK && same_gpus(s, &gpus) ? 0 : -1;
}

/* What the server has said of its GPUs gives them their numbers. */
static void place(struct session *s) {
  const struct known *k = &s->known[COUNTED];
  uint32_t gpus = 0;
  if (k->len == sizeof k->reply) memcpy(&gpus, k->reply + 8, sizeof gpus);
  atomic_store(&s->gpus, gpus);
  s->placed = 1;
}

static int open_session(struct session *s, uint32_t flags) {
  uint64_t arg = flags;
  uint32_t got;
  int r;
  if (s->open) {
    r = exchange(s, NVML_OP_nvmlInitWithFlags, &arg, sizeof arg, NULL, 0, &got);
    s->begun = r == NVML_OK;
    s->flags = flags;
  } else if ((r = connect_and_init(s, arg, 0)) < 0) {
    r = lose(s);
  }
  atomic_store(&s->held, 0);
  if (r == NVML_OK) place(s);
  else leave(s);
  return r;
}

/* Opens what is not open. A server that was there before may be away: its GPUs keep their numbers, and are lost. */
static int open_sessions(uint32_t flags, int fresh) {
  int first = NVML_OK, up = 0;
  for (uint32_t i = 0; i < nvml_servers(); i++) {   /* the answer of the first says how many there are */
    struct session *s = &sessions[i];
    int r = NVML_OK, before;
    session_lock(s);
    before = s->placed;
    int opens = s->lost || fresh || !s->open;
    session_unlock(s);
    if (opens) nvml_deputies_forget(i);                /* its lock is taken before a session's */
    session_lock(s);
    if (opens) r = open_session(s, flags);
    if (r == NVML_OK) s->lost = 0, up = 1;
    else if (nvml_servers() > 1 && before) s->lost = 1;
    session_unlock(s);
    if (r != NVML_OK && first == NVML_OK) first = r;
    if (r != NVML_OK && !before) return r;          /* nobody knows which numbers the GPUs behind it have */
  }
  return up ? NVML_OK : first;
}

static void leave_all(void) {
  for (uint32_t i = 0; i < nvml_servers(); i++) {
    session_lock(&sessions[i]);
    leave(&sessions[i]);
    sessions[i].lost = 0;
    session_unlock(&sessions[i]);
  }
}

int nvml_session_begin(uint32_t flags) {
  prepare();
  scuda_lock(&opening);
  int fresh = atomic_load(&users) == 0, r = open_sessions(flags, fresh);
  if (r == NVML_OK) atomic_fetch_add(&users, 1);
  else if (fresh && nvml_servers() > 1) leave_all();
  scuda_unlock(&opening);
  return r;
}

int nvml_session_end(void) {
  prepare();
  scuda_lock(&opening);
  int r = NVML_OK;
  if (atomic_load(&users) == 0) r = NVML_UNINITIALIZED;
  else if (atomic_fetch_sub(&users, 1) == 1) leave_all();
  scuda_unlock(&opening);
  return r;
}

int nvml_session_ready(void) { return atomic_load_explicit(&users, memory_order_relaxed) > 0; }

/* Whether the connection stands and brings nothing: as long as it does, what was answered once still holds. */
static int quiet(struct session *s) {
  struct pollfd p = {.fd = s->fd, .events = POLLIN | POLLRDHUP};
  return s->in.r == s->in.w && poll(&p, 1, 0) == 0;
}

/* As exchange; what stays as it is is asked for once. */
static int ask(struct session *s, uint16_t op, const void *req, uint32_t req_len, void *reply, uint32_t reply_cap,
               uint32_t *reply_len) {
  int which = known_index(op);
  uint64_t places;
  if (which < 0 || req_len != sizeof places) return exchange(s, op, req, req_len, reply, reply_cap, reply_len);
  memcpy(&places, req, sizeof places);
  /* NULL: the driver says what it thinks of that */
  if (places != 1) return exchange(s, op, req, req_len, reply, reply_cap, reply_len);
  struct known *k = &s->known[which];
  if (k->len != 0 && k->len <= reply_cap && quiet(s)) {
    memcpy(reply, k->reply, k->len);
    *reply_len = k->len;
    return NVML_OK;
  }
  int r = exchange(s, op, req, req_len, reply, reply_cap, reply_len);
  if (r == NVML_OK) know(s, op, reply, *reply_len);
  return r;
}

int nvml_exchange(uint32_t server, uint16_t op, const void *req, uint32_t req_len, void *reply, uint32_t reply_cap,
                  uint32_t *reply_len) {
  struct session *s = &sessions[server];
  session_lock(s);
  int r;
  if (s->lost) r = NVML_GPU_IS_LOST;
  else if (!s->open) r = NVML_UNINITIALIZED;   /* another thread has shut it down */
  else r = ask(s, op, req, req_len, reply, reply_cap, reply_len);
  session_unlock(s);
  return r;
}

int nvml_table_size(const uint8_t uuid[16], uint64_t *bytes) {
  uint64_t req[3] = {16};
  uint32_t got = 0;
  memcpy(req + 1, uuid, 16);
  *bytes = 0;
  struct session *s = sessions;
  session_lock(s);
  int r = NVML_OK;
  if (s->lost) r = NVML_GPU_IS_LOST;
  else if (!s->open) {
    s->seq = 0;
    r = connect_session(s, (struct scuda_bytes){0}, 0);
  }
  if (r == NVML_OK) r = exchange(s, NVML_OP_nvmlInternalGetExportTable, req, sizeof req, bytes, 8, &got);
  session_unlock(s);
  return r == NVML_OK && got != 8 ? NVML_NOT_FOUND : r;
}
