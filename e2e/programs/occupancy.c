// Questions about a function whose attributes go to and fro, as libraries have them do: each set of attributes has
// answers of its own. The rounds that argv[2] asks for beyond the first get the answers of the first.
#include "check.h"

enum { SETS = 3, BLOCKS = 2 };

int main(int argc, char **argv) {
  start(argc, argv);
  int rounds = argc > 2 ? atoi(argv[2]) : 2;
  CUmodule m = load("kernels.ptx");
  CUfunction f, other;
  CK(cuModuleGetFunction(&f, m, "vector_add"));
  CK(cuModuleGetFunction(&other, m, "reduce_sum"));
  static const int shared[SETS] = {0, 16 << 10, 40 << 10}, block[BLOCKS] = {64, 256};
  int first[SETS][BLOCKS], fixed;
  CK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&fixed, other, 128, 0));
  for (int round = 0; round < rounds; round++)
    for (int i = 0; i < SETS; i++) {
      int v;
      CK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared[i]));
      CK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, i == 1 ? 50 : -1));
      CK(cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f));
      CHECK(v == shared[i], "set %d, got %d", shared[i], v);
      for (int k = 0; k < BLOCKS; k++) {
        CK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&v, f, block[k], (size_t)shared[i], 0));
        if (round == 0) first[i][k] = v;
        CHECK(v == first[i][k], "round %d: %d blocks, %d before", round, v, first[i][k]);
      }
      CK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&v, other, 128, 0));
      CHECK(v == fixed, "another function's attributes changed an answer from %d to %d", fixed, v);
    }
  CHECK(first[0][0] > 0 && first[2][0] > 0 && first[2][0] <= first[0][0], "%d and %d blocks", first[0][0], first[2][0]);
  puts("same answers");
  return 0;
}
