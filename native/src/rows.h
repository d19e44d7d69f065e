// Tokens of one head's pages as rows of floats: the terms summed, steps undone.
#pragma once

#include <memory>

#include "decoder.h"
#include "steps.h"

namespace quantkv {
namespace QUANTKV_ISA {

// One term's elements.
class PageRows {
 public:
  explicit PageRows(const Format& f)
      : width_(rounded_up(f.head_dim, LANES)), rows_(f.page_tokens * width_), decoder_(f) {}

  // Tokens [low, high) of a page, `width` floats each, the first of them at the pointer returned.
  const float* read(const uint8_t* record, int head, int64_t low, int64_t high) {
    for (int64_t at = low, next; at < high; at = next) {
      next = at / TILE * TILE + TILE;
      next = next < high ? next : high;
      decoder_.run(head, record, int(at), int(next), &rows_[at * width_], width_);
    }
    return &rows_[low * width_];
  }

  int64_t width() const { return width_; }

 private:
  int64_t width_;
  Buffer<float> rows_;
  Decoder decoder_;
};

// Everything that a method adds up.
class MethodRows {
 public:
  // Steps from `first` on are undone.
  MethodRows(const Method& m, int first) : m_(m), first_(first), width_(padded_dim(m)) {
    for (const Format& f : m.parts) parts_.emplace_back(new PageRows(f));
    rows_.resize(m.page_tokens * width_);
    room_.resize(rounded_up(m.page_tokens > m.head_dim ? m.page_tokens : m.head_dim, LANES));
    for (const Sparse& s : m.sparse) values_.resize(most(values_.size(), int64_t(m.page_tokens) * s.slots));
    for (const LowRank& r : m.low_rank) {
      values_.resize(most(values_.size(), int64_t(m.page_tokens) * r.rank));
      right_.resize(most(right_.size(), int64_t(r.rank) * m.head_dim));
    }
  }

  // Tokens [at.token, at.token + n) of a page, `width` floats each.
  float* read(const Place& at, int64_t n) {
    float* rows = &rows_[at.token * width_];
    sum_terms(at, n, rows);
    undo_rows(m_, first_, int(m_.steps.size()), at, rows, n, width_, room_.data());
    return rows;
  }

  int64_t width() const { return width_; }

 private:
  static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

  void sum_terms(const Place& at, int64_t n, float* rows) {
    const bool whole = m_.parts.size() == 1 && m_.parts[0].head_dim == m_.head_dim;
    if (!whole) std::memset(rows, 0, size_t(n * width_) * sizeof(float));
    for (size_t i = 0; i < parts_.size(); ++i) {
      const float* from = parts_[i]->read(at.record, at.head, at.token, at.token + n);
      const int64_t dim = m_.parts[i].head_dim, step = parts_[i]->width();
      for (int64_t t = 0; t < n; ++t, from += step) {
        float* to = rows + t * width_ + m_.parts[i].first;
        if (whole) std::memcpy(to, from, size_t(dim) * sizeof(float));
        for (int64_t c = 0; !whole && c < dim; ++c) to[c] += from[c];
      }
    }
    for (const Sparse& s : m_.sparse) add_sparse(s, at, n, rows);
    for (const LowRank& r : m_.low_rank) add_low_rank(r, at, n, rows);
  }

  void add_sparse(const Sparse& s, const Place& at, int64_t n, float* rows) {
    const int64_t from = (int64_t(at.head) * m_.page_tokens + at.token) * s.slots;
    const uint8_t* index = at.record + s.index_at + from;
    to_floats(s.type, at.record + s.value_at + from * float_bytes(s.type), n * s.slots, values_.data());
    for (int64_t t = 0; t < n; ++t)
      for (int i = 0; i < s.slots; ++i) {
        const int c = index[t * s.slots + i];
        if (c < m_.head_dim) rows[t * width_ + c] += values_[t * s.slots + i];
      }
  }

  void add_low_rank(const LowRank& r, const Place& at, int64_t n, float* rows) {
    const int64_t left = (int64_t(at.head) * m_.page_tokens + at.token) * r.rank, chunks = m_.page_tokens / r.tokens;
    to_floats(r.left, at.record + r.left_at + left * float_bytes(r.left), n * r.rank, values_.data());
    int64_t have = -1;
    for (int64_t t = 0; t < n; ++t) {
      const int64_t chunk = (at.token + t) / r.tokens;
      if (chunk != have) {
        const int64_t numbers = int64_t(r.rank) * m_.head_dim, from = (at.head * chunks + chunk) * numbers;
        to_floats(r.right, at.record + r.right_at + from * float_bytes(r.right), numbers, right_.data());
        have = chunk;
      }
      for (int i = 0; i < r.rank; ++i) {
        const float by = values_[t * r.rank + i], *line = &right_[int64_t(i) * m_.head_dim];
        for (int c = 0; c < m_.head_dim; ++c) rows[t * width_ + c] += by * line[c];
      }
    }
  }

  const Method& m_;
  const int first_;
  const int64_t width_;
  std::vector<std::unique_ptr<PageRows>> parts_;
  Buffer<float> rows_, room_, values_, right_;
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
