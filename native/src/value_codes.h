// Weighted sums of one term's codes of values.
#pragma once

#include "buffer.h"
#include "codes.h"
#include "rows.h"
#include "segments.h"

namespace quantkv {
namespace QUANTKV_ISA {

// Scales of whole tokens (`tokens`, perhaps one for each group of channels) go into the probabilities; scales of
// channels are applied to each group's finished sum (`channels`); `slow` decodes every element first.
class ValueCodes {
 public:
  // `width`: numbers of a query row's sums.
  ValueCodes(const Format& f, int64_t queries, int64_t width)
      : f_(f), codes_(f_), scales_(f_), queries_(queries), vectors_(vectors_of(f_)), page_(f_.page_tokens),
        groups_(f_.has_scale ? groups_of(f_) : 1), apart_(f_.head_dim % LANES && f_.first + vectors_ * LANES != width) {
    choose();
    list_parts();
    const int64_t n = groups_ * page_ > vectors_ * LANES ? groups_ * page_ : vectors_ * LANES;
    scale_.resize(n);
    zero_.resize(n);
    meta_.resize(2 * n);
    weights_.resize(groups_ * QUERIES * page_);
    lost_.resize(groups_ * QUERIES);
    if (apart_) own_.resize(queries * vectors_ * LANES);
    if (how_ == slow) decoded_.reset(new PageRows(f_));
  }

  // Adds tokens [from, to) of a page to sums[m * width + channel]; probabilities are p[m * stride + token - from].
  // `next` is the page after it.
  void add(const uint8_t* record, const uint8_t* next, int head, int64_t from, int64_t to, const float* p, int64_t stride,
           float* sums, int64_t width) {
    next_ = next, head_ = head, stride_ = stride;
    sums_ = apart_ ? own_.data() : sums + f_.first, width_ = apart_ ? vectors_ * LANES : width;
    rows(record, from, to, p);
    if (!apart_) return;
    for (int64_t m = 0; m < queries_; ++m)
      for (int c = 0; c < f_.head_dim; ++c) sums[m * width + f_.first + c] += own_[m * width_ + c];
    std::memset(own_.data(), 0, size_t(queries_ * width_) * sizeof(float));
  }

 private:
  enum How { raw, tokens, channels, slow };

  // A panel, the group of channels of each of its vectors, and the loop for so many query rows.
  struct Part {
    Panel panel;
    int64_t group[4];
    PanelFn run[QUERIES + 1];
  };

  void choose() {
    const int64_t group = f_.share_channels;
    how_ = !f_.has_scale ? raw : f_.share_channels == 1 && f_.head_dim > 1 ? channels : tokens;
    if (how_ == tokens && groups_ > 1) shared_ = group % 64 == 0 ? 4 : group % 32 == 0 ? 2 : 1;
    for (int v = 0; v < vectors_; v += panel_at(f_, v).vectors) {
      const int width = panel_at(f_, v).vectors;
      if (!codes_.loadable(width, how_ == channels ? f_.share_tokens : page_)) how_ = slow;
      step_ = step_ > panel_step(f_, width) ? step_ : panel_step(f_, width);
    }
    if (how_ == tokens && groups_ > 1 && group % LANES) how_ = slow;
  }

  // The panels of a page, and the loops that read them.
  void list_parts() {
    parts_.resize(vectors_);
    for (int v = 0; v < vectors_ && how_ != slow; v += panel_at(f_, v).vectors) {
      Part& part = parts_[num_parts_++];
      part = {panel_at(f_, v), {}, {}};
      const int width = part.panel.vectors, shared = width < shared_ ? width : shared_;
      for (int i = 0; i < width; ++i) part.group[i] = groups_ == 1 ? 0 : (v + i) * LANES / f_.share_channels;
      for (int m = 1; m <= QUERIES; ++m) part.run[m] = panel_for(kind_of(f_), m, width, how_ == tokens ? shared : 4);
    }
  }

  int count(int64_t m) const { return int(least(QUERIES, queries_ - m)); }

  // Runs one panel on the sums of query rows from m on.
  void accumulate(const Source& s, const Panel& panel, const Coefficients& c, int64_t m, int64_t from, int64_t to, PanelFn run) const {
    const int n = count(m), width = panel.vectors;
    float* at = sums_ + m * width_ + panel.first_vector * LANES;
    F16 acc[QUERIES * 4];
    for (int i = 0; i < n; ++i)
      for (int v = 0; v < width; ++v) acc[i * width + v] = load(at + i * width_ + v * LANES);
    run(s, c, int(from), int(to), acc);
    for (int i = 0; i < n; ++i)
      for (int v = 0; v < width; ++v) store(at + i * width_ + v * LANES, acc[i * width + v]);
  }

  // Tokens [from, to) of a page, the probabilities of the first at p.
  void rows(const uint8_t* record, int64_t from, int64_t to, const float* p) {
    if (how_ == slow) return slow_rows(record, from, to, p);
    if (how_ == tokens) spread_tokens(record, from, to);
    for (int64_t m = 0; m < queries_; m += QUERIES) {
      Coefficients c = weigh(m, from, to, p);
      if (how_ == channels) {
        by_channels(record, c, m, from, to);
        continue;
      }
      for (int n = 0; n < num_parts_; ++n) {
        const Part& part = parts_[n];
        for (int i = 0; how_ == tokens && i < part.panel.vectors; ++i) c.a[i] = &weights_[part.group[i] * QUERIES * page_];
        accumulate(source(record, part.panel), part.panel, c, m, from / step_ * step_,
                   rounded_up(to, step_), part.run[c.queries]);
      }
      if (how_ == tokens) add_zeros(m);
    }
  }

  // The first panel's loop fetches the scales of the next page too.
  Source source(const uint8_t* record, const Panel& panel) const {
    Source s = codes_.source(record, next_, head_, panel);
    const int64_t all = page_ / f_.share_tokens * groups_;
    if (panel.first_vector == 0 && !f_.derived) codes_.fetch_scales(s, next_, codes_.meta_at(head_, 0, groups_), all, page_);
    return s;
  }

  // Scale and zero of each token of a page, for each group of channels.
  void spread_tokens(const uint8_t* record, int64_t from, int64_t to) {
    const int64_t share = f_.share_tokens, first = from / share, last = (to - 1) / share;
    const bool plain = groups_ == 1 && share == 1;
    float *scale = plain ? &scale_[from] : meta_.data(), *zero = plain ? &zero_[from] : meta_.data() + groups_ * page_;
    scales_.read(record, head_, first, last - first + 1, scale, zero);
    if (plain) return;
    if (share == 1) {
      transpose(scale, to - from, groups_, &scale_[from], page_);
      return transpose(zero, to - from, groups_, &zero_[from], page_);
    }
    for (int64_t t = from; t < to; ++t)
      for (int64_t g = 0, e = (t / share - first) * groups_; g < groups_; ++g) {
        scale_[g * page_ + t] = scale[e + g];
        zero_[g * page_ + t] = zero[e + g];
      }
  }

  // Probabilities of query rows from m on, times the tokens' scales where they have their own, with zeros around
  // [from, to); and what the zeros of the codes add.
  Coefficients weigh(int64_t m, int64_t from, int64_t to, const float* p) {
    const int64_t low = from / step_ * step_, high = rounded_up(to, step_);
    if (how_ != tokens && low == from && high == to) return {p + m * stride_ - from, stride_, count(m)};
    for (int64_t g = 0; g < (how_ == tokens ? groups_ : 1); ++g) {
      float* w = &weights_[g * QUERIES * page_];
      for (int i = 0; i < count(m); ++i) {
        for (int64_t t = low; t < from; ++t) w[i * page_ + t] = 0.0f;
        for (int64_t t = to; t < high; ++t) w[i * page_ + t] = 0.0f;
        if (how_ != tokens) std::memcpy(w + i * page_ + from, p + (m + i) * stride_, size_t(to - from) * sizeof(float));
      }
      int i = how_ == tokens ? 0 : count(m);
      for (; i + QUERIES <= count(m); i += QUERIES) weigh_rows<QUERIES>(g, m, i, p, w + i * page_, from, to);
      for (; i < count(m); ++i) weigh_rows<1>(g, m, i, p, w + i * page_, from, to);
    }
    return {weights_.data(), page_, count(m)};
  }

  // M query rows, `first` of them after m, with the scales and zeros of one group of channels.
  template <int M>
  void weigh_rows(int64_t group, int64_t m, int first, const float* p, float* w, int64_t from, int64_t to) {
    const float *scale = &scale_[group * page_ + from], *zero = &zero_[group * page_ + from];
    const float* in = p + (m + first) * stride_;
    const int64_t n = to - from, whole = n / LANES * LANES, stride = stride_, page = page_;
    float *lost = &lost_[group * QUERIES + first], *out = w + from;
    F16 total[M];
QUANTKV_UNROLL(4)
    for (int i = 0; i < M; ++i) total[i] = splat(0);
    for (int64_t t = 0; t < whole; t += LANES) {
      const F16 by = load(scale + t), add = load(zero + t);
QUANTKV_UNROLL(4)
      for (int i = 0; i < M; ++i) {
        const F16 x = load(in + i * stride + t);
        store(out + i * page + t, x * by);
        total[i] = fma(x, add, total[i]);
      }
    }
QUANTKV_UNROLL(4)
    for (int i = 0; i < M; ++i) lost[i] = sum(total[i]);
    for (int i = 0; i < M; ++i)
      for (int64_t t = whole; t < n; ++t) {
        out[i * page + t] = in[i * stride + t] * scale[t];
        lost[i] += in[i * stride + t] * zero[t];
      }
  }

  // What the zeros of a page's codes add to query rows from m on. Page by page: codes alone sum up to much larger
  // numbers, and the difference would lose what those round off.
  void add_zeros(int64_t m) {
    for (int i = 0; i < count(m); ++i)
      for (int n = 0; n < num_parts_; ++n) {
        const Part& part = parts_[n];
        float* at = sums_ + (m + i) * width_ + part.panel.first_vector * LANES;
        for (int v = 0; v < part.panel.vectors; ++v, at += LANES)
          store(at, load(at) + splat(lost_[part.group[v] * QUERIES + i]));
      }
  }

  // Each group of tokens summed apart, then scaled channel by channel.
  void by_channels(const uint8_t* record, const Coefficients& c, int64_t m, int64_t from, int64_t to) {
    const int64_t share = f_.share_tokens;
    for (int64_t entry = from / share; entry * share < to; ++entry) {
      const int64_t low = entry * share > from ? entry * share : from, high = least((entry + 1) * share, to);
      const ChannelScales by = scales_.of_channels(codes_, record, head_, entry, meta_.data());
      float p[QUERIES];
      for (int i = 0; i < c.queries; ++i) p[i] = sum_of(c.a[0] + i * c.stride, low, high);
      for (int n = 0; n < num_parts_; ++n) {
        const Part& part = parts_[n];
        F16 acc[QUERIES * 4];
        for (int i = 0; i < c.queries * part.panel.vectors; ++i) acc[i] = splat(0);
        part.run[c.queries](source(record, part.panel), c, int(low / step_ * step_), int(rounded_up(high, step_)), acc);
        if (c.queries == QUERIES && part.panel.vectors == 4) add_scaled<QUERIES, 4>(part.panel, m, acc, p, by);
        else add_scaled<0, 0>(part.panel, m, acc, p, by);
      }
    }
  }

  // One group's sums `acc` [rows][vectors], scaled, and its zeros times the probabilities. M rows and NV vectors; 0:
  // as many as there are.
  template <int M, int NV>
  void add_scaled(const Panel& panel, int64_t m, const F16* acc, const float* p, const ChannelScales& by) {
    const int n = M ? M : count(m), width = NV ? NV : panel.vectors;
    const int64_t row = width_;
QUANTKV_UNROLL(4)
    for (int v = 0; v < width; ++v) {
      const int64_t c = (panel.first_vector + v) * LANES;
      const F16 scale = by.scales(c), zero = by.zeros(c, scale);
      float* sums = sums_ + m * row + c;
QUANTKV_UNROLL(4)
      for (int i = 0; i < n; ++i)
        store(sums + i * row, fma(scale, acc[i * width + v], fma(zero, splat(p[i]), load(sums + i * row))));
    }
  }

  static float sum_of(const float* w, int64_t low, int64_t high) {
    F16 lanes = splat(0);
    int64_t t = low;
    for (; t + LANES <= high; t += LANES) lanes = lanes + load(w + t);
    float total = sum(lanes);
    for (; t < high; ++t) total += w[t];
    return total;
  }

  void slow_rows(const uint8_t* record, int64_t from, int64_t to, const float* p) {
    const int64_t width = vectors_ * LANES;
    const uint8_t* base = reinterpret_cast<const uint8_t*>(decoded_->read(record, head_, from, to));
    for (int64_t m = 0; m < queries_; m += QUERIES)
      for (int v = 0; v < vectors_; v += panel_at(f_, v).vectors) {
        const Panel panel = panel_at(f_, v);
        const Coefficients c(p + m * stride_, stride_, count(m));
        accumulate(plain_source(base + v * LANES * 4, width * 4), panel, c, m, 0, to - from,
                   for_shape<LoadF32>(count(m), panel.vectors, 4));
      }
  }

  const Format& f_;
  const Codes codes_;
  const Scales scales_;
  const int64_t queries_;
  const int vectors_;
  const int64_t page_, groups_;
  const bool apart_;  // the last vector reaches into other channels: sums of its own
  How how_ = raw;
  Buffer<Part> parts_;
  int num_parts_ = 0;
  int shared_ = 4;     // vectors that share probabilities
  int64_t step_ = 1;   // rows that the loaders of all panels can start at
  int head_ = 0;
  const uint8_t* next_ = nullptr;  // the page after the one at hand
  int64_t stride_ = 0, width_ = 0;
  float* sums_ = nullptr;
  Buffer<float> scale_, zero_, meta_, weights_, lost_, own_;
  std::unique_ptr<PageRows> decoded_;
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
