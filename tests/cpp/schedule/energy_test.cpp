#include "kaitian/schedule/energy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "schedule/random_problem.h"

namespace kaitian::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kRounding = 1e-9;

CostTable affine(double fixed, double perItem, std::int64_t size) {
  std::vector<double> seconds;
  for (std::int64_t b = 1; b <= size; ++b) seconds.push_back(fixed + perItem * static_cast<double>(b));
  return CostTable::of(std::move(seconds)).value();
}

RankCost affineRank(double fixed, double perItem, std::int64_t size = 100) {
  RankCost rank;
  rank.compute = affine(fixed, perItem, size);
  rank.cap = size;
  return rank;
}

std::vector<PowerModes> randomPower(RandomProblem& random, std::size_t ranks) {
  std::vector<PowerModes> power(ranks);
  for (PowerModes& modes : power) {
    const std::int64_t count = random.whole(0, 3);
    for (std::int64_t m = 0; m < count; ++m) {
      const double idle = random.chance(0.2) ? 0 : random.real(0, 10);
      modes.push_back({std::string(1, static_cast<char>('a' + m)), m == 0 ? 1 : random.real(0.5, 3),
                       idle + random.real(0, 50), idle});
    }
  }
  return power;
}

/// Joules of these shares in the best modes, mode by mode written out; HUGE_VAL if a rank meets it in none.
double joulesByHand(const Problem& problem, const std::vector<PowerModes>& power, const Shares& shares,
                    double deadline) {
  double sum = 0;
  for (std::size_t i = 0; i < power.size(); ++i) {
    const PowerModes modes = power[i].empty() ? PowerModes{{}} : power[i];
    double best = HUGE_VAL;
    for (const PowerMode& mode : modes) {
      RankCost rank = problem.ranks[i];
      rank.scale *= mode.slowness;
      if (mode.slowness != 1 && rank.zero > rank.fixed)
        rank.zero = rank.fixed + mode.slowness * (rank.zero - rank.fixed);
      const std::int64_t items = shares.items[i];
      const Exposed& exposed = exposedOf(problem, shares);
      const double seconds = shares.active[i] ? secondsOf(rank, exposed, items) : 0;
      if (seconds > deadline) continue;
      double busy = 0;
      if (shares.active[i])
        busy = items > 0 ? rank.scale * rank.compute.at(items)
                         : std::max(0.0, secondsOf(rank, exposed, 0) - rank.fixed);
      best = std::min(best, mode.activeWatts * busy + mode.idleWatts * (deadline - busy));
    }
    sum += best;
  }
  return sum;
}

void compareWithBruteForce(std::uint64_t seed, int cases, bool legalities, bool exclusion) {
  int met = 0;
  for (int c = 0; c < cases; ++c) {
    SCOPED_TRACE("seed " + std::to_string(seed) + " case " + std::to_string(c));
    RandomProblem random(seed + static_cast<std::uint64_t>(c));
    Problem problem = random.problem(legalities, exclusion);
    if (exclusion) problem.exposed.resize(1);
    const std::vector<PowerModes> power = randomPower(random, problem.ranks.size());
    const Result<Shares> shortest = solve(problem);
    const double deadline = shortest.ok() ? shortest.value().seconds * random.real(0.7, 3) : 1;
    double best = HUGE_VAL;
    forAllShares(problem, [&](const Shares& shares) {
      best = std::min(best, joulesByHand(problem, power, shares, deadline));
    });
    const Result<EnergyPlan> found = leastEnergy(problem, power, deadline);
    ASSERT_EQ(found.ok(), best != HUGE_VAL) << found.status().toString();
    if (!found.ok()) {
      EXPECT_EQ(found.status().code(), Code::resource);
      continue;
    }
    ++met;
    const EnergyPlan& plan = found.value();
    ASSERT_NEAR(plan.joules, best, kRounding * (1 + best));
    ASSERT_LE(plan.shares.seconds, deadline);
    EXPECT_EQ(std::accumulate(plan.shares.items.begin(), plan.shares.items.end(), std::int64_t{0}),
              problem.batch);
    for (std::size_t i = 0; i < power.size(); ++i)
      EXPECT_TRUE(legal(problem.ranks[i], plan.shares.items[i])) << "rank " << i;
    EXPECT_EQ(joulesOf(problem, power, plan.shares, plan.modes, deadline), plan.joules);
    EXPECT_EQ(secondsOf(inModes(problem, power, plan.modes), plan.shares), plan.shares.seconds);
  }
  EXPECT_GT(met, cases / 3);
}

TEST(LeastEnergy, WhenFloorsAreOne_IsAsGoodAsBruteForce) {
  compareWithBruteForce(100000, 3000, false, false);
}
TEST(LeastEnergy, WithFloorsAndQuanta_IsAsGoodAsBruteForce) {
  compareWithBruteForce(200000, 3000, true, false);
}
TEST(LeastEnergy, WithExclusion_IsAsGoodAsBruteForce) { compareWithBruteForce(300000, 1000, true, true); }

TEST(LeastEnergy, OnLargerProblems_IsAsGoodAsTheSimpleProgramme) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    RandomProblem random(seed);
    Problem problem;
    problem.batch = random.whole(100, 250);
    for (int i = 0; i < 3; ++i) {
      RankCost rank;
      rank.compute = random.table(problem.batch);
      rank.cap = problem.batch;
      rank.quantum = random.chance(0.3) ? random.whole(2, 5) : 1;
      rank.floor = random.whole(1, 9);
      problem.ranks.push_back(rank);
    }
    const std::vector<PowerModes> power = randomPower(random, 3);
    const Result<Shares> shortest = solve(problem);
    if (!shortest.ok()) continue;
    const double deadline = shortest.value().seconds * random.real(1, 3);
    std::vector<double> least(static_cast<std::size_t>(problem.batch + 1), HUGE_VAL);
    least[0] = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      Problem one;
      one.ranks = {problem.ranks[i]};
      std::vector<double> next(least.size(), HUGE_VAL);
      for (std::int64_t b = 0; b <= problem.batch; ++b) {
        if (!legal(problem.ranks[i], b)) continue;
        const double joules = joulesByHand(one, {power[i]}, Shares{{b}, {true}, 0}, deadline);
        for (std::size_t s = static_cast<std::size_t>(b); s < next.size(); ++s)
          next[s] = std::min(next[s], least[s - static_cast<std::size_t>(b)] + joules);
      }
      least = next;
    }
    ASSERT_NEAR(leastEnergy(problem, power, deadline).value().joules, least.back(),
                kRounding * (1 + least.back()));
  }
}

TEST(LeastEnergy, WithMoreTime_NeverTakesMoreThanTheTimeAddsByIdling) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    RandomProblem random(seed);
    const Problem problem = random.problem(false, false);
    const std::vector<PowerModes> power = randomPower(random, problem.ranks.size());
    if (!solve(problem).ok()) continue;
    const double shortest = solve(problem).value().seconds;
    for (double deadline = shortest; deadline < 4 * shortest; deadline += shortest / 3) {
      const EnergyPlan now = leastEnergy(problem, power, deadline).value();
      const double longer = deadline * 1.1;
      ASSERT_LE(leastEnergy(problem, power, longer).value().joules,
                joulesOf(problem, power, now.shares, now.modes, longer) * (1 + kRounding));
    }
  }
}

TEST(LeastEnergy, WhenThereIsTime_GivesTheWorkToTheRankOfFewestJoulesPerItem) {
  Problem problem;
  problem.batch = 10;
  problem.ranks = {affineRank(0, 1), affineRank(0, 2)};
  const std::vector<PowerModes> power = {{{"max", 1, 10, 0}}, {{"max", 1, 4, 0}}};  // 10 and 8 J per item
  EXPECT_THAT(leastEnergy(problem, power, 20).value().shares.items, ElementsAre(0, 10));
  EXPECT_DOUBLE_EQ(leastEnergy(problem, power, 20).value().joules, 80);
  EXPECT_THAT(leastEnergy(problem, power, 9).value().shares.items, ElementsAre(6, 4));
  EXPECT_DOUBLE_EQ(leastEnergy(problem, power, 9).value().joules, 6 * 10 + 4 * 8);
}

TEST(LeastEnergy, WhenTheDeadlineIsTooShort_GivesTheShortestPossibleTime) {
  Problem problem;
  problem.batch = 10;
  problem.ranks = {affineRank(0, 1), affineRank(0, 1)};
  const std::vector<PowerModes> power = {{{"eco", 1, 5, 1}, {"max", 0.5, 30, 1}}, {}};
  const Status status = leastEnergy(problem, power, 3).status();  // 7 x 0.5 s, or 3 x 1 s
  EXPECT_EQ(status.code(), Code::resource);
  EXPECT_THAT(status.message(), HasSubstr("the shortest possible step takes 3.5 s, found 3"));
  EXPECT_THAT(leastEnergy(problem, power, 3.5).value().shares.items, ElementsAre(7, 3));
}

TEST(LeastEnergy, OfLargeProblems_Ends) {
  Problem problem;
  problem.batch = 32768;
  std::vector<PowerModes> power;
  for (int i = 0; i < 16; ++i) {
    problem.ranks.push_back(affineRank(0.001, 1e-5 * (1 + i), problem.batch));
    power.push_back({{"max", 1, 30.0 + i, 5}, {"eco", 1.5, 15.0 + i, 4}});
  }
  const double shortest = solve(problem).value().seconds;
  const EnergyPlan plan = leastEnergy(problem, power, 2 * shortest).value();
  EXPECT_LE(plan.shares.seconds, 2 * shortest);
  std::vector<double> seconds;  // a step per item: no two are convex
  for (std::int64_t b = 1; b <= problem.batch; ++b)
    seconds.push_back(1e-5 * static_cast<double>(b) + (b % 2 == 0 ? 5e-6 : 0));
  for (RankCost& rank : problem.ranks) rank.compute = CostTable::of(seconds).value();
  const Status status = leastEnergy(problem, power, 1).status();
  EXPECT_EQ(status.code(), Code::resource);
  EXPECT_THAT(status.message(), HasSubstr("operations, expected at most 1e+10"));
}

TEST(LeastEnergy, WithBadInput_NamesIt) {
  Problem problem;
  problem.batch = 10;
  problem.ranks = {affineRank(0, 1)};
  const auto message = [&](const std::vector<PowerModes>& power, double deadline) {
    const Status status = leastEnergy(problem, power, deadline).status();
    EXPECT_EQ(status.code(), Code::invalidArgument);
    return status.message();
  };
  EXPECT_THAT(message({}, 1), HasSubstr("argument power: expected modes of 1 ranks, found 0"));
  EXPECT_THAT(message({{{"eco", 0, 1, 1}}}, 1), HasSubstr("rank 0: mode eco: expected slowness > 0"));
  EXPECT_THAT(message({{{"eco", 1, -1, 1}}}, 1), HasSubstr("watts >= 0, found 1, -1 and 1"));
  EXPECT_THAT(message({{}}, 0), HasSubstr("argument deadline: expected a positive number, found 0"));
  problem.mayExclude = true;
  problem.exposed = {{}, {}};
  EXPECT_THAT(message({{}}, 1), HasSubstr("argument exposed: expected 1 entry"));
}

TEST(FrugalModes, AreThoseOfLeastEnergyThatMeetTheTime) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    RandomProblem random(seed);
    const Problem problem = random.problem(false, false);
    const std::vector<PowerModes> power = randomPower(random, problem.ranks.size());
    if (!solve(problem).ok()) continue;
    const Shares shares = solve(problem).value();
    const double seconds = shares.seconds * (random.chance(0.5) ? 1 : 1.3);
    const std::vector<int> modes = frugalModes(problem, power, shares, seconds).value();
    ASSERT_LE(secondsOf(inModes(problem, power, modes), shares), seconds);
    ASSERT_NEAR(joulesOf(problem, power, shares, modes, seconds),
                joulesByHand(problem, power, shares, seconds), kRounding * (1 + 500 * seconds));
  }
}

TEST(FrugalModes, SlowRanksThatWouldWaitAndNoOthers) {
  Problem problem;
  problem.batch = 10;
  problem.ranks = {affineRank(0, 1), affineRank(0, 1), affineRank(0, 1)};
  const PowerModes modes = {{"max", 1, 30, 5}, {"eco", 1.5, 15, 4}};
  const Shares shares{{6, 4, 0}, {true, true, false}, 6};
  const std::vector<PowerModes> power = {modes, modes, modes};
  EXPECT_THAT(frugalModes(problem, power, shares, 6).value(), ElementsAre(0, 1, 1));
  EXPECT_THAT(frugalModes(problem, power, shares, 5.9).value(), ElementsAre(0, 0, 1));
  // 6 s busy at 30 W; 6 s busy at 15 W; 6 s idle at 4 W
  EXPECT_DOUBLE_EQ(joulesOf(problem, power, shares, {0, 1, 1}, 6), 180 + 90 + 24);
  EXPECT_THAT(frugalModes(problem, {{}, modes, modes}, shares, 1).value(), ElementsAre(0, 0, 1));
}

}  // namespace
}  // namespace kaitian::schedule
