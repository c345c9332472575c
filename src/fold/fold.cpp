#include "kaitian/fold/fold.h"

#include <cassert>
#include <cstring>

#include "fold/dispatch.h"

namespace kaitian::fold {
namespace {

/// Complex elements are folded as pairs of real ones.
FoldSpec realSpec(FoldSpec spec, DType component) {
  spec.dtype = component;
  return spec;
}

}  // namespace

void fold(const FoldSpec& spec, std::span<const Input> inputs, std::byte* out, std::int64_t count) {
  assert(!inputs.empty() && isDefined(spec.op, spec.dtype));
  if (count <= 0) return;
  if (spec.op == ReduceOp::none) {
    assert(inputs.size() == 1 && "movement has one source");
    std::memmove(out, inputs.front().data, static_cast<std::size_t>(count) * sizeOf(spec.dtype));
    return;
  }
  switch (spec.dtype) {
    case DType::f16:
    case DType::bf16:
    case DType::f32:
    case DType::f64:
      return foldFloats(spec, inputs, out, count);
    case DType::c32:
      return foldFloats(realSpec(spec, DType::f16), inputs, out, 2 * count);
    case DType::c64:
      return foldFloats(realSpec(spec, DType::f32), inputs, out, 2 * count);
    case DType::c128:
      return foldFloats(realSpec(spec, DType::f64), inputs, out, 2 * count);
    default:
      return foldIntegers(spec, inputs, out, count);
  }
}

}  // namespace kaitian::fold
