// What happens around a fault of unified memory. Arguments: the folder of kernels, what to do, a name in main's list,
// and how often, for what goes on for long.
#include "managed.h"
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 4 << 20 };
static int rounds; // 0: as many as suffice
static int times(int enough) { return rounds ? rounds : enough; }

static sigjmp_buf back;
static volatile sig_atomic_t caught;
static void on_signal(int number, siginfo_t *info, void *context) {
  (void)info, (void)context;
  caught = number;
  siglongjmp(back, 1);
}
static void handle(int number) {
  struct sigaction a = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_NODEFER};
  CHECK(!sigaction(number, &a, NULL), "sigaction");
}
static int touch(volatile unsigned char *p) { // the signal that an access raises
  caught = 0;
  if (!sigsetjmp(back, 1)) *p = *p;
  return caught;
}

// A handler from before the first allocation and one from after it see the program's own faults, and never ours.
static void handlers(void) {
  unsigned char *forbidden = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  handle(SIGSEGV);
  unsigned char *m = managed(N);
  memset(m, 3, N);
  mix(m, 1000, 2, 1);
  CHECK(!touch(m) && m[999] == 7 && m[1000] == 3, "managed memory after a kernel: signal %d, %d %d", caught, m[999],
        m[1000]);
  CHECK(touch(forbidden) == SIGSEGV, "the program's own fault gave signal %d", caught);
  handle(SIGSEGV); // again, over whatever is there
  unsigned char *m2 = managed(N);
  memset(m2, 5, N);
  mix(m2, 1000, 2, 1);
  mix(m, 1000, 2, 1);
  CHECK(!touch(m) && !touch(m2) && m[999] == 15 && m2[999] == 11, "after the second handler: signal %d, %d %d", caught,
        m[999], m2[999]);
  CHECK(touch(forbidden) == SIGSEGV, "the program's own fault gave signal %d after the second handler", caught);
  handle(SIGSEGV); // and with no allocation behind it
  mix(m2, 1000, 2, 1);
  CHECK(!touch(m2) && m2[999] == 23, "after the third handler: signal %d, %d", caught, m2[999]);
  release(m);
  CHECK(touch(m) == SIGSEGV, "freed memory gave signal %d", caught);
  release(m2);
}

static int status_of(pid_t p) {
  int status = -1;
  for (int i = 0; i < 600 && !waitpid(p, &status, WNOHANG); i++) usleep(50000);
  if (status == -1) kill(p, SIGKILL);
  return status;
}
static void child(void) { // has no session; managed memory is not there, everything else is
  unsigned char *m = managed(N);
  memset(m, 1, N);
  mix(m, 1000, 2, 1);
  fflush(NULL);
  for (int way = 0; way < 4; way++) {
    pid_t p = fork();
    if (!p) {
      if (way & 1) signal(SIGSEGV, SIG_DFL); // else whatever handler its parent has
      if (way & 2) raise(SIGCONT), *(volatile unsigned char *)8 = 2; // a fault of its own
      *(volatile unsigned char *)m = 2;
      _exit(0);
    }
    int status = status_of(p);
#ifdef __SANITIZE_ADDRESS__
    if (!(way & 1)) { /* its handler reports the fault and ends the process */
      CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1, "way %d: a child that touches what is not there: status %#x",
            way, status);
    } else
#endif
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV,
          "way %d: a child that touches what is not there: status %#x", way, status);
    CHECK(m[0] == 3 && m[N - 1] == 1, "the parent's memory");
    mix(m, 1000, 1, 0);
  }
  release(m);
}

static void *reader(void *p) {
  unsigned long sum = 0;
  for (size_t i = 0; i < N; i += 4096) sum += ((volatile unsigned char *)p)[i];
  return (void *)sum;
}

// Many threads at the same blocks at once; and system calls, with memory that is here: what the CPU wrote or read.
static void calls(void) {
  unsigned char *m = managed(N);
  for (int round = 0; round < 5; round++) {
    memset(m, 1, N);
    mix(m, N, 2, 1);
    pthread_t t[8];
    for (int i = 0; i < 8; i++) CHECK(!pthread_create(&t[i], NULL, reader, m), "no thread");
    for (int i = 0; i < 8; i++) {
      void *sum;
      pthread_join(t[i], &sum);
      CHECK((unsigned long)sum == 3ul * (N / 4096), "thread %d of round %d: %lu", i, round, (unsigned long)sum);
    }
  }
  int ends[2];
  CHECK(!pipe(ends), "pipe");
  memset(m, 9, 8192);
  CHECK(write(ends[1], m, 4096) == 4096 && read(ends[0], m + 4096, 4096) == 4096,
        "system calls on memory that is here: %s", strerror(errno));
  release(m);
}

// The kernel takes pages out of the page tables when it pleases (memory pressure, DAMON), also those of blocks that are
// here.
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif
static size_t present(unsigned char *p, size_t n) {
  int f = open("/proc/self/pagemap", O_RDONLY);
  size_t pages = 0;
  uint64_t entry;
  for (size_t i = 0; i < n; i += 4096)
    if (pread(f, &entry, sizeof entry, (off_t)((uintptr_t)(p + i) / 4096 * sizeof entry)) == sizeof entry)
      pages += entry >> 63;
  close(f);
  return pages;
}
static void reclaimed(void) {
  unsigned char *m = managed(N);
  for (int round = 0; round < 3; round++) {
    memset(m, round, N);
    CHECK(!madvise(m, N, MADV_PAGEOUT), "MADV_PAGEOUT: %s", strerror(errno));
    if (!round) CHECK(present(m, N) < N / 4096, "all pages stayed"); /* later our own view holds them too */
    for (int i = 0; i < N; i += 4096) CHECK(m[i] == round, "byte %d of round %d: %d", i, round, m[i]);
    CHECK(!madvise(m, N, MADV_PAGEOUT), "MADV_PAGEOUT: %s", strerror(errno));
    for (int i = 0; i < N; i += 4096) m[i]++;
    CHECK(!madvise(m, N, MADV_PAGEOUT), "MADV_PAGEOUT: %s", strerror(errno));
    mix(m, N, 2, 1);
    CHECK(m[0] == 2 * round + 3 && m[1] == 2 * round + 1, "after a kernel in round %d: %d %d", round, m[0], m[1]);
    CHECK(!madvise(m, N, MADV_PAGEOUT), "MADV_PAGEOUT: %s", strerror(errno));
    for (int i = 0; i < N; i += 4096) CHECK(m[i] == 2 * round + 3, "byte %d after round %d: %d", i, round, m[i]);
    CHECK(!madvise(m, N, MADV_PAGEOUT), "MADV_PAGEOUT: %s", strerror(errno));
    for (int i = 0; i < N; i += 4096) m[i]++;
  }
  release(m);
}

static void CUDA_CB in_stream(void *p) {
  volatile unsigned char *m = p;
  m[N / 2] += 1;
}

// The CPU goes on with memory that kernels work on: it waits for them. A host function, for which the stream waits,
// does not.
static void unwaited(void) {
  unsigned char *m = managed(N), *other = managed(N);
  CUstream stream;
  CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const int last = times(8) - 1;
  for (int round = 0; round <= last; round++) {
    unsigned char a = (unsigned char)round;
    memset(m, a, N);
    mix_in(round % 2 ? stream : NULL, m, 0, N, 3, 1);
    m[N - 1] += 5;
    m[0] += 5;
    unsigned char done = (unsigned char)(a * 3 + 1);
    CHECK(m[N - 1] == (unsigned char)(done + 5) && m[0] == (unsigned char)(done + 5) && m[N / 2] == done,
          "round %d: %d %d %d after %d", round, m[0], m[N / 2], m[N - 1], done);
  }
  CK(cuStreamAttachMemAsync(stream, dev(other), 0, CU_MEM_ATTACH_HOST));
  CK(cuStreamSynchronize(stream));
  memset(other, 1, N);
  mix_in(stream, m, 0, N, 1, 2);
  CK(cuLaunchHostFunc(stream, in_stream, m));
  CK(cuStreamSynchronize(stream));
  CHECK(other[7] == 1 && m[N / 2] == (unsigned char)(last * 3 + 1 + 2 + 1), "after a host function: %d", m[N / 2]);
  release(m);
  release(other);
}

// Programs that go through a range: what is fetched ahead is what the GPU has, also where they stop on the way, write
// meanwhile, give the GPU work while blocks are under way, or free the memory.
enum { LARGE = 48 << 20 };
struct walk { unsigned char *from, *to; unsigned word; };
static void *walker(void *p) {
  struct walk *w = p;
  for (unsigned char *at = w->from; at < w->to; at += 4096) {
    CHECK(*(volatile unsigned *)at == w->word, "%zu KiB into a walk: %#x, want %#x", (size_t)(at - w->from) >> 10,
          *(unsigned *)at, w->word);
    if (w->word & 1) *(volatile unsigned *)(at + 8) = 5;
  }
  return NULL;
}
static void runs(void) {
  unsigned long long seed = 1;
  for (int round = 0; round < times(6); round++) { // each kind of round once
    unsigned char *m = managed(LARGE);
    if (round % 3 == 1) memset(m, 1, LARGE); // pages of ours are there already
    for (unsigned turn = 0; turn < 4; turn++) {
      struct walk w[3];
      pthread_t t[3];
      unsigned word = (unsigned)round * 1000 + turn;
      CK(cuMemsetD32Async(dev(m), word, LARGE / 4, 0));
      CK(cuCtxSynchronize());
      int threads = 1 + (int)(turn % 3);
      for (int i = 0; i < threads; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        size_t from = (seed >> 33) % 16 * (LARGE / 32), most = LARGE - from;
        w[i] = (struct walk){m + from, m + from + (round % 2 ? most : (seed >> 40) % most), word};
        CHECK(!pthread_create(&t[i], NULL, walker, &w[i]), "no thread");
      }
      for (int i = 0; i < threads; i++) pthread_join(t[i], NULL);
    }
    release(m);
  }
}

// What travels; scuda says it at the end.
enum { BLOCK = 65536 };
static void untouched(void) { // the GPU alone uses it
  unsigned char *m = managed(LARGE);
  CK(cuMemsetD8Async(dev(m), 1, LARGE, 0));
  mix(m, 1000, 2, 1);
  release(m);
}
static void in_order(void) {
  unsigned char *m = managed(LARGE);
  CK(cuMemsetD32Async(dev(m), 8, LARGE / 4, 0));
  CK(cuCtxSynchronize());
  walker(&(struct walk){m, m + LARGE, 8});
  release(m);
}
static void discarded(void) { // does not go up, and what kernels write afterwards comes down
  unsigned char *m = managed(LARGE);
  CUstream stream;
  CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  memset(m, 1, LARGE);
  CUdeviceptr p = dev(m);
  size_t n = LARGE;
  CK(cuMemDiscardBatchAsync(&p, &n, 1, 0, stream));
  CK(cuStreamSynchronize(stream));
  mix(m, 1000, 0, 7);
  CHECK(m[0] == 7 && m[999] == 7, "after a discard: %d %d", m[0], m[999]);
  release(m);
}
static void preferred(CUdevice where, int rounds) { // the CPU reads a block in all rounds but the last
  unsigned char *m = managed(LARGE);
  CK(advise(dev(m), LARGE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, where));
  for (int i = 0; i < rounds; i++) {
    CK(cuMemsetD8Async(dev(m), (unsigned char)i, LARGE, 0));
    CK(cuCtxSynchronize());
    if (i < rounds - 1) CHECK(m[N] == i, "round %d: %d", i, m[N]);
  }
  release(m);
}
static void at_gpu(void) { preferred(0, 4); }
static void at_cpu(void) { preferred(CU_DEVICE_CPU, 2); }
static void here_and_there(void) { // the CPU reads everything, and writes a byte in each MiB
  unsigned char *m = managed(LARGE);
  CK(cuMemsetD8Async(dev(m), 3, LARGE, 0));
  CK(cuCtxSynchronize());
  for (int i = 0; i < LARGE; i += 4096) CHECK(m[i] == 3, "byte %d: %d", i, m[i]);
  for (int i = 5; i < LARGE; i += 1 << 20) m[i] = 4;
  mix(m, LARGE, 2, 1);
  for (int i = 5; i < LARGE; i += 1 << 20) CHECK(m[i] == 9 && m[i + 1] == 7, "byte %d: %d %d", i, m[i], m[i + 1]);
  release(m);
}
static void read_mostly(void) { // kernels read it, one writes a byte; then advice is taken back, and given again
  unsigned char *m = managed(LARGE), *out = managed(N);
  CUdeviceptr p = dev(m), q = dev(out);
  CK(advise(p, LARGE, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
  CK(cuMemsetD8Async(p, 3, LARGE, 0));
  for (int round = 0; round < 6; round++) {
    CK(cuMemcpyDtoDAsync(q, p + (CUdeviceptr)round * N, N, 0)); // reads it
    if (round == 3) CK(cuMemsetD8Async(p + N, 5, 1, 0));
    CK(cuCtxSynchronize());
    for (int i = 0; i < LARGE; i += 4096)
      CHECK(m[i] == (round > 2 && i == N ? 5 : 3), "round %d, byte %d: %d", round, i, m[i]);
    CHECK(out[5] == 3, "the copy: %d", out[5]);
  }
  m[7] = 9; // what the program writes is not the kernels' change
  mix(m, 1000, 1, 1);
  CHECK(m[7] == 10 && m[8] == 4 && m[N] == 5, "%d %d %d", m[7], m[8], m[N]);
  CK(advise(p, LARGE, CU_MEM_ADVISE_UNSET_READ_MOSTLY, 0));
  for (int turn = 0; turn < 2; turn++) {
    mix(m, 1000, 1, 1);
    CHECK(m[7] == 11 + 2 * turn && m[8] == 5 + 2 * turn, "turn %d: %d %d", turn, m[7], m[8]);
    CK(advise(p, LARGE, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    mix(m, 1000, 1, 1);
    CHECK(m[7] == 12 + 2 * turn && m[8] == 6 + 2 * turn, "turn %d again: %d %d", turn, m[7], m[8]);
    CK(advise(p, LARGE, CU_MEM_ADVISE_UNSET_READ_MOSTLY, 0));
  }
  release(m);
  release(out);
}
static void batches(void) {
  unsigned char *m[3];
  CUdeviceptr p[3];
  size_t n[3] = {N, N, N}, index[2] = {0, 2}, wrong[2] = {0, 3};
  CUmemLocation where[2] = {{CU_MEM_LOCATION_TYPE_HOST, 0}, {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUstream stream;
  CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 3; i++) p[i] = dev(m[i] = managed(N));
  for (int i = 0; i < 3; i++) CK(cuMemsetD8Async(p[i], 3, N, stream));
  CK(cuMemPrefetchBatchAsync(p, n, 3, where, index, 2, 0, stream));
  CK(cuStreamSynchronize(stream));
  int at[3];
  for (int i = 0; i < 3; i++)
    CK(cuMemRangeGetAttribute(&at[i], 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p[i], N));
  CHECK(at[0] == -1 && at[1] == -1 && at[2] == 0, "prefetched to %d %d %d", at[0], at[1], at[2]);
  CHECK(m[0][5] == 3 && m[1][N - 1] == 3, "%d %d", m[0][5], m[1][N - 1]);
  CK(cuMemDiscardAndPrefetchBatchAsync(p, n, 3, where, index, 2, 0, stream));
  CK(cuMemsetD8Async(p[0], 4, N, stream));
  CK(cuStreamSynchronize(stream));
  CHECK(m[0][5] == 4, "%d", m[0][5]);
  WANT(cuMemPrefetchBatchAsync(p, n, 0, where, index, 2, 0, stream), CUDA_ERROR_INVALID_VALUE);
  WANT(cuMemPrefetchBatchAsync(p, n, 3, where, wrong, 2, 0, stream), CUDA_ERROR_INVALID_VALUE);
  WANT(cuMemPrefetchBatchAsync(p, n, 3, where, index, 4, 0, stream), CUDA_ERROR_INVALID_VALUE);
  WANT(cuMemPrefetchBatchAsync(p, n, 3, where, index, 2, 1, stream), CUDA_ERROR_INVALID_VALUE);
  WANT(cuMemDiscardBatchAsync(p, n, 3, 0, NULL), CUDA_ERROR_INVALID_VALUE);
  n[2] = N + 1;
  WANT(cuMemDiscardBatchAsync(p, n, 3, 0, stream), CUDA_ERROR_INVALID_VALUE);
  CHECK(m[0][6] == 4, "a batch that was refused did something: %d", m[0][6]);
  for (int i = 0; i < 3; i++) release(m[i]);
}

static void *greedy(void *m) { // what there is no room for, beside others that ask as well
  CUdeviceptr p;
  CUcontext context;
  CUdevice device;
  CK(cuDeviceGet(&device, 0));
  CK(cuDevicePrimaryCtxRetain(&context, device));
  CK(cuCtxSetCurrent(context));
  for (int i = 0; i < 20; i++) {
    WANT(cuMemAllocManaged(&p, 64 << 20, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
    (void)*(volatile unsigned char *)m;
  }
  CK(cuDevicePrimaryCtxRelease(device));
  return NULL;
}

static void too_much(void) {
  size_t left, total;
  CK(cuMemGetInfo(&left, &total));
  unsigned char *m = managed(N);
  memset(m, 1, N);
  CUdeviceptr p;
  const size_t wrong[] = {total + 1, 1ull << 40, 1ull << 50, 1ull << 63, SIZE_MAX - 65536, SIZE_MAX};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    WANT(cuMemAllocManaged(&p, wrong[i], CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr rest[64];
  int n = 0, r = 0;
  while (n < 64 && !(r = (int)cuMemAllocManaged(&rest[n], total / 16, CU_MEM_ATTACH_GLOBAL)))
    *(unsigned char *)(uintptr_t)rest[n++] = 1;
  CHECK(r == CUDA_ERROR_OUT_OF_MEMORY && n > 8 && n < 16, "%d sixteenths of the GPU's memory, then %d", n, r);
  mix(m, N, 2, 1); // with the GPU full
  CHECK(m[N - 1] == 3, "%d", m[N - 1]);
  while (n) CK(cuMemFree(rest[--n]));
  CK(cuMemAllocManaged(&p, total / 2, CU_MEM_ATTACH_GLOBAL));
  CK(cuMemFree(p));
  // What fits is given, to the last unit of the driver's, and what does not fit is refused; again and again, by several
  // threads at once.
  enum { UNIT = 2 << 20, UNITS = 24, SPARE = 20 }; // a session keeps some units that were freed
  for (int round = 0; round < 3; round++) {
    CUdeviceptr most, unit[UNITS + SPARE];
    CK(cuMemGetInfo(&left, &total));
    size_t rest = left / UNIT * UNIT - UNITS * (size_t)UNIT;
    CK(cuMemAllocManaged(&most, rest, CU_MEM_ATTACH_GLOBAL));
    for (n = 0; n < UNITS + SPARE && !(r = (int)cuMemAllocManaged(&unit[n], UNIT, CU_MEM_ATTACH_GLOBAL)); n++) {}
    CK(cuMemGetInfo(&left, &total));
    CHECK(r == CUDA_ERROR_OUT_OF_MEMORY && n >= UNITS - 1 && (round || n <= UNITS + 1) && left < 2 * UNIT,
          "round %d: %d units of %d were given, then %d with %zu bytes left", round, n, UNITS, r, left);
    ((unsigned char *)(uintptr_t)most)[rest - 1] = 7; // the last byte of the last unit, on both sides
    mix((unsigned char *)(uintptr_t)most + rest - 1, 1, 2, 1);
    CHECK(((unsigned char *)(uintptr_t)most)[rest - 1] == 15, "the last byte: %d",
          ((unsigned char *)(uintptr_t)most)[rest - 1]);
    pthread_t t[4];
    for (int i = 0; i < 4; i++) CHECK(!pthread_create(&t[i], NULL, greedy, m), "no thread");
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    while (n) CK(cuMemFree(unit[--n]));
    CK(cuMemFree(most));
  }
  release(m);
}

static size_t mappings(void) {
  size_t lines = 0;
  FILE *f = fopen("/proc/self/maps", "r");
  for (int c; (c = fgetc(f)) != EOF;) lines += c == '\n';
  fclose(f);
  return lines;
}

static void cycles(void) { // leave nothing
  size_t before = 0, bytes[2] = {0}, total;
  for (int i = 0; i < times(2500); i++) {
    unsigned char *m = managed(1 + (size_t)i * 151 % 200000);
    if (i % 4 == 0) *m = 1;
    release(m);
    if (i == 100) before = mappings(), cuMemGetInfo(&bytes[0], &total);
  }
  size_t after = mappings();
  cuMemGetInfo(&bytes[1], &total);
  /* Arenas of malloc and of the core come and go, and threads on a busy machine: 39 once. A cycle that leaves some is
   * not alone. */
  CHECK(after <= before + (size_t)times(2500) / 8, "%zu mappings became %zu", before, after);
  CHECK(bytes[1] + (32 << 20) /* what a session keeps mapped */ >= bytes[0],
        "free memory of the GPU fell from %zu to %zu", bytes[0], bytes[1]);
}

static void on_bus(int number) {
  (void)number;
  static const char text[] = "SIGBUS\n";
  _exit(write(1, text, sizeof text - 1) < 0);
}

static void lost(void) {
  unsigned char *m = managed(N), *large = managed(LARGE);
  memset(m, 1, N);
  mix(m, 1000, 2, 1);
  signal(SIGBUS, on_bus);
  printf("ready\n");
  fflush(stdout);
  for (;;) { // touches blocks that the GPU has, again and again, some of which are under way to it
    if (!cuMemsetD8Async(dev(large), 1, LARGE, 0)) cuCtxSynchronize();
    for (int i = 0; i < LARGE; i += 4096) (void)*(volatile unsigned char *)(large + i);
    CUdeviceptr p;
    if (!cuMemAlloc(&p, 1000)) cuMemFree(p);
    for (int i = 0; i < N; i += 65536) ((volatile unsigned char *)m)[i]++;
    unsigned long long from = 0, n = 1000;
    unsigned a = 1, b = 0;
    void *args[] = {&m, &from, &n, &a, &b};
    if (!cuLaunchKernel(mixer, 8, 1, 1, 256, 1, 1, 0, 0, args, NULL)) cuCtxSynchronize();
  }
}

int main(int argc, char **argv) {
  CHECK(argc > 2, "what?");
  if (argc > 3) rounds = atoi(argv[3]);
  start_managed(argc, argv);
  static const struct { const char *name; void (*run)(void);
    } all[] = {{"handlers", handlers}, {"child", child}, {"calls", calls}, {"reclaimed", reclaimed},
               {"unwaited", unwaited}, {"cycles", cycles}, {"runs", runs}, {"untouched", untouched},
               {"in order", in_order}, {"discarded", discarded}, {"at the GPU", at_gpu}, {"at the CPU", at_cpu},
               {"here and there", here_and_there}, {"read mostly", read_mostly}, {"batches", batches},
               {"too much", too_much}, {"lost", lost}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!strcmp(argv[2], all[i].name)) return all[i].run(), 0;
  FAIL("%s is not known", argv[2]);
}
