// Attention over pages beside the formula in double precision, for sanitizers.
#include "pages.h"

struct Shape {
  int rows, ratio, queries;
  int64_t packed, sinks, tail;
  std::vector<int64_t> pads;
  int64_t stop() const { return pads.back() + sinks + packed + tail; }  // the last row has the fewest exact tokens
};

// Keys or values: pages, exact tokens and all of them as one row after the other, [rows, heads, stop, D].
struct Tensor {
  Format f;
  int64_t bytes;
  Method method;
  Known known;
  std::vector<std::vector<const uint8_t*>> table;
  std::vector<float> sinks, ring;
  std::vector<double> all;
  Side side;
};

static std::vector<float> uniform(size_t n, std::mt19937& random) {
  std::vector<float> x(n);
  for (float& v : x) v = std::uniform_real_distribution<float>(-1.0f, 1.0f)(random);
  return x;
}

static void fill(Tensor& t, Rows& rows, const Shape& s, std::mt19937& random) {
  const int64_t dim = t.f.head_dim, ring = s.stop() - s.sinks - s.packed + 3, stop = s.stop();
  std::vector<float> x = uniform(size_t(s.rows * t.f.heads * s.packed * dim), random);
  if (s.packed) rows.add(encode_for(nullptr), x, s.packed, 0, s.packed, 1);
  std::vector<float> packed = rows.read(decode_for(nullptr), 0, s.packed, 1);
  t.sinks = uniform(size_t(s.rows * t.f.heads * s.sinks * dim), random);
  t.ring = uniform(size_t(s.rows * t.f.heads * ring * dim), random);
  t.all.assign(size_t(s.rows * t.f.heads * stop * dim), 0.0);
  for (int64_t i = 0; i < s.rows * t.f.heads; ++i) {
    const int64_t pad = s.pads[size_t(i / t.f.heads)], first = pad + s.sinks, end = first + s.packed;
    for (int64_t j = pad; j < stop; ++j) {
      const float* from = j < first ? &t.sinks[size_t((i * s.sinks + j - pad) * dim)]
                          : j < end ? &packed[size_t((i * s.packed + j - first) * dim)]
                                    : &t.ring[size_t((i * ring + j % ring) * dim)];
      for (int64_t c = 0; c < dim; ++c) t.all[size_t((i * stop + j) * dim + c)] = from[c];
    }
  }
  for (auto& row : rows.tables) t.table.emplace_back(row.begin(), row.end());
  t.method = method_of({t.f}, t.f.head_dim);
  t.side.method = &t.method, t.side.known = &t.known, t.side.pages = &t.table, t.side.visible.assign(size_t(s.rows), s.packed);
  t.side.sinks = reinterpret_cast<const uint8_t*>(t.sinks.data()), t.side.num_sinks = s.sinks;
  t.side.ring = reinterpret_cast<const uint8_t*>(t.ring.data()), t.side.ring_size = ring;
}

// One query row's attention by the formula, added to nothing: `out` has the values' head_dim numbers.
static void formula(const Tensor& keys, const Tensor& values, const float* q, int64_t head, int64_t stop, std::vector<double>& out) {
  const int64_t dim = keys.f.head_dim, width = values.f.head_dim;
  std::vector<double> p(static_cast<size_t>(stop));
  double top = -INFINITY, total = 0.0;
  for (int64_t j = 0; j < stop; ++j) {
    double score = 0.0;
    for (int64_t c = 0; c < dim; ++c) score += q[c] * keys.all[size_t((head * stop + j) * dim + c)];
    p[size_t(j)] = score;
    top = score > top ? score : top;
  }
  out.assign(size_t(width), 0.0);
  for (double& x : p) total += x = std::exp(x - top);
  for (int64_t j = 0; j < stop; ++j)
    for (int64_t c = 0; c < width; ++c) out[size_t(c)] += p[size_t(j)] / total * values.all[size_t((head * stop + j) * width + c)];
}

static void check_pair(Format k, Format v, const Shape& s, std::mt19937& random) {
  Tensor keys{k, lay_out(k), {}, {}, {}, {}, {}, {}, {}}, values{v, lay_out(v), {}, {}, {}, {}, {}, {}, {}};
  keys.f = k, values.f = v;
  Rows key_rows(keys.f, s.rows, int(s.packed / k.page_tokens) + 1, keys.bytes, 0xff);
  Rows value_rows(values.f, s.rows, int(s.packed / v.page_tokens) + 1, values.bytes, 0xff);
  fill(keys, key_rows, s, random);
  fill(values, value_rows, s, random);
  const int64_t q_heads = int64_t(k.heads) * s.ratio, dim = k.head_dim, width = v.head_dim;
  const std::vector<float> q = uniform(size_t(s.rows * q_heads * s.queries * dim), random);
  std::vector<float> out(size_t(s.rows * q_heads * s.queries * width));
  Request r;
  r.key = keys.side, r.value = values.side, r.rows = s.rows, r.kv_heads = k.heads, r.ratio = s.ratio, r.queries = s.queries;
  r.pads = s.pads, r.stop = s.stop(), r.threads = 1 + int(random() % 3);
  r.query = reinterpret_cast<const uint8_t*>(q.data()), r.out = reinterpret_cast<uint8_t*>(out.data());
  r.query_strides[0] = q_heads * s.queries * dim, r.query_strides[1] = s.queries * dim, r.query_strides[2] = dim;
  for (const char* isa : usable_isas()) {
    attend_for(isa)(r);
    for (int64_t i = 0; i < s.rows * q_heads * s.queries; ++i) {  // query i of head h of row b lies at [b, i, h]
      const int64_t b = i / (q_heads * s.queries), h = i / s.queries % q_heads, n = i % s.queries;
      std::vector<double> want;
      formula(keys, values, &q[size_t(i * dim)], b * k.heads + h / s.ratio, s.stop(), want);
      for (int64_t c = 0; c < width; ++c)
        CHECK(std::fabs(out[size_t(((b * s.queries + n) * q_heads + h) * width + c)] - want[size_t(c)]) < 2e-5);
    }
  }
}

static Format any_format(bool keys, int dim, std::mt19937& random) {
  const Code codes[] = {Code::affine, Code::affine, Code::affine, Code::e4m3, Code::e5m2, Code::raw};
  const int widths[] = {2, 3, 4, 5, 6, 7, 8}, tokens[] = {1, 1, 16, 24, 32, 64};
  const Code code = codes[random() % 6];
  const int bits = code == Code::affine ? widths[random() % 7] : code == Code::raw ? 16 << random() % 2 : 8;
  const int share = code == Code::raw ? 1 : tokens[random() % 6];
  const int channels = share > 1 && random() % 3 ? 1 : random() % 3 || dim % 8 ? dim : dim % 16 ? 8 : 16;
  if (code == Code::raw) return make(keys, dim, code, bits, 1, dim, false, false);
  const bool all_heads = random() % 4 == 0, symmetric = random() % 3 == 0 && code == Code::affine && bits > 2;
  return make(keys, dim, code, bits, share, channels, all_heads, symmetric);
}

int main() {
  std::mt19937 random(7);
  for (int dim : {20, 32, 40, 64, 80, 128})
    for (int i = 0; i < 40; ++i) {
      const Format k = any_format(true, dim, random), v = any_format(false, dim, random);
      const int64_t group = int64_t(k.share_tokens) * v.share_tokens;
      Shape s{1 + int(random() % 2), 1 + int(random() % 5), 1 + int(random() % 3), 0, int64_t(random() % 4), 2 + int64_t(random() % 40), {}};
      s.packed = int64_t(random() % 300) / group * group;
      for (int b = 0; b < s.rows; ++b) s.pads.push_back(b ? 2 : 0);
      check_pair(k, v, s, random);
    }
  std::puts("attend: every case agrees with the formula");
}
