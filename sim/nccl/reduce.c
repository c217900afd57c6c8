#define _GNU_SOURCE
#include "sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const uint8_t sim_element_bytes[NCCL_TYPES] = {NCCL_ELEMENT_BYTES};

/* ---- elements: whole numbers and others ---- */

static float from_half(uint16_t h) {
  int e = h >> 10 & 31, m = h & 1023;
  float v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexpf((float)(m | 1024), e - 25) : ldexpf((float)m, -24);
  return h >> 15 ? -v : v;
}
static uint16_t to_half(float v) {
  uint16_t sign = signbit(v) ? 0x8000 : 0;
  v = fabsf(v);
  if (isnan(v)) return sign | 0x7e00;
  if (v >= 65520) return sign | 0x7c00;
  if (v < ldexpf(1, -14)) return (uint16_t)(sign | (uint16_t)nearbyintf(ldexpf(v, 24)));
  int e;
  float m = frexpf(v, &e); /* 0.5 <= m < 1 */
  return (uint16_t)(sign | (((uint32_t)(e + 14) << 10) + (uint32_t)nearbyintf(ldexpf(m, 11)) - 1024));
}
static float from_bfloat(uint16_t b) {
  uint32_t w = (uint32_t)b << 16;
  float v;
  memcpy(&v, &w, 4);
  return v;
}
static uint16_t to_bfloat(float v) {
  uint32_t w;
  memcpy(&w, &v, 4);
  return isnan(v) ? 0x7fff : (uint16_t)((w + 0x7fff + (w >> 16 & 1)) >> 16);
}

int sim_reduces(int type) { return type < ncclFloat8e4m3; }

#define WHOLE(name, t, wide) \
  static void name(t *to, const t *from, size_t n, int op, int ranks, int last) { \
    for (size_t i = 0; i < n; i++) { \
      t a = to[i], b = from[i]; \
      to[i] = (t)(op == ncclProd ? (wide)a * (wide)b : op == ncclMax ? (wide)(a > b ? a : b) : \
                  op == ncclMin ? (wide)(a < b ? a : b) : (wide)a + (wide)b); \
      if (op == ncclAvg && last) to[i] = (t)(to[i] / (t)ranks); \
    } \
  }
WHOLE(int8s, int8_t, int)
WHOLE(uint8s, uint8_t, unsigned)
WHOLE(int32s, int32_t, int64_t)
WHOLE(uint32s, uint32_t, uint64_t)
WHOLE(int64s, int64_t, uint64_t)
WHOLE(uint64s, uint64_t, uint64_t)

static double combine(double a, double b, int op) {
  return op == ncclProd ? a * b : op == ncclMax ? fmax(a, b) : op == ncclMin ? fmin(a, b) : a + b;
}
static void doubles(double *to, const double *from, size_t n, int op, int ranks, int last) {
  for (size_t i = 0; i < n; i++) {
    to[i] = combine(to[i], from[i], op);
    if (op == ncclAvg && last) to[i] /= ranks;
  }
}
static void floats(float *to, const float *from, size_t n, int op, int ranks, int last) {
  for (size_t i = 0; i < n; i++) {
    to[i] = (float)combine(to[i], from[i], op);
    if (op == ncclAvg && last) to[i] /= (float)ranks;
  }
}
static void small(uint16_t *to, const uint16_t *from, size_t n, int op, int ranks, int last, int half) {
  for (size_t i = 0; i < n; i++) {
    float v = (float)combine(half ? from_half(to[i]) : from_bfloat(to[i]), half ? from_half(from[i]) :
                             from_bfloat(from[i]), op);
    if (op == ncclAvg && last) v /= (float)ranks;
    to[i] = half ? to_half(v) : to_bfloat(v);
  }
}

static void reduce(void *to, const void *from, const struct operation *o, size_t n, int ranks, int last) {
  switch (o->type) {
  case ncclInt8: int8s(to, from, n, o->op, ranks, last); return;
  case ncclUint8: uint8s(to, from, n, o->op, ranks, last); return;
  case ncclInt32: int32s(to, from, n, o->op, ranks, last); return;
  case ncclUint32: uint32s(to, from, n, o->op, ranks, last); return;
  case ncclInt64: int64s(to, from, n, o->op, ranks, last); return;
  case ncclUint64: uint64s(to, from, n, o->op, ranks, last); return;
  case ncclFloat32: floats(to, from, n, o->op, ranks, last); return;
  case ncclFloat64: doubles(to, from, n, o->op, ranks, last); return;
  default: small(to, from, n, o->op, ranks, last, o->type == ncclFloat16);
  }
}

/* ---- collectives ---- */

/* What each rank brings, one rank's behind the other's, at rank 0. */
static int gather(struct comm *c, struct operation *o, uint8_t *all) {
  memcpy(all, o->in, o->in_bytes);
  int r = ncclSuccess;
  for (int k = 1; k < c->ranks && !r; k++)
    r = sim_read(c, c->peers[k].star.fd, all + (size_t)k * o->in_bytes, o->in_bytes);
  return r;
}

static int to_each(struct comm *c, const uint8_t *from, size_t bytes, size_t apart) {
  int r = ncclSuccess;
  for (int k = 1; k < c->ranks && !r; k++) r = sim_write(c, c->peers[k].star.fd, from + (size_t)k * apart, bytes);
  return r;
}

/* Rank 0 of a broadcast, and of a reduction to another one. */
static int broadcast_centre(struct comm *c, struct operation *o) {
  int r = ncclSuccess;
  if (o->peer) r = sim_read(c, c->peers[o->peer].star.fd, o->out, o->out_bytes);
  else memcpy(o->out, o->in, o->in_bytes);
  return r ? r : to_each(c, o->out, o->out_bytes, 0);
}

static int centre(struct comm *c, struct operation *o) {
  if (o->function == BROADCAST) return broadcast_centre(c, o);
  uint8_t *all = malloc((size_t)c->ranks * o->in_bytes + 1);
  int r = all ? gather(c, o, all) : ncclSystemError;
  size_t n = o->in_bytes / sim_element_bytes[o->type];
  if (!r && o->function == ALL_GATHER) {
    memcpy(o->out, all, o->out_bytes);
    r = to_each(c, all, o->out_bytes, 0);
  } else if (!r) {
    for (int k = 1; k < c->ranks; k++)
      reduce(all, all + (size_t)k * o->in_bytes, o, n, c->ranks, k == c->ranks - 1);
    if (o->out_bytes) memcpy(o->out, all, o->out_bytes);
    if (o->function == REDUCE && o->peer) r = sim_write(c, c->peers[o->peer].star.fd, all, o->in_bytes);
    else if (o->function != REDUCE)
      r = to_each(c, all, o->out_bytes, o->function == REDUCE_SCATTER ? o->out_bytes : 0);
  }
  free(all);
  return r;
}

/* Each term of a sum of the program's own is multiplied by the rank's scalar. */
static int scale(const struct operation *o) {
  size_t size = sim_element_bytes[o->type], n = o->in_bytes / size;
  uint8_t *factors = malloc(o->in_bytes + 1);
  struct operation product = *o;
  if (!factors) return ncclSystemError;
  for (size_t i = 0; i < n; i++) memcpy(factors + i * size, o->scalar, size);
  product.op = ncclProd;
  reduce(o->in, factors, &product, n, 1, 0);
  free(factors);
  return ncclSuccess;
}

int sim_collective(struct comm *c, struct operation *o) {
  if (o->own && scale(o)) return ncclSystemError;
  if (!c->rank) return centre(c, o);
  int r = sim_write(c, c->peers[0].star.fd, o->in, o->in_bytes);
  return r ? r : sim_read(c, c->peers[0].star.fd, o->out, o->out_bytes);
}
