// Scores of one term's codes.
#pragma once

#include "buffer.h"
#include "codes.h"
#include "rows.h"
#include "segments.h"

namespace quantkv {
namespace QUANTKV_ISA {

// What one scale covers decides where it is applied: nowhere (raw), to each token's finished sum (`lanes`), to the
// query before the sum (`channels`), or to every element, decoded first (`slow`).
class KeyCodes {
 public:
  KeyCodes(const Format& f, int64_t queries)
      : f_(f), codes_(f_), scales_(f_), queries_(queries), dim_(rounded_up(f_.head_dim, 32)),
        groups_(f_.has_scale ? groups_of(f_) : 1), wide_(dim_ + 32) {
    choose();
    const int64_t rows = rounded_up(queries_, QUERIES);
    query_.resize(rows * dim_);
    query_sums_.resize(rows * groups_);
    folded_.resize(4 * rows * dim_);
    folded_zero_.resize(4 * rows);
    lane_scale_.resize(groups_ * TILE);
    lane_zero_.resize(groups_ * TILE);
    meta_.resize(2 * (dim_ > groups_ * TILE ? dim_ : groups_ * TILE) + 32);
    if (how_ == raw) for (int t = 0; t < TILE; ++t) lane_scale_[t] = 1.0f;
    spread_ = how_ == slow ? nullptr : spread_for(kind_of(f_), how_ != channels);
    spread_rows_.resize(8 * wide_);
    if (how_ == slow) {
      decoded_.resize(f_.head_dim * TILE);
      tokens_.reset(new PageRows(f_));
    }
    for (int m = 1; m <= QUERIES; ++m) run_[m] = how_ == slow ? for_shape<LoadF32>(m, 4, 4) : panel_for(kind_of(f_), m, 4, shared_);
  }

  // Queries of a head, `stride` apart, all its channels.
  void begin(int head, const float* queries, int64_t stride) {
    head_ = head;
    for (auto& record : folded_from_) record = nullptr;
    for (int64_t m = 0; m < queries_; ++m) {
      std::memcpy(&query_[m * dim_], queries + m * stride + f_.first, size_t(f_.head_dim) * sizeof(float));
      for (int64_t g = 0; how_ == lanes && g < groups_; ++g) query_sums_[g * rounded_up(queries_, QUERIES) + m] = group_sum(m, g);
    }
  }

  // Scores of the tile at `token` of a page go to out[m * stride + token], or are added to what is there. `next` is the
  // page after it.
  void tile(const uint8_t* record, const uint8_t* next, int token, float* out, int64_t stride, bool add) {
    next_ = next;
    prepare(record, token);
    score(record, token, out, stride, add);
  }

  // Elements of a tile, with `plus` of their channel added, to [channels][64]; there is room for 31 channels more.
  void numbers(const uint8_t* record, const uint8_t* next, int head, int token, const float* plus, float* out) {
    head_ = head, next_ = next;
    if (how_ == slow) return add_transposed(record, token, plus, out);
    if (how_ == lanes) spread_lanes(record, token);
    const Source source = codes_.source(record, next_, head_, Panel{f_.head_dim, 4, token / LANES});
    Spread by;
    for (int v = 0; v < 4 && how_ == channels; ++v) spread_channels(record, token, v, plus, by);
    const int64_t run = how_ == lanes ? f_.share_channels : f_.head_dim;
    for (int64_t g = 0; g * run < f_.head_dim; ++g) {
      if (how_ != channels) by.scale = &lane_scale_[g * TILE], by.zero = &lane_zero_[g * TILE], by.plus[0] = plus;
      spread_(source, by, int(g * run), int((g + 1) * run), out);
    }
  }

 private:
  enum How { raw, lanes, channels, slow };

  void add_transposed(const uint8_t* record, int token, const float* plus, float* out) {
    transposed(record, token, out);
    for (int c = 0; c < f_.head_dim; ++c)
      for (int t = 0; t < TILE; t += LANES) store(out + c * TILE + t, load(out + c * TILE + t) + splat(plus[c]));
  }

  // Scales of one vector's channels, and their zeros with `plus` added.
  void spread_channels(const uint8_t* record, int token, int v, const float* plus, Spread& out) {
    float *by = &spread_rows_[v / shared_ * 2 * wide_], *zeros = by + wide_;
    out.by[v] = by, out.plus[v] = zeros;
    if (v % shared_) return;
    const ChannelScales from = scales_.of_channels(codes_, record, head_, (token + v * LANES) / f_.share_tokens, meta_.data());
    for (int64_t c = 0; c < f_.head_dim; c += LANES) {
      const F16 scale = from.scales(c);
      store(by + c, scale);
      store(zeros + c, from.zeros(c, scale) + load(plus + c));
    }
  }

  void choose() {
    const int64_t tokens = f_.share_tokens;
    how_ = !f_.has_scale ? raw : f_.share_channels == 1 && f_.head_dim > 1 ? channels : lanes;
    if (how_ == channels) shared_ = tokens % 64 == 0 ? 4 : tokens % 32 == 0 ? 2 : 1;
    const int64_t run = how_ == lanes && groups_ > 1 ? f_.share_channels : f_.head_dim;
    // one plane may end in a block that is not full; two planes would be read past the shorter one
    const int64_t whole = f_.planes.size() < 2 && run == f_.head_dim ? 0 : run;
    if (!codes_.loadable(4, whole) || (how_ == channels && tokens % LANES)) how_ = slow;
  }

  float group_sum(int64_t m, int64_t group) const {
    float total = 0.0f;
    for (int64_t c = 0; c < f_.share_channels; ++c) total += query_[m * dim_ + group * f_.share_channels + c];
    return total;
  }

  // What all query rows need of the tile at `token` of a page.
  void prepare(const uint8_t* record, int token) {
    if (how_ == lanes) spread_lanes(record, token);
    if (how_ == slow) transposed(record, token, decoded_.data());
    for (int g = 0; how_ == channels && g < 4 / shared_; ++g) {
      int entry = (token + g * shared_ * LANES) / f_.share_tokens;
      if (folded_from_[g] == record && folded_entry_[g] == entry) continue;
      fold(g, record, entry);
      folded_from_[g] = record;
      folded_entry_[g] = entry;
    }
  }

  void transposed(const uint8_t* record, int token, float* out) {
    const float* from = tokens_->read(record, head_, token, token + TILE);
    for (int t = 0; t < TILE; ++t, from += tokens_->width())
      for (int c = 0; c < f_.head_dim; ++c) out[c * TILE + t] = from[c];
  }

  // Scale and zero of each of the 64 tokens, for each group of channels.
  void spread_lanes(const uint8_t* record, int token) {
    const int first = token / f_.share_tokens, last = (token + TILE - 1) / f_.share_tokens;
    const bool plain = groups_ == 1 && f_.share_tokens == 1;
    float *scale = plain ? lane_scale_.data() : meta_.data(), *zero = plain ? lane_zero_.data() : meta_.data() + groups_ * TILE;
    scales_.read(record, head_, first, last - first + 1, scale, zero);
    if (plain) return;
    if (f_.share_tokens == 1) {
      transpose(scale, TILE, groups_, lane_scale_.data(), TILE);
      return transpose(zero, TILE, groups_, lane_zero_.data(), TILE);
    }
    for (int64_t t = 0; t < TILE; ++t)
      for (int64_t g = 0, e = ((token + t) / f_.share_tokens - first) * groups_; g < groups_; ++g) {
        lane_scale_[g * TILE + t] = scale[e + g];
        lane_zero_[g * TILE + t] = zero[e + g];
      }
  }

  // The queries times one entry's channel scales, and their products with its zeros.
  void fold(int group, const uint8_t* record, int64_t entry) {
    const ChannelScales by = scales_.of_channels(codes_, record, head_, entry, meta_.data());
    const int64_t rows = rounded_up(queries_, QUERIES);
    int64_t m = 0;
    for (; m + QUERIES <= queries_; m += QUERIES) fold_rows<QUERIES>(group * rows + m, m, by);
    for (; m < queries_; ++m) fold_rows<1>(group * rows + m, m, by);
  }

  // M queries from m on to `folded_` from row `to` on.
  template <int M>
  void fold_rows(int64_t to, int64_t m, const ChannelScales& by) {
    const int64_t dim = dim_, width = rounded_up(f_.head_dim, LANES);
    const float* q = query_.data() + m * dim;
    float* out = folded_.data() + to * dim;
    F16 total[M];
QUANTKV_UNROLL(4)
    for (int i = 0; i < M; ++i) total[i] = splat(0);
    for (int64_t c = 0; c < width; c += LANES) {
      const F16 scale = by.scales(c), zero = by.zeros(c, scale);
QUANTKV_UNROLL(4)
      for (int i = 0; i < M; ++i) {
        const F16 x = load(q + i * dim + c);
        store(out + i * dim + c, x * scale);
        total[i] = fma(x, zero, total[i]);
      }
    }
QUANTKV_UNROLL(4)
    for (int i = 0; i < M; ++i) folded_zero_[to + i] = sum(total[i]);
  }

  void score(const uint8_t* record, int token, float* out, int64_t stride, bool add) const {
    const int64_t rows = rounded_up(queries_, QUERIES);
    Source source = how_ == slow ? plain_source(decoded_.data(), TILE * 4)
                                 : codes_.source(record, next_, head_, Panel{f_.head_dim, 4, token / LANES});
    const int64_t first = token / f_.share_tokens, entries = (TILE + f_.share_tokens - 1) / f_.share_tokens;
    if (how_ != slow && !f_.derived) codes_.fetch_scales(source, next_, codes_.meta_at(head_, first, groups_), entries * groups_, f_.head_dim);
    for (int64_t m = 0; m < queries_; m += QUERIES) {
      const int count = int(least(QUERIES, queries_ - m));
      F16 acc[QUERIES * 4];
      if (how_ == lanes) {
        by_lanes(source, m, count, acc);
      } else {
        Coefficients c(query_.data() + m * dim_, dim_, count);
        for (int v = 0; how_ == channels && v < 4; ++v) c.a[v] = folded_.data() + (v / shared_ * rows + m) * dim_;
        for (int v = 0; v < 4; ++v)
          for (int i = 0; i < count; ++i)
            acc[i * 4 + v] = splat(how_ == channels ? folded_zero_[v / shared_ * rows + m + i] : 0.0f);
        run_[count](source, c, 0, int(f_.head_dim), acc);
      }
      for (int i = 0; i < count * 4; ++i) {
        float* to = out + (m + i / 4) * stride + i % 4 * LANES;
        store(to, add ? acc[i] + load(to) : acc[i]);
      }
    }
  }

  // Sums over each group of channels, scaled by their tokens' own scales.
  void by_lanes(const Source& source, int64_t m, int count, F16* out) const {
    const int64_t rows = rounded_up(queries_, QUERIES), run = f_.share_channels;
    const Coefficients c(query_.data() + m * dim_, dim_, count);
    for (int i = 0; i < count * 4; ++i) out[i] = splat(0);
    for (int64_t g = 0; g < groups_; ++g) {
      F16 acc[QUERIES * 4];
      for (int i = 0; i < count * 4; ++i) acc[i] = splat(0);
      run_[count](source, c, int(g * run), int((g + 1) * run), acc);
      for (int i = 0; i < count * 4; ++i) {
        int64_t lane = g * TILE + i % 4 * LANES;
        F16 total = splat(query_sums_[g * rows + m + i / 4]);
        out[i] = fma(load(&lane_scale_[lane]), acc[i], fma(load(&lane_zero_[lane]), total, out[i]));
      }
    }
  }

  const Format& f_;
  const Codes codes_;
  const Scales scales_;
  const int64_t queries_, dim_, groups_, wide_;
  How how_ = raw;
  int shared_ = 4;  // vectors of a tile that share coefficients
  PanelFn run_[QUERIES + 1] = {};
  SpreadFn spread_ = nullptr;
  int head_ = 0;
  Buffer<float> query_, query_sums_, folded_, folded_zero_, lane_scale_, lane_zero_, meta_, decoded_, spread_rows_;
  const uint8_t* next_ = nullptr;  // the page after the one at hand
  const uint8_t* folded_from_[4] = {};
  int64_t folded_entry_[4] = {};
  std::unique_ptr<PageRows> tokens_;
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
