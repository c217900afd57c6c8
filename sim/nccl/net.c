#define _GNU_SOURCE
#include "sim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STAR = 0x53, TRANSFER = 0x54, NONCE = 8 };
/* laid out as NVIDIA's: a number, and where to meet */
struct id { uint8_t nonce[NONCE]; struct sockaddr_in root; };
struct arrival { uint8_t nonce[NONCE]; int32_t ranks, rank; struct sockaddr_in address; };
struct greeting { int32_t kind, rank; };

static int listen_anywhere(struct sockaddr_in *address) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t n = sizeof *address;
  memset(address, 0, sizeof *address);
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || bind(fd, (struct sockaddr *)address, n) || listen(fd, 1024) ||
      getsockname(fd, (struct sockaddr *)address, &n)) {
    if (fd >= 0) close(fd);
    return -1;
  }
  return fd;
}

static int connect_to(const struct sockaddr_in *address) {
  int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address)) {
    close(fd);
    return -1;
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

/* Until it can be read or written, or the communicator is aborted. */
static int await(struct comm *c, int fd, short events) {
  struct pollfd p[2] = {{fd, events, 0}, {c ? c->wake[0] : -1, POLLIN, 0}};
  while (poll(p, 2, -1) < 0 && errno == EINTR) {
  }
  return c && c->aborted ? ncclRemoteError : ncclSuccess;
}

static int move(struct comm *c, int fd, void *p, size_t n, int writes) {
  for (uint8_t *at = p; n;) {
    int r = await(c, fd, writes ? POLLOUT : POLLIN);
    if (r) return r;
    ssize_t m = writes ? send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, at, n, MSG_DONTWAIT);
    if (m < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (m <= 0) return ncclRemoteError;
    at += m;
    n -= (size_t)m;
  }
  return ncclSuccess;
}
int sim_write(struct comm *c, int fd, const void *p, size_t n) { return move(c, fd, (void *)(uintptr_t)p, n, 1); }
int sim_read(struct comm *c, int fd, void *p, size_t n) { return move(c, fd, p, n, 0); }

/* ---- the beginning: all ranks tell the root where they listen, and it tells all ---- */

struct root { int fd; uint8_t nonce[NONCE]; };

static void *gather(void *argument) {
  struct root *root = argument;
  struct sockaddr_in *table = NULL;
  int *fds = NULL, ranks = 0, come = 0;
  while (!ranks || come < ranks) {
    int fd = accept4(root->fd, NULL, NULL, SOCK_CLOEXEC);
    struct arrival a;
    if (fd < 0) break;
    if (sim_read(NULL, fd, &a, sizeof a) || memcmp(a.nonce, root->nonce, NONCE) || a.ranks < 1 || a.rank < 0 ||
        a.rank >= a.ranks || (ranks && a.ranks != ranks)) {
      close(fd); /* nobody of ours */
      continue;
    }
    if (!ranks) {
      ranks = a.ranks;
      table = calloc((size_t)ranks, sizeof *table);
      fds = malloc((size_t)ranks * sizeof *fds);
      for (int i = 0; i < ranks; i++) fds[i] = -1;
    }
    if (fds[a.rank] >= 0) {
      close(fd);
      continue;
    }
    fds[a.rank] = fd;
    table[a.rank] = a.address;
    come++;
  }
  for (int i = 0; i < ranks; i++) {
    if (come == ranks) sim_write(NULL, fds[i], table, (size_t)ranks * sizeof *table);
    if (fds[i] >= 0) close(fds[i]);
  }
  close(root->fd);
  free(table);
  free(fds);
  free(root);
  return NULL;
}

int sim_unique_id(ncclUniqueId *id) {
  struct root *root = malloc(sizeof *root);
  struct id in;
  pthread_t thread;
  memset(id, 0, sizeof *id);
  if (!root || (root->fd = listen_anywhere(&in.root)) < 0 || getrandom(root->nonce, NONCE, 0) != NONCE) {
    free(root);
    return ncclSystemError;
  }
  memcpy(in.nonce, root->nonce, NONCE);
  memcpy(id->bytes, &in, sizeof in);
  if (pthread_create(&thread, NULL, gather, root)) {
    close(root->fd);
    free(root);
    return ncclSystemError;
  }
  pthread_detach(thread);
  return ncclSuccess;
}

int sim_listen(struct comm *c, struct sockaddr_in *address) {
  return pipe(c->wake) || (c->listener = listen_anywhere(address)) < 0 ? ncclSystemError : ncclSuccess;
}

int sim_meet(struct comm *c, const ncclUniqueId *id) {
  struct arrival a = {.ranks = c->ranks, .rank = c->rank};
  struct id in;
  memcpy(&in, id->bytes, sizeof in);
  memcpy(a.nonce, in.nonce, NONCE);
  if (sim_listen(c, &a.address)) return ncclSystemError;
  int fd = connect_to(&in.root);
  if (fd < 0) return ncclRemoteError;
  struct sockaddr_in *table = malloc((size_t)c->ranks * sizeof *table);
  int r = table ? sim_write(c, fd, &a, sizeof a) : ncclSystemError;
  if (!r) r = sim_read(c, fd, table, (size_t)c->ranks * sizeof *table);
  close(fd);
  for (int i = 0; i < c->ranks && !r; i++) c->peers[i] = (struct peer){table[i], {-1, 0}, {-1, 0}, {-1, 0}};
  free(table);
  return r;
}

/* ---- connections ---- */

static int is_transfer(const struct operation *o) { return o->function == SEND || o->function == RECV; }

/* To another rank, which is told what for. */
static int call_peer(struct comm *c, int rank, int kind, struct link *l) {
  struct greeting g = {kind, c->rank};
  if (l->fd >= 0) return ncclSuccess;
  l->fd = connect_to(&c->peers[rank].address);
  return l->fd < 0 ? ncclRemoteError : sim_write(c, l->fd, &g, sizeof g);
}

/* Takes connections of others until this one has come, and says that it was wanted. */
static int await_peer(struct comm *c, struct link *l) {
  while (l->fd < 0) {
    struct greeting g;
    int r = await(c, c->listener, POLLIN);
    if (r) return r;
    int got = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC), one = 1;
    if (got < 0) return ncclSystemError;
    setsockopt(got, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct link *of = NULL;
    if (!sim_read(c, got, &g, sizeof g) && g.rank >= 0 && g.rank < c->ranks)
      of = g.kind == STAR ? &c->peers[g.rank].star : &c->peers[g.rank].from;
    if (of && of->fd < 0) of->fd = got;
    else close(got);
  }
  if (l->agreed) return ncclSuccess;
  l->agreed = 1;
  return sim_write(c, l->fd, "", 1);
}

/* Whom this rank called makes the same call. */
static int agree(struct comm *c, struct link *l) {
  char byte;
  if (l->agreed) return ncclSuccess;
  l->agreed = 1;
  return sim_read(c, l->fd, &byte, 1);
}

enum step { CALL, AWAIT, AGREE };

static int link_step(struct comm *c, enum step step, int rank, int kind, struct link *l, int calls) {
  if (step == CALL) return calls ? call_peer(c, rank, kind, l) : ncclSuccess;
  if (step == AWAIT) return calls ? ncclSuccess : await_peer(c, l);
  return calls ? agree(c, l) : ncclSuccess;
}

/* All calls are made before any is waited for, or two ranks would wait for each other. */
int sim_connect(struct comm *c, const struct operation *list, int count) {
  int r = ncclSuccess;
  for (int step = CALL; step <= AGREE && !r; step++)
    for (int i = 0; i < count && !r; i++) {
      const struct operation *o = &list[i];
      struct peer *p = &c->peers[o->peer];
      if (is_transfer(o) && o->peer != c->rank)
        r = link_step(c, step, o->peer, TRANSFER, o->function == SEND ? &p->to : &p->from, o->function == SEND);
      if (is_transfer(o)) continue;
      if (c->rank) r = link_step(c, step, 0, STAR, &c->peers[0].star, 1);
      for (int k = 1; k < c->ranks && !c->rank && !r; k++) r = link_step(c, step, k, STAR, &c->peers[k].star, 0);
    }
  return r;
}

/* ---- transfers ---- */

/* A rank's own: each send goes to the next receive. */
static int own_transfers(struct operation *list, int count) {
  int to = 0;
  for (int i = 0; i < count; i++) {
    if (list[i].function != SEND) continue;
    while (to < count && list[to].function != RECV) to++;
    if (to == count || list[to].out_bytes != list[i].in_bytes) return ncclInvalidUsage;
    memcpy(list[to].out, list[i].in, list[i].in_bytes);
    to++;
  }
  return ncclSuccess;
}

/* One step of a transfer, without waiting; what is left. */
static int step_transfer(struct comm *c, struct operation *o, size_t *at) {
  int sends = o->function == SEND, fd = sends ? c->peers[o->peer].to.fd : c->peers[o->peer].from.fd;
  size_t n = (sends ? o->in_bytes : o->out_bytes) - *at;
  if (!n) return ncclSuccess;
  ssize_t m = sends ? send(fd, o->in + *at, n, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, o->out + *at, n, MSG_DONTWAIT);
  if (m < 0 && (errno == EAGAIN || errno == EINTR)) return ncclSuccess;
  if (m <= 0) return ncclRemoteError;
  *at += (size_t)m;
  return ncclSuccess;
}

/* Those of one link come one behind the other: an operation is this far if none before it is on its link. */
static int is_next(const struct operation *list, const size_t *at, int i) {
  for (int k = 0; k < i; k++)
    if (list[k].function == list[i].function && list[k].peer == list[i].peer &&
        at[k] < (list[k].function == SEND ? list[k].in_bytes : list[k].out_bytes))
      return 0;
  return at[i] < (list[i].function == SEND ? list[i].in_bytes : list[i].out_bytes);
}

int sim_transfer(struct comm *c, struct operation *all, int count) {
  struct operation *list = calloc((size_t)count + 1, sizeof *list), *own = calloc((size_t)count + 1, sizeof *own);
  size_t *at = calloc((size_t)count + 1, sizeof *at);
  struct pollfd *fds = calloc((size_t)count + 1, sizeof *fds);
  int n = 0, owns = 0, r = list && own && at && fds ? ncclSuccess : ncclSystemError;
  for (int i = 0; i < count && !r; i++) {
    if (!is_transfer(&all[i])) continue;
    if (all[i].peer == c->rank) own[owns++] = all[i];
    else list[n++] = all[i];
  }
  if (!r) r = own_transfers(own, owns);
  for (int left = 1; left && !r;) {
    left = 0;
    for (int i = 0; i < n && !r; i++) {
      if (!is_next(list, at, i)) continue;
      r = step_transfer(c, &list[i], &at[i]);
      if (!is_next(list, at, i)) {
        left = left ? left : -1; /* it is done, and another may be next */
        continue;
      }
      int sends = list[i].function == SEND;
      left = left < 0 ? 1 : left + 1;
      fds[left - 1] = (struct pollfd){sends ? c->peers[list[i].peer].to.fd : c->peers[list[i].peer].from.fd,
                                      sends ? POLLOUT : POLLIN, 0};
    }
    if (left > 0 && !r) {
      fds[left] = (struct pollfd){c->wake[0], POLLIN, 0};
      poll(fds, (nfds_t)left + 1, -1);
      if (c->aborted) r = ncclRemoteError;
    }
  }
  free(list);
  free(own);
  free(at);
  free(fds);
  return r;
}

int sim_exchange(struct comm *c, const uint8_t *takes_part, const void *mine, void *all, size_t bytes) {
  struct operation *list = calloc(2 * (size_t)c->ranks, sizeof *list);
  int n = 0, r = list ? ncclSuccess : ncclSystemError;
  for (int k = 0; k < c->ranks && !r; k++) {
    if (!takes_part[k]) continue;
    list[n++] = (struct operation){.function = SEND, .peer = k, .in_bytes = bytes, .in = (uint8_t *)(uintptr_t)mine};
    list[n++] = (struct operation){.function = RECV, .peer = k, .out_bytes = bytes,
                                   .out = (uint8_t *)all + (size_t)k * bytes};
  }
  if (!r) r = sim_connect(c, list, n);
  if (!r) r = sim_transfer(c, list, n);
  free(list);
  return r;
}

void sim_close(struct comm *c) {
  for (int i = 0; i < c->ranks; i++) {
    struct link *links[] = {&c->peers[i].star, &c->peers[i].to, &c->peers[i].from};
    for (int k = 0; k < 3; k++) {
      if (links[k]->fd >= 0) close(links[k]->fd);
      links[k]->fd = -1;
    }
  }
  if (c->listener >= 0) close(c->listener);
  c->listener = -1;
}
