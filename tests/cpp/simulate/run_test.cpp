#include "kaitian/simulate/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulate/clusters.h"

namespace kaitian::simulate {
namespace {

using ::testing::HasSubstr;

Simulator simulatorOf(int batch = 256) {
  return Simulator::make(clusterOf({rankOf("a", 0, 0.010, 0.0010), rankOf("a", 0, 0.020, 0.0005),
                                    rankOf("b", 0, 0.005, 0.004), rankOf("c", 0, 0.040, 0.0002)},
                                   batch))
      .value();
}

RunOptions throttled() {
  RunOptions options;
  options.steps = 500;
  options.noise = 0.02;
  options.changes = {{250, 3, 0.5}};
  return options;
}

double regretOf(const Run& run, std::size_t from, std::size_t to) {
  double seconds = 0, best = 0;
  for (std::size_t step = from; step < to; ++step) {
    seconds += run.steps[step].seconds;
    best += run.steps[step].best;
  }
  return seconds / best - 1;
}

TEST(Run, TheControllerFindsTheOptimumAndFollowsADevice) {
  const auto found = run(simulatorOf(), throttled()).value();
  EXPECT_LT(regretOf(found, 60, 250), 0.03);
  EXPECT_LT(regretOf(found, 280, 500), 0.03);
  EXPECT_GT(found.steps[250].seconds, 1.1 * found.steps[249].seconds);
  EXPECT_GT(found.steps[250].best, 1.05 * found.steps[249].best);
  ASSERT_EQ(found.reactions.size(), 1U);
  EXPECT_GE(found.reactions[0].steps, 5);  // not before the horizon
  EXPECT_LE(found.reactions[0].steps, 4 + 15);
  EXPECT_LT(found.steps.back().items[3], found.steps[249].items[3]);
}

TEST(Run, StepsAreThoseOfTheSimulator) {
  const Simulator simulator = simulatorOf();
  RunOptions options;
  options.steps = 3;
  const auto found = run(simulator, options).value();
  const Step even = simulator.step({found.steps[0].items, std::vector<bool>(4, true), 0}).value();
  EXPECT_NEAR(found.steps[0].seconds, even.seconds, 1e-12);
  EXPECT_NEAR(found.steps[0].best, simulator.report().value().policies[2].step->seconds, 1e-12);
  EXPECT_NEAR(found.regret, even.seconds / found.steps[0].best - 1, 1e-9);
}

TEST(Run, TheSeedDecidesTheNoise) {
  RunOptions options = throttled();
  const auto reasons = [&] {
    std::string all;
    const auto found = run(simulatorOf(), options).value();
    for (const schedule::Entry& entry : found.schedule) all += entry.reason + "\n";
    return all;
  };
  const std::string first = reasons();
  EXPECT_EQ(reasons(), first);
  options.seed = 1;
  EXPECT_NE(reasons(), first);
}

TEST(Run, BadOptions_NameTheField) {
  RunOptions options = throttled();
  options.changes[0].rank = 4;
  EXPECT_THAT(run(simulatorOf(), options).status().message(),
              HasSubstr("events[0]: rank: expected 0 to 3, found 4"));
  options.changes = {{10, 0, 0.5}, {9, 0, 1}};
  EXPECT_THAT(run(simulatorOf(), options).status().message(),
              HasSubstr("step: expected 10 or later, found 9"));
}

}  // namespace
}  // namespace kaitian::simulate
