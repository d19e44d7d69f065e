// Pages of any format for the checks: every buffer has exactly the bytes that it needs, so that a sanitizer sees
// each read and write beyond one.
#pragma once

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
  static const std::vector<int> three{2, 1}, five{4, 1}, six{4, 2}, seven{4, 2, 1}, one[33] = {{}, {1}, {2}, {}, {4}, {}, {}, {}, {8}};
  static const std::vector<int> half{16}, full{32};
  return bits == 3 ? three : bits == 5 ? five : bits == 6 ? six : bits == 7 ? seven : bits == 16 ? half : bits == 32 ? full : one[bits];
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
  f.unit = code == Code::e4m3 ? 1.0f / 448 : code == Code::e5m2 ? 1.0f / 57344 : 1.0f;
  f.share_tokens = share_tokens, f.share_channels = share_channels, f.all_heads = all_heads;
  return f;
}

static Method method_of(const std::vector<Format>& parts, int head_dim) {
  Method m;
  m.parts = parts, m.head_dim = head_dim, m.heads = parts[0].heads, m.page_tokens = parts[0].page_tokens;
  m.lanes_are_tokens = parts[0].lanes_are_tokens;
  return m;
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
    const Method method = method_of({f}, f.head_dim);
    const Known nothing;
    r.method = &method, r.known = &nothing, r.pages = pages.data(), r.rows = int(pages.size()), r.start = from, r.stop = to;
    r.out = out.data(), r.threads = threads;
    r.strides[2] = f.head_dim, r.strides[1] = (to - from) * f.head_dim, r.strides[0] = f.heads * r.strides[1];
    decode(r);
    return out;
  }
};

