// How the pages of one format are read: the loop for its codes, the tables of its planes, or the slow way.
#pragma once

#include "element.h"
#include "panel.h"

namespace quantkv {
namespace QUANTKV_ISA {

// Scales (or zeros) of n elements from index `at` on, as float32; symmetric zeros follow from the scales.
static inline void scales_of(const Format& f, const uint8_t* record, int64_t at, int64_t n, float* scale, float* zero) {
  int bytes = float_bytes(f.meta);
  to_floats(f.meta, record + f.scale_at + at * bytes, n, scale);
  for (int64_t i = 0; f.unit != 1.0f && i < n; ++i) scale[i] *= f.unit;
  if (f.has_zero) return to_floats(f.meta, record + f.zero_at + at * bytes, n, zero);
  for (int64_t i = 0; i < n; ++i) zero[i] = -f.centre * scale[i];
}

// Scales and zeros of channels, read a vector at a time where they lie.
struct ChannelScales {
  Float type;
  const uint8_t *scale, *zero;  // no zero: it follows from the scale
  float unit, centre;

  QUANTKV_INLINE F16 scales(int64_t c) const { return load_as(type, scale + c * float_bytes(type)) * splat(unit); }
  QUANTKV_INLINE F16 zeros(int64_t c, F16 scale) const {
    return zero ? load_as(type, zero + c * float_bytes(type)) : scale * splat(-centre);
  }
};

class Codes {
 public:
  explicit Codes(const Format& f) : f_(f) {
    int shift = 0;
    for (size_t i = 0; i < f.planes.size() && i < MAX_PLANES; ++i) {
      const int bits = f.planes[i].bits;
      for (int index = 0; index < 64 && bits < 8; ++index) {
        int part = index / 16, code = (index % 16 >> (part * bits % 4) & ((1 << bits) - 1)) << shift;
        tables_[i][part][index % 16] = f.code == Code::table && f.bits <= 4 ? f.table[size_t(code)] : float(code);
      }
      // loaders read a little more than the codes: there must be something
      followed_ = followed_ && (bits >= 8 || f.followed || (f.has_scale && f.scale_at > f.planes[i].offset));
      shift += bits;
      const int rows = f.lanes_are_tokens ? f.head_dim : f.page_tokens;
      four_[i] = panel_bytes({rows, 4, 0}, f.planes[i].bits);
      two_[i] = panel_bytes({rows, 2, 0}, f.planes[i].bits);
    }
    for (int i = 0; f.code == Code::table && f.planes.size() == 2 && i < 64; ++i)
      for (int way = 0; way < 2; ++way) joined_[way][i] = f.table[size_t(joined_code(i, way))];
    meta_heads_ = f.all_heads || !f.has_scale ? 0 : int64_t(f.page_tokens / f.share_tokens) * groups_of(f);
  }

  // Whether a loader can read runs of `rows` rows whose coefficients change after so many.
  bool loadable(int vectors, int64_t rows) const {
    return followed_ && panel_for(kind_of(f_), 1, vectors, 4) && rows % panel_step(f_, vectors) == 0;
  }

  // Where the first scale of (head, entry) lies, counted in metadata elements.
  int64_t meta_at(int head, int64_t entry, int64_t groups) const { return head * meta_heads_ + entry * groups; }

  // A panel of one head; `next` is the page to be read after this one.
  Source source(const uint8_t* record, const uint8_t* next, int head, const Panel& panel) const {
    Source s{};
    for (size_t i = 0; i < f_.planes.size() && i < MAX_PLANES; ++i) {
      const Plane& plane = f_.planes[i];
      s.plane[i] = record + plane.offset + head * plane.head_bytes + panel.first_vector / 4 * four_[i] +
                   panel.first_vector % 4 / 2 * two_[i];
      s.ahead[i] = next - record;
      s.tables[i] = &tables_[i];
    }
    s.joined = joined_;
    s.scales = s.zeros = record;
    s.row_bytes = int64_t(panel.vectors) * LANES * f_.planes[0].bits / 8;
    return s;
  }

  // Of one entry; `room`, twice the rounded head_dim, is where they go when the last vector is not full.
  ChannelScales channel_scales(const uint8_t* record, int head, int64_t entry, float* room) const {
    const int64_t at = meta_at(head, entry, f_.head_dim), width = rounded_up(f_.head_dim, LANES);
    if (width == f_.head_dim) {
      const int bytes = float_bytes(f_.meta);
      return {f_.meta, record + f_.scale_at + at * bytes, f_.has_zero ? record + f_.zero_at + at * bytes : nullptr, f_.unit, f_.centre};
    }
    scales_of(f_, record, at, f_.head_dim, room, room + width);
    return {Float::f32, reinterpret_cast<const uint8_t*>(room), reinterpret_cast<const uint8_t*>(room + width), 1.0f, 0.0f};
  }

  // Let the loop over a panel fetch n scales and zeros of the next page as well, from index `at` on, a few for each
  // of its rows: all at once they would hold up what follows.
  void fetch_scales(Source& s, const uint8_t* next, int64_t at, int64_t n, int64_t rows) const {
    if (f_.all_heads || !f_.has_scale) return;
    const int bytes = float_bytes(f_.meta);
    s.scales = next + f_.scale_at + at * bytes;
    s.zeros = f_.has_zero ? next + f_.zero_at + at * bytes : s.scales;
    s.scale_bytes = (n * bytes + rows - 1) / rows;
  }

 private:
  // The code that an index of a joined lookup stands for.
  int joined_code(int index, int way) const {
    const int low = f_.planes[0].bits, high = f_.planes[1].bits;
    const Arrangement a = arranged(low, way);
    return (index >> a.low & ((1 << low) - 1)) | (index >> a.high & ((1 << high) - 1)) << low;
  }

  const Format& f_;
  float tables_[MAX_PLANES][4][16] = {};
  float joined_[2][64] = {};
  bool followed_ = true;
  int64_t four_[MAX_PLANES] = {}, two_[MAX_PLANES] = {};  // bytes of a panel of so many vectors
  int64_t meta_heads_ = 0;                                // scales of one head
};

// [n][G] numbers to G runs of n, `stride` apart: a fixed G lets the compiler shuffle whole vectors.
template <int G>
static inline void transpose_fixed(const float* __restrict from, int64_t n, float* __restrict to, int64_t stride) {
  for (int64_t i = 0; i < n; ++i) {
    to[i] = from[G * i];
    to[stride + i] = from[G * i + 1];
    if (G == 4) to[2 * stride + i] = from[G * i + 2];
    if (G == 4) to[3 * stride + i] = from[G * i + 3];
  }
}

static inline void transpose(const float* from, int64_t n, int64_t groups, float* to, int64_t stride) {
  if (groups == 2) return transpose_fixed<2>(from, n, to, stride);
  if (groups == 4) return transpose_fixed<4>(from, n, to, stride);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t g = 0; g < groups; ++g) to[g * stride + i] = from[i * groups + g];
}

// A panel of plain floats at `p`, rows `row_bytes` apart.
static inline Source plain_source(const void* p, int64_t row_bytes) {
  Source s{};
  s.plane[0] = static_cast<const uint8_t*>(p);
  s.row_bytes = row_bytes;
  return s;
}

}  // namespace QUANTKV_ISA
}  // namespace quantkv
