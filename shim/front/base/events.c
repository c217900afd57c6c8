#define _GNU_SOURCE
#include "base/events.h"
#include "base/common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { STEP = 64 /* blocks for which the file gets room at once */ };

/* Zeroed in a forked child. room: blocks that the file has. The lock is held while it is opened, and while it grows. */
static struct {
  _Alignas(4096) _Atomic uintptr_t head;
  _Atomic uint64_t room;
  scuda_lock_t lock;
  uint8_t rest[4096 - 20];
} live;
static char file[4096]; /* no descriptor is kept: programs close what they do not know */

/* The calling thread's block, of the file of the process that it was in then. */
static __thread struct { uint32_t pid, room; struct events_block *block; } mine;

uint64_t scuda_events_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int scuda_events_on(void) { return atomic_load_explicit(&live.head, memory_order_relaxed) != 0; }

static void program_name(char *to, size_t cap) {
  int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? 0 : read(fd, to, cap - 1);
  if (fd >= 0) close(fd);
  for (ssize_t i = 0; i + 1 < n; i++)
    if (!to[i]) to[i] = ' ';
  to[n > 0 ? n : 0] = 0;
}

/* The file gets room for so many blocks: a full disk is to be met here, and not as a signal at a write. */
static int grow(uint64_t blocks) {
  int ok = 1;
  scuda_lock(&live.lock);
  if (blocks > atomic_load(&live.room)) {
    uint64_t want = (blocks + STEP - 1) / STEP * STEP;
    int fd = open(file, O_RDWR | O_CLOEXEC);
    ok = fd >= 0 && !posix_fallocate(fd, 0, (off_t)(EVENTS_HEAD + want * EVENTS_BLOCK));
    if (fd >= 0) close(fd);
    if (ok) atomic_store(&live.room, want);
  }
  scuda_unlock(&live.lock);
  return ok;
}

static void create(const char *prefix, const char *suffix) {
  int fd = -1;
  for (int i = 0; fd < 0 && i < 1000; i++) { /* a process that executes another keeps its number */
    if (snprintf(file, sizeof file, "%s.%d.%d.%s", prefix, (int)getpid(), i, suffix) > (int)sizeof file - 1) break;
    fd = open(file, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno != EEXIST) break;
  }
  struct rlimit limit;
  uint64_t most = EVENTS_BLOCKS, bytes = EVENTS_HEAD + (uint64_t)EVENTS_BLOCKS * EVENTS_BLOCK;
  if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur < bytes) /* beyond that a signal would come */
    most = limit.rlim_cur < EVENTS_HEAD ? 0 : (limit.rlim_cur - EVENTS_HEAD) / EVENTS_BLOCK / STEP * STEP;
  void *p = MAP_FAILED;
  if (fd >= 0 && most && !posix_fallocate(fd, 0, EVENTS_HEAD))
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (p == MAP_FAILED) scuda_log(SCUDA_WARN, "cannot write the timeline %s: %s", file, strerror(errno));
  if (fd >= 0) close(fd);
  if (p == MAP_FAILED) return;
  madvise(p, bytes, MADV_DONTFORK);
  struct events_head *h = p;
  struct timespec real;
  clock_gettime(CLOCK_REALTIME, &real);
  h->block = EVENTS_BLOCK;
  h->pid = (uint32_t)getpid();
  h->monotonic = scuda_events_now();
  h->real = (uint64_t)real.tv_sec * 1000000000u + (uint64_t)real.tv_nsec;
  h->most = most;
  program_name(h->program, sizeof h->program);
  memcpy(h->magic, "scudaTL1", 8);
  atomic_store(&live.head, (uintptr_t)p);
}

int scuda_events_open(const char *suffix) {
  if (scuda_events_on()) return 1;
  const char *prefix = getenv("SCUDA_TIMELINE");
  if (!prefix || !*prefix) return 0;
  static _Atomic int tried; /* by which process */
  scuda_lock(&live.lock);
  if (!scuda_events_on() && atomic_exchange(&tried, (int)getpid()) != (int)getpid()) {
    if (madvise(&live, sizeof live, MADV_WIPEONFORK))
      scuda_log(SCUDA_WARN, "no timeline: MADV_WIPEONFORK is refused (%s)", strerror(errno));
    else create(prefix, suffix);
  }
  scuda_unlock(&live.lock);
  return scuda_events_on();
}

/* A new block of the calling thread with room for so many bytes; 0: there is none. */
static int begin_block(struct events_head *h, uint64_t bytes) {
  uint64_t n = (bytes + sizeof(struct events_block) + EVENTS_BLOCK - 1) / EVENTS_BLOCK;
  mine.pid = h->pid;
  mine.block = NULL;
  if (__atomic_load_n(&h->blocks, __ATOMIC_RELAXED) + n > h->most) return 0;
  uint64_t at = __atomic_fetch_add(&h->blocks, n, __ATOMIC_RELAXED);
  if (at + n > h->most || (at + n > atomic_load(&live.room) && !grow(at + n))) return 0;
  mine.block = (struct events_block *)((uint8_t *)h + EVENTS_HEAD + at * EVENTS_BLOCK);
  mine.room = (uint32_t)(n * EVENTS_BLOCK);
  mine.block->thread = (uint32_t)syscall(SYS_gettid);
  prctl(PR_GET_NAME, mine.block->name);
  __atomic_store_n(&mine.block->used, (uint32_t)sizeof *mine.block, __ATOMIC_RELEASE);
  return 1;
}

void scuda_event(void *event, uint32_t bytes, const void *text, uint32_t length) {
  struct events_head *h = (struct events_head *)atomic_load_explicit(&live.head, memory_order_acquire);
  if (!h) return;
  uint32_t all = (bytes + length + 7) & ~7u;
  if (mine.pid != h->pid || !mine.block || mine.block->used + all > mine.room) {
    if (!begin_block(h, all)) {
      __atomic_fetch_add(&h->lost, 1, __ATOMIC_RELAXED);
      return;
    }
  }
  uint8_t *to = (uint8_t *)mine.block + mine.block->used;
  ((struct event *)event)->bytes = all;
  memcpy(to, event, bytes);
  if (length) memcpy(to + bytes, text, length);
  __atomic_store_n(&mine.block->used, mine.block->used + all, __ATOMIC_RELEASE);
}

void scuda_events_end(void) {
  struct events_head *h = (struct events_head *)atomic_load(&live.head);
  if (h) __atomic_store_n(&h->ended, scuda_events_now(), __ATOMIC_RELAXED);
}
