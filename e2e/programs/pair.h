// Two processes that take turns: the program forks before it touches CUDA, and both ends talk over a socket pair.
#ifndef PAIR_H
#define PAIR_H
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int line = -1; // to the other process

// Gives 1 in the first process and 0 in the second one.
static inline int split(pid_t *child) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) FAIL("socketpair: %s", strerror(errno));
  *child = fork();
  if (*child < 0) FAIL("fork: %s", strerror(errno));
  line = ends[*child ? 0 : 1];
  close(ends[*child ? 1 : 0]);
  return *child != 0;
}

static inline void tell(const void *data, size_t n, int fd) {
  struct iovec part = {(void *)data, n};
  union { char room[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
  struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
  memset(&control, 0, sizeof control);
  if (fd >= 0) {
    m.msg_control = control.room, m.msg_controllen = sizeof control.room;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  if (sendmsg(line, &m, MSG_NOSIGNAL) != (ssize_t)n) FAIL("the other process does not listen: %s", strerror(errno));
}

// Gives the descriptor that came along, or -1.
static inline int hear(void *data, size_t n) {
  struct iovec part = {data, n};
  union { char room[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
  struct msghdr m = {
    .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room
  };
  if (recvmsg(line, &m, MSG_WAITALL) != (ssize_t)n) FAIL("the other process has ended");
  struct cmsghdr *c = CMSG_FIRSTHDR(&m);
  int fd = -1;
  if (c && c->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(c), sizeof fd);
  return fd;
}

static inline void turn(void) { tell("", 1, -1); }
static inline void await(void) {
  char c;
  hear(&c, 1);
}

static inline void child_was_right(pid_t child) {
  int status;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status))
    FAIL("the second process failed (status %#x)", status);
}
#endif
