// A row's positions in pieces that lie together: padding, sinks, packed pages, the ring and the call's own tensor.
#pragma once

#include "attend.h"
#include "simd.h"

namespace quantkv {
namespace QUANTKV_ISA {

QUANTKV_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Calls visit.nothing(low, high), visit.packed(first token, last token, position) and
// visit.exact(pointer, bytes from token to token, low, high) for positions [low, high) of one head, in order.
template <class Visit>
static inline void for_segments(const Side& s, int row, int head, int64_t pad, int64_t low, int64_t high, Visit& visit) {
  const int64_t dim = s.method->head_dim, bytes = float_bytes(s.exact), line = dim * bytes;
  const int64_t first = pad + s.num_sinks, packed_end = first + s.visible[size_t(row)];
  const int64_t index = int64_t(row) * s.method->heads + head;
  int64_t at = low;
  if (at < least(pad, high)) {
    visit.nothing(at, least(pad, high));
    at = least(pad, high);
  }
  if (at < least(first, high)) {
    visit.exact(s.sinks + (index * s.num_sinks + at - pad) * line, line, at, least(first, high));
    at = least(first, high);
  }
  if (at < least(packed_end, high)) {
    visit.packed(at - first, least(packed_end, high) - first, at);
    at = least(packed_end, high);
  }
  const int64_t ring_end = s.extra ? least(s.extra_from, high) : high;
  while (at < ring_end) {
    int64_t slot = at % s.ring_size, count = least(s.ring_size - slot, ring_end - at);
    visit.exact(s.ring + (index * s.ring_size + slot) * line, line, at, at + count);
    at += count;
  }
  if (at < high) {
    const int64_t* stride = s.extra_strides;
    int64_t from = row * stride[0] + head * stride[1] + (at - s.extra_from) * stride[2];
    visit.exact(s.extra + from * bytes, stride[2] * bytes, at, high);
  }
}

}  // namespace QUANTKV_ISA
}  // namespace quantkv
