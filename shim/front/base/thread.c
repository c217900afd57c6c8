/* The state of a calling thread: its ordinal on the wire, its context stack, what it lent to the program. States are
 * recycled, never freed: addresses inside them are handed out. */
#define _GNU_SOURCE
#include "base/server.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

__thread struct scuda_thread *scuda_self __attribute__((tls_model("initial-exec")));

enum { THREADS_MAX = 65535 };  /* the last ordinal is the core's */
static struct scuda_thread *threads[THREADS_MAX];
static uint32_t free_ordinals[THREADS_MAX], free_count, next_ordinal;
static scuda_lock_t lock;
static pthread_key_t exit_key;
static int have_exit_key;

static void thread_exit(void *state) {
  struct scuda_thread *t = state;
  scuda_self = t; /* the message carries the ordinal that ends */
  if (scuda_serving()) {
    struct wire_thread_exit m = {0};
    scuda_to_all(OP_THREAD_EXIT, 0, &m, sizeof m);
  }
  scuda_self = NULL;
  t->current = 0;
  t->depth = 0;
  t->server = 0;
  t->capture_mode = 0;
  t->captures = 0;
  t->storage_key = NULL;
  t->storage_generation = 0;
  scuda_lock(&lock);
  free_ordinals[free_count++] = t->ordinal;
  scuda_unlock(&lock);
}

struct scuda_thread *scuda_thread_new(void) {
  struct scuda_thread *t = NULL;
  scuda_lock(&lock);
  if (!have_exit_key) have_exit_key = !pthread_key_create(&exit_key, thread_exit);
  if (free_count) {
    t = threads[free_ordinals[--free_count]];
  } else if (next_ordinal < THREADS_MAX && (t = calloc(1, sizeof *t))) {
    t->ordinal = next_ordinal;
    threads[next_ordinal++] = t;
  }
  scuda_unlock(&lock);
  if (!t) {
    scuda_log(SCUDA_ERROR, "more than %d threads use CUDA, or memory is exhausted; the process cannot go on",
              THREADS_MAX);
    abort();
  }
  scuda_self = t;
  if (have_exit_key) pthread_setspecific(exit_key, t);
  return t;
}

/* Threads of ours do little, and the program waits for it: where the processors are busy, such a thread asks for short
 * turns, which come sooner and are no more in all (Linux 6.12; before that the kernel ignores it). */
static void take_short_turns(void) {
  struct {
    uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t runtime, deadline, period;
  } turns = {0};
  if (syscall(SYS_sched_getattr, 0, &turns, sizeof turns, 0) || turns.policy != SCHED_OTHER) return;
  turns.size = sizeof turns;
  turns.flags = 0;
  turns.runtime = 100000; /* ns, the least that there is */
  syscall(SYS_sched_setattr, 0, &turns, 0);
}

struct beginning { void *(*run)(void *); void *argument; };

static void *begin(void *p) {
  struct beginning b = *(struct beginning *)p;
  free(p);
  take_short_turns();
  return b.run(b.argument);
}

int scuda_thread_start(void *(*run)(void *), void *argument) {
  struct beginning *b = malloc(sizeof *b);
  if (!b) return ENOMEM;
  *b = (struct beginning){run, argument};
  pthread_attr_t attributes;
  pthread_t thread;
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  int failed = pthread_create(&thread, &attributes, begin, b);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (failed) free(b);
  return failed;
}
