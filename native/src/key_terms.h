// What sparse and low-rank terms add to the scores of a tile of keys.
#pragma once

#include "rows.h"
#include "segments.h"

namespace quantkv {
namespace QUANTKV_ISA {

class KeyTerms {
 public:
  KeyTerms(const Method& m, int64_t queries, int64_t stride) : m_(m), queries_(queries), dim_(stride) {
    int64_t most = 0, numbers = 0, products = 0;
    for (const Sparse& s : m.sparse) most = s.slots > most ? s.slots : most;
    for (const LowRank& r : m.low_rank) {
      most = r.rank > most ? r.rank : most;
      numbers = r.rank > numbers ? r.rank : numbers;
      products += r.rank * queries;
      kept_.push_back(Kept{});
    }
    values_.resize(most * TILE);
    right_.resize(numbers * m.head_dim);
    products_.resize(products);
    by_channel_.resize(256 * queries);
  }

  void begin(int head, const float* queries) {
    head_ = head;
    query_ = queries;
    for (Kept& kept : kept_) kept = Kept{};
    for (int64_t m = 0; m < queries_ && !m_.sparse.empty(); ++m)
      for (int c = 0; c < m_.head_dim && c < 256; ++c) by_channel_[c * queries_ + m] = queries[m * dim_ + c];
  }

  // To out[m * stride + token] of the tile at `token`.
  void add(const uint8_t* record, int token, float* out, int64_t stride) {
    for (const Sparse& s : m_.sparse) add_sparse(s, record, token, out, stride);
    int64_t from = 0;
    for (size_t i = 0; i < m_.low_rank.size(); ++i) {
      add_low_rank(m_.low_rank[i], kept_[i], &products_[from], record, token, out, stride);
      from += m_.low_rank[i].rank * queries_;
    }
  }

 private:
  // The page and chunk that products are there for.
  struct Kept {
    const uint8_t* record = nullptr;
    int64_t chunk = -1;
  };

  // Channels beyond head_dim have zeros as queries.
  void add_sparse(const Sparse& s, const uint8_t* record, int token, float* out, int64_t stride) {
    const int64_t from = (int64_t(head_) * m_.page_tokens + token) * s.slots;
    const uint8_t* index = record + s.index_at + from;
    to_floats(s.type, record + s.value_at + from * float_bytes(s.type), int64_t(TILE) * s.slots, values_.data());
    for (int64_t t = 0, at = 0; t < TILE; ++t)
      for (int i = 0; i < s.slots; ++i, ++at) {
        const float *q = &by_channel_[index[at] * queries_], value = values_[at];
        for (int64_t m = 0; m < queries_; ++m) out[m * stride + t] += q[m] * value;
      }
  }

  void add_low_rank(const LowRank& r, Kept& kept, float* products, const uint8_t* record, int token, float* out, int64_t stride) {
    const int64_t from = (int64_t(head_) * m_.page_tokens + token) * r.rank;
    to_floats(r.left, record + r.left_at + from * float_bytes(r.left), int64_t(TILE) * r.rank, values_.data());
    for (int64_t t = 0; t < TILE;) {
      const int64_t chunk = (token + t) / r.tokens, end = least(TILE, (chunk + 1) * r.tokens - token);
      if (kept.record != record || kept.chunk != chunk) multiply_right(r, record, chunk, products);
      kept.record = record, kept.chunk = chunk;
      for (int64_t m = 0; m < queries_; ++m)
        for (int64_t at = t; at < end; ++at)
          for (int i = 0; i < r.rank; ++i) out[m * stride + at] += values_[at * r.rank + i] * products[m * r.rank + i];
      t = end;
    }
  }

  // Each query times each row of a chunk's right factor.
  void multiply_right(const LowRank& r, const uint8_t* record, int64_t chunk, float* products) {
    const int64_t numbers = int64_t(r.rank) * m_.head_dim, from = (head_ * int64_t(m_.page_tokens / r.tokens) + chunk) * numbers;
    to_floats(r.right, record + r.right_at + from * float_bytes(r.right), numbers, right_.data());
    for (int64_t m = 0; m < queries_; ++m)
      for (int i = 0; i < r.rank; ++i) {
        float total = 0.0f;
        for (int c = 0; c < m_.head_dim; ++c) total += query_[m * dim_ + c] * right_[i * int64_t(m_.head_dim) + c];
        products[m * r.rank + i] = total;
      }
  }

  const Method& m_;
  const int64_t queries_, dim_;
  int head_ = 0;
  const float* query_ = nullptr;
  std::vector<Kept> kept_;
  Buffer<float> values_, right_, products_, by_channel_;
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
