#include "relay/encode.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace kaitian::relay::test {
namespace {

std::uint16_t halfOf(double value) {
  if (value == 0) return 0;
  int exponent = 0;
  const double mantissa = std::frexp(std::abs(value), &exponent);  // [0.5, 1)
  const auto bits = static_cast<std::uint16_t>(((exponent + 14) << 10) +
                                               static_cast<int>(std::lround((mantissa * 2 - 1) * 1024)));
  return static_cast<std::uint16_t>(bits | (value < 0 ? 0x8000 : 0));
}

template <typename T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

}  // namespace

void encode(DType dtype, double value, std::byte* to) {
  const auto whole = static_cast<std::int64_t>(value);
  switch (dtype) {
    case DType::boolean:
      return put<std::uint8_t>(to, value != 0 ? 1 : 0);
    case DType::u8:
    case DType::i8:
    case DType::bytes:
      return put(to, static_cast<std::uint8_t>(whole));
    case DType::u16:
    case DType::i16:
      return put(to, static_cast<std::uint16_t>(whole));
    case DType::u32:
    case DType::i32:
      return put(to, static_cast<std::uint32_t>(whole));
    case DType::u64:
    case DType::i64:
      return put(to, whole);
    case DType::f16:
      return put(to, halfOf(value));
    case DType::bf16:
      return put(to,
                 static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16));
    case DType::f32:
      return put(to, static_cast<float>(value));
    case DType::f64:
      return put(to, value);
    case DType::c32:
      put(to, halfOf(value));
      return put(to + 2, halfOf(value));
    case DType::c64:
      put(to, static_cast<float>(value));
      return put(to + 4, static_cast<float>(value));
    case DType::c128:
      put(to, value);
      return put(to + 8, value);
  }
}

}  // namespace kaitian::relay::test
