// Programs that do to their process what they like: close descriptors that they do not know, reach limits, forbid
// themselves threads, or call CUDA in a signal handler. The process lives, and calls answer.
#include "check.h"
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

enum { BYTES = 64 << 20, MANY = 4096, DEEP = 16 << 10 };

static CUdeviceptr memory;
static char *host;
static volatile sig_atomic_t ran, handled, wrong;

static void begin(void) {
  CUdevice d;
  CUcontext c;
  CK(cuInit(0));
  CK(cuDeviceGet(&d, 0));
  CK(cuDevicePrimaryCtxRetain(&c, d));
  CK(cuCtxSetCurrent(c));
  CK(cuMemAlloc(&memory, BYTES));
  host = malloc(BYTES);
  memset(host, 3, BYTES);
}

static void run(void *unused) { (void)unused; ran = 1; }

// Small and big copies and a host function: what opens further connections, and takes threads.
static void work(void) {
  CK(cuMemcpyHtoD(memory, host, 64));
  CK(cuMemcpyHtoD(memory, host, BYTES));
  memset(host, 0, BYTES);
  CK(cuMemcpyDtoH(host, memory, BYTES));
  for (int i = 0; i < BYTES; i++) CHECK(host[i] == 3, "byte %d is %d", i, host[i]);
  ran = 0;
  CK(cuLaunchHostFunc(0, run, NULL));
  CK(cuCtxSynchronize());
  CHECK(ran, "the host function did not run");
}

// The session is lost: every call says so, and the process goes on.
static void lost(void) {
  cuMemcpyHtoD(memory, host, 64); // small ones are not waited for
  WANT(cuCtxSynchronize(), CUDA_ERROR_DEVICE_UNAVAILABLE);
  for (int i = 0; i < 3; i++) WANT(cuMemcpyHtoD(memory, host, 64), CUDA_ERROR_DEVICE_UNAVAILABLE);
  WANT(cuCtxSynchronize(), CUDA_ERROR_DEVICE_UNAVAILABLE);
  usleep(300000); // the threads of the library notice, too
  WANT(cuMemAlloc(&memory, 64), CUDA_ERROR_DEVICE_UNAVAILABLE);
}

static int descriptors(void) {
  int n = 0;
  for (int fd = 3; fd < 1024; fd++) n += fcntl(fd, F_GETFD) >= 0;
  return n;
}

// The library opens connections in the background behind the first big copy. A number that is taken from it in the
// middle of that may be used once more, so this waits until none has come or gone for half a second.
static void settle(void) {
  for (int quiet = 0, before = -1; quiet < 25; quiet++) {
    int now = descriptors();
    if (now != before) quiet = 0;
    before = now;
    usleep(20000);
  }
}

static void closed(int range) {
  begin();
  work();
  settle();
  if (range) syscall(SYS_close_range, 3, ~0u, 0);
  else for (int fd = 3; fd < 1024; fd++) close(fd);
  lost();
}

// The lowest numbers belong to the program again: nothing of the library's goes there. (The numbers need not be in a
// row: the library may have one for a moment, while it opens a connection.)
static void taken(void) {
  begin();
  work();
  settle();
  for (int fd = 3; fd < 1024; fd++) close(fd);
  int pairs[15][2];
  for (int i = 0; i < 15; i++) CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]), "socketpair: %s", strerror(errno));
  lost();
  char byte;
  for (int i = 0; i < 30; i++) {
    int fd = pairs[i / 2][i % 2];
    CHECK(recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN, "bytes came to descriptor %d", fd);
  }
}

// A file of the program's takes the place of every descriptor that it did not open: no socket gets there instead, and
// nothing is written to it.
static void files(void) {
  begin();
  work();
  settle();
  char name[] = "/tmp/rude-XXXXXX", text[16] = {0};
  int own = mkstemp(name), taken[1024], n = 0;
  CHECK(own >= 0 && unlink(name) == 0 && write(own, "mine", 4) == 4, "a file: %s", strerror(errno));
  for (int fd = 3; fd < 1024; fd++)
    if (fd != own && fcntl(fd, F_GETFD) >= 0) {
      CHECK(dup2(own, fd) == fd, "dup2: %s", strerror(errno));
      taken[n++] = fd;
    }
  CHECK(n > 2, "the library had %d descriptors", n);
  lost();
  struct stat mine, there;
  CHECK(!fstat(own, &mine) && mine.st_size == 4, "the file has %ld bytes", (long)mine.st_size);
  CHECK(pread(own, text, sizeof text, 0) == 4 && !strcmp(text, "mine"), "the file says %s", text);
  for (int i = 0; i < n; i++)
    CHECK(!fstat(taken[i], &there) && there.st_ino == mine.st_ino && there.st_dev == mine.st_dev,
          "descriptor %d is another file", taken[i]);
}

static void at_limit(void) {
  struct rlimit limit = {256, 256};
  setrlimit(RLIMIT_NOFILE, &limit);
  begin();
  while (open("/dev/null", O_RDONLY) >= 0) {}
  work();
}

static void processes(void) {
  struct rlimit limit = {4, 4};
  if (setgid(65534) || setuid(65534)) FAIL("setuid: %s", strerror(errno));
  setrlimit(RLIMIT_NPROC, &limit);
  WANT(cuInit(0), CUDA_ERROR_OPERATING_SYSTEM);
  WANT(cuInit(0), CUDA_ERROR_OPERATING_SYSTEM);
}

static void space(void) {
  struct rlimit limit = {1u << 30, 1u << 30};
  setrlimit(RLIMIT_AS, &limit);
  WANT(cuInit(0), CUDA_ERROR_OUT_OF_MEMORY);
}

// No thread can be started any more (clone with CLONE_THREAD, and clone3).
static void threadless(void) {
  begin();
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl: %s", strerror(errno));
  CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program), "seccomp: %s",
        strerror(errno));
  for (int i = 0; i < 20; i++) work();
}

// It takes stack as handlers of programs do, and has no stack of its own.
static void on_alarm(int number) {
  (void)number;
  char bytes[8], text[DEEP];
  memset(text, number, sizeof text);
  __asm__ volatile("" : : "r"(text) : "memory");
  int r = cuMemcpyDtoH(bytes, memory, sizeof bytes);
  if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_PERMITTED) wrong = r;
  if (r == CUDA_ERROR_NOT_PERMITTED) handled++;
}

static void handler(void) {
  begin();
  struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
  sigaction(SIGALRM, &action, NULL);
  struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &often, NULL);
  for (int i = 0; i < MANY || !handled; i++) {
    CUdeviceptr p;
    CK(cuMemAlloc(&p, 64));
    CK(cuMemcpyHtoD(p, host, 64));
    CK(cuMemFree(p));
  }
  setitimer(ITIMER_REAL, &never, NULL);
  CHECK(!wrong, "a call in the handler: %d", (int)wrong);
  work();
}

int main(int argc, char **argv) {
  const char *what = argc > 2 ? argv[2] : "";
  if (!strcmp(what, "closed")) closed(0);
  else if (!strcmp(what, "close_range")) closed(1);
  else if (!strcmp(what, "taken")) taken();
  else if (!strcmp(what, "files")) files();
  else if (!strcmp(what, "limit")) at_limit();
  else if (!strcmp(what, "processes")) processes();
  else if (!strcmp(what, "space")) space();
  else if (!strcmp(what, "threadless")) threadless();
  else if (!strcmp(what, "handler")) handler();
  else FAIL("rude KERNELS WHAT");
  printf("ok\n");
  return 0;
}
