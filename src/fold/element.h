// How an element type is stored and accumulated: Stored is what lies in memory, Accumulator what is folded.
#pragma once

#include <cstdint>

#include "fold/float16.h"

namespace kaitian::fold {

__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;

/// Accumulated as it is stored: fp32, fp64, and integers for everything but AVG.
template <typename T>
struct Plain {
  using Stored = T;
  using Accumulator = T;
  static T widen(T value) noexcept { return value; }
  static T narrow(T value) noexcept { return value; }
};

/// Integers accumulated wider than they are stored, for AVG.
template <typename T, typename Wide>
struct Widened {
  using Stored = T;
  using Accumulator = Wide;
  static Wide widen(T value) noexcept { return value; }
  static T narrow(Wide value) noexcept { return static_cast<T>(value); }
};

struct F16 {
  using Stored = std::uint16_t;
  using Accumulator = float;
  static float widen(std::uint16_t value) noexcept { return widenF16(value); }
  static std::uint16_t narrow(float value) noexcept { return narrowF16(value); }
};

struct Bf16 {
  using Stored = std::uint16_t;
  using Accumulator = float;
  static float widen(std::uint16_t value) noexcept { return widenBf16(value); }
  static std::uint16_t narrow(float value) noexcept { return narrowBf16(value); }
};

/// Any byte but 0 is true; results are 0 or 1.
struct Boolean {
  using Stored = std::uint8_t;
  using Accumulator = std::uint8_t;
  static std::uint8_t widen(std::uint8_t value) noexcept { return value != 0 ? 1 : 0; }
  static std::uint8_t narrow(std::uint8_t value) noexcept { return value; }
};

}  // namespace kaitian::fold
