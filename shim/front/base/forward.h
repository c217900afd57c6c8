/* Generic calls that wait for their answer: one description a function, one interpreter (forward.c). */
#ifndef SCUDA_FORWARD_H
#define SCUDA_FORWARD_H
#include "base/server.h"

enum scuda_direction {         /* as api.Dir */
  SCUDA_VALUE, SCUDA_IN, SCUDA_OUT, SCUDA_INOUT, SCUDA_STRING, SCUDA_NEW, SCUDA_RET, SCUDA_NULL, SCUDA_OPAQUE
};
enum {                         /* flags of a parameter */
  SCUDA_DEVICE = 1,            /* an ordinal of a GPU, or elements that are such */
  SCUDA_NEEDED = 2,            /* NULL is CUDA_ERROR_INVALID_VALUE at once */
  SCUDA_MAYBE = 4,             /* a handle that may be NULL: the driver judges it */
  SCUDA_ENDS = 8,              /* the call ends the handle's object */
  SCUDA_RECORD = 16,           /* a structure by value: its word is its address */
  SCUDA_SIGNED = 32,           /* as a count: below 0 is none */
  SCUDA_POINTER = 64,          /* the parameter that counts the elements points to their number */
  SCUDA_ADDRESS = 256,         /* of the device's memory */
  SCUDA_TEXT = 128             /* characters: what is behind their NUL stays as it is */
};

/* A 32-bit field of an element has one of the values; at -1 it is the parameter `select`. No values: always. */
struct scuda_when { int16_t at; uint8_t count; const uint32_t *values; };
/* A handle, or (kind 0) the ordinal of a GPU, in an element. */
struct scuda_patch { uint16_t offset; uint8_t kind; struct scuda_when when; };
/* What the driver writes of an element; NULL: all of it. The last of a list holds always. */
struct scuda_choice { struct scuda_when when; const struct scuda_piece *pieces; };

struct scuda_param {
  uint16_t flags;
  uint8_t dir, kind;           /* kind: of a handle; 0: none */
  uint8_t by, less;            /* 1 + index of the parameter that counts the elements, and so many fewer; 0: `count` */
  uint8_t select, patches;     /* 1 + index of the parameter that says what a union holds; how many patches */
  uint16_t size, count;
  const struct scuda_patch *patch;
  const struct scuda_choice *choices;
};

struct scuda_form {
  const char *name;
  const struct scuda_param *params;
  uint16_t op;
  uint8_t count, outs_on_error;
};

/* Makes the call; words are its arguments, one for each parameter, as they travel (docs/protocol.md). */
int32_t scuda_forward(const struct scuda_form *form, const uint64_t *words, uint32_t how);

static inline uint64_t scuda_float(float v) { uint64_t bits = 0; memcpy(&bits, &v, sizeof v); return bits; }
#endif
