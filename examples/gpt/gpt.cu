// The kernels of a small GPT: forward, backward, AdamW. Each thread makes one value, or one row, and adds in the order
// of an index, without atomic operations: the same input gives the same bits, however threads are scheduled.
#include "../../sim/testdata/device.h"

static __device__ float exponential(float x) { return __nvvm_ex2_approx_f(x * 1.44269504f); }
static __device__ float logarithm(float x) { return __nvvm_lg2_approx_f(x) * 0.69314718f; }

// out[m][n] = (add ? add[m][n] : 0) + the sum over k of a[m][k] b[k][n]. The steps say where the next row and column of
// a and b are, so that either may be transposed. A thread makes 4 by 4 values of out, which read little: rows and
// columns are multiples of 4.
KERNEL multiply(float *out, const float *add, const float *a, const float *b, int rows, int columns, int inner,
                int a_row, int a_column, int b_row, int b_column) {
  const int i = block * threads + tid, m = i / (columns / 4) * 4, n = i % (columns / 4) * 4;
  if (m >= rows) return;
  const float *a0 = a + m * a_row, *a1 = a0 + a_row, *a2 = a1 + a_row, *a3 = a2 + a_row;
  const float *b0 = b + n * b_column, *b1 = b0 + b_column, *b2 = b1 + b_column, *b3 = b2 + b_column;
  float sum[4][4];
  for (int r = 0; r < 4; r++)
    for (int c = 0; c < 4; c++) sum[r][c] = add ? add[(m + r) * columns + n + c] : 0;
#pragma unroll 1
  for (int k = 0, ka = 0, kb = 0; k < inner; k++, ka += a_column, kb += b_row) {
    float x[4] = {a0[ka], a1[ka], a2[ka], a3[ka]}, y[4] = {b0[kb], b1[kb], b2[kb], b3[kb]};
    for (int r = 0; r < 4; r++)
      for (int c = 0; c < 4; c++) sum[r][c] = __builtin_fmaf(x[r], y[c], sum[r][c]);
  }
  for (int r = 0; r < 4; r++)
    for (int c = 0; c < 4; c++) out[(m + r) * columns + n + c] = sum[r][c];
}

// A token's vector and its place's.
KERNEL embed(float *x, const int *token, const float *words, const float *places, int width, int length, int n) {
  const int i = block * threads + tid;
  if (i >= n) return;
  int at = i / width, c = i % width;
  x[i] = words[token[at] * width + c] + places[at % length * width + c];
}

// The gradients of the vectors of all tokens, then of all places.
KERNEL embed_back(float *grad, const float *dx, const int *token, int symbols, int width, int length, int rows) {
  const int i = block * threads + tid;
  if (i >= (symbols + length) * width) return;
  int which = i / width, c = i % width;
  float sum = 0;
  if (which < symbols) {
    for (int r = 0; r < rows; r++)
      if (token[r] == which) sum += dx[r * width + c];
  } else {
    for (int r = which - symbols; r < rows; r += length) sum += dx[r * width + c];
  }
  grad[i] = sum;
}

// Each row by its root mean square.
KERNEL normalize(float *y, float *scale, const float *x, int width, int rows) {
  const int i = block * threads + tid;
  if (i >= rows) return;
  x += i * width, y += i * width;
  float sum = 0;
  for (int c = 0; c < width; c++) sum = __builtin_fmaf(x[c], x[c], sum);
  float s = __nvvm_rsqrt_approx_f(sum / (float)width + 1e-5f);
  scale[i] = s;
  for (int c = 0; c < width; c++) y[c] = x[c] * s;
}

// It adds to dx, as the residual connection goes past the normalization.
KERNEL normalize_back(float *dx, const float *dy, const float *y, const float *scale, int width, int rows) {
  const int i = block * threads + tid;
  if (i >= rows) return;
  dx += i * width, dy += i * width, y += i * width;
  float sum = 0;
  for (int c = 0; c < width; c++) sum = __builtin_fmaf(dy[c], y[c], sum);
  sum /= (float)width;
  for (int c = 0; c < width; c++) dx[c] += scale[i] * (dy[c] - y[c] * sum);
}

KERNEL relu(float *x, int n) {
  const int i = block * threads + tid;
  if (i < n && x[i] < 0) x[i] = 0;
}
KERNEL relu_back(float *dx, const float *y, int n) {
  const int i = block * threads + tid;
  if (i < n && y[i] <= 0) dx[i] = 0;
}

// A thread of attention has one head's row: a sequence, a head, a place. A row of qkv has queries, keys and values of
// all heads.
#define ROW \
  const int i = block * threads + tid; \
  if (i >= sequences * heads * length) return; \
  int t = i % length, h = i / length % heads, s = i / length / heads, d = width / heads, step = 3 * width; \
  float by = __nvvm_rsqrt_approx_f((float)d); \
  qkv += s * length * step + h * d; \
  (void)t, (void)by

KERNEL attend(float *out, float *share, const float *qkv, int sequences, int length, int heads, int width) {
  ROW;
  share += i * length, out += (s * length + t) * width + h * d;
  const float *q = qkv + t * step, *k = qkv + width, *v = k + width;
  float most = -1e30f, sum = 0;
  for (int j = 0; j <= t; j++) {
    float dot = 0;
    for (int c = 0; c < d; c++) dot = __builtin_fmaf(q[c], k[j * step + c], dot);
    share[j] = dot *= by;
    most = dot > most ? dot : most;
  }
  for (int j = 0; j <= t; j++) sum += share[j] = exponential(share[j] - most);
  for (int j = 0; j <= t; j++) share[j] /= sum;
  for (int c = 0; c < d; c++) {
    float o = 0;
    for (int j = 0; j <= t; j++) o = __builtin_fmaf(share[j], v[j * step + c], o);
    out[c] = o;
  }
}

// The gradients of the scores and of the queries.
KERNEL attend_back_query(float *dscore, float *dqkv, const float *share, const float *dout, const float *qkv,
                         int sequences, int length, int heads, int width) {
  ROW;
  dqkv += s * length * step + h * d + t * step;
  dscore += i * length, share += i * length, dout += (s * length + t) * width + h * d;
  const float *k = qkv + width, *v = k + width;
  float sum = 0;
  for (int j = 0; j <= t; j++) {
    float dot = 0;
    for (int c = 0; c < d; c++) dot = __builtin_fmaf(dout[c], v[j * step + c], dot);
    dscore[j] = dot;
    sum = __builtin_fmaf(dot, share[j], sum);
  }
  for (int j = 0; j <= t; j++) dscore[j] = share[j] * (dscore[j] - sum) * by;
  for (int c = 0; c < d; c++) {
    float q = 0;
    for (int j = 0; j <= t; j++) q = __builtin_fmaf(dscore[j], k[j * step + c], q);
    dqkv[c] = q;
  }
}

// The gradients of the keys and of the values, to which all later places have added.
KERNEL attend_back_key(float *dqkv, const float *dscore, const float *share, const float *dout, const float *qkv,
                       int sequences, int length, int heads, int width) {
  ROW;
  dqkv += s * length * step + h * d + t * step;
  int first = (i - t) * length + t; // of this column of scores
  dscore += first, share += first, dout += s * length * width + h * d;
  for (int c = 0; c < d; c++) {
    float k = 0, v = 0;
    for (int j = t; j < length; j++) {
      k = __builtin_fmaf(dscore[j * length], qkv[j * step + c], k);
      v = __builtin_fmaf(share[j * length], dout[j * width + c], v);
    }
    dqkv[width + c] = k, dqkv[2 * width + c] = v;
  }
}

// Cross-entropy of a row, and its gradient in the place of the logits.
KERNEL cross_entropy(float *logits, float *loss, const int *target, int symbols, int rows) {
  const int i = block * threads + tid;
  if (i >= rows) return;
  logits += i * symbols;
  float most = logits[0], sum = 0;
  for (int v = 1; v < symbols; v++) most = logits[v] > most ? logits[v] : most;
  for (int v = 0; v < symbols; v++) sum += exponential(logits[v] - most);
  loss[i] = logarithm(sum) + most - logits[target[i]];
  for (int v = 0; v < symbols; v++)
    logits[v] = (exponential(logits[v] - most) / sum - (v == target[i] ? 1.f : 0.f)) / (float)rows;
}

// first and second are 1 - beta to the power of the step.
KERNEL adamw(float *w, float *mean, float *square, const float *grad, float rate, float first, float second, int n) {
  const int i = block * threads + tid;
  if (i >= n) return;
  float g = grad[i], m = mean[i] = .9f * mean[i] + .1f * g, q = square[i] = .99f * square[i] + .01f * g * g;
  w[i] -= rate * (m / first / (__nvvm_sqrt_rn_f(q / second) + 1e-8f) + .01f * w[i]);
}
