// Sixteen floats at a time, in as many registers as the instruction set at hand needs. Included once per
// instruction set, inside its own namespace, so that no two builds share a function.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "format.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define QUANTKV_INLINE inline __attribute__((always_inline))
#define QUANTKV_LAMBDA __attribute__((always_inline))
#define QUANTKV_PRAGMA(text) _Pragma(#text)
#if defined(QUANTKV_ROLLED)  // compiles many times faster, for builds that need not be fast
#define QUANTKV_UNROLL(n)
#else
#define QUANTKV_UNROLL(n) QUANTKV_PRAGMA(GCC unroll n)
#endif

namespace quantkv {
namespace QUANTKV_ISA {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

constexpr int VECTORS = 4;  // vectors that a pass over a panel keeps in registers, for each query row

struct F16 {
  __m512 v;
};
struct U16 {
  __m512i v;
};
QUANTKV_INLINE F16 splat(float x) { return {_mm512_set1_ps(x)}; }
QUANTKV_INLINE F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
QUANTKV_INLINE void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
QUANTKV_INLINE F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
QUANTKV_INLINE F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
QUANTKV_INLINE F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
QUANTKV_INLINE F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
QUANTKV_INLINE F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The second operand comes back where either is NaN: call it with the bound first and NaN survives.
QUANTKV_INLINE F16 at_least(F16 bound, F16 x) { return {_mm512_max_ps(bound.v, x.v)}; }
QUANTKV_INLINE F16 at_most(F16 bound, F16 x) { return {_mm512_min_ps(bound.v, x.v)}; }
QUANTKV_INLINE float sum(F16 a) { return _mm512_reduce_add_ps(a.v); }
QUANTKV_INLINE F16 round(F16 a) { return {_mm512_roundscale_ps(a.v, 0)}; }
QUANTKV_INLINE F16 times_power(F16 a, F16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
QUANTKV_INLINE F16 load_u8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
QUANTKV_INLINE F16 load_f16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
QUANTKV_INLINE F16 load_bf16(const void* p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
QUANTKV_INLINE F16 e5m2(const uint8_t* p) {
  __m256i half = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm512_cvtph_ps(_mm256_slli_epi16(half, 8))};
}
QUANTKV_INLINE F16 e4m3(const uint8_t* p) {  // as float16 with an exponent 8 too small; 0x7f and 0xff are NaN
  __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  __m256i low = _mm256_and_si256(code, _mm256_set1_epi16(0x7f));
  __m256i sign = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x80)), 8);
  __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(low, _mm256_set1_epi16(0x7f)), _mm256_set1_epi16(0x7fff));
  __m256i half = _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(low, 7), sign), nan);
  return {_mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f))};
}
QUANTKV_INLINE U16 load_words(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }

struct Table {  // sixteen numbers; fewer are repeated, so that higher bits of an index do no harm
  __m512 v;
  explicit Table(const float* t) : v(_mm512_loadu_ps(t)) {}
};
template <int BITS>
constexpr int codes_seen() { return 4 / BITS; }  // by one lookup, in the lowest bits of its index
template <int BITS>
QUANTKV_INLINE F16 lookup(const Table& t, U16 words, int shift) {
  return {_mm512_permutexvar_ps(shift ? _mm512_srli_epi32(words.v, unsigned(shift)) : words.v, t.v)};
}

// To the right; negative shifts go to the left.
QUANTKV_INLINE U16 shifted(U16 a, int shift) {
  return {shift > 0 ? _mm512_srli_epi32(a.v, unsigned(shift)) : shift < 0 ? _mm512_slli_epi32(a.v, unsigned(-shift)) : a.v};
}
// The bits of `a` that the mask names, the others of `b`.
QUANTKV_INLINE U16 joined(uint32_t mask, U16 a, U16 b) {
  return {_mm512_ternarylogic_epi32(_mm512_set1_epi32(int(mask)), a.v, b.v, 0xca)};
}

constexpr bool ANY_PLACE = true;  // tables have 16 numbers at least: smaller ones can be arranged for any bits of an index

// 2^BITS numbers, 16 to 64; higher bits of an index do no harm.
template <int BITS>
struct Numbers {
  __m512 v[1 << (BITS - 4)];
  explicit Numbers(const float* t) {
    for (int i = 0; i < 1 << (BITS - 4); ++i) v[i] = _mm512_loadu_ps(t + 16 * i);
  }
  QUANTKV_INLINE F16 at(U16 i) const {
    if (BITS == 4) return {_mm512_permutexvar_ps(i.v, v[0])};
    const __m512 low = _mm512_permutex2var_ps(v[0], i.v, v[BITS > 4]);
    if (BITS == 5) return {low};
    const __m512 high = _mm512_permutex2var_ps(v[BITS == 6 ? 2 : 0], i.v, v[BITS == 6 ? 3 : 0]);
    return {_mm512_mask_blend_ps(_mm512_test_epi32_mask(i.v, _mm512_set1_epi32(32)), low, high)};
  }
};

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

constexpr int VECTORS = 1;

struct F16 {
  __m256 a, b;
};
struct U16 {
  __m256i a, b;
};
QUANTKV_INLINE F16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
QUANTKV_INLINE F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
QUANTKV_INLINE void store(float* p, F16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
QUANTKV_INLINE F16 operator+(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
QUANTKV_INLINE F16 operator-(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
QUANTKV_INLINE F16 operator*(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
QUANTKV_INLINE F16 operator/(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
QUANTKV_INLINE F16 fma(F16 x, F16 y, F16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
QUANTKV_INLINE F16 at_least(F16 bound, F16 x) {
  return {_mm256_max_ps(bound.a, x.a), _mm256_max_ps(bound.b, x.b)};
}
QUANTKV_INLINE F16 at_most(F16 bound, F16 x) {
  return {_mm256_min_ps(bound.a, x.a), _mm256_min_ps(bound.b, x.b)};
}
QUANTKV_INLINE float sum(F16 x) {
  __m256 s = _mm256_add_ps(x.a, x.b);
  __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  t = _mm_add_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_add_ss(t, _mm_shuffle_ps(t, t, 1)));
}
QUANTKV_INLINE F16 round(F16 x) { return {_mm256_round_ps(x.a, 0), _mm256_round_ps(x.b, 0)}; }
QUANTKV_INLINE __m256 half_power(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
QUANTKV_INLINE __m256 times_power(__m256 a, __m256 n) {  // in two steps: 2^n alone may leave the normal range
  __m256i whole = _mm256_cvtps_epi32(n), low = _mm256_srai_epi32(whole, 1);
  return _mm256_mul_ps(_mm256_mul_ps(a, half_power(low)), half_power(_mm256_sub_epi32(whole, low)));
}
QUANTKV_INLINE F16 times_power(F16 x, F16 n) { return {times_power(x.a, n.a), times_power(x.b, n.b)}; }
QUANTKV_INLINE F16 load_u8(const uint8_t* p) {
  __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes)),
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8)))};
}
QUANTKV_INLINE F16 from_halves(__m256i h) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
QUANTKV_INLINE F16 load_f16(const void* p) {
  return from_halves(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
QUANTKV_INLINE F16 load_bf16(const void* p) {
  const __m128i* q = static_cast<const __m128i*>(p);
  auto widen = [](__m128i h) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  };
  return {widen(_mm_loadu_si128(q)), widen(_mm_loadu_si128(q + 1))};
}
QUANTKV_INLINE F16 e5m2(const uint8_t* p) {
  __m256i half = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return from_halves(_mm256_slli_epi16(half, 8));
}
QUANTKV_INLINE F16 e4m3(const uint8_t* p) {
  __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  __m256i low = _mm256_and_si256(code, _mm256_set1_epi16(0x7f));
  __m256i sign = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x80)), 8);
  __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(low, _mm256_set1_epi16(0x7f)), _mm256_set1_epi16(0x7fff));
  return from_halves(_mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(low, 7), sign), nan)) * splat(256.0f);
}
QUANTKV_INLINE U16 load_words(const uint8_t* p) {
  const __m256i* q = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}

struct Table {
  __m256 low, high;
  explicit Table(const float* t) : low(_mm256_loadu_ps(t)), high(_mm256_loadu_ps(t + 8)) {}
};
template <int BITS>
constexpr int codes_seen() { return 1; }
template <int BITS>
QUANTKV_INLINE __m256 lookup(const Table& t, __m256i words, int shift) {
  __m256i index = _mm256_srli_epi32(words, shift);
  __m256 low = _mm256_permutevar8x32_ps(t.low, index);
  if (BITS < 4) return low;
  __m256 high = _mm256_permutevar8x32_ps(t.high, index);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}
template <int BITS>
QUANTKV_INLINE F16 lookup(const Table& t, U16 words, int shift) {
  return {lookup<BITS>(t, words.a, shift), lookup<BITS>(t, words.b, shift)};
}

QUANTKV_INLINE __m256i shifted(__m256i a, int shift) {
  return shift > 0 ? _mm256_srli_epi32(a, shift) : shift < 0 ? _mm256_slli_epi32(a, -shift) : a;
}
QUANTKV_INLINE U16 shifted(U16 a, int shift) { return {shifted(a.a, shift), shifted(a.b, shift)}; }
QUANTKV_INLINE __m256i joined(__m256i mask, __m256i a, __m256i b) {
  return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}
QUANTKV_INLINE U16 joined(uint32_t mask, U16 a, U16 b) {
  const __m256i m = _mm256_set1_epi32(int(mask));
  return {joined(m, a.a, b.a), joined(m, a.b, b.b)};
}

constexpr bool ANY_PLACE = false;

template <int BITS>
struct Numbers {
  __m256 v[1 << (BITS - 3)];
  explicit Numbers(const float* t) {
    for (int i = 0; i < 1 << (BITS - 3); ++i) v[i] = _mm256_loadu_ps(t + 8 * i);
  }
  // Of 2^N numbers from v[from] on: the halves, and of them what bit N - 1 of the index says.
  template <int N>
  QUANTKV_INLINE __m256 part(int from, __m256i i) const {
    if constexpr (N == 3) {
      return _mm256_permutevar8x32_ps(v[from], i);
    } else {
      const __m256 low = part<N - 1>(from, i), high = part<N - 1>(from + (1 << (N - 4)), i);
      return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(i, 32 - N)));
    }
  }
  QUANTKV_INLINE F16 at(U16 i) const { return {part<BITS>(0, i.a), part<BITS>(0, i.b)}; }
};

#else

constexpr int VECTORS = 1;

typedef float f4 __attribute__((vector_size(16)));
typedef uint32_t u4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));
struct F16 {
  f4 v[4];
};
struct U16 {
  u4 v[4];
};
#define QUANTKV_EACH for (int i = 0; i < 4; ++i)
QUANTKV_INLINE F16 splat(float x) {
  f4 s = {x, x, x, x};
  return {{s, s, s, s}};
}
QUANTKV_INLINE F16 load(const float* p) {
  F16 r;
  std::memcpy(&r, p, 64);
  return r;
}
QUANTKV_INLINE void store(float* p, F16 a) { std::memcpy(p, &a, 64); }
QUANTKV_INLINE F16 operator+(F16 a, F16 b) {
  QUANTKV_EACH a.v[i] += b.v[i];
  return a;
}
QUANTKV_INLINE F16 operator-(F16 a, F16 b) {
  QUANTKV_EACH a.v[i] -= b.v[i];
  return a;
}
QUANTKV_INLINE F16 operator*(F16 a, F16 b) {
  QUANTKV_EACH a.v[i] *= b.v[i];
  return a;
}
QUANTKV_INLINE F16 operator/(F16 a, F16 b) {
  QUANTKV_EACH a.v[i] /= b.v[i];
  return a;
}
QUANTKV_INLINE F16 fma(F16 a, F16 b, F16 c) {
  QUANTKV_EACH c.v[i] += a.v[i] * b.v[i];
  return c;
}
QUANTKV_INLINE f4 pick(i4 where, f4 a, f4 b) { return (f4)(((i4)a & where) | ((i4)b & ~where)); }
QUANTKV_INLINE F16 at_least(F16 bound, F16 x) {
  QUANTKV_EACH x.v[i] = pick(x.v[i] < bound.v[i], bound.v[i], x.v[i]);
  return x;
}
QUANTKV_INLINE F16 at_most(F16 bound, F16 x) {
  QUANTKV_EACH x.v[i] = pick(x.v[i] > bound.v[i], bound.v[i], x.v[i]);
  return x;
}
QUANTKV_INLINE float sum(F16 a) {
  f4 s = (a.v[0] + a.v[1]) + (a.v[2] + a.v[3]);
  return (s[0] + s[2]) + (s[1] + s[3]);
}
QUANTKV_INLINE F16 round(F16 a) {  // to nearest even, for magnitudes below 2^22
  f4 magic = {12582912.0f, 12582912.0f, 12582912.0f, 12582912.0f};
  QUANTKV_EACH {
    volatile f4 shifted = a.v[i] + magic;  // the compiler must not cancel the two
    a.v[i] = shifted - magic;
  }
  return a;
}
QUANTKV_INLINE F16 times_power(F16 a, F16 n) {
  for (int i = 0; i < 4; ++i)
    for (int l = 0; l < 4; ++l) a.v[i][l] = std::ldexp(a.v[i][l], n.v[i][l] == n.v[i][l] ? int(n.v[i][l]) : 0);
  return a;
}
QUANTKV_INLINE float half_to_float(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 0x3ff;
  float magnitude = exponent ? 0.0f : float(fraction) * 5.9604644775390625e-8f;  // subnormal: fraction * 2^-24
  uint32_t bits;
  std::memcpy(&bits, &magnitude, 4);
  if (exponent) bits = ((exponent == 31 ? 255 : exponent + 112) << 23) | (fraction << 13);
  bits |= sign;
  std::memcpy(&magnitude, &bits, 4);
  return magnitude;
}
template <class F>
QUANTKV_INLINE F16 each_lane(F&& f) {
  F16 r;
  for (int l = 0; l < LANES; ++l) r.v[l / 4][l % 4] = f(l);
  return r;
}
QUANTKV_INLINE F16 load_u8(const uint8_t* p) {
  return each_lane([&](int l) { return float(p[l]); });
}
QUANTKV_INLINE F16 load_f16(const void* p) {
  uint16_t h[LANES];
  std::memcpy(h, p, sizeof h);
  return each_lane([&](int l) { return half_to_float(h[l]); });
}
QUANTKV_INLINE F16 load_bf16(const void* p) {
  uint16_t h[LANES];
  std::memcpy(h, p, sizeof h);
  U16 r;
  for (int l = 0; l < LANES; ++l) r.v[l / 4][l % 4] = uint32_t(h[l]) << 16;
  F16 f;
  std::memcpy(&f, &r, 64);
  return f;
}
QUANTKV_INLINE F16 e5m2(const uint8_t* p) {
  return each_lane([&](int l) { return half_to_float(uint16_t(p[l] << 8)); });
}
QUANTKV_INLINE F16 e4m3(const uint8_t* p) {
  return each_lane([&](int l) {
    int low = p[l] & 0x7f, sign = (p[l] & 0x80) << 8;
    return 256.0f * half_to_float(uint16_t(low == 0x7f ? sign | 0x7fff : sign | low << 7));
  });
}
QUANTKV_INLINE U16 load_words(const uint8_t* p) {
  U16 r;
  std::memcpy(&r, p, 64);
  return r;
}

struct Table {
  float t[16];
  explicit Table(const float* from) { std::memcpy(t, from, sizeof t); }
};
template <int BITS>
constexpr int codes_seen() { return 1; }
template <int BITS>
QUANTKV_INLINE F16 lookup(const Table& t, U16 words, int shift) {
  return each_lane([&](int l) { return t.t[(words.v[l / 4][l % 4] >> shift) & ((1 << BITS) - 1)]; });
}

QUANTKV_INLINE U16 shifted(U16 a, int shift) {
  QUANTKV_EACH a.v[i] = shift > 0 ? a.v[i] >> shift : a.v[i] << -shift;
  return a;
}
QUANTKV_INLINE U16 joined(uint32_t mask, U16 a, U16 b) {
  QUANTKV_EACH a.v[i] = (a.v[i] & mask) | (b.v[i] & ~mask);
  return a;
}

constexpr bool ANY_PLACE = false;

template <int BITS>
struct Numbers {
  const float* t;
  explicit Numbers(const float* t) : t(t) {}
  QUANTKV_INLINE F16 at(U16 i) const {
    return each_lane([&](int l) { return t[i.v[l / 4][l % 4] & ((1 << BITS) - 1)]; });
  }
};

#endif

// Round to nearest even, as torch does.
QUANTKV_INLINE uint16_t float_to_bfloat(uint32_t bits) {
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

QUANTKV_INLINE uint16_t float_to_half(float x) {
#if defined(__F16C__)
  return uint16_t(_cvtss_sh(x, 0));
#else
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return uint16_t(sign | 0x7e00);
  if (bits >= 0x477ff000) return uint16_t(sign | 0x7c00);
  if (bits < 0x38800000) {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
    std::memcpy(&x, &bits, 4);
    x += 0.5f;
    std::memcpy(&bits, &x, 4);
    return uint16_t(sign | (bits - 0x3f000000));
  }
  return uint16_t(sign | ((bits + 0xfff + ((bits >> 13) & 1) - (112u << 23)) >> 13));
#endif
}

// A hint: any address will do. Into the second cache, because a page ahead is as much as the first one holds.
QUANTKV_INLINE void prefetch(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }

QUANTKV_INLINE float max_of(F16 a) {
  float x[LANES], top;
  store(x, a);
  top = x[0];
  for (int l = 1; l < LANES; ++l) top = x[l] > top ? x[l] : top;
  return top;
}

// e^x with a relative error of about 1e-7; 0 below -104, infinite above 88.8, NaN stays NaN.
QUANTKV_INLINE F16 exp(F16 x) {
  x = at_most(splat(128.0f), at_least(splat(-104.0f), x));
  F16 n = round(x * splat(1.44269504f));
  F16 r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  F16 p = splat(1.9875691e-4f);
  p = fma(p, r, splat(1.3981999e-3f));
  p = fma(p, r, splat(8.3334519e-3f));
  p = fma(p, r, splat(4.1665796e-2f));
  p = fma(p, r, splat(1.6666665e-1f));
  p = fma(p, r, splat(0.5f));
  p = fma(p * r, r, r + splat(1.0f));
  return times_power(p, n);
}

QUANTKV_INLINE F16 tanh(F16 x) {
  F16 e = exp(x + x);
  return splat(1.0f) - splat(2.0f) / (e + splat(1.0f));
}

QUANTKV_INLINE F16 load_as(Float type, const void* p) {
  if (type == Float::f32) return load(static_cast<const float*>(p));
  return type == Float::f16 ? load_f16(p) : load_bf16(p);
}

}  // namespace QUANTKV_ISA
}  // namespace quantkv
