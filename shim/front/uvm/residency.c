#include "uvm/residency.h"

enum { HITS = 2, FIRST_WINDOW = 16 }; /* faults in a row before anything is fetched ahead; the first window of that */

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* The run that expected the fault. Programs that leave out a few blocks are followed too. */
static struct scuda_run *expected(struct scuda_runs *runs, uint32_t b) {
  for (int i = 0; i < SCUDA_RUNS; i++) {
    struct scuda_run *r = &runs->run[i];
    if (r->window && r->due <= b && b <= r->next + r->window) return r;
  }
  return (struct scuda_run *)0;
}

struct scuda_stretch scuda_residency_fault(const uint8_t *state, uint32_t blocks, uint32_t b, struct scuda_runs *runs,
                                           struct scuda_run **run) {
  uint8_t s = state[b];
  struct scuda_run *r = expected(runs, b);
  if (r) {
    r->window = least(2 * r->window, SCUDA_WINDOW_MAX);
    r->hits++;
  } else {
    r = &runs->run[runs->turn++ % SCUDA_RUNS];
    *r = (struct scuda_run){b, b, 1, 0, b};
  }
  /* The rest of the largest node of the tree of which more than half is here. What came unasked costs no round trip,
   * and is to tell what of it is wanted. */
  uint32_t low = b, n = r->window;
  for (uint32_t node = 2; node <= SCUDA_NODE_MAX && s != SCUDA_READY; node *= 2) {
    uint32_t from = b / node * node, to = least(from + node, blocks), here = 1;
    for (uint32_t i = from; i < to; i++) here += i != b && state[i] >= SCUDA_BUSY;
    if (2 * here <= node) continue;
    if (to - b > n) n = to - b;
    low = from;
  }
  uint32_t start = b, end = b + 1;
  while (start > low && state[start - 1] == s) start--;
  while (end < blocks && end < b + n && end < start + SCUDA_WINDOW_MAX && state[end] == s) end++;
  r->due = end;
  /* what was asked for behind a block that is away again may be away again too */
  if (s == SCUDA_AWAY || r->next < end) r->next = end;
  *run = r;
  return (struct scuda_stretch){start, end - start};
}

uint32_t scuda_residency_ahead(const uint8_t *state, uint32_t blocks, struct scuda_run *run,
                               struct scuda_stretch *ahead, uint32_t room) {
  uint32_t n = 0, window = run->window < FIRST_WINDOW ? FIRST_WINDOW : run->window;
  uint32_t limit = least(blocks,
                         run->due + (window < SCUDA_WINDOW_MAX ? SCUDA_AHEAD_MAX / 2 : SCUDA_AHEAD_MAX) * window);
  if (run->hits < HITS) return 0;
  if (room > SCUDA_AHEAD_MAX) room = SCUDA_AHEAD_MAX;
  while (n < room && run->next < limit && state[run->next] != SCUDA_FRESH) {
    uint32_t first = run->next, end = first;
    while (end < blocks && end < first + window && state[end] == SCUDA_AWAY) end++;
    run->next = end > first ? end : first + 1;
    if (end == first) continue;
    ahead[n++] = (struct scuda_stretch){first, end - first};
    window = least(2 * window, SCUDA_WINDOW_MAX);
  }
  return n;
}
