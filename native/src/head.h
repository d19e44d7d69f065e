// Attention of one KV head's query rows: scores of a bounded run of tokens, online softmax, weighted values.
#pragma once

#include "keys.h"
#include "values.h"

namespace quantkv {
namespace QUANTKV_ISA {

class HeadReader {
 public:
  explicit HeadReader(const Request& r)
      : r_(r), keys_(r), values_(r), queries_(r.ratio * r.queries), run_(queries_ <= 16 ? 1024 : 256),
        width_(padded_dim(*r.value.method)), shifts_(shifts_of(*r.value.method)),
        apart_(folded_steps(*r.value.method) > 0) {
    scores_.resize(queries_ * (run_ + LANES));
  }

  // Positions [low, high) of one head. `top` and `total` hold one number for each query row, `masses` one for each
  // shift of the values and row, the sums `width` numbers each; `masses` and sums start as zeros. `packed_sums` are
  // `sums` where the values have no step to be undone.
  void run(int row, int head, int64_t low, int64_t high, float* top, float* total, float* masses, float* sums, float* packed_sums) {
    row_ = row;
    head_ = head;
    keys_.begin(row, head);
    values_.begin(row, head);
    for (int64_t m = 0; m < queries_; ++m) top[m] = -INFINITY;
    for (int64_t at = low, next; at < high; at = next) {
      next = edge_after(at, high);
      keys_.scores(at, next, scores_.data(), stride());
      for (int64_t m = 0; m < queries_; ++m) {
        float shrink = weigh(m, at, next, top[m], total[m]);
        scale(sums + m * width_, shrink);
        if (apart_) scale(packed_sums + m * width_, shrink);
        for (int i = 0; i < shifts_; ++i) masses[i * queries_ + m] *= shrink;
      }
      values_.add(at, next, scores_.data(), stride(), sums, apart_ ? packed_sums : sums, masses);
    }
  }

 private:
  int64_t stride() const { return run_ + LANES; }

  // Runs end where a tile of keys ends, so that no tile is computed twice.
  int64_t edge_after(int64_t at, int64_t high) const {
    const int64_t first = r_.pads[size_t(row_)] + r_.key.num_sinks;
    if (at < first) return least(first, least(at + run_, high));
    return least(at + run_ - (at - first) % TILE, high);
  }

  // Scores of query row m to probabilities relative to the running top; returns what older sums shrink by.
  float weigh(int64_t m, int64_t low, int64_t high, float& top, float& total) {
    float* s = &scores_[m * stride()];
    const int64_t n = high - low, padded = rounded_up(n, LANES);
    if (r_.softcap > 0.0f) cap(s, padded);
    for (int64_t i = n; i < padded; ++i) s[i] = -INFINITY;  // after the cap, which would bring them back
    hide(m, low, high, s);
    const float now = greatest(s, padded, top), safe = now == -INFINITY ? 0.0f : now;
    const float shrink = std::exp(top - safe);
    F16 sums = splat(0);
    for (int64_t i = 0; i < padded; i += LANES) {
      F16 p = exp(load(s + i) - splat(safe));
      store(s + i, p);
      sums = sums + p;
    }
    top = now;
    total = total * shrink + sum(sums);
    return shrink;
  }

  // Four maxima at a time, which do not wait for each other.
  static float greatest(const float* s, int64_t n, float top) {
    F16 most[4] = {splat(top), splat(top), splat(top), splat(top)};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
QUANTKV_UNROLL(4)
      for (int v = 0; v < 4; ++v) most[v] = at_least(most[v], load(s + i + v * LANES));
    for (; i < n; i += LANES) most[0] = at_least(most[0], load(s + i));
    return max_of(at_least(at_least(most[0], most[1]), at_least(most[2], most[3])));
  }

  void cap(float* s, int64_t n) const {
    const F16 most = splat(r_.softcap), inverse = splat(1.0f / r_.softcap);
    for (int64_t i = 0; i < n; i += LANES) store(s + i, tanh(load(s + i) * inverse) * most);
  }

  void hide(int64_t m, int64_t low, int64_t high, float* s) const {
    const int64_t query = m % r_.queries, q_head = int64_t(head_) * r_.ratio + m / r_.queries, n = high - low;
    if (r_.mask) {
      const int64_t* stride = r_.mask_strides;
      int64_t at = row_ * stride[0] + q_head * stride[1] + query * stride[2] + (low - r_.start) * stride[3];
      const float* numbers = reinterpret_cast<const float*>(r_.mask);
      if (r_.mask_is_bool)
        for (int64_t i = 0; i < n; ++i) s[i] = r_.mask[at + i * stride[3]] ? s[i] : -INFINITY;
      else
        for (int64_t i = 0; i < n; ++i) s[i] += numbers[at + i * stride[3]];
    }
    if (r_.causal)
      for (int64_t i = n - 1, last = r_.stop - r_.queries + query; i >= 0 && low + i > last; --i) s[i] = -INFINITY;
  }

  void scale(float* p, float by) const {
    if (by == 1.0f) return;
    for (int64_t i = 0; i < width_; i += LANES) store(p + i, load(p + i) * splat(by));
  }

  const Request& r_;
  Keys keys_;
  Values values_;
  const int64_t queries_, run_, width_;
  const int shifts_;
  const bool apart_;
  int row_ = 0, head_ = 0;
  Buffer<float> scores_;
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
