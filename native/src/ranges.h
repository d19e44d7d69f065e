// Smallest and largest elements of groups, and the scales and zeros made from them.
#pragma once

#include "rounding.h"

namespace quantkv {
namespace QUANTKV_ISA {

QUANTKV_INLINE float least_of(F16 x) {
#if defined(__AVX512F__)
  return _mm512_reduce_min_ps(x.v);
#else
  float a[LANES];
  store(a, x);
  for (int half = LANES / 2; half; half /= 2)
    for (int l = 0; l < half; ++l) a[l] = a[l + half] < a[l] ? a[l + half] : a[l];
  return a[0];
#endif
}

QUANTKV_INLINE float greatest_of(F16 x) { return -least_of(splat(0.0f) - x); }

// Smallest and largest so far, channel by channel. Comparisons lose NaN, but a sum keeps it; a sum of infinities may
// be NaN too, so it only tells where to look.
struct Extremes {
  float *low, *high, *sum;
};

// n is a multiple of 16, here and below.
static void begin_range(const Extremes& e, const float* x, int n) {
  for (float* to : {e.low, e.high, e.sum}) std::memcpy(to, x, size_t(n) * sizeof(float));
}

static void widen_range(const Extremes& e, const float* x, int n) {
  for (int i = 0; i < n; i += LANES) {
    F16 v = load(x + i);
    store(e.low + i, at_most(v, load(e.low + i)));
    store(e.high + i, at_least(v, load(e.high + i)));
    store(e.sum + i, v + load(e.sum + i));
  }
}

struct Range {
  float low, high, sum;
};

// The range of `n` channels from `at` on.
QUANTKV_INLINE Range whole_range(const Extremes& e, int at, int n) {
  if (n % LANES == 0) {
    F16 low = load(e.low + at), high = load(e.high + at), all = load(e.sum + at);
    for (int i = at + LANES; i < at + n; i += LANES) {
      low = at_most(load(e.low + i), low);
      high = at_least(load(e.high + i), high);
      all = all + load(e.sum + i);
    }
    return {least_of(low), greatest_of(high), sum(all)};
  }
  Range r{e.low[at], e.high[at], e.sum[at]};
  for (int i = at + 1; i < at + n; ++i) {
    r.low = e.low[i] < r.low ? e.low[i] : r.low;
    r.high = e.high[i] > r.high ? e.high[i] : r.high;
    r.sum += e.sum[i];
  }
  return r;
}

// Scales and zeros of n groups as numbers and, in the format's dtype, in the page.
struct Metadata {
  float *scale, *zero;
  uint8_t *scale_at, *zero_at;
};

typedef uint16_t __attribute__((may_alias)) Stored16;
typedef uint32_t __attribute__((may_alias)) Stored32;
template <Float F>
struct StoredAs {
  using type = Stored16;
};
template <>
struct StoredAs<Float::f32> {
  using type = Stored32;
};

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
  using Bits = typename StoredAs<F>::type;
  float *__restrict scale = m.scale, *__restrict zero = m.zero;
  Bits* __restrict scale_at = reinterpret_cast<Bits*>(m.scale_at);
  Bits* __restrict zero_at = reinterpret_cast<Bits*>(m.zero_at);
  for (int64_t i = 0; i < n; ++i) {
    uint32_t z = finite_bits<F, OUTWARD ? Round::down : Round::nearest>(low[i]);
    float from = stored_value<F>(z);
    uint32_t s = scale_bits<F, OUTWARD>((high[i] - (OUTWARD ? from : low[i])) / steps);
    zero[i] = from;
    zero_at[i] = Bits(z);
    scale[i] = stored_value<F>(s);
    scale_at[i] = Bits(s);
  }
}

// From smallest and largest elements, of which the larger magnitude counts.
template <Float F, bool OUTWARD>
static void centred_metadata(float steps, float unit, int64_t n, const float* __restrict low, const float* __restrict high,
                             const Metadata& m) {
  using Bits = typename StoredAs<F>::type;
  float *__restrict scale = m.scale, *__restrict zero = m.zero;
  Bits* __restrict scale_at = reinterpret_cast<Bits*>(m.scale_at);
  for (int64_t i = 0; i < n; ++i) {
    float top = high[i] < -low[i] ? -low[i] : high[i];
    uint32_t s = scale_bits<F, OUTWARD>(top / steps);
    scale[i] = stored_value<F>(s) * unit;
    zero[i] = 0.0f;
    scale_at[i] = Bits(s);
  }
}

// How many scales the largest magnitude, or the whole range, takes.
static inline float scale_steps(const Format& f) {
  if (f.unit != 1.0f) return 1.0f;  // the magnitude itself is stored
  return float(f.has_zero ? (1 << f.bits) - 1 : (1 << (f.bits - 1)) - 1);
}

template <Float F>
static void metadata_as(const Format& f, int64_t n, const float* low, const float* high, const Metadata& m) {
  float steps = scale_steps(f);
  bool outward = f.outward || f.code != Code::affine;
  if (f.has_zero) {
    outward ? affine_metadata<F, true>(steps, n, low, high, m) : affine_metadata<F, false>(steps, n, low, high, m);
  } else {
    outward ? centred_metadata<F, true>(steps, f.unit, n, low, high, m)
            : centred_metadata<F, false>(steps, f.unit, n, low, high, m);
  }
}

static void make_metadata(const Format& f, int64_t n, const float* low, const float* high, const Metadata& m) {
  if (f.meta == Float::f32) return metadata_as<Float::f32>(f, n, low, high, m);
  return f.meta == Float::f16 ? metadata_as<Float::f16>(f, n, low, high, m)
                              : metadata_as<Float::bf16>(f, n, low, high, m);
}

// The numbers of a token's groups, one for each channel; what follows head_dim is anything.
static void spread(const Format& f, const float* groups, float* channels) {
  int share = f.share_channels;
  if (share == 1) {
    std::memcpy(channels, groups, size_t(f.head_dim) * sizeof(float));
  } else if (share == f.head_dim || share % LANES == 0) {
    for (int c = 0; c < f.head_dim; c += LANES) store(channels + c, splat(groups[c / share]));
  } else {
    for (int g = 0; g < f.head_dim / share; ++g)
      for (int c = 0; c < share; ++c) channels[g * share + c] = groups[g];
  }
}

}  // namespace QUANTKV_ISA
}  // namespace quantkv
