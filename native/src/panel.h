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

template <class Loader>
struct LoadedBy {
  using type = Loader;
};

// use(LoadedBy<the loader of this kind>()); null where codes must be decoded by `element` first.
template <class Use>
auto with_loader(const Kind& f, Use&& use) -> decltype(use(LoadedBy<LoadF32>())) {
  if (f.code == Code::raw) {
    if (f.value == Float::f32) return use(LoadedBy<LoadF32>());
    return f.value == Float::f16 ? use(LoadedBy<LoadF16>()) : use(LoadedBy<LoadBF16>());
  }
  if (f.code == Code::e4m3) return use(LoadedBy<LoadE4M3>());
  if (f.code == Code::e5m2) return use(LoadedBy<LoadE5M2>());
  const bool table = f.code == Code::table;
  switch (f.bits) {
    case 1: return use(LoadedBy<Words<1, 0>>());
    case 2: return use(LoadedBy<Words<2, 0>>());
    case 3: return table ? use(LoadedBy<Joined<2, 1>>()) : use(LoadedBy<Words<2, 1>>());
    case 4: return use(LoadedBy<Words<4, 0>>());
    case 5: return table ? use(LoadedBy<Joined<4, 1>>()) : use(LoadedBy<Words<4, 1>>());
    case 6: return table ? use(LoadedBy<Joined<4, 2>>()) : use(LoadedBy<Words<4, 2>>());
    case 7: return table ? nullptr : use(LoadedBy<Words<4, 2, 1>>());
    case 8: return table ? nullptr : use(LoadedBy<LoadU8>());
    default: return nullptr;
  }
}

static inline PanelFn panel_for(const Kind& f, int m, int vectors, int shared) {
  return with_loader(f, [&](auto by) { return for_shape<typename decltype(by)::type>(m, vectors, shared); });
}

// How the numbers of a key tile's codes become its elements. Of lanes: code * scale[lane] + (zero[lane] +
// plus[0][row]); of rows: code * by[vector][row] + plus[vector][row].
struct Spread {
  const float *scale = nullptr, *zero = nullptr;  // [64]
  const float *by[4] = {}, *plus[4] = {};
};

// Rows [r0, r1) of a key tile, multiples of the loader's step, to [row][64] floats.
using SpreadFn = void (*)(const Source&, const Spread&, int r0, int r1, float* tile);

template <class Loader, bool OF_LANES>
void spread_panel(const Source& source, const Spread& by, int r0, int r1, float* tile) {
  const Loader loader(source);
  for (int first = 0; first < 4; first += VECTORS) {
    F16 scale[VECTORS], zero[VECTORS];
    for (int v = 0; v < VECTORS && OF_LANES; ++v) {
      scale[v] = load(by.scale + (first + v) * LANES);
      zero[v] = load(by.zero + (first + v) * LANES);
    }
    for (int row = r0; row < r1; row += Loader::template rows<4>())
      loader.template step<4, VECTORS>(row, first, [&](int r, const F16(&x)[VECTORS]) QUANTKV_LAMBDA {
        float* to = tile + r * TILE + first * LANES;
QUANTKV_UNROLL(4)
        for (int v = 0; v < VECTORS; ++v) {
          const F16 plus = splat(by.plus[OF_LANES ? 0 : first + v][r]);
          const F16 number = OF_LANES ? fma(x[v], scale[v], zero[v] + plus) : fma(x[v], splat(by.by[first + v][r]), plus);
          store(to + v * LANES, number);
        }
      });
  }
}

// Where scales are those of tokens, `of_lanes`, or of channels.
static inline SpreadFn spread_for(const Kind& f, bool of_lanes) {
  return with_loader(f, [&](auto by) -> SpreadFn {
    using Loader = typename decltype(by)::type;
    return of_lanes ? spread_panel<Loader, true> : spread_panel<Loader, false>;
  });
}

// Rows that a loader takes at once for this format.
static inline int panel_step(const Format& f, int vectors) {
  int smallest = 32;
  for (const Plane& p : f.planes) smallest = p.bits < smallest ? p.bits : smallest;
  return smallest >= 8 ? 1 : 32 / smallest / vectors;
}

}  // namespace QUANTKV_ISA
}  // namespace quantkv
