// Properties of encode and decode that need no reference, for sanitizers: every buffer has exactly the bytes it needs.
#include "pages.h"

static bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The worst error that the format allows for numbers within +-1.
static float tolerance(const Format& f) {
  if (f.code == Code::raw) return f.value == Float::f32 ? 0.0f : 0x1p-10f;
  if (f.code != Code::affine) return f.code == Code::e4m3 ? 0x1p-4f : 0x1p-3f;
  return (f.has_zero ? 2.0f / float((1 << f.bits) - 1) : 1.0f / float((1 << (f.bits - 1)) - 1)) * 0.51f + 0x1p-9f;
}

static void check_format(Format f, const char* isa, std::mt19937& random) {
  const int rows = 2;
  const int64_t bytes = lay_out(f), tokens = 2 * f.page_tokens - f.share_tokens;
  EncodeFn encode = encode_for(isa);
  DecodeFn decode = decode_for(isa);
  CHECK(encode && decode);
  std::vector<float> x(size_t(rows * f.heads * tokens * f.head_dim));
  for (float& v : x) v = std::uniform_real_distribution<float>(-1.0f, 1.0f)(random);

  Rows whole(f, rows, 2, bytes, 0), pieces(f, rows, 2, bytes, 0), dirty(f, rows, 2, bytes, 0xff);
  whole.add(encode, x, tokens, 0, tokens, 3);
  for (int64_t at = 0; at < tokens;) {  // in whatever pieces, on whatever bytes: the same tokens
    int64_t size = f.share_tokens * (1 + int64_t(random() % 40) / f.share_tokens);
    int64_t end = at + size < tokens ? at + size : tokens;
    pieces.add(encode, x, tokens, at, end, 1);
    dirty.add(encode, x, tokens, at, end, 1);
    at = end;
  }
  CHECK(whole.records == pieces.records);
  std::vector<float> all = whole.read(decode, 0, tokens, 2);
  CHECK(same(all, dirty.read(decode, 0, tokens, 1)));
  for (size_t i = 0; i < x.size(); ++i) CHECK(std::fabs(all[i] - x[i]) <= tolerance(f));

  std::vector<float> part = whole.read(decode, 5, tokens - 3, 1);
  for (int64_t head = 0; head < rows * f.heads; ++head)
    CHECK(std::memcmp(part.data() + head * (tokens - 8) * f.head_dim, all.data() + (head * tokens + 5) * f.head_dim,
                      size_t((tokens - 8) * f.head_dim) * sizeof(float)) == 0);

  const float spoilt[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e-42f, 0.0f};
  for (size_t i = 0; i < x.size(); ++i)
    if (random() % 50 == 0) x[i] = spoilt[random() % 7];
  whole.add(encode, x, tokens, 0, tokens, 1);
  all = whole.read(decode, 0, tokens, 1);
  for (size_t i = 0; i < x.size(); ++i) CHECK(std::isnan(all[i]) || std::isfinite(all[i]) || f.bits == 32);
}

int main() {
  std::mt19937 random(1);
  int count = 0;
  for (const char* isa : usable_isas())
    for (bool keys : {true, false})
      for (int dim : {8, 40, 112}) {
        for (int bits : {2, 3, 4, 5, 6, 7, 8})
          for (int share_tokens : {1, 16, 24, 64})
            for (int share_channels : {dim, 8, 1})
              for (bool symmetric : {false, true}) {
                bool all_heads = (share_tokens + share_channels) % 2 != 0;
                Format f = make(keys, dim, Code::affine, bits, share_tokens, share_channels, all_heads, symmetric);
                check_format(f, isa, random);
                ++count;
              }
        for (Code code : {Code::e4m3, Code::e5m2})
          check_format(make(keys, dim, code, 8, 1, dim, false, false), isa, random);
        for (int bits : {16, 32}) check_format(make(keys, dim, Code::raw, bits, 1, 1, false, false), isa, random);
      }
  std::printf("encode: %d affine formats, and float8 and raw ones\n", count);
}
