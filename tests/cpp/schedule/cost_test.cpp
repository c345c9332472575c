#include "kaitian/schedule/cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace kaitian::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CostTable, WhenTheSmallestSizesHappenToTakeTheSameTime_SmallerOnesAreStillCheaper) {
  const auto table =
      CostTable::fit(std::vector<Sample>{{50, 0.060}, {60, 0.060}, {70, 0.070}, {90, 0.080}}, 100).value();
  EXPECT_DOUBLE_EQ(table.at(30), 0.060 - 20 * 0.020 / 40);  // the slope of the whole curve
  EXPECT_DOUBLE_EQ(table.at(55), 0.060);
  const auto steep = CostTable::fit(std::vector<Sample>{{50, 0.050}, {60, 0.080}, {70, 0.081}}, 100).value();
  EXPECT_DOUBLE_EQ(steep.at(10), 0.010) << "no less than in proportion";
}

TEST(CostTable, WhenSizesLieBetweenSamples_DrawsStraightLines) {
  const std::vector<Sample> samples{{2, 0.4}, {4, 0.6}};
  const CostTable table = CostTable::fit(samples, 6).value();
  EXPECT_DOUBLE_EQ(table.at(1), 0.3);
  EXPECT_DOUBLE_EQ(table.at(2), 0.4);
  EXPECT_DOUBLE_EQ(table.at(3), 0.5);
  EXPECT_DOUBLE_EQ(table.at(6), 0.8);
}

TEST(CostTable, WhenMeasuresDecrease_PoolsThemByWeight) {
  const std::vector<Sample> samples{{1, 1.0}, {2, 4.0, 1}, {3, 2.0, 3}, {4, 5.0}};
  const CostTable table = CostTable::fit(samples, 4).value();
  EXPECT_DOUBLE_EQ(table.at(2), 2.5);
  EXPECT_DOUBLE_EQ(table.at(3), 2.5);
  EXPECT_DOUBLE_EQ(table.at(4), 5.0);
}

TEST(CostTable, WhenOnlyOneSizeWasMeasured_IsProportional) {
  const std::vector<Sample> samples{{8, 0.8}, {8, 1.6}};
  const CostTable table = CostTable::fit(samples, 16).value();
  EXPECT_DOUBLE_EQ(table.at(1), 0.15);
  EXPECT_DOUBLE_EQ(table.at(16), 2.4);
}

TEST(CostTable, WhenTheLastSizesTookEqualTimes_LargerOnesStillCostMore) {
  const std::vector<Sample> samples{{1, 1.0}, {4, 4.0}, {8, 4.0}};
  EXPECT_GT(CostTable::fit(samples, 16).value().at(16), 7.0);
  const std::vector<Sample> flat{{4, 4.0}, {8, 4.0}};
  EXPECT_GT(CostTable::fit(flat, 16).value().at(16), 7.0);
}

TEST(CostTable, WhenMeasuresAreConcave_SmallSharesAreNotFree) {
  const std::vector<Sample> samples{{4, 0.1}, {5, 1.0}};
  EXPECT_DOUBLE_EQ(CostTable::fit(samples, 5).value().at(1), 0.025);
}

TEST(CostTable, WhenInputIsBad_NamesIt) {
  const std::vector<Sample> none, negative{{1, -1.0}}, zeroItems{{0, 1.0}}, nan{{1, std::nan("")}};
  EXPECT_THAT(CostTable::fit(none, 1).status().message(), HasSubstr("samples: expected at least one"));
  for (const auto& samples : {negative, zeroItems, nan})
    EXPECT_EQ(CostTable::fit(samples, 4).status().code(), Code::invalidArgument);
  EXPECT_THAT(CostTable::of({1.0, 0.5}).status().message(),
              HasSubstr("seconds[1]: expected a finite time >= 1"));
}

TEST(Accumulate, WhenASharesExceedsTheCap_CutsItEvenly) {
  const CostTable one = CostTable::of({1.0, 1.5, 2.0, 2.5}).value();  // 0.5 fixed + 0.5 per item
  const Accumulated cut = accumulate(one, 4, 9).value();
  EXPECT_THAT(cut.microBatches, ElementsAre(1, 1, 1, 1, 2, 2, 2, 2, 3));
  EXPECT_DOUBLE_EQ(cut.cost.at(5), 3.5);
  EXPECT_DOUBLE_EQ(cut.cost.at(9), 6.0);
}

TEST(Accumulate, WhenStepsMakeMoreMicroBatchesCheaper_TakesMore) {
  const CostTable one = CostTable::of({1.0, 1.0, 5.0, 5.0}).value();
  const Accumulated cut = accumulate(one, 4, 4).value();
  EXPECT_EQ(cut.microBatches[3], 2);
  EXPECT_DOUBLE_EQ(cut.cost.at(4), 2.0);
}

TEST(Accumulate, WhenTheNumberIsPrescribed_EndsWhereItHoldsNoMore) {
  const CostTable one = CostTable::of({1.0, 2.0, 3.0}).value();
  const Accumulated cut = accumulate(one, 3, 100, 2, 2).value();
  EXPECT_EQ(cut.cost.size(), 6);
  EXPECT_DOUBLE_EQ(cut.cost.at(1), 4.0);  // two micro-batches of the floor
  EXPECT_DOUBLE_EQ(cut.cost.at(5), 5.0);
  EXPECT_EQ(accumulate(one, 4, 8).status().code(), Code::invalidArgument);
}

}  // namespace
}  // namespace kaitian::schedule
