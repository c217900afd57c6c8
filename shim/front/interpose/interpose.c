/* libscuda.so's part of system calls. By one a program may tell another process that it has done something to memory
 * that both use (order.c): then the front hears of it before. And unified memory: where the kernel cannot hand its own
 * faults to us (pager.c), a system call on memory that the GPU has fails with EFAULT. So the C library's calls that
 * read into the program's memory, or write from it, bring it here first. Nothing happens until the front asks for
 * it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static void (*_Atomic bring)(const void *p, size_t bytes, int write);
EXPORT void scuda_before_access(void (*fn)(const void *p, size_t bytes, int write)) { atomic_store(&bring, fn); }

enum { OUT, IN }; /* of the program's memory; into it */

static void (*_Atomic telling)(void);
EXPORT void scuda_before_telling(void (*fn)(void)) { atomic_store(&telling, fn); }

static void tell(void) {
  void (*fn)(void) = atomic_load_explicit(&telling, memory_order_relaxed);
  if (__builtin_expect(fn != NULL, 0)) fn();
}

static void here(const void *p, size_t bytes, int into) {
  if (into == OUT) tell();
  void (*fn)(const void *, size_t, int) = atomic_load_explicit(&bring, memory_order_relaxed);
  if (__builtin_expect(fn != NULL, 0)) fn(p, bytes, into);
}

static void all_here(const struct iovec *v, long n, int into) {
  if (into == OUT) tell();
  if (__builtin_expect(atomic_load_explicit(&bring, memory_order_relaxed) == NULL, 1)) return;
  for (long i = 0; v && i < n; i++) here(v[i].iov_base, v[i].iov_len, into);
}

static void message_here(const struct msghdr *m, int into) {
  if (m) all_here(m->msg_iov, (long)m->msg_iovlen, into);
}

/* Ours, and the function that it stands before: found at load, as a signal handler or a forked child may be the first
 * to call it. */
#define CALL(result, name, parameters, bringing, ...) \
  static __typeof__(name) *_Atomic next_##name; \
  static __typeof__(name) *find_##name(void) { \
    __typeof__(name) *next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name); \
    atomic_store_explicit(&next_##name, next, memory_order_relaxed); \
    return next; \
  } \
  __attribute__((constructor)) static void load_##name(void) { find_##name(); } \
  EXPORT result name parameters { \
    __typeof__(name) *next = atomic_load_explicit(&next_##name, memory_order_relaxed); \
    if (__builtin_expect(!next, 0)) next = find_##name(); \
    bringing; \
    return next(__VA_ARGS__); \
  }

CALL(ssize_t, read, (int f, void *p, size_t n), here(p, n, IN), f, p, n)
CALL(ssize_t, pread, (int f, void *p, size_t n, off_t at), here(p, n, IN), f, p, n, at)
CALL(ssize_t, pread64, (int f, void *p, size_t n, off64_t at), here(p, n, IN), f, p, n, at)
CALL(ssize_t, readv, (int f, const struct iovec *v, int n), all_here(v, n, IN), f, v, n)
CALL(ssize_t, preadv, (int f, const struct iovec *v, int n, off_t at), all_here(v, n, IN), f, v, n, at)
CALL(ssize_t, preadv64, (int f, const struct iovec *v, int n, off64_t at), all_here(v, n, IN), f, v, n, at)
CALL(ssize_t, recv, (int f, void *p, size_t n, int flags), here(p, n, IN), f, p, n, flags)
CALL(ssize_t, recvfrom, (int f, void *p, size_t n, int flags, struct sockaddr *from, socklen_t *len), here(p, n, IN), f,
     p, n, flags, from, len)
CALL(ssize_t, recvmsg, (int f, struct msghdr *m, int flags), message_here(m, IN), f, m, flags)
CALL(size_t, fread, (void *p, size_t size, size_t n, FILE *f), here(p, size * n, IN), p, size, n, f)
CALL(ssize_t, write, (int f, const void *p, size_t n), here(p, n, OUT), f, p, n)
CALL(ssize_t, pwrite, (int f, const void *p, size_t n, off_t at), here(p, n, OUT), f, p, n, at)
CALL(ssize_t, pwrite64, (int f, const void *p, size_t n, off64_t at), here(p, n, OUT), f, p, n, at)
CALL(ssize_t, writev, (int f, const struct iovec *v, int n), all_here(v, n, OUT), f, v, n)
CALL(ssize_t, pwritev, (int f, const struct iovec *v, int n, off_t at), all_here(v, n, OUT), f, v, n, at)
CALL(ssize_t, pwritev64, (int f, const struct iovec *v, int n, off64_t at), all_here(v, n, OUT), f, v, n, at)
CALL(ssize_t, send, (int f, const void *p, size_t n, int flags), here(p, n, OUT), f, p, n, flags)
CALL(ssize_t, sendto, (int f, const void *p, size_t n, int flags, const struct sockaddr *to, socklen_t len),
     here(p, n, OUT), f, p, n, flags, to, len)
CALL(ssize_t, sendmsg, (int f, const struct msghdr *m, int flags), message_here(m, OUT), f, m, flags)
CALL(int, fflush, (FILE *f), tell(), f)
CALL(int, fclose, (FILE *f), tell(), f)
CALL(int, sem_post, (sem_t *s), tell(), s)
CALL(size_t, fwrite, (const void *p, size_t size, size_t n, FILE *f), here(p, size * n, OUT), p, size, n, f)

CALL(ssize_t, preadv2, (int f, const struct iovec *v, int n, off_t at, int flags), all_here(v, n, IN), f, v, n, at,
     flags)
CALL(ssize_t, preadv64v2, (int f, const struct iovec *v, int n, off64_t at, int flags), all_here(v, n, IN), f, v, n, at,
     flags)
CALL(ssize_t, pwritev2, (int f, const struct iovec *v, int n, off_t at, int flags), all_here(v, n, OUT), f, v, n, at,
     flags)
CALL(ssize_t, pwritev64v2, (int f, const struct iovec *v, int n, off64_t at, int flags), all_here(v, n, OUT), f, v, n,
     at, flags)
CALL(ssize_t, getrandom, (void *p, size_t n, unsigned flags), here(p, n, IN), p, n, flags)

/* The same calls by their numbers. */
static void numbered_here(long number, const long *a) {
  const void *p = (const void *)a[1];
  switch (number) {
  case SYS_read: case SYS_pread64: case SYS_recvfrom: here(p, (size_t)a[2], IN); break;
  case SYS_write: case SYS_pwrite64: case SYS_sendto: here(p, (size_t)a[2], OUT); break;
  case SYS_readv: case SYS_preadv: case SYS_preadv2: all_here(p, a[2], IN); break;
  case SYS_writev: case SYS_pwritev: case SYS_pwritev2: all_here(p, a[2], OUT); break;
  case SYS_recvmsg: message_here(p, IN); break;
  case SYS_sendmsg: message_here(p, OUT); break;
  case SYS_futex: tell(); break;
  case SYS_getrandom: here((const void *)a[0], (size_t)a[1], IN); break;
  }
}
static __typeof__(syscall) *_Atomic next_syscall;
static __typeof__(syscall) *find_syscall(void) {
  __typeof__(syscall) *next = (__typeof__(syscall) *)dlsym(RTLD_NEXT, "syscall");
  atomic_store_explicit(&next_syscall, next, memory_order_relaxed);
  return next;
}
__attribute__((constructor)) static void load_syscall(void) { find_syscall(); }
EXPORT long syscall(long number, ...) {
  long a[6];
  va_list args; /* what the caller left out is read all the same, as the C library's does, and not used */
  va_start(args, number);
  for (int i = 0; i < 6; i++) a[i] = va_arg(args, long);
  va_end(args);
  __typeof__(syscall) *next = atomic_load_explicit(&next_syscall, memory_order_relaxed);
  if (__builtin_expect(!next, 0)) next = find_syscall();
  numbered_here(number, a);
  return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* What _FORTIFY_SOURCE makes of some of them. */
extern ssize_t __read_chk(int f, void *p, size_t n, size_t room);
extern ssize_t __pread_chk(int f, void *p, size_t n, off_t at, size_t room);
extern ssize_t __pread64_chk(int f, void *p, size_t n, off64_t at, size_t room);
extern ssize_t __recv_chk(int f, void *p, size_t n, size_t room, int flags);
extern ssize_t __recvfrom_chk(int f, void *p, size_t n, size_t room, int flags, struct sockaddr *from, socklen_t *len);
extern size_t __fread_chk(void *p, size_t room, size_t size, size_t n, FILE *f);
CALL(ssize_t, __read_chk, (int f, void *p, size_t n, size_t room), here(p, n, IN), f, p, n, room)
CALL(ssize_t, __pread_chk, (int f, void *p, size_t n, off_t at, size_t room), here(p, n, IN), f, p, n, at, room)
CALL(ssize_t, __pread64_chk, (int f, void *p, size_t n, off64_t at, size_t room), here(p, n, IN), f, p, n, at, room)
CALL(ssize_t, __recv_chk, (int f, void *p, size_t n, size_t room, int flags), here(p, n, IN), f, p, n, room, flags)
CALL(ssize_t, __recvfrom_chk, (int f, void *p, size_t n, size_t room, int flags, struct sockaddr *from, socklen_t *len),
     here(p, n, IN), f, p, n, room, flags, from, len)
CALL(size_t, __fread_chk, (void *p, size_t room, size_t size, size_t n, FILE *f), here(p, size * n, IN), p, room, size,
     n, f)
