// Sums of one head's values, packed and exact, weighted by every query row's probabilities.
#pragma once

#include "buffer.h"
#include "codes.h"
#include "rows.h"
#include "segments.h"

namespace quantkv {
namespace QUANTKV_ISA {

// Scales of whole tokens (`tokens`, perhaps one for each group of channels) go into the probabilities; scales of
// channels are applied to each group's finished sum (`channels`); `slow` decodes every element first.
class Values {
 public:
  explicit Values(const Request& r)
      : r_(r), f_(*r.value.format), codes_(f_), queries_(r.ratio * r.queries),
        vectors_(vectors_of(f_)), page_(f_.page_tokens), groups_(f_.has_scale ? groups_of(f_) : 1) {
    choose();
    list_parts();
    const int64_t n = groups_ * page_ > vectors_ * LANES ? groups_ * page_ : vectors_ * LANES;
    scale_.resize(n);
    zero_.resize(n);
    meta_.resize(2 * n);
    weights_.resize(groups_ * QUERIES * page_);
    lost_.resize(groups_ * QUERIES);
    line_.resize(TILE * vectors_ * LANES);
    if (how_ == slow) decoded_.reset(new PageRows(f_));
  }

  void begin(int row, int head) {
    row_ = row;
    head_ = head;
  }

  // Adds positions [low, high) to sums[m][vector * 16 + lane]; probabilities are p[m * stride + position - low].
  // Packed tokens go to `packed_sums`, their probabilities to `mass`, where those are given.
  void add(int64_t low, int64_t high, const float* p, int64_t stride, float* sums, float* packed_sums, float* mass) {
    p_ = p;
    low_ = low;
    stride_ = stride;
    sums_ = sums;
    packed_sums_ = packed_sums ? packed_sums : sums;
    mass_ = mass;
    for_segments(r_.value, row_, head_, r_.pads[size_t(row_)], low, high, *this);
  }

  void nothing(int64_t, int64_t) {}

  void exact(const uint8_t* p, int64_t bytes, int64_t low, int64_t high) {
    if (f_.head_dim % LANES == 0) return exact_rows(r_.value.exact, p, bytes, low, high);
    const int64_t width = vectors_ * LANES;
    for (int64_t at = low; at < high; at += TILE) {
      const int64_t count = least(TILE, high - at);
      for (int64_t i = 0; i < count; ++i, p += bytes) to_floats(r_.value.exact, p, f_.head_dim, &line_[i * width]);
      exact_rows(Float::f32, reinterpret_cast<const uint8_t*>(line_.data()), width * 4, at, at + count);
    }
  }

  void packed(int64_t begin, int64_t end, int64_t position) {
    const auto& pages = (*r_.value.pages)[size_t(row_)];
    for (int64_t at = begin; at < end;) {
      const int64_t page = at / page_, stop = least(end, (page + 1) * page_);
      const uint8_t* record = pages[size_t(page)];
      next_ = size_t(page) + 1 < pages.size() ? pages[size_t(page) + 1] : record;
      const float* p = p_ + (position + at - begin - low_);
      if (mass_) add_mass(p, stop - at);
      rows(record, at - page * page_, stop - page * page_, p);
      at = stop;
    }
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

  void add_mass(const float* p, int64_t n) {
    for (int64_t m = 0; m < queries_; ++m)
      for (int64_t i = 0; i < n; ++i) mass_[m] += p[m * stride_ + i];
  }

  void exact_rows(Float type, const uint8_t* p, int64_t bytes, int64_t low, int64_t high) {
    for (int64_t m = 0; m < queries_; m += QUERIES) {
      const Coefficients c(p_ + (m * stride_ + low - low_), stride_, count(m));
      for (int v = 0; v < vectors_; v += panel_at(f_, v).vectors) {
        const Panel panel = panel_at(f_, v);
        const Source source = plain_source(p + v * LANES * float_bytes(type), bytes);
        accumulate(source, panel, c, m, 0, int(high - low), sums_, panel_for(kind_of(type), count(m), panel.vectors, 4));
      }
    }
  }

  int count(int64_t m) const { return int(least(QUERIES, queries_ - m)); }

  // Runs one panel on the sums of query rows from m on.
  void accumulate(const Source& s, const Panel& panel, const Coefficients& c, int64_t m, int64_t from, int64_t to, float* sums, PanelFn run) const {
    const int n = count(m), width = panel.vectors;
    float* at = sums + m * vectors_ * LANES + panel.first_vector * LANES;
    F16 acc[QUERIES * 4];
    for (int i = 0; i < n; ++i)
      for (int v = 0; v < width; ++v) acc[i * width + v] = load(at + (i * vectors_ + v) * LANES);
    run(s, c, int(from), int(to), acc);
    for (int i = 0; i < n; ++i)
      for (int v = 0; v < width; ++v) store(at + (i * vectors_ + v) * LANES, acc[i * width + v]);
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
                   rounded_up(to, step_), packed_sums_, part.run[c.queries]);
      }
      if (how_ == tokens) add_zeros(m);
    }
  }

  // The first panel's loop fetches the scales of the next page too.
  Source source(const uint8_t* record, const Panel& panel) const {
    Source s = codes_.source(record, next_, head_, panel);
    const int64_t all = page_ / f_.share_tokens * groups_;
    if (panel.first_vector == 0) codes_.fetch_scales(s, next_, codes_.meta_at(head_, 0, groups_), all, page_);
    return s;
  }

  // Scale and zero of each token of a page, for each group of channels.
  void spread_tokens(const uint8_t* record, int64_t from, int64_t to) {
    const int64_t share = f_.share_tokens, first = from / share, last = (to - 1) / share;
    const bool plain = groups_ == 1 && share == 1;
    float *scale = plain ? &scale_[from] : meta_.data(), *zero = plain ? &zero_[from] : meta_.data() + groups_ * page_;
    scales_of(f_, record, codes_.meta_at(head_, first, groups_), (last - first + 1) * groups_, scale, zero);
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
        float* at = packed_sums_ + ((m + i) * vectors_ + part.panel.first_vector) * LANES;
        for (int v = 0; v < part.panel.vectors; ++v, at += LANES)
          store(at, load(at) + splat(lost_[part.group[v] * QUERIES + i]));
      }
  }

  // Each group of tokens summed apart, then scaled channel by channel.
  void by_channels(const uint8_t* record, const Coefficients& c, int64_t m, int64_t from, int64_t to) {
    const int64_t share = f_.share_tokens;
    for (int64_t entry = from / share; entry * share < to; ++entry) {
      const int64_t low = entry * share > from ? entry * share : from, high = least((entry + 1) * share, to);
      const ChannelScales by = codes_.channel_scales(record, head_, entry, meta_.data());
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
    const int64_t row = vectors_ * LANES;
QUANTKV_UNROLL(4)
    for (int v = 0; v < width; ++v) {
      const int64_t c = (panel.first_vector + v) * LANES;
      const F16 scale = by.scales(c), zero = by.zeros(c, scale);
      float* sums = packed_sums_ + m * row + c;
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
        accumulate(plain_source(base + v * LANES * 4, width * 4), panel, c, m, 0, to - from, packed_sums_,
                   for_shape<LoadF32>(count(m), panel.vectors, 4));
      }
  }

  const Request& r_;
  const Format& f_;
  const Codes codes_;
  const int64_t queries_;
  const int vectors_;
  const int64_t page_, groups_;
  How how_ = raw;
  Buffer<Part> parts_;
  int num_parts_ = 0;
  int shared_ = 4;     // vectors that share probabilities
  int64_t step_ = 1;   // rows that the loaders of all panels can start at
  int row_ = 0, head_ = 0;
  const uint8_t* next_ = nullptr;  // the page after the one at hand
  const float* p_ = nullptr;
  int64_t stride_ = 0, low_ = 0;
  float *sums_ = nullptr, *packed_sums_ = nullptr, *mass_ = nullptr;
  Buffer<float> scale_, zero_, meta_, weights_, lost_, line_;
  std::unique_ptr<PageRows> decoded_;
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
