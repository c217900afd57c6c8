/* Order between processes that share memory of the GPU. Natively a call that has returned is in the GPU's hands, and
 * programs tell each other so by pipes, semaphores, files, or words in their own memory, which nobody can watch. Here a
 * command may be on its way still. So each process that shares memory writes down, in a page of all processes of its
 * user, up to which position others may have been told of its calls; and before a command it looks whether the others
 * have got further since, and if so sends their positions ahead (ORDER): its session on the server waits until theirs
 * have got there.
 *
 * That is of no use to work which has nothing to do with the shared memory, and would harm where the GPU itself orders
 * the work of several processes, as NCCL's kernels do: a process that is far ahead of its GPU would hold up the one it
 * waits for. So a position is written down behind what uses shared memory, as far as that can be seen (addresses among
 * parameters, graphs always), behind what was answered, and, because kernels find addresses in memory too, before the C
 * library's calls by which processes tell each other something where libscuda.so stands before them.
 *
 * The page is a file in /dev/shm, as those of NCCL and PyTorch are. A process has a place in it as long as it holds the
 * lock of the byte with the place's number, which the kernel lets go of when the process ends; the last one to end
 * unlinks the file. */
#define _GNU_SOURCE
#include "base/order.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLACES = SCUDA_ORDER_MOST };
struct place {
  _Alignas(64) _Atomic uint64_t told; /* all calls up to this position have returned */
  _Atomic uint64_t id;                /* of the session; 0: nobody's */
  _Atomic uint32_t place;             /* of the session on the server */
};
struct page {
  _Alignas(64) _Atomic uint32_t used; /* places from here on have never been used */
  struct place places[PLACES];
};

_Atomic int scuda_ordering;
static struct page *page;
static uint32_t own;
static int lock_fd = -1;
static char path[64];
static uint64_t seen[PLACES]; /* under the ring's lock: what the server was told of the others last */
static uint64_t seen_id[PLACES];

static int lock_place(int fd, uint32_t first, uint32_t n, short how) {
  struct flock l = {.l_type = how, .l_whence = SEEK_SET, .l_start = first, .l_len = n};
  return fcntl(fd, F_OFD_SETLK, &l);
}

/* The file, with a place in it that is ours; -1 and why. */
static int open_page(void) {
  for (int tries = 0; tries < 100; tries++) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct statx st;
    if (fd < 0) return -1;
    uint32_t i = 0;
    while (i < PLACES && lock_place(fd, i, 1, F_WRLCK)) i++;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st) || st.stx_uid != geteuid() || !S_ISREG(st.stx_mode) ||
        i == PLACES) {
      close(fd);
      errno = i == PLACES ? EUSERS : EPERM;
      return -1;
    }
    if (!st.stx_nlink) { /* the last of the others ended meanwhile */
      close(fd);
      continue;
    }
    if (st.stx_size < sizeof(struct page) && ftruncate(fd, sizeof(struct page))) {
      close(fd);
      return -1;
    }
    own = i;
    return fd;
  }
  errno = EAGAIN;
  return -1;
}

static int32_t ask_place(struct wire_order_place *at) {
  struct scuda_cmd c;
  uint32_t len = 0;
  int32_t r = scuda_begin(&c, OP_ORDER_JOIN, SCUDA_ANSWER, 0);
  if (r || (r = scuda_call(&c, at, sizeof *at, &len))) return r;
  return len < sizeof *at ? scuda_bad_reply("cuIpcGetMemHandle") : CUDA_SUCCESS;
}

static int32_t join(void) {
  struct wire_order_place at = {0};
  snprintf(path, sizeof path, "/dev/shm/scuda-order-%u", (unsigned)geteuid());
  int fd = open_page();
  void *mem = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mem == MAP_FAILED) {
    scuda_log(SCUDA_WARN,
              "%s: %s; each call waits for the server now, so that processes that share memory find their "
              "work in order", path,
              strerror(errno));
    if (fd >= 0) close(fd);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  int32_t r = ask_place(&at);
  if (r) {
    munmap(mem, sizeof(struct page));
    close(fd);
    return r;
  }
  madvise(mem, sizeof(struct page), MADV_DONTFORK);
  page = mem;
  lock_fd = fd;
  struct place *p = &page->places[own];
  atomic_store(&p->id, 0);
  atomic_store(&p->place, at.place);
  atomic_store(&p->told, __atomic_load_n(&scuda_shared.tail, __ATOMIC_ACQUIRE));
  atomic_store(&p->id, at.id);
  uint32_t used = atomic_load(&page->used);
  while (used <= own && !atomic_compare_exchange_weak(&page->used, &used, own + 1)) {
  }
  return CUDA_SUCCESS;
}

/* The program is about to say something to another process perhaps. A forked child has no page. */
static void before_telling(void) {
  if (scuda_serving() && atomic_load(&scuda_ordering) == SCUDA_ORDER_TOLD)
    scuda_order_tell(__atomic_load_n(&scuda_shared.tail, __ATOMIC_ACQUIRE));
}

void scuda_order_join(void) {
  static scuda_lock_t once;
  atomic_store(&scuda_sharing, 1);
  if (SCUDA_LIKELY(atomic_load(&scuda_ordering))) return;
  scuda_lock(&once);
  if (!atomic_load(&scuda_ordering) && scuda_serving())
    atomic_store(&scuda_ordering, join() ? SCUDA_ORDER_ANSWERED : SCUDA_ORDER_TOLD);
  before_telling();
  void (*hook)(void (*)(void)) = (void (*)(void (*)(void)))dlsym(RTLD_DEFAULT, "scuda_before_telling");
  if (hook) hook(before_telling);
  scuda_unlock(&once);
}

void scuda_order_tell(uint64_t end) {
  _Atomic uint64_t *told = &page->places[own].told;
  uint64_t old = atomic_load_explicit(told, memory_order_relaxed);
  while (old < end && !atomic_compare_exchange_weak(told, &old, end)) {
  }
}

uint32_t scuda_order_news(struct wire_order_after *list) {
  uint32_t n = 0, used = atomic_load_explicit(&page->used, memory_order_acquire);
  for (uint32_t i = 0; i < used && i < PLACES; i++) {
    struct place *p = &page->places[i];
    uint64_t id = atomic_load_explicit(&p->id, memory_order_acquire),
        told = atomic_load_explicit(&p->told, memory_order_acquire);
    if (SCUDA_LIKELY(told == seen[i] && id == seen_id[i])) continue;
    if (i == own || !id || atomic_load(&p->id) != id) continue;
    seen[i] = told;
    seen_id[i] = id;
    list[n++] = (struct wire_order_after){.id = id, .position = told, .place = atomic_load(&p->place)};
  }
  return n;
}

void scuda_order_end(void) {
  if (lock_fd >= 0 && !lock_place(lock_fd, 0, PLACES, F_WRLCK)) unlink(path);
}
