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
 * The page is a file in /dev/shm, as those of NCCL and PyTorch are. A process has a place in it for each of its
 * sessions, as long as it holds the lock of the byte with the place's number, which the kernel lets go of when the
 * process ends; the last one to end unlinks the file. A place's position is the end of a command for its own session,
 * as no other ever comes to be there. Each server is told of all places, and knows those of its own sessions. */
#define _GNU_SOURCE
#include "base/order.h"
#include "base/server.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLACES = SCUDA_ORDER_MOST };
struct place {
  _Alignas(64) _Atomic uint64_t told; /* all calls for the session up to this position have returned */
  _Atomic uint64_t id;                /* of the session; 0: nobody's */
  _Atomic uint32_t place;             /* of the session on the server */
};
struct page {
  _Alignas(64) _Atomic uint32_t used; /* places from here on have never been used */
  struct place places[PLACES];
};

_Atomic int scuda_ordering;
static struct page *page;
static uint32_t own[SCUDA_SERVERS];          /* our places, by server */
static _Atomic uint64_t sent[SCUDA_SERVERS]; /* the end of the last command for a server; set under the ring's lock */
static int lock_fd = -1;
static char path[64];
/* what a server was told of a place last; under the ring's lock */
static struct { uint64_t told, id; } seen[SCUDA_SERVERS][PLACES];

static int lock_place(int fd, uint32_t first, uint32_t n, short how) {
  struct flock l = {.l_type = how, .l_whence = SEEK_SET, .l_start = first, .l_len = n};
  return fcntl(fd, F_OFD_SETLK, &l);
}

/* Gives each server a place in the file; how many have got one. */
static uint32_t take_places(int fd) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < PLACES && n < scuda_servers; i++)
    if (!lock_place(fd, i, 1, F_WRLCK)) own[n++] = i;
  return n;
}

static int is_own(uint32_t place) {
  uint32_t i = 0;
  while (i < scuda_servers && own[i] != place) i++;
  return i < scuda_servers;
}

/* The file, with places in it that are ours; -1 and why. */
static int open_page(void) {
  for (int tries = 0; tries < 100; tries++) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct statx st;
    if (fd < 0) return -1;
    int full = take_places(fd) < scuda_servers;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st) || st.stx_uid != geteuid() || !S_ISREG(st.stx_mode) ||
        full) {
      close(fd);
      errno = full ? EUSERS : EPERM;
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
    return fd;
  }
  errno = EAGAIN;
  return -1;
}

/* Asks for the place of a session on its server, and gives the position behind it: what is before has been carried out
 * when the answer is there. */
static int32_t ask_place(uint32_t server, struct wire_order_place *at, uint64_t *end) {
  struct scuda_cmd c;
  uint32_t len = 0;
  struct scuda_visit v = scuda_visit(server, 0);
  int32_t r = scuda_begin(&c, OP_ORDER_JOIN, SCUDA_ANSWER, 0);
  if (!r) {
    *end = c.end;
    r = scuda_call(&c, at, sizeof *at, &len);
    if (!r && len < sizeof *at) r = scuda_bad_reply("cuIpcGetMemHandle");
  }
  scuda_visit_end(v);
  return r;
}

static void take_seat(uint32_t server, const struct wire_order_place *at, uint64_t end) {
  struct place *p = &page->places[own[server]];
  atomic_store(&p->id, 0);
  atomic_store(&p->place, at->place);
  atomic_store(&p->told, end);
  atomic_store(&p->id, at->id);
  uint32_t used = atomic_load(&page->used);
  while (used <= own[server] && !atomic_compare_exchange_weak(&page->used, &used, own[server] + 1)) {
  }
}

/* Asks all servers; the first error. */
static int32_t ask_places(struct wire_order_place *at, uint64_t *end) {
  int32_t first = CUDA_SUCCESS;
  for (uint32_t i = 0; i < scuda_servers; i++) {
    int32_t r = scuda_server_lost(i) ? CUDA_SUCCESS : ask_place(i, &at[i], &end[i]);
    if (!first) first = r;
  }
  return first;
}

static int32_t join(struct wire_order_place *at, uint64_t *end) {
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
  int32_t r = ask_places(at, end);
  if (r) {
    munmap(mem, sizeof(struct page));
    close(fd);
    return r;
  }
  madvise(mem, sizeof(struct page), MADV_DONTFORK);
  page = mem;
  lock_fd = fd;
  for (uint32_t i = 0; i < scuda_servers; i++) take_seat(i, &at[i], end[i]);
  return CUDA_SUCCESS;
}

/* The program is about to say something to another process perhaps. A forked child has no page. */
static void before_telling(void) {
  if (scuda_serving() && atomic_load(&scuda_ordering) == SCUDA_ORDER_TOLD)
    for (uint32_t i = 0; i < scuda_servers; i++) scuda_order_tell(i, atomic_load(&sent[i]));
}

void scuda_order_join(void) {
  static scuda_lock_t once;
  atomic_store(&scuda_sharing, 1);
  if (SCUDA_LIKELY(atomic_load(&scuda_ordering))) return;
  scuda_lock(&once);
  if (!atomic_load(&scuda_ordering) && scuda_serving()) {
    struct wire_order_place at[SCUDA_SERVERS] = {0};
    uint64_t end[SCUDA_SERVERS] = {0};
    int32_t r = join(at, end);
    atomic_store(&scuda_ordering, r ? SCUDA_ORDER_ANSWERED : SCUDA_ORDER_TOLD);
    /* Other threads' commands may have come between a session's place and this moment, from which on they are noted;
     * another answer is behind them. */
    if (!r) ask_places(at, end);
  }
  before_telling();
  void (*hook)(void (*)(void)) = (void (*)(void (*)(void)))dlsym(RTLD_DEFAULT, "scuda_before_telling");
  if (hook) hook(before_telling);
  scuda_unlock(&once);
}

void scuda_order_sent(uint32_t server, uint64_t end) { atomic_store(&sent[server], end); }

void scuda_order_tell(uint32_t server, uint64_t end) {
  _Atomic uint64_t *told = &page->places[own[server]].told;
  uint64_t old = atomic_load_explicit(told, memory_order_relaxed);
  while (old < end && !atomic_compare_exchange_weak(told, &old, end)) {
  }
}

uint32_t scuda_order_news(uint32_t server, struct wire_order_after *list) {
  uint32_t n = 0, used = atomic_load_explicit(&page->used, memory_order_acquire);
  for (uint32_t i = 0; i < used && i < PLACES; i++) {
    struct place *p = &page->places[i];
    uint64_t id = atomic_load_explicit(&p->id, memory_order_acquire),
        told = atomic_load_explicit(&p->told, memory_order_acquire);
    if (SCUDA_LIKELY(told == seen[server][i].told && id == seen[server][i].id)) continue;
    if (is_own(i) || !id || atomic_load(&p->id) != id) continue;
    seen[server][i].told = told;
    seen[server][i].id = id;
    list[n++] = (struct wire_order_after){.id = id, .position = told, .place = atomic_load(&p->place)};
  }
  return n;
}

void scuda_order_end(void) {
  if (lock_fd >= 0 && !lock_place(lock_fd, 0, PLACES, F_WRLCK)) unlink(path);
}
