#include "uvm/thrashing.h"

void scuda_thrashing_fault(struct scuda_thrashing *h, uint32_t blocks) {
  for (uint32_t i = 0; i < blocks; i++)
    if (h[i].rounds < SCUDA_NEVER - 1) h[i].rounds++;
}

void scuda_thrashing_streams(struct scuda_thrashing *h, uint32_t blocks) {
  for (uint32_t i = 0; i < blocks; i++) h[i].rounds = h[i].pinned = h[i].length = 0;
}

void scuda_thrashing_run(struct scuda_thrashing *all, struct scuda_stretch s, struct scuda_run *run,
                         const struct scuda_stretch *ahead, uint32_t n) {
  uint32_t end = s.first + s.count;
  if (run->window <= SCUDA_NODE_MAX) {
    scuda_thrashing_fault(all + s.first, s.count);
  } else if (run->first < end) {
    scuda_thrashing_streams(all + run->first, end - run->first);
    run->first = end;
  }
  for (uint32_t i = 0; i < n; i++)
    if (ahead[i].count <= SCUDA_NODE_MAX) scuda_thrashing_fault(all + ahead[i].first, ahead[i].count);
}

static uint8_t often(const struct scuda_thrashing *h) {
  return h->prefers == SCUDA_AT_CPU ? 1 : h->prefers == SCUDA_AT_GPU ? SCUDA_NEVER : SCUDA_OFTEN;
}

static int thrashes(const struct scuda_thrashing *h) { return h->rounds >= SCUDA_THRASHES && h->rounds >= often(h); }

enum scuda_arrival scuda_thrashing_wait(const struct scuda_thrashing *h) {
  if (h->asked || h->pinned || thrashes(h)) return SCUDA_OPEN;
  return h->rounds >= often(h) ? SCUDA_COMES : SCUDA_STAYS;
}

int scuda_thrashing_pin(struct scuda_thrashing *h) {
  if (h->pinned || !thrashes(h)) return 0;
  h->length = h->length ? h->length < SCUDA_PIN_MOST ? 2 * h->length : SCUDA_PIN_MOST : SCUDA_PIN_FIRST;
  h->pinned = h->length;
  return 1;
}

void scuda_thrashing_round(struct scuda_thrashing *h, uint8_t state) {
  if (state == SCUDA_READY || state == SCUDA_FRESH) h->rounds = h->length = 0; /* it came, and was not wanted */
  else if (h->pinned && state != SCUDA_AWAY && !--h->pinned) h->rounds = SCUDA_OFTEN; /* the next round looks */
  h->wrote = state != SCUDA_DIRTY || h->wrote == SCUDA_LOOK_AGAIN ? 0 : h->wrote + 1;
}
