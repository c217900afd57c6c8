// A product of square matrices of doubles, by tiles in shared memory.
#include "device.h"

KERNEL matmul(const double *a, const double *b, double *c, int n) {
  __shared__ double s[8][9], t[8][9];
  int row = block_y * 8 + tid_y, col = block * 8 + tid;
  double sum = 0;
  for (int k = 0; k < n; k += 8) {
    s[tid_y][tid] = row < n && k + tid < n ? a[row * n + k + tid] : 0;
    t[tid_y][tid] = col < n && k + tid_y < n ? b[(k + tid_y) * n + col] : 0;
    sync();
    for (int j = 0; j < 8; j++) sum = __builtin_fma(s[tid_y][j], t[j][tid], sum);
    sync();
  }
  if (row < n && col < n) c[row * n + col] = sum;
}
