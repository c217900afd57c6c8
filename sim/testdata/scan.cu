// Inclusive prefix sums of each block's stretch, then of all with the sums of the blocks before.
#include "device.h"

KERNEL scan_block(const unsigned *x, unsigned *y, unsigned *sums, int n) {
  __shared__ unsigned s[2][256];
  int i = block * 256 + tid, from = 0;
  s[0][tid] = i < n ? x[i] : 0;
  sync();
  for (int k = 1; k < 256; k *= 2, from ^= 1) {
    s[from ^ 1][tid] = s[from][tid] + (tid >= k ? s[from][tid - k] : 0);
    sync();
  }
  if (i < n) y[i] = s[from][tid];
  if (tid == 255) sums[block] = s[from][255];
}

KERNEL scan_add(unsigned *y, const unsigned *sums, int n) {
  int i = block * 256 + tid;
  unsigned before = 0;
  for (int k = 0; k < block; k++) before += sums[k];
  if (i < n) y[i] += before;
}
