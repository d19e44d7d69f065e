// Scores of one head's query rows against its keys, packed and exact.
#pragma once

#include "buffer.h"
#include "codes.h"
#include "rows.h"
#include "segments.h"

namespace quantkv {
namespace QUANTKV_ISA {

// What one scale covers decides where it is applied: nowhere (raw), to each token's finished sum (`lanes`), to the
// query before the sum (`channels`), or to every element, decoded first (`slow`).
class Keys {
 public:
  explicit Keys(const Request& r)
      : r_(r), f_(*r.key.format), codes_(f_), queries_(r.ratio * r.queries), dim_(rounded_up(f_.head_dim, 32)),
        groups_(f_.has_scale ? groups_of(f_) : 1) {
    choose();
    const int64_t rows = rounded_up(queries_, QUERIES);
    query_.resize(rows * dim_);
    packed_query_.resize(rows * dim_);
    bias_.resize(rows);
    query_sums_.resize(rows * groups_);
    folded_.resize(4 * rows * dim_);
    folded_zero_.resize(4 * rows);
    lane_scale_.resize(groups_ * TILE);
    lane_zero_.resize(groups_ * TILE);
    meta_.resize(2 * (dim_ > groups_ * TILE ? dim_ : groups_ * TILE) + 32);
    line_.resize(dim_);
    part_.resize(queries_ * TILE);
    if (how_ == slow) {
      decoded_.resize(f_.head_dim * TILE);
      tokens_.reset(new PageRows(f_));
    }
    for (int m = 1; m <= QUERIES; ++m) run_[m] = how_ == slow ? for_shape<LoadF32>(m, 4, 4) : panel_for(kind_of(f_), m, 4, shared_);
  }

  void begin(int row, int head) {
    row_ = row;
    head_ = head;
    for (auto& record : folded_from_) record = nullptr;
    load_queries(r_.query, r_.query_strides, query_.data());
    load_queries(r_.packed_query ? r_.packed_query : r_.query,
                 r_.packed_query ? r_.packed_query_strides : r_.query_strides, packed_query_.data());
    for (int64_t m = 0; m < queries_; ++m) {
      int64_t q_head = int64_t(head) * r_.ratio + m / r_.queries;
      bias_[m] = r_.packed_bias ? r_.packed_bias[(row * int64_t(r_.kv_heads) * r_.ratio + q_head) * r_.queries + m % r_.queries] : 0.0f;
      for (int64_t g = 0; how_ == lanes && g < groups_; ++g) query_sums_[g * rounded_up(queries_, QUERIES) + m] = group_sum(m, g);
    }
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
    const bool direct = r_.key.exact == Float::f32 && f_.head_dim % LANES == 0;
    const int64_t vectors = (f_.head_dim + LANES - 1) / LANES;
    for (int64_t at = low; at < high; ++at, p += bytes) {
      if (!direct) to_floats(r_.key.exact, p, f_.head_dim, line_.data());
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
    int page = int(begin) / f_.page_tokens, inside = int(begin) % f_.page_tokens / TILE * TILE;
    for (int64_t token = begin / TILE * TILE; token < end; token += TILE, inside += TILE) {
      if (inside == f_.page_tokens) ++page, inside = 0;
      const uint8_t* record = pages[size_t(page)];
      next_ = size_t(page) + 1 < pages.size() ? pages[size_t(page) + 1] : record;
      prepare(record, inside);
      const int64_t from = token < begin ? begin - token : 0, until = least(TILE, end - token);
      float* to = scores_ + (position + token + from - begin - low_);
      if (until - from == TILE) {
        tile(record, inside, to, stride_);
        continue;
      }
      tile(record, inside, part_.data(), TILE);
      for (int64_t m = 0; m < queries_; ++m)
        std::memcpy(to + m * stride_, &part_[m * TILE + from], size_t(until - from) * sizeof(float));
    }
  }

 private:
  enum How { raw, lanes, channels, slow };

  void choose() {
    const int64_t tokens = f_.share_tokens;
    how_ = !f_.has_scale ? raw : f_.share_channels == 1 && f_.head_dim > 1 ? channels : lanes;
    if (how_ == channels) shared_ = tokens % 64 == 0 ? 4 : tokens % 32 == 0 ? 2 : 1;
    const int64_t run = how_ == lanes && groups_ > 1 ? f_.share_channels : f_.head_dim;
    // one plane may end in a block that is not full; two planes would be read past the shorter one
    const int64_t whole = f_.planes.size() < 2 && run == f_.head_dim ? 0 : run;
    if (!codes_.loadable(4, whole) || (how_ == channels && tokens % LANES)) how_ = slow;
  }

  void load_queries(const uint8_t* p, const int64_t* strides, float* out) const {
    const int bytes = float_bytes(r_.query_type);
    for (int64_t m = 0; m < queries_; ++m) {
      int64_t q_head = int64_t(head_) * r_.ratio + m / r_.queries;
      int64_t at = row_ * strides[0] + q_head * strides[1] + m % r_.queries * strides[2];
      to_floats(r_.query_type, p + at * bytes, f_.head_dim, out + m * dim_);
      for (int64_t c = 0; c < f_.head_dim; ++c) out[m * dim_ + c] *= r_.scaling;
    }
  }

  float group_sum(int64_t m, int64_t group) const {
    float total = 0.0f;
    for (int64_t c = 0; c < f_.share_channels; ++c) total += packed_query_[m * dim_ + group * f_.share_channels + c];
    return total;
  }

  // What all query rows need of the tile at `token` of a page.
  void prepare(const uint8_t* record, int token) {
    if (how_ == lanes) spread_lanes(record, token);
    if (how_ == slow) decode(record, token);
    for (int g = 0; how_ == channels && g < 4 / shared_; ++g) {
      int entry = (token + g * shared_ * LANES) / f_.share_tokens;
      if (folded_from_[g] == record && folded_entry_[g] == entry) continue;
      fold(g, record, entry);
      folded_from_[g] = record;
      folded_entry_[g] = entry;
    }
  }

  void decode(const uint8_t* record, int token) {
    const float* from = tokens_->read(record, head_, token, token + TILE);
    for (int t = 0; t < TILE; ++t, from += tokens_->width())
      for (int c = 0; c < f_.head_dim; ++c) decoded_[c * TILE + t] = from[c];
  }

  // Scale and zero of each of the 64 tokens, for each group of channels.
  void spread_lanes(const uint8_t* record, int token) {
    const int first = token / f_.share_tokens, last = (token + TILE - 1) / f_.share_tokens, n = (last - first + 1) * int(groups_);
    const bool plain = groups_ == 1 && f_.share_tokens == 1;
    float *scale = plain ? lane_scale_.data() : meta_.data(), *zero = plain ? lane_zero_.data() : meta_.data() + groups_ * TILE;
    scales_of(f_, record, codes_.meta_at(head_, first, groups_), n, scale, zero);
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
    const ChannelScales by = codes_.channel_scales(record, head_, entry, meta_.data());
    const int64_t rows = rounded_up(queries_, QUERIES);
    int64_t m = 0;
    for (; m + QUERIES <= queries_; m += QUERIES) fold_rows<QUERIES>(group * rows + m, m, by);
    for (; m < queries_; ++m) fold_rows<1>(group * rows + m, m, by);
  }

  // M queries from m on to `folded_` from row `to` on.
  template <int M>
  void fold_rows(int64_t to, int64_t m, const ChannelScales& by) {
    const int64_t dim = dim_, width = rounded_up(f_.head_dim, LANES);
    const float* q = packed_query_.data() + m * dim;
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

  void tile(const uint8_t* record, int token, float* out, int64_t stride) const {
    const int64_t rows = rounded_up(queries_, QUERIES);
    Source source = how_ == slow ? plain_source(decoded_.data(), TILE * 4)
                                 : codes_.source(record, next_, head_, Panel{f_.head_dim, 4, token / LANES});
    const int64_t first = token / f_.share_tokens, entries = (TILE + f_.share_tokens - 1) / f_.share_tokens;
    if (how_ != slow) codes_.fetch_scales(source, next_, codes_.meta_at(head_, first, groups_), entries * groups_, f_.head_dim);
    for (int64_t m = 0; m < queries_; m += QUERIES) {
      const int count = int(least(QUERIES, queries_ - m));
      F16 acc[QUERIES * 4];
      if (how_ == lanes) {
        by_lanes(source, m, count, acc);
      } else {
        Coefficients c(packed_query_.data() + m * dim_, dim_, count);
        for (int v = 0; how_ == channels && v < 4; ++v) c.a[v] = folded_.data() + (v / shared_ * rows + m) * dim_;
        for (int v = 0; v < 4; ++v)
          for (int i = 0; i < count; ++i)
            acc[i * 4 + v] = splat(how_ == channels ? folded_zero_[v / shared_ * rows + m + i] : 0.0f);
        run_[count](source, c, 0, int(f_.head_dim), acc);
      }
      for (int i = 0; i < count * 4; ++i)
        store(out + (m + i / 4) * stride + i % 4 * LANES, acc[i] + splat(bias_[m + i / 4]));
    }
  }

  // Sums over each group of channels, scaled by their tokens' own scales.
  void by_lanes(const Source& source, int64_t m, int count, F16* out) const {
    const int64_t rows = rounded_up(queries_, QUERIES), run = f_.share_channels;
    const Coefficients c(packed_query_.data() + m * dim_, dim_, count);
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

  const Request& r_;
  const Format& f_;
  const Codes codes_;
  const int64_t queries_, dim_, groups_;
  How how_ = raw;
  int shared_ = 4;  // vectors of a tile that share coefficients
  PanelFn run_[QUERIES + 1] = {};
  int row_ = 0, head_ = 0;
  float* scores_ = nullptr;
  int64_t stride_ = 0, low_ = 0;
  Buffer<float> query_, packed_query_, bias_, query_sums_, folded_, folded_zero_, lane_scale_, lane_zero_, meta_, line_, decoded_, part_;
  const uint8_t* next_ = nullptr;  // the page after the one at hand
  const uint8_t* folded_from_[4] = {};
  int64_t folded_entry_[4] = {};
  std::unique_ptr<PageRows> tokens_;
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
