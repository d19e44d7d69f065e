// Numbers that blocks of elements share, of any dtype, alone or multiplied.
#pragma once

#include "buffer.h"
#include "codes.h"

namespace quantkv {
namespace QUANTKV_ISA {

// Bits of the first plane of codes.
static inline int first_plane(int bits) { return bits >= 8 ? 8 : bits >= 4 ? 4 : bits >= 2 ? 2 : 1; }

// Code number `i` of a head's codes, `count` of them, plane after plane in whole bytes.
static inline int plain_code(const uint8_t* p, int bits, int64_t count, int64_t i) {
  int code = 0;
  for (int shift = 0, plane; bits > 0; shift += plane, bits -= plane) {
    plane = first_plane(bits);
    code |= (p[i * plane / 8] >> (i * plane % 8) & ((1 << plane) - 1)) << shift;
    p += (count * plane + 7) / 8;
  }
  return code;
}

static inline int64_t plain_bytes(int bits, int64_t count) {
  int64_t bytes = 0;
  for (; bits > 0; bits -= first_plane(bits)) bytes += (count * first_plane(bits) + 7) / 8;
  return bytes;
}

// n floats of a byte each, without reading past them.
static inline void floats_of_bytes(Meta type, const uint8_t* p, int64_t n, float* out) {
  if (type == Meta::e8m0) {
    for (int64_t i = 0; i < n; ++i) {  // 2^(byte - 127): the byte is a float32's exponent, but for the ends
      const uint32_t bits = p[i] == 255 ? 0x7fc00000u : p[i] ? uint32_t(p[i]) << 23 : 0x00400000u;
      std::memcpy(out + i, &bits, 4);
    }
    return;
  }
  for (int64_t i = 0; i < n; i += LANES) {
    uint8_t padded[LANES] = {};
    float x[LANES];
    const int64_t count = n - i < LANES ? n - i : LANES;
    std::memcpy(padded, p + i, size_t(count));
    store(x, type == Meta::e4m3 ? e4m3(padded) : e5m2(padded));
    std::memcpy(out + i, x, size_t(count) * sizeof(float));
  }
}

// Numbers [at, at + n) of a head, which has `count` of them.
static inline void factor_floats(const Factor& x, const uint8_t* record, int head, int64_t count, int64_t at, int64_t n, float* out) {
  const int64_t first = x.all_heads ? 0 : head * count;
  const uint8_t* p = record + x.at;
  if (x.type <= Meta::bf16) {
    const Float type = Float(int(x.type));
    to_floats(type, p + (first + at) * float_bytes(type), n, out);
  } else if (x.type == Meta::code) {
    p += x.all_heads ? 0 : head * plain_bytes(x.bits, count);
    for (int64_t i = 0; i < n; ++i) out[i] = float(plain_code(p, x.bits, count, at + i));
  } else {
    floats_of_bytes(x.type, p + first + at, n, out);
  }
  for (int64_t i = 0; x.unit != 1.0f && i < n; ++i) out[i] *= x.unit;
}

// The scales and zeros of one term's elements.
class Scales {
 public:
  explicit Scales(const Format& f) : f_(f) {
    if (f.derived) room_.resize(int64_t(f.page_tokens) * f.head_dim);
  }

  // Of `n` entries of a head from `entry` on, groups_of for each.
  void read(const uint8_t* record, int head, int64_t entry, int64_t n, float* scale, float* zero) const {
    const int64_t groups = groups_of(f_);
    if (!f_.derived) return scales_of(f_, record, meta_index(f_, head, entry), n * groups, scale, zero);
    for (int64_t i = 0; i < n * groups; ++i) scale[i] = 1.0f;
    for (const Factor& x : f_.factors) spread(x, record, head, entry, n, scale, true);
    for (int64_t i = 0; i < n * groups; ++i) zero[i] = 0.0f;
    if (f_.has_zero) spread(f_.own_zero, record, head, entry, n, zero, false);
    for (int64_t i = 0; i < n * groups; ++i) zero[i] -= f_.centre * scale[i];
  }

  // Of the channels of one entry; `room` has twice the rounded head_dim.
  ChannelScales of_channels(const Codes& codes, const uint8_t* record, int head, int64_t entry, float* room) const {
    if (!f_.derived) return codes.channel_scales(record, head, entry, room);
    float* zero = room + rounded_up(f_.head_dim, LANES);
    read(record, head, entry, 1, room, zero);
    return {Float::f32, reinterpret_cast<const uint8_t*>(room), reinterpret_cast<const uint8_t*>(zero), 1.0f, 0.0f};
  }

 private:
  // Multiply a factor into `out`, or put it there.
  void spread(const Factor& x, const uint8_t* record, int head, int64_t entry, int64_t n, float* out, bool multiply) const {
    const int64_t groups = groups_of(f_), width = f_.head_dim / x.share_channels, many = f_.page_tokens / x.share_tokens;
    const int64_t first = entry * f_.share_tokens / x.share_tokens, last = ((entry + n) * f_.share_tokens - 1) / x.share_tokens;
    factor_floats(x, record, head, many * width, first * width, (last - first + 1) * width, room_.data());
    if (x.share_tokens == f_.share_tokens && width == groups) {
      for (int64_t i = 0; i < n * groups; ++i) out[i] = multiply ? out[i] * room_[i] : room_[i];
      return;
    }
    for (int64_t e = 0; e < n; ++e) {
      const float* from = &room_[((entry + e) * f_.share_tokens / x.share_tokens - first) * width];
      const int64_t times = groups / width;  // groups that share one of its numbers
      for (int64_t i = 0; i < width; ++i)
        for (int64_t g = i * times; g < (i + 1) * times; ++g) out[e * groups + g] = multiply ? out[e * groups + g] * from[i] : from[i];
    }
  }

  const Format& f_;
  Buffer<float> room_;
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
