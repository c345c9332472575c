#include "kaitian/schedule/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace kaitian::schedule {
namespace {

std::vector<std::uint64_t> all(const Permutation& permutation) {
  std::vector<std::uint64_t> values;
  for (std::uint64_t i = 0; i < permutation.size(); ++i) values.push_back(permutation.at(i));
  return values;
}

TEST(Permutation, HoldsEveryNumberOnce) {
  for (const std::uint64_t size : {1U, 2U, 3U, 4U, 5U, 7U, 16U, 17U, 64U, 65U, 1000U, 60000U}) {
    auto values = all(Permutation(size, 7, 3));
    std::sort(values.begin(), values.end());
    for (std::uint64_t i = 0; i < size; ++i) ASSERT_EQ(values[i], i) << "size " << size;
  }
}

TEST(Permutation, DiffersBySeedAndEpoch) {
  const auto values = all(Permutation(1000, 1, 0));
  EXPECT_NE(values, all(Permutation(1000, 1, 1)));
  EXPECT_NE(values, all(Permutation(1000, 2, 0)));
  EXPECT_NE(values, all(Permutation(1000, 0, 1)));
  EXPECT_EQ(values, all(Permutation(1000, 1, 0)));
}

/// A replay on another machine or version must see the same samples.
TEST(Permutation, StaysTheSameForEver) {
  EXPECT_THAT(all(Permutation(8, 0, 0)), ::testing::ElementsAreArray(all(Permutation(8, 0, 0))));
}

/// Over many seeds every value comes to every position equally often (chi-squared, 49 degrees of freedom).
TEST(Permutation, IsEvenlySpread) {
  constexpr std::uint64_t kSize = 50;
  constexpr int kSeeds = 10000;
  for (const std::uint64_t position : {0U, 24U, 49U}) {
    std::vector<int> counts(kSize);
    for (int seed = 0; seed < kSeeds; ++seed)
      ++counts[Permutation(kSize, static_cast<std::uint64_t>(seed), 0).at(position)];
    double chi = 0;
    const double expected = static_cast<double>(kSeeds) / kSize;
    for (const int count : counts) chi += (count - expected) * (count - expected) / expected;
    EXPECT_LT(chi, 49 + 5 * std::sqrt(2.0 * 49)) << "position " << position;
  }
}

/// Neighbours in the stream are not neighbours in the data set.
TEST(Permutation, SeparatesNeighbours) {
  const auto values = all(Permutation(60000, 3, 1));
  double product = 0;
  for (std::size_t i = 1; i < values.size(); ++i) {
    const auto centred = [&](std::size_t k) { return (static_cast<double>(values[k]) - 29999.5) / 17320.5; };
    product += centred(i) * centred(i - 1);
  }
  EXPECT_LT(std::abs(product / 60000), 0.02);
}

TEST(Slices, OfAllRanksAreTheStepInRankOrder) {
  const std::vector<std::int64_t> shares{3, 0, 5};
  EXPECT_EQ(sliceOf(100, shares, 0).begin, 100U);
  EXPECT_EQ(sliceOf(100, shares, 1).count(), 0U);
  EXPECT_EQ(sliceOf(100, shares, 2).begin, 103U);
  EXPECT_EQ(sliceOf(100, shares, 2).end, 108U);
}

TEST(Slices, AreCutEvenly) {
  const auto cuts = cut({10, 21}, 4);
  std::vector<std::uint64_t> sizes;
  for (const Slice& slice : cuts) sizes.push_back(slice.count());
  EXPECT_THAT(sizes, ::testing::ElementsAre(3, 3, 3, 2));
  EXPECT_EQ(cuts.front().begin, 10U);
  EXPECT_EQ(cuts.back().end, 21U);
  EXPECT_EQ(cut({5, 5}, 3).size(), 1U);
}

}  // namespace
}  // namespace kaitian::schedule
