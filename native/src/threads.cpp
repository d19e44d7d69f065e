#include "threads.h"

#include <dlfcn.h>

#include <atomic>
#include <thread>
#include <vector>

namespace quantkv {
namespace {

// The two entries that GNU's runtime, LLVM's and Intel's all have.
struct OpenMP {
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  using Number = int (*)();
  Parallel parallel = nullptr;
  Number thread = nullptr, threads = nullptr;

  OpenMP() {
    void* self = open_loaded();
    parallel = reinterpret_cast<Parallel>(dlsym(self, "GOMP_parallel"));
    thread = reinterpret_cast<Number>(dlsym(self, "omp_get_thread_num"));
    threads = reinterpret_cast<Number>(dlsym(self, "omp_get_num_threads"));
    if (!parallel || !thread || !threads) parallel = nullptr;
  }

  // Python loads torch's libraries privately, so their symbols are not global: ask for each by name.
  static void* open_loaded() {
    for (const char* name : {"libgomp.so.1", "libomp.so", "libiomp5.so", "libomp.dylib"})
      if (void* handle = dlopen(name, RTLD_NOLOAD | RTLD_LAZY)) return handle;
    return RTLD_DEFAULT;
  }
};

struct Call {
  Body body;
  void* context;
  const OpenMP* omp;
};

void enter(void* data) {
  auto* call = static_cast<Call*>(data);
  call->body(call->context, call->omp->thread(), call->omp->threads());
}

void on_own_threads(int n, Body body, void* context) {
  std::vector<std::thread> others;
  for (int i = 1; i < n; ++i) others.emplace_back(body, context, i, n);
  body(context, 0, n);
  for (auto& t : others) t.join();
}

}  // namespace

void parallel(int wanted, Body body, void* context) {
  static const OpenMP omp;
  if (wanted <= 1) return body(context, 0, 1);
  if (!omp.parallel) return on_own_threads(wanted, body, context);
  Call call{body, context, &omp};
  omp.parallel(enter, &call, unsigned(wanted), 0);
}

}  // namespace quantkv
