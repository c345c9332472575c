#include "fold/float16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

namespace kaitian::fold {
namespace {

/// A 16-bit format by its field widths, decoded in long double from the definition of the format.
struct Format {
  int exponentBits, mantissaBits;

  int bias() const { return (1 << (exponentBits - 1)) - 1; }
  std::uint32_t infinity() const { return ((1U << exponentBits) - 1U) << mantissaBits; }
  long double decode(std::uint32_t magnitude) const {
    const auto exponent = static_cast<int>(magnitude >> mantissaBits);
    const std::uint32_t mantissa = magnitude & ((1U << mantissaBits) - 1U);
    if (exponent == 0) return std::ldexp(static_cast<long double>(mantissa), 1 - bias() - mantissaBits);
    return std::ldexp(static_cast<long double>(mantissa + (1U << mantissaBits)),
                      exponent - bias() - mantissaBits);
  }
  /// The nearest value, ties to the even pattern, by binary search in the (ascending) patterns. Infinity
  /// counts as the next value after the largest, which is what rounding to nearest does.
  std::uint32_t nearest(long double value) const {
    std::uint32_t lo = 0, hi = infinity();
    while (hi - lo > 1) {
      const std::uint32_t middle = (lo + hi) / 2;
      (decode(middle) <= value ? lo : hi) = middle;
    }
    const long double below = value - decode(lo), above = decode(hi) - value;
    if (below == above) return lo % 2 == 0 ? lo : hi;
    return below < above ? lo : hi;
  }
};

constexpr Format kF16{5, 10};
constexpr Format kBf16{8, 7};

std::uint32_t bitsOf(float value) { return std::bit_cast<std::uint32_t>(value); }

template <typename Widen>
void expectExactWidening(const Format& format, Widen widen) {
  for (std::uint32_t pattern = 0; pattern < 0x10000U; ++pattern) {
    const float value = widen(static_cast<std::uint16_t>(pattern));
    const std::uint32_t magnitude = pattern & 0x7fffU;
    ASSERT_EQ(std::signbit(value), pattern >= 0x8000U) << std::hex << pattern;
    if (magnitude > format.infinity()) {
      ASSERT_TRUE(std::isnan(value)) << std::hex << pattern;
    } else if (magnitude == format.infinity()) {
      ASSERT_TRUE(std::isinf(value)) << std::hex << pattern;
    } else {
      ASSERT_EQ(static_cast<long double>(std::fabs(value)), format.decode(magnitude)) << std::hex << pattern;
    }
  }
}

/// Every value of the format, every midpoint between neighbours, and the fp32 values next to both, both
/// signs.
std::vector<float> borders(const Format& format) {
  std::vector<float> values;
  for (std::uint32_t pattern = 0; pattern < format.infinity(); ++pattern) {
    const auto low = static_cast<float>(format.decode(pattern));
    const auto middle = static_cast<float>((format.decode(pattern) + format.decode(pattern + 1)) / 2);
    for (const float value : {low, middle}) {
      for (const float neighbour : {std::nextafter(value, 0.0F), value, std::nextafter(value, INFINITY)}) {
        if (std::isinf(neighbour)) continue;
        values.push_back(neighbour);
        values.push_back(-neighbour);
      }
    }
  }
  return values;
}

template <typename Narrow>
void expectNearestEven(const Format& format, Narrow narrow) {
  for (const float value : borders(format)) {
    const std::uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
    ASSERT_EQ(narrow(value), sign | format.nearest(std::fabs(static_cast<long double>(value))))
        << std::hexfloat << value;
  }
}

template <typename Narrow>
void expectNearestEvenAtRandom(const Format& format, Narrow narrow) {
  const std::uint32_t seed = 20'260'101;
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 200'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isfinite(value)) continue;
    const std::uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
    ASSERT_EQ(narrow(value), sign | format.nearest(std::fabs(static_cast<long double>(value))))
        << std::hexfloat << value << " seed " << seed;
  }
}

TEST(F16, WhenWidened_HasExactlyItsValueForEveryPattern) { expectExactWidening(kF16, widenF16); }
TEST(Bf16, WhenWidened_HasExactlyItsValueForEveryPattern) { expectExactWidening(kBf16, widenBf16); }

TEST(F16, WhenNarrowedAtAnyBorder_RoundsToNearestEven) { expectNearestEven(kF16, narrowF16); }
TEST(Bf16, WhenNarrowedAtAnyBorder_RoundsToNearestEven) { expectNearestEven(kBf16, narrowBf16); }

TEST(F16, WhenNarrowedFromRandomBits_RoundsToNearestEven) { expectNearestEvenAtRandom(kF16, narrowF16); }
TEST(Bf16, WhenNarrowedFromRandomBits_RoundsToNearestEven) { expectNearestEvenAtRandom(kBf16, narrowBf16); }

TEST(F16, WhenWidenedAndNarrowed_IsTheSamePatternUpToQuietness) {
  for (std::uint32_t pattern = 0; pattern < 0x10000U; ++pattern) {
    const std::uint32_t quiet = (pattern & 0x7fffU) > 0x7c00U ? 0x200U : 0U;
    ASSERT_EQ(narrowF16(widenF16(static_cast<std::uint16_t>(pattern))), pattern | quiet);
  }
}

TEST(Bf16, WhenWidenedAndNarrowed_IsTheSamePatternUpToQuietness) {
  for (std::uint32_t pattern = 0; pattern < 0x10000U; ++pattern) {
    const std::uint32_t quiet = (pattern & 0x7fffU) > 0x7f80U ? 0x40U : 0U;
    ASSERT_EQ(narrowBf16(widenBf16(static_cast<std::uint16_t>(pattern))), pattern | quiet);
  }
}

TEST(F16, WhenTooLargeForTheFormat_BecomesInfinityFrom65520On) {
  EXPECT_EQ(narrowF16(65519.996F), 0x7bff);
  EXPECT_EQ(narrowF16(65520.0F), 0x7c00);
  EXPECT_EQ(narrowF16(-std::numeric_limits<float>::max()), 0xfc00);
  EXPECT_EQ(narrowF16(INFINITY), 0x7c00);
  EXPECT_EQ(narrowBf16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(F16, WhenNan_KeepsSignAndUpperPayloadAndBecomesQuiet) {
  EXPECT_EQ(narrowF16(std::bit_cast<float>(0xff802000U)),
            0xfe01);  // signalling, payload in the last kept bit
  EXPECT_EQ(narrowF16(std::bit_cast<float>(0x7f800001U)), 0x7e00);  // payload only in bits that are cut
  EXPECT_EQ(bitsOf(widenF16(0xfc01)), 0xffc02000U);
  EXPECT_EQ(narrowBf16(std::bit_cast<float>(0xff810001U)), 0xffc1);
  EXPECT_EQ(narrowBf16(std::bit_cast<float>(0x7fffffffU)), 0x7fff);
}

}  // namespace
}  // namespace kaitian::fold
