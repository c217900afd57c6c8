// Unified memory that goes to and fro: each round the GPU works on it and then the CPU does. Arguments: the folder of
// kernels, a name in main's list and the number of rounds. Every value is checked; what travelled scuda says at the
// end.
#include "managed.h"

enum { BLOCK = 65536, ROW = 512, ROWS = 512, FAR = 1 << 20, MANY = 48 };
static int rounds;

static void wait(void) { CK(cuCtxSynchronize()); }

static void ping_pong(void) { // both add to one byte
  unsigned char *m = managed(BLOCK);
  for (int i = 0; i < rounds; i++) {
    mix_in(NULL, m, 0, 1, 1, 1);
    wait();
    CHECK(*m == (unsigned char)(2 * i + 1), "round %d: %d", i, *m);
    ++*m;
  }
}

static void sharing(void) { // each writes bytes of its own in one block
  unsigned char *m = managed(BLOCK);
  for (int i = 0; i < rounds; i++) {
    mix_in(NULL, m, 4096, 100, 1, 1);
    wait();
    CHECK(m[4100] == (unsigned char)(i + 1) && m[0] == (unsigned char)i, "round %d: %d %d", i, m[4100], m[0]);
    m[0]++;
    m[60000]++;
  }
  CHECK(m[60000] == (unsigned char)rounds, "%d", m[60000]);
}

static void scattered(void) { // a byte in each of many blocks, far apart
  unsigned char *m = managed((size_t)MANY * FAR);
  for (int i = 0; i < rounds; i++) {
    for (size_t k = 0; k < MANY; k++) mix_in(NULL, m, k * FAR, 1, 1, 1);
    wait();
    for (size_t k = 0; k < MANY; k++)
      CHECK(m[k * FAR] == (unsigned char)(2 * i + 1), "round %d, block %zu: %d", i, k, m[k * FAR]);
    for (size_t k = 0; k < MANY; k++) m[k * FAR]++;
  }
}

// a step by the GPU (all cells), a step by the CPU (from the rows above and below), in turns
static void stencil(void) {
  unsigned char *m = managed(ROW * ROWS), *plain = calloc(ROWS, ROW), *next = calloc(ROWS, ROW);
  for (int i = 0; i < ROW * ROWS; i++) m[i] = plain[i] = (unsigned char)(i * 7);
  for (int i = 0; i < rounds; i++) {
    mix_in(NULL, m, 0, ROW * ROWS, 3, 1);
    for (int k = 0; k < ROW * ROWS; k++) plain[k] = (unsigned char)(plain[k] * 3 + 1);
    wait();
    for (int k = 0; k < ROW * ROWS; k++)
      next[k] = (unsigned char)(plain[(k + ROW) % (ROW * ROWS)] + plain[(k + ROW * (ROWS - 1)) % (ROW * ROWS)]);
    for (int k = ROW; k < ROW * (ROWS - 1); k++)
      CHECK((unsigned char)(m[k + ROW] + m[k - ROW]) == next[k], "round %d, cell %d", i, k);
    memcpy(m, next, ROW * ROWS);
    memcpy(plain, next, ROW * ROWS);
  }
  free(plain);
  free(next);
}

static void calm(void) { // to and fro for twelve rounds, then the GPU's alone; and to and fro once more
  unsigned char *m = managed(BLOCK), value = 0;
  for (int i = 0; i < rounds; i++) {
    mix_in(NULL, m, 0, 1, 1, 1);
    wait();
    value++;
    if (i >= 12 && i < rounds - 1) continue;
    CHECK(*m == value, "round %d: %d", i, *m);
    ++*m, ++value;
  }
}

static void streaming(void) { // a large range, read in order each round: read ahead, and none of it pinned
  enum { LARGE = 24 << 20 };
  unsigned char *m = managed(LARGE);
  for (int i = 0; i < rounds; i++) {
    CK(cuMemsetD8Async(dev(m), (unsigned char)i, LARGE, 0));
    wait();
    for (size_t k = 0; k < LARGE; k += 4096) CHECK(m[k] == (unsigned char)i, "round %d, byte %zu: %d", i, k, m[k]);
  }
}

int main(int argc, char **argv) {
  CHECK(argc > 3, "what, and how often?");
  rounds = atoi(argv[3]);
  start_managed(argc, argv);
  static const struct { const char *name; void (*run)(void); } all[] = {{"ping-pong", ping_pong}, {"sharing", sharing},
      {"scattered", scattered}, {"stencil", stencil}, {"calm", calm}, {"streaming", streaming}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!strcmp(argv[2], all[i].name)) return all[i].run(), 0;
  FAIL("%s is not known", argv[2]);
}
