// Threads of the core. The Go runtime ends the process where a thread cannot be started, which is natively a call that
// fails: so some are started ahead, for the time when the program has reached a limit or has forbidden itself to start
// any. The linker puts the function below in the place of the one with which the runtime starts threads (-Wl,--wrap in
// build.sh).
#define _GNU_SOURCE
#include "threads.h"
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef void *(*run_fn)(void *);
enum { RESERVE = 24, MOST = 64, RETRY_NS = 20 * 1000 * 1000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards what follows
static pthread_cond_t due = PTHREAD_COND_INITIALIZER;
static struct task { run_fn run; void *argument; } tasks[MOST]; // that waiting threads are to take
static int task_count;
static int waiting; // threads, without those that have a task

uint32_t *scuda_threads_lost; // the session's result for every call, once it cannot go on

static void *stand_by(void *unused) {
  (void)unused;
  for (;;) {
    pthread_mutex_lock(&lock);
    while (!task_count) pthread_cond_wait(&due, &lock);
    struct task task = tasks[--task_count];
    pthread_mutex_unlock(&lock);
    task.run(task.argument);
    pthread_mutex_lock(&lock); // a thread that the runtime has no use for any more
    waiting++;
    pthread_mutex_unlock(&lock);
  }
  return NULL;
}

// Starts threads until so many wait; under the lock.
static int fill(int n) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  while (waiting < n && waiting < MOST && !pthread_create(&thread, &attributes, stand_by, NULL)) waiting++;
  pthread_attr_destroy(&attributes);
  return waiting >= n;
}

int scuda_threads_ready(int n) {
  pthread_mutex_lock(&lock);
  int enough = fill(RESERVE) && (n <= RESERVE || fill(n));
  pthread_mutex_unlock(&lock);
  return enough;
}

// Gives a task to a thread that waits; 0 if none does.
static int hand_over(run_fn run, void *argument) {
  pthread_mutex_lock(&lock);
  int taken = waiting > 0;
  if (taken) {
    waiting--;
    tasks[task_count++] = (struct task){run, argument};
    pthread_cond_signal(&due);
  }
  pthread_mutex_unlock(&lock);
  return taken;
}

int __wrap__cgo_try_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, run_fn run, void *argument) {
  static int said;
  for (;;) {
    int failed = pthread_create(thread, attributes, run, argument);
    if (!failed || hand_over(run, argument)) return 0;
    /* Whoever waits in the runtime waits on; every later call fails before it gets there. */
    if (!__atomic_exchange_n(&said, 1, __ATOMIC_SEQ_CST)) {
      static const char line[] = "scuda: no thread can be started any more, and the session needs one: raise the limit "
                                 "on processes. All further CUDA calls of this process fail with "
                                 "CUDA_ERROR_OPERATING_SYSTEM (304).\n";
      uint32_t none = 0;
      if (scuda_threads_lost)
        __atomic_compare_exchange_n(scuda_threads_lost, &none, 304, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
      if (write(2, line, sizeof line - 1) < 0) return failed;
    }
    nanosleep(&(struct timespec){.tv_nsec = RETRY_NS}, NULL);
  }
}
