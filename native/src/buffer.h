// A block of aligned memory: std::vector would leave functions behind that the linker shares between builds.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace quantkv {
namespace QUANTKV_ISA {

template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t n = 0) { resize(n); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(p_); }

  // Contents are zero afterwards.
  void resize(int64_t n) {
    std::free(p_);
    size_t bytes = (size_t(n) * sizeof(T) + 127) / 64 * 64;
    p_ = static_cast<T*>(std::aligned_alloc(64, bytes));
    if (!p_) throw std::bad_alloc();
    std::memset(static_cast<void*>(p_), 0, bytes);
    size_ = n;
  }
  int64_t size() const { return size_; }
  T* data() const { return p_; }
  T& operator[](int64_t i) const { return p_[i]; }

 private:
  T* p_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace QUANTKV_ISA
}  // namespace quantkv
