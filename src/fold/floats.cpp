#include <cassert>

#include "fold/dispatch.h"
#include "fold/kernel.h"

namespace kaitian::fold {
namespace {

template <typename Element>
void foldFloat(const FoldSpec& spec, std::span<const Input> inputs, std::byte* out, std::int64_t count) {
  switch (spec.op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
    case ReduceOp::premulSum:
      return foldTiles<Element, Sum>(spec, inputs, out, count);
    case ReduceOp::product:
      return foldTiles<Element, Product>(spec, inputs, out, count);
    case ReduceOp::min:
      return foldTiles<Element, Min>(spec, inputs, out, count);
    case ReduceOp::max:
      return foldTiles<Element, Max>(spec, inputs, out, count);
    default:
      assert(false && "no bitwise operation on floating-point types");
  }
}

}  // namespace

void foldFloats(const FoldSpec& spec, std::span<const Input> inputs, std::byte* out, std::int64_t count) {
  switch (spec.dtype) {
    case DType::f16:
      return foldFloat<F16>(spec, inputs, out, count);
    case DType::bf16:
      return foldFloat<Bf16>(spec, inputs, out, count);
    case DType::f32:
      return foldFloat<Plain<float>>(spec, inputs, out, count);
    case DType::f64:
      return foldFloat<Plain<double>>(spec, inputs, out, count);
    default:
      assert(false && "not a floating-point type");
  }
}

}  // namespace kaitian::fold
