// The operations of a fold on one accumulator and the next value, in this operand order.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "fold/element.h"

namespace kaitian::fold {

template <typename T>
struct ModularOf {
  using type = std::make_unsigned_t<T>;
};
template <>
struct ModularOf<Int128> {
  using type = Uint128;
};
template <>
struct ModularOf<Uint128> {
  using type = Uint128;
};
/// Type in which integer arithmetic wraps around. At least 32 bits, as narrower operands are promoted to int,
/// whose overflow is undefined (65535 * 65535).
template <typename T>
using Modular = std::conditional_t<(sizeof(T) < 4), std::uint32_t, typename ModularOf<T>::type>;

/// The operand to combine with `accumulator`: a NaN stays the first one. The hardware would keep the first
/// operand's payload too, but compilers may swap the operands of a sum or product.
template <std::floating_point T>
T unlessNan(T accumulator, T next) noexcept {
  return accumulator != accumulator ? accumulator : next;  // NOLINT(misc-redundant-expression)
}

struct Sum {
  template <typename T>
  static T apply(T accumulator, T next) noexcept {
    if constexpr (std::floating_point<T>) {
      return accumulator + unlessNan(accumulator, next);
    } else {
      return static_cast<T>(static_cast<Modular<T>>(accumulator) + static_cast<Modular<T>>(next));
    }
  }
};

struct Product {
  template <typename T>
  static T apply(T accumulator, T next) noexcept {
    if constexpr (std::floating_point<T>) {
      return accumulator * unlessNan(accumulator, next);
    } else {
      return static_cast<T>(static_cast<Modular<T>>(accumulator) * static_cast<Modular<T>>(next));
    }
  }
};

/// MIN and MAX keep the accumulator among equals (so -0 and +0 keep their order) and the first NaN.
struct Min {
  template <typename T>
  static T apply(T accumulator, T next) noexcept {
    if constexpr (std::floating_point<T>) {
      const T smaller = next >= accumulator ? accumulator : next;  // next as well if it is NaN
      return unlessNan(accumulator, smaller);
    } else {
      return next < accumulator ? next : accumulator;
    }
  }
};

struct Max {
  template <typename T>
  static T apply(T accumulator, T next) noexcept {
    if constexpr (std::floating_point<T>) {
      const T larger = next <= accumulator ? accumulator : next;  // next as well if it is NaN
      return unlessNan(accumulator, larger);
    } else {
      return next > accumulator ? next : accumulator;
    }
  }
};

struct And {
  template <typename T>
  static T apply(T accumulator, T next) noexcept {
    return static_cast<T>(accumulator & next);
  }
};

struct Or {
  template <typename T>
  static T apply(T accumulator, T next) noexcept {
    return static_cast<T>(accumulator | next);
  }
};

struct Xor {
  template <typename T>
  static T apply(T accumulator, T next) noexcept {
    return static_cast<T>(accumulator ^ next);
  }
};

}  // namespace kaitian::fold
