// Steps undone on a tile of keys, [channels][64] floats that stay in the first cache: rows are channels, lanes are
// tokens. Numbers are rounded as in the steps' definition, one operation after the other, but for turns.
#pragma once

#include "angles.h"
#include "simd.h"

namespace quantkv {
namespace QUANTKV_ISA {

QUANTKV_INLINE float* channel_of(float* tile, int64_t c) { return tile + c * TILE; }

// Sums and differences of channels `half` apart, times the root of 1 / block.
static inline void undo_hadamard(float* tile, int64_t dim, int64_t block) {
  for (int64_t half = 1; half < block; half *= 2)
    for (int64_t c = 0; c < dim; c += c % half == half - 1 ? half + 1 : 1) {
      float *p = channel_of(tile, c), *q = channel_of(tile, c + half);
      for (int t = 0; t < TILE; t += LANES) {
        const F16 a = load(p + t), b = load(q + t);
        store(p + t, a + b);
        store(q + t, a - b);
      }
    }
  const F16 by = splat(float(1.0 / std::sqrt(double(block))));
  for (int64_t i = 0; i < dim * TILE; i += LANES) store(tile + i, load(tile + i) * by);
}

// Each token's channels times the transposed matrix [dim][dim]; `room` holds a tile.
static inline void undo_matrix(float* tile, int64_t dim, const float* matrix, float* room) {
  std::memcpy(room, tile, size_t(dim * TILE) * sizeof(float));
  for (int64_t c = 0; c < dim; ++c) {
    F16 total[TILE / LANES] = {splat(0), splat(0), splat(0), splat(0)};
    for (int64_t k = 0; k < dim; ++k) {
      const F16 by = splat(matrix[c * dim + k]);
QUANTKV_UNROLL(4)
      for (int v = 0; v < TILE / LANES; ++v) total[v] = fma(by, load(room + k * TILE + v * LANES), total[v]);
    }
    for (int v = 0; v < TILE / LANES; ++v) store(channel_of(tile, c) + v * LANES, total[v]);
  }
}

static inline void undo_shift(float* tile, int64_t dim, const float* means) {
  for (int64_t c = 0; c < dim; ++c)
    for (int t = 0; t < TILE; t += LANES) store(channel_of(tile, c) + t, load(channel_of(tile, c) + t) + splat(means[c]));
}

static inline void undo_stretch(float* tile, int64_t dim, const float* by) {
  for (int64_t c = 0; c < dim; ++c)
    for (int t = 0; t < TILE; t += LANES) store(channel_of(tile, c) + t, load(channel_of(tile, c) + t) * splat(by[c]));
}

// `by` has a number for each of the 64 tokens.
static inline void undo_token_scale(float* tile, int64_t dim, const float* by) {
  for (int64_t c = 0; c < dim; ++c)
    for (int t = 0; t < TILE; t += LANES) store(channel_of(tile, c) + t, load(channel_of(tile, c) + t) * load(by + t));
}

// Turns by the angles of 64 positions from `first`, below 64, on; channels that have no pair stay.
static inline void undo_turn(float* tile, const Angles& a, int64_t first) {
  const int64_t apart = a.interleaved ? 1 : a.pairs, step = a.interleaved ? 2 : 1;
  for (int64_t i = 0; i < a.pairs; ++i) {
    float *p = channel_of(tile, i * step), *q = channel_of(tile, i * step + apart);
    const size_t at = size_t(i * Angles::NEAR + first);
    const float *cos = &a.near_cos[at], *sin = &a.near_sin[at];
QUANTKV_UNROLL(4)
    for (int t = 0; t < TILE; t += LANES) {
      const F16 x = load(p + t), y = load(q + t), c = load(cos + t), s = load(sin + t);
      store(p + t, x * c - y * s);
      store(q + t, fma(x, s, y * c));
    }
  }
}

// A query turned back by one angle for each pair, so that it meets keys that are turned by as much less.
static inline void turn_back(float* x, const Angles& a, const float* __restrict cos, const float* __restrict sin) {
  const int64_t pairs = a.pairs;
  if (a.interleaved) {
    for (int64_t i = 0; i < pairs; ++i) {
      const float p = x[2 * i], q = x[2 * i + 1];
      x[2 * i] = p * cos[i] + q * sin[i];
      x[2 * i + 1] = q * cos[i] - p * sin[i];
    }
    return;
  }
  float *__restrict first = x, *__restrict second = x + pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    const float p = first[i], q = second[i];
    first[i] = p * cos[i] + q * sin[i];
    second[i] = q * cos[i] - p * sin[i];
  }
}

}  // namespace QUANTKV_ISA
}  // namespace quantkv
