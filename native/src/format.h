// How a page's bytes are laid out and what its codes mean: the numbers that the store hands to the kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "angles.h"

namespace quantkv {

constexpr int LANES = 16;        // elements of one stored vector
constexpr int TILE = 64;         // tokens of one key panel
constexpr int MAX_PLANES = 3;    // 3 = 2 + 1, 5 = 4 + 1, 6 = 4 + 2, 7 = 4 + 2 + 1 bits

enum class Float : int { f32, f16, bf16 };
enum class Code : int { affine, e4m3, e5m2, table, raw };  // raw: the elements are floats themselves

static inline int float_bytes(Float f) { return f == Float::f32 ? 4 : 2; }

// One bit plane of the codes of a page: head h begins at record + offset + h * head_bytes.
struct Plane {
  int bits = 0;
  int64_t offset = 0;
  int64_t head_bytes = 0;
};

// How a stored number reads: `code` is an unsigned number of some bits, plane after plane in whole bytes a head.
enum class Meta : int { f32, f16, bf16, e4m3, e5m2, e8m0, code };

// A number that `share_tokens` x `share_channels` elements (of all heads, where `all_heads`) share.
struct Factor {
  Meta type = Meta::f16;
  int bits = 8;    // of a code
  int64_t at = 0;  // bytes from the start of the record
  int share_tokens = 1, share_channels = 1;
  bool all_heads = false;
  float unit = 1.0f;
};

// One term's elements: channels [first, first + head_dim) of a head.
// x = scale * table[code] + zero, where `share_tokens` x `share_channels` elements (of all heads, where
// `all_heads`) share one scale and one zero. Symmetric codes have no zero and are centred on `centre`.
struct Format {
  bool lanes_are_tokens = true;  // keys; values have channels as lanes
  int heads = 0, head_dim = 0, page_tokens = 0;
  Code code = Code::raw;
  Float value = Float::f32;  // dtype of raw elements
  int bits = 0;
  std::vector<Plane> planes;
  bool has_scale = false, has_zero = false;
  Float meta = Float::f16;  // dtype of scales and zeros
  float centre = 0.0f;
  float unit = 1.0f;  // of a stored scale: 1 / the largest code where the largest magnitude is stored
  int64_t scale_at = 0, zero_at = 0;  // bytes from the start of the record
  int share_tokens = 1, share_channels = 1;
  bool all_heads = false;
  bool outward = true;          // zero rounded down and scale up when encoding
  std::vector<float> table;     // code == table: 2^bits numbers
  int first = 0;
  bool followed = false;  // bytes of the same record lie behind every plane
  // Where `derived`, the scale is the product of `factors` and the zero is `own_zero`; what is said of scales above is
  // then how finely they differ.
  bool derived = false;
  std::vector<Factor> factors;
  Factor own_zero;
};

// For each token and head `slots` values, each added at the channel that its index names.
struct Sparse {
  int slots = 0;
  int64_t index_at = 0, value_at = 0;  // [heads, tokens, slots], indices of a byte
  Float type = Float::f16;
};

// left [heads, tokens, rank] times right [heads, page_tokens / tokens, rank, head_dim].
struct LowRank {
  int rank = 0, tokens = 1;
  int64_t left_at = 0, right_at = 0;
  Float left = Float::f16, right = Float::f16;
};

// A reversible step, applied before a codec encodes and undone after it decodes.
enum class Do : int { hadamard, matrix, shift, stretch, token_scale, turn };
struct Step {
  Do what = Do::hadamard;
  int block = 1;                          // of a hadamard
  std::shared_ptr<const std::vector<float>> matrix;  // [heads, head_dim, head_dim]
  int state = 0;                          // of a shift or stretch: which of the rows' states
  Factor scale;                           // of a token
  std::shared_ptr<Angles> angles;
};

// A method at its place: x = the sum of the terms, then the steps undone from the last to the first.
struct Method {
  bool lanes_are_tokens = true;
  int heads = 0, head_dim = 0, page_tokens = 0;
  std::vector<Format> parts;
  std::vector<Sparse> sparse;
  std::vector<LowRank> low_rank;
  std::vector<Step> steps;
  int states = 0;  // that steps name
};

// What is known of each row beside its pages.
struct Known {
  std::vector<int64_t> positions;                 // of the first token of its first page
  std::vector<std::vector<const float*>> states;  // by state and row: [heads, head_dim]
  std::vector<std::shared_ptr<const std::vector<float>>> far;  // by step: angles of multiples of 64
};

// Steps before the first turn can go into queries and outputs; from it on every tile is undone.
static inline int folded_steps(const Method& m) {
  int n = 0;
  while (n < int(m.steps.size()) && m.steps[size_t(n)].what != Do::turn) ++n;
  return n;
}
static inline int shifts_of(const Method& m) {
  int n = 0;
  for (int i = 0; i < folded_steps(m); ++i) n += m.steps[size_t(i)].what == Do::shift;
  return n;
}
static inline int64_t padded_dim(const Method& m) { return (m.head_dim + LANES - 1) / LANES * LANES; }

// The functions here are static because this header is compiled for several instruction sets, and the linker would
// keep one copy of a shared one: perhaps one that the machine at hand cannot run.

// Scales of one token.
static inline int groups_of(const Format& f) { return f.head_dim / f.share_channels; }

// Where the first scale of (head, entry) lies, counted in metadata elements; groups_of follow each other.
static inline int64_t meta_index(const Format& f, int head, int64_t entry) {
  return (int64_t(f.all_heads ? 0 : head) * (f.page_tokens / f.share_tokens) + entry) * groups_of(f);
}

static inline int64_t rounded_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// A head's elements are cut into panels of R rows x NV vectors. Keys: rows are channels, NV = 4 vectors are 64
// tokens. Values: rows are tokens, and ceil(head_dim / 16) vectors of channels are cut into 4, 4, ..., 2, 1.
struct Panel {
  int rows = 0, vectors = 0, first_vector = 0;
};

// Bytes of one plane of a panel: blocks of 16 words for codes below 8 bits, plain vectors otherwise.
static inline int64_t panel_bytes(const Panel& p, int bits) {
  int64_t vectors = int64_t(p.rows) * p.vectors;
  if (bits >= 8) return vectors * LANES * bits / 8;
  return rounded_up(vectors, 32 / bits) / (32 / bits) * LANES * 4;
}

// The vectors of one token (values) or of one page (keys).
static inline int vectors_of(const Format& f) {
  return ((f.lanes_are_tokens ? f.page_tokens : f.head_dim) + LANES - 1) / LANES;
}

// The panel that begins at a vector: keys have four everywhere, values 4 while four are left, then 2, then 1.
static inline Panel panel_at(const Format& f, int first_vector) {
  if (f.lanes_are_tokens) return {f.head_dim, 4, first_vector};
  int left = vectors_of(f) - first_vector;
  return {f.page_tokens, left >= 4 ? 4 : left >= 2 ? 2 : 1, first_vector};
}

// Bytes from the begin of a head's plane to that panel: every panel before it has four vectors, or is the 2 of 2 + 1.
static inline int64_t panel_offset(const Panel& p, int bits) {
  Panel four{p.rows, 4, 0}, two{p.rows, 2, 0};
  return p.first_vector / 4 * panel_bytes(four, bits) + p.first_vector % 4 / 2 * panel_bytes(two, bits);
}

}  // namespace quantkv
