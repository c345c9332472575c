#include "kaitian/simulate/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "schedule/random_problem.h"
#include "simulate/clusters.h"

namespace kaitian::simulate {
namespace {

using ::testing::HasSubstr;
constexpr double kNear = 1e-9;

Report reportOf(const Cluster& cluster) { return Simulator::make(cluster).value().report().value(); }

std::vector<std::int64_t> itemsOf(const Policy& policy) {
  std::vector<std::int64_t> items;
  for (const RankStep& rank : policy.step.value().ranks) items.push_back(rank.items);
  return items;
}

TEST(Simulator, OneIsland_IsComputingAndThenTheRing) {
  const Cluster cluster = clusterOf({rankOf("a", 0, 0.01, 0.001), rankOf("a", 0, 0.01, 0.0005)});
  const double ring = 2 * (3e-6 + 2e6 / 40e9);
  const Report report = reportOf(cluster);
  const Policy& even = report.policies[0];
  EXPECT_EQ(itemsOf(even), (std::vector<std::int64_t>{15, 15}));
  EXPECT_NEAR(even.step->seconds, 0.025 + ring, kNear);
  EXPECT_NEAR(even.step->ranks[1].idle, 0.0075, kNear);
  EXPECT_NEAR(even.step->ranks[1].compute, 0.0175, kNear);
  EXPECT_NEAR(even.step->ranks[1].exposed, ring, kNear);
  // 15 items in 25 and 17.5 ms: 12.35 and 17.65 of 30.
  EXPECT_EQ(itemsOf(report.policies[1]), (std::vector<std::int64_t>{12, 18}));
  const Policy& balanced = report.policies[2];
  EXPECT_EQ(itemsOf(balanced), (std::vector<std::int64_t>{10, 20}));
  EXPECT_NEAR(balanced.step->seconds, 0.02 + ring, kNear);
  // Alone both do best with all 30 items.
  EXPECT_NEAR(balanced.step->efficiency, 30 / (0.02 + ring) / (30 / 0.04 + 30 / 0.025), kNear);
  EXPECT_TRUE(report.leftOut.empty());
}

TEST(Simulator, SlowLink_DecidesWhoTakesPart) {
  Cluster cluster = clusterOf({rankOf(kCpu, 0, 0.001, 0.001), rankOf(kCpu, 1, 0.001, 0.001)}, 20);
  cluster.model.buckets = {8000};
  cluster.network = {1e6, 0.02};
  const double hop = 0.02 + 0.008;
  const Report report = reportOf(cluster);
  EXPECT_NEAR(report.policies[2].step->seconds, 0.011 + hop, kNear);
  EXPECT_NEAR(report.policies[3].step->seconds, 0.021, kNear);
  ASSERT_EQ(report.leftOut.size(), 1U);
  EXPECT_EQ(itemsOf(report.policies[3])[static_cast<std::size_t>(report.leftOut[0].rank)], 0);
  EXPECT_NEAR(report.leftOut[0].secondsWith, 0.011 + hop, kNear);
  EXPECT_NEAR(report.leftOut[0].with.exposed.whole, hop, kNear);
}

TEST(Simulator, AShareOfZero_StillRunsTheSmallestBatch) {
  Cluster cluster = clusterOf({rankOf("a", 0, 0.001, 0.001), rankOf("b", 0, 0.5, 0.001)}, 8);
  cluster.model.buckets = {8000};
  cluster.ranks[1].floor = 2;
  const double carried = 2 * (8e-6 + 8000 / 10e9) + 2e-6 + 8000 / 4e9;
  const Simulator simulator = Simulator::make(cluster).value();
  const Step step = simulator.step({{8, 0}, {true, true}, 0}).value();
  EXPECT_NEAR(step.seconds, 0.502 + carried, kNear);
  EXPECT_NEAR(step.ranks[1].compute, 0.502, kNear);
  EXPECT_NEAR(step.ranks[0].idle, 0.502 - 0.009, kNear);
  const Report report = simulator.report().value();
  EXPECT_NEAR(report.policies[3].step->seconds, 0.009, kNear);
  ASSERT_EQ(report.leftOut.size(), 1U);
  EXPECT_EQ(report.leftOut[0].rank, 1);
  EXPECT_NEAR(report.leftOut[0].leastSeconds, 0.502, kNear);
}

TEST(Simulator, BucketsHideBehindTheBackwardPass) {
  Cluster cluster = clusterOf({rankOf("a", 0), rankOf("b", 1)});
  cluster.model = {{8000, 8000}, 0.4};
  cluster.network = {1e6, 0};
  const double bucket = 2 * (8e-6 + 8000 / 10e9) + 0.008;
  // Behind 25 ms of work that gives its first bucket after 10 ms, 16 ms fit but for the last bucket's.
  EXPECT_NEAR(reportOf(cluster).policies[0].step->seconds, 0.025 + bucket, kNear);
  EXPECT_FALSE(reportOf(cluster).policies[0].step->communicationBound);
  cluster.network = {0.4e6, 0};
  EXPECT_NEAR(reportOf(cluster).policies[0].step->seconds, 0.01 + 2 * (bucket + 0.012), kNear);
  EXPECT_TRUE(reportOf(cluster).policies[0].step->communicationBound);
}

TEST(Simulator, MemoryCutsSharesIntoMicroBatches) {
  Cluster cluster = clusterOf({rankOf("a", 0)}, 30);
  cluster.ranks[0].memory = 10;
  const Policy balanced = reportOf(cluster).policies[2];
  EXPECT_EQ(balanced.step->ranks[0].microBatches, 3);
  EXPECT_NEAR(balanced.step->seconds, 3 * 0.01 + 0.03, kNear);
  EXPECT_NEAR(Simulator::make(cluster).value().computeSeconds(0, 30, 3), 0.06, kNear);
  cluster.ranks[0].accumulates = false;
  EXPECT_THAT(reportOf(cluster).policies[2].fault, HasSubstr("30 items does not fit"));
}

Cluster randomCluster(schedule::RandomProblem& random) {
  Cluster cluster = clusterOf({}, random.whole(4, 10));
  const char* const vendors[] = {"a", "b", kCpu};
  for (std::int64_t i = random.whole(1, 4); i > 0; --i) {
    Rank rank = rankOf(vendors[random.whole(0, 2)], static_cast<int>(random.whole(0, 1)),
                       random.real(0, 0.01), random.real(1e-4, 1e-2));
    rank.scale = random.real(0.5, 2);
    rank.floor = random.whole(1, 3);
    rank.quantum = random.whole(1, 2);
    rank.perStep = random.real(0, 0.002);
    cluster.ranks.push_back(rank);
  }
  cluster.model = {{random.whole(1000, 400'000), random.whole(1000, 4'000'000)}, random.real(0, 1)};
  return cluster;
}

TEST(Simulator, RandomClusters_NoSharesAreFasterThanWhatItSays) {
  int excluding = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    schedule::RandomProblem random(seed);
    const Simulator simulator = Simulator::make(randomCluster(random)).value();
    const Report report = simulator.report().value();
    double all = HUGE_VAL, any = HUGE_VAL;
    schedule::Problem problem = simulator.problem();
    problem.mayExclude = true;
    schedule::forAllShares(problem, [&](const schedule::Shares& shares) {
      const double seconds = simulator.step(shares).value().seconds;
      any = std::min(any, seconds);
      if (std::find(shares.active.begin(), shares.active.end(), false) == shares.active.end())
        all = std::min(all, seconds);
    });
    if (report.policies[2].step) {
      EXPECT_NEAR(report.policies[2].step->seconds, all, kNear);
    } else {
      EXPECT_EQ(all, HUGE_VAL);
    }
    if (!report.policies[3].step) continue;
    EXPECT_NEAR(report.policies[3].step->seconds, any, kNear);
    excluding += report.leftOut.empty() ? 0 : 1;
    for (const Policy& policy : report.policies)
      if (policy.step)
        for (const RankStep& rank : policy.step->ranks)
          if (rank.active) {
            EXPECT_NEAR(rank.compute + rank.exposed + rank.idle, policy.step->seconds, kNear);
          }
  }
  EXPECT_GT(excluding, 20);
}

TEST(Simulator, BadClusters_NameRankAndField) {
  const auto faultOf = [](const auto& change) {
    Cluster cluster = clusterOf({rankOf("a", 0), rankOf("b", 0)});
    change(cluster);
    return Simulator::make(cluster).status().message();
  };
  EXPECT_THAT(faultOf([](Cluster& c) { c.ranks[1].perItem = -1; }),
              HasSubstr("rank 1 (b): per_item: expected seconds above 0"));
  EXPECT_THAT(faultOf([](Cluster& c) { c.network.bandwidth = 0; }),
              HasSubstr("links.network: expected a bandwidth above 0"));
  EXPECT_THAT(faultOf([](Cluster& c) { c.model.buckets = {}; }), HasSubstr("buckets: expected at least one"));
  EXPECT_THAT(faultOf([](Cluster& c) { c.ranks[0].quantum = 64; }),
              HasSubstr("rank 0 (a): floor and quantum"));
  EXPECT_THAT(faultOf([](Cluster& c) { c.ranks[0].staging.latency = -1; }), HasSubstr("staging"));
  const Simulator simulator = Simulator::make(clusterOf({rankOf("a", 0)})).value();
  EXPECT_THAT(simulator.step({{29}, {true}, 0}).status().message(),
              HasSubstr("expected a sum of 30, found 29"));
}

}  // namespace
}  // namespace kaitian::simulate
