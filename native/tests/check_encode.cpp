// Properties of encode and decode that need no reference, for sanitizers: every buffer has exactly the bytes it needs.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "attend.h"
#include "encode.h"

using namespace quantkv;

#define CHECK(holds)                                                      \
  do {                                                                    \
    if (!(holds)) {                                                       \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #holds);    \
      std::abort();                                                       \
    }                                                                     \
  } while (0)

static const std::vector<int>& plane_bits(int bits) {
  static const std::vector<int> three{2, 1}, five{4, 1}, six{4, 2}, one[33] = {{}, {1}, {2}, {}, {4}, {}, {}, {}, {8}};
  static const std::vector<int> half{16}, full{32};
  return bits == 3 ? three : bits == 5 ? five : bits == 6 ? six : bits == 16 ? half : bits == 32 ? full : one[bits];
}

// Planes one after the other, then scales and zeros. Returns the bytes of a record.
static int64_t lay_out(Format& f) {
  int64_t end = 0;
  for (int bits : plane_bits(f.bits)) {
    Plane plane{bits, end, 0};
    for (int first = 0; first < vectors_of(f);) {
      Panel panel = panel_at(f, first);
      plane.head_bytes += panel_bytes(panel, bits);
      first += panel.vectors;
    }
    f.planes.push_back(plane);
    end += f.heads * plane.head_bytes;
  }
  int64_t numbers = int64_t(f.all_heads ? 1 : f.heads) * (f.page_tokens / f.share_tokens) * groups_of(f);
  int64_t bytes = rounded_up(numbers * float_bytes(f.meta), 64);
  f.scale_at = end, f.zero_at = end + bytes * f.has_scale;
  return f.zero_at + bytes * f.has_zero;
}

static Format make(bool keys, int dim, Code code, int bits, int share_tokens, int share_channels, bool all_heads,
                   bool symmetric) {
  Format f;
  f.lanes_are_tokens = keys, f.heads = 2, f.head_dim = dim, f.code = code, f.bits = bits;
  f.page_tokens = 64 % share_tokens == 0 ? 128 : 192;
  f.value = bits == 32 ? Float::f32 : Float::f16;
  f.has_scale = code != Code::raw, f.has_zero = code == Code::affine && !symmetric;
  f.centre = symmetric ? float(1 << (bits - 1)) : 0.0f;
  f.share_tokens = share_tokens, f.share_channels = share_channels, f.all_heads = all_heads;
  return f;
}

struct Rows {
  const Format& f;
  std::vector<std::vector<std::vector<uint8_t>>> records;
  std::vector<std::vector<uint8_t*>> tables;
  std::vector<uint8_t* const*> pages;

  Rows(const Format& format, int rows, int count, int64_t bytes, uint8_t fill) : f(format), records(size_t(rows)) {
    for (auto& row : records) {
      tables.emplace_back();
      for (int i = 0; i < count; ++i) row.emplace_back(size_t(bytes), fill);
      for (auto& record : row) tables.back().push_back(record.data());
    }
    for (auto& table : tables) pages.push_back(table.data());
  }

  // Tokens [from, to) of x [rows, heads, tokens, head_dim].
  void add(EncodeFn encode, const std::vector<float>& x, int64_t tokens, int64_t from, int64_t to, int threads) {
    EncodeRequest r;
    r.format = &f, r.pages = pages.data(), r.rows = int(pages.size()), r.start = from, r.tokens = to - from;
    r.x = reinterpret_cast<const uint8_t*>(x.data() + from * f.head_dim), r.threads = threads;
    r.strides[2] = f.head_dim, r.strides[1] = tokens * f.head_dim, r.strides[0] = f.heads * r.strides[1];
    encode(r);
  }

  std::vector<float> read(DecodeFn decode, int64_t from, int64_t to, int threads) const {
    std::vector<float> out(pages.size() * size_t(f.heads * (to - from) * f.head_dim));
    DecodeRequest r;
    r.format = &f, r.pages = pages.data(), r.rows = int(pages.size()), r.start = from, r.stop = to;
    r.out = out.data(), r.threads = threads;
    r.strides[2] = f.head_dim, r.strides[1] = (to - from) * f.head_dim, r.strides[0] = f.heads * r.strides[1];
    decode(r);
    return out;
  }
};

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
        for (int bits : {2, 3, 4, 5, 6, 8})
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
