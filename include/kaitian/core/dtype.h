// Element types and reduce operations, as the exchange sees them. Values, no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace kaitian {

/// Type of an element. The numbers travel between ranks (signatures), so they never change.
/// `bytes` is an opaque element of one byte: movement of types that are never folded (float8 kinds, …).
enum class DType : std::uint8_t {
  boolean = 0,
  u8 = 1,
  i8 = 2,
  u16 = 3,
  i16 = 4,
  u32 = 5,
  i32 = 6,
  u64 = 7,
  i64 = 8,
  f16 = 9,
  bf16 = 10,
  f32 = 11,
  f64 = 12,
  c32 = 13,   // complex of two f16
  c64 = 14,   // complex of two f32
  c128 = 15,  // complex of two f64
  bytes = 16,
};
inline constexpr int kDTypeCount = 17;

/// Numbers travel between ranks, so they never change.
enum class ReduceOp : std::uint8_t {
  none = 0,  // movement
  sum = 1,
  avg = 2,
  product = 3,
  min = 4,
  max = 5,
  band = 6,
  bor = 7,
  bxor = 8,
  premulSum = 9,
};
inline constexpr int kReduceOpCount = 10;

/// Bytes of one element.
std::size_t sizeOf(DType dtype) noexcept;
/// "float32", "bfloat16", … as PyTorch names them; "bytes" for opaque elements.
const char* toString(DType dtype) noexcept;
/// "SUM", "AVG", … as PyTorch names them; "-" for none.
const char* toString(ReduceOp op) noexcept;

/// Whether `op` is defined for `dtype` (design: docs/collectives.md, Types). none is defined for all.
bool isDefined(ReduceOp op, DType dtype) noexcept;

/// The factor of a PREMUL_SUM, already converted to the tensor's dtype. May differ by rank.
/// Real types use `real`, complex ones `real` and `imag`, integers `integer`.
struct Scale {
  double real = 1;
  double imag = 0;
  std::int64_t integer = 1;

  friend bool operator==(const Scale&, const Scale&) = default;
};

}  // namespace kaitian
