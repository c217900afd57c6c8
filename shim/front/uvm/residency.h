/* What a fault of unified memory brings: a tree over the blocks of a range, and the runs of programs that go through
 * it. It only looks at states and decides; it holds no lock and moves nothing, so that it can be tested alone. */
#ifndef SCUDA_RESIDENCY_H
#define SCUDA_RESIDENCY_H
#include <stdint.h>

enum {
  SCUDA_BLOCK = 65536,     /* bytes */
  SCUDA_NODE_MAX = 32,     /* blocks of the largest node: 2 MiB */
  SCUDA_WINDOW_MAX = 128,  /* blocks that one fetch brings: 8 MiB */
  SCUDA_AHEAD_MAX = 8,     /* windows that are fetched ahead of a run; half of them until they are that large */
  SCUDA_RUNS = 4           /* that are followed in a range */
};

enum scuda_state {
  SCUDA_FRESH,   /* zero on both sides, nobody has touched it */
  SCUDA_AWAY,    /* the GPU's: what lies here is old */
  SCUDA_BUSY,    /* on its way here */
  SCUDA_READY,   /* here, and not yet allowed */
  SCUDA_CLEAN,   /* here, may be read */
  SCUDA_DIRTY    /* here, may be written: the GPU's is old */
};

struct scuda_stretch { uint32_t first, count; };

/* A program that goes through a range: its next fault is expected from due on, all before next was brought or asked
 * for. Zero: none. first: where it began; thrashing.c moves it on. */
struct scuda_run { uint32_t due, next, window, hits, first; };
struct scuda_runs { struct scuda_run run[SCUDA_RUNS]; uint32_t turn; };

/* The blocks to bring for a fault at b: those around it in b's state, no more than WINDOW_MAX. *run: the run it belongs
 * to. */
struct scuda_stretch scuda_residency_fault(const uint8_t *state, uint32_t blocks, uint32_t b, struct scuda_runs *runs,
                                           struct scuda_run **run);
/* The windows to ask for now, at most room, so that the run does not wait when it gets there: blocks that are AWAY, in
 * order. Gives how many. */
uint32_t scuda_residency_ahead(const uint8_t *state, uint32_t blocks, struct scuda_run *run,
                               struct scuda_stretch *ahead, uint32_t room);
#endif
