// How stored vectors become floats, one loader per kind of code. A loader yields the vectors of ROWS rows of a
// panel at a time: as many rows as share a block of its words.
#pragma once

#include <type_traits>
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
  const float (*joined)[64] = nullptr;       // of whole codes, two arrangements of them below 4 bits
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

// use(0), use(1) ... as constants: compilers leave loops with so much inside rolled, and shifts would be counted anew.
template <class Use, int... I>
QUANTKV_INLINE void each_of(std::integer_sequence<int, I...>, Use&& use) {
  (use(std::integral_constant<int, I>()), ...);
}
template <int N, class Use>
QUANTKV_INLINE void each_row(Use&& use) {
#if defined(QUANTKV_ROLLED) || !defined(__AVX2__)  // lanes looked up one by one: much code, and no shift saved
  for (int i = 0; i < N; ++i) use(i);
#else
  each_of(std::make_integer_sequence<int, N>(), use);
#endif
}

// One plane's blocks of 16 words, BITS of a vector in each; 0: there is no such plane.
template <int BITS, int NV>
struct Blocks {
  static constexpr int PER = BITS ? 32 / BITS / NV : 1;  // rows that share a block
  const uint8_t *base, *words = nullptr;
  int64_t ahead;

  Blocks(const Source& s, int plane) : base(s.plane[BITS ? plane : 0]), ahead(s.ahead[BITS ? plane : 0]) {}
  QUANTKV_INLINE void enter(int row, int r) {
    if (!BITS || r % PER) return;
    words = base + int64_t((row + r) / PER) * 64;
    prefetch(words + ahead);
  }
  static constexpr int bit(int r, int v) { return BITS * (r % PER * NV + v); }
};

// Codes below 8 bits in blocks of 16 words: B0 low bits, and B1 and B2 more in further planes (0: none). The planes'
// tables add up, which is how affine codes of 5, 6 and 7 bits are read. Up to 3 bytes behind a block are read.
template <int B0, int B1, int B2 = 0>
struct Words {
  const Source& source;
  Lookup<B0> t0;
  Lookup<B1 ? B1 : B0> t1;
  Lookup<B2 ? B2 : B0> t2;
  template <int NV>
  static constexpr int rows() { return 32 / (B2 ? B2 : B1 ? B1 : B0) / NV; }

  explicit Words(const Source& s) : source(s), t0(*s.tables[0]), t1(*s.tables[B1 ? 1 : 0]), t2(*s.tables[B2 ? 2 : 0]) {}

  template <int NV, int NVP, class Use>
  QUANTKV_INLINE void step(int row, int first, Use&& use) const {
    Blocks<B0, NV> b0(source, 0);
    Blocks<B1, NV> b1(source, 1);
    Blocks<B2, NV> b2(source, 2);
    each_row<rows<NV>()>([&](auto r) QUANTKV_LAMBDA {
      b0.enter(row, r);
      b1.enter(row, r);
      b2.enter(row, r);
      F16 x[NVP];
QUANTKV_UNROLL(4)
      for (int v = 0; v < NVP; ++v) {
        x[v] = t0.at(b0.words, b0.bit(r, first + v));
        if (B1) x[v] = x[v] + t1.at(b1.words, b1.bit(r, first + v));
        if (B2) x[v] = x[v] + t2.at(b2.words, b2.bit(r, first + v));
      }
      use(row + r, x);
    });
  }
};

// Where the two planes' bits of a code lie in the index of a lookup. Below 4 bits a vector whose low bits lie at bit 2
// of a byte is looked up there, without a shift, in a table arranged for it.
struct Arrangement {
  int low, high;
};
constexpr Arrangement arranged(int low_bits, int number) {
  return number ? Arrangement{low_bits, low_bits - 1} : Arrangement{0, low_bits};
}

// Codes of two planes, joined before one lookup: numbers that are no sum of the planes' own.
template <int B0, int B1>
struct Joined {
  static constexpr int BITS = ANY_PLACE && B0 + B1 < 4 ? 4 : B0 + B1, WAYS = ANY_PLACE && B0 + B1 < 4 ? 2 : 1;
  const Source& source;
  Numbers<BITS> numbers[2];
  template <int NV>
  static constexpr int rows() { return 32 / B1 / NV; }

  explicit Joined(const Source& s) : source(s), numbers{Numbers<BITS>(s.joined[0]), Numbers<BITS>(s.joined[WAYS - 1])} {}

  static QUANTKV_INLINE U16 at_bit(const uint8_t* words, int bit, int to) {
    return shifted(load_words(words + bit / 8), bit % 8 - to);
  }

  // Of a code whose parts lie at these bits of the two blocks.
  QUANTKV_INLINE F16 number(const uint8_t* low, int low_bit, const uint8_t* high, int high_bit) const {
    const int way = WAYS == 2 ? low_bit % (2 * B0) / B0 : 0;
    const Arrangement a = arranged(B0, way);
    return numbers[way].at(joined(((1u << B0) - 1) << a.low, at_bit(low, low_bit, a.low), at_bit(high, high_bit, a.high)));
  }

  template <int NV, int NVP, class Use>
  QUANTKV_INLINE void step(int row, int first, Use&& use) const {
    Blocks<B0, NV> low(source, 0);
    Blocks<B1, NV> high(source, 1);
    each_row<rows<NV>()>([&](auto r) QUANTKV_LAMBDA {
      low.enter(row, r);
      high.enter(row, r);
      F16 x[NVP];
QUANTKV_UNROLL(4)
      for (int v = 0; v < NVP; ++v)
        x[v] = number(low.words, low.bit(r, first + v), high.words, high.bit(r, first + v));
      use(row + r, x);
    });
  }
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
