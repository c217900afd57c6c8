/* The file in which a process keeps what `scuda trace --kernels` makes a timeline of (SCUDA_TIMELINE=PREFIX). It is
 * mapped memory of a file, so that it outlives a process that is killed. The file has a head, then blocks, each of one
 * thread, which appends events to it and then says how far it is filled: an event is there as a whole or not at all.
 * Package timeline reads it. libcuda.so.1 and libscuda-nvtx.so write files of their own.
 *
 * A forked child finds nothing mapped, and begins a file of its own if it has something to tell. */
#ifndef SCUDA_EVENTS_H
#define SCUDA_EVENTS_H
#include <stdint.h>

enum {
  EVENTS_HEAD = 4096,          /* bytes of the head */
  EVENTS_BLOCK = 16 << 10,     /* of a block; what needs more takes several in a row */
  EVENTS_BLOCKS = 16 << 10     /* of a file: 256 MiB. What finds no room is counted, and lost */
};

struct events_head {
  char magic[8];               /* "scudaTL1" */
  uint32_t block, pid;
  uint64_t monotonic, real;    /* the clocks at the beginning, ns */
  uint64_t blocks;             /* given out, some of them maybe beyond the end */
  uint64_t most;               /* that there is room for */
  uint64_t lost;               /* events */
  uint64_t ended;              /* monotonic time of the process's orderly end; 0: there was none */
  char program[512];
};
struct events_block {
  uint32_t thread, used;       /* used: bytes, with this; 0: it was given out, and nothing was written */
  char name[16];               /* of the thread */
  uint64_t reserved;
};
/* in front of each; bytes: with it, a multiple of 8; server: of READ and CONTROL, whose */
struct event { uint32_t bytes; uint16_t kind, server; };

/* Times are CLOCK_MONOTONIC in ns. A text is behind the structure, up to the event's end, filled up with zeros. */
enum {
  EVENT_NAME = 1, EVENT_CALL, EVENT_WAIT, EVENT_READ, EVENT_CONTROL, EVENT_TRAFFIC, EVENT_RUNTIME,
  EVENT_PUSH = 16, EVENT_POP, EVENT_START, EVENT_END, EVENT_MARK, EVENT_DOMAIN, EVENT_CATEGORY, EVENT_THREAD
};
struct event_name { struct event event; uint32_t function, reserved; };       /* text; before the first call of it */
enum { EVENTS_RUNTIME = 1 << 16 }; /* functions of the runtime are its callback ids, from here on */
struct event_call {            /* CALL, RUNTIME */
  struct event event;
  uint32_t function, correlation;
  uint64_t began, ended;
  int32_t result;
  uint32_t stream;             /* of a call that waited for one; UINT32_MAX: it waited for all; 0: no wait */
  uint32_t context, reserved;  /* of a call that waited for all */
};
/* why: SCUDA_COUNT_..., and behind those that the program connects */
struct event_wait { struct event event; uint32_t why, op; uint64_t began, ended, bytes; };
struct event_read { struct event event; uint32_t length, reserved; uint64_t asked, answered; };  /* profile_records */
/* what is recorded from now on; names in what is read later are numbered anew */
struct event_control { struct event event; uint32_t wanted, kept; uint64_t asked, answered, server; };
struct event_traffic { struct event event; uint64_t time, sent, received, sent_rdma, received_rdma; };
struct event_range {           /* PUSH, START, MARK: text; POP, END: without */
  struct event event;
  uint32_t domain, category;
  uint64_t time, id;
  uint32_t color, payload_type; /* NVTX's types */
  uint64_t payload;
};
struct event_named { struct event event; uint32_t domain, id; };  /* DOMAIN, CATEGORY, THREAD: text */

/* Where SCUDA_TIMELINE is set, has a file for this process from now on; 1: it has. suffix tells writers apart. */
int scuda_events_open(const char *suffix);
int scuda_events_on(void);
uint64_t scuda_events_now(void);
/* An event with a text (or bytes) behind it. event.bytes is set here. */
void scuda_event(void *event, uint32_t bytes, const void *text, uint32_t length);
void scuda_events_end(void);   /* the process ends in order */
#endif
