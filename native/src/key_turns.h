// Scores of keys whose steps do not fold: tiles are decoded, steps undone, and the query turned to meet them.
#pragma once

#include "key_codes.h"
#include "undo.h"

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
    room_.resize(m.head_dim * TILE);
    plus_.resize(dim_ + 32);
    for (int i = 1; i <= QUERIES; ++i) run_[i] = for_shape<LoadF32>(i, 4, 4);
  }

  void begin(const float* queries) { query_ = queries; }

  void tile(const Place& at, const uint8_t* next, float* out, int64_t stride) {
    const Angles& angles = *m_.steps[size_t(turn_)].angles;
    codes_ ? decode_codes(at, next) : decode(at);
    undo_turn(tile_.data(), angles, at.position % Angles::STRIDE);
    const float* far = far_angles(*at.known, size_t(turn_), angles, at.position);
    std::memcpy(turned_query_.data(), query_, size_t(queries_ * dim_) * sizeof(float));
    for (int64_t m = 0; m < queries_; ++m) turn_back(&turned_query_[m * dim_], angles, far, far + angles.pairs);
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
  // Whether one term's codes are all there is, inside a single turn.
  bool direct() const {
    for (size_t i = size_t(turn_) + 1; i < m_.steps.size(); ++i)
      if (m_.steps[i].what == Do::turn) return false;
    return m_.parts.size() == 1 && m_.parts[0].head_dim == m_.head_dim && m_.sparse.empty() && m_.low_rank.empty();
  }

  // A shift that is undone first is added on the way.
  void decode_codes(const Place& at, const uint8_t* next) {
    int steps = int(m_.steps.size());
    if (m_.steps.back().what == Do::shift)
      std::memcpy(plus_.data(), state_of(m_, m_.steps[size_t(--steps)], at), size_t(m_.head_dim) * sizeof(float));
    codes_->numbers(at.record, next, at.head, int(at.token), plus_.data(), tile_.data());
    while (--steps > turn_) undo(m_.steps[size_t(steps)], at);
  }

  // A step inside the turn.
  void undo(const Step& s, const Place& at) {
    float *tile = tile_.data(), *room = room_.data();
    if (s.what == Do::hadamard) undo_hadamard(tile, m_.head_dim, s.block);
    if (s.what == Do::matrix) undo_matrix(tile, m_.head_dim, matrix_of(m_, s, at.head), room);
    if (s.what == Do::shift) undo_shift(tile, m_.head_dim, state_of(m_, s, at));
    if (s.what == Do::stretch) undo_stretch(tile, m_.head_dim, state_of(m_, s, at));
    if (s.what != Do::token_scale) return;
    token_scales(m_, s, at, TILE, room);
    undo_token_scale(tile, m_.head_dim, room);
  }

  // To [channels][64].
  void decode(const Place& at) {
    const float* from = rows_.read(at, TILE);
    for (int64_t t = 0; t < TILE; ++t, from += rows_.width())
      for (int c = 0; c < m_.head_dim; ++c) tile_[c * int64_t(TILE) + t] = from[c];
  }

  const Method& m_;
  const int64_t queries_, dim_;
  const int turn_;
  MethodRows rows_;
  const float* query_ = nullptr;
  PanelFn run_[QUERIES + 1] = {};
  Buffer<float> turned_query_, tile_, room_, plus_;
  std::unique_ptr<KeyCodes> codes_;
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
