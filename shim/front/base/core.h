/* The interface between the C front and the Go core (libscuda-core.so).
 * The front opens the core lazily, finds the functions below with dlsym, and owns everything that lies in struct
 * scuda_shared. */
#ifndef SCUDA_CORE_H
#define SCUDA_CORE_H
#include <stdint.h>
#include <stddef.h>

#define SCUDA_CORE_ABI 12
#define SCUDA_SERVERS_MAX 16  /* of one program */

/* All futexes are used with FUTEX_PRIVATE_FLAG by both sides. Thread ordinal 65535 is the core's own (module upload,
 * bye). tail always stands behind a whole command. The core looks at the headers: it never sends beyond a command with
 * the BULK flag before scuda_core_bulk was called for it. A command that scuda_core_call or scuda_core_bulk follows
 * needs no wake-up of the sender. starved: the front stores 1, looks at head again, waits while it is 1; the core
 * stores 0 and wakes all after it moved head (or set lost). */

/* The command ring: a power of two of bytes, mapped twice in a row so that a command is always contiguous. The front
 * appends under its own lock and publishes by storing tail; the core sends [head, tail) and stores head. Offsets only
 * grow; offset & (size-1) is the place. */
/* What is known of a stream's or event's progress. A position is the ring offset behind a command; it only grows, so
 * what comes late is harmless. An event is known to be complete, and a stream to be idle, when done >= work. (Of a
 * context: done is the position up to which its legacy stream is known to be idle, asked that of all its streams.) */
struct scuda_track {
  /* front: the last command that gave it work; of an event: that recorded it; 0: not known */
  uint64_t work;
  uint64_t done;                /* both: all before this is complete */
  uint64_t asked;               /* front: the server tells when all before this is complete */
  uint64_t news;                /* front: scuda_shared.news as it was before the question */
  /* core: the server does not tell what it was asked up to here; the next question goes to it */
  uint64_t refused;
  uint64_t elsewhere;           /* front: an event that is recorded by others than cuEventRecord as well */
  uint64_t queried;             /* front: somebody asks about this event */
  uint64_t reserved;
};

/* What the front counts when it is asked to (SCUDA_TRACE, SCUDA_METRICS). All numbers only grow and are added to
 * atomically. */
enum { SCUDA_COUNT_SENT, SCUDA_COUNT_ANSWER, SCUDA_COUNT_DATA, SCUDA_COUNT_QUEUE, SCUDA_COUNT_MODULE,
       SCUDA_COUNT_KINDS };
enum { SCUDA_COUNT_CUDA = 1024, SCUDA_COUNT_WIRE = 256, SCUDA_COUNT_ERRORS = 1000 };
struct scuda_count { uint64_t n, ns, most, bytes; };
struct scuda_counts {
  /* by operation: those of the description, then those of wire.spec */
  struct scuda_count of[SCUDA_COUNT_KINDS][SCUDA_COUNT_CUDA + SCUDA_COUNT_WIRE];
  uint64_t errors[SCUDA_COUNT_ERRORS];   /* by CUresult */
  /* unified memory: faults, bytes fetched, bytes sent, bytes that came with waits, pinnings */
  const uint64_t *managed;
};

/* One of the uploads that bring the server's copy of pinned memory in step. The core asks for them with the fields of
 * the first two lines, and all others 0, and sends them on the stream of that context; data stay what they are until it
 * asks again. */
struct scuda_mapped_upload {
  uint64_t position;            /* what is in the ring before this was sent, and what is behind it was not */
  uint64_t context; uint32_t server, only_flags; /* the launch's; 1: a few words, past the kernels that run */
  uint32_t begun, flags;        /* begun: the front's own */
  uint64_t dst, bytes, stream;
  const void *data;
};

struct scuda_shared {
  uint32_t abi;                 /* SCUDA_CORE_ABI */
  uint32_t hosting;             /* atomic, core: host functions that run now */
  uint8_t *ring;                /* 2*ring_size bytes of address space */
  uint64_t ring_size;
  uint64_t client_base, client_slots;   /* handle regions; a slot has 64 bytes */
  uint64_t server_base, server_slots;
  struct scuda_track *tracks;   /* one a slot of the client region, then of the server region */
  _Alignas(64) uint64_t tail;   /* atomic; written by the front */
  _Alignas(64) uint64_t head;   /* atomic; written by the core */
  _Alignas(64) uint32_t asleep; /* atomic futex: 1 while the core's sender sleeps; the front stores 0 and wakes it */
  /* atomic futex: front threads that wait for room; the core wakes them after it moved head */
  uint32_t starved;
  _Alignas(64) uint32_t lost;   /* atomic: 0, or the CUresult of every further call once the session has failed */
  uint32_t transfers_pending;   /* atomic: asynchronous downloads that have not completed */
  /* atomic: counts what tells the program of progress, so that "not ready" may be outdated: host functions run, data
   * stored, PROGRESS */
  uint64_t news;
  const struct scuda_counts *counts; /* NULL: nothing is counted */
  /* core: times without a connection that were lost and made again, or could not be; bytes that were sent again */
  struct scuda_count outages;
  uint32_t lost_of[SCUDA_SERVERS_MAX];  /* atomic: as lost, of one of several servers */
  /* Gives the next upload that goes ahead of commands with the flag SCUDA_MAPPED; 0: there is none, or no more. Once it
   * gave one, it has to be asked until there is no more: the front holds a lock, for which no thread waits that the
   * core waits for. The core asks when it has seen the tail behind the commands, and before it sends them. */
  int32_t (*mapped)(struct scuda_mapped_upload *);
};

struct scuda_device {           /* one of a server's GPUs as its welcome has it */
  uint32_t server; int32_t ordinal;     /* whose it is, from 0 on, and its number there */
  char name[256];
  uint8_t uuid[16];             /* cuDeviceGetUuid_v2 */
  uint8_t uuid_v1[16];
  uint8_t luid[8];
  char pci_bus_id[16];
  uint64_t total_mem;
  int32_t attributes[256];      /* by CUdevice_attribute; attribute_ok says which the driver answered */
  int32_t attribute_result[256];/* CUresult of the query */
  uint64_t limits[16];          /* CUlimit defaults of a fresh context */
  int32_t limit_result[16];
  int32_t priority_least, priority_greatest;
  uint32_t ctx_api_version, ctx_flags;
  uint32_t has_fp8;             /* the driver has the private table FP8 */
  int32_t fp8;                  /* what its slot 1 says */
  uint64_t tpc_map_bytes;       /* private TPC_MAP table's arrays, 0 where unknown */
  uint8_t tpc_in_gpc[256], gpc_of_tpc[256];
};

struct scuda_boot {             /* filled by scuda_core_open */
  uint32_t servers;             /* how many there are */
  int32_t driver_version;
  int32_t device_count;
  const struct scuda_device *devices;   /* one server's behind the other's; lives as long as the core */
  char server[256];             /* the first one's host:port, for messages */
  uint32_t profiles;            /* 1: all servers take OP_PROFILE */
  uint32_t collectives;         /* 1: all servers take OP_NCCL_… */
};

struct scuda_call {             /* one synchronous call; everything stays the caller's */
  uint64_t begin;               /* ring offset of the command, which the reply names */
  uint64_t end;                 /* ring offset behind the command */
  uint32_t thread;              /* with its server above it, as in the command's header (SCUDA_SERVER_SHIFT) */
  int32_t result;               /* out: CUresult */
  void *reply;                  /* where the reply's payload goes */
  uint32_t reply_cap;
  uint32_t reply_len;           /* out: bytes of payload the server sent (may exceed cap; only cap are stored) */
  uint32_t timed, reserved;     /* 1: came is of interest */
  uint64_t came;                /* out: when the reply came to this machine, by CLOCK_MONOTONIC in ns; 0: not known */
};

/* Exported by the core. All may be called from any thread. Those that send call scuda_shared.mapped; besides that none
 * calls back into the front except host functions. */
typedef int32_t (*scuda_core_open_fn)(struct scuda_shared *, struct scuda_boot *);      /* CUresult; connects, hello */
/* send up to .end, wait for the thread's reply */
typedef void    (*scuda_core_call_fn)(struct scuda_call *);
/* send up to end; scuda_core_call may follow when the thread has done something else */
typedef void    (*scuda_core_send_fn)(uint64_t end);
/* send up to .end (a BULK command), then data */
typedef int32_t (*scuda_core_bulk_fn)(uint32_t server, uint64_t end, const void *data, uint64_t bytes);
/* sends such uploads at once; 0, or the CUresult of every call for the server */
typedef int32_t (*scuda_core_mapped_fn)(uint32_t server, uint64_t context, uint32_t only_flags);
typedef uint32_t (*scuda_core_transfer_fn)(void *dst, uint64_t bytes, uint32_t thread, uint32_t async);
    /* registers a download's destination, gives its id; thread as in struct scuda_call; a synchronous one ends with the
     * thread's reply, an asynchronous one with DONE */
/* 1: an unfinished download or host function may still write there */
typedef int32_t (*scuda_core_overlaps_fn)(const void *p, uint64_t bytes);
typedef uint32_t (*scuda_core_source_fn)(uint32_t server, const void *src, uint64_t bytes, uint32_t graph);
    /* registers the source of a deferred upload, of one in a graph with graph 1, forgotten when the server says so
     * (flag 1 of its last PULL; never for captured copies) */
typedef uint64_t (*scuda_core_hostfn_fn)(uint32_t server, void *fn, void *user, uint64_t stream, uint32_t kind,
                                         uint32_t keep);
    /* registers a host function; kind 1: CUstreamCallback(stream, status, user); keep 1: may run often (captured) */
typedef int32_t (*scuda_core_image_fn)(const void *image, uint64_t bytes_or_0, uint32_t device, uint32_t send,
                                       uint8_t hash[32], uint64_t *sent, char *err, uint32_t err_cap);
    /* parses a module image (wrapper, fatbin, ELF, PTX), selects what fits the device (a place in scuda_boot.devices)
     * and names it; send 1: makes sure that the device's server has it, and says how many bytes were sent for that;
     * CUresult */
typedef void    (*scuda_core_pin_fn)(const void *p, uint64_t bytes);
    /* memory that stays mapped from now on (bytes 0: that starts at p and may be unmapped afterwards); big copies
     * register it once */
typedef void    (*scuda_core_look_fn)(void);   /* handles what has arrived on the main connection, without waiting */
/* has two servers connect to each other, if they are not connected, so that the first can send to the second; which of
 * their connections these are, 0: they cannot */
typedef uint32_t (*scuda_core_peer_fn)(uint32_t from, uint32_t to);
/* a copy between them has not arrived */
typedef void    (*scuda_core_peer_lost_fn)(uint32_t from, uint32_t to, uint32_t epoch);
/* bytes of the protocol so far: sent and received over TCP, sent and received over RDMA */
typedef void    (*scuda_core_figures_fn)(uint64_t bytes[4]);
/* at exit: flush and say bye, bounded in time */
typedef void    (*scuda_core_close_fn)(void);
/* -4 debug, 0 info, 4 warn, 8 error */
typedef void    (*scuda_core_log_fn)(int32_t level, const char *text);
/* exported names: scuda_core_open, scuda_core_call, scuda_core_send, scuda_core_bulk, scuda_core_mapped,
 * scuda_core_transfer, scuda_core_overlaps, scuda_core_source, scuda_core_hostfn, scuda_core_image, scuda_core_pin,
 * scuda_core_look, scuda_core_peer, scuda_core_peer_lost, scuda_core_figures, scuda_core_close, scuda_core_log */
#endif
