#include "kaitian/fold/fold.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdio>
#include <limits>
#include <random>
#include <string>

#include "fold/reference.h"

namespace kaitian::fold {
namespace {

constexpr std::uint64_t kSeed = 20'261'130;

/// Hosts of the inputs, in order.
const std::vector<std::vector<int>> kLayouts = {
    {0}, {0, 0, 0}, {0, 1}, {0, 0, 0, 1, 1}, {2, 2, 0, 5, 5, 5, 5}};

/// Ordinary values whose sums depend on the order, raw bits, and the special values, as 16, 32 or 64-bit
/// patterns.
template <typename T>
T randomReal(std::mt19937_64& random) {
  constexpr std::array<double, 8> kSpecial = {0.0, -0.0, 1.0, INFINITY, -INFINITY, 5e-324, 65504, 3e38};
  const std::uint64_t kind = random() % 32;
  if (kind == 0) return static_cast<T>(kSpecial[random() % kSpecial.size()]);
  if (kind == 1) return std::bit_cast<T>(static_cast<BitsOf<T>>(random()));
  const double sign = random() % 2 == 0 ? 1 : -1;
  // These cancel each other and leave what was rounded in between: 16-bit types show the order only by that.
  if (kind < 12) return static_cast<T>(sign * 0x1.d4cp14);
  return static_cast<T>(sign * std::ldexp(1 + static_cast<double>(random() >> 12) * 0x1p-52,
                                          static_cast<int>(random() % 12) - 8));
}

std::vector<std::byte> randomData(DType dtype, std::size_t count, std::mt19937_64& random) {
  std::vector<std::byte> data(count * sizeOf(dtype));
  const auto fill = [&](auto value, std::size_t at) { std::memcpy(data.data() + at, &value, sizeof(value)); };
  const DType component = dtype == DType::c32    ? DType::f16
                          : dtype == DType::c64  ? DType::f32
                          : dtype == DType::c128 ? DType::f64
                                                 : dtype;
  for (std::size_t at = 0; at < data.size(); at += sizeOf(component)) {
    switch (component) {
      case DType::f16: {
        const auto raw = static_cast<std::uint16_t>(random());
        fill(random() % 16 == 0 ? raw : narrowF16(randomReal<float>(random)), at);
        break;
      }
      case DType::bf16: {
        const auto raw = static_cast<std::uint16_t>(random());
        fill(random() % 16 == 0 ? raw : narrowBf16(randomReal<float>(random)), at);
        break;
      }
      case DType::f32:
        fill(randomReal<float>(random), at);
        break;
      case DType::f64:
        fill(randomReal<double>(random), at);
        break;
      default:
        for (std::size_t i = 0; i < sizeOf(component); ++i) data[at + i] = static_cast<std::byte>(random());
    }
  }
  // A third of the bools are false; random bytes hardly ever are.
  if (dtype == DType::boolean) {
    for (std::byte& byte : data) byte = random() % 3 == 0 ? std::byte{0} : byte;
  }
  return data;
}

/// Inputs and output in memory of their own, at the given distance from alignment.
class Case {
 public:
  Case(FoldSpec spec, const std::vector<int>& hosts, std::size_t count, std::size_t misalignment,
       std::mt19937_64& random)
      : spec_(spec), count_(count), misalignment_(misalignment) {
    spec_.worldSize = static_cast<int>(hosts.size()) + 2;  // the divisor is not the number of inputs
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      const std::vector<std::byte> data = randomData(spec.dtype, count, random);
      memory_.emplace_back(misalignment, std::byte{0});
      memory_.back().insert(memory_.back().end(), data.begin(), data.end());
      Scale scale;
      if (spec.op == ReduceOp::premulSum) {
        scale.real = static_cast<double>(static_cast<float>(1.0 / static_cast<double>(i + 3)));
        scale.integer = static_cast<std::int64_t>(random());
      }
      const bool scaled = spec.op == ReduceOp::premulSum && i % 3 == 1;
      inputs_.push_back({memory_.back().data() + misalignment, hosts[i], scale, scaled});
    }
  }

  std::span<const Input> inputs() const { return inputs_; }
  std::vector<Input>& inputs() { return inputs_; }
  std::byte* inputData(std::size_t i) { return memory_[i].data() + misalignment_; }
  std::vector<std::byte> bytesOfInput(std::size_t i) const {
    return {memory_[i].begin() + static_cast<std::ptrdiff_t>(misalignment_), memory_[i].end()};
  }

  std::vector<std::byte> run() const {
    constexpr std::size_t kGuard = 64;
    const std::size_t size = count_ * sizeOf(spec_.dtype);
    std::vector<std::byte> out(misalignment_ + size + kGuard, std::byte{0x5a});
    fold(spec_, inputs_, out.data() + misalignment_, static_cast<std::int64_t>(count_));
    for (std::size_t i = 0; i < kGuard; ++i) EXPECT_EQ(out[misalignment_ + size + i], std::byte{0x5a});
    for (std::size_t i = 0; i < misalignment_; ++i) EXPECT_EQ(out[i], std::byte{0x5a});
    const auto begin = out.begin() + static_cast<std::ptrdiff_t>(misalignment_);
    return {begin, begin + static_cast<std::ptrdiff_t>(size)};
  }
  /// In one of the inputs.
  std::vector<std::byte> runInto(std::size_t input) {
    fold(spec_, inputs_, inputData(input), static_cast<std::int64_t>(count_));
    return bytesOfInput(input);
  }
  Reference reference() const { return referenceOf(spec_, inputs_, count_); }
  const FoldSpec& spec() const { return spec_; }
  std::string name() const {
    return std::string(toString(spec_.dtype)) + " " + toString(spec_.op) + ", " +
           std::to_string(inputs_.size()) + " inputs, count " + std::to_string(count_) + ", misaligned by " +
           std::to_string(misalignment_);
  }

 private:
  FoldSpec spec_;
  std::size_t count_, misalignment_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<Input> inputs_;
};

bool isNanPattern(DType dtype, const std::byte* data) {
  switch (dtype) {
    case DType::f16:
    case DType::c32:
      return std::isnan(widenF16(readElement<std::uint16_t>(data, 0)));
    case DType::bf16:
      return std::isnan(widenBf16(readElement<std::uint16_t>(data, 0)));
    case DType::f32:
    case DType::c64:
      return std::isnan(readElement<float>(data, 0));
    default:
      return std::isnan(readElement<double>(data, 0));
  }
}

/// Equal bytes, except that a NaN born in the fold may have any bits of a NaN.
void expectBytes(const FoldSpec& spec, const std::vector<std::byte>& found, const Reference& reference) {
  ASSERT_EQ(found.size(), reference.bytes.size());
  if (found.empty()) return;
  const std::size_t size = found.size() / reference.anyNan.size();
  for (std::size_t e = 0; e < reference.anyNan.size(); ++e) {
    if (reference.anyNan[e]) {
      ASSERT_TRUE(isNanPattern(spec.dtype, found.data() + e * size)) << "component " << e;
    } else {
      ASSERT_EQ(std::memcmp(found.data() + e * size, reference.bytes.data() + e * size, size), 0)
          << "component " << e;
    }
  }
}

struct TypeAndOp {
  DType dtype;
  ReduceOp op;
};

std::vector<TypeAndOp> definedPairs() {
  std::vector<TypeAndOp> pairs;
  for (int d = 0; d < kDTypeCount; ++d) {
    for (int o = 1; o < kReduceOpCount; ++o) {
      const TypeAndOp pair{static_cast<DType>(d), static_cast<ReduceOp>(o)};
      if (isDefined(pair.op, pair.dtype)) pairs.push_back(pair);
    }
  }
  return pairs;
}

class FoldOf : public testing::TestWithParam<TypeAndOp> {
 protected:
  template <typename Check>
  void forEachCase(const std::vector<std::size_t>& counts, const Check& check) {
    std::mt19937_64 random(kSeed);
    for (const std::vector<int>& hosts : kLayouts) {
      for (const std::size_t count : counts) {
        for (const std::size_t misalignment : {0U, 13U}) {
          Case foldCase({GetParam().dtype, GetParam().op, 1}, hosts, count, misalignment, random);
          SCOPED_TRACE(foldCase.name() + ", seed " + std::to_string(kSeed));
          check(foldCase);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
};

TEST_P(FoldOf, AnyInputs_GivesTheBytesOfTheReference) {
  forEachCase({0, 1, 2, 3, 7, 33, 513}, [](Case& c) { expectBytes(c.spec(), c.run(), c.reference()); });
}

TEST_P(FoldOf, InputsOneOfWhichIsTheOutput_GivesTheBytesOfTheReference) {
  forEachCase({1, 129}, [](Case& c) {
    const Reference reference = c.reference();
    for (std::size_t input = 0; input < c.inputs().size(); ++input) {
      Case copy = c;
      for (std::size_t i = 0; i < copy.inputs().size(); ++i) copy.inputs()[i].data = copy.inputData(i);
      expectBytes(c.spec(), copy.runInto(input), reference);
    }
  });
}

TEST_P(FoldOf, SeveralTiles_GivesTheBytesOfTheReference) {
  std::mt19937_64 random(kSeed);
  // A tile holds at most 4096 elements (one byte each).
  Case c({GetParam().dtype, GetParam().op, 1}, {0, 0, 1}, 8195, 1, random);
  SCOPED_TRACE(c.name());
  expectBytes(c.spec(), c.run(), c.reference());
}

TEST_P(FoldOf, RangesOneAfterTheOther_GivesTheSameBytesAsTheWhole) {
  std::mt19937_64 random(kSeed);
  Case c({GetParam().dtype, GetParam().op, 1}, {0, 0, 0, 1, 1}, 1500, 0, random);
  const std::vector<std::byte> whole = c.run();
  const std::size_t size = sizeOf(GetParam().dtype);
  std::vector<std::byte> pieces(whole.size());
  for (std::size_t begin = 0, length = 1; begin < 1500; begin += length, length = 1 + random() % 40) {
    length = std::min<std::size_t>(length, 1500 - begin);
    std::vector<Input> inputs(c.inputs().begin(), c.inputs().end());
    for (Input& input : inputs) input.data += begin * size;
    fold(c.spec(), inputs, pieces.data() + begin * size, static_cast<std::int64_t>(length));
  }
  EXPECT_EQ(pieces, whole);
}

INSTANTIATE_TEST_SUITE_P(EveryTypeAndOperation, FoldOf, testing::ValuesIn(definedPairs()),
                         [](const auto& test) {
                           return std::string(toString(test.param.dtype)) + "_" + toString(test.param.op);
                         });

/// Whether the order and grouping of the inputs can be seen in the results: if not, no test above guards
/// them.
TEST(Fold, WhenOrderOrGroupingChanges_GivesOtherBits) {
  for (const DType dtype :
       {DType::f16, DType::bf16, DType::f32, DType::f64, DType::c32, DType::c64, DType::c128}) {
    std::mt19937_64 random(kSeed);
    Case c({dtype, ReduceOp::sum, 1}, {0, 0, 0, 1, 1, 1}, 1000, 0, random);
    const std::vector<std::byte> right = c.run();
    Case swapped = c, regrouped = c, swappedHosts = c;
    std::swap(swapped.inputs()[1], swapped.inputs()[2]);
    regrouped.inputs()[3].host = 0;
    std::rotate(swappedHosts.inputs().begin(), swappedHosts.inputs().begin() + 2,
                swappedHosts.inputs().end());
    EXPECT_TRUE(swapped.run() != right) << toString(dtype);
    EXPECT_TRUE(regrouped.run() != right) << toString(dtype);
    EXPECT_TRUE(swappedHosts.run() != right) << toString(dtype);
  }
}

template <typename T>
std::vector<T> foldValues(FoldSpec spec, const std::vector<std::vector<T>>& inputs) {
  std::vector<Input> list;
  for (const std::vector<T>& input : inputs)
    list.push_back({reinterpret_cast<const std::byte*>(input.data()), 0, {}, false});
  std::vector<T> out(inputs[0].size());
  fold(spec, list, reinterpret_cast<std::byte*>(out.data()), static_cast<std::int64_t>(out.size()));
  return out;
}

/// The same values in the vector body and in the tail.
template <typename T>
std::vector<T> repeated(T value) {
  return std::vector<T>(37, value);
}

TEST(Fold, WhenAllZerosAreNegative_StaysNegative) {
  const std::vector<float> out =
      foldValues<float>({DType::f32, ReduceOp::sum, 3}, {repeated(-0.0F), repeated(-0.0F)});
  for (const float value : out) EXPECT_EQ(std::bit_cast<std::uint32_t>(value), 0x80000000U);
}

TEST(Fold, WhenMinOrMaxMeetsBothZeros_KeepsTheFirst) {
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    for (const double first : {0.0, -0.0}) {
      const std::vector<double> out =
          foldValues<double>({DType::f64, op, 2}, {repeated(first), repeated(-first)});
      for (const double value : out) EXPECT_EQ(std::signbit(value), std::signbit(first)) << toString(op);
    }
  }
}

TEST(Fold, WhenSeveralInputsAreNan_KeepsThePayloadOfTheFirst) {
  const float first = std::bit_cast<float>(0x7fc00011U), second = std::bit_cast<float>(0xffc00022U);
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::avg, ReduceOp::min, ReduceOp::max}) {
    const std::vector<float> out =
        foldValues<float>({DType::f32, op, 3}, {repeated(1.0F), repeated(first), repeated(second)});
    for (const float value : out) EXPECT_EQ(std::bit_cast<std::uint32_t>(value), 0x7fc00011U) << toString(op);
  }
}

TEST(Fold, WhenBf16SumsSmallSteps_LosesNoneOfThemToRoundingInBetween) {
  // 256 + 1 rounds back to 256 in bf16, so rounding after each step would never leave 256.
  std::vector<std::vector<std::uint16_t>> inputs(9, repeated(narrowBf16(1.0F)));
  inputs[0] = repeated(narrowBf16(256.0F));
  const std::vector<std::uint16_t> out = foldValues<std::uint16_t>({DType::bf16, ReduceOp::sum, 9}, inputs);
  for (const std::uint16_t value : out) EXPECT_EQ(widenBf16(value), 264.0F);
}

TEST(Fold, WhenFp16OverflowsInBetweenOnly_GivesTheFiniteAverage) {
  const std::vector<std::uint16_t> out = foldValues<std::uint16_t>(
      {DType::f16, ReduceOp::avg, 4}, std::vector(4, repeated(narrowF16(60000.0F))));
  for (const std::uint16_t value : out) EXPECT_EQ(widenF16(value), 60000.0F);
}

TEST(Fold, WhenIntegersOverflow_WrapAroundAndAverageWithoutWrapping) {
  EXPECT_EQ(foldValues<std::int8_t>({DType::i8, ReduceOp::sum, 2},
                                    {repeated<std::int8_t>(127), repeated<std::int8_t>(1)})[0],
            -128);
  EXPECT_EQ(foldValues<std::uint16_t>({DType::u16, ReduceOp::product, 2},
                                      std::vector(2, repeated<std::uint16_t>(65535)))[0],
            1);
  EXPECT_EQ(
      foldValues<std::int8_t>({DType::i8, ReduceOp::avg, 2}, std::vector(2, repeated<std::int8_t>(127)))[36],
      127);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(foldValues<std::int64_t>({DType::i64, ReduceOp::avg, 3}, std::vector(3, repeated(kMost)))[36],
            kMost);
}

TEST(Fold, WhenIntegersAverageToAFraction_TruncatesTowardsZero) {
  EXPECT_EQ(foldValues<std::int32_t>({DType::i32, ReduceOp::avg, 2}, {repeated(-2), repeated(-1)})[0], -1);
  EXPECT_EQ(foldValues<std::int32_t>({DType::i32, ReduceOp::avg, 2}, {repeated(2), repeated(1)})[0], 1);
}

TEST(Fold, WhenNothingIsFolded_CopiesTheOnlyInput) {
  const std::vector<std::uint8_t> input = {1, 2, 3};
  EXPECT_EQ(foldValues<std::uint8_t>({DType::bytes, ReduceOp::none, 4}, {input}), input);
}

}  // namespace
}  // namespace kaitian::fold
