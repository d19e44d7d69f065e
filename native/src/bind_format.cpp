#include <nanobind/nanobind.h>
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

static void check(const Format& f) {
  const auto fail = [](const char* why) { throw nb::value_error(why); };
  if (f.heads < 1 || f.head_dim < 1 || f.page_tokens < TILE || f.page_tokens % TILE) fail("impossible page shape");
  if (f.planes.empty() || f.planes.size() > MAX_PLANES) fail("one or two planes");
  if (f.share_tokens < 1 || f.page_tokens % f.share_tokens) fail("share_tokens does not divide the page");
  if (f.share_channels < 1 || f.head_dim % f.share_channels) fail("share_channels does not divide head_dim");
  int bits = 0;
  for (const Plane& p : f.planes) bits += p.bits;
  if (bits != f.bits) fail("the planes' bits do not add up");
  if (f.code == Code::table && f.table.size() != size_t(1) << f.bits) fail("a table has 2^bits numbers");
}

void bind_format(nb::module_& m) {
  nb::class_<Format>(m, "Format")
      .def(
          "__init__",
          [](Format* self, bool lanes_are_tokens, int heads, int head_dim, int page_tokens, const std::string& code,
             const std::string& value, const std::vector<std::tuple<int, int64_t, int64_t>>& planes, bool has_scale,
             bool has_zero, const std::string& meta, float centre, float unit, int64_t scale_at, int64_t zero_at, int share_tokens,
             int share_channels, bool all_heads, bool outward, const std::vector<float>& table) {
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
            check(f);
            new (self) Format(f);
          },
          nb::kw_only(), "lanes_are_tokens"_a, "heads"_a, "head_dim"_a, "page_tokens"_a, "code"_a, "value"_a = "float32",
          "planes"_a, "has_scale"_a = false, "has_zero"_a = false, "meta"_a = "float16", "centre"_a = 0.0f, "unit"_a = 1.0f,
          "scale_at"_a = 0, "zero_at"_a = 0, "share_tokens"_a = 1, "share_channels"_a = 1, "all_heads"_a = false,
          "outward"_a = true, "table"_a = std::vector<float>());
}

}  // namespace quantkv
