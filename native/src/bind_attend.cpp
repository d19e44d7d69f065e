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

// A tensor's pages as last told, and the format they are in.
struct Pages {
  Format format;
  Table table;

  explicit Pages(const Format& f) : format(f) {}
  void set(const std::vector<Numbers>& rows) {
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
  s.format = &pages.format;
  s.pages = &pages.table;
  s.visible = std::get<0>(t);
  s.exact = Float(std::get<1>(t));
  s.sinks = pointer(std::get<2>(t)), s.num_sinks = std::get<3>(t);
  s.ring = pointer(std::get<4>(t)), s.ring_size = std::get<5>(t);
  s.extra = pointer(std::get<6>(t)), s.extra_from = std::get<7>(t);
  std::tie(s.extra_strides[0], s.extra_strides[1], s.extra_strides[2]) = std::get<8>(t);
  for (size_t row = 0; row < s.visible.size(); ++row)
    if (row >= s.pages->size() || int64_t((*s.pages)[row].size()) * s.format->page_tokens < s.visible[row])
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

static void attend(const Pages& keys, const ExactTuple& exact_keys, const Pages& values, const ExactTuple& exact_values,
                   const Numbers& pads, int64_t start, int64_t stop, int64_t query, int query_type,
                   const Numbers& query_strides, int q_heads, int queries, float scaling, float softcap, bool causal,
                   int64_t mask, bool mask_is_bool, const Numbers& mask_strides, int64_t sink_logits, int64_t out,
                   int threads, const std::optional<std::string>& isa, int64_t packed_query,
                   const Numbers& packed_query_strides, int64_t packed_bias, int64_t out_packed, int64_t packed_mass) {
  Request r;
  r.key = side(keys, exact_keys), r.value = side(values, exact_values);
  r.rows = int(pads.size()), r.kv_heads = keys.format.heads, r.ratio = q_heads / keys.format.heads, r.queries = queries;
  if (r.key.visible.size() != pads.size() || r.value.visible.size() != pads.size() || values.format.heads != r.kv_heads ||
      q_heads % r.kv_heads)
    throw nb::value_error("rows or heads of keys, values and queries do not agree");
  r.pads = pads, r.start = start, r.stop = stop;
  r.query = pointer(query), r.query_type = Float(query_type);
  copy(query_strides, r.query_strides);
  r.packed_query = pointer(packed_query);
  if (packed_query) copy(packed_query_strides, r.packed_query_strides);
  r.packed_bias = reinterpret_cast<const float*>(packed_bias);
  r.scaling = scaling, r.softcap = softcap, r.causal = causal;
  r.mask = pointer(mask), r.mask_is_bool = mask_is_bool;
  if (mask) copy(mask_strides, r.mask_strides);
  r.sink_logits = reinterpret_cast<const float*>(sink_logits);
  r.out = reinterpret_cast<uint8_t*>(out);
  r.out_packed = reinterpret_cast<float*>(out_packed);
  r.packed_mass = reinterpret_cast<float*>(packed_mass);
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
  nb::class_<Pages>(m, "Pages").def(nb::init<const Format&>(), "format"_a).def("set", &Pages::set, "rows"_a);
  m.def("attend", &attend, "keys"_a, "exact_keys"_a, "values"_a, "exact_values"_a, "pads"_a, "start"_a, "stop"_a, "query"_a,
        "query_type"_a, "query_strides"_a, "q_heads"_a, "queries"_a, "scaling"_a, "softcap"_a, "causal"_a, "mask"_a,
        "mask_is_bool"_a, "mask_strides"_a, "sink_logits"_a, "out"_a, "threads"_a, "isa"_a = nb::none(),
        "packed_query"_a = 0, "packed_query_strides"_a = Numbers(), "packed_bias"_a = 0, "out_packed"_a = 0,
        "packed_mass"_a = 0);
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
