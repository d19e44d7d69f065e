#include "encode.h"

#include "rows.h"
#include "encoder.h"
#include "threads.h"

namespace quantkv {
namespace QUANTKV_ISA {

static int least(int64_t a, int64_t b) { return int(a < b ? a : b); }

static int common_multiple(int a, int b) {
  int n = a;
  while (n % b) n += a;
  return n;
}

// Tokens [start, stop) of `rows` rows of `heads` heads, cut into pieces that begin at multiples of `unit` tokens, which
// divide a page. Pieces of one thread follow each other.
struct Pieces {
  int rows, heads;
  int64_t start, stop;
  int unit, page;

  int64_t per_head() const { return stop > start ? (stop + unit - 1) / unit - start / unit : 0; }
  int64_t count() const { return rows * heads * per_head(); }

  // use(row, head, page index, its first token, tokens [low, high) of the page)
  template <class Use>
  void each(int64_t from, int64_t to, Use&& use) const {
    for (int64_t i = from; i < to; ++i) {
      int64_t number = start / unit + i % per_head(), head = i / per_head();
      int64_t low = number * unit, high = low + unit, index = low / page;
      low = low > start ? low : start;
      high = high < stop ? high : stop;
      use(int(head / heads), int(head % heads), index, index * page, int(low - index * page), int(high - index * page));
    }
  }
};

// A second thread pays from some ten thousand elements on.
static int useful_threads(int wanted, const Pieces& p, int64_t elements) {
  return least(least(wanted, 1 + elements / 32768), p.count());
}

void encode_request(const EncodeRequest& r) {
  const Format& f = *r.format;
  Pieces pieces{r.rows, f.all_heads ? 1 : f.heads, r.start, r.start + r.tokens, common_multiple(TILE, f.share_tokens),
                f.page_tokens};
  int64_t elements = r.rows * r.tokens * f.heads * f.head_dim, count = pieces.count();
  parallel(useful_threads(r.threads, pieces, elements), [&](int i, int n) {
    Encoder encoder(r);
    pieces.each(count * i / n, count * (i + 1) / n,
                [&](int row, int head, int64_t page, int64_t first, int low, int high) {
                  encoder.run(row, head, r.pages[row][page], first, low, high);
                });
  });
}

void decode_request(const DecodeRequest& r) {
  const Method& m = *r.method;
  Pieces pieces{r.rows, m.heads, r.start, r.stop, TILE, m.page_tokens};
  int64_t elements = r.rows * (r.stop - r.start) * m.heads * m.head_dim, count = pieces.count();
  const bool plain = m.parts.size() == 1 && m.parts[0].head_dim == m.head_dim && m.sparse.empty() &&
                     m.low_rank.empty() && m.steps.empty();
  parallel(useful_threads(r.threads, pieces, elements), [&](int i, int n) {
    Decoder decoder(m.parts[0]);
    std::unique_ptr<MethodRows> rows(plain ? nullptr : new MethodRows(m, 0));
    pieces.each(count * i / n, count * (i + 1) / n,
                [&](int row, int head, int64_t page, int64_t first, int low, int high) {
                  float* out = r.out + row * r.strides[0] + head * r.strides[1] + (first + low - r.start) * r.strides[2];
                  const uint8_t* record = r.pages[row][page];
                  if (plain) return decoder.run(head, record, low, high, out, r.strides[2]);
                  const int64_t position = r.known->positions.empty() ? 0 : r.known->positions[size_t(row)] + first + low;
                  const float* from = rows->read(Place{r.known, row, head, record, low, position}, high - low);
                  for (int t = 0; t < high - low; ++t)
                    std::memcpy(out + t * r.strides[2], from + t * rows->width(), size_t(m.head_dim) * sizeof(float));
                });
  });
}

}  // namespace QUANTKV_ISA
}  // namespace quantkv
