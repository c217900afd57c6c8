/* Copies to and from a GPU, for the tests over RDMA.
 *
 *   transfers random COUNT SEED   copies of random sizes (1 byte to 64 MiB) both ways, from all kinds of memory; every
 *                                 byte is compared. There are COUNT of them, and more for as long as the standard input
 *                                 stays open
 *   transfers speed ROUNDS        64 MiB each way from page-locked memory; prints MiB/s
 *   transfers hold                copies without end
 *   transfers managed             unified memory that CPU and GPU write in turns
 *   transfers steps               for each line of the standard input some copies both ways; prints what then lies on
 *                                 the GPU, as a number that every byte of all steps so far counts in
 *   transfers peers               64 MiB from the first GPU to the second and back, three times for each line of the
 *                                 standard input; prints MiB/s
 *
 * speed and managed end with the memory that is pinned for the program when it has freed its own, in KiB. */
#include <cuda.h>
#include <math.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST (64ull << 20)
#define TURNS 3 /* TestPeerSpeed counts on it */
#define CK(call)                                                  \
  do {                                                            \
    int r_ = (int)(call);                                         \
    if (r_) {                                                     \
      fprintf(stderr, "%s: error %d\n", #call, r_);               \
      exit(3);                                                    \
    }                                                             \
  } while (0)

static uint64_t state;
static uint64_t next(void) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t some_size(void) {
  uint64_t n = (uint64_t)exp2((double)(next() % 26000) / 1000.0);
  return n < 1 ? 1 : n > MOST ? MOST : n;
}

static void change(uint8_t *p, uint64_t n) {
  uint64_t v = next();
  for (; n >= 8; p += 8, n -= 8, v = v * 6364136223846793005ull + 1442695040888963407ull) memcpy(p, &v, 8);
  memcpy(p, &v, n);
}

static int input_is_open(void) {
  struct pollfd p = {.fd = 0, .events = POLLIN};
  char c;
  while (poll(&p, 1, 0) > 0)
    if (read(0, &c, 1) <= 0) return 0;
  return 1;
}

/* Where two pieces of memory differ; 0xee is what a download finds. */
static void print_changes(const uint8_t *got, const uint8_t *want, uint64_t n) {
  int printed = 0;
  for (uint64_t i = 0; i < n && printed < 20; i++) {
    if (got[i] == want[i]) continue;
    uint64_t from = i, same = 0, unfilled = 0;
    for (; i < n && same < 64; i++) {
      same = got[i] == want[i] ? same + 1 : 0;
      unfilled += got[i] == 0xee;
    }
    fprintf(stderr, "  bytes %llu to %llu; %llu were not written\n", (unsigned long long)from,
            (unsigned long long)(i - same), (unsigned long long)unfilled);
    printed++;
  }
}

static void random_copies(int count) {
  CUdeviceptr device;
  CUstream stream;
  uint8_t *shadow = malloc(MOST), *pageable = malloc(MOST), *locked, *back = malloc(MOST);
  CK(cuMemHostAlloc((void **)&locked, MOST, 0));
  CK(cuMemAlloc(&device, MOST));
  CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  memset(shadow, 0, MOST);
  CK(cuMemsetD8(device, 0, MOST));
  CK(cuCtxSynchronize());
  int i = 0;
  for (; i < count || input_is_open(); i++) {
    uint64_t n = some_size(), at = next() % (MOST - n + 1);
    int kind = next() % 4;
    uint8_t *mem = kind & 1 ? locked : kind & 2 ? pageable : back;
    if (next() % 2) { /* up */
      change(mem + at, n);
      memcpy(shadow + at, mem + at, n);
      if (kind & 2) {
        CK(cuMemcpyHtoDAsync(device + at, mem + at, n, stream));
        CK(cuStreamSynchronize(stream));
      } else {
        CK(cuMemcpyHtoD(device + at, mem + at, n));
      }
    } else {
      memset(mem + at, 0xee, n);
      if (kind & 2) {
        CK(cuMemcpyDtoHAsync(mem + at, device + at, n, stream));
        CK(cuStreamSynchronize(stream));
      } else {
        CK(cuMemcpyDtoH(mem + at, device + at, n));
      }
      if (memcmp(mem + at, shadow + at, n)) {
        fprintf(stderr, "copy %d, kind %d: %llu bytes at %llu came back changed\n", i, kind, (unsigned long long)n,
                (unsigned long long)at);
        print_changes(mem + at, shadow + at, n);
        exit(4);
      }
    }
    if (i % 64 == 63) { /* the registrations of what is freed must not outlive it */
      CK(cuMemFreeHost(locked));
      CK(cuMemHostAlloc((void **)&locked, MOST, 0));
    }
  }
  CK(cuMemcpyDtoH(back, device, MOST));
  if (memcmp(back, shadow, MOST)) {
    fprintf(stderr, "the memory is not what it should be\n");
    exit(4);
  }
  printf("%d copies\n", i);
}

/* The kernel's account of memory that is pinned for devices. */
static void print_pinned(void) {
  char line[256];
  long kib = -1;
  FILE *f = fopen("/proc/self/status", "r");
  if (!f) exit(5);
  while (fgets(line, sizeof line, f))
    if (!strncmp(line, "VmPin:", 6)) kib = atol(line + 6);
  fclose(f);
  printf("pinned %ld KiB\n", kib);
}

static void speed(int rounds) {
  CUdeviceptr device;
  uint8_t *locked;
  CK(cuMemHostAlloc((void **)&locked, MOST, 0));
  CK(cuMemAlloc(&device, MOST));
  change(locked, MOST);
  CK(cuMemsetD8(device, 0, MOST)); /* a simulated GPU has no memory before it is touched */
  CK(cuCtxSynchronize());
  double best[2] = {0, 0};
  for (int i = 0; i <= rounds; i++)
    for (int down = 0; down < 2; down++) {
      double t = now();
      if (down) CK(cuMemcpyDtoH(locked, device, MOST));
      else CK(cuMemcpyHtoD(device, locked, MOST));
      CK(cuCtxSynchronize()); /* an upload may return when its bytes have left the memory */
      t = (double)(MOST >> 20) / (now() - t);
      if (i && t > best[down]) best[down] = t;
    }
  printf("upload %.1f MiB/s\ndownload %.1f MiB/s\n", best[0], best[1]);
  CK(cuMemFree(device));
  CK(cuMemFreeHost(locked));
  print_pinned();
}

static void settle(CUcontext *contexts) {
  for (int i = 0; i < 2; i++) {
    CK(cuCtxSetCurrent(contexts[i]));
    CK(cuCtxSynchronize());
  }
}

static void peers(void) {
  CUcontext contexts[2];
  CUdeviceptr memory[2];
  uint8_t *wanted = malloc(MOST), *back = malloc(MOST);
  char line[16];
  for (int i = 0; i < 2; i++) {
    CUdevice d;
    CK(cuDeviceGet(&d, i));
    CK(cuDevicePrimaryCtxRetain(&contexts[i], d));
    CK(cuCtxSetCurrent(contexts[i]));
    CK(cuMemAlloc(&memory[i], MOST));
    CK(cuMemsetD8(memory[i], 0, MOST));
    CK(cuCtxSynchronize());
  }
  while (fgets(line, sizeof line, stdin)) {
    double took[2] = {0};
    change(wanted, MOST);
    CK(cuMemcpyHtoD(memory[0], wanted, MOST));
    settle(contexts);
    for (int i = 0; i < 2 * TURNS; i++) {
      int from = i % 2;
      double t = now();
      CK(cuMemcpyPeer(memory[!from], contexts[!from], memory[from], contexts[from], MOST));
      settle(contexts);
      took[from] += now() - t;
    }
    for (int i = 0; i < 2; i++) {
      printf("%s %.1f MiB/s\n", i ? "back" : "there", TURNS * (double)(MOST >> 20) / took[i]);
      CK(cuCtxSetCurrent(contexts[i]));
      CK(cuMemcpyDtoH(back, memory[i], MOST));
      if (memcmp(back, wanted, MOST)) {
        fprintf(stderr, "the copies %s are not what was copied\n", i ? "there" : "back");
        print_changes(back, wanted, MOST);
        exit(4);
      }
    }
    fflush(stdout);
  }
}

static void managed(void) {
  CUdeviceptr p, other;
  enum { BYTES = 32 << 20 };
  uint8_t *expected = malloc(BYTES);
  CK(cuMemAllocManaged(&p, BYTES, CU_MEM_ATTACH_GLOBAL));
  CK(cuMemAlloc(&other, BYTES));
  uint8_t *mem = (uint8_t *)(uintptr_t)p;
  for (int round = 0; round < 3; round++) {
    change(expected, BYTES);
    memcpy(mem, expected, BYTES);                   /* pages that the CPU wrote */
    CK(cuMemcpyDtoD(other, p, BYTES));              /* go to the GPU */
    CK(cuMemsetD8(p, (unsigned char)round, BYTES)); /* and those that the GPU wrote */
    CK(cuCtxSynchronize());
    for (int i = 0; i < BYTES; i++) /* come back when the CPU reads them */
      if (mem[i] != (uint8_t)round) {
        fprintf(stderr, "round %d: byte %d of unified memory is %d\n", round, i, mem[i]);
        exit(4);
      }
    CK(cuMemcpyDtoD(p, other, BYTES));
    CK(cuCtxSynchronize());
    if (memcmp(mem, expected, BYTES)) {
      fprintf(stderr, "round %d: unified memory is not what was written\n", round);
      exit(4);
    }
  }
  CK(cuMemFree(other));
  CK(cuMemFree(p));
  print_pinned();
}

static void steps(void) {
  enum { BYTES = 3 << 20, SHARE = BYTES / 4 * 3 };
  CUdeviceptr device;
  CUstream stream;
  uint8_t *pageable = malloc(BYTES), *back = malloc(BYTES), *locked;
  char line[16];
  uint64_t digest = 0;
  CK(cuMemHostAlloc((void **)&locked, BYTES, 0));
  CK(cuMemAlloc(&device, BYTES));
  CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CK(cuMemsetD8(device, 0, BYTES));
  CK(cuCtxSynchronize());
  for (int i = 1; fgets(line, sizeof line, stdin); i++) {
    uint64_t at = next() % (BYTES - SHARE), other = next() % (BYTES - SHARE);
    change(locked, SHARE), change(pageable, SHARE);
    CK(cuMemcpyHtoDAsync(device + at, locked, SHARE, stream));
    CK(cuStreamSynchronize(stream));
    CK(cuMemcpyHtoD(device + other, pageable, SHARE));
    CK(cuMemcpyDtoH(back, device, BYTES));
    CK(cuMemcpyDtoHAsync(locked, device, BYTES, stream));
    CK(cuStreamSynchronize(stream));
    if (memcmp(back, locked, BYTES)) {
      fprintf(stderr, "step %d: two copies of the same memory differ\n", i);
      print_changes(back, locked, BYTES);
      exit(4);
    }
    for (uint64_t k = 0, v; k < BYTES; k += 8) memcpy(&v, back + k, 8), digest = (digest ^ v) * 0x100000001b3ull;
    printf("step %d: %016llx\n", i, (unsigned long long)digest);
    fflush(stdout);
  }
}

static void hold(void) {
  CUdeviceptr device;
  uint8_t *locked;
  enum { BYTES = MOST / 8 };
  CK(cuMemHostAlloc((void **)&locked, BYTES, 0));
  CK(cuMemAlloc(&device, BYTES));
  for (int i = 0;; i++) {
    CK(cuMemcpyHtoD(device, locked, BYTES));
    CK(cuMemcpyDtoH(locked, device, BYTES));
    if (!i) printf("copying\n"), fflush(stdout);
  }
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  CUdevice d;
  CUcontext c;
  CK(cuInit(0));
  CK(cuDeviceGet(&d, 0));
  CK(cuDevicePrimaryCtxRetain(&c, d));
  CK(cuCtxSetCurrent(c));
  state = 88172645463325252ull;
  if (!strcmp(what, "random") && argc == 4) {
    state ^= strtoull(argv[3], NULL, 10) * 0x9e3779b97f4a7c15ull;
    random_copies(atoi(argv[2]));
  } else if (!strcmp(what, "speed") && argc == 3) {
    speed(atoi(argv[2]));
  } else if (!strcmp(what, "hold")) {
    hold();
  } else if (!strcmp(what, "steps")) {
    steps();
  } else if (!strcmp(what, "peers")) {
    peers();
  } else if (!strcmp(what, "managed")) {
    managed();
  } else {
    return 2;
  }
  return 0;
}
