// Conversions between fp32 and the 16-bit floating-point types. Branch-free, so that loops over them
// vectorise.
//
// Narrowing rounds to nearest, ties to even. NaNs stay NaNs, become quiet and keep the upper bits of their
// payload; widening fp16 makes NaNs quiet as well, as the F16C instructions do, widening bf16 keeps all bits.
#pragma once

#include <bit>
#include <cstdint>

namespace kaitian::fold {

inline constexpr std::uint32_t kF32Infinity = 0x7f800000U;
inline constexpr std::uint32_t kF32QuietBit = 0x00400000U;
/// Difference of the exponent biases of fp32 (127) and fp16 (15), in place in an fp32.
inline constexpr std::uint32_t kF16Rebias = 112U << 23;

inline float widenF16(std::uint16_t half) noexcept {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7fffU;
  const std::uint32_t normal = (magnitude << 13) + kF16Rebias;
  // The largest fp16 exponent means infinity or NaN and becomes the largest fp32 exponent.
  const std::uint32_t special = normal + kF16Rebias;
  const std::uint32_t quiet = magnitude > 0x7c00U ? kF32QuietBit : 0U;
  // Subnormal: a multiple of 2^-24, exact in fp32.
  const float tiny = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F;
  const std::uint32_t finite = magnitude < 0x0400U ? std::bit_cast<std::uint32_t>(tiny) : normal;
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00U ? (special | quiet) : finite));
}

inline std::uint16_t narrowF16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const std::uint32_t rebased = magnitude - kF16Rebias;
  const std::uint32_t normal = (rebased + 0xfffU + ((rebased >> 13) & 1U)) >> 13;
  // In [0.5, 1) the fp32 spacing is 2^-24, the quantum of fp16 subnormals: the addition rounds.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
  const std::uint32_t tiny = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5F);
  const std::uint32_t nan = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
  std::uint32_t result = magnitude < 0x38800000U ? tiny : normal;  // below 2^-14: subnormal or zero
  result = magnitude >= 0x477ff000U ? 0x7c00U : result;            // from 65520 on: infinity
  result = magnitude > kF32Infinity ? nan : result;
  return static_cast<std::uint16_t>(sign | result);
}

inline float widenBf16(std::uint16_t value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

inline std::uint16_t narrowBf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40U;
  return static_cast<std::uint16_t>((bits & 0x7fffffffU) > kF32Infinity ? nan : rounded);
}

}  // namespace kaitian::fold
