// One thread's decoding: tiles of a page back to float32, with the operations in the order of the codecs.
#pragma once

#include "buffer.h"
#include "element.h"
#include "ranges.h"
#include "scales.h"
#include "tiling.h"

namespace quantkv {
namespace QUANTKV_ISA {

class Decoder {
 public:
  explicit Decoder(const Format& f)
      : f_(f), width_(int(rounded_up(f_.head_dim, LANES))), codes_(TILE * width_ * 4), turned_(TILE * width_),
        derived_(f) {
    int64_t groups = int64_t(TILE / f_.share_tokens + 2) * groups_of(f_);  // a tile may begin and end within an entry
    numbers_.resize(2 * width_ + 256 + 2 * groups);
    scales_ = numbers_.data(), zeros_ = scales_ + width_, meanings_ = zeros_ + width_;
    scale_ = meanings_ + 256, zero_ = scale_ + groups;
    for (int c = 0; c < width_; ++c) scales_[c] = 1.0f;
    if (f_.code != Code::raw) list_meanings();
  }

  // Tokens [low, high) of a page, all in one tile, to rows of floats `stride` apart.
  void run(int head, const uint8_t* record, int low, int high, float* out, int64_t stride) {
    int token = low / TILE * TILE;
    Span s{head, token, low - token, high - token};
    stride_ = stride;
    if (f_.code == Code::raw) {
      f_.value == Float::f32 ? raw<Stored32>(record, s, out) : raw<Stored16>(record, s, out);
    } else {
      get_codes(f_, record, s, codes_.data(), width_, turned_.data());
      numbers(record, s, out);
    }
  }

 private:
  // The number that each code stands for, before scale and zero.
  void list_meanings() {
    uint8_t code[LANES];
    for (int i = 0; i < 1 << f_.bits; i += LANES) {
      for (int l = 0; l < LANES; ++l) code[l] = uint8_t(i + l);
      F16 x = f_.code == Code::e4m3 ? e4m3(code) : f_.code == Code::e5m2 ? e5m2(code) : load_u8(code);
      store(meanings_ + i, x);
    }
    for (int i = 0; i < 1 << f_.bits; ++i) {
      if (f_.code == Code::table) meanings_[i] = f_.table[size_t(i)];
      if (!f_.has_zero) meanings_[i] -= f_.centre;
    }
  }

  template <class T>
  void raw(const uint8_t* record, const Span& s, float* out) {
    T* elements = reinterpret_cast<T*>(codes_.data());
    get_elements(f_, f_.planes[0], record, s, elements, width_);
    for (int t = s.low; t < s.high; ++t, out += stride_)
      to_floats(f_.value, reinterpret_cast<const uint8_t*>(elements + t * width_), f_.head_dim, out);
  }

  void numbers(const uint8_t* record, const Span& s, float* out) {
    int first = (s.token + s.low) / f_.share_tokens, last = (s.token + s.high - 1) / f_.share_tokens, entry = -1;
    if (f_.derived) derived_.read(record, s.head, first, last - first + 1, scale_, zero_);
    else if (f_.has_scale) read_metadata(record + f_.scale_at, f_.unit, s.head, first, last, scale_);
    if (f_.has_zero && !f_.derived) read_metadata(record + f_.zero_at, 1.0f, s.head, first, last, zero_);
    for (int t = s.low; t < s.high; ++t, out += stride_) {
      int e = (s.token + t) / f_.share_tokens - first;
      if (f_.has_scale && e != entry) {
        spread(f_, scale_ + e * groups_of(f_), scales_);
        if (f_.has_zero) spread(f_, zero_ + e * groups_of(f_), zeros_);
        entry = e;
      }
      number_row(codes_.data() + t * width_, out);
    }
  }

  // Of entries `first` to `last`, both included.
  void read_metadata(const uint8_t* at, float unit, int head, int first, int last, float* groups) {
    int64_t n = int64_t(last - first + 1) * groups_of(f_);
    to_floats(f_.meta, at + meta_index(f_, head, first) * float_bytes(f_.meta), n, groups);
    for (int64_t i = 0; i < n; ++i) groups[i] *= unit;
  }

  // A symmetric format adds nothing: a zero would turn -0 into 0.
  void number_row(const uint8_t* __restrict codes, float* __restrict out) const {
    const float *__restrict scale = scales_, *__restrict zero = zeros_;
    if (f_.code == Code::affine && f_.has_zero)
      for (int c = 0; c < f_.head_dim; ++c) out[c] = float(codes[c]) * scale[c] + zero[c];
    else if (f_.code == Code::affine)
      for (int c = 0; c < f_.head_dim; ++c) out[c] = (float(codes[c]) - f_.centre) * scale[c];
    else if (f_.has_zero)
      for (int c = 0; c < f_.head_dim; ++c) out[c] = meanings_[codes[c]] * scale[c] + zero[c];
    else
      for (int c = 0; c < f_.head_dim; ++c) out[c] = meanings_[codes[c]] * scale[c];
  }

  const Format& f_;
  int width_;
  int64_t stride_ = 0;
  Buffer<uint8_t> codes_, turned_;
  Buffer<float> numbers_;
  float *scales_, *zeros_, *meanings_;  // of each channel, and of each code
  float *scale_, *zero_;                 // of each group of a tile
  Scales derived_;
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
