#include "kaitian/schedule/estimator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace kaitian::schedule {
namespace {

/// Steps until a change is seen after `before` steps at 1 and then at `factor`; noise of 3 %, 1 % outliers of
/// 3 x.
int reaction(double factor, unsigned seed, int before, int* falseAlarms = nullptr) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(0, 0.03);
  std::uniform_real_distribution<double> part(0, 1);
  ScaleEstimator estimator;
  const auto measure = [&](double level) {
    return level * std::exp(noise(random)) * (part(random) < 0.01 ? 3 : 1);
  };
  for (int i = 0; i < before; ++i)
    if (estimator.add(measure(1)) && falseAlarms != nullptr) ++*falseAlarms;
  for (int i = 1; i <= 200; ++i)
    if (estimator.add(measure(factor))) return i;
  return 1000;
}

TEST(ScaleEstimator, SeesAThrottledDeviceWithinAFewSteps) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    EXPECT_LE(reaction(1.8, seed, 100), 6) << "seed " << seed;
    EXPECT_LE(reaction(1 / 1.8, seed, 100), 6) << "seed " << seed;
  }
}

TEST(ScaleEstimator, WithNoiseAndOutliersAlone_SeldomSeesAChange) {
  int alarms = 0;
  for (unsigned seed = 0; seed < 100; ++seed) reaction(1, seed, 1000, &alarms);
  EXPECT_LT(alarms, 100 * 1000 / 200);  // and then it learns the same scale again
}

TEST(ScaleEstimator, AfterAChange_ForgetsWhatWasBefore) {
  ScaleEstimator estimator;
  for (int i = 0; i < 15; ++i) estimator.add(1.0);
  int steps = 0;
  while (!estimator.add(2.0)) ASSERT_LT(++steps, 10);
  EXPECT_DOUBLE_EQ(estimator.scale(), 2.0);
}

TEST(ScaleEstimator, IsTheMedianOfRecentRatios) {
  ScaleEstimator estimator;
  EXPECT_DOUBLE_EQ(estimator.scale(), 1.0);
  for (const double ratio : {1.1, 50.0, 0.9}) estimator.add(ratio);
  EXPECT_DOUBLE_EQ(estimator.scale(), 1.1);
  estimator.reset(3);
  EXPECT_DOUBLE_EQ(estimator.scale(), 3.0);
}

TEST(ScaleEstimator, WhenTheClockJumps_IgnoresTheValue) {
  ScaleEstimator estimator;
  estimator.add(1.5);
  for (const double ratio : {-1.0, 0.0, std::numeric_limits<double>::infinity(), std::nan("")})
    EXPECT_FALSE(estimator.add(ratio));
  EXPECT_DOUBLE_EQ(estimator.scale(), 1.5);
  EXPECT_EQ(estimator.count(), 1);
}

}  // namespace
}  // namespace kaitian::schedule
