// The parts of the Python module.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "format.h"

namespace quantkv {

Float float_named(const std::string& name);
void bind_format(nanobind::module_& m);
void bind_attend(nanobind::module_& m);
void bind_encode(nanobind::module_& m);

}  // namespace quantkv
