// The parts of the Python module.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "format.h"

namespace quantkv {

Float float_named(const std::string& name);
// What is known of rows: positions (none where no step needs them) and addresses of states, by state and row. Angles
// are there for `tokens` tokens from each position on.
Known known_of(const Method& m, size_t rows, const std::vector<int64_t>& positions,
               const std::vector<std::vector<int64_t>>& states, const std::vector<int64_t>& tokens);
void bind_format(nanobind::module_& m);
void bind_attend(nanobind::module_& m);
void bind_encode(nanobind::module_& m);

}  // namespace quantkv
