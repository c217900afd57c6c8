// gpt [STEPS]: trains a small GPT, letter by letter, on a short story, and lets it write. An ordinary program over the
// CUDA driver API with kernels of its own (gpt.cu); it knows nothing of scuda. It prints a line a step, and at the end
// what the model writes: `scuda demo` makes a picture of that.
#include <cuda.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  LENGTH = 32,    // letters that the model sees
  SEQUENCES = 4,  // of a batch
  WIDTH = 32,     // of a letter's vector
  HEADS = 4,      // of attention
  LAYERS = 2,
  SYMBOLS = 32,   // different letters that there may be
  ROWS = SEQUENCES * LENGTH,
  WRITTEN = 120,  // letters that the model writes
};

#define CK(call) \
  do { \
    CUresult r_ = (call); \
    if (r_ != CUDA_SUCCESS) { \
      const char *name_ = "?"; \
      cuGetErrorName(r_, &name_); \
      fprintf(stderr, "%s: %s (%d)\n", #call, name_, (int)r_); \
      exit(1); \
    } \
  } while (0)

// The kernels and the story are parts of the program.
__asm__(".pushsection .rodata\nptx: .incbin \"gpt.ptx\"\n.byte 0\nstory: .incbin \"story.txt\"\n.byte 0\n.popsection");
extern const char ptx[], story[];

#define KERNELS(X) \
  X(multiply) X(embed) X(embed_back) X(normalize) X(normalize_back) X(relu) X(relu_back) X(attend) \
  X(attend_back_query) X(attend_back_key) X(cross_entropy) X(adamw)
#define NUMBER(name) name,
#define NAME(name) #name,
enum kernel { KERNELS(NUMBER) COUNT };
static const char *const names[] = {KERNELS(NAME)};
static CUfunction functions[COUNT];

// launch(KERNEL, threads, arguments...): pointers and whole numbers; bits() makes one of a float.
#define launch(kernel, threads, ...) \
  start(kernel, threads, (uint64_t[]){__VA_ARGS__}, sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))
static void start(enum kernel k, int threads, uint64_t *arguments, size_t n) {
  void *at[16];
  for (size_t i = 0; i < n; i++) at[i] = arguments + i;
  CK(cuLaunchKernel(functions[k], (unsigned)(threads + 63) / 64, 1, 1, 64, 1, 1, 0, NULL, at, NULL));
}
static uint64_t bits(float f) {
  uint32_t b;
  memcpy(&b, &f, sizeof b);
  return b;
}

typedef CUdeviceptr P; // to floats, or to tokens
static P allocate(int n) {
  P p;
  CK(cuMemAlloc(&p, (size_t)n * 4));
  CK(cuMemsetD32(p, 0, (size_t)n));
  return p;
}
static P part(P *rest, int n) {
  P p = *rest;
  *rest += (P)n * 4;
  return p;
}

// Weights, and gradients in the same order.
struct weights {
  P all, words, places, qkv[LAYERS], out[LAYERS], up[LAYERS], down[LAYERS], head;
};
enum { PARAMETERS = (2 * SYMBOLS + LENGTH + LAYERS * 12 * WIDTH) * WIDTH };
static struct weights carve(void) {
  struct weights w = {.all = allocate(PARAMETERS)};
  P rest = w.all;
  w.words = part(&rest, SYMBOLS * WIDTH), w.places = part(&rest, LENGTH * WIDTH);
  for (int l = 0; l < LAYERS; l++) {
    w.qkv[l] = part(&rest, 3 * WIDTH * WIDTH), w.out[l] = part(&rest, WIDTH * WIDTH);
    w.up[l] = part(&rest, 4 * WIDTH * WIDTH), w.down[l] = part(&rest, 4 * WIDTH * WIDTH);
  }
  w.head = part(&rest, SYMBOLS * WIDTH);
  return w;
}

static struct weights w, dw;
static P token, target, loss, logits; // the logits' gradients take their place
// What the way back needs of the way there: each half of a layer has its input x, and that normalized.
static P x[2 * LAYERS + 1], y[2 * LAYERS + 1], scale[2 * LAYERS + 1], qkv[LAYERS], share[LAYERS], mixed[LAYERS],
    hidden[LAYERS];
static P dx, dy, dqkv, dscore, dmixed, dhidden;

static void prepare(void) {
  w = carve(), dw = carve();
  token = allocate(ROWS), target = allocate(ROWS), loss = allocate(ROWS), logits = allocate(ROWS * SYMBOLS);
  for (int i = 0; i <= 2 * LAYERS; i++)
    x[i] = allocate(ROWS * WIDTH), y[i] = allocate(ROWS * WIDTH), scale[i] = allocate(ROWS);
  for (int l = 0; l < LAYERS; l++) {
    qkv[l] = allocate(ROWS * 3 * WIDTH), mixed[l] = allocate(ROWS * WIDTH), hidden[l] = allocate(ROWS * 4 * WIDTH);
    share[l] = allocate(ROWS * HEADS * LENGTH);
  }
  dx = allocate(ROWS * WIDTH), dy = allocate(ROWS * WIDTH), dqkv = allocate(ROWS * 3 * WIDTH);
  dscore = allocate(ROWS * HEADS * LENGTH), dmixed = allocate(ROWS * WIDTH), dhidden = allocate(ROWS * 4 * WIDTH);
}

// out = add + in weights, where add is none, or out itself, or something else
static void apply(P out, P add, P in, P weights, int rows, int from, int to) {
  launch(multiply, rows * to / 16, out, add, in, weights, rows, to, from, from, 1, to, 1);
}
// The gradients of both factors of that.
static void apply_back(P din, P dweights, P dout, P in, P weights, int from, int to) {
  launch(multiply, ROWS * from / 16, din, 0, dout, weights, ROWS, from, to, to, 1, 1, to);
  launch(multiply, from * to / 16, dweights, 0, in, dout, from, to, ROWS, 1, from, to, 1);
}

static void forward(int sequences) {
  int rows = sequences * LENGTH;
  launch(embed, rows * WIDTH, x[0], token, w.words, w.places, WIDTH, LENGTH, rows * WIDTH);
  for (int l = 0; l < LAYERS; l++) {
    int a = 2 * l, b = a + 1;
    launch(normalize, rows, y[a], scale[a], x[a], WIDTH, rows);
    apply(qkv[l], 0, y[a], w.qkv[l], rows, WIDTH, 3 * WIDTH);
    launch(attend, rows * HEADS, mixed[l], share[l], qkv[l], sequences, LENGTH, HEADS, WIDTH);
    apply(x[b], x[a], mixed[l], w.out[l], rows, WIDTH, WIDTH);
    launch(normalize, rows, y[b], scale[b], x[b], WIDTH, rows);
    apply(hidden[l], 0, y[b], w.up[l], rows, WIDTH, 4 * WIDTH);
    launch(relu, rows * 4 * WIDTH, hidden[l], rows * 4 * WIDTH);
    apply(x[b + 1], x[b], hidden[l], w.down[l], rows, 4 * WIDTH, WIDTH);
  }
  int last = 2 * LAYERS;
  launch(normalize, rows, y[last], scale[last], x[last], WIDTH, rows);
  apply(logits, 0, y[last], w.head, rows, WIDTH, SYMBOLS);
}

static void backward(void) {
  int last = 2 * LAYERS;
  apply_back(dy, dw.head, logits, y[last], w.head, WIDTH, SYMBOLS);
  CK(cuMemsetD32Async(dx, 0, ROWS * WIDTH, NULL));
  launch(normalize_back, ROWS, dx, dy, y[last], scale[last], WIDTH, ROWS);
  for (int l = LAYERS - 1; l >= 0; l--) {
    int a = 2 * l, b = a + 1;
    apply_back(dhidden, dw.down[l], dx, hidden[l], w.down[l], 4 * WIDTH, WIDTH);
    launch(relu_back, ROWS * 4 * WIDTH, dhidden, hidden[l], ROWS * 4 * WIDTH);
    apply_back(dy, dw.up[l], dhidden, y[b], w.up[l], WIDTH, 4 * WIDTH);
    launch(normalize_back, ROWS, dx, dy, y[b], scale[b], WIDTH, ROWS);
    apply_back(dmixed, dw.out[l], dx, mixed[l], w.out[l], WIDTH, WIDTH);
    launch(attend_back_query, ROWS * HEADS, dscore, dqkv, share[l], dmixed, qkv[l], SEQUENCES, LENGTH, HEADS, WIDTH);
    launch(attend_back_key, ROWS * HEADS, dqkv, dscore, share[l], dmixed, qkv[l], SEQUENCES, LENGTH, HEADS, WIDTH);
    apply_back(dy, dw.qkv[l], dqkv, y[a], w.qkv[l], WIDTH, 3 * WIDTH);
    launch(normalize_back, ROWS, dx, dy, y[a], scale[a], WIDTH, ROWS);
  }
  launch(embed_back, (SYMBOLS + LENGTH) * WIDTH, dw.words, dx, token, SYMBOLS, WIDTH, LENGTH, ROWS);
}

static uint32_t state = 1; // of xorshift: the same numbers in each run
static uint32_t chance(uint32_t below) {
  state ^= state << 13, state ^= state >> 17, state ^= state << 5;
  return (uint32_t)((uint64_t)state * below >> 32);
}

static char letters[SYMBOLS];
static unsigned char text[4096];
static int length, symbols;

// The story's letters by number; ends of lines are blanks.
static void read_story(void) {
  for (const char *c = story; *c && length < (int)sizeof text; c++) {
    char letter = *c == '\n' ? ' ' : *c;
    int i = 0;
    while (i < symbols && letters[i] != letter) i++;
    if (i == SYMBOLS) fprintf(stderr, "the story has too many different letters\n"), exit(1);
    if (i == symbols) letters[symbols++] = letter;
    text[length++] = (unsigned char)i;
  }
}

static void write_story(const char *begin) {
  float scores[SYMBOLS];
  int window[LENGTH] = {0}, n = 0;
  printf("writes ");
  for (int k = 0; k < WRITTEN; k++) {
    int next = 0;
    if (*begin) {
      while (letters[next] != *begin) next++;
      begin++;
    } else {
      CK(cuMemcpyHtoD(token, window, sizeof window));
      forward(1);
      CK(cuMemcpyDtoH(scores, logits + (P)((n < LENGTH ? n : LENGTH) - 1) * SYMBOLS * 4, sizeof scores));
      for (int i = 1; i < SYMBOLS; i++)
        if (scores[i] > scores[next]) next = i;
    }
    if (n >= LENGTH) memmove(window, window + 1, sizeof window - sizeof *window);
    window[n < LENGTH ? n : LENGTH - 1] = next, n++;
    putchar(letters[next]);
  }
  putchar('\n');
}

int main(int argc, char **argv) {
  char *end;
  long steps = argc > 1 ? strtol(argv[1], &end, 10) : 250;
  if (argc > 2 || (argc > 1 && (*end || steps < 1 || steps > 1000000))) {
    fprintf(stderr, "usage: gpt [STEPS]\n");
    return 2;
  }
  CUdevice device;
  CUcontext context;
  CUmodule module;
  char name[128];
  CK(cuInit(0));
  CK(cuDeviceGet(&device, 0));
  CK(cuDeviceGetName(name, sizeof name, device));
  CK(cuDevicePrimaryCtxRetain(&context, device));
  CK(cuCtxSetCurrent(context));
  CK(cuModuleLoadData(&module, ptx));
  for (int k = 0; k < COUNT; k++) CK(cuModuleGetFunction(&functions[k], module, names[k]));
  read_story();
  prepare();
  float *first = malloc((size_t)PARAMETERS * sizeof *first), losses[ROWS];
  for (int i = 0; i < PARAMETERS; i++) first[i] = ((float)chance(1 << 20) / (1 << 19) - 1) * 0.15f;
  CK(cuMemcpyHtoD(w.all, first, (size_t)PARAMETERS * sizeof *first));
  free(first);
  P mean = allocate(PARAMETERS), square = allocate(PARAMETERS);
  printf("trains %d parameters on \"%s\" for %ld steps\n", PARAMETERS, name, steps);
  fflush(stdout);
  for (long s = 1; s <= steps; s++) {
    int tokens[ROWS], targets[ROWS];
    for (int q = 0; q < SEQUENCES; q++) {
      int from = (int)chance((uint32_t)(length - LENGTH));
      for (int t = 0; t < LENGTH; t++)
        tokens[q * LENGTH + t] = text[from + t], targets[q * LENGTH + t] = text[from + t + 1];
    }
    CK(cuMemcpyHtoDAsync(token, tokens, sizeof tokens, NULL));
    CK(cuMemcpyHtoDAsync(target, targets, sizeof targets, NULL));
    forward(SEQUENCES);
    launch(cross_entropy, ROWS, logits, loss, target, SYMBOLS, ROWS);
    backward();
    float rate = 0.01f * (0.55f + 0.45f * cosf(3.14159265f * (float)s / (float)steps));
    launch(adamw, PARAMETERS, w.all, mean, square, dw.all, bits(rate), bits(1 - powf(.9f, (float)s)),
           bits(1 - powf(.99f, (float)s)), PARAMETERS);
    CK(cuMemcpyDtoH(losses, loss, sizeof losses));
    double sum = 0;
    for (int i = 0; i < ROWS; i++) sum += losses[i];
    printf("step %ld loss %.4f\n", s, sum / ROWS);
    fflush(stdout);
  }
  write_story("the laptop ");
  return 0;
}
