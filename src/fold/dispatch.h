// One function per family of element types, each compiled on its own: the templates make many loops.
#pragma once

#include "kaitian/fold/fold.h"

namespace kaitian::fold {

/// REQUIRES: f16, bf16, f32 or f64; complex types come as pairs of them.
void foldFloats(const FoldSpec& spec, std::span<const Input> inputs, std::byte* out, std::int64_t count);
/// REQUIRES: an integer type or boolean.
void foldIntegers(const FoldSpec& spec, std::span<const Input> inputs, std::byte* out, std::int64_t count);

}  // namespace kaitian::fold
