// Which build of encode and decode runs.
#include <cstring>

#include "attend.h"
#include "encode.h"

namespace quantkv {

#define QUANTKV_DECLARE(isa)                   \
  namespace isa {                              \
  void encode_request(const EncodeRequest&);   \
  void decode_request(const DecodeRequest&);   \
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
  EncodeFn encode;
  DecodeFn decode;
};

#define QUANTKV_BUILD(isa) {#isa, isa::encode_request, isa::decode_request}

#if defined(QUANTKV_HAS_base)
constexpr Build builds[] = {QUANTKV_BUILD(base)};
#else
constexpr Build builds[] = {QUANTKV_BUILD(v2), QUANTKV_BUILD(v3), QUANTKV_BUILD(v4)};
#endif

const Build* find(const char* isa) {
  static const char* best = best_isa();
  if (!isa) isa = best;
  for (const char* name : usable_isas())
    for (const Build& b : builds)
      if (std::strcmp(name, isa) == 0 && std::strcmp(b.name, isa) == 0) return &b;
  return nullptr;
}

}  // namespace

EncodeFn encode_for(const char* isa) {
  const Build* b = find(isa);
  return b ? b->encode : nullptr;
}

DecodeFn decode_for(const char* isa) {
  const Build* b = find(isa);
  return b ? b->decode : nullptr;
}

}  // namespace quantkv
