// One attention call over packed and exact tokens: what Python fills in, and what every build computes.
#pragma once

#include <cstdint>
#include <vector>

#include "format.h"

namespace quantkv {

// Keys or values of all rows. Positions of a row: `pads` of nothing, sinks, packed tokens, exact tokens to the end.
struct Side {
  const Method* method = nullptr;
  const Known* known = nullptr;
  const std::vector<std::vector<const uint8_t*>>* pages = nullptr;  // per row; null where a page is gone
  std::vector<int64_t> visible;                                     // packed tokens to read, per row
  Float exact = Float::f32;                                         // dtype of sinks, ring and extra
  const uint8_t* sinks = nullptr;                                   // [rows, heads, num_sinks, head_dim]
  int64_t num_sinks = 0;
  const uint8_t* ring = nullptr;  // [rows, heads, ring_size, head_dim]: position j at slot j % ring_size
  int64_t ring_size = 1;
  const uint8_t* extra = nullptr;  // the running call's own tensor, from position `extra_from` on
  int64_t extra_from = 0;
  int64_t extra_strides[3] = {0, 0, 0};  // elements from row to row, head to head, token to token
};

struct Request {
  Side key, value;
  int rows = 0, kv_heads = 0, ratio = 1, queries = 1;
  std::vector<int64_t> pads;
  int64_t start = 0, stop = 0;  // positions to attend to
  const uint8_t* query = nullptr;  // [rows, Hq, queries, head_dim]
  Float query_type = Float::f32;
  int64_t query_strides[3] = {0, 0, 0};
  float scaling = 1.0f, softcap = 0.0f;
  bool causal = false;
  const uint8_t* mask = nullptr;  // [rows, Hq, queries, stop - start] by strides; bool, or additive float32
  bool mask_is_bool = true;
  int64_t mask_strides[4] = {0, 0, 0, 0};
  const float* sink_logits = nullptr;  // [Hq]
  uint8_t* out = nullptr;              // [rows, queries, Hq, value dim]
  int threads = 1;
};

using AttendFn = void (*)(const Request&);
AttendFn attend_for(const char* isa);  // null for an instruction set that is not built or not there
const char* best_isa();
std::vector<const char*> usable_isas();
// Multiply-adds per second of one thread, and bytes per second read by `threads`: the limits of this machine.
double peak_multiply_adds(const char* isa);
double read_bandwidth(const uint8_t* p, int64_t bytes, int threads, const char* isa);

}  // namespace quantkv
