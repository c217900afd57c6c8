// System calls that read into unified memory and write from it while the GPU has it. Arguments: the folder of kernels,
// and one for a file.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { N = 1 << 20, HALF = N / 2 };
static unsigned char *from, *to;         // unified memory; everything of it is the GPU's when a case begins
static int file, direct, ends[2], talk[2];

static void give(void) { // the GPU writes from, and takes to
  CK(cuMemsetD8Async((CUdeviceptr)(uintptr_t)from, 7, HALF, 0));
  CK(cuMemsetD8Async((CUdeviceptr)(uintptr_t)from + HALF, 9, HALF, 0));
  CK(cuMemsetD8Async((CUdeviceptr)(uintptr_t)to, 1, N, 0));
  CK(cuCtxSynchronize());
}
static void all(const char *what, ssize_t got) {
  CHECK(got == N, "%s: %zd of %d bytes: %s", what, got, N, strerror(errno));
}

static void *feed(void *p) { // what a pipe or socket takes, in another thread
  void (*out)(size_t) = (void (*)(size_t))(uintptr_t)p;
  for (size_t at = 0; at < N; at += HALF / 8) out(at);
  return NULL;
}
static void out_pipe(size_t at) {
  CHECK(write(ends[1], from + at, HALF / 8) == HALF / 8, "write to a pipe: %s", strerror(errno));
}
static void out_vector(size_t at) {
  struct iovec v[2] = {{from + at, HALF / 16}, {from + at + HALF / 16, HALF / 16}};
  CHECK(writev(ends[1], v, 2) == HALF / 8, "writev: %s", strerror(errno));
}
static void out_send(size_t at) {
  CHECK(send(talk[1], from + at, HALF / 8, 0) == HALF / 8, "send: %s", strerror(errno));
}
static void out_sendto(size_t at) {
  CHECK(sendto(talk[1], from + at, HALF / 8, 0, NULL, 0) == HALF / 8, "sendto: %s", strerror(errno));
}
static void out_message(size_t at) {
  struct iovec v = {from + at, HALF / 8};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
  CHECK(sendmsg(talk[1], &m, 0) == HALF / 8, "sendmsg: %s", strerror(errno));
}
static ssize_t in_read(size_t at) { return read(ends[0], to + at, N - at); }
static ssize_t in_vector(size_t at) {
  struct iovec v[2] = {{to + at, 1}, {to + at + 1, N - at - 1}};
  return N - at > 1 ? readv(ends[0], v, 2) : read(ends[0], to + at, 1);
}
static ssize_t in_recv(size_t at) { return recv(talk[0], to + at, N - at, 0); }
static ssize_t in_recvfrom(size_t at) { return recvfrom(talk[0], to + at, N - at, 0, NULL, NULL); }
static ssize_t in_message(size_t at) {
  struct iovec v = {to + at, N - at};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
  return recvmsg(talk[0], &m, 0);
}
static void stream(const char *what, void (*out)(size_t), ssize_t (*in)(size_t)) {
  give();
  pthread_t t;
  CHECK(!pthread_create(&t, NULL, feed, (void *)(uintptr_t)out), "no thread");
  for (size_t at = 0; at < N;) {
    ssize_t n = in(at);
    CHECK(n > 0, "%s at %zu: %s", what, at, strerror(errno));
    at += (size_t)n;
  }
  pthread_join(t, NULL);
}
static void positioned(int f) {
  all("pwrite", pwrite(f, from, N, 0));
  all("pread", pread(f, to, N, 0));
}
static void by_number(void) { // as programs do that have no function of the C library for a call
  give();
  all("SYS_pwrite64", syscall(SYS_pwrite64, file, from, (size_t)N, 0L));
  all("SYS_pread64", syscall(SYS_pread64, file, to, (size_t)N, 0L));
}
static void flagged(void) {
  struct iovec out = {from, N}, in = {to, N};
  give();
  all("pwritev2", pwritev2(file, &out, 1, 0, 0));
  all("preadv2", preadv2(file, &in, 1, 0, 0));
}
static void at_file(void) { give(), positioned(file); }
static void at_disk(void) { give(), positioned(direct); }
static void vectors(void) {
  struct iovec out[2] = {{from, HALF}, {from + HALF, HALF}}, in[2] = {{to, 100}, {to + 100, N - 100}};
  give();
  all("pwritev", pwritev(file, out, 2, 0));
  all("preadv", preadv(file, in, 2, 0));
}
static void buffered(void) {
  give();
  FILE *f = fdopen(dup(file), "r+");
  rewind(f);
  all("fwrite", (ssize_t)fwrite(from, 1, N, f));
  fflush(f);
  rewind(f);
  all("fread", (ssize_t)fread(to, 1, N, f));
  fclose(f);
}
static void to_and_fro(void) { stream("read", out_pipe, in_read); }
static void in_pieces(void) { stream("readv", out_vector, in_vector); }
static void talking(void) { stream("recv", out_send, in_recv); }
static void talking_to(void) { stream("recvfrom", out_sendto, in_recvfrom); }
static void messages(void) { stream("recvmsg", out_message, in_message); }

// System calls without the C library, as Go and static programs make them; and the kernel's own threads, to which
// io_uring leaves the work.
static long raw(long number, long a, void *p, long n, long at) {
#if defined __x86_64__
  long result;
  register long fourth __asm__("r10") = at;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(p), "d"(n), "r"(fourth) : "rcx", "r11",
                   "memory");
  return result;
#else
  long result = syscall(number, a, p, n, at);
  return result < 0 ? -errno : result;
#endif
}
static int ring = -1;
static struct io_uring_params rings;
static unsigned char *queue;
static struct io_uring_sqe *entries;
static void open_ring(void) {
  ring = (int)syscall(SYS_io_uring_setup, 4, &rings);
  if (ring < 0) return; // refused in many containers
  CHECK(rings.features & IORING_FEAT_SINGLE_MMAP, "io_uring of before Linux 5.4");
  queue = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
  entries = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
  CHECK(queue != MAP_FAILED && entries != MAP_FAILED, "mmap of io_uring: %s", strerror(errno));
}
static long ringed(int operation, void *p, int hand_over) {
  unsigned *tail = (unsigned *)(queue + rings.sq_off.tail), *head = (unsigned *)(queue + rings.cq_off.head);
  unsigned at = *tail & *(unsigned *)(queue + rings.sq_off.ring_mask);
  entries[at] = (struct io_uring_sqe){
    .opcode = (unsigned char)operation, .fd = file, .addr = (uintptr_t)p, .len = N, .flags = hand_over ? IOSQE_ASYNC : 0
  };
  ((unsigned *)(queue + rings.sq_off.array))[at] = at;
  __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
  CHECK(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1, "io_uring_enter: %s",
        strerror(errno));
  const struct io_uring_cqe *done = (struct io_uring_cqe *)(queue + rings.cq_off.cqes) +
                                    (*head & *(unsigned *)(queue + rings.cq_off.ring_mask));
  long result = done->res;
  __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
  return result;
}
static void without_library(void) { // says what came of it: all of it, or the error
  static const unsigned char plain[N];
  CHECK(write(file, plain, N) == N, "the file: %s", strerror(errno));
  open_ring();
  for (int way = 0; way < (ring < 0 ? 1 : 3); way++) {
    give();
    long out = way ? ringed(IORING_OP_WRITE, from, way == 2) : raw(SYS_pwrite64, file, from, N, 0);
    long in = way ? ringed(IORING_OP_READ, to, way == 2) : raw(SYS_pread64, file, to, N, 0);
    for (int at = 0; out == N && in == N && at < N; at++)
      CHECK(to[at] == (at < HALF ? 7 : 9), "way %d: byte %d is %d", way, at, to[at]);
    printf("%s: %s %s\n", way ? way == 1 ? "io_uring" : "io_uring's threads" : "raw",
           out == N ? "ok" : strerror((int)-out), in == N ? "ok" : strerror((int)-in));
    // the memory is as good as before
    CHECK(from[0] == 7 && from[N - 1] == 9, "way %d, afterwards: %d %d", way, from[0], from[N - 1]);
    to[0] = 3;
    CHECK(to[0] == 3, "way %d, afterwards: %d", way, to[0]);
  }
}

int main(int argc, char **argv) {
  CHECK(argc > 2, "which folder?");
  start(argc, argv);
  CUdeviceptr p[2];
  for (int i = 0; i < 2; i++) CK(cuMemAllocManaged(&p[i], N, CU_MEM_ATTACH_GLOBAL));
  from = (unsigned char *)(uintptr_t)p[0], to = (unsigned char *)(uintptr_t)p[1];
  char path[4096];
  snprintf(path, sizeof path, "%s/calls-%d", argv[2], (int)getpid());
  file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
  direct = open(path, O_RDWR | O_DIRECT);
  unlink(path);
  CHECK(file >= 0 && !pipe(ends) && !socketpair(AF_UNIX, SOCK_STREAM, 0, talk), "%s: %s", path, strerror(errno));
  CHECK(direct >= 0, "O_DIRECT at %s: %s", argv[2], strerror(errno));
  if (argc > 3) return without_library(), 0;
  static const struct { const char *name; void (*run)(void);
    } cases[] = {{"pipe", to_and_fro}, {"vectors through a pipe", in_pieces}, {"file", at_file},
                 {"past the page cache", at_disk}, {"vectors", vectors}, {"vectors and flags", flagged},
                 {"by number", by_number}, {"stdio", buffered}, {"socket", talking}, {"sendto", talking_to},
                 {"messages", messages}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    cases[i].run();
    for (int at = 0; at < N; at++) CHECK(to[at] == (at < HALF ? 7 : 9), "%s: byte %d is %d", cases[i].name, at, to[at]);
    give();
    CK(cuMemcpyDtoD(p[1], p[0], N)); // what a call brought is the program's, and the GPU's again afterwards
    CHECK(to[0] == 7 && to[N - 1] == 9, "%s, afterwards: %d %d", cases[i].name, to[0], to[N - 1]);
  }
  puts("calls ok");
  return 0;
}
