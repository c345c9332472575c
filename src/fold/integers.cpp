#include <cassert>

#include "fold/dispatch.h"
#include "fold/kernel.h"

namespace kaitian::fold {
namespace {

template <typename T, typename Wide>
void foldInteger(const FoldSpec& spec, std::span<const Input> inputs, std::byte* out, std::int64_t count) {
  using Element = Plain<T>;
  switch (spec.op) {
    case ReduceOp::sum:
    case ReduceOp::premulSum:
      return foldTiles<Element, Sum>(spec, inputs, out, count);
    case ReduceOp::avg:
      return foldTiles<Widened<T, Wide>, Sum>(spec, inputs, out, count);
    case ReduceOp::product:
      return foldTiles<Element, Product>(spec, inputs, out, count);
    case ReduceOp::min:
      return foldTiles<Element, Min>(spec, inputs, out, count);
    case ReduceOp::max:
      return foldTiles<Element, Max>(spec, inputs, out, count);
    case ReduceOp::band:
      return foldTiles<Element, And>(spec, inputs, out, count);
    case ReduceOp::bor:
      return foldTiles<Element, Or>(spec, inputs, out, count);
    case ReduceOp::bxor:
      return foldTiles<Element, Xor>(spec, inputs, out, count);
    case ReduceOp::none:
      assert(false && "movement is no reduction");
  }
}

void foldBoolean(const FoldSpec& spec, std::span<const Input> inputs, std::byte* out, std::int64_t count) {
  switch (spec.op) {
    case ReduceOp::sum:
    case ReduceOp::max:
    case ReduceOp::bor:
      return foldTiles<Boolean, Or>(spec, inputs, out, count);
    case ReduceOp::product:
    case ReduceOp::min:
    case ReduceOp::band:
      return foldTiles<Boolean, And>(spec, inputs, out, count);
    case ReduceOp::bxor:
      return foldTiles<Boolean, Xor>(spec, inputs, out, count);
    default:
      assert(false && "operation is not defined for bool");
  }
}

}  // namespace

void foldIntegers(const FoldSpec& spec, std::span<const Input> inputs, std::byte* out, std::int64_t count) {
  switch (spec.dtype) {
    case DType::boolean:
      return foldBoolean(spec, inputs, out, count);
    case DType::u8:
      return foldInteger<std::uint8_t, std::uint64_t>(spec, inputs, out, count);
    case DType::i8:
      return foldInteger<std::int8_t, std::int64_t>(spec, inputs, out, count);
    case DType::u16:
      return foldInteger<std::uint16_t, std::uint64_t>(spec, inputs, out, count);
    case DType::i16:
      return foldInteger<std::int16_t, std::int64_t>(spec, inputs, out, count);
    case DType::u32:
      return foldInteger<std::uint32_t, std::uint64_t>(spec, inputs, out, count);
    case DType::i32:
      return foldInteger<std::int32_t, std::int64_t>(spec, inputs, out, count);
    case DType::u64:
      return foldInteger<std::uint64_t, Uint128>(spec, inputs, out, count);
    case DType::i64:
      return foldInteger<std::int64_t, Int128>(spec, inputs, out, count);
    default:
      assert(false && "not an integer type");
  }
}

}  // namespace kaitian::fold
