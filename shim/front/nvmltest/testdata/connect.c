/* Has the NVML front connect under circumstances: connect LIBRARY CIRCUMSTANCE. Prints what nvmlInit answers and what
 * else happened. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int children, alarms;
static void count(int signal) { *(signal == SIGCHLD ? &children : &alarms) += 1; }

int main(int argc, char **argv) {
  void *library = argc > 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (!library) return 2;
  int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2"),
      (*end)(void) = (int (*)(void))dlsym(library, "nvmlShutdown");
  const char *how = argv[2];
  struct sigaction child = {.sa_handler = count}, tick = {.sa_handler = count};
  int out = fcntl(1, F_DUPFD, 100);
  sigaction(SIGCHLD, &child, NULL);
  if (!strcmp(how, "ignored")) signal(SIGCHLD, SIG_IGN);
  if (!strcmp(how, "adopts")) prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (!strcmp(how, "closed")) for (int fd = 0; fd < 3; fd++) close(fd);
  if (!strcmp(how, "full")) {
    struct rlimit files = {3, 3};
    setrlimit(RLIMIT_NOFILE, &files);
  }
  if (!strcmp(how, "signals")) {
    struct itimerval often = {{0, 1000}, {0, 1000}};
    sigaction(SIGALRM, &tick, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
  }
  sigset_t before = {0}, after = {0}; /* the kernel writes only the first 8 of their 128 bytes */
  sigprocmask(SIG_SETMASK, NULL, &before);
  int first = init(), second = end() == 0 ? init() : -1;
  sigprocmask(SIG_SETMASK, NULL, &after);
  int found = waitpid(-1, NULL, WNOHANG | __WALL);
  dprintf(out, "%d %d, %s, %s, %s\n", first, second, found < 0 && errno == ECHILD ? "no child" : "a child",
          children ? "a signal" : "no signal", memcmp(&before, &after, sizeof before) ? "another mask" :
          "the same mask");
  return 0;
}
