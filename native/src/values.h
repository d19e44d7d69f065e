// Sums of one head's values, packed and exact, weighted by every query row's probabilities.
#pragma once

#include "value_codes.h"

namespace quantkv {
namespace QUANTKV_ISA {

// Steps before the first turn are undone at the end, on the packed tokens' own sums; tokens' scales go into the
// probabilities. From a turn on every token is decoded and its steps are undone.
class Values {
 public:
  explicit Values(const Request& r)
      : r_(r), m_(*r.value.method), queries_(r.ratio * r.queries), width_(padded_dim(m_)), vectors_(int(width_ / LANES)),
        page_(m_.page_tokens), folded_(folded_steps(m_)) {
    line_.resize(TILE * width_);
    if (!m_.steps.empty()) weights_.resize(queries_ * page_), norms_.resize(page_);
    if (folded_ < int(m_.steps.size())) rows_.reset(new MethodRows(m_, folded_));
    else for (const Format& f : m_.parts) parts_.emplace_back(new ValueCodes(f, queries_, width_));
    int64_t most = 0, right = 0;
    for (const Sparse& s : m_.sparse) most = s.slots > most ? s.slots : most;
    for (const LowRank& x : m_.low_rank) most = x.rank > most ? x.rank : most, right = x.rank > right ? x.rank : right;
    numbers_.resize(most * page_);
    right_.resize(right * m_.head_dim);
    sums_of_left_.resize(right);
  }

  void begin(int row, int head) {
    row_ = row;
    head_ = head;
  }

  // Adds positions [low, high) to sums[m][channel]; probabilities are p[m * stride + position - low]. Packed tokens go
  // to `packed_sums`, and for each shift the probabilities that it counts to masses[shift * queries + m].
  void add(int64_t low, int64_t high, const float* p, int64_t stride, float* sums, float* packed_sums, float* masses) {
    p_ = p;
    low_ = low;
    stride_ = stride;
    sums_ = sums;
    packed_sums_ = packed_sums;
    masses_ = masses;
    for_segments(r_.value, row_, head_, r_.pads[size_t(row_)], low, high, *this);
  }

  void nothing(int64_t, int64_t) {}

  void exact(const uint8_t* p, int64_t bytes, int64_t low, int64_t high) {
    if (m_.head_dim % LANES == 0) return exact_rows(r_.value.exact, p, bytes, low, high);
    const int64_t width = width_;
    for (int64_t at = low; at < high; at += TILE) {
      const int64_t count = least(TILE, high - at);
      for (int64_t i = 0; i < count; ++i, p += bytes) to_floats(r_.value.exact, p, m_.head_dim, &line_[i * width]);
      exact_rows(Float::f32, reinterpret_cast<const uint8_t*>(line_.data()), width * 4, at, at + count);
    }
  }

  void packed(int64_t begin, int64_t end, int64_t position) {
    const auto& pages = (*r_.value.pages)[size_t(row_)];
    for (int64_t at = begin; at < end;) {
      const int64_t page = at / page_, stop = least(end, (page + 1) * page_);
      const uint8_t* record = pages[size_t(page)];
      const uint8_t* next = size_t(page) + 1 < pages.size() ? pages[size_t(page) + 1] : record;
      add_page({r_.value.known, row_, head_, record, at - page * page_, at}, next, stop - at, p_ + (position + at - begin - low_));
      at = stop;
    }
  }

 private:
  // n tokens of a page from `at` on, the probabilities of the first at p.
  void add_page(Place at, const uint8_t* next, int64_t n, const float* p) {
    int64_t stride = stride_;
    if (!m_.steps.empty()) p = weigh(at, n, p), stride = page_;
    if (rows_) {
      at.position += r_.value.known->positions[size_t(row_)];
      const float* from = rows_->read(at, n);
      return add_rows(Float::f32, reinterpret_cast<const uint8_t*>(from), width_ * 4, n, p, stride, packed_sums_);
    }
    for (auto& part : parts_)
      part->add(at.record, next, head_, at.token, at.token + n, p, stride, packed_sums_, width_);
    for (const Sparse& s : m_.sparse) add_sparse(s, at, n, p, stride);
    for (const LowRank& x : m_.low_rank) add_low_rank(x, at, n, p, stride);
  }

  // Probabilities times the tokens' scales; the mass of each shift is what they are where it is undone.
  const float* weigh(const Place& at, int64_t n, const float* p) {
    for (int64_t m = 0; m < queries_; ++m) std::memcpy(&weights_[m * page_], p + m * stride_, size_t(n) * sizeof(float));
    int shift = 0;
    for (int i = 0; i < folded_; ++i) {
      const Step& s = m_.steps[size_t(i)];
      if (s.what == Do::token_scale) token_scales(m_, s, at, n, norms_.data());
      for (int64_t m = 0; m < queries_; ++m) {
        float* w = &weights_[m * page_];
        if (s.what == Do::token_scale) for (int64_t t = 0; t < n; ++t) w[t] *= norms_[t];
        if (s.what == Do::shift) masses_[shift * queries_ + m] += sum_of(w, n);
      }
      shift += s.what == Do::shift;
    }
    return weights_.data();
  }

  static float sum_of(const float* w, int64_t n) {
    F16 lanes = splat(0);
    int64_t t = 0;
    for (; t + LANES <= n; t += LANES) lanes = lanes + load(w + t);
    float total = sum(lanes);
    for (; t < n; ++t) total += w[t];
    return total;
  }

  void add_sparse(const Sparse& s, const Place& at, int64_t n, const float* p, int64_t stride) {
    const int64_t from = (int64_t(head_) * page_ + at.token) * s.slots;
    const uint8_t* index = at.record + s.index_at + from;
    to_floats(s.type, at.record + s.value_at + from * float_bytes(s.type), n * s.slots, numbers_.data());
    for (int64_t m = 0; m < queries_; ++m) {
      float* sums = packed_sums_ + m * width_;
      for (int64_t t = 0, i = 0; t < n; ++t)
        for (int slot = 0; slot < s.slots; ++slot, ++i)
          if (index[i] < m_.head_dim) sums[index[i]] += p[m * stride + t] * numbers_[i];
    }
  }

  void add_low_rank(const LowRank& x, const Place& at, int64_t n, const float* p, int64_t stride) {
    const int64_t from = (int64_t(head_) * page_ + at.token) * x.rank, chunks = page_ / x.tokens;
    to_floats(x.left, at.record + x.left_at + from * float_bytes(x.left), n * x.rank, numbers_.data());
    for (int64_t t = 0, end; t < n; t = end) {
      const int64_t chunk = (at.token + t) / x.tokens, numbers = int64_t(x.rank) * m_.head_dim;
      end = least(n, (chunk + 1) * x.tokens - at.token);
      to_floats(x.right, at.record + x.right_at + (head_ * chunks + chunk) * numbers * float_bytes(x.right), numbers, right_.data());
      for (int64_t m = 0; m < queries_; ++m) add_product(x.rank, t, end, p + m * stride, packed_sums_ + m * width_);
    }
  }

  // Tokens [from, to): their left factors weighted and summed, then times the right one.
  void add_product(int rank, int64_t from, int64_t to, const float* p, float* sums) {
    for (int i = 0; i < rank; ++i) sums_of_left_[i] = 0.0f;
    for (int64_t t = from; t < to; ++t)
      for (int i = 0; i < rank; ++i) sums_of_left_[i] += p[t] * numbers_[t * rank + i];
    for (int i = 0; i < rank; ++i)
      for (int c = 0; c < m_.head_dim; ++c) sums[c] += sums_of_left_[i] * right_[int64_t(i) * m_.head_dim + c];
  }

  void exact_rows(Float type, const uint8_t* p, int64_t bytes, int64_t low, int64_t high) {
    add_rows(type, p, bytes, high - low, p_ + (low - low_), stride_, sums_);
  }

  // n rows of floats, `bytes` apart.
  void add_rows(Float type, const uint8_t* rows, int64_t bytes, int64_t n, const float* p, int64_t stride, float* sums) const {
    for (int64_t m = 0; m < queries_; m += QUERIES) {
      const int count = int(least(QUERIES, queries_ - m));
      const Coefficients c(p + m * stride, stride, count);
      for (int v = 0, width; v < vectors_; v += width) {
        const int left = vectors_ - v;
        width = left >= 4 ? 4 : left >= 2 ? 2 : 1;
        F16 acc[QUERIES * 4];
        float* at = sums + m * width_ + v * LANES;
        for (int i = 0; i < count * width; ++i) acc[i] = load(at + i / width * width_ + i % width * LANES);
        panel_for(kind_of(type), count, width, 4)(plain_source(rows + v * LANES * float_bytes(type), bytes), c, 0, int(n), acc);
        for (int i = 0; i < count * width; ++i) store(at + i / width * width_ + i % width * LANES, acc[i]);
      }
    }
  }

  const Request& r_;
  const Method& m_;
  const int64_t queries_, width_;
  const int vectors_;
  const int64_t page_;
  const int folded_;  // steps
  int row_ = 0, head_ = 0;
  const float* p_ = nullptr;
  int64_t stride_ = 0, low_ = 0;
  float *sums_ = nullptr, *packed_sums_ = nullptr, *masses_ = nullptr;
  Buffer<float> line_, weights_, norms_, numbers_, right_, sums_of_left_;
  std::vector<std::unique_ptr<ValueCodes>> parts_;
  std::unique_ptr<MethodRows> rows_;
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
