/* Starts scuda-connect and takes the connection that it made. The program around us sees nothing of that:
 *
 *  - no pthread_atfork handler runs and no memory is copied, because the children share ours until they execute the
 *    program (CLONE_VM), as those of posix_spawn do; the caller's signals are blocked meanwhile, and system calls are
 *    made as such, not by functions that a preloaded library may have replaced;
 *  - no SIGCHLD comes and no wait() of the program's finds a child. A child that executes a program always ends with
 *    SIGCHLD, whatever clone was told, so it is a grandchild: the child between has no exit signal, is gone at once,
 *    and only we wait for it (__WCLONE). Where the program itself adopts orphans (PID 1 of a container,
 *    PR_SET_CHILD_SUBREAPER) the SIGCHLD of one comes, and we reap it;
 *  - the grandchild has no descriptor of the program's but standard error, and of its environment only our own
 *    settings, so no LD_PRELOAD;
 *  - its standard input is a socket whose other end only this process has: when we close that, or the process ends in
 *    whatever way, it ends. */
#define _GNU_SOURCE
#include "base/connect.h"
#include "base/common.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#define PROGRAM "scuda-connect"
enum {
  STACK = 64 << 10,      /* of a child */
  SETTINGS = 64,         /* variables that are passed on, at most */
  MANY = 4096,           /* descriptors that are closed where the kernel cannot close a range (before 5.9) */
  PATIENCE_S = 60,       /* longer than scuda-connect may take to connect and to shake hands */
};

struct start {
  const char *path;
  char *argv[2], *env[SETTINGS + 1];
  int channel;           /* the socket that becomes standard input */
  char *stack;           /* of the grandchild: its end */
  pid_t grandchild;
  int error;             /* errno of what failed */
};

static void end_child(void) { syscall(SYS_exit_group, 0); }

static void close_from(int first) {
  if (syscall(SYS_close_range, first, ~0u, 0) == 0) return;
  for (int fd = first; fd < MANY; fd++) syscall(SYS_close, fd);
}

static int become_connect(void *arg) {
  struct start *s = arg;
  if (s->channel != STDIN_FILENO) syscall(SYS_dup3, s->channel, STDIN_FILENO, 0);
  else syscall(SYS_fcntl, STDIN_FILENO, F_SETFD, 0);
  syscall(SYS_close, STDOUT_FILENO);
  close_from(STDERR_FILENO + 1);
  syscall(SYS_execve, s->path, s->argv, s->env);
  s->error = errno;
  end_child();
  return 0;
}

static int between(void *arg) {
  struct start *s = arg;
  s->grandchild = clone(become_connect, s->stack, CLONE_VM | CLONE_VFORK | SIGCHLD, s);
  if (s->grandchild < 0) s->error = errno;
  end_child();
  return 0;
}

/* The variables that say something to scuda-connect: ours, and where the settings' files are. */
static void choose_settings(struct start *s) {
  static const char *const names[] = {"SCUDA_", "HOME=", "XDG_CONFIG_HOME="};
  size_t n = 0;
  for (char **e = environ; e && *e && n < SETTINGS; e++)
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
      if (!strncmp(*e, names[i], strlen(names[i]))) { s->env[n++] = *e; break; }
}

/* Starts the program; its process, or -1 with errno. */
static pid_t start_connect(const char *path, int channel) {
  struct start s = {.path = path, .argv = {(char *)(uintptr_t)PROGRAM}, .channel = channel};
  choose_settings(&s);
  char *stacks = mmap(NULL, 2 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stacks == MAP_FAILED) return -1;
  s.stack = stacks + STACK;
  sigset_t everything, mask;
  sigfillset(&everything);
  pthread_sigmask(SIG_SETMASK, &everything, &mask);
  pid_t child = clone(between, stacks + 2 * STACK, CLONE_VM | CLONE_VFORK, &s);
  if (child < 0) s.error = errno;
  else while (waitpid(child, NULL, __WCLONE) < 0 && errno == EINTR) {}
  pthread_sigmask(SIG_SETMASK, &mask, NULL);
  munmap(stacks, 2 * STACK);
  errno = s.error;
  return s.error ? -1 : s.grandchild;
}

/* Takes the answer and the connection that is attached to it, or -1 in its place. */
static int take_answer(int channel, struct scuda_connect_answer *answer, int *fd) {
  union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
  struct iovec v = {answer, sizeof *answer};
  struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  ssize_t n;
  do n = recvmsg(channel, &h, MSG_CMSG_CLOEXEC);
  while (n < 0 && errno == EINTR);
  *fd = -1;
  if (n < 0) return -1;
  struct cmsghdr *c = CMSG_FIRSTHDR(&h);
  int attached = c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof *fd);
  if (attached) memcpy(fd, CMSG_DATA(c), sizeof *fd);
  errno = n == 0 ? ECONNRESET : EPROTO;
  return n == sizeof *answer && answer->abi == SCUDA_CONNECT_ABI ? 0 : -1;
}

static int fail(const char *path, const char *what) {
  char why[128];
  const char *cause = strerror_r(errno, why, sizeof why);
  scuda_log(SCUDA_ERROR,
            "cannot connect to the server: %s %s: %s; install scuda anew, with all its parts from one build",
            path, what, cause);
  return -1;
}

static int ask(int channel, pid_t *process, const char *path, int other, const struct scuda_connect_request *r,
               struct scuda_bytes first, struct scuda_connect_answer *answer, int *fd) {
  struct iovec v[2] = {{(void *)(uintptr_t)r, sizeof *r}, {(void *)(uintptr_t)first.data, first.n}};
  struct msghdr h = {.msg_iov = v, .msg_iovlen = 2};
  struct timeval patience = {.tv_sec = PATIENCE_S};
  setsockopt(channel, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (sendmsg(channel, &h, MSG_NOSIGNAL) < 0) return fail(path, "cannot be told what to do");
  *process = start_connect(path, other);
  if (*process < 0) return fail(path, "cannot be started");
  close(other);
  return take_answer(channel, answer, fd) == 0 ? 0 : fail(path, "gave no answer that this library understands");
}

/* The processes that pass the bytes of the connections on, where they are children of ours; by the servers' numbers. */
static pid_t relays[SCUDA_CONNECT_SERVERS];

void scuda_connect_close(int fd, uint32_t number) {
  pid_t relay = relays[number];
  relays[number] = 0;
  close(fd);
  /* That ends the process; what it leaves behind is not to stay for as long as the program lives. */
  for (int i = 0; relay > 0 && i < 100; i++) {
    pid_t n = waitpid(relay, NULL, WNOHANG);
    if (n == 0) usleep(1000);
    else if (n > 0 || errno != EINTR) break;
  }
}

/* Has a connection made. The answer is that of success, or -1 is returned. */
static int connect_by(const struct scuda_connect_request *r, struct scuda_bytes first, int quiet,
                      struct scuda_connect_answer *answer, int *fd) {
  char folder[PATH_MAX], path[PATH_MAX + sizeof "/" PROGRAM];
  int ends[2];
  pid_t process = -1;
  *fd = -1;
  if (!scuda_folder_of((const void *)scuda_connect_session, folder, sizeof folder)) {
    errno = ENOENT;
    return fail(PROGRAM, "cannot be found");
  }
  snprintf(path, sizeof path, "%s/" PROGRAM, folder);
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return fail(path, "cannot be talked to");
  int result = ask(ends[0], &process, path, ends[1], r, first, answer, fd);
  if (process < 0) close(ends[1]);
  close(ends[0]);
  /* ECHILD, but where the program adopts orphans. */
  if (result == 0 && answer->relay)
    relays[r->number] = process > 0 && waitpid(process, NULL, WNOHANG) == 0 ? process : 0;
  else if (process > 0) while (waitpid(process, NULL, 0) < 0 && errno == EINTR) {}
  if (result == 0 && answer->code == SCUDA_CONNECT_OK) return 0;
  if (result == 0 && !quiet) scuda_log(SCUDA_ERROR, "%.*s", (int)sizeof answer->error, answer->error);
  if (*fd >= 0) close(*fd);
  *fd = -1;
  return -1;
}

static struct scuda_connect_request request(const char *kind, const char *digest) {
  struct scuda_connect_request r = {.abi = SCUDA_CONNECT_ABI, .pid = getpid()};
  snprintf(r.kind, sizeof r.kind, "%s", kind);
  snprintf(r.digest, sizeof r.digest, "%s", digest);
  snprintf(r.program, sizeof r.program, "%s", program_invocation_short_name);
  return r;
}

int scuda_connect_session(uint32_t number, const char *kind, const char *digest, struct scuda_bytes first,
                          int quiet, struct scuda_connect_answer *answer) {
  struct scuda_connect_request r = request(kind, digest);
  int fd;
  r.number = number;
  r.keep = 1;
  r.first = (uint32_t)first.n;
  return connect_by(&r, first, quiet, answer, &fd) == 0 ? fd : -1;
}

int scuda_connect_driver_version(int32_t *version) {
  struct scuda_connect_request r = request("info", "");
  struct scuda_connect_answer answer;
  int fd;
  *version = 0;
  if (connect_by(&r, (struct scuda_bytes){0}, 0, &answer, &fd) != 0) return -1;
  *version = answer.driver_version;
  if (*version <= 0)
    scuda_log(SCUDA_ERROR, "the server %.*s does not say which driver it has; look at its log",
              (int)sizeof answer.server,
              answer.server);
  return *version > 0 ? 0 : -1;
}
