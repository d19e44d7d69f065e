// Scores of keys whose steps do not fold: tiles are decoded, steps undone, and the query turned to meet them.
#pragma once

#include "key_codes.h"

namespace quantkv {
namespace QUANTKV_ISA {

// The outermost undone step is a turn. The query is turned back by the tile's multiple of 64, the keys by what is
// left, below 128 positions.
class TurnedKeys {
 public:
  TurnedKeys(const Method& m, int64_t queries, int64_t stride)
      : m_(m), queries_(queries), dim_(stride), turn_(folded_steps(m)), rows_(m, turn_ + 1) {
    if (direct()) codes_.reset(new KeyCodes(m.parts[0], queries));
    turned_query_.resize(rounded_up(queries, QUERIES) * dim_);
    tile_.resize((m.head_dim + 32) * TILE);
    room_.resize(TILE);
    for (int i = 1; i <= QUERIES; ++i) run_[i] = for_shape<LoadF32>(i, 4, 4);
  }

  void begin(const float* queries) { query_ = queries; }

  void tile(const Place& at, const uint8_t* next, float* out, int64_t stride) {
    const Angles& angles = *m_.steps[size_t(turn_)].angles;
    codes_ ? decode_codes(at, next) : decode(at);
    turn(angles, int(at.position % Angles::STRIDE));
    const float* far = far_angles(*at.known, size_t(turn_), angles, at.position);
    std::memcpy(turned_query_.data(), query_, size_t(queries_ * dim_) * sizeof(float));
    for (int64_t m = 0; m < queries_; ++m) turn_row(angles, &turned_query_[m * dim_], far, far + angles.pairs, 1, -1.0f);
    const Source source = plain_source(tile_.data(), TILE * 4);
    for (int64_t m = 0; m < queries_; m += QUERIES) {
      const int count = int(least(QUERIES, queries_ - m));
      const Coefficients c(&turned_query_[m * dim_], dim_, count);
      F16 acc[QUERIES * 4];
      for (int i = 0; i < count * 4; ++i) acc[i] = splat(0);
      run_[count](source, c, 0, m_.head_dim, acc);
      for (int i = 0; i < count * 4; ++i) store(out + (m + i / 4) * stride + i % 4 * LANES, acc[i]);
    }
  }

 private:
  // Whether one term's codes are all there is, and the steps inside the turn are those that `undo` knows.
  bool direct() const {
    for (size_t i = size_t(turn_) + 1; i < m_.steps.size(); ++i)
      if (m_.steps[i].what == Do::turn || m_.steps[i].what == Do::matrix) return false;
    return m_.parts.size() == 1 && m_.parts[0].head_dim == m_.head_dim && m_.sparse.empty() && m_.low_rank.empty();
  }

  void decode_codes(const Place& at, const uint8_t* next) {
    codes_->numbers(at.record, next, at.head, int(at.token), tile_.data());
    for (int i = int(m_.steps.size()) - 1; i > turn_; --i) undo(m_.steps[size_t(i)], at);
  }

  // A step inside the turn, on [channels][64].
  void undo(const Step& s, const Place& at) {
    if (s.what == Do::hadamard) return butterflies_of_rows(s.block);
    if (s.what == Do::token_scale) token_scales(m_, s, at, TILE, room_.data());
    const float* by = s.what == Do::token_scale ? nullptr : state_of(m_, s, at);
    for (int c = 0; c < m_.head_dim; ++c)
      for (int t = 0; t < TILE; t += LANES) {
        float* x = &tile_[int64_t(c) * TILE + t];
        if (s.what == Do::shift) store(x, load(x) + splat(by[c]));
        else store(x, load(x) * (by ? splat(by[c]) : load(&room_[t])));
      }
  }

  void butterflies_of_rows(int block) {
    const F16 norm = splat(float(1.0 / std::sqrt(double(block))));
    for (int t = 0; t < TILE; t += LANES) {
      for (int half = 1; half < block; half *= 2)
        for (int from = 0; from < m_.head_dim; from += 2 * half)
          for (int c = from; c < from + half; ++c) {
            float *p = &tile_[int64_t(c) * TILE + t], *q = p + int64_t(half) * TILE;
            const F16 a = load(p), b = load(q);
            store(p, a + b);
            store(q, a - b);
          }
      for (int c = 0; c < m_.head_dim; ++c) store(&tile_[int64_t(c) * TILE + t], load(&tile_[int64_t(c) * TILE + t]) * norm);
    }
  }

  // To [channels][64].
  void decode(const Place& at) {
    const float* from = rows_.read(at, TILE);
    for (int64_t t = 0; t < TILE; ++t, from += rows_.width())
      for (int c = 0; c < m_.head_dim; ++c) tile_[c * int64_t(TILE) + t] = from[c];
  }

  void turn(const Angles& a, int first) {
    const int apart = a.interleaved ? 1 : a.pairs, step = a.interleaved ? 2 : 1;
    for (int i = 0; i < a.pairs; ++i) {
      float *p = &tile_[int64_t(i) * step * TILE], *q = p + int64_t(apart) * TILE;
      const float *cos = &a.near_cos[size_t(i * Angles::NEAR + first)], *sin = &a.near_sin[size_t(i * Angles::NEAR + first)];
      for (int t = 0; t < TILE; t += LANES) {
        const F16 x = load(p + t), y = load(q + t), c = load(cos + t), s = load(sin + t);
        store(p + t, x * c - y * s);
        store(q + t, fma(x, s, y * c));
      }
    }
  }

  const Method& m_;
  const int64_t queries_, dim_;
  const int turn_;
  MethodRows rows_;
  const float* query_ = nullptr;
  PanelFn run_[QUERIES + 1] = {};
  Buffer<float> turned_query_, tile_, room_;
  std::unique_ptr<KeyCodes> codes_;
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
