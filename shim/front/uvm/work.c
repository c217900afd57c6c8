#include "uvm/work.h"
#include "base/base.h"

#include <stdlib.h>

_Atomic uint32_t scuda_work_pending;
static struct { uint64_t *context; uint32_t count, room; } places;
static struct scuda_thread *worker;        /* who gives work */
static uint64_t working = SCUDA_NO_STREAM; /* the stream that has work since it was last waited for */
static int workers, streams;               /* there were several at once */
static uint64_t place;                     /* the context that was given work last */

static void note_place(uint64_t context) {
  uint32_t i = 0;
  if (!context) return;
  while (i < places.count && places.context[i] != context) i++;
  if (i == places.room) {
    uint64_t *more = realloc(places.context, (i + 8) * sizeof *more);
    if (!more) return;
    places.context = more;
    places.room = i + 8;
  }
  if (i < places.count) return;
  places.context[places.count++] = context;
}

int scuda_work_known(uint64_t key) {
  const struct scuda_thread *t = scuda_thread();
  atomic_store_explicit(&scuda_work_pending, 1, memory_order_relaxed);
  return __atomic_load_n(&worker, __ATOMIC_RELAXED) == t && working == key && place == t->current;
}

void scuda_work_given(uint64_t key) {
  struct scuda_thread *t = scuda_thread();
  /* of its predecessor's work none is left */
  if (!worker || (!workers && !streams && working == SCUDA_NO_STREAM)) __atomic_store_n(&worker, t, __ATOMIC_RELAXED);
  workers |= worker != t;
  streams |= working != SCUDA_NO_STREAM && working != key;
  working = key;
  note_place(place = t->current);
}

void scuda_work_at(uint64_t context) { note_place(context); }

int scuda_work_alone(void) { return !workers && worker == scuda_thread(); }

/* Where several threads give work, or several contexts have it, some other work may go on. */
int scuda_work_over(uint64_t key) {
  int over = scuda_work_alone() && places.count < 2 && (key == SCUDA_ALL_STREAMS || (!streams && key == working));
  if (over) {
    working = SCUDA_NO_STREAM;
    streams = 0;
    atomic_store(&scuda_work_pending, 0);
  }
  return over;
}

uint64_t scuda_work_place(uint32_t i) {
  return i < places.count ? places.context[i] : 0;
}

void scuda_work_forget(uint64_t context) {
  for (uint32_t i = 0; i < places.count; i++)
    if (places.context[i] == context) places.context[i] = places.context[--places.count];
  if (place == context) place = 0;
}
