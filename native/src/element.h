// One element of a page, read the slow way: for shapes that no loader fits, and for checks.
#pragma once

#include "simd.h"

namespace quantkv {
namespace QUANTKV_ISA {

QUANTKV_INLINE float float_at(Float type, const uint8_t* p, int64_t i) {
  uint8_t padded[64] = {};
  std::memcpy(padded, p + i * float_bytes(type), size_t(float_bytes(type)));
  float x[LANES];
  store(x, load_as(type, padded));
  return x[0];
}

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

// Where an element lies in its head's planes: panel, vector of the panel and lane.
struct Place {
  Panel panel;
  int64_t vector;
  int lane;
};

static inline Place place_of(const Format& f, int token, int channel) {
  int lane = f.lanes_are_tokens ? token : channel, row = f.lanes_are_tokens ? channel : token;
  int at = lane / LANES;
  Panel panel = panel_at(f, at / 4 * 4);
  while (at >= panel.first_vector + panel.vectors) panel = panel_at(f, panel.first_vector + panel.vectors);
  return {panel, int64_t(row) * panel.vectors + at - panel.first_vector, lane % LANES};
}

static inline int code_at(const Format& f, const uint8_t* record, int head, const Place& at) {
  int code = 0, shift = 0;
  for (const Plane& plane : f.planes) {
    const uint8_t* p = record + plane.offset + head * plane.head_bytes + panel_offset(at.panel, plane.bits);
    if (plane.bits == 8) {
      code |= p[at.vector * LANES + at.lane] << shift;
    } else {
      int per_block = 32 / plane.bits;
      uint32_t word;
      std::memcpy(&word, p + at.vector / per_block * 64 + at.lane * 4, 4);
      code |= int(word >> (plane.bits * (at.vector % per_block)) & ((1u << plane.bits) - 1)) << shift;
    }
    shift += plane.bits;
  }
  return code;
}

static inline float element(const Format& f, const uint8_t* record, int head, int token, int channel) {
  Place at = place_of(f, token, channel);
  if (f.code == Code::raw) {
    const Plane& plane = f.planes[0];
    const uint8_t* p = record + plane.offset + head * plane.head_bytes + panel_offset(at.panel, plane.bits);
    return float_at(f.value, p, at.vector * LANES + at.lane);
  }
  int code = code_at(f, record, head, at);
  uint8_t byte[LANES] = {uint8_t(code)};
  float x[LANES] = {float(code)};
  if (f.code == Code::table) x[0] = f.table[size_t(code)];
  if (f.code == Code::e4m3) store(x, e4m3(byte));
  if (f.code == Code::e5m2) store(x, e5m2(byte));
  if (!f.has_scale) return x[0];
  int64_t i = meta_index(f, head, token / f.share_tokens) + channel / f.share_channels;
  float scale = float_at(f.meta, record + f.scale_at, i) * f.unit;
  return f.has_zero ? scale * x[0] + float_at(f.meta, record + f.zero_at, i) : scale * (x[0] - f.centre);
}

}  // namespace QUANTKV_ISA
}  // namespace quantkv
