#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quantkv {

template <class E>
E named(const std::string& name, std::initializer_list<std::pair<const char*, E>> names, const char* what) {
  for (const auto& [key, value] : names)
    if (name == key) return value;
  throw nb::value_error((std::string("unknown ") + what + " '" + name + "'").c_str());
}

Float float_named(const std::string& name) {
  return named<Float>(name, {{"float32", Float::f32}, {"float16", Float::f16}, {"bfloat16", Float::bf16}}, "dtype");
}

Code code_named(const std::string& name) {
  return named<Code>(name,
                     {{"affine", Code::affine}, {"e4m3", Code::e4m3}, {"e5m2", Code::e5m2}, {"table", Code::table}, {"raw", Code::raw}},
                     "kind of code");
}

[[noreturn]] static void fail(const char* why) { throw nb::value_error(why); }

static void check(const Factor& x, int page_tokens, int width) {
  if (x.share_tokens < 1 || page_tokens % x.share_tokens) fail("share_tokens does not divide the page");
  if (x.share_channels < 1 || width % x.share_channels) fail("share_channels does not divide the channels");
  if (x.bits < 1 || x.bits > 8 || x.bits == 7) fail("codes have 1 to 6 or 8 bits");
}

static void check(const Format& f) {
  for (const Factor& x : f.factors) check(x, f.page_tokens, f.head_dim);
  if (f.derived && f.has_zero) check(f.own_zero, f.page_tokens, f.head_dim);
  if (f.derived && f.code == Code::raw) fail("floats themselves have no scales");
  if (f.heads < 1 || f.head_dim < 1 || f.page_tokens < TILE || f.page_tokens % TILE) fail("impossible page shape");
  if (f.planes.empty() || f.planes.size() > MAX_PLANES) fail("one to three planes");
  if (f.share_tokens < 1 || f.page_tokens % f.share_tokens) fail("share_tokens does not divide the page");
  if (f.share_channels < 1 || f.head_dim % f.share_channels) fail("share_channels does not divide head_dim");
  int bits = 0;
  for (const Plane& p : f.planes) bits += p.bits;
  if (bits != f.bits) fail("the planes' bits do not add up");
  if (f.code == Code::table && f.table.size() != size_t(1) << f.bits) fail("a table has 2^bits numbers");
}

static void bind_codes(nb::module_& m) {
  nb::class_<Format>(m, "Format")
      .def(
          "__init__",
          [](Format* self, bool lanes_are_tokens, int heads, int head_dim, int page_tokens, const std::string& code,
             const std::string& value, const std::vector<std::tuple<int, int64_t, int64_t>>& planes, bool has_scale,
             bool has_zero, const std::string& meta, float centre, float unit, int64_t scale_at, int64_t zero_at, int share_tokens,
             int share_channels, bool all_heads, bool outward, const std::vector<float>& table, int first,
             const std::vector<Factor>& factors, const std::optional<Factor>& own_zero, bool derived, bool followed) {
            Format f;
            f.lanes_are_tokens = lanes_are_tokens;
            f.heads = heads, f.head_dim = head_dim, f.page_tokens = page_tokens;
            f.code = code_named(code), f.value = float_named(value), f.meta = float_named(meta);
            for (const auto& [bits, offset, head_bytes] : planes) {
              f.planes.push_back({bits, offset, head_bytes});
              f.bits += bits;
            }
            f.has_scale = has_scale, f.has_zero = has_zero, f.centre = centre, f.unit = unit;
            f.scale_at = scale_at, f.zero_at = zero_at;
            f.share_tokens = share_tokens, f.share_channels = share_channels, f.all_heads = all_heads;
            f.outward = outward, f.table = table;
            f.followed = followed;
            f.first = first, f.factors = factors, f.derived = derived;
            if (own_zero) f.own_zero = *own_zero;
            if (f.derived) f.has_scale = true, f.has_zero = bool(own_zero);
            check(f);
            new (self) Format(f);
          },
          nb::kw_only(), "lanes_are_tokens"_a, "heads"_a, "head_dim"_a, "page_tokens"_a, "code"_a, "value"_a = "float32",
          "planes"_a, "has_scale"_a = false, "has_zero"_a = false, "meta"_a = "float16", "centre"_a = 0.0f, "unit"_a = 1.0f,
          "scale_at"_a = 0, "zero_at"_a = 0, "share_tokens"_a = 1, "share_channels"_a = 1, "all_heads"_a = false,
          "outward"_a = true, "table"_a = std::vector<float>(), "first"_a = 0, "factors"_a = std::vector<Factor>(),
          "own_zero"_a = nb::none(), "derived"_a = false, "followed"_a = false);
}

static Meta meta_named(const std::string& name) {
  return named<Meta>(name,
                     {{"float32", Meta::f32}, {"float16", Meta::f16}, {"bfloat16", Meta::bf16}, {"float8_e4m3fn", Meta::e4m3},
                      {"float8_e5m2", Meta::e5m2}, {"float8_e8m0fnu", Meta::e8m0}, {"uint8", Meta::code}},
                     "dtype of a shared number");
}

static void bind_factor(nb::module_& m) {
  nb::class_<Factor>(m, "Factor")
      .def("__init__", [](Factor* self, const std::string& dtype, int64_t at, int share_tokens, int share_channels, bool all_heads,
                          float unit, int bits) {
        new (self) Factor{meta_named(dtype), bits, at, share_tokens, share_channels, all_heads, unit};
      }, nb::kw_only(), "dtype"_a, "at"_a, "share_tokens"_a = 1, "share_channels"_a = 1, "all_heads"_a = false, "unit"_a = 1.0f,
      "bits"_a = 8);
}

// A step of a kind; what the others need is not looked at. The matrix is copied.
static Step step(const std::string& kind, int block, const std::vector<float>& matrix, int state, const std::optional<Factor>& scale,
                 std::shared_ptr<Angles> angles) {
  Step s;
  s.what = named<Do>(kind,
                     {{"hadamard", Do::hadamard}, {"matrix", Do::matrix}, {"shift", Do::shift}, {"stretch", Do::stretch},
                      {"token_scale", Do::token_scale}, {"turn", Do::turn}},
                     "kind of step");
  s.block = block, s.state = state, s.angles = angles;
  s.matrix = std::make_shared<const std::vector<float>>(matrix);
  if (scale) s.scale = *scale;
  if (s.what == Do::token_scale && !scale) fail("a token's scale needs its factor");
  if (s.what == Do::turn && !angles) fail("a turn needs its angles");
  return s;
}

static void check(const Method& m) {
  if (m.parts.empty()) fail("a method needs codes");
  for (const Format& f : m.parts) {
    if (f.heads != m.heads || f.page_tokens != m.page_tokens || f.lanes_are_tokens != m.lanes_are_tokens)
      fail("terms of another shape of page");
    if (f.first < 0 || f.first + f.head_dim > m.head_dim) fail("codes beyond head_dim");
  }
  for (const LowRank& r : m.low_rank)
    if (r.rank < 1 || r.tokens < 1 || m.page_tokens % r.tokens) fail("chunks do not divide the page");
  for (const Sparse& s : m.sparse)
    if (s.slots < 1) fail("no slots");
  for (const Step& s : m.steps) {
    if (s.what == Do::hadamard && (s.block < 1 || s.block & (s.block - 1) || m.head_dim % s.block)) fail("no such Hadamard block");
    if (s.what == Do::matrix && s.matrix->size() != size_t(m.heads) * size_t(m.head_dim) * size_t(m.head_dim))
      fail("a matrix is [heads, head_dim, head_dim]");
    if (s.what == Do::turn && 2 * s.angles->pairs > m.head_dim) fail("more pairs than channels");
    if (s.what == Do::token_scale) check(s.scale, m.page_tokens, 1);
    if (s.what == Do::token_scale && s.scale.share_tokens != 1) fail("a scale of several tokens is no token's own");
    if (s.state < 0) fail("no such state");
  }
}

static Method method(const std::vector<Format>& parts, int head_dim, const std::vector<Sparse>& sparse,
                     const std::vector<LowRank>& low_rank, const std::vector<Step>& steps) {
  Method m;
  m.parts = parts, m.sparse = sparse, m.low_rank = low_rank, m.steps = steps;
  if (parts.empty()) fail("a method needs codes");
  m.lanes_are_tokens = parts[0].lanes_are_tokens, m.heads = parts[0].heads, m.page_tokens = parts[0].page_tokens;
  m.head_dim = head_dim ? head_dim : parts[0].head_dim;
  for (const Step& s : steps)
    if (s.what == Do::shift || s.what == Do::stretch) m.states = m.states > s.state + 1 ? m.states : s.state + 1;
  check(m);
  return m;
}

static void bind_method(nb::module_& m) {
  nb::class_<Angles>(m, "Angles").def(nb::init<const std::vector<double>&, bool>(), "frequencies"_a, "interleaved"_a = false);
  nb::class_<Sparse>(m, "Sparse").def("__init__", [](Sparse* self, int slots, int64_t index_at, int64_t value_at, const std::string& dtype) {
    new (self) Sparse{slots, index_at, value_at, float_named(dtype)};
  }, nb::kw_only(), "slots"_a, "index_at"_a, "value_at"_a, "dtype"_a);
  nb::class_<LowRank>(m, "LowRank").def("__init__", [](LowRank* self, int rank, int tokens, int64_t left_at, int64_t right_at,
                                                       const std::string& left, const std::string& right) {
    new (self) LowRank{rank, tokens, left_at, right_at, float_named(left), float_named(right)};
  }, nb::kw_only(), "rank"_a, "tokens"_a, "left_at"_a, "right_at"_a, "left"_a, "right"_a);
  nb::class_<Step>(m, "Step").def("__init__", [](Step* self, const std::string& kind, int block, const std::vector<float>& matrix,
                                                 int state, const std::optional<Factor>& scale, std::shared_ptr<Angles> angles) {
    new (self) Step(step(kind, block, matrix, state, scale, angles));
  }, "kind"_a, nb::kw_only(), "block"_a = 1, "matrix"_a = std::vector<float>(), "state"_a = 0, "scale"_a = nb::none(),
  "angles"_a.none() = nb::none());
  nb::class_<Method>(m, "Method").def("__init__", [](Method* self, const std::vector<Format>& parts, int head_dim,
                                                     const std::vector<Sparse>& sparse, const std::vector<LowRank>& low_rank,
                                                     const std::vector<Step>& steps) {
    new (self) Method(method(parts, head_dim, sparse, low_rank, steps));
  }, "parts"_a, nb::kw_only(), "head_dim"_a = 0, "sparse"_a = std::vector<Sparse>(), "low_rank"_a = std::vector<LowRank>(),
  "steps"_a = std::vector<Step>());
}

Known known_of(const Method& m, size_t rows, const std::vector<int64_t>& positions,
               const std::vector<std::vector<int64_t>>& states, const std::vector<int64_t>& tokens) {
  Known known;
  known.positions = positions;
  if (states.size() < size_t(m.states)) fail("fewer states than steps name");
  for (const auto& state : states) {
    if (state.size() != rows) fail("a state is not of as many rows as pages");
    known.states.emplace_back();
    for (int64_t address : state) known.states.back().push_back(reinterpret_cast<const float*>(address));
  }
  int64_t last = 0;
  for (size_t row = 0; row < positions.size() && row < tokens.size(); ++row) {
    if (positions[row] < 0) fail("a position below 0");
    last = last > positions[row] + tokens[row] ? last : positions[row] + tokens[row];
  }
  for (const Step& s : m.steps) {
    if (s.what == Do::turn && positions.size() != rows) fail("turned keys need each row's first position");
    known.far.push_back(s.what == Do::turn ? s.angles->far(last) : nullptr);
  }
  return known;
}

void bind_format(nb::module_& m) {
  bind_factor(m);
  bind_codes(m);
  bind_method(m);
}

}  // namespace quantkv
