// Which of the builds runs: the widest that the processor has, unless the caller names one.
#include <chrono>
#include <cstring>

#include "attend.h"
#include "encode.h"
#include "threads.h"

namespace quantkv {

#define QUANTKV_DECLARE(isa)                      \
  namespace isa {                                 \
  void attend(const Request&);                    \
  void encode_request(const EncodeRequest&);      \
  void decode_request(const DecodeRequest&);      \
  double multiply_adds(int64_t rounds);           \
  double sum_bytes(const uint8_t*, int64_t bytes); \
  }
#if defined(QUANTKV_HAS_base)
QUANTKV_DECLARE(base)
#else
QUANTKV_DECLARE(v2)
QUANTKV_DECLARE(v3)
QUANTKV_DECLARE(v4)
#endif

namespace {

struct Build {
  const char* name;
  bool usable;
  AttendFn attend;
  EncodeFn encode;
  DecodeFn decode;
  double (*multiply_adds)(int64_t);
  double (*sum_bytes)(const uint8_t*, int64_t);
};

#define QUANTKV_BUILD(isa, usable) {#isa, usable, isa::attend, isa::encode_request, isa::decode_request, isa::multiply_adds, isa::sum_bytes}

// Best last.
const std::vector<Build>& builds() {
#if defined(QUANTKV_HAS_base)
  static const std::vector<Build> all = {QUANTKV_BUILD(base, true)};
#else
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
                  __builtin_cpu_supports("f16c");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512cd");
  static const std::vector<Build> all = {
      QUANTKV_BUILD(v2, bool(__builtin_cpu_supports("sse4.2"))), QUANTKV_BUILD(v3, v3), QUANTKV_BUILD(v4, v4)};
#endif
  return all;
}

const Build* find(const char* isa) {
  for (const Build& b : builds())
    if (b.usable && std::strcmp(b.name, isa) == 0) return &b;
  return nullptr;
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::vector<const char*> usable_isas() {
  std::vector<const char*> names;
  for (const Build& b : builds())
    if (b.usable) names.push_back(b.name);
  return names;
}

const char* best_isa() { return usable_isas().back(); }

AttendFn attend_for(const char* isa) {
  const Build* b = find(isa);
  return b ? b->attend : nullptr;
}

EncodeFn encode_for(const char* isa) {
  const Build* b = find(isa ? isa : best_isa());
  return b ? b->encode : nullptr;
}

DecodeFn decode_for(const char* isa) {
  const Build* b = find(isa ? isa : best_isa());
  return b ? b->decode : nullptr;
}

double peak_multiply_adds(const char* isa) {
  const Build* b = find(isa);
  double best = 0.0;
  volatile double sink = 0.0;  // the result must be wanted by someone
  for (int i = 0; b && i < 5; ++i) {
    const int64_t rounds = 2000000;
    const double from = seconds();
    sink = sink + b->multiply_adds(rounds);
    const double rate = double(rounds) * 12 * LANES / (seconds() - from);
    best = rate > best ? rate : best;
  }
  return best;
}

double read_bandwidth(const uint8_t* p, int64_t bytes, int threads, const char* isa) {
  const Build* b = find(isa);
  if (!b) return 0.0;
  const double from = seconds();
  parallel(threads, [&](int i, int n) {
    const int64_t low = bytes / 512 * i / n * 512, high = bytes / 512 * (i + 1) / n * 512;
    volatile double sink = b->sum_bytes(p + low, high - low);
    (void)sink;
  });
  return double(bytes) / (seconds() - from);
}

}  // namespace quantkv
