// cos and sin of rotary embeddings: pair i of a token at position p turns by p * frequency[i].
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace quantkv {

// An angle is that of a multiple of 64, from a table that grows with the context, and one of below 128 more: no sine
// is computed where tokens are read. Tables that were handed out stay as they are.
struct Angles {
  static constexpr int64_t NEAR = 128, STRIDE = 64;
  using Numbers = std::vector<float>;
  int pairs = 0;
  bool interleaved = false;
  Numbers near_cos, near_sin;  // [pairs][128]

  Angles(const std::vector<double>& frequencies, bool neighbours)
      : pairs(int(frequencies.size())), interleaved(neighbours), frequencies_(frequencies),
        far_(std::make_shared<const Numbers>()) {
    for (double f : frequencies_)
      for (int64_t p = 0; p < NEAR; ++p) {
        near_cos.push_back(float(std::cos(double(p) * f)));
        near_sin.push_back(float(std::sin(double(p) * f)));
      }
  }

  // [multiple of 64][cos of pairs, sin of pairs], up to position `last` at least.
  std::shared_ptr<const Numbers> far(int64_t last) {
    const std::lock_guard<std::mutex> only(lock_);
    const int64_t have = pairs ? int64_t(far_->size()) / (2 * pairs) : 0, need = last / STRIDE + 1;
    if (have >= need || !pairs) return far_;
    const int64_t count = need > 2 * have ? need : 2 * have;
    auto grown = std::make_shared<Numbers>(*far_);
    grown->reserve(size_t(count * 2 * pairs));
    for (int64_t i = have; i < count; ++i) {
      for (double f : frequencies_) grown->push_back(float(std::cos(double(i * STRIDE) * f)));
      for (double f : frequencies_) grown->push_back(float(std::sin(double(i * STRIDE) * f)));
    }
    return far_ = grown;
  }

 private:
  std::vector<double> frequencies_;
  std::mutex lock_;
  std::shared_ptr<const Numbers> far_;
};

}  // namespace quantkv
