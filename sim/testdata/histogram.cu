// Counts of bytes, first in shared memory.
#include "device.h"

KERNEL histogram(const unsigned char *x, int *counts, int n) {
  __shared__ int s[256];
  for (int i = tid; i < 256; i += threads) s[i] = 0;
  sync();
  for (int i = block * threads + tid; i < n; i += blocks * threads) __nvvm_atom_add_gen_i(&s[x[i]], 1);
  sync();
  for (int i = tid; i < 256; i += threads)
    if (s[i]) __nvvm_atom_add_gen_i(&counts[i], s[i]);
}
