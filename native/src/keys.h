// Scores of one head's query rows against its keys, packed and exact.
#pragma once

#include "key_codes.h"
#include "key_terms.h"
#include "key_turns.h"

namespace quantkv {
namespace QUANTKV_ISA {

// Steps before the first turn go into the query of packed keys and into what is done to their scores; from it on
// they are undone tile by tile.
class Keys {
 public:
  explicit Keys(const Request& r)
      : r_(r), m_(*r.key.method), queries_(r.ratio * r.queries), dim_(rounded_up(m_.head_dim, 32)), folded_(folded_steps(m_)) {
    const int64_t rows = rounded_up(queries_, QUERIES);
    query_.resize(rows * dim_);
    packed_query_.resize(rows * dim_);
    bias_.resize(rows * (folded_ + 1));
    room_.resize(dim_ > TILE ? dim_ : TILE);
    line_.resize(dim_);
    part_.resize(queries_ * TILE);
    if (folded_ < int(m_.steps.size())) {
      turned_.reset(new TurnedKeys(m_, queries_, dim_));
      return;
    }
    for (const Format& f : m_.parts) parts_.emplace_back(new KeyCodes(f, queries_));
    if (!m_.sparse.empty() || !m_.low_rank.empty()) terms_.reset(new KeyTerms(m_, queries_, dim_));
  }

  void begin(int row, int head) {
    row_ = row;
    head_ = head;
    load_queries();
    std::memcpy(packed_query_.data(), query_.data(), size_t(queries_ * dim_) * sizeof(float));
    fold();
    for (auto& part : parts_) part->begin(head, packed_query_.data(), dim_);
    if (terms_) terms_->begin(head, packed_query_.data());
    if (turned_) turned_->begin(packed_query_.data());
  }

  // Scores of positions [low, high) go to scores[m * stride + position - low].
  void scores(int64_t low, int64_t high, float* scores, int64_t stride) {
    scores_ = scores;
    low_ = low;
    stride_ = stride;
    for_segments(r_.key, row_, head_, r_.pads[size_t(row_)], low, high, *this);
  }

  void nothing(int64_t low, int64_t high) {
    for (int64_t m = 0; m < queries_; ++m)
      for (int64_t i = low; i < high; ++i) scores_[m * stride_ + i - low_] = 0.0f;
  }

  void exact(const uint8_t* p, int64_t bytes, int64_t low, int64_t high) {
    const bool direct = r_.key.exact == Float::f32 && m_.head_dim % LANES == 0;
    const int64_t vectors = (m_.head_dim + LANES - 1) / LANES;
    for (int64_t at = low; at < high; ++at, p += bytes) {
      if (!direct) to_floats(r_.key.exact, p, m_.head_dim, line_.data());
      const float* k = direct ? reinterpret_cast<const float*>(p) : line_.data();
      for (int64_t m = 0; m < queries_; m += QUERIES) {
        const float* q = query_.data() + m * dim_;
        F16 acc[QUERIES] = {splat(0), splat(0), splat(0), splat(0)};
        for (int64_t v = 0; v < vectors; ++v) {
          F16 x = load(k + v * LANES);
          for (int i = 0; i < QUERIES; ++i) acc[i] = fma(load(q + i * dim_ + v * LANES), x, acc[i]);
        }
        for (int i = 0; i < least(QUERIES, queries_ - m); ++i) scores_[(m + i) * stride_ + at - low_] = sum(acc[i]);
      }
    }
  }

  void packed(int64_t begin, int64_t end, int64_t position) {
    const auto& pages = (*r_.key.pages)[size_t(row_)];
    int page = int(begin) / m_.page_tokens, inside = int(begin) % m_.page_tokens / TILE * TILE;
    for (int64_t token = begin / TILE * TILE; token < end; token += TILE, inside += TILE) {
      if (inside == m_.page_tokens) ++page, inside = 0;
      const uint8_t* record = pages[size_t(page)];
      next_ = size_t(page) + 1 < pages.size() ? pages[size_t(page) + 1] : record;
      const int64_t from = token < begin ? begin - token : 0, until = least(TILE, end - token);
      float* to = scores_ + (position + token + from - begin - low_);
      if (until - from == TILE) {
        tile(record, token, inside, to, stride_);
        continue;
      }
      tile(record, token, inside, part_.data(), TILE);
      for (int64_t m = 0; m < queries_; ++m)
        std::memcpy(to + m * stride_, &part_[m * TILE + from], size_t(until - from) * sizeof(float));
    }
  }

 private:
  void load_queries() {
    const int bytes = float_bytes(r_.query_type);
    for (int64_t m = 0; m < queries_; ++m) {
      int64_t q_head = int64_t(head_) * r_.ratio + m / r_.queries;
      int64_t at = row_ * r_.query_strides[0] + q_head * r_.query_strides[1] + m % r_.queries * r_.query_strides[2];
      float* out = &query_[m * dim_];
      to_floats(r_.query_type, r_.query + at * bytes, m_.head_dim, out);
      for (int64_t c = 0; c < m_.head_dim; ++c) out[c] *= r_.scaling;
    }
  }

  // Takes the packed keys' queries through the steps; a shift's share of the score is its product with the query there.
  void fold() {
    const Place at{r_.key.known, row_, head_};
    for (int i = 0; i < folded_; ++i) {
      const Step& s = m_.steps[size_t(i)];
      for (int64_t m = 0; m < queries_; ++m) {
        float* q = &packed_query_[m * dim_];
        fold_into(m_, s, at, q, room_.data());
        if (s.what != Do::shift) continue;
        const float* mean = state_of(m_, s, at);
        double total = 0.0;
        for (int c = 0; c < m_.head_dim; ++c) total += double(q[c]) * double(mean[c]);
        bias_[i * queries_ + m] = float(total);
      }
    }
  }

  void tile(const uint8_t* record, int64_t token, int inside, float* out, int64_t stride) {
    Place at{r_.key.known, row_, head_, record, inside, token};
    if (turned_) {
      at.position += r_.key.known->positions[size_t(row_)];
      turned_->tile(at, next_, out, stride);
    }
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i]->tile(record, next_, inside, out, stride, i > 0);
    if (terms_) terms_->add(record, inside, out, stride);
    for (int i = folded_ - 1; i >= 0; --i) finish(m_.steps[size_t(i)], i, at, out, stride);
  }

  // What an undone step does to the scores of a tile.
  void finish(const Step& s, int step, const Place& at, float* out, int64_t stride) {
    if (s.what != Do::token_scale && s.what != Do::shift) return;
    if (s.what == Do::token_scale) token_scales(m_, s, at, TILE, room_.data());
    for (int64_t m = 0; m < queries_; ++m)
      for (int64_t t = 0; t < TILE; t += LANES) {
        float* to = out + m * stride + t;
        store(to, s.what == Do::shift ? load(to) + splat(bias_[step * queries_ + m]) : load(to) * load(&room_[t]));
      }
  }

  const Request& r_;
  const Method& m_;
  const int64_t queries_, dim_;
  const int folded_;  // steps
  int row_ = 0, head_ = 0;
  float* scores_ = nullptr;
  int64_t stride_ = 0, low_ = 0;
  Buffer<float> query_, packed_query_, bias_, room_, line_, part_;
  const uint8_t* next_ = nullptr;  // the page after the one at hand
  std::vector<std::unique_ptr<KeyCodes>> parts_;
  std::unique_ptr<KeyTerms> terms_;
  std::unique_ptr<TurnedKeys> turned_;
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
