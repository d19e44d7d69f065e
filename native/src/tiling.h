// Codes of 64 tokens of one head to their places in a page and back. In between, codes lie one byte each, a panel's
// row after the other.
#pragma once

#include "simd.h"

namespace quantkv {
namespace QUANTKV_ISA {

// Where the tile of 64 tokens from `token` on begins in a panel of a plane.
static inline int64_t tile_offset(const Format& f, const Plane& plane, int head, const Panel& panel, int token) {
  int64_t at = plane.offset + head * plane.head_bytes + panel_offset(panel, plane.bits);
  return f.lanes_are_tokens ? at : at + int64_t(token) * panel.vectors * LANES * plane.bits / 8;
}

// The words of one block from rows of NV vectors of codes, `stride` bytes apart.
template <int BITS, int NV>
QUANTKV_INLINE void gather_block(const uint8_t* src, int64_t stride, int shift, uint32_t* word) {
  constexpr int ROWS = 32 / BITS / NV;
  for (int l = 0; l < LANES; ++l) word[l] = 0;
QUANTKV_UNROLL(32)
  for (int r = 0; r < ROWS; ++r)
QUANTKV_UNROLL(4)
    for (int v = 0; v < NV; ++v)
      for (int l = 0; l < LANES; ++l)
        word[l] |= (uint32_t(src[r * stride + v * LANES + l]) >> shift & ((1u << BITS) - 1)) << (BITS * (r * NV + v));
}

// Bits of a word that rows [first, last) of its block fill.
QUANTKV_INLINE uint32_t row_bits(int bits_per_row, int first, int last) {
  return uint32_t((uint64_t(1) << (bits_per_row * last)) - (uint64_t(1) << (bits_per_row * first)));
}

// Rows [row0, row1) of a tile into its words. Bits of other rows stay, as do those outside `lanes`, one word per
// lane, where that is given.
template <int BITS, int NV>
static void pack_rows(uint8_t* tile, const uint8_t* src, int64_t stride, int row0, int row1, int shift,
                      const uint32_t* lanes) {
  constexpr int ROWS = 32 / BITS / NV;
  for (int low = row0 / ROWS * ROWS; low < row1; low += ROWS) {
    uint32_t word[LANES], old[LANES];
    uint8_t* at = tile + low / ROWS * 64;
    gather_block<BITS, NV>(src + low * stride, stride, shift, word);
    if (lanes || low < row0 || low + ROWS > row1) {
      int first = low < row0 ? row0 - low : 0, last = low + ROWS > row1 ? row1 - low : ROWS;
      uint32_t rows = row_bits(BITS * NV, first, last);
      std::memcpy(old, at, sizeof old);
      for (int l = 0; l < LANES; ++l) {
        uint32_t mask = lanes ? rows & lanes[l] : rows;
        word[l] = (word[l] & mask) | (old[l] & ~mask);
      }
    }
    std::memcpy(at, word, sizeof word);
  }
}

// The inverse; codes of the planes before this one are kept where `shift` is not 0.
template <int BITS, int NV>
static void unpack_rows(const uint8_t* tile, uint8_t* dst, int64_t stride, int row0, int row1, int shift) {
  constexpr int ROWS = 32 / BITS / NV;
  for (int row = row0; row < row1; ++row) {
    uint32_t word[LANES];
    std::memcpy(word, tile + row / ROWS * 64, sizeof word);
    for (int v = 0; v < NV; ++v) {
      uint8_t* to = dst + row * stride + v * LANES;
      int at = BITS * (row % ROWS * NV + v);
      for (int l = 0; l < LANES; ++l) {
        uint8_t code = uint8_t((word[l] >> at & ((1u << BITS) - 1)) << shift);
        to[l] = shift ? uint8_t(to[l] | code) : code;
      }
    }
  }
}

using PackFn = void (*)(uint8_t*, const uint8_t*, int64_t, int, int, int, const uint32_t*);
using UnpackFn = void (*)(const uint8_t*, uint8_t*, int64_t, int, int, int);

static inline PackFn pack_for(int bits, int vectors) {
  static constexpr PackFn all[3][3] = {{pack_rows<1, 1>, pack_rows<1, 2>, pack_rows<1, 4>},
                                       {pack_rows<2, 1>, pack_rows<2, 2>, pack_rows<2, 4>},
                                       {pack_rows<4, 1>, pack_rows<4, 2>, pack_rows<4, 4>}};
  return all[bits / 2][vectors / 2];
}

static inline UnpackFn unpack_for(int bits, int vectors) {
  static constexpr UnpackFn all[3][3] = {{unpack_rows<1, 1>, unpack_rows<1, 2>, unpack_rows<1, 4>},
                                         {unpack_rows<2, 1>, unpack_rows<2, 2>, unpack_rows<2, 4>},
                                         {unpack_rows<4, 1>, unpack_rows<4, 2>, unpack_rows<4, 4>}};
  return all[bits / 2][vectors / 2];
}

// Every bit of the words of lanes that tokens [low, high) of a key tile fill: four vectors of 16 tokens to a channel.
static inline void token_lanes(int bits, int low, int high, uint32_t* lanes) {
  for (int l = 0; l < LANES; ++l) {
    uint32_t mask = 0;
    for (int at = 0; at < 32 / bits; ++at) {
      int token = at % 4 * LANES + l;
      if (token >= low && token < high) mask |= ((1u << bits) - 1) << (bits * at);
    }
    lanes[l] = mask;
  }
}

// A block of 16 x 16 bytes with rows and columns changed.
static inline void transpose_block(const uint8_t* src, int64_t from, uint8_t* dst, int64_t to) {
#if defined(__SSE2__)
  __m128i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i * from));
  for (int step = 0; step < 4; ++step) {  // each step interleaves rows i and i + 8: four of them turn the index round
QUANTKV_UNROLL(8)
    for (int i = 0; i < 8; ++i) {
      b[2 * i] = _mm_unpacklo_epi8(a[i], a[i + 8]);
      b[2 * i + 1] = _mm_unpackhi_epi8(a[i], a[i + 8]);
    }
QUANTKV_UNROLL(16)
    for (int i = 0; i < 16; ++i) a[i] = b[i];
  }
  for (int i = 0; i < 16; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i * to), a[i]);
#else
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) dst[j * to + i] = src[i * from + j];
#endif
}

// [rows, columns] bytes to [columns, rows]; both are multiples of 16.
static void transpose_bytes(const uint8_t* src, int64_t from, uint8_t* dst, int64_t to, int rows, int columns) {
  for (int i = 0; i < rows; i += 16)
    for (int j = 0; j < columns; j += 16) transpose_block(src + i * from + j, from, dst + j * to + i, to);
}

// Tokens [low, high) of the tile of 64 tokens that begins at `token` of a page.
struct Span {
  int head, token, low, high;
};

// The panels that hold a tile: one of keys, all of values.
template <class Use>
QUANTKV_INLINE void each_panel(const Format& f, int token, Use&& use) {
  if (f.lanes_are_tokens) return use(panel_at(f, token / LANES));
  for (int first = 0, end = vectors_of(f); first < end;) {
    Panel panel = panel_at(f, first);
    use(panel);
    first += panel.vectors;
  }
}

// Elements of whole bytes, `src` is [64, width]: the tile of a plane is [head_dim, 64] for keys, and rows of a panel
// for values.
template <class T>
static void put_elements(const Format& f, const Plane& plane, uint8_t* record, const Span& s, const T* src, int width) {
  each_panel(f, s.token, [&](const Panel& panel) {
    uint8_t* tile = record + tile_offset(f, plane, s.head, panel, s.token);
    if (f.lanes_are_tokens) {
      T column[TILE];
      for (int c = 0; c < f.head_dim; ++c) {
        for (int t = s.low; t < s.high; ++t) column[t] = src[t * width + c];
        std::memcpy(tile + (c * TILE + s.low) * int(sizeof(T)), column + s.low, size_t(s.high - s.low) * sizeof(T));
      }
    } else {
      size_t row = size_t(panel.vectors) * LANES * sizeof(T);
      const T* from = src + panel.first_vector * LANES;
      for (int t = s.low; t < s.high; ++t) std::memcpy(tile + size_t(t) * row, from + t * width, row);
    }
  });
}

template <class T>
static void get_elements(const Format& f, const Plane& plane, const uint8_t* record, const Span& s, T* dst, int width) {
  each_panel(f, s.token, [&](const Panel& panel) {
    const uint8_t* tile = record + tile_offset(f, plane, s.head, panel, s.token);
    if (f.lanes_are_tokens) {
      T column[TILE];
      for (int c = 0; c < f.head_dim; ++c) {
        std::memcpy(column + s.low, tile + (c * TILE + s.low) * int(sizeof(T)), size_t(s.high - s.low) * sizeof(T));
        for (int t = s.low; t < s.high; ++t) dst[t * width + c] = column[t];
      }
    } else {
      size_t row = size_t(panel.vectors) * LANES * sizeof(T);
      T* to = dst + panel.first_vector * LANES;
      for (int t = s.low; t < s.high; ++t) std::memcpy(to + t * width, tile + size_t(t) * row, row);
    }
  });
}

// One plane of a key tile, from codes with channels as rows: [width, 64].
static void put_columns(const Format& f, int bits, uint8_t* tile, const Span& s, const uint8_t* turned, int shift) {
  if (bits == 8) {
    for (int c = 0; c < f.head_dim; ++c)
      std::memcpy(tile + c * TILE + s.low, turned + c * TILE + s.low, size_t(s.high - s.low));
    return;
  }
  uint32_t lanes[LANES];
  bool part = s.high - s.low < TILE;
  if (part) token_lanes(bits, s.low, s.high, lanes);
  int rows = int(rounded_up(f.head_dim, 8 / bits));  // the last block is filled up with 0
  pack_for(bits, 4)(tile, turned, TILE, 0, rows, shift, part ? lanes : nullptr);
}

// `codes` is [64, width], 0 beyond head_dim; `turned` is room for as much.
static void put_codes(const Format& f, uint8_t* record, const Span& s, const uint8_t* codes, int width,
                      uint8_t* turned) {
  if (f.lanes_are_tokens) {
    int from = s.low / LANES * LANES, to = int(rounded_up(s.high, LANES));
    transpose_bytes(codes + from * width, width, turned + from, TILE, to - from, width);
  }
  int shift = 0;
  for (const Plane& plane : f.planes) {
    if (plane.bits == 8 && !f.lanes_are_tokens) return put_elements(f, plane, record, s, codes, width);
    each_panel(f, s.token, [&](const Panel& panel) {
      uint8_t* tile = record + tile_offset(f, plane, s.head, panel, s.token);
      if (f.lanes_are_tokens) return put_columns(f, plane.bits, tile, s, turned, shift);
      const uint8_t* from = codes + panel.first_vector * LANES;
      pack_for(plane.bits, panel.vectors)(tile, from, width, s.low, s.high, shift, nullptr);
    });
    shift += plane.bits;
  }
}

static void get_codes(const Format& f, const uint8_t* record, const Span& s, uint8_t* codes, int width,
                      uint8_t* turned) {
  int shift = 0;
  for (const Plane& plane : f.planes) {
    if (plane.bits == 8) return get_elements(f, plane, record, s, codes, width);
    each_panel(f, s.token, [&](const Panel& panel) {
      const uint8_t* tile = record + tile_offset(f, plane, s.head, panel, s.token);
      UnpackFn unpack = unpack_for(plane.bits, panel.vectors);
      if (f.lanes_are_tokens) return unpack(tile, turned, TILE, 0, f.head_dim, shift);
      unpack(tile, codes + panel.first_vector * LANES, width, s.low, s.high, shift);
    });
    shift += plane.bits;
  }
  if (f.lanes_are_tokens) transpose_bytes(turned, TILE, codes, width, width, TILE);
}

}  // namespace QUANTKV_ISA
}  // namespace quantkv
