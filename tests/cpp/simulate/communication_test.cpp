#include "kaitian/simulate/communication.h"

#include <gtest/gtest.h>

#include "simulate/clusters.h"

namespace kaitian::simulate {
namespace {

constexpr std::int64_t kUnit = 128 * 1024;  // host::Cutting::unitBytes
constexpr double kNear = 1e-12;

AllReduce timeOf(const Cluster& cluster, std::int64_t bytes) {
  return allReduce(cluster, allOf(cluster), bytes).value();
}

TEST(Communication, OfOneRank_IsNone) { EXPECT_EQ(timeOf(clusterOf({rankOf("a", 0)}), 1 << 20).seconds, 0); }

TEST(Communication, InOneIsland_IsARing) {
  const Cluster cluster = clusterOf({rankOf("a", 0), rankOf("a", 0), rankOf("a", 0), rankOf("a", 0)});
  EXPECT_NEAR(timeOf(cluster, 4'000'000).seconds, 6 * (3e-6 + 1e6 / 40e9), kNear);
}

TEST(Communication, OfAnIslandOverHosts_IsAsSlowAsTheNetwork) {
  const Cluster cluster = clusterOf({rankOf("a", 0), rankOf("a", 1)});
  EXPECT_NEAR(timeOf(cluster, 4'000'000).seconds, 2 * (50e-6 + 2e6 / 1e9), kNear);
}

TEST(Communication, OfFewBytes_IsOneHopEachWay) {
  const Cluster cluster = clusterOf({rankOf(kCpu, 0), rankOf(kCpu, 1)});
  EXPECT_NEAR(timeOf(cluster, 8000).seconds, 50e-6 + 8000 / 1e9, kNear);
}

TEST(Communication, OfDevices_IsStagedOutAndIn) {
  const Cluster cluster = clusterOf({rankOf("a", 0), rankOf("b", 0)});
  EXPECT_NEAR(timeOf(cluster, 8000).seconds, 2 * (8e-6 + 8000 / 10e9) + 2e-6 + 8000 / 4e9, kNear);
}

TEST(Communication, OfTwoUnits_IsFoldedByOneRankEach) {
  const Cluster cluster = clusterOf({rankOf(kCpu, 0), rankOf(kCpu, 1)});
  EXPECT_NEAR(timeOf(cluster, 2 * kUnit).seconds, 2 * (50e-6 + kUnit / 1e9), kNear);
}

/// Shards of 4 units; each rank sends 2 to be folded and 2 that it has folded, one behind the other.
TEST(Communication, OfTwoIslands_IsReducedStagedExchangedStagedGathered) {
  const Cluster cluster = clusterOf({rankOf("a", 0), rankOf("a", 0), rankOf("b", 0), rankOf("b", 0)});
  const double shard = 4 * kUnit;
  const AllReduce found = timeOf(cluster, 8 * kUnit);
  EXPECT_NEAR(found.seconds, 2 * (3e-6 + shard / 40e9) + 2 * (8e-6 + shard / 10e9) + 2e-6 + shard / 4e9,
              kNear);
  EXPECT_EQ(found.busiest.substr(0, 11), "host memory");
  EXPECT_NEAR(found.busy, shard / 4e9, kNear);
}

TEST(Communication, OfRanksOfOneHost_SharesItsNetwork) {
  const Cluster cluster = clusterOf({rankOf("a", 0), rankOf("a", 0), rankOf("b", 1), rankOf("b", 1)});
  const double shard = 4 * kUnit;
  const AllReduce found = timeOf(cluster, 8 * kUnit);
  EXPECT_NEAR(found.seconds, 2 * (3e-6 + shard / 40e9) + 2 * (8e-6 + shard / 10e9) + 50e-6 + 2 * shard / 1e9,
              kNear);
  EXPECT_EQ(found.busiest, "network of host 0, out");
}

TEST(Communication, OfManyChunks_KeepsTheSlowLinkBusy) {
  const Cluster cluster = clusterOf({rankOf("a", 0), rankOf("a", 0), rankOf("b", 1), rankOf("b", 1)});
  constexpr std::int64_t kBytes = 64 << 20;
  const double wire = kBytes / 1e9;  // contributions and results: half of the vector each way, twice
  EXPECT_GE(timeOf(cluster, kBytes).seconds, wire);
  EXPECT_LT(timeOf(cluster, kBytes).seconds, 1.1 * wire);
}

TEST(Communication, OfManyChunks_StagesOneWhileAnotherIsCarried) {
  Cluster cluster = clusterOf({rankOf("a", 0), rankOf("a", 0), rankOf("b", 1), rankOf("b", 1)});
  constexpr std::int64_t kBytes = 64 << 20;
  for (Rank& rank : cluster.ranks)
    rank.staging = {0.5e9, 0};  // half of the vector out takes as long as the wire
  EXPECT_LT(timeOf(cluster, kBytes).seconds, 1.3 * kBytes / 1e9);
}

/// At first 1 and 2 send to 0 and 0 sends to 1; then 2 sends to 1, 0 and 1 to 2: its second message ends
/// last.
TEST(Communication, OfThreeHosts_WaitsForTheReceiver) {
  const Cluster cluster = clusterOf({rankOf(kCpu, 0), rankOf(kCpu, 1), rankOf(kCpu, 2)});
  EXPECT_NEAR(timeOf(cluster, 4000).seconds, 50e-6 + 3 * 4000 / 1e9, kNear);
}

TEST(Communication, OfBuckets_IsTheirSumAndTheLastOne) {
  Cluster cluster = clusterOf({rankOf("a", 0), rankOf("b", 0)});
  cluster.model.buckets = {8000, 4'000'000, 4'000'000, 16'000};
  const Communication found = communicate(cluster, {0, 1}).value();
  EXPECT_NEAR(found.exposed.tail, timeOf(cluster, 16'000).seconds, kNear);
  EXPECT_NEAR(found.exposed.whole,
              timeOf(cluster, 8000).seconds + 2 * timeOf(cluster, 4'000'000).seconds + found.exposed.tail,
              kNear);
}

}  // namespace
}  // namespace kaitian::simulate
