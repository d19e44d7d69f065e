// Tensors to pages and back: what a call is given, and the builds for each instruction set.
#pragma once

#include <cstdint>

#include "format.h"

namespace quantkv {

// Adds `tokens` tokens to every row, from token `start` of the row's packed tokens on. Both are whole groups.
struct EncodeRequest {
  const Format* format = nullptr;
  uint8_t* const* const* pages = nullptr;  // pages[row][index]: the records that the tokens fall into are there
  int rows = 0;
  int64_t start = 0, tokens = 0;
  const uint8_t* x = nullptr;  // [rows, heads, tokens, head_dim], channels next to each other
  Float type = Float::f32;
  int64_t strides[3] = {0, 0, 0};  // elements from row to row, head to head, token to token
  int threads = 1;
};

// Tokens [start, stop) of every row to float32 [rows, heads, stop - start, head_dim].
struct DecodeRequest {
  const Method* method = nullptr;
  const Known* known = nullptr;
  const uint8_t* const* const* pages = nullptr;
  int rows = 0;
  int64_t start = 0, stop = 0;
  float* out = nullptr;
  int64_t strides[3] = {0, 0, 0};
  int threads = 1;
};

using EncodeFn = void (*)(const EncodeRequest&);
using DecodeFn = void (*)(const DecodeRequest&);
// The best build where `isa` is null; null for an instruction set that is not built or not there.
EncodeFn encode_for(const char* isa);
DecodeFn decode_for(const char* isa);

}  // namespace quantkv
