#include "kaitian/schedule/solver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "schedule/random_problem.h"

namespace kaitian::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RankCost affine(double fixed, double perItem, std::int64_t cap = 1000) {
  std::vector<double> seconds;
  for (std::int64_t b = 1; b <= cap; ++b) seconds.push_back(fixed + perItem * static_cast<double>(b));
  RankCost rank;
  rank.compute = CostTable::of(std::move(seconds)).value();
  rank.cap = cap;
  return rank;
}

std::int64_t moved(const std::vector<std::int64_t>& from, const std::vector<std::int64_t>& to) {
  std::int64_t items = 0;
  for (std::size_t i = 0; i < from.size(); ++i) items += std::abs(to[i] - from[i]);
  return items;
}

void expectLegal(const Problem& problem, const Shares& shares) {
  EXPECT_EQ(std::accumulate(shares.items.begin(), shares.items.end(), std::int64_t{0}), problem.batch);
  for (std::size_t i = 0; i < problem.ranks.size(); ++i) {
    EXPECT_TRUE(legal(problem.ranks[i], shares.items[i])) << "rank " << i << ": " << shares.items[i];
    const bool mayLeave = problem.mayExclude && problem.ranks[i].mayLeave;
    EXPECT_TRUE(shares.active[i] || (mayLeave && shares.items[i] == 0)) << "rank " << i;
  }
}

/// Compares `cases` random problems with the best of all shares.
void compareWithBruteForce(std::uint64_t seed, int cases, bool legalities, bool exclusion) {
  int impossible = 0;
  for (int c = 0; c < cases; ++c) {
    SCOPED_TRACE("seed " + std::to_string(seed) + " case " + std::to_string(c));
    RandomProblem random(seed + static_cast<std::uint64_t>(c));
    const Problem problem = random.problem(legalities, exclusion);
    double best = HUGE_VAL;
    forAllShares(problem, [&](const Shares& shares) { best = std::min(best, secondsOf(problem, shares)); });
    const Result<Shares> found = solve(problem);
    ASSERT_EQ(found.ok(), best != HUGE_VAL) << found.status().toString();
    if (!found.ok()) {
      ++impossible;
      continue;
    }
    expectLegal(problem, found.value());
    ASSERT_EQ(found.value().seconds, best);
    ASSERT_EQ(secondsOf(problem, found.value()), best);
  }
  EXPECT_LT(impossible, cases / 2);
}

TEST(Solve, WhenFloorsAreOne_IsAsGoodAsBruteForce) { compareWithBruteForce(1000, 3000, false, false); }
TEST(Solve, WithFloorsAndQuanta_IsAsGoodAsBruteForce) { compareWithBruteForce(20000, 3000, true, false); }
TEST(Solve, WithExclusion_IsAsGoodAsBruteForce) { compareWithBruteForce(40000, 3000, false, true); }
TEST(Solve, WithExclusionFloorsAndQuanta_IsAsGoodAsBruteForce) {
  compareWithBruteForce(60000, 3000, true, true);
}

TEST(Solve, AmongPlansOfEqualTime_MovesFewestItems) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    RandomProblem random(seed);
    Problem problem = random.problem(false, false);
    if (!solve(problem).ok()) continue;
    const double best = solve(problem).value().seconds;
    if (random.chance(0.5)) {
      for (std::size_t i = 0; i < problem.ranks.size(); ++i) problem.current.push_back(random.whole(0, 12));
    } else {  // shares that hold now do sum to the batch
      std::vector<double> speeds;
      for (std::size_t i = 0; i < problem.ranks.size(); ++i)
        speeds.push_back(random.chance(0.4) ? 0.001 : random.real(1, 9));
      problem.current = proportional(problem.batch, speeds);
    }
    const Shares found = solve(problem).value();
    ASSERT_EQ(found.seconds, best);
    std::int64_t fewest = 1000;
    forAllShares(problem, [&](const Shares& shares) {
      if (secondsOf(problem, shares) == found.seconds)
        fewest = std::min(fewest, moved(problem.current, shares.items));
    });
    ASSERT_EQ(moved(problem.current, found.items), fewest);
  }
}

TEST(Solve, WhenOneDeviceOnlyHarms_LeavesItOut) {
  Problem problem;
  problem.batch = 64;
  problem.ranks = {affine(0, 0.01), affine(0, 0.01), affine(5, 1)};
  problem.ranks[2].zero = 6;
  EXPECT_DOUBLE_EQ(solve(problem).value().seconds, 6.0);
  problem.mayExclude = true;
  const Shares shares = solve(problem).value();
  EXPECT_THAT(shares.items, ElementsAre(32, 32, 0));
  EXPECT_THAT(shares.active, ElementsAre(true, true, false));
  EXPECT_DOUBLE_EQ(shares.seconds, 0.32);
}

TEST(Solve, WhenAnIslandMakesCommunicationDear_LeavesTheIslandOut) {
  Problem problem;
  problem.batch = 10;
  problem.ranks = {affine(0, 1), affine(0, 1)};
  problem.ranks[1].island = 1;
  problem.mayExclude = true;
  problem.exposed = {{}, {0, 0}, {0, 0}, {1, 1}};
  EXPECT_THAT(solve(problem).value().items, ElementsAre(5, 5));
  problem.exposed[3] = {7, 7};
  EXPECT_THAT(solve(problem).value().items, ElementsAre(10, 0));
}

TEST(Solve, WhenTheBatchDoesNotFit_GivesTheSums) {
  Problem problem;
  problem.batch = 30;
  problem.ranks = {affine(0, 1, 10), affine(0, 1, 12)};
  EXPECT_EQ(solve(problem).status().code(), Code::resource);
  EXPECT_THAT(solve(problem).status().message(),
              HasSubstr("a batch of 30 items does not fit: the caps of all ranks sum to 22"));
  problem.batch = 1;
  problem.ranks[0].floor = problem.ranks[1].floor = 2;
  EXPECT_THAT(solve(problem).status().message(), HasSubstr("no shares between floors (the smallest is 2)"));
}

TEST(Solve, WhenInputIsBad_NamesRankFieldExpectedAndFound) {
  Problem problem;
  problem.batch = 4;
  problem.ranks = {affine(0, 1, 10), affine(0, 1, 10)};
  problem.ranks[1].cap = 11;
  EXPECT_THAT(solve(problem).status().message(),
              HasSubstr("rank 1: cap: expected 0 to 10 (the size of its cost table), found 11"));
  problem.ranks[1].cap = 10;
  problem.ranks[1].scale = 0;
  EXPECT_THAT(solve(problem).status().message(),
              HasSubstr("rank 1: scale: expected a positive number, found 0"));
  problem.ranks[1].scale = 1;
  problem.exposed.resize(3);
  EXPECT_THAT(solve(problem).status().message(), HasSubstr("exposed: expected 1 entry"));
  problem.exposed.resize(1);
  problem.current = {1};
  EXPECT_THAT(solve(problem).status().message(), HasSubstr("current: expected 2 shares, found 1"));
  problem.batch = 0;
  EXPECT_THAT(solve(problem).status().message(), HasSubstr("batch: expected >= 1, found 0"));
}

TEST(Proportional, GivesWholeSharesThatSumToTheBatch) {
  EXPECT_THAT(proportional(10, {1, 2, 4}), ElementsAre(1, 3, 6));
  EXPECT_THAT(proportional(3, {1, 1, 1, 1}), ElementsAre(1, 1, 1, 0));
}

}  // namespace
}  // namespace kaitian::schedule
