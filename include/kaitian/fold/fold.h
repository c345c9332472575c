// The arithmetic of reductions on host memory. Pure: no threads, no allocation beyond the stack.
//
// Bits: one accumulator per element and host, in the order of the inputs; the hosts' partials are combined in
// the order of the hosts; AVG divides once by true division; then one rounding to the element type. No FMA
// contraction; vector body and tail give the same bits. The fold starts from the first input, never from zero
// (so -0 + -0 stays -0), and the operand order is (accumulator, next) (so the payload of the first NaN
// survives).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kaitian/core/dtype.h"

namespace kaitian::fold {

struct Input {
  const std::byte* data = nullptr;  // elements of FoldSpec::dtype, any alignment
  int host = 0;                     // inputs of one host stand next to each other
  Scale scale;                      // PREMUL_SUM only
  bool scaled = false;              // the factor is already applied
};

struct FoldSpec {
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int worldSize = 1;  // divisor of AVG: the size of the group, whatever the number of inputs
};

/// out[i] = finish(fold over inputs). `out` may be the data of one of the inputs, and otherwise overlaps
/// none. Integers: SUM, PRODUCT and PREMUL_SUM wrap around; AVG accumulates in 64 bits (u64/i64: 128) and
/// truncates towards zero. bool: SUM and MAX are OR, PRODUCT and MIN are AND; non-zero is true, results are 0
/// or 1. fp16 and bf16 accumulate in fp32. MIN and MAX propagate NaN. Complex SUM and AVG work on the pairs.
/// REQUIRES: at least one input; isDefined(spec.op, spec.dtype).
void fold(const FoldSpec& spec, std::span<const Input> inputs, std::byte* out, std::int64_t count);

}  // namespace kaitian::fold
