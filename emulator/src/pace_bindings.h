#pragma once

#include <torch/csrc/utils/pybind.h>

namespace kaitian::emulator {

/// Adds what sets and tells the pace to the module.
void bindPace(pybind11::module& m);

}  // namespace kaitian::emulator
