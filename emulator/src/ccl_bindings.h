// Python names of the vendor libraries.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace kaitian::emulator {

void bindCcl(pybind11::module_& module);

}  // namespace kaitian::emulator
