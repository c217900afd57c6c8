/* What a program's CPU and the GPU do with a block of unified memory round after round. A round lies between two waits
 * for the GPU: a block that the program reaches in every one of them bounces, and costs a fault, a thread switch and a
 * round trip each time. Such a thrashing block is pinned here: it comes with the wait and is allowed at once, so that
 * nothing faults, for a number of rounds that doubles as long as it turns out to be needed. Between two pinnings there
 * is a round of looking, in which it comes as well but stays denied, so that a fault (without a round trip) tells
 * whether it is still wanted. Like residency.c this only decides. */
#ifndef SCUDA_THRASHING_H
#define SCUDA_THRASHING_H
#include "uvm/residency.h"

enum {
  SCUDA_OFTEN = 2,      /* rounds in a row with a fault, after which a block comes with the wait */
  SCUDA_THRASHES = 3,   /* after which it is pinned */
  SCUDA_PIN_FIRST = 2,  /* rounds of the first pinning */
  SCUDA_PIN_MOST = 16,  /* and of the longest */
  SCUDA_LOOK_AGAIN = 10, /* rounds after which what was written in each is looked at again */
  SCUDA_NEVER = UINT8_MAX /* more rounds than are counted */
};

/* where a block is said to be best: it comes after one round, or never unasked */
enum scuda_prefers { SCUDA_NO_PLACE, SCUDA_AT_CPU, SCUDA_AT_GPU };

struct scuda_thrashing {
  uint8_t rounds;  /* in a row in which a fault brought it */
  uint8_t asked;   /* the program asked for it at the CPU: it comes once */
  uint8_t pinned;  /* rounds that it stays pinned */
  uint8_t length;  /* of the last pinning, in rounds; 0: there was none */
  uint8_t wrote;   /* rounds in a row in which the program wrote it */
  uint8_t prefers; /* enum scuda_prefers */
};

enum scuda_arrival {
  SCUDA_STAYS,   /* it is the GPU's until the program touches it */
  SCUDA_COMES,   /* with the wait, and stays denied */
  SCUDA_OPEN     /* with the wait, and is allowed */
};

/* A fault brought blocks. */
void scuda_thrashing_fault(struct scuda_thrashing *h, uint32_t blocks);
/* The program goes through blocks in order, which are fetched ahead of it: that is cheaper than to bring them all
 * before it begins. */
void scuda_thrashing_streams(struct scuda_thrashing *h, uint32_t blocks);
/* A fault of a run brings a stretch of a range with these blocks, and windows ahead of it: the blocks may come with the
 * waits from now on, unless the program goes through much of the range. */
void scuda_thrashing_run(struct scuda_thrashing *all, struct scuda_stretch s, struct scuda_run *run,
                         const struct scuda_stretch *ahead, uint32_t n);
/* At the wait: how a block comes. */
enum scuda_arrival scuda_thrashing_wait(const struct scuda_thrashing *h);
/* Pins a block that thrashes, at the wait; 1: it was not pinned. */
int scuda_thrashing_pin(struct scuda_thrashing *h);
/* The GPU gets the block in the state in which the round left it. */
void scuda_thrashing_round(struct scuda_thrashing *h, uint8_t state);
#endif
