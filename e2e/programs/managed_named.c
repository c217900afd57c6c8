// Calls that name a range of unified memory take it, whatever it is attached to and wherever its pages are. Every call
// with an address is made on memory that the CPU wrote, read, never touched or the GPU has, attached to all, to the
// CPU, to the call's stream or to another one, twice, and each time the CPU reads all of it. Then come random sequences
// of the same calls. Natively the same holds, since the CPU waits for the GPU before it touches anything.
// Arguments: the folder of kernels; "list" (which calls), or the first seed and the number of random programs.
#include "managed.h"
#include "managed_named.h"

enum attachment { GLOBAL, HOST, SAME, OTHER, ATTACHMENTS };
enum place { FRESH, AWAY, READ, WRITTEN, PLACES };
static const char *attachments[] = {"global", "host", "this stream", "another stream"},
    *places[] = {"fresh", "away", "read", "written"};

static uint64_t state = 1;
static unsigned random_below(unsigned n) { // xorshift*
  state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
  return (unsigned)((state * 2685821657736338717ull >> 16) % n);
}

static void attach(struct range *r, enum attachment to) {
  CUstream at = to == SAME ? stream : to == OTHER ? other : stream;
  CK(cuStreamAttachMemAsync(at, dev(r->p), 0, to == GLOBAL ? CU_MEM_ATTACH_GLOBAL : to == HOST ? CU_MEM_ATTACH_HOST :
                            CU_MEM_ATTACH_SINGLE));
  CK(cuStreamSynchronize(at));
}
static struct range new_range(enum attachment to) {
  struct range r = {NULL, calloc(1, BYTES), calloc(1, BYTES)};
  CUdeviceptr p;
  CK(cuMemAllocManaged(&p, BYTES, to == HOST ? CU_MEM_ATTACH_HOST : CU_MEM_ATTACH_GLOBAL));
  r.p = (unsigned char *)(uintptr_t)p;
  return r;
}
static void drop(struct range *r) {
  release(r->p);
  free(r->model);
  free(r->known);
}
static void put(struct range *r, enum place where) { // the memory is attached to all
  if (where == FRESH) return;
  learn(r, 0, BYTES);
  CK(cuMemsetD8Async(dev(r->p), (unsigned char)turn, BYTES, stream));
  memset(r->model, (int)turn, BYTES);
  CK(cuStreamSynchronize(stream));
  if (where == AWAY) return;
  volatile unsigned char *p = r->p;
  for (size_t i = 0; i < BYTES; i += 4096) (void)p[i];
  if (where == READ) return;
  fill(r->p, BYTES, turn);
  memcpy(r->model, r->p, BYTES);
}
static int wrong; // programs that did not agree, for the whole picture of a run
static void agrees(const struct range *r, const char *what, const char *to, const char *from, int round) {
  for (size_t i = 0; i < BYTES; i++) {
    if (!r->known[i] || r->p[i] == r->model[i]) continue;
    printf("%s, attached to %s, %s, round %d: byte %zu is %u, want %u\n", what, to, from, round, i, r->p[i],
           r->model[i]);
    wrong++;
    memcpy(r->model, r->p, BYTES);
    return;
  }
}

static void once(struct range *r, const struct call *c, enum attachment to, enum place from, int rounds) {
  for (int round = 1; round <= rounds; round++) {
    turn++;
    perform(r, c);
    if (outcome) {
      printf("%s, attached to %s, %s, round %d: %d bytes of the target are wrong\n", c->name, attachments[to],
             places[from], round, outcome);
      wrong++;
    }
    agrees(r, c->name, attachments[to], places[from], round);
  }
}

static void each(void) {
  for (enum attachment to = 0; to < ATTACHMENTS; to++) {
    struct range kept = new_range(to);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
      for (enum place from = 0; from < PLACES; from++) {
        struct range new = from == FRESH ? new_range(to) : kept, *r = from == FRESH ? &new : &kept;
        attach(r, GLOBAL);
        put(r, from);
        attach(r, to);
        once(r, &calls[i], to, from, 2);
        if (from == FRESH) drop(&new);
      }
    }
    drop(&kept);
  }
}

// Random sequences: some ranges in whatever state the calls before left them, some of them attached anew, on both
// streams.
enum { RANGES = 4, STEPS = 60 };
static void sequence(uint64_t seed) {
  struct range range[RANGES];
  state = seed * 0x9E3779B97F4A7C15ull + 1;
  for (int i = 0; i < RANGES; i++) range[i] = new_range(random_below(2) ? GLOBAL : HOST);
  for (int i = 0; i < STEPS; i++) {
    struct range *r = &range[random_below(RANGES)];
    char what[100];
    switch (random_below(8)) {
    case 0: attach(r, random_below(ATTACHMENTS)); break;
    case 1: { // the CPU writes somewhere
      size_t from = random_below(BYTES), n = 1 + random_below(300);
      if (n > BYTES - from) n = BYTES - from;
      memset(r->p + from, i, n), memset(r->model + from, i, n), learn(r, from, n);
      break;
    }
    default: {
      const struct call *c = &calls[random_below(sizeof calls / sizeof *calls)];
      CUstream s = stream;
      turn++;
      if (random_below(3) == 0) stream = other;
      perform(r, c);
      stream = s;
      snprintf(what, sizeof what, "program %llu, step %d: %s", (unsigned long long)seed, i, c->name);
      if (outcome) printf("%s: %d bytes of the target are wrong\n", what, outcome), wrong++;
      if (random_below(2)) agrees(r, what, "?", "?", i);
    }
    }
  }
  for (int i = 0; i < RANGES; i++) agrees(&range[i], "at last", "?", "?", (int)seed), drop(&range[i]);
}

// With a stream end the attachments to it: the memory is as it was made, and its work goes on.
static void ends(void) {
  CUstream keep = stream;
  for (enum attachment made = GLOBAL; made <= HOST; made++) {
    struct range r = new_range(made);
    put(&r, WRITTEN);
    CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    attach(&r, SAME);
    m = r.p + AT, d = dev(m), value = 9;
    for (int i = 0; i < 20; i++) launched();
    CK(cuStreamDestroy(stream));
    for (int i = 0; i < N; i++)
      for (int k = 0; k < 20; k++) r.model[AT + i] = (unsigned char)(r.model[AT + i] * 3 + 9);
    CK(cuCtxSynchronize());
    stream = keep;
    agrees(&r, "a stream that has ended", attachments[made], "written", 1);
    turn++;
    for (const struct call *c = calls; c < calls + sizeof calls / sizeof *calls; c += 7) once(&r, c, made, WRITTEN, 1);
    drop(&r);
  }
}

int main(int argc, char **argv) {
  if (argc > 2 && !strcmp(argv[2], "list")) return list(), 0;
  start_managed(argc, argv);
  start_named();
  unsigned long long first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1,
      programs = argc > 3 ? strtoull(argv[3], NULL, 10) : 20;
  if (first == 1) each(), ends();
  for (unsigned long long i = 0; i < programs; i++) sequence(first + i);
  printf("%d calls, %llu programs\n", (int)(sizeof calls / sizeof *calls), programs);
  return wrong != 0;
}
