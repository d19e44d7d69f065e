// How stored vectors become floats, one loader per kind of code. A loader yields the vectors of ROWS rows of a
// panel at a time: as many rows as share a block of its words.
#pragma once

#include <utility>

#include "simd.h"

namespace quantkv {
namespace QUANTKV_ISA {

// What a loader needs of one head's panel: where its planes begin, and the tables of their codes. `ahead` is how far
// the same place of the next page lies: it is fetched meanwhile, because processors do not foresee jumps.
struct Source {
  const uint8_t* plane[MAX_PLANES];
  int64_t ahead[MAX_PLANES];
  const float (*tables[MAX_PLANES])[4][16];  // of codes at bit 0, 1, 2 and 3 of a lookup's index
  int64_t row_bytes = 0;  // raw rows only: distance of two rows
  const uint8_t *scales = nullptr, *zeros = nullptr;  // to be fetched meanwhile, `scale_bytes` for each row
  int64_t scale_bytes = 0;
};

// Vectors that lie one after the other (8-bit codes and floats): BYTES each, read by READ.
template <F16 (*READ)(const uint8_t*), int BYTES>
struct Plain {
  const uint8_t* base;
  int64_t row_bytes, ahead;
  template <int NV>
  static constexpr int rows() { return 1; }

  explicit Plain(const Source& s) : base(s.plane[0]), row_bytes(s.row_bytes), ahead(s.ahead[0]) {}
  template <int NV, int NVP, class Use>
  QUANTKV_INLINE void step(int row, int first, Use&& use) const {
    F16 x[NVP];
    const uint8_t* p = base + row * row_bytes + first * BYTES;
    for (int line = 0; line < NVP * BYTES; line += 64) prefetch(p + ahead + line);
QUANTKV_UNROLL(4)
    for (int v = 0; v < NVP; ++v) x[v] = READ(p + v * BYTES);
    use(row, x);
  }
};

QUANTKV_INLINE F16 read_f32(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
QUANTKV_INLINE F16 read_f16(const uint8_t* p) { return load_f16(p); }
QUANTKV_INLINE F16 read_bf16(const uint8_t* p) { return load_bf16(p); }
QUANTKV_INLINE F16 read_u8(const uint8_t* p) { return load_u8(p); }
QUANTKV_INLINE F16 read_e4m3(const uint8_t* p) { return e4m3(p); }
QUANTKV_INLINE F16 read_e5m2(const uint8_t* p) { return e5m2(p); }

using LoadF32 = Plain<read_f32, 64>;
using LoadF16 = Plain<read_f16, 32>;
using LoadBF16 = Plain<read_bf16, 32>;
using LoadU8 = Plain<read_u8, 16>;
using LoadE4M3 = Plain<read_e4m3, 16>;
using LoadE5M2 = Plain<read_e5m2, 16>;

// The numbers of codes at any place of a word. The words are read from the byte on where a code lies, and a lookup
// that sees several codes at once has a table for each: most codes need no shift, which would keep the multipliers
// waiting.
template <int BITS>
struct Lookup {
  Table t[codes_seen<BITS>()];

  explicit Lookup(const float (&tables)[4][16]) : Lookup(tables, std::make_integer_sequence<int, codes_seen<BITS>()>()) {}
  template <int... PART>
  Lookup(const float (&tables)[4][16], std::integer_sequence<int, PART...>) : t{Table(tables[PART])...} {}

  // The code of each of 16 words at bit `shift`.
  QUANTKV_INLINE F16 at(const uint8_t* words, int shift) const {
    constexpr int SEEN = codes_seen<BITS>() * BITS;
    return lookup<BITS>(t[shift % 8 % SEEN / BITS], load_words(words + shift / 8), shift % 8 / SEEN * SEEN);
  }
};

// Codes below 8 bits in blocks of 16 words: B0 low bits, and B1 more in a second plane (0: none). The two planes'
// tables add up, which is how affine codes of 3, 5 and 6 bits are read. Up to 3 bytes behind a block are read.
template <int B0, int B1>
struct Words {
  const uint8_t *p0, *p1;
  int64_t ahead0, ahead1;
  Lookup<B0> t0;
  Lookup<B1 ? B1 : B0> t1;
  template <int NV>
  static constexpr int rows() { return 32 / (B1 && B1 < B0 ? B1 : B0) / NV; }

  explicit Words(const Source& s)
      : p0(s.plane[0]), p1(s.plane[B1 ? 1 : 0]), ahead0(s.ahead[0]), ahead1(s.ahead[B1 ? 1 : 0]), t0(*s.tables[0]),
        t1(*s.tables[B1 ? 1 : 0]) {}

  static QUANTKV_INLINE const uint8_t* block(const uint8_t* p, int64_t ahead, int64_t number) {
    prefetch(p + ahead + number * 64);
    return p + number * 64;
  }

  template <int NV, int NVP, class Use>
  QUANTKV_INLINE void step(int row, int first, Use&& use) const {
    constexpr int PER0 = 32 / B0 / NV, PER1 = B1 ? 32 / B1 / NV : 1;
    const uint8_t *w0 = p0, *w1 = p1;
QUANTKV_UNROLL(32)
    for (int r = 0; r < rows<NV>(); ++r) {
      if (r % PER0 == 0) w0 = block(p0, ahead0, (row + r) / PER0);
      if (B1 && r % PER1 == 0) w1 = block(p1, ahead1, (row + r) / PER1);
      F16 x[NVP];
QUANTKV_UNROLL(4)
      for (int v = 0; v < NVP; ++v) {
        x[v] = t0.at(w0, B0 * (r % PER0 * NV + first + v));
        if (B1) x[v] = x[v] + t1.at(w1, B1 * (r % PER1 * NV + first + v));
      }
      use(row + r, x);
    }
  }
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
