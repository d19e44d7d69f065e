// Runs of floats of any dtype.
#pragma once

#include "simd.h"

namespace quantkv {
namespace QUANTKV_ISA {

// n floats of any dtype to float32, without reading past them.
static inline void to_floats(Float type, const uint8_t* p, int64_t n, float* out) {
  int64_t whole = n / LANES * LANES, bytes = float_bytes(type);
  for (int64_t i = 0; i < whole; i += LANES) store(out + i, load_as(type, p + i * bytes));
  if (whole == n) return;
  uint8_t padded[64] = {};
  float x[LANES];
  std::memcpy(padded, p + whole * bytes, size_t((n - whole) * bytes));
  store(x, load_as(type, padded));
  std::memcpy(out + whole, x, size_t(n - whole) * sizeof(float));
}

}  // namespace QUANTKV_ISA
}  // namespace quantkv
