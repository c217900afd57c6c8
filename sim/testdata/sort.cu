// One step of a bitonic sort of keys with values, and the whole sort of a block's stretch.
#include "device.h"

typedef struct { unsigned key, value; } item;

static __device__ bool swapped(item a, item b, bool up) {
  return (a.key > b.key || (a.key == b.key && a.value > b.value)) == up;
}

KERNEL sort_step(item *x, unsigned k, unsigned j) {
  unsigned i = block * threads + tid, p = i ^ j;
  if (p <= i) return;
  item a = x[i], b = x[p];
  if (swapped(a, b, !(i & k))) x[i] = b, x[p] = a;
}

KERNEL sort_block(item *x) {
  __shared__ item s[512];
  unsigned base = block * 512;
  s[tid] = x[base + tid];
  s[tid + 256] = x[base + tid + 256];
  sync();
  for (unsigned k = 2; k <= 512; k *= 2)
    for (unsigned j = k / 2; j > 0; j /= 2) {
      unsigned i = 2 * tid - (tid & (j - 1)), p = i + j;
      bool up = !((base + i) & k);
      item a = s[i], b = s[p];
      if (swapped(a, b, up)) s[i] = b, s[p] = a;
      sync();
    }
  x[base + tid] = s[tid];
  x[base + tid + 256] = s[tid + 256];
}
