// Smallest and largest elements of groups, and the scales and zeros made from them.
#pragma once

#include "rounding.h"

namespace quantkv {
namespace QUANTKV_ISA {

// The range so far, channel by channel. `top` holds bits of the largest magnitude: as an integer, NaN is above all
// numbers, so that one anywhere in a group shows.
struct Extremes {
  float *low, *high;
  uint32_t* top;
};

static void begin_range(const Extremes& e, int n) {
  for (int i = 0; i < n; ++i) {
    e.low[i] = INFINITY;
    e.high[i] = -INFINITY;
    e.top[i] = 0;
  }
}

// n is a multiple of 16.
static void widen_range(const Extremes& e, const float* x, int n) {
  float *__restrict low = e.low, *__restrict high = e.high;
  uint32_t* __restrict top = e.top;
  for (int i = 0; i < n; ++i) {
    uint32_t magnitude = as_bits(x[i]) & 0x7fffffffu;
    low[i] = x[i] < low[i] ? x[i] : low[i];
    high[i] = x[i] > high[i] ? x[i] : high[i];
    top[i] = magnitude > top[i] ? magnitude : top[i];
  }
}

struct Least {
  template <class T>
  QUANTKV_INLINE T operator()(T a, T b) const { return a < b ? a : b; }
};
struct Most {
  template <class T>
  QUANTKV_INLINE T operator()(T a, T b) const { return a > b ? a : b; }
};

// All n numbers to one.
template <class T, class Op>
QUANTKV_INLINE T fold(const T* p, int n, Op op) {
  if (n % LANES) {
    T all = p[0];
    for (int i = 1; i < n; ++i) all = op(all, p[i]);
    return all;
  }
  T a[LANES];
  for (int l = 0; l < LANES; ++l) a[l] = p[l];
  for (int i = LANES; i < n; i += LANES)
    for (int l = 0; l < LANES; ++l) a[l] = op(a[l], p[i + l]);
  for (int l = 0; l < 8; ++l) a[l] = op(a[l], a[l + 8]);
  for (int l = 0; l < 4; ++l) a[l] = op(a[l], a[l + 4]);
  return op(op(a[0], a[1]), op(a[2], a[3]));
}

// The ranges of groups of `share` channels each; where all channels are one group, `n` counts the padding too.
static void fold_range(const Extremes& e, int groups, int share, bool both, float* low, float* high) {
  for (int g = 0; g < groups; ++g) {
    uint32_t top = fold(e.top + g * share, share, Most());
    high[g] = as_float(top);
    if (!both) continue;
    bool nan = top > INFINITE;
    low[g] = nan ? as_float(top) : fold(e.low + g * share, share, Least());
    high[g] = nan ? as_float(top) : fold(e.high + g * share, share, Most());
  }
}

// Scales and zeros of n groups as numbers and, in the format's dtype, in the page.
struct Metadata {
  float *scale, *zero;
  uint8_t *scale_at, *zero_at;
};

typedef uint16_t __attribute__((may_alias)) Stored16;
typedef uint32_t __attribute__((may_alias)) Stored32;

template <Float F>
QUANTKV_INLINE void put_stored(uint8_t* at, int64_t i, uint32_t bits) {
  if (F == Float::f32) reinterpret_cast<Stored32*>(at)[i] = bits;
  else reinterpret_cast<Stored16*>(at)[i] = uint16_t(bits);
}

template <Float F, bool OUTWARD>
QUANTKV_INLINE uint32_t scale_bits(float x) {
  if (OUTWARD) return finite_bits<F, Round::up>(x < smallest_scale(F) ? smallest_scale(F) : x);
  uint32_t bits = finite_bits<F, Round::nearest>(x);
  return (F == Float::f32 ? bits << 1 : bits << 17) == 0 ? stored_bits<F, Round::nearest>(1.0f) : bits;
}

// From smallest and largest elements.
template <Float F, bool OUTWARD>
static void affine_metadata(float steps, int64_t n, const float* __restrict low, const float* __restrict high,
                            const Metadata& m) {
  float *__restrict scale = m.scale, *__restrict zero = m.zero;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t z = finite_bits<F, OUTWARD ? Round::down : Round::nearest>(low[i]);
    zero[i] = stored_value<F>(z);
    put_stored<F>(m.zero_at, i, z);
    uint32_t s = scale_bits<F, OUTWARD>((high[i] - (OUTWARD ? zero[i] : low[i])) / steps);
    scale[i] = stored_value<F>(s);
    put_stored<F>(m.scale_at, i, s);
  }
}

// From largest magnitudes.
template <Float F, bool OUTWARD>
static void centred_metadata(float steps, int64_t n, const float* __restrict top, const Metadata& m) {
  float *__restrict scale = m.scale, *__restrict zero = m.zero;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t s = scale_bits<F, OUTWARD>(top[i] / steps);
    scale[i] = stored_value<F>(s);
    zero[i] = 0.0f;
    put_stored<F>(m.scale_at, i, s);
  }
}

// How many scales the largest magnitude, or the whole range, takes.
static inline float scale_steps(const Format& f) {
  if (f.code == Code::e4m3) return 448.0f;
  if (f.code == Code::e5m2) return 57344.0f;
  return float(f.has_zero ? (1 << f.bits) - 1 : (1 << (f.bits - 1)) - 1);
}

template <Float F>
static void metadata_as(const Format& f, int64_t n, const float* low, const float* high, const Metadata& m) {
  float steps = scale_steps(f);
  bool outward = f.outward || f.code != Code::affine;
  if (f.has_zero) {
    outward ? affine_metadata<F, true>(steps, n, low, high, m) : affine_metadata<F, false>(steps, n, low, high, m);
  } else {
    outward ? centred_metadata<F, true>(steps, n, high, m) : centred_metadata<F, false>(steps, n, high, m);
  }
}

static void make_metadata(const Format& f, int64_t n, const float* low, const float* high, const Metadata& m) {
  if (f.meta == Float::f32) return metadata_as<Float::f32>(f, n, low, high, m);
  return f.meta == Float::f16 ? metadata_as<Float::f16>(f, n, low, high, m)
                              : metadata_as<Float::bf16>(f, n, low, high, m);
}

// The numbers of a token's groups, one for each channel; what follows head_dim keeps what it has.
static void spread(const Format& f, const float* groups, float* channels) {
  int share = f.share_channels;
  if (share == 1) {
    std::memcpy(channels, groups, size_t(f.head_dim) * sizeof(float));
    return;
  }
  for (int g = 0; g < f.head_dim / share; ++g)
    for (int c = 0; c < share; ++c) channels[g * share + c] = groups[g];
}

}  // namespace QUANTKV_ISA
}  // namespace quantkv
