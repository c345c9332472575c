#include "kaitian/schedule/objective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kaitian/schedule/controller.h"

namespace kaitian::schedule {
namespace {

using ::testing::ElementsAre;

RankCost linear(double perItem, std::int64_t size = 100) {
  std::vector<double> seconds;
  for (std::int64_t b = 1; b <= size; ++b) seconds.push_back(perItem * static_cast<double>(b));
  RankCost rank;
  rank.compute = CostTable::of(std::move(seconds)).value();
  rank.cap = size;
  return rank;
}

Problem linearProblem(std::int64_t batch, const std::vector<double>& perItem) {
  Problem problem;
  problem.batch = batch;
  for (const double seconds : perItem) problem.ranks.push_back(linear(seconds));
  return problem;
}

TEST(Objective, ForTime_SlowsRanksOnlyAsFarAsTheStepStaysAsLong) {
  Problem problem = linearProblem(12, {1, 1});
  problem.ranks[1].cap = 4;
  const PowerModes modes = {{"max", 1, 30, 5}, {"mid", 1.5, 18, 5}, {"eco", 2, 12, 5}};
  const EnergyPlan plan = bestPlan(problem, {{modes, modes}, 0}).value();
  EXPECT_THAT(plan.shares.items, ElementsAre(8, 4));
  EXPECT_THAT(plan.modes, ElementsAre(0, 1));  // eco would take all 8 s, with nothing to spare
  EXPECT_DOUBLE_EQ(plan.shares.seconds, 8);
  EXPECT_DOUBLE_EQ(plan.joules, 8 * 30 + 6 * 18 + 2 * 5);
}

TEST(Objective, ForEnergy_DoesNotStretchTheStepWhereIdlingIsDear) {
  const Problem problem = linearProblem(10, {1, 1});
  const PowerModes cheap = {{"max", 1, 20, 20}}, dear = {{"max", 1, 22, 20}};
  const EnergyPlan plan = bestPlan(problem, {{cheap, dear}, 10}).value();
  EXPECT_THAT(plan.shares.items, ElementsAre(5, 5));  // 210 J in 5 s; all on the first one: 400 J in 10 s
  EXPECT_DOUBLE_EQ(plan.joules, 210);
  const PowerModes idleless = {{"max", 1, 20, 0}}, costly = {{"max", 1, 22, 0}};
  EXPECT_THAT(bestPlan(problem, {{idleless, costly}, 10}).value().shares.items, ElementsAre(10, 0));
}

TEST(Objective, WhenTheDeadlineCannotBeMet_IsTheShortestStep) {
  const Problem problem = linearProblem(10, {1, 1});
  const PowerModes modes = {{"max", 1, 20, 1}, {"eco", 2, 5, 1}};
  const EnergyPlan plan = bestPlan(problem, {{modes, modes}, 4}).value();
  EXPECT_THAT(plan.shares.items, ElementsAre(5, 5));
  EXPECT_THAT(plan.modes, ElementsAre(0, 0));
}

TEST(Objective, ChangesForTimeOrForJoules) {
  const auto plan = [](double seconds, double joules) { return EnergyPlan{{{}, {}, seconds}, {}, joules}; };
  const Objective time, energy{{}, 1};
  EXPECT_TRUE(better(time, plan(0.9, 9), plan(1, 1), 0.03));
  EXPECT_FALSE(better(time, plan(0.98, 1), plan(1, 9), 0.03));
  EXPECT_TRUE(better(energy, plan(1, 90), plan(0.5, 100), 0.03));
  EXPECT_FALSE(better(energy, plan(0.5, 98), plan(1, 100), 0.03));
  EXPECT_TRUE(better(energy, plan(1, 200), plan(1.1, 100), 0.03));     // late
  EXPECT_FALSE(better(energy, plan(1.09, 90), plan(1.1, 100), 0.03));  // both are late: time counts
  EXPECT_TRUE(better(energy, plan(1.05, 200), plan(1.1, 100), 0.03));
}

/// Runs a controller on ranks of so many seconds per item; shares at the end.
std::vector<std::int64_t> settle(Controller& controller, std::vector<double> perItem, std::int64_t from,
                                 std::int64_t steps) {
  for (std::int64_t step = from; step < from + steps; ++step) {
    const Entry& entry = controller.log().at(step);
    std::vector<Measured> measured;
    double longest = 0;
    for (std::size_t i = 0; i < perItem.size(); ++i) {
      const auto items = static_cast<double>(std::max<std::int64_t>(entry.shares[i], 1));
      measured.push_back({perItem[i] * items, 0, true});
      longest = std::max(longest, measured.back().compute);
    }
    controller.observe(step, measured, longest);
  }
  return controller.log().entries().back().shares;
}

TEST(Controller, ForEnergy_UsesTheDeviceOfFewestJoulesAsFarAsTheDeadlineAllows) {
  ControllerOptions options;
  options.batch = 40;
  options.ranks = {RankLimits{1, 40}, RankLimits{1, 40}};
  options.objective = {{{{"max", 1, 50, 0}}, {{"max", 1, 10, 0}}}, 0.301};
  Controller controller = Controller::make(options).value();
  EXPECT_THAT(settle(controller, {0.01, 0.01}, 0, 60), ElementsAre(10, 30));
  EXPECT_NEAR(controller.log().entries().back().predicted, 0.3, 1e-6);
  // It slows down: in 0.301 s it can do 20 items only.
  EXPECT_THAT(settle(controller, {0.01, 0.015}, 60, 60), ElementsAre(20, 20));
  // Too slow for the deadline at all: the shortest step.
  EXPECT_THAT(settle(controller, {0.02, 0.02}, 120, 80), ElementsAre(20, 20));
}

TEST(Controller, ForTime_GivesModesOnceItHasLearned) {
  ControllerOptions options;
  options.batch = 30;
  options.ranks = {RankLimits{1, 30, 1, false}, RankLimits{1, 10, 1, false}};
  const PowerModes modes = {{"max", 1, 30, 5}, {"eco", 1.5, 15, 4}};
  options.objective = {{modes, modes}, 0};
  Controller controller = Controller::make(options).value();
  const auto modesNow = [&] {
    const Entry& entry = controller.log().entries().back();
    return controller.modesFor({entry.shares, entry.active(), 0}).modes;
  };
  EXPECT_THAT(modesNow(), ElementsAre(0, 0));
  EXPECT_THAT(settle(controller, {0.01, 0.01}, 0, 60), ElementsAre(20, 10));
  EXPECT_THAT(modesNow(), ElementsAre(0, 1));
}

}  // namespace
}  // namespace kaitian::schedule
