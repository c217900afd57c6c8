// A generation of Conway's Game of Life on a torus.
#include "device.h"

KERNEL life(const unsigned char *from, unsigned char *to, int width, int height) {
  int x = block * threads + tid, y = block_y;
  if (x >= width) return;
  int n = 0;
  for (int dy = -1; dy <= 1; dy++)
    for (int dx = -1; dx <= 1; dx++)
      if (dx || dy) n += from[(y + dy + height) % height * width + (x + dx + width) % width];
  to[y * width + x] = n == 3 || (n == 2 && from[y * width + x]);
}
