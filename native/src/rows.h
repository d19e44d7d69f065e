// Tokens of one head's pages as rows of floats, for shapes that no loader fits.
#pragma once

#include <memory>

#include "decoder.h"

namespace quantkv {
namespace QUANTKV_ISA {

class PageRows {
 public:
  explicit PageRows(const Format& f)
      : width_(rounded_up(f.head_dim, LANES)), rows_(f.page_tokens * width_), request_{request(f)}, decoder_(request_) {}
  PageRows(const PageRows&) = delete;  // the decoder holds on to the request

  // Tokens [low, high) of a page, `width` floats each, the first of them at the pointer returned.
  const float* read(const uint8_t* record, int head, int64_t low, int64_t high) {
    for (int64_t at = low, next; at < high; at = next) {
      next = at / TILE * TILE + TILE;
      decoder_.run(0, head, record, 0, int(at), int(next < high ? next : high));
    }
    return &rows_[low * width_];
  }

  int64_t width() const { return width_; }

 private:
  DecodeRequest request(const Format& f) const {
    DecodeRequest r;
    r.format = &f;
    r.out = rows_.data();
    r.strides[2] = width_;
    return r;
  }

  int64_t width_;
  Buffer<float> rows_;
  DecodeRequest request_;
  Decoder decoder_;
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
