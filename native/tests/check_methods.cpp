// Many terms and steps at once: attention and decoding touch no byte beyond what is there, for sanitizers.
#include "pages.h"

static int64_t end_of = 0;

static int64_t room(int64_t bytes) {
  const int64_t at = end_of;
  end_of += rounded_up(bytes, 64);
  return at;
}

static Factor factor(Meta type, const Format& f, int tokens, int channels, int bytes) {
  Factor x;
  x.type = type, x.share_tokens = tokens, x.share_channels = channels;
  x.at = room(int64_t(f.heads) * (f.page_tokens / tokens) * (f.head_dim / channels) * bytes);
  return x;
}

// Two parts, products of scales with a zero of their own, two sparse slots, a low rank, and every step.
static Method any_method(bool keys, int dim, bool turned) {
  const int cut = 24;
  Method m = method_of({make(keys, cut, Code::affine, 3, 1, cut, false, false), make(keys, dim - cut, Code::affine, 4, 32, 1, false, false)}, dim);
  end_of = 0;
  for (Format& f : m.parts) {
    Format laid = f;
    const int64_t from = room(lay_out(laid));
    for (Plane& p : laid.planes) p.offset += from;
    laid.scale_at += from, laid.zero_at += from;
    f = laid;
  }
  m.parts[1].first = cut, m.parts[0].derived = m.parts[0].has_scale = m.parts[0].has_zero = true, m.parts[0].followed = true;
  m.parts[0].factors = {factor(Meta::e4m3, m.parts[0], 1, 8, 1), factor(Meta::e8m0, m.parts[0], 32, cut, 1)};
  m.parts[0].own_zero = factor(Meta::bf16, m.parts[0], 32, 1, 2), m.parts[0].share_tokens = 1, m.parts[0].share_channels = 1;
  const int64_t tokens = int64_t(m.heads) * m.page_tokens;
  m.sparse = {{2, room(tokens * 2), room(tokens * 4), Float::f16}};
  m.low_rank = {{2, 32, room(tokens * 4), room(tokens / 32 * 2 * dim * 4), Float::f16, Float::f32}};
  Step shift, stretch, hadamard, matrix, scale, turn;
  shift.what = Do::shift, stretch.what = Do::stretch, stretch.state = 1, hadamard.block = 8, matrix.what = Do::matrix;
  matrix.matrix = std::make_shared<std::vector<float>>(size_t(m.heads * dim * dim), 0.01f);
  scale.what = Do::token_scale, scale.scale.type = Meta::f16, scale.scale.at = room(tokens * 2);
  turn.what = Do::turn, turn.angles = std::make_shared<Angles>(std::vector<double>(size_t(dim / 2), 0.3), true);
  m.steps = {shift, hadamard, scale, stretch, matrix};
  if (turned) m.steps.insert(m.steps.begin() + 2, turn);
  m.states = 2;
  return m;
}

struct Told {
  std::vector<float> state;
  Known known;
};

static Told tell(const Method& m, int64_t tokens) {
  Told t;
  t.state.assign(size_t(m.heads * m.head_dim), 0.5f);
  t.known.positions = {3};
  t.known.states = {{t.state.data()}, {t.state.data()}};
  for (const Step& s : m.steps) t.known.far.push_back(s.what == Do::turn ? s.angles->far(3 + tokens) : nullptr);
  return t;
}

// Bytes that are small floats of any dtype, and indices of which some name no channel.
static std::vector<uint8_t> record_of(int64_t bytes, std::mt19937& random) {
  std::vector<uint8_t> record(static_cast<size_t>(bytes));
  for (size_t i = 0; i < record.size(); ++i) record[i] = uint8_t(random() % 0x38);
  return record;
}

static void check(int dim, bool turned, std::mt19937& random) {
  const Method key = any_method(true, dim, turned);
  const int64_t key_bytes = end_of;
  const Method value = any_method(false, dim, turned);
  std::vector<uint8_t> k = record_of(key_bytes, random), v = record_of(end_of, random);
  Told key_told = tell(key, key.page_tokens), value_told = tell(value, value.page_tokens);
  const std::vector<std::vector<const uint8_t*>> key_table{{k.data()}}, value_table{{v.data()}};
  const int64_t tokens = key.page_tokens - 5;
  std::vector<float> q(size_t(key.heads * 3 * dim), 0.1f), out(q.size());
  for (const char* isa : usable_isas()) {
    Request r;
    r.key.method = &key, r.key.known = &key_told.known, r.key.pages = &key_table, r.key.visible = {tokens};
    r.value.method = &value, r.value.known = &value_told.known, r.value.pages = &value_table, r.value.visible = {tokens};
    r.rows = 1, r.kv_heads = key.heads, r.ratio = 3, r.pads = {0}, r.stop = tokens, r.scaling = 1e-4f;
    r.query = reinterpret_cast<const uint8_t*>(q.data()), r.out = reinterpret_cast<uint8_t*>(out.data());
    r.query_strides[0] = int64_t(q.size()), r.query_strides[1] = r.query_strides[2] = dim;
    attend_for(isa)(r);
    for (const auto& side : {r.key, r.value}) {
      std::vector<float> rows(size_t(side.method->heads * tokens * dim));
      const uint8_t* const* pages[] = {(*side.pages)[0].data()};
      DecodeRequest d;
      d.method = side.method, d.known = side.known, d.pages = pages, d.rows = 1, d.stop = tokens, d.out = rows.data();
      d.strides[2] = dim, d.strides[1] = tokens * dim;
      decode_for(isa)(d);
    }
  }
}

int main() {
  std::mt19937 random(3);
  for (int dim : {40, 72, 128})
    for (bool turned : {false, true}) check(dim, turned, random);
  std::puts("methods: no byte beyond what is there");
}
