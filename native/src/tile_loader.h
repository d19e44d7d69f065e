// The numbers of a tile of key codes, stored as floats: [channels][64].
#pragma once

#include "panel.h"

namespace quantkv {
namespace QUANTKV_ISA {

// Rows [0, rows) of a panel, and as many more as the loader takes at once.
using StoreFn = void (*)(const Source&, int rows, float* out);

template <class Loader>
void store_rows(const Source& source, int rows, float* out) {
  constexpr int NVP = 4 < VECTORS ? 4 : VECTORS;
  const Loader loader(source);
  for (int first = 0; first < 4; first += NVP)
    for (int row = 0; row < rows; row += Loader::template rows<4>())
      loader.template step<4, NVP>(row, first, [&](int r, const F16(&x)[NVP]) QUANTKV_LAMBDA {
QUANTKV_UNROLL(4)
        for (int v = 0; v < NVP; ++v) store(out + r * TILE + (first + v) * LANES, x[v]);
      });
}

// For codes that a panel's loop can read.
static inline StoreFn store_for(const Kind& f) {
  if (f.code == Code::raw) {
    if (f.value == Float::f32) return store_rows<LoadF32>;
    return f.value == Float::f16 ? store_rows<LoadF16> : store_rows<LoadBF16>;
  }
  if (f.code == Code::e4m3) return store_rows<LoadE4M3>;
  if (f.code == Code::e5m2) return store_rows<LoadE5M2>;
  switch (f.bits) {
    case 1: return store_rows<Words<1, 0>>;
    case 2: return store_rows<Words<2, 0>>;
    case 3: return store_rows<Words<2, 1>>;
    case 4: return store_rows<Words<4, 0>>;
    case 5: return store_rows<Words<4, 1>>;
    case 6: return store_rows<Words<4, 2>>;
    default: return store_rows<LoadU8>;
  }
}

}  // namespace QUANTKV_ISA
}  // namespace quantkv
