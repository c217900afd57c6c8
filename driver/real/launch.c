#define _GNU_SOURCE
#include "launch.h"
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef int32_t launch_function(void *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, void *,
                                void **, void **);

enum {
  MOST = 64,     /* launches of a job */
  LEAST = 8,     /* fewer are not worth the trouble */
  SPIN_US = 50,  /* after its last job a helper looks out for the next so long before it sleeps */
  STREAMS = 2,   /* stream handles up to this stand for the default streams */
};

/* One job at a time. Its launches are divided into lanes, which the caller and the helpers take one by one: where no
 * helper comes, the caller takes all. */
static struct {
  atomic_flag busy; /* guards all of it, for the caller */
  _Atomic uint32_t turn; /* job number << 16 | lanes << 8 | lanes taken; futex of sleeping helpers */
  _Atomic uint32_t finished; /* lanes */
  _Atomic uint32_t sleeping; /* helpers */
  launch_function *launch;
  int32_t (*set)(void *);
  void *context;
  struct scuda_real_launch *list;
  uint64_t n;
  uint8_t lane[MOST];
  uint32_t helpers; /* started */
} team = {.busy = ATOMIC_FLAG_INIT};

static void pause_briefly(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void make(launch_function *launch, struct scuda_real_launch *l) {
  l->result = launch(l->function, l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->shared,
                     l->stream, l->params, 0);
}

/* take makes the launches of a lane that nobody has taken; 0 where there is none. */
static int take(int32_t (*enter)(void *)) {
  uint32_t turn = atomic_load(&team.turn);
  do
    if ((turn & 0xff) >= (turn >> 8 & 0xff)) return 0;
  while (!atomic_compare_exchange_weak(&team.turn, &turn, turn + 1));
  int32_t r = enter ? enter(team.context) : 0;
  for (uint64_t i = 0; i < team.n; i++) {
    if (team.lane[i] != (turn & 0xff)) continue;
    if (r) team.list[i].result = r;
    else make(team.launch, &team.list[i]);
  }
  atomic_fetch_add(&team.finished, 1);
  return 1;
}

static int64_t microseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000ll + t.tv_nsec / 1000;
}

static void *help(void *unused) {
  prctl(PR_SET_NAME, "scuda-launch");
  for (;;) {
    int64_t last = microseconds();
    while (microseconds() - last < SPIN_US) {
      if (take(team.set)) last = microseconds();
      for (int i = 0; i < 16; i++) pause_briefly();
    }
    atomic_fetch_add(&team.sleeping, 1);
    uint32_t turn = atomic_load(&team.turn);
    if ((turn & 0xff) >= (turn >> 8 & 0xff)) syscall(SYS_futex, &team.turn, FUTEX_WAIT_PRIVATE, turn, 0, 0, 0);
    atomic_fetch_sub(&team.sleeping, 1);
  }
  return unused;
}

static void grow(uint32_t helpers) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads of Go */
  for (pthread_t t; team.helpers < helpers && !pthread_create(&t, 0, help, 0); team.helpers++) pthread_detach(t);
  pthread_sigmask(SIG_SETMASK, &before, 0);
}

/* divide gives each launch its lane and tells how many there are: 1 where all have to be made in one order. */
static uint32_t divide(const struct scuda_real_launch *l, uint64_t n, uint32_t lanes) {
  uint32_t threads[MOST], known = 0, k;
  for (k = 1; k < n && l[k].thread == l[0].thread; k++) {}
  if (k == n) return 1;
  for (uint64_t i = 0; i < n; i++) {
    if ((uintptr_t)l[i].stream <= STREAMS) return 1; /* a default stream waits for others */
    for (k = 0; k < known && threads[k] != l[i].thread; k++) {}
    if (k == known) threads[known++] = l[i].thread;
    team.lane[i] = (uint8_t)(k % lanes);
    for (uint64_t j = 0; j < i; j++)
      /* the program may have seen to their order */
      if (l[j].stream == l[i].stream && l[j].thread != l[i].thread) return 1;
  }
  return known < lanes ? known : lanes;
}

static int together(launch_function *launch, int32_t (*get)(void **), int32_t (*set)(void *),
                    struct scuda_real_launch *list, uint64_t n, uint32_t lanes) {
  if (atomic_flag_test_and_set(&team.busy)) return 0;
  lanes = divide(list, n, lanes);
  int ok = lanes > 1 && !get(&team.context);
  if (ok) {
    team.launch = launch, team.set = set, team.list = list, team.n = n;
    grow(lanes - 1);
    atomic_store(&team.finished, 0);
    atomic_store(&team.turn, (atomic_load(&team.turn) & 0xffff0000) + 0x10000 + (lanes << 8));
    if (atomic_load(&team.sleeping)) syscall(SYS_futex, &team.turn, FUTEX_WAKE_PRIVATE, lanes - 1, 0, 0, 0);
    while (take(0)) {}
    for (int i = 0; atomic_load(&team.finished) < lanes; i++)
      if (i < 2000) pause_briefly();
      else sched_yield();
  }
  atomic_flag_clear(&team.busy);
  return ok;
}

void scuda_real_launch_all(uintptr_t launch, uintptr_t get, uintptr_t set, uintptr_t list, uint64_t n, uint32_t lanes) {
  struct scuda_real_launch *l = (struct scuda_real_launch *)list;
  if (lanes > 1 && get && set && n >= LEAST && n <= MOST &&
      together((launch_function *)launch, (int32_t(*)(void **))get, (int32_t(*)(void *))set, l, n, lanes)) return;
  for (; n; n--, l++) make((launch_function *)launch, l);
}
