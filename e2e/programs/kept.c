// kept FOLDER: for each line of its standard input a host function goes on that waits for it, between two kernels that
// change unified memory, which the CPU then reads and changes. Ends behind the last line.
#include "managed.h"

enum { N = 1 << 20 };
static unsigned round_;
static int more = 1;

static void CUDA_CB waits(void *line) {
  printf("round %u waits\n", round_);
  more = fgets(line, 16, stdin) != NULL;
}

int main(int argc, char **argv) {
  start_managed(argc, argv);
  char line[16] = "";
  unsigned char *m = managed(N), want = 0;
  CUstream s;
  CK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  for (; more; round_++) {
    mix_in(s, m, 0, N, 3, 1);
    CK(cuLaunchHostFunc(s, waits, line));
    mix_in(s, m, 0, N, 5, 2);
    CK(cuStreamSynchronize(s));
    want = (unsigned char)((want * 3 + 1) * 5 + 2);
    for (int i = 0; i < N; i += 4093) CHECK(m[i] == want, "round %u, byte %d: %d, want %d", round_, i, m[i], want);
    memset(m, ++want, N);
    printf("round %u is over\n", round_);
  }
  return 0;
}
