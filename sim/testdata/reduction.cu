// Sums, by warps' shuffles and then one atomic addition a block.
#include "device.h"

KERNEL sum(const int *x, int *out, int n) {
  __shared__ int part[32];
  int v = 0;
  for (int i = block * threads + tid; i < n; i += blocks * threads) v += x[i];
  for (int k = 16; k > 0; k >>= 1) v += __nvvm_shfl_sync_down_i32(~0u, v, k, 31);
  if (tid % 32 == 0) part[tid / 32] = v;
  sync();
  if (tid < 32) {
    v = tid < threads / 32 ? part[tid] : 0;
    for (int k = 16; k > 0; k >>= 1) v += __nvvm_shfl_sync_bfly_i32(~0u, v, k, 31);
    if (tid == 0) __nvvm_atom_add_gen_i(out, v);
  }
}
