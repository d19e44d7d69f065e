// Key tiles of one instruction set beside plain loops: the numbers of codes as they are read, and steps undone.
#include "pages.h"

#include "codes.h"
#include "undo.h"

using namespace quantkv::QUANTKV_ISA;
#define QUANTKV_TEXT_OF(name) #name
#define QUANTKV_TEXT(name) QUANTKV_TEXT_OF(name)

static std::vector<float> uniform(size_t n, std::mt19937& random) {
  std::vector<float> x(n);
  for (float& v : x) v = std::uniform_real_distribution<float>(-1.0f, 1.0f)(random);
  return x;
}

// Element (channel, token) of a plane's tile, 0 to begin with, as the layout's rule says.
static void put(uint8_t* tile, int bits, int channel, int token, int code) {
  const int vector = channel * 4 + token / LANES, per = 32 / bits;
  uint32_t word;
  if (bits == 8) return void(tile[vector * LANES + token % LANES] = uint8_t(code));
  uint8_t* at = tile + (vector / per * LANES + token % LANES) * 4;
  std::memcpy(&word, at, 4);
  word |= uint32_t(code) << (bits * (vector % per));
  std::memcpy(at, &word, 4);
}

// A tile of random codes and what they stand for.
struct Coded {
  Format f;
  std::vector<uint8_t> record;
  std::vector<int> codes;
  float number(size_t i) const { return f.code == Code::table ? f.table[size_t(codes[i])] : float(codes[i]); }
};

static Coded coded(Code code, int bits, int dim, std::mt19937& random) {
  Coded t{make(true, dim, code, bits, 1, dim, false, false), {}, {}};
  t.f.heads = 1, t.f.page_tokens = TILE, t.f.has_zero = true;
  if (code == Code::table) t.f.table = uniform(size_t(1) << bits, random);
  t.record.assign(size_t(lay_out(t.f)), 0);
  for (int i = 0; i < dim * TILE; ++i) {
    int rest = int(random() % (1u << bits));
    t.codes.push_back(rest);
    for (const Plane& plane : t.f.planes) {
      put(t.record.data() + plane.offset, plane.bits, i / TILE, i % TILE, rest & ((1 << plane.bits) - 1));
      rest >>= plane.bits;
    }
  }
  return t;
}

// Scales 1 and zeros 0 leave every code's number as it is, bit for bit; others are applied.
static void check_codes(Code code, int bits, std::mt19937& random) {
  const int dim = 64;
  const Coded t = coded(code, bits, dim, random);
  const Codes codes(t.f);
  CHECK(codes.loadable(4, dim));
  const Source source = codes.source(t.record.data(), t.record.data(), 0, Panel{dim, 4, 0});
  const std::vector<float> ones(TILE, 1.0f), nothing(TILE), plus = uniform(size_t(dim), random);
  const std::vector<float> scale = uniform(TILE, random), zero = uniform(TILE, random);
  std::vector<float> plain(size_t(dim * TILE)), lanes(plain), rows(plain);
  Spread by;
  by.scale = ones.data(), by.zero = nothing.data(), by.plus[0] = nothing.data();
  spread_for(kind_of(t.f), true)(source, by, 0, dim, plain.data());
  by.scale = scale.data(), by.zero = zero.data(), by.plus[0] = plus.data();
  spread_for(kind_of(t.f), true)(source, by, 0, dim, lanes.data());
  for (int v = 0; v < 4; ++v) by.by[v] = scale.data(), by.plus[v] = plus.data();
  spread_for(kind_of(t.f), false)(source, by, 0, dim, rows.data());
  for (size_t i = 0; i < plain.size(); ++i) {
    const size_t c = i / TILE, token = i % TILE;
    CHECK(plain[i] == t.number(i));
    CHECK(std::fabs(lanes[i] - (double(t.number(i)) * scale[token] + zero[token] + plus[c])) < 3e-5);
    CHECK(std::fabs(rows[i] - (double(t.number(i)) * scale[c] + plus[c])) < 3e-5);
  }
}

static std::vector<double> widened(const std::vector<float>& x) { return {x.begin(), x.end()}; }

static void near(const std::vector<float>& got, const std::vector<double>& want, double tolerance = 3e-6) {
  for (size_t i = 0; i < got.size(); ++i) CHECK(std::fabs(got[i] - want[i]) < tolerance);
}

static void check_linear(int dim, std::mt19937& random) {
  const std::vector<float> x = uniform(size_t(dim * TILE), random), matrix = uniform(size_t(dim * dim), random);
  const std::vector<float> by = uniform(size_t(dim), random), token = uniform(TILE, random);
  const int block = dim & -dim;
  std::vector<double> had(x.size()), product(x.size()), shift(x.size()), stretch(x.size()), scaled(x.size());
  for (int i = 0; i < dim * TILE; ++i) {
    const int c = i / TILE, t = i % TILE;
    const int whole = c / block * block;
    for (int k = 0; k < dim; ++k) product[size_t(i)] += double(matrix[size_t(c * dim + k)]) * x[size_t(k * TILE + t)];
    for (int k = 0; k < block; ++k) {
      const double sign = __builtin_popcount(unsigned(k & c % block)) % 2 ? -1.0 : 1.0;
      had[size_t(i)] += sign * x[size_t((whole + k) * TILE + t)] / std::sqrt(double(block));
    }
    shift[size_t(i)] = double(x[size_t(i)]) + by[size_t(c)], stretch[size_t(i)] = double(x[size_t(i)]) * by[size_t(c)];
    scaled[size_t(i)] = double(x[size_t(i)]) * token[size_t(t)];
  }
  std::vector<float> got = x, room(x.size());
  undo_hadamard(got.data(), dim, block), near(got, had);
  got = x, undo_matrix(got.data(), dim, matrix.data(), room.data()), near(got, product, 3e-5);
  got = x, undo_shift(got.data(), dim, by.data()), near(got, shift);
  got = x, undo_stretch(got.data(), dim, by.data()), near(got, stretch);
  got = x, undo_token_scale(got.data(), dim, token.data()), near(got, scaled);
}

// Keys turned by what is left of their positions meet queries turned back by the multiple of 64, as if keys were turned
// by all of it. Far from the beginning, where floats of a product of position and frequency would be far off.
static void check_turn(int dim, int pairs, bool interleaved, int64_t first, std::mt19937& random) {
  std::vector<double> frequencies;
  for (int i = 0; i < pairs; ++i) frequencies.push_back(std::pow(10000.0, -double(i) / pairs));
  Angles angles(frequencies, interleaved);
  const std::vector<float> x = uniform(size_t(dim * TILE), random), query = uniform(size_t(dim), random);
  std::vector<double> want = widened(x);
  for (int i = 0; i < pairs; ++i)
    for (int t = 0; t < TILE; ++t) {
      const int a = interleaved ? 2 * i : i, b = interleaved ? a + 1 : i + pairs;
      const double angle = double(first + t) * frequencies[size_t(i)];
      const double p = x[size_t(a * TILE + t)], q = x[size_t(b * TILE + t)];
      want[size_t(a * TILE + t)] = p * std::cos(angle) - q * std::sin(angle);
      want[size_t(b * TILE + t)] = q * std::cos(angle) + p * std::sin(angle);
    }
  std::vector<float> turned = x, back = query;
  const auto far = angles.far(first);
  const float* cos = far->data() + first / Angles::STRIDE * 2 * pairs;
  undo_turn(turned.data(), angles, first % Angles::STRIDE);
  turn_back(back.data(), angles, cos, cos + pairs);
  for (int t = 0; t < TILE; ++t) {
    double got = 0.0, score = 0.0;
    for (int c = 0; c < dim; ++c) {
      got += double(back[size_t(c)]) * turned[size_t(c * TILE + t)];
      score += query[size_t(c)] * want[size_t(c * TILE + t)];
    }
    CHECK(std::fabs(got - score) < 5e-6);
  }
}

// Nothing is checked on a machine that does not have this instruction set.
int main() {
  bool usable = false;
  for (const char* isa : usable_isas()) usable |= !std::strcmp(isa, QUANTKV_TEXT(QUANTKV_ISA));
  if (!usable) return 0;
  std::mt19937 random(11);
  for (int bits = 1; bits <= 8; ++bits) check_codes(Code::affine, bits, random);
  for (int bits = 1; bits <= 6; ++bits) check_codes(Code::table, bits, random);
  for (int dim : {1, 24, 40, 64, 80, 128}) check_linear(dim, random);
  for (int64_t first : {0, 63, 64, 1000, 1 << 20})
    for (bool interleaved : {false, true}) {
      check_turn(64, 32, interleaved, first, random);
      check_turn(40, 12, interleaved, first, random);
    }
  std::puts("tiles: every code and step agrees with its formula");
}
