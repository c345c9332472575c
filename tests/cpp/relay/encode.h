// Small whole numbers as elements of any type: they are exact in all of them.
#pragma once

#include <cstddef>

#include "kaitian/core/dtype.h"

namespace kaitian::relay::test {

/// REQUIRES: sizeOf(dtype) bytes at `to`. Complex elements get `value` in both parts.
void encode(DType dtype, double value, std::byte* to);

}  // namespace kaitian::relay::test
