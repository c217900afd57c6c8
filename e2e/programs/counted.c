// counted FOLDER [ROUNDS [big] [half] [stay]]: work of which each part counts how often it was done, so that what is
// sent twice or left out shows in a number. With "big" there are big copies in it; with "half" it waits for the end of
// its input when half of it is done, with "stay" at the end.
#include "check.h"

enum { SMALL = 300, BIG = (2 << 20) + 123 };

static _Atomic int ran;
static void CUDA_CB count(void *user) { ran += *(int *)user; }

int main(int argc, char **argv) {
  int rounds = argc > 2 ? atoi(argv[2]) : 1, big = 0, stay = 0, half = 0, one = 1;
  for (int i = 3; i < argc; i++) {
    big |= !strcmp(argv[i], "big");
    half |= !strcmp(argv[i], "half");
    stay |= !strcmp(argv[i], "stay");
  }
  start(argc, argv);
  CUmodule m = load("kernels.fatbin");
  CUfunction globals = function(m, "globals"), add = function(m, "vector_add");
  CUstream s;
  CUevent e;
  CUdeviceptr sum, ones, out, room;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  CK(cuMemAlloc(&sum, 4 * SMALL));
  CK(cuMemAlloc(&ones, 4 * SMALL));
  CK(cuMemAlloc(&out, 64));
  CK(cuMemAlloc(&room, BIG));
  CK(cuMemsetD32Async(sum, 0, SMALL, s));
  float data[SMALL], got[SMALL];
  unsigned char *up = malloc(BIG), *down = malloc(BIG);
  uint64_t seen = 0;
  for (int round = 0, n = SMALL; round < rounds; round++) {
    if (half && round == rounds / 2) {
      printf("half\n");
      while (getchar() != EOF) {}
    }
    for (int i = 0; i < SMALL; i++) data[i] = (float)(1 + i % 7);
    CK(cuMemcpyHtoDAsync(ones, data, sizeof data, s));
    for (int i = 0; i < SMALL; i++) data[i] = -1; // it was pageable
    CK(LAUNCH(add, 3, 100, 0, s, &sum, &ones, &sum, &n));
    CK(LAUNCH(globals, 1, 1, 0, s, &out));
    CK(cuLaunchHostFunc(s, count, &one));
    if (big) {
      fill(up, BIG, (uint64_t)round + 1);
      uint64_t want = digest(up, BIG);
      CK(cuMemcpyHtoDAsync(room, up, BIG, s));
      memset(up, 0, BIG);
      CK(cuMemcpyDtoHAsync(down, room, BIG, s));
      CK(cuStreamSynchronize(s));
      CHECK(digest(down, BIG) == want, "round %d: a big copy came back changed", round);
    }
    CK(cuEventRecord(e, s));
    CK(cuEventSynchronize(e));
    CK(cuMemcpyDtoHAsync(got, sum, sizeof got, s));
    int count[3];
    CK(cuMemcpyDtoHAsync(count, out, sizeof count, s));
    CK(cuStreamSynchronize(s));
    CHECK(count[0] == 7 + round && count[1] == 1 && count[2] == 5 + round, "round %d: the kernel ran %d times, or %d",
          round, count[0] - 7, count[2] - 5);
    CHECK(ran == 1 + round, "round %d: the host function ran %d times", round, ran);
    for (int i = 0; i < SMALL; i++)
      CHECK(got[i] == (float)((1 + round) * (1 + i % 7)), "round %d: [%d] = %g", round, i, got[i]);
    seen = seen * 31 + digest(got, sizeof got) + (big ? digest(down, BIG) : 0);
  }
  CK(cuMemFree(room));
  CK(cuStreamDestroy(s));
  printf("%d rounds, digest %016llx\n", rounds, (unsigned long long)seen);
  while (stay && getchar() != EOF) {}
  return 0;
}
