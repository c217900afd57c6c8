/* Faults of unified memory are served by a thread of ours. The memory is a memory file that is mapped twice: at the
 * program's address, where accesses are allowed block by block, and at another one, where we fill it and read it. With
 * userfaultfd (minor faults and write protection on shared memory, Linux 6.4) the kernel hands faults to the thread,
 * those of system calls too where the process has the privilege. Elsewhere a SIGSEGV handler does, and mprotect allows;
 * system calls on memory that is not here then fail with EFAULT. */
#define _GNU_SOURCE
#include "uvm/pager.h"
#include "base/base.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

/* Of Linux 6.4; older headers lack it. */
#ifndef UFFDIO_CONTINUE_MODE_WP
#define UFFDIO_CONTINUE_MODE_WP ((uint64_t)1 << 1)
#endif
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { PAGE = 4096 };

/* A fault that a signal handler waits for. */
struct request { uint64_t address; int write, ours; _Atomic uint32_t done; };

static scuda_fault_fn serve;
static scuda_end_fn managed_end;
static int memory = -1, uffd = -1, queue[2] = {-1, -1};
static int pagemap = -1; /* of this process, where the kernel notes by itself which pages are written */
static const char *kind = "none";
static struct sigaction before, first; /* the handler under ours, and the one that was there before we came */
static scuda_lock_t lock;
static uint64_t next_address = SCUDA_MANAGED_FIRST, next_offset;
static _Atomic uint64_t variables_from = UINT64_MAX, variables_to; /* ranges at given addresses lie between */
static struct gap { struct gap *next; uint64_t offset, bytes; } *gaps; /* of the memory file */

int scuda_pager_started(void) { return memory >= 0; }

/* A forked child has none of the memory, and its parent's thread is not for it. */
static int in_child(void) {
  uint32_t mode = atomic_load_explicit(&scuda_live.mode, memory_order_relaxed);
  return mode == SCUDA_UNDECIDED || mode == SCUDA_CHILD;
}

/* ---- signals ---- */

static void on_fault(int number, siginfo_t *info, void *context) {
  int saved = errno;
  struct request r = {.address = (uint64_t)(uintptr_t)info->si_addr}, *p = &r;
#if defined __x86_64__
  r.write = (((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#endif
  /* Only what the kernel found is a fault; the pipe holds pointers to more requests than there are threads. */
  if (info->si_code > 0 && !in_child() && write(queue[1], &p, sizeof p) == sizeof p)
    while (!atomic_load(&r.done)) scuda_futex_wait(&r.done, 0, 0);
  errno = saved;
  if (r.ours) return;
  /* A handler that the program set over ours may pass on what it does not want, to us: then it is for the one that was
   * there first. That is a call with the same context further down the stack; a handler may also have left by a jump,
   * and then another signal may have its context there. */
  static __thread const void *passed;
  static __thread const char *frame;
  const char here = 0, *at = &here;
  const struct sigaction *next = passed == context && at < frame ? &first : &before;
  passed = context;
  frame = at;
  if (next->sa_flags & SA_SIGINFO && next->sa_sigaction) next->sa_sigaction(number, info, context);
  else if (next->sa_handler != SIG_DFL && next->sa_handler != SIG_IGN) next->sa_handler(number);
  else signal(SIGSEGV, SIG_DFL); /* the access comes again, and ends the process as it would have */
}

/* The program's own handler may have come after ours; ours goes over it again whenever memory is denied, and passes on
 * what is not ours. */
static void hold_signal(void) {
  struct sigaction now, ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
  if (sigaction(SIGSEGV, NULL, &now) || (now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_fault)) return;
  static int held;
  if (!held++) first = now;
  before = now;
  sigaction(SIGSEGV, &ours, NULL);
}

/* ---- userfaultfd ---- */

/* Of Linux 6.7; older headers lack them. */
#define FEATURE_WP_ASYNC ((uint64_t)1 << 15)
struct scan {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, category_inverted, category_mask,
      category_anyof_mask, return_mask;
};
struct scanned { uint64_t start, end, categories; };
enum { IS_WRITTEN = 2, IS_SWAPPED = 16 };
#define PAGEMAP_SCAN_IOCTL _IOWR('f', 16, struct scan)

static int open_uffd(int flags, uint64_t more) {
  int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | flags);
  /* write protection of shared memory */
  uint64_t needed = more | UFFD_FEATURE_MINOR_SHMEM | UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_PAGEFAULT_FLAG_WP |
                    1u << 12;
  struct uffdio_api api = {.api = UFFD_API, .features = needed};
  if (fd >= 0 && ioctl(fd, UFFDIO_API, &api)) {
    close(fd);
    return -1;
  }
  return fd;
}

static int enlist(uint64_t start, uint64_t bytes) {
  struct uffdio_register r = {
    .range = {start, bytes}, .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR | UFFDIO_REGISTER_MODE_WP
  };
  return ioctl(uffd, UFFDIO_REGISTER, &r);
}

/* Maps what the file has; 1: some of it was mapped already, as it may stay. */
static int proceed(uint64_t start, uint64_t bytes, uint64_t mode) {
  int some = 0;
  while (bytes) {
    struct uffdio_continue c = {.range = {start, bytes}, .mode = mode};
    if (!ioctl(uffd, UFFDIO_CONTINUE, &c)) return some;
    if (c.mapped > 0) {
      start += (uint64_t)c.mapped;
      bytes -= (uint64_t)c.mapped;
    } else if (errno == EEXIST) {
      some = 1;
      start += PAGE;
      bytes -= PAGE;
    } else if (errno != EAGAIN) {
      return -1;
    }
  }
  return some;
}

/* Whether the kernel can do what is needed, found by doing it to two pages, of which one is written. */
static int works(void) {
  struct scuda_pages p;
  uint8_t written[2] = {0};
  if (scuda_pages_make(&p, 0, 2 * PAGE)) return 0;
  scuda_pages_show(&p);
  p.open[0] = p.open[PAGE] = 7;
  int good = proceed(p.start, 2 * PAGE, UFFDIO_CONTINUE_MODE_WP) == 0 && *(volatile uint8_t *)(uintptr_t)p.start == 7;
  if (good && pagemap >= 0) {
    *(volatile uint8_t *)(uintptr_t)(p.start + PAGE) = 8;
    scuda_pages_unmap(&p, 0, 2 * PAGE);
    good = !scuda_pages_written(&p, 0, 2 * PAGE, PAGE, written, 1) && !written[0] && written[1];
  }
  scuda_pages_drop(&p);
  return good;
}

/* The best form of userfaultfd that there is. */
static void choose_uffd(int user, int tracked) {
  static const struct { int flags; int tracked; const char *kind;
    } forms[] = {{0, 1, "userfaultfd"}, {0, 0, "userfaultfd"}, {UFFD_USER_MODE_ONLY, 1, "userfaultfd, user mode"},
                 {UFFD_USER_MODE_ONLY, 0, "userfaultfd, user mode"}};
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    if ((user && !forms[i].flags) || (!tracked && forms[i].tracked)) continue;
    uffd = open_uffd(forms[i].flags, forms[i].tracked ? FEATURE_WP_ASYNC : 0);
    if (uffd < 0) continue;
    pagemap = forms[i].tracked ? open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC) : -1;
    kind = forms[i].kind;
    if ((pagemap >= 0) == forms[i].tracked && works()) return;
    if (pagemap >= 0) close(pagemap);
    close(uffd);
    uffd = pagemap = -1;
  }
}

/* ---- the thread ---- */

static void take_request(void) {
  struct request *r;
  if (read(queue[0], &r, sizeof r) != sizeof r) return;
  r->ours = serve(r->address, r->write);
  atomic_store(&r->done, 1);
  scuda_futex_wake(&r->done, 1); /* the word may be gone by now: a wake-up of whatever lies there does no harm */
}

static void take_message(void) {
  struct uffd_msg m;
  if (read(uffd, &m, sizeof m) != sizeof m || m.event != UFFD_EVENT_PAGEFAULT) return;
  uint64_t address = m.arg.pagefault.address;
  if (serve(address, (m.arg.pagefault.flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP)) != 0)) return;
  /* The range was hidden after the access: it is made again, and is a fault of the program's. */
  struct uffdio_range page = {address & ~(uint64_t)(PAGE - 1), PAGE};
  ioctl(uffd, UFFDIO_WAKE, &page);
}

static void *work(void *unused) {
  (void)unused;
  for (;;) {
    if (uffd < 0) take_request();
    else take_message();
  }
  return NULL;
}

/* System calls then fail on memory that is not here, so libscuda.so's forms of them (interpose/interpose.c) bring
 * it. */
static void bring(const void *p, size_t bytes, int write) {
  uint64_t at = (uint64_t)(uintptr_t)p, end;
  int ours = (at >= SCUDA_MANAGED_FIRST && at < SCUDA_MANAGED_END) ||
             (at >= atomic_load(&variables_from) && at < atomic_load(&variables_to));
  /* without a lock: a signal handler may write */
  if (!bytes || !ours || in_child() || !(end = managed_end(at))) return;
  if (bytes < end - at) end = at + bytes;
  for (; at < end; at = (at | (PAGE - 1)) + 1) {
    uint8_t *byte = (uint8_t *)(uintptr_t)at;
    if (write) __atomic_fetch_or(byte, 0, __ATOMIC_RELAXED);
    else (void)*(volatile uint8_t *)byte;
  }
}

static void interpose_calls(void) {
  void (*interpose)(void (*)(const void *, size_t, int)) =
      (void (*)(void (*)(const void *, size_t, int)))dlsym(RTLD_DEFAULT, "scuda_before_access");
  static const char remedy[] = "vm.unprivileged_userfaultfd=1 or CAP_SYS_PTRACE makes all of them work";
  if (interpose) {
    interpose(bring);
    scuda_log(SCUDA_INFO,
              "unified memory: system calls that the program makes without the C library (Go, io_uring) fail with "
              "EFAULT on memory that the GPU has; %s", remedy);
  } else scuda_log(SCUDA_WARN,
                   "unified memory: system calls (read, write) on memory that the GPU has fail with EFAULT here; "
                   "start the program with scuda run, which preloads libscuda.so, for those of the C library; %s",
                   remedy);
}

static int32_t start(void) {
  const char *wish = getenv("SCUDA_PAGER");
  int segv = wish && !strcmp(wish, "sigsegv"), user = wish && !strcmp(wish, "uffd-user"), sync = wish &&
      !strcmp(wish, "uffd-sync");
  if (wish && *wish && !segv && !user && !sync && strcmp(wish, "uffd"))
    scuda_log(SCUDA_WARN, "SCUDA_PAGER=%s is none of uffd, uffd-sync, uffd-user, sigsegv; choosing by myself", wish);
  memory = (int)syscall(SYS_memfd_create, "scuda-managed", 1u /* MFD_CLOEXEC */);
  if (memory < 0 || ftruncate(memory, (off_t)(SCUDA_MANAGED_END - SCUDA_MANAGED_FIRST)) || pipe2(queue, O_CLOEXEC)) {
    scuda_log(SCUDA_ERROR, "unified memory: no memory file or pipe (%s)", strerror(errno));
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  if (!segv) choose_uffd(user, !sync);
  if (uffd < 0) kind = "SIGSEGV";
  if (uffd < 0 || !strcmp(kind, "userfaultfd, user mode")) interpose_calls();
  if (scuda_thread_start(work, NULL)) return CUDA_ERROR_OPERATING_SYSTEM;
  scuda_log(SCUDA_INFO, "unified memory: faults come by %s", kind);
  if (pagemap >= 0) scuda_log(SCUDA_INFO, "unified memory: the kernel notes which pages are written");
  return CUDA_SUCCESS;
}

int32_t scuda_pager_start(scuda_fault_fn fault, scuda_end_fn end) {
  static scuda_lock_t once;
  static int32_t result = -1;
  scuda_lock(&once);
  if (result < 0) {
    serve = fault;
    managed_end = end;
    result = start();
  }
  scuda_unlock(&once);
  return result;
}

/* ---- ranges ---- */

static uint64_t take_offset(uint64_t bytes) {
  for (struct gap **at = &gaps, *g; (g = *at); at = &g->next) {
    if (g->bytes < bytes) continue;
    uint64_t offset = g->offset;
    g->offset += bytes;
    g->bytes -= bytes;
    if (!g->bytes) {
      *at = g->next;
      free(g);
    }
    return offset;
  }
  uint64_t offset = next_offset;
  if (bytes > SCUDA_MANAGED_END - SCUDA_MANAGED_FIRST - offset) return UINT64_MAX;
  next_offset += bytes;
  return offset;
}

static void give_offset(uint64_t offset, uint64_t bytes) {
  fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
  struct gap **at = &gaps, *g, *last = NULL;
  for (; (g = *at) && g->offset < offset; at = &g->next) last = g;
  if (last && last->offset + last->bytes == offset) {
    last->bytes += bytes;
    if (g && last->offset + last->bytes == g->offset) {
      last->bytes += g->bytes;
      last->next = g->next;
      free(g);
    }
    return;
  }
  if (g && offset + bytes == g->offset) {
    g->offset = offset;
    g->bytes += bytes;
    return;
  }
  struct gap *new = malloc(sizeof *new);
  if (!new) return; /* the place in the file is lost, not its memory */
  *new = (struct gap){g, offset, bytes};
  *at = new;
}

/* Managed memory has its own window of addresses, gone through again and again, so that an address rests after it was
 * freed. */
static void *place(uint64_t address, uint64_t bytes, uint64_t offset) {
  const int flags = MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE;
  if (address) return mmap((void *)(uintptr_t)address, bytes, PROT_NONE, flags, memory, (off_t)offset);
  for (int tries = 0; tries < 256 && bytes < SCUDA_MANAGED_END - SCUDA_MANAGED_FIRST; tries++) {
    if (bytes > SCUDA_MANAGED_END - next_address) next_address = SCUDA_MANAGED_FIRST;
    void *at = mmap((void *)(uintptr_t)next_address, bytes, PROT_NONE, flags, memory, (off_t)offset);
    uint64_t step = at == MAP_FAILED ? 1ull << 30 : bytes;
    next_address = (next_address + step + 65535) & ~(uint64_t)65535;
    if (at != MAP_FAILED || errno != EEXIST) return at;
  }
  return MAP_FAILED;
}

int32_t scuda_pages_make(struct scuda_pages *p, uint64_t address, uint64_t bytes) {
  bytes = (bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1);
  scuda_lock(&lock);
  uint64_t offset = take_offset(bytes);
  void *seen = MAP_FAILED, *open = MAP_FAILED;
  if (offset != UINT64_MAX) {
    seen = place(address, bytes, offset);
    if (seen != MAP_FAILED)
      open = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory, (off_t)offset);
  }
  int good = open != MAP_FAILED && (!address || seen == (void *)(uintptr_t)address) &&
             (uffd < 0 || !enlist((uint64_t)(uintptr_t)seen, bytes));
  if (good) {
    *p = (struct scuda_pages){(uint64_t)(uintptr_t)seen, bytes, offset, open};
    if (address && address < atomic_load(&variables_from)) atomic_store(&variables_from, address);
    if (address && address + bytes > atomic_load(&variables_to)) atomic_store(&variables_to, address + bytes);
    madvise(seen, bytes, MADV_DONTFORK); /* a child has no session to fetch it by, as natively it has no context */
    madvise(open, bytes, MADV_DONTFORK);
  } else {
    if (seen != MAP_FAILED) munmap(seen, bytes);
    if (open != MAP_FAILED) munmap(open, bytes);
    if (offset != UINT64_MAX) give_offset(offset, bytes);
  }
  if (uffd < 0) hold_signal();
  scuda_unlock(&lock);
  return good ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void scuda_pages_show(const struct scuda_pages *p) {
  /* with mprotect blocks are allowed one by one */
  if (uffd >= 0) mprotect((void *)(uintptr_t)p->start, p->bytes, PROT_READ | PROT_WRITE);
}

void scuda_pages_hide(const struct scuda_pages *p) { mprotect((void *)(uintptr_t)p->start, p->bytes, PROT_NONE); }

void scuda_pages_drop(struct scuda_pages *p) {
  scuda_lock(&lock);
  munmap((void *)(uintptr_t)p->start, p->bytes);
  munmap(p->open, p->bytes);
  give_offset(p->offset, p->bytes);
  scuda_unlock(&lock);
}

/* Pages of the file that nobody has touched are made in one call instead of by a fault each. */
int32_t scuda_pages_hold(const struct scuda_pages *p, uint64_t from, uint64_t bytes) {
  int failed;
  while ((failed = fallocate(memory, 0, (off_t)(p->offset + from), (off_t)bytes)) && errno == EINTR) {}
  if (failed)
    scuda_log(SCUDA_ERROR, "unified memory: no memory for %llu bytes (%s)", (unsigned long long)bytes, strerror(errno));
  return failed ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

int32_t scuda_pages_put(const struct scuda_pages *p, uint64_t from, uint64_t bytes, const uint8_t *data) {
  while (bytes) {
    ssize_t n = pwrite(memory, data, bytes, (off_t)(p->offset + from));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return scuda_pages_hold(p, from, bytes) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
    data += n;
    from += (uint64_t)n;
    bytes -= (uint64_t)n;
  }
  return CUDA_SUCCESS;
}

int32_t scuda_pages_fill(const struct scuda_pages *p, uint64_t from, uint64_t bytes, const uint8_t *data,
                         int writable) {
  while (uffd >= 0 && bytes) {
    struct uffdio_copy c = {
      .dst = p->start + from, .src = (uint64_t)(uintptr_t)data, .len = bytes, .mode = writable ? 0 : UFFDIO_COPY_MODE_WP
    };
    uint64_t done = bytes;
    if (ioctl(uffd, UFFDIO_COPY, &c)) {
      if (c.copy <= 0 && errno != EAGAIN) break; /* the file has the page after all */
      done = c.copy > 0 ? (uint64_t)c.copy : 0;
    }
    data += done;
    from += done;
    bytes -= done;
  }
  int32_t r = bytes ? scuda_pages_put(p, from, bytes, data) : CUDA_SUCCESS;
  return r || !bytes ? r : scuda_pages_allow(p, from, bytes, writable);
}

int32_t scuda_pages_open(const struct scuda_pages *p, uint64_t from, uint64_t bytes) {
  int failed;
  while ((failed = madvise(p->open + from, bytes, MADV_POPULATE_WRITE)) && errno == EINTR) {}
  return failed ? scuda_pages_hold(p, from, bytes) : CUDA_SUCCESS; /* also before Linux 5.14 */
}

int32_t scuda_pages_allow(const struct scuda_pages *p, uint64_t from, uint64_t bytes, int writable) {
  uint64_t start = p->start + from;
  if (uffd < 0)
    return mprotect((void *)(uintptr_t)start, bytes,
                    writable ? PROT_READ | PROT_WRITE : PROT_READ) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
  int r = proceed(start, bytes, writable ? 0 : UFFDIO_CONTINUE_MODE_WP);
  if (r < 0) {
    scuda_log(SCUDA_ERROR, "unified memory: pages at %#llx cannot be mapped (%s)", (unsigned long long)start,
              strerror(errno));
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  struct uffdio_writeprotect w = {.range = {start, bytes}, .mode = 0};
  while (r && writable && ioctl(uffd, UFFDIO_WRITEPROTECT, &w)) /* a page that was protected stays so until told */
    if (errno != EAGAIN) return CUDA_ERROR_OPERATING_SYSTEM;
  if (r) scuda_pages_wake(p, from, bytes); /* else mapping them has */
  return CUDA_SUCCESS;
}

/* Mapping the pages anew makes them writable at once; lifting the protection leaves a fault for each, which the kernel
 * serves. */
int32_t scuda_pages_unlock(const struct scuda_pages *p, uint64_t from, uint64_t bytes) {
  if (uffd >= 0) madvise((void *)(uintptr_t)(p->start + from), bytes, MADV_DONTNEED);
  return scuda_pages_allow(p, from, bytes, 1);
}

void scuda_pages_unmap(const struct scuda_pages *p, uint64_t from, uint64_t bytes) {
  void *start = (void *)(uintptr_t)(p->start + from);
  if (uffd >= 0) madvise(start, bytes, MADV_DONTNEED); /* the file keeps what it has */
  else mprotect(start, bytes, PROT_NONE);
}

int scuda_pages_tracked(void) { return pagemap >= 0; }

/* What was protected and is denied keeps a mark of that; pages that were written have none any more. */
int32_t scuda_pages_written(const struct scuda_pages *p, uint64_t from, uint64_t bytes, uint64_t unit, uint8_t *entries,
                            uint8_t value) {
  struct scanned v[64];
  struct scan q = {.size = sizeof q, .start = p->start + from, .end = p->start + from + bytes,
                   .vec = (uint64_t)(uintptr_t)v, .vec_len = sizeof v / sizeof *v,
                   .category_inverted = IS_WRITTEN, .category_mask = IS_SWAPPED | IS_WRITTEN,
                   .return_mask = IS_SWAPPED};
  uint64_t base = q.start, at = base;
  for (long n; q.start < q.end; q.start = q.walk_end) {
    if ((n = ioctl(pagemap, PAGEMAP_SCAN_IOCTL, &q)) < 0) {
      if (errno == EINTR) continue;
      scuda_log(SCUDA_ERROR, "unified memory: the kernel does not say what was written (%s)", strerror(errno));
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    for (long i = 0; i < n; at = v[i++].end)
      if (at < v[i].start)
        memset(entries + (at - base) / unit, value, (v[i].start - 1 - base) / unit - (at - base) / unit + 1);
  }
  if (at < q.end) memset(entries + (at - base) / unit, value, (q.end - 1 - base) / unit - (at - base) / unit + 1);
  return CUDA_SUCCESS;
}

void scuda_pages_unmapped(void) {
  if (uffd < 0) hold_signal();
}

void scuda_pages_wake(const struct scuda_pages *p, uint64_t from, uint64_t bytes) {
  struct uffdio_range r = {p->start + from, bytes};
  if (uffd >= 0) ioctl(uffd, UFFDIO_WAKE, &r);
}

void scuda_pages_lose(const struct scuda_pages *p) {
  void *start = (void *)(uintptr_t)p->start;
  if (ftruncate(memory, 0)) abort(); /* pages behind a file's end are what gives SIGBUS */
  if (uffd >= 0) {
    struct uffdio_range r = {p->start, p->bytes};
    ioctl(uffd, UFFDIO_UNREGISTER, &r);
  } else {
    mprotect(start, p->bytes, PROT_READ | PROT_WRITE);
  }
}

/* The same from a file that has no bytes. Who waits finds it when he tries again. */
void scuda_pages_cut(const struct scuda_pages *p) {
  static int nothing = -1;
  if (nothing < 0) nothing = (int)syscall(SYS_memfd_create, "scuda-lost", 1u);
  void *start = (void *)(uintptr_t)p->start;
  if (nothing < 0 || mmap(start, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, nothing, 0) == MAP_FAILED)
    scuda_pages_lose(p);
  else scuda_pages_wake(p, 0, p->bytes);
}
