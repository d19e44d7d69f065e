// Work on several threads, through the OpenMP runtime that the process has already loaded.
#pragma once

namespace quantkv {

using Body = void (*)(void* context, int thread, int threads);

// Calls body(context, i, n) for i in [0, n), at once where the process has an OpenMP runtime or can start threads.
// n is at most `wanted`. A second runtime or a pool of our own would fight with torch's threads for the cores.
void parallel(int wanted, Body body, void* context);

template <class F>
void parallel(int wanted, F&& f) {
  parallel(wanted, [](void* c, int i, int n) { (*static_cast<F*>(c))(i, n); }, &f);
}

}  // namespace quantkv
