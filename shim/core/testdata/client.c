// Drives libscuda-core.so through its C interface. argv: core, scenario. Prints one line for each thing seen.
#define _GNU_SOURCE
#include "../../front/base/core.h"
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ring_size = 1 << 16 };
static struct scuda_shared shared;
static scuda_core_call_fn core_call;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int urg, ran;

static void on_urg(int s) { (void)s; __atomic_add_fetch(&urg, 1, __ATOMIC_SEQ_CST); }
static void host_function(void *user) { __atomic_store_n(&ran, *(int *)user, __ATOMIC_SEQ_CST); }

static uint64_t publish(uint16_t op, uint32_t thread, uint64_t value) {
  pthread_mutex_lock(&lock);
  uint64_t tail = shared.tail;
  uint8_t *p = shared.ring + (tail & (ring_size - 1));
  memset(p, 0, 40);
  *(uint32_t *)p = 40;
  *(uint16_t *)(p + 4) = op;
  *(uint16_t *)(p + 6) = 1;
  *(uint64_t *)(p + 8) = tail;
  *(uint32_t *)(p + 24) = thread;
  *(uint64_t *)(p + 32) = value;
  while (tail + 40 - __atomic_load_n(&shared.head, __ATOMIC_SEQ_CST) > ring_size) usleep(10);
  __atomic_store_n(&shared.tail, tail + 40, __ATOMIC_SEQ_CST);
  pthread_mutex_unlock(&lock);
  return tail + 40;
}

static int32_t call(uint16_t op, uint32_t thread, uint64_t value, uint64_t *answer) {
  struct scuda_call c = {.thread = thread, .reply = answer, .reply_cap = 8};
  c.end = publish(op, thread, value);
  c.begin = c.end - 40;
  core_call(&c);
  return c.result;
}

static void *worker(void *arg) {
  uint32_t thread = (uint32_t)(uintptr_t)arg;
  for (uint64_t i = 0; i < 2000; i++) {
    uint64_t answer = 0;
    if (call(1, thread, i << 16 | thread, &answer) || answer != (i << 16 | thread)) return (void *)"wrong answer";
  }
  return NULL;
}

static int sockets(void) {
  int n = 0;
  DIR *d = opendir("/proc/self/fd");
  for (struct dirent *e; (e = readdir(d));) {
    char path[64], to[64] = {0};
    snprintf(path, sizeof path, "/proc/self/fd/%.20s", e->d_name);
    if (readlink(path, to, sizeof to - 1) > 0 && !strncmp(to, "socket:", 7)) n++;
  }
  closedir(d);
  return n;
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  signal(SIGURG, on_urg);
  struct sigaction before, after;
  sigaction(SIGURG, NULL, &before);
  void *core = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!core) return fprintf(stderr, "%s\n", dlerror()), 2;
  scuda_core_open_fn core_open = (scuda_core_open_fn)dlsym(core, "scuda_core_open");
  core_call = (scuda_core_call_fn)dlsym(core, "scuda_core_call");
  scuda_core_hostfn_fn core_hostfn = (scuda_core_hostfn_fn)dlsym(core, "scuda_core_hostfn");
  scuda_core_overlaps_fn core_overlaps = (scuda_core_overlaps_fn)dlsym(core, "scuda_core_overlaps");
  scuda_core_close_fn core_close = (scuda_core_close_fn)dlsym(core, "scuda_core_close");
  sigaction(SIGURG, &before, &after); // as the front does

  int ring = memfd_create("ring", 0);
  if (ring < 0 || ftruncate(ring, ring_size)) return 2;
  uint8_t *at = mmap(NULL, 2 * ring_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (int i = 0; i < 2; i++)
    mmap(at + i * ring_size, ring_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ring, 0);
  close(ring);
  shared.abi = SCUDA_CORE_ABI;
  shared.ring = at;
  shared.ring_size = ring_size;

  struct scuda_boot boot = {0};
  int r = core_open(&shared, &boot);
  printf("open %d\n", r);
  if (r) return 0;
  printf("driver %d devices %d name %s cc %d\n", boot.driver_version, boot.device_count, boot.devices[0].name,
         boot.devices[0].attributes[75]);

  if (!strcmp(argv[2], "calls")) {
    pthread_t t[16];
    for (uintptr_t i = 0; i < 16; i++) pthread_create(&t[i], NULL, worker, (void *)i);
    for (int i = 0; i < 16; i++) {
      void *wrong;
      pthread_join(t[i], &wrong);
      if (wrong) printf("%s\n", (char *)wrong);
    }
    printf("calls done, %d preemption signals\n", urg);
  } else if (!strcmp(argv[2], "host")) {
    int value = 42;
    uint64_t registration = core_hostfn(0, (void *)host_function, &value, 0, 0, 0), answer = 0;
    printf("overlaps %d\n", core_overlaps(&value, 4));
    call(2, 0, registration, &answer); // the server answers when the function has run
    printf("ran %d overlaps %d\n", ran, core_overlaps(&value, 4));
  } else if (!strcmp(argv[2], "fork")) {
    int value = 0;
    uint64_t answer;
    call(2, 0, core_hostfn(0, (void *)host_function, &value, 0, 0, 0), &answer); // opens the callback connection
    fflush(stdout);
    if (fork() == 0) {
      printf("child has %d sockets\n", sockets());
      fflush(stdout);
      _exit(0);
    }
    wait(NULL);
    printf("parent has %d sockets\n", sockets());
  } else if (!strcmp(argv[2], "lost")) {
    uint64_t answer;
    printf("call %d\n", call(4, 0, 0, &answer)); // the server drops the connection
    printf("call %d lost %u\n", call(1, 0, 0, &answer), shared.lost);
  }
  core_close();
  uint64_t answer;
  printf("after close %d\n", call(1, 0, 0, &answer));
  return 0;
}
