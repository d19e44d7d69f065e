#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bind.h"
#include "encode.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quantkv {

using Addresses = std::vector<std::vector<uintptr_t>>;
using Three = std::tuple<int64_t, int64_t, int64_t>;

static void require(bool holds, const char* what) {
  if (!holds) throw nb::value_error(what);
}

// Every row has the pages of tokens [start, stop).
static void check_pages(const Method& f, const Addresses& pages, int64_t start, int64_t stop) {
  require(0 <= start && start <= stop, "tokens before the first, or a stop before the start");
  for (const auto& row : pages)
    for (int64_t page = start / f.page_tokens; page * f.page_tokens < stop && start < stop; ++page)
      require(page < int64_t(row.size()) && row[size_t(page)], "a page of these tokens is not there");
}

// Tables of pointers, as requests take them.
struct Tables {
  std::vector<std::vector<uint8_t*>> pages;
  std::vector<uint8_t* const*> rows;

  explicit Tables(const Addresses& addresses) {
    for (const auto& row : addresses) {
      pages.emplace_back();
      for (uintptr_t address : row) pages.back().push_back(reinterpret_cast<uint8_t*>(address));
    }
    for (const auto& row : pages) rows.push_back(row.data());
  }
};

template <class Fn>
static Fn usable(Fn (*build)(const char*), const std::optional<std::string>& isa) {
  Fn fn = build(isa ? isa->c_str() : nullptr);
  if (!fn) throw nb::value_error(("instruction set '" + *isa + "' is not built or not on this machine").c_str());
  return fn;
}

static void encode(const Method& method, const Addresses& pages, int64_t start, uintptr_t x, int type,
                   std::tuple<int64_t, int64_t, int64_t, int64_t> shape, Three strides, int threads,
                   const std::optional<std::string>& isa) {
  EncodeFn run = usable(encode_for, isa);
  const Format& f = method.parts[0];
  require(method.parts.size() == 1 && f.head_dim == method.head_dim && !f.derived && method.sparse.empty() && method.low_rank.empty(),
          "only codes of one term with a scale of their own are encoded here");
  auto [n, heads, tokens, head_dim] = shape;
  require(n == int64_t(pages.size()) && heads == f.heads && head_dim == f.head_dim, "another shape than the pages'");
  require(0 <= type && type <= 2, "dtypes are 0 (float32), 1 (float16) and 2 (bfloat16)");
  require(tokens >= 0 && start % f.share_tokens == 0 && tokens % f.share_tokens == 0, "groups of tokens are cut");
  require(f.code != Code::table, "codes of a table are not encoded here");
  check_pages(method, pages, start, start + tokens);
  Tables tables(pages);
  EncodeRequest r;
  r.format = &f, r.pages = tables.rows.data(), r.rows = int(n), r.start = start, r.tokens = tokens;
  r.x = reinterpret_cast<const uint8_t*>(x), r.type = Float(type), r.threads = threads;
  std::tie(r.strides[0], r.strides[1], r.strides[2]) = strides;
  nb::gil_scoped_release release;
  run(r);
}

static void decode(const Method& method, const Addresses& pages, int64_t start, int64_t stop, uintptr_t out, Three strides,
                   int threads, const std::optional<std::string>& isa, const std::vector<int64_t>& positions,
                   const std::vector<std::vector<int64_t>>& states) {
  DecodeFn run = usable(decode_for, isa);
  check_pages(method, pages, start, stop);
  const Known known = known_of(method, pages.size(), positions, states, std::vector<int64_t>(pages.size(), stop));
  Tables tables(pages);
  DecodeRequest r;
  r.method = &method, r.known = &known, r.pages = tables.rows.data(), r.rows = int(pages.size()), r.start = start, r.stop = stop;
  r.out = reinterpret_cast<float*>(out), r.threads = threads;
  std::tie(r.strides[0], r.strides[1], r.strides[2]) = strides;
  nb::gil_scoped_release release;
  run(r);
}

void bind_encode(nb::module_& m) {
  m.def("encode", encode, "method"_a, "pages"_a, "start"_a, "x_ptr"_a, "x_dtype"_a, "shape"_a, "strides"_a,
        "threads"_a = 1, "isa"_a = nb::none(),
        "Add x [n, H, T, D] to the pages (addresses of records, per row) from token `start` on.");
  m.def("decode", decode, "method"_a, "pages"_a, "start"_a, "stop"_a, "out_ptr"_a, "strides"_a, "threads"_a = 1,
        "isa"_a = nb::none(), "positions"_a = std::vector<int64_t>(), "states"_a = std::vector<std::vector<int64_t>>(),
        "Tokens [start, stop) of each row's pages to float32 [n, H, stop - start, D].");
}

}  // namespace quantkv
