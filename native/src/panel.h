// The one inner loop: acc[m][lane] += sum over rows of a[m][row] * x[row][lane], for a few query rows m.
#pragma once

#include "loaders.h"

namespace quantkv {
namespace QUANTKV_ISA {

constexpr int QUERIES = 4;  // query rows that share one decoded vector

// Coefficients of a panel: query m's number for `row` is a[vector][m * stride + row]. GV neighbouring vectors share
// coefficients, and only the first one's are looked at.
struct Coefficients {
  const float* a[4];
  int64_t stride;
  int queries;

  Coefficients(const float* all, int64_t stride, int queries)
      : a{all, all, all, all}, stride(stride), queries(queries) {}
};

// Adds rows [r0, r1), multiples of the loader's step, to `acc` [M][NV].
using PanelFn = void (*)(const Source&, const Coefficients&, int r0, int r1, F16* acc);

// M query rows; 0 means as many as the coefficients say.
template <class Loader, int M, int NV, int GV>
void run_panel(const Source& source, const Coefficients& c, int r0, int r1, F16* out) {
  constexpr int NVP = NV < VECTORS ? NV : VECTORS;
  const Loader loader(source);
  const int queries = M ? M : c.queries;
  for (int first = 0; first < NV; first += NVP) {
    F16 acc[M ? M : QUERIES][NVP];
    for (int m = 0; m < queries; ++m)
      for (int v = 0; v < NVP; ++v) acc[m][v] = out[m * NV + first + v];
    for (int row = r0; row < r1; row += Loader::template rows<NV>()) {
      prefetch(source.scales + row * source.scale_bytes);
      prefetch(source.zeros + row * source.scale_bytes);
      loader.template step<NV, NVP>(row, first, [&](int r, const F16(&x)[NVP]) QUANTKV_LAMBDA {
QUANTKV_UNROLL(4)
        for (int g = 0; g < NVP; g += GV < NVP ? GV : NVP)
QUANTKV_UNROLL(4)
          for (int m = 0; m < queries; ++m) {
            F16 a = splat(c.a[first + g][m * c.stride + r]);
QUANTKV_UNROLL(4)
            for (int v = g; v < g + (GV < NVP ? GV : NVP); ++v) acc[m][v] = fma(a, x[v], acc[m][v]);
          }
      });
    }
    for (int m = 0; m < queries; ++m)
      for (int v = 0; v < NVP; ++v) out[m * NV + first + v] = acc[m][v];
  }
}

template <class Loader, int NV, int GV>
PanelFn for_queries(int m) {
#if defined(QUANTKV_ROLLED)
  return m ? run_panel<Loader, 0, NV, GV> : nullptr;
#endif
  switch (m) {
    case 1: return run_panel<Loader, 1, NV, GV>;
    case 2: return run_panel<Loader, 2, NV, GV>;
    case 3: return run_panel<Loader, 3, NV, GV>;
    default: return run_panel<Loader, 4, NV, GV>;
  }
}

// `shared`: how many neighbouring vectors take the same coefficients (a multiple of 4 counts as all).
template <class Loader>
PanelFn for_shape(int m, int vectors, int shared) {
  if (VECTORS == 1) shared = 1;  // one vector at a time: fewer functions, and the same work
  if (vectors == 1) return for_queries<Loader, 1, 1>(m);
  if (vectors == 2) return shared % 2 ? for_queries<Loader, 2, 1>(m) : for_queries<Loader, 2, 2>(m);
  if (shared % 2) return for_queries<Loader, 4, 1>(m);
  return shared % 4 ? for_queries<Loader, 4, 2>(m) : for_queries<Loader, 4, 4>(m);
}

// What decides how stored vectors are read.
struct Kind {
  Code code;
  Float value;
  int bits;
};
static inline Kind kind_of(const Format& f) { return {f.code, f.value, f.bits}; }
static inline Kind kind_of(Float value) { return {Code::raw, value, 0}; }

// The loop for codes of this kind; null where they must be decoded by `element` first.
static inline PanelFn panel_for(const Kind& f, int m, int vectors, int shared) {
  if (f.code == Code::raw) {
    if (f.value == Float::f32) return for_shape<LoadF32>(m, vectors, shared);
    return f.value == Float::f16 ? for_shape<LoadF16>(m, vectors, shared)
                                 : for_shape<LoadBF16>(m, vectors, shared);
  }
  if (f.code == Code::e4m3) return for_shape<LoadE4M3>(m, vectors, shared);
  if (f.code == Code::e5m2) return for_shape<LoadE5M2>(m, vectors, shared);
  if (f.code == Code::table && (f.bits != 1 && f.bits != 2 && f.bits != 4)) return nullptr;
  switch (f.bits) {
    case 1: return for_shape<Words<1, 0>>(m, vectors, shared);
    case 2: return for_shape<Words<2, 0>>(m, vectors, shared);
    case 3: return for_shape<Words<2, 1>>(m, vectors, shared);
    case 4: return for_shape<Words<4, 0>>(m, vectors, shared);
    case 5: return for_shape<Words<4, 1>>(m, vectors, shared);
    case 6: return for_shape<Words<4, 2>>(m, vectors, shared);
    case 8: return for_shape<LoadU8>(m, vectors, shared);
    default: return nullptr;
  }
}

// Rows that a loader takes at once for this format.
static inline int panel_step(const Format& f, int vectors) {
  int smallest = 32;
  for (const Plane& p : f.planes) smallest = p.bits < smallest ? p.bits : smallest;
  return smallest >= 8 ? 1 : 32 / smallest / vectors;
}

}  // namespace QUANTKV_ISA
}  // namespace quantkv
