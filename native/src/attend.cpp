#include "attend.h"

#include "head.h"
#include "threads.h"

#include <atomic>

namespace quantkv {
namespace QUANTKV_ISA {

// Softmax statistics and weighted sums of one share of one head's tokens, in a flat run of floats:
// [top, total] of each query row, masses of each shift and row, then the sums, then the packed values' own sums.
struct Share {
  float* p;
  int64_t queries, width, shifts;
  float* top() const { return p; }
  float* total() const { return p + queries; }
  float* masses() const { return p + 2 * queries; }
  float* sums(int side) const { return p + (2 + shifts + side * width) * queries; }
  int64_t floats() const { return rounded_up((2 + shifts + 2 * width) * queries, LANES); }
};

// How many shares a head's tokens are cut into: eight for each thread, so that one that starts late does less, but
// none of them short.
static int64_t shares_per_head(const Request& r) {
  const int64_t heads = int64_t(r.rows) * r.kv_heads, most = (r.stop - r.start) / 1024;
  const int64_t wanted = r.threads <= 1 ? 1 : (8 * int64_t(r.threads) + heads - 1) / heads;
  return wanted < most ? wanted : most > 1 ? most : 1;
}

static void merge(const Share& into, const Share& from, bool apart) {
  for (int64_t m = 0; m < into.queries; ++m) {
    float top = into.top()[m] > from.top()[m] ? into.top()[m] : from.top()[m];
    float safe = top == -INFINITY ? 0.0f : top;
    float a = std::exp(into.top()[m] - safe), b = std::exp(from.top()[m] - safe);
    into.top()[m] = top;
    into.total()[m] = into.total()[m] * a + from.total()[m] * b;
    for (int64_t i = m; i < into.shifts * into.queries; i += into.queries)
      into.masses()[i] = into.masses()[i] * a + from.masses()[i] * b;
    for (int side = 0; side <= int(apart); ++side)
      for (int64_t c = 0; c < into.width; ++c) {
        float& x = into.sums(side)[m * into.width + c];
        x = x * a + from.sums(side)[m * into.width + c] * b;
      }
  }
}

static void write_as(Float type, uint8_t* out, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    if (type == Float::f32) {
      std::memcpy(out + 4 * i, &bits, 4);
    } else {
      uint16_t half = type == Float::f16 ? float_to_half(x[i]) : float_to_bfloat(bits);
      std::memcpy(out + 2 * i, &half, 2);
    }
  }
}

// Packed values' sums of a query row, all steps undone, added to the exact ones'.
static void undo_steps(const Request& r, int row, int head, const Share& s, int64_t m, float* room) {
  const Method& method = *r.value.method;
  const Place at{r.value.known, row, head};
  float *sums = s.sums(1) + m * s.width, *out = s.sums(0) + m * s.width;
  for (int i = folded_steps(method) - 1, shift = int(s.shifts); i >= 0; --i) {
    const Step& step = method.steps[size_t(i)];
    shift -= step.what == Do::shift;
    const float mass = step.what == Do::shift ? s.masses()[shift * s.queries + m] : 0.0f;
    undo_row(method, step, at, sums, mass, room);
  }
  for (int64_t c = 0; c < s.width; ++c) out[c] += sums[c];
}

// Divide by the totals, sink logits included, and write one head's query rows to [rows, queries, Hq, Dv].
static void finish(const Request& r, int row, int head, const Share& s) {
  const int64_t dim = r.value.method->head_dim, q_heads = int64_t(r.kv_heads) * r.ratio;
  Buffer<float> line(s.width);
  for (int64_t m = 0; m < s.queries; ++m) {
    int64_t q_head = head * r.ratio + m / r.queries, at = (int64_t(row) * r.queries + m % r.queries) * q_heads + q_head;
    float total = s.total()[m];
    if (folded_steps(*r.value.method)) undo_steps(r, row, head, s, m, line.data());
    if (r.sink_logits) {
      float safe = s.top()[m] == -INFINITY ? 0.0f : s.top()[m];
      // a logit far above every score would overflow: the quotient is what counts, and it goes to zero
      total += std::exp(r.sink_logits[q_head] - safe);
    }
    float scale = total == 0.0f ? 0.0f : 1.0f / total;
    for (int64_t c = 0; c < dim; ++c) line[c] = s.sums(0)[m * s.width + c] * scale;
    write_as(r.query_type, r.out + at * dim * float_bytes(r.query_type), line.data(), dim);
  }
}

void attend(const Request& r) {
  const int64_t cuts = shares_per_head(r), heads = int64_t(r.rows) * r.kv_heads;
  Share s{nullptr, int64_t(r.ratio) * r.queries, padded_dim(*r.value.method), shifts_of(*r.value.method)};
  const int64_t floats = s.floats();
  const bool apart = folded_steps(*r.value.method) > 0;
  Buffer<float> all(heads * cuts * floats);
  std::atomic<int64_t> next{0};
  parallel(r.threads, [&](int, int) {
    HeadReader reader(r);
    for (int64_t item; (item = next.fetch_add(1)) < heads * cuts;) {
      int64_t head = item / cuts, cut = item % cuts, length = r.stop - r.start;
      int64_t low = r.start + rounded_up(length * cut / cuts, TILE), high = r.start + rounded_up(length * (cut + 1) / cuts, TILE);
      Share mine = s;
      mine.p = all.data() + item * floats;
      reader.run(int(head / r.kv_heads), int(head % r.kv_heads), low < r.stop ? low : r.stop,
                 high < r.stop ? high : r.stop, mine.top(), mine.total(), mine.masses(), mine.sums(0), mine.sums(1));
    }
  });
  for (int64_t head = 0; head < heads; ++head) {
    Share first = s, other = s;
    first.p = all.data() + head * cuts * floats;
    for (int64_t cut = 1; cut < cuts; ++cut) {
      other.p = first.p + cut * floats;
      merge(first, other, apart);
    }
    finish(r, int(head / r.kv_heads), int(head % r.kv_heads), first);
  }
}

// Sixteen-wide multiply-adds on registers alone.
double multiply_adds(int64_t rounds) {
  F16 acc[12];
  for (int i = 0; i < 12; ++i) acc[i] = splat(float(i));
  F16 a = splat(0.999f), b = splat(0.001f);
  for (int64_t n = 0; n < rounds; ++n) {
QUANTKV_UNROLL(12)
    for (int i = 0; i < 12; ++i) acc[i] = fma(acc[i], a, b);
  }
  F16 all = acc[0];
  for (int i = 1; i < 12; ++i) all = all + acc[i];
  return double(sum(all));
}

double sum_bytes(const uint8_t* p, int64_t bytes) {
  F16 acc[8];
  for (auto& x : acc) x = splat(0.0f);
  for (int64_t at = 0; at + 512 <= bytes; at += 512) {
QUANTKV_UNROLL(8)
    for (int i = 0; i < 8; ++i) acc[i] = acc[i] + load(reinterpret_cast<const float*>(p + at + i * 64));
  }
  for (int i = 1; i < 8; ++i) acc[0] = acc[0] + acc[i];
  return double(sum(acc[0]));
}

}  // namespace QUANTKV_ISA
}  // namespace quantkv
