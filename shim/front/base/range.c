#include "base/range.h"

#include <stdlib.h>

struct scuda_ranges scuda_managed_ranges, scuda_device_ranges, scuda_host_ranges;

/* Index of the first range that starts behind p. */
static uint32_t behind(const struct scuda_ranges *t, uint64_t p) {
  uint32_t low = 0, high = t->count;
  while (low < high) {
    uint32_t mid = (low + high) / 2;
    if (t->list[mid].start > p) high = mid;
    else low = mid + 1;
  }
  return low;
}

static struct scuda_range *containing(struct scuda_ranges *t, uint64_t p) {
  uint32_t i = behind(t, p);
  if (!i) return NULL;
  struct scuda_range *r = &t->list[i - 1];
  return p - r->start < r->bytes ? r : NULL;
}

int scuda_ranges_add(struct scuda_ranges *t, const struct scuda_range *r) {
  scuda_lock(&t->lock);
  if (t->count == t->cap) {
    uint32_t cap = t->cap ? 2 * t->cap : 64;
    struct scuda_range *list = realloc(t->list, cap * sizeof *list);
    if (!list) {
      scuda_unlock(&t->lock);
      return 0;
    }
    t->list = list;
    t->cap = cap;
  }
  uint32_t i = behind(t, r->start);
  if (i && t->list[i - 1].start == r->start) { /* its end was not seen (freed in a graph, for example) */
    t->list[i - 1] = *r;
  } else {
    memmove(&t->list[i + 1], &t->list[i], (t->count - i) * sizeof *t->list);
    t->list[i] = *r;
    t->count++;
  }
  scuda_unlock(&t->lock);
  return 1;
}

int scuda_ranges_find(struct scuda_ranges *t, uint64_t p, struct scuda_range *out) {
  scuda_lock(&t->lock);
  struct scuda_range *r = containing(t, p);
  if (r && out) *out = *r;
  scuda_unlock(&t->lock);
  return r != NULL;
}

int scuda_ranges_overlap(struct scuda_ranges *t, uint64_t p, uint64_t bytes) {
  scuda_lock(&t->lock);
  uint32_t i = behind(t, p);
  int hit = containing(t, p) || (i < t->count && t->list[i].start - p < bytes);
  scuda_unlock(&t->lock);
  return hit;
}

int scuda_ranges_all(struct scuda_ranges *t, uint64_t p, uint64_t bytes, uint32_t flag) {
  scuda_lock(&t->lock);
  const struct scuda_range *r = containing(t, p);
  int all = !r || r->flags & flag;
  for (uint32_t i = behind(t, p); all && i < t->count && t->list[i].start - p < bytes; i++)
    all = (t->list[i].flags & flag) != 0;
  scuda_unlock(&t->lock);
  return all;
}

int scuda_ranges_remove(struct scuda_ranges *t, uint64_t start, struct scuda_range *out) {
  scuda_lock(&t->lock);
  struct scuda_range *r = containing(t, start);
  int found = r && r->start == start;
  if (found) {
    if (out) *out = *r;
    uint32_t i = (uint32_t)(r - t->list);
    memmove(r, r + 1, (t->count - i - 1) * sizeof *r);
    t->count--;
  }
  scuda_unlock(&t->lock);
  return found;
}

void scuda_ranges_remove_if(struct scuda_ranges *t, int (*gone)(const struct scuda_range *, uint64_t), uint64_t arg) {
  scuda_lock(&t->lock);
  uint32_t kept = 0;
  for (uint32_t i = 0; i < t->count; i++)
    if (!gone(&t->list[i], arg)) t->list[kept++] = t->list[i];
  t->count = kept;
  scuda_unlock(&t->lock);
}

void scuda_ranges_mark(struct scuda_ranges *t, int (*which)(const struct scuda_range *, uint64_t), uint64_t arg,
                       uint32_t flags) {
  scuda_lock(&t->lock);
  for (uint32_t i = 0; i < t->count; i++)
    if (which(&t->list[i], arg)) t->list[i].flags |= flags;
  scuda_unlock(&t->lock);
}

uint32_t scuda_ranges_change(struct scuda_ranges *t, uint64_t p, uint32_t clear, uint32_t set) {
  scuda_lock(&t->lock);
  struct scuda_range *r = containing(t, p);
  uint32_t had = r ? r->flags : 0;
  if (r) r->flags = (had & ~clear) | set;
  scuda_unlock(&t->lock);
  return had;
}

int scuda_ranges_any(struct scuda_ranges *t, const uint8_t *words, uint64_t bytes, uint32_t flag) {
  int hit = 0;
  scuda_lock(&t->lock);
  uint64_t first = t->count ? t->list[0].start : UINT64_MAX;
  for (uint64_t at = 0; !hit && at + 8 <= bytes; at += 8) {
    uint64_t p = scuda_word(words + at);
    const struct scuda_range *r = p < first ? NULL : containing(t, p);
    hit = r && r->flags & flag;
  }
  scuda_unlock(&t->lock);
  return hit;
}

/* ---- the device's ---- */

void scuda_device_range_add(uint64_t start, uint64_t bytes, uint32_t flags, uint64_t owner) {
  struct scuda_range r = {start, bytes, scuda_thread()->current, owner, flags, scuda_current_device()};
  if (start && bytes) scuda_ranges_add(&scuda_device_ranges, &r);
}

static int of_context(const struct scuda_range *r, uint64_t ctx) { return r->context == ctx; }
static int of_owner(const struct scuda_range *r, uint64_t owner) {
  return r->owner == owner && !(r->flags & SCUDA_RANGE_HANDLE);
}
void scuda_ranges_forget_context(uint64_t ctx) { scuda_ranges_remove_if(&scuda_device_ranges, of_context, ctx); }
void scuda_ranges_forget_owner(uint64_t owner) { scuda_ranges_remove_if(&scuda_device_ranges, of_owner, owner); }
