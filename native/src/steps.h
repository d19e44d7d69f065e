// Steps folded into queries, or undone on rows of floats.
#pragma once

#include "attend.h"
#include "scales.h"

namespace quantkv {
namespace QUANTKV_ISA {

// Tokens of one head of a row that lie together in a page: the first of them, and its position.
struct Place {
  const Known* known = nullptr;
  int row = 0, head = 0;
  const uint8_t* record = nullptr;
  int64_t token = 0, position = 0;
};

static inline const float* state_of(const Method& m, const Step& s, const Place& at) {
  return at.known->states[size_t(s.state)][size_t(at.row)] + int64_t(at.head) * m.head_dim;
}

static inline const float* matrix_of(const Method& m, const Step& s, int head) {
  return s.matrix->data() + int64_t(head) * m.head_dim * m.head_dim;
}

static inline void butterflies(float* x, int64_t dim, int64_t block) {
  for (int64_t half = 1; half < block; half *= 2)
    for (int64_t at = 0; at < dim; at += 2 * half)
      for (int64_t i = at; i < at + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
  const float by = float(1.0 / std::sqrt(double(block)));
  for (int64_t i = 0; i < dim; ++i) x[i] *= by;
}

// x @ matrix, or x @ its transpose; `room` has as many numbers.
static inline void multiply(float* x, const float* matrix, int64_t dim, bool transposed, float* room) {
  for (int64_t i = 0; i < dim; ++i) room[i] = 0.0f;
  for (int64_t c = 0; c < dim; ++c) {
    const float by = x[c], *line = matrix + c * dim;
    if (!transposed) {
      for (int64_t i = 0; i < dim; ++i) room[i] += by * line[i];
      continue;
    }
    float total = 0.0f;
    for (int64_t i = 0; i < dim; ++i) total += x[i] * line[i];
    room[c] = total;
  }
  for (int64_t i = 0; i < dim; ++i) x[i] = room[i];
}

// A query so that its product with what is stored is that with the step undone; a shift is left to the caller.
static inline void fold_into(const Method& m, const Step& s, const Place& at, float* q, float* room) {
  if (s.what == Do::hadamard) butterflies(q, m.head_dim, s.block);
  if (s.what == Do::matrix) multiply(q, matrix_of(m, s, at.head), m.head_dim, false, room);
  if (s.what != Do::stretch) return;
  const float* by = state_of(m, s, at);
  for (int c = 0; c < m.head_dim; ++c) q[c] *= by[c];
}

// Undoes a step that is neither a turn nor a token's scale; a shift counts `mass` times.
static inline void undo_row(const Method& m, const Step& s, const Place& at, float* x, float mass, float* room) {
  if (s.what == Do::hadamard) butterflies(x, m.head_dim, s.block);
  if (s.what == Do::matrix) multiply(x, matrix_of(m, s, at.head), m.head_dim, true, room);
  if (s.what != Do::stretch && s.what != Do::shift) return;
  const float* by = state_of(m, s, at);
  for (int c = 0; c < m.head_dim; ++c) x[c] = s.what == Do::shift ? x[c] + mass * by[c] : x[c] * by[c];
}

// Turns pairs of channels, forwards or back.
static inline void turn_row(const Angles& a, float* x, const float* cos, const float* sin, int64_t stride, float sign) {
  const int apart = a.interleaved ? 1 : a.pairs, step = a.interleaved ? 2 : 1;
  for (int i = 0; i < a.pairs; ++i) {
    float &p = x[i * step], &q = x[i * step + apart];
    const float c = cos[i * stride], s = sin[i * stride] * sign, first = p;
    p = first * c - q * s;
    q = q * c + first * s;
  }
}

// cos and sin of a multiple of 64.
static inline const float* far_angles(const Known& known, size_t step, const Angles& a, int64_t position) {
  return known.far[step]->data() + position / Angles::STRIDE * 2 * a.pairs;
}

static inline void turn_at(const Known& known, size_t step, const Angles& a, int64_t position, float* x) {
  const float* far = far_angles(known, step, a, position);
  const int64_t near = position % Angles::STRIDE;
  turn_row(a, x, far, far + a.pairs, 1, 1.0f);
  turn_row(a, x, &a.near_cos[size_t(near)], &a.near_sin[size_t(near)], Angles::NEAR, 1.0f);
}

static inline void token_scales(const Method& m, const Step& s, const Place& at, int64_t n, float* out) {
  factor_floats(s.scale, at.record, at.head, m.page_tokens, at.token, n, out);
}

// Undoes steps [from, to) on `n` tokens, rows of floats `stride` apart. `room` has n or head_dim numbers.
static inline void undo_rows(const Method& m, int from, int to, const Place& at, float* x, int64_t n, int64_t stride, float* room) {
  for (int i = to - 1; i >= from; --i) {
    const Step& s = m.steps[size_t(i)];
    if (s.what == Do::token_scale) token_scales(m, s, at, n, room);
    for (int64_t t = 0; t < n; ++t) {
      float* row = x + t * stride;
      if (s.what == Do::turn) turn_at(*at.known, size_t(i), *s.angles, at.position + t, row);
      else if (s.what == Do::token_scale) for (int c = 0; c < m.head_dim; ++c) row[c] *= room[t];
      else undo_row(m, s, at, row, 1.0f, room);
    }
  }
}

}  // namespace QUANTKV_ISA
}  // namespace quantkv
