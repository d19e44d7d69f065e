// One thread's encoding: a few tokens at a time go through float32, their range, codes and the page's tiles.
#pragma once

#include "buffer.h"
#include "element.h"
#include "encode.h"
#include "ranges.h"
#include "tiling.h"

namespace quantkv {
namespace QUANTKV_ISA {

// A row of numbers to codes of one byte. NaN becomes 0.
static void affine_codes(const float* __restrict x, const float* __restrict scale, const float* __restrict zero, int n,
                         float centre, float steps, uint8_t* __restrict codes) {
  const float low = -centre, high = steps - centre, magic = 0x1.8p23f;  // adding it rounds to an integer, to even
  for (int c = 0; c < n; ++c) {
    float t = (x[c] - zero[c]) / scale[c];
    t = t > low ? t : low;
    t = t < high ? t : high;
    codes[c] = uint8_t(as_bits(t + magic) + uint32_t(int32_t(centre)));
  }
}

static void float8_codes(const float* __restrict x, const float* __restrict scale, int n, bool wide,
                         uint8_t* __restrict codes) {
  if (wide)
    for (int c = 0; c < n; ++c) codes[c] = to_e5m2(clamp(x[c] / scale[c], -57344.0f, 57344.0f));
  else
    for (int c = 0; c < n; ++c) codes[c] = to_e4m3(clamp(x[c] / scale[c], -448.0f, 448.0f));
}

// A row of numbers to raw elements; only a narrower dtype clamps.
template <Float F>
static void raw_elements(const float* __restrict x, int n, bool narrower, uint16_t* __restrict out) {
  if (narrower)
    for (int c = 0; c < n; ++c) out[c] = uint16_t(finite_bits<F, Round::nearest>(x[c]));
  else
    for (int c = 0; c < n; ++c) out[c] = uint16_t(stored_bits<F, Round::nearest>(x[c]));
}

class Encoder {
 public:
  explicit Encoder(const EncodeRequest& r)
      : r_(r), f_(*r.format), heads_(f_.all_heads ? f_.heads : 1), width_(int(rounded_up(f_.head_dim, LANES))),
        most_(f_.share_tokens > TILE ? f_.share_tokens : TILE), codes_(TILE * width_ * 4), turned_(TILE * width_) {
    if (f_.code == Code::raw) return;
    int64_t groups = int64_t(most_ / f_.share_tokens) * groups_of(f_);
    x_.resize(heads_ * int64_t(most_) * width_);
    ranges_.resize(4 * groups + 5 * width_);
    low_ = ranges_.data(), high_ = low_ + groups, scale_ = high_ + groups, zero_ = scale_ + groups;
    scales_ = zero_ + groups, zeros_ = scales_ + width_;
    extremes_ = {zeros_ + width_, zeros_ + 2 * width_, zeros_ + 3 * width_};
  }

  // Tokens [low, high) of a page of row `row`: head `head`, or all heads from it on where they share scales.
  void run(int row, int head, uint8_t* record, int64_t first, int low, int high) {
    for (int end; low < high; low = end) {
      end = step_end(low, high);
      source_ = r_.x + (row * r_.strides[0] + head * r_.strides[1] + (first + low - r_.start) * r_.strides[2]) *
                           float_bytes(r_.type);
      if (f_.code == Code::raw) {
        raw(record, head, low, end);
      } else {
        load_rows(end - low);
        find_metadata(record, head, low, end - low);
        for (int h = 0; h < heads_; ++h) write_codes(record, head + h, numbers(h, 0), low, end);
      }
    }
  }

 private:
  // Whole groups, and where possible whole tiles.
  int step_end(int low, int high) const {
    int share = f_.share_tokens;
    int end = share >= TILE ? low + share : TILE % share == 0 ? (low / TILE + 1) * TILE : low + TILE / share * share;
    return end < high ? end : high;
  }

  const uint8_t* source(int head, int token) const {
    return source_ + (head * r_.strides[1] + token * r_.strides[2]) * float_bytes(r_.type);
  }

  void load_rows(int tokens) {
    for (int h = 0; h < heads_; ++h)
      for (int t = 0; t < tokens; ++t) {
        float* x = x_.data() + (h * int64_t(most_) + t) * width_;
        to_floats(r_.type, source(h, t), f_.head_dim, x);
        for (int c = f_.head_dim; c < width_; ++c) x[c] = x[0];  // no new extremes
      }
  }

  const float* numbers(int head, int token) const { return x_.data() + (head * int64_t(most_) + token) * width_; }

  void find_metadata(uint8_t* record, int head, int low, int tokens) {
    int groups = groups_of(f_), entries = tokens / f_.share_tokens;
    for (int e = 0; e < entries; ++e) find_range(e, groups);
    int64_t at = meta_index(f_, head, low / f_.share_tokens) * float_bytes(f_.meta);
    Metadata m{scale_, zero_, record + f_.scale_at + at, record + f_.zero_at + at};
    make_metadata(f_, int64_t(entries) * groups, low_, high_, m);
  }

  // The ranges of the groups of one entry.
  void find_range(int entry, int groups) {
    int first = entry * f_.share_tokens, share = groups == 1 ? width_ : f_.share_channels;
    float* x = const_cast<float*>(numbers(0, first));
    Extremes e{x, x, x};
    if (heads_ * f_.share_tokens > 1) {
      e = extremes_;
      begin_range(e, x, width_);
      for (int h = 0; h < heads_; ++h)
        for (int t = h ? 0 : 1; t < f_.share_tokens; ++t) widen_range(e, numbers(h, first + t), width_);
    }
    for (int g = 0; g < groups; ++g) {
      Range r = whole_range(e, g * share, share);
      bool nan = r.sum != r.sum && has_nan(first, g * share, share);
      low_[entry * groups + g] = nan ? NAN : r.low;
      high_[entry * groups + g] = nan ? NAN : r.high;
    }
  }

  bool has_nan(int first, int channel, int share) const {
    for (int h = 0; h < heads_; ++h)
      for (int t = 0; t < f_.share_tokens; ++t) {
        const float* x = numbers(h, first + t) + channel;
        for (int c = 0; c < share; ++c)
          if (x[c] != x[c]) return true;
      }
    return false;
  }

  // Tokens [low, high) of a page, whose numbers are `x`.
  void write_codes(uint8_t* record, int head, const float* x, int low, int high) {
    int entry = -1;
    for (int token = low / TILE * TILE; token < high; token += TILE) {
      Span s{head, token, low > token ? low - token : 0, high - token < TILE ? high - token : TILE};
      for (int t = token + s.low; t < token + s.high; ++t) {
        int e = (t - low) / f_.share_tokens;
        if (e != entry) {
          spread(f_, scale_ + e * groups_of(f_), scales_);
          spread(f_, zero_ + e * groups_of(f_), zeros_);
          entry = e;
        }
        code_row(x + int64_t(t - low) * width_, codes_.data() + (t - token) * width_);
      }
      put_codes(f_, record, s, codes_.data(), width_, turned_.data());
    }
  }

  void code_row(const float* x, uint8_t* codes) {
    if (f_.code == Code::affine)
      affine_codes(x, scales_, zeros_, width_, f_.has_zero ? 0.0f : f_.centre, float((1 << f_.bits) - 1), codes);
    else
      float8_codes(x, scales_, width_, f_.code == Code::e5m2, codes);
    for (int c = f_.head_dim; c < width_; ++c) codes[c] = 0;
  }

  void raw(uint8_t* record, int head, int low, int high) {
    int token = low / TILE * TILE;
    Span s{head, token, low - token, high - token};
    if (f_.value == Float::f32) return raw_as<Stored32>(record, s);
    raw_as<Stored16>(record, s);
  }

  template <class T>
  void raw_as(uint8_t* record, const Span& s) {
    T* elements = reinterpret_cast<T*>(codes_.data());
    for (int t = s.low; t < s.high; ++t) raw_row(source(0, t - s.low), elements + t * width_);
    put_elements(f_, f_.planes[0], record, s, elements, width_);
  }

  template <class T>
  void raw_row(const uint8_t* from, T* to) {
    if (r_.type == f_.value) {
      std::memcpy(to, from, size_t(f_.head_dim) * sizeof(T));
    } else if (f_.value == Float::f32) {
      to_floats(r_.type, from, f_.head_dim, reinterpret_cast<float*>(to));
    } else {
      float* x = reinterpret_cast<float*>(turned_.data());
      to_floats(r_.type, from, f_.head_dim, x);
      bool narrower = largest(f_.value) < largest(r_.type);
      uint16_t* out = reinterpret_cast<uint16_t*>(to);
      f_.value == Float::f16 ? raw_elements<Float::f16>(x, f_.head_dim, narrower, out)
                             : raw_elements<Float::bf16>(x, f_.head_dim, narrower, out);
    }
  }

  const EncodeRequest& r_;
  const Format& f_;
  int heads_, width_, most_;
  Buffer<uint8_t> codes_, turned_;  // one tile of codes or of raw elements, and of codes with channels as rows
  Buffer<float> x_, ranges_;
  float *low_ = nullptr, *high_ = nullptr, *scale_ = nullptr, *zero_ = nullptr;  // of each group
  float *scales_ = nullptr, *zeros_ = nullptr;                                  // of each channel of a token
  Extremes extremes_{};
  const uint8_t* source_ = nullptr;
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
