#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "attend.h"
#include "bind.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace quantkv {

using Table = std::vector<std::vector<const uint8_t*>>;
using Numbers = std::vector<int64_t>;

static const uint8_t* pointer(int64_t address) { return reinterpret_cast<const uint8_t*>(address); }

// A tensor's pages and what is known of its rows as last told, and the method they are in.
struct Pages {
  Method method;
  Table table;
  Known known;

  explicit Pages(const Method& m) : method(m) {}
  void set(const std::vector<Numbers>& rows, const Numbers& positions, const std::vector<Numbers>& states) {
    Numbers tokens;
    for (const Numbers& row : rows) tokens.push_back(int64_t(row.size()) * method.page_tokens);
    known = known_of(method, rows.size(), positions, states, tokens);
    table.clear();
    for (const Numbers& row : rows) {
      table.emplace_back();
      for (int64_t address : row) table.back().push_back(pointer(address));
    }
  }
};

// (visible, dtype, sinks, num_sinks, ring, ring_size, extra, extra_from, extra_strides)
using ExactTuple = std::tuple<Numbers, int, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, std::tuple<int64_t, int64_t, int64_t>>;

static Side side(const Pages& pages, const ExactTuple& t) {
  Side s;
  s.method = &pages.method;
  s.known = &pages.known;
  s.pages = &pages.table;
  s.visible = std::get<0>(t);
  s.exact = Float(std::get<1>(t));
  s.sinks = pointer(std::get<2>(t)), s.num_sinks = std::get<3>(t);
  s.ring = pointer(std::get<4>(t)), s.ring_size = std::get<5>(t);
  s.extra = pointer(std::get<6>(t)), s.extra_from = std::get<7>(t);
  std::tie(s.extra_strides[0], s.extra_strides[1], s.extra_strides[2]) = std::get<8>(t);
  for (size_t row = 0; row < s.visible.size(); ++row)
    if (row >= s.pages->size() || int64_t((*s.pages)[row].size()) * s.method->page_tokens < s.visible[row])
      throw nb::value_error("fewer pages than packed tokens");
  return s;
}

static const char* usable(const std::optional<std::string>& isa) {
  if (!isa) return best_isa();
  for (const char* name : usable_isas())
    if (*isa == name) return name;
  throw nb::value_error(("instruction set '" + *isa + "' is not built or not on this machine").c_str());
}

template <size_t N, class T>
static void copy(const T& from, int64_t (&to)[N]) {
  if (from.size() != N) throw nb::value_error("wrong number of strides");
  for (size_t i = 0; i < N; ++i) to[i] = from[i];
}

// (pads, start, stop): positions [start, stop) of every row, the first ones of a row padding
using Span = std::tuple<Numbers, int64_t, int64_t>;
// (address, dtype, strides, heads, queries)
using Query = std::tuple<int64_t, int, Numbers, int, int>;
// (scaling, softcap, causal, address of logits of sinks)
using Options = std::tuple<float, float, bool, int64_t>;
// (address, whether it is bool, strides)
using Mask = std::tuple<int64_t, bool, Numbers>;

static void attend(const Pages& keys, const ExactTuple& exact_keys, const Pages& values, const ExactTuple& exact_values,
                   const Span& span, const Query& query, const Options& options, const std::optional<Mask>& mask, int64_t out,
                   int threads, const std::optional<std::string>& isa) {
  Request r;
  const int q_heads = std::get<3>(query);
  r.key = side(keys, exact_keys), r.value = side(values, exact_values);
  std::tie(r.pads, r.start, r.stop) = span;
  r.rows = int(r.pads.size()), r.kv_heads = keys.method.heads, r.ratio = q_heads / keys.method.heads, r.queries = std::get<4>(query);
  if (r.key.visible.size() != r.pads.size() || r.value.visible.size() != r.pads.size() || values.method.heads != r.kv_heads ||
      q_heads % r.kv_heads)
    throw nb::value_error("rows or heads of keys, values and queries do not agree");
  r.query = pointer(std::get<0>(query)), r.query_type = Float(std::get<1>(query));
  copy(std::get<2>(query), r.query_strides);
  r.scaling = std::get<0>(options), r.softcap = std::get<1>(options), r.causal = std::get<2>(options);
  r.sink_logits = reinterpret_cast<const float*>(std::get<3>(options));
  if (mask) {
    r.mask = pointer(std::get<0>(*mask)), r.mask_is_bool = std::get<1>(*mask);
    copy(std::get<2>(*mask), r.mask_strides);
  }
  r.out = reinterpret_cast<uint8_t*>(out);
  r.threads = threads;
  const AttendFn run = attend_for(usable(isa));
  nb::gil_scoped_release released;
  run(r);
}

// A wish; the system may not know it.
static void want_huge_pages(int64_t address, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
  const int64_t page = 4096, first = (address + page - 1) / page * page, last = (address + bytes) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), size_t(last - first), MADV_HUGEPAGE);
#else
  (void)address, (void)bytes;
#endif
}

void bind_attend(nb::module_& m) {
  nb::class_<Pages>(m, "Pages")
      .def(nb::init<const Method&>(), "method"_a)
      .def("set", &Pages::set, "rows"_a, "positions"_a = Numbers(), "states"_a = std::vector<Numbers>());
  m.def("attend", &attend, "keys"_a, "exact_keys"_a, "values"_a, "exact_values"_a, "span"_a, "query"_a, "options"_a,
        "mask"_a.none(), "out"_a, "threads"_a, "isa"_a = nb::none());
  m.def("want_huge_pages", &want_huge_pages, "address"_a, "bytes"_a);
  m.def("usable_isas", [] {
    std::vector<std::string> names;
    for (const char* name : usable_isas()) names.emplace_back(name);
    return names;
  });
  m.def("peak_multiply_adds", [](std::optional<std::string> isa) {
    nb::gil_scoped_release released;
    return peak_multiply_adds(usable(isa));
  }, "isa"_a = nb::none());
  m.def("read_bandwidth", [](int64_t address, int64_t bytes, int threads, std::optional<std::string> isa) {
    nb::gil_scoped_release released;
    return read_bandwidth(pointer(address), bytes, threads, usable(isa));
  }, "address"_a, "bytes"_a, "threads"_a, "isa"_a = nb::none());
}

}  // namespace quantkv
