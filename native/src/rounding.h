// Numbers to their stored bits, exactly as PyTorch and the codecs round them. Everything is free of branches and
// works on one number, so that a compiler turns a loop over many into vector code.
#pragma once

#include <cfloat>

#include "simd.h"

namespace quantkv {
namespace QUANTKV_ISA {

constexpr uint32_t INFINITE = 0x7f800000;  // bits of infinity; those of NaN, without the sign, are above

QUANTKV_INLINE uint32_t as_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}

QUANTKV_INLINE float as_float(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

// NaN fails both comparisons and passes through, as in torch.clamp.
QUANTKV_INLINE float clamp(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

constexpr float largest(Float f) { return f == Float::f16 ? 65504.0f : f == Float::bf16 ? 0x1.fep127f : FLT_MAX; }

// The smallest scale: float16 has subnormals down to it, the others need none.
constexpr float smallest_scale(Float f) { return f == Float::f16 ? 0x1p-24f : 0x1p-126f; }

enum class Round { nearest, down, up };

// What to add to a magnitude before its low `drop` bits are cut off. Rounding down takes positive numbers towards
// zero and negative ones away from it.
template <Round R>
QUANTKV_INLINE uint32_t rounding_bias(uint32_t magnitude, uint32_t sign, int drop) {
  uint32_t low = (1u << drop) - 1;
  if (R == Round::nearest) return (low >> 1) + ((magnitude >> drop) & 1);
  return sign == (R == Round::down ? 1u : 0u) ? low : 0u;
}

// Float16 magnitudes below 2^-14, in steps of 2^-24.
template <Round R>
QUANTKV_INLINE uint32_t half_subnormal(float magnitude, uint32_t sign) {
  if (R == Round::nearest) return as_bits(magnitude + 0.5f) - 0x3f000000u;
  float steps = magnitude * 0x1p24f;
  uint32_t whole = uint32_t(int32_t(steps));
  uint32_t away = sign == (R == Round::down ? 1u : 0u) ? 1u : 0u;
  return whole + (float(int32_t(whole)) < steps ? away : 0u);
}

// The bits of x in a dtype that holds it rounded to nearest even, or to the next number below or above.
template <Float F, Round R>
QUANTKV_INLINE uint32_t stored_bits(float x) {
  uint32_t bits = as_bits(x), sign = bits >> 31, magnitude = bits & 0x7fffffffu;
  if (F == Float::f32) return bits;
  constexpr int drop = F == Float::f16 ? 13 : 16;
  constexpr uint32_t rebias = F == Float::f16 ? 112u << 23 : 0u, normal = 113u << 23;
  uint32_t stored = (magnitude + rounding_bias<R>(magnitude, sign, drop) - rebias) >> drop;
  if (F == Float::f16) {
    uint32_t small = half_subnormal<R>(as_float(magnitude < normal ? magnitude : 0u), sign);
    stored = magnitude < normal ? small : stored;
  }
  stored = magnitude > INFINITE ? (F == Float::f16 ? 0x7e00u : 0x7fc0u) : stored;
  return sign << 15 | stored;
}

// As stored_bits, with what lies beyond the finite range at its end.
template <Float F, Round R>
QUANTKV_INLINE uint32_t finite_bits(float x) {
  return stored_bits<F, R>(clamp(x, -largest(F), largest(F)));
}

template <Float F>
QUANTKV_INLINE float stored_value(uint32_t stored) {
  if (F == Float::f32) return as_float(stored);
  if (F == Float::bf16) return as_float(stored << 16);
  uint32_t magnitude = stored & 0x7fffu;
  uint32_t normal = (magnitude << 13) + (magnitude > 0x7bffu ? 224u << 23 : 112u << 23);
  float small = float(int32_t(magnitude)) * 0x1p-24f;
  return as_float((magnitude < 0x400u ? as_bits(small) : normal) | (stored & 0x8000u) << 16);
}

// torch's cast to float8_e4m3fn for numbers within +-448. Adding 2^14 aligns a subnormal's last bit with that of a
// float32, so the processor rounds it.
QUANTKV_INLINE uint8_t to_e4m3(float x) {
  uint32_t bits = as_bits(x), magnitude = bits & 0x7fffffffu;
  uint32_t small = as_bits(as_float(magnitude < 121u << 23 ? magnitude : 0u) + 0x1p14f) - as_bits(0x1p14f);
  uint32_t normal = (magnitude - (120u << 23) + 0x7ffffu + ((magnitude >> 20) & 1)) >> 20;
  uint32_t code = magnitude > INFINITE ? 0x7fu : magnitude < 121u << 23 ? small : normal;
  return uint8_t(code | (bits >> 24 & 0x80u));
}

// The same for float8_e5m2, within +-57344.
QUANTKV_INLINE uint8_t to_e5m2(float x) {
  uint32_t bits = as_bits(x), magnitude = bits & 0x7fffffffu;
  uint32_t small = as_bits(as_float(magnitude < 113u << 23 ? magnitude : 0u) + 0x1p7f) - as_bits(0x1p7f);
  uint32_t normal = (magnitude - (112u << 23) + 0xfffffu + ((magnitude >> 21) & 1)) >> 21;
  uint32_t code = magnitude > INFINITE ? 0x7fu : magnitude < 113u << 23 ? small : normal;
  return uint8_t(code | (bits >> 24 & 0x80u));
}

}  // namespace QUANTKV_ISA
}  // namespace quantkv
