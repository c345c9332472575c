// Ranks that only slow the job are left out, and come back.
#include "kaitian/schedule/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "kaitian/schedule/controller.h"

namespace kaitian::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kBatch = 128;

/// Ranks that cost fixed + perItem x items, each an island of its own, and what the communication of those
/// who take part costs beside.
struct Cluster {
  struct Device {
    double fixed, perItem;
  };
  std::vector<Device> devices;
  std::function<double(const std::vector<bool>&)> tail = [](const auto&) { return 0.001; };
  std::function<double(std::size_t, std::int64_t)> slowness = [](std::size_t, std::int64_t) { return 1.0; };
  std::vector<bool> mayLeave = {};  // none: all
};

struct Outcome {
  Controller controller;
  std::vector<double> seconds;            // [step]
  std::vector<std::vector<bool>> active;  // [step]
  double mean(std::size_t from, std::size_t to) const {
    double sum = 0;
    for (std::size_t step = from; step < to; ++step) sum += seconds[step];
    return sum / static_cast<double>(to - from);
  }
  int stepsWithout(std::size_t rank) const {
    return static_cast<int>(
        std::count_if(active.begin(), active.end(), [rank](const auto& step) { return !step[rank]; }));
  }
};

Outcome simulate(const Cluster& cluster, std::int64_t steps, unsigned seed) {
  ControllerOptions options;
  options.batch = kBatch;
  options.horizon = 4;
  for (std::size_t i = 0; i < cluster.devices.size(); ++i)
    options.ranks.push_back(
        {1, kBatch, 1, true, static_cast<int>(i), cluster.mayLeave.empty() || cluster.mayLeave[i]});
  Outcome run{Controller::make(options).value(), {}, {}};
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(0, 0.02);
  for (std::int64_t step = 0; step < steps; ++step) {
    const Entry entry = run.controller.log().at(step);
    std::vector<Measured> measured;
    double longest = 0;
    for (std::size_t i = 0; i < cluster.devices.size(); ++i) {
      const auto items = static_cast<double>(std::max<std::int64_t>(entry.shares[i], 1));
      const double time = cluster.slowness(i, step) *
                          (cluster.devices[i].fixed + cluster.devices[i].perItem * items) *
                          std::exp(noise(random));
      const bool works = entry.microBatches[i] != kLeftOut;
      measured.push_back({works ? time : 0, 0, works});
      if (works) longest = std::max(longest, time);  // whoever is measured by itself is waited for too
    }
    const double seconds = longest + cluster.tail(entry.active());
    run.seconds.push_back(seconds);
    run.active.push_back(entry.active());
    run.controller.observe(step, measured, seconds);
  }
  return run;
}

TEST(Membership, ADeviceWhoseSmallestShareIsTooSlow_IsLeftOut) {
  const Cluster cluster{{{0.002, 0.0002}, {0.002, 0.0004}, {0.100, 0.01}}};
  Outcome run = simulate(cluster, 1000, 1);
  EXPECT_THAT(run.active.back(), ElementsAre(true, true, false));
  EXPECT_LT(run.mean(100, 1000), 1.03 * (0.001 + 0.002 + 0.0002 * 2 / 3 * kBatch))
      << "with what measuring it costs";
  const auto events = run.controller.takeEvents();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.front().kind, "excluded");
  EXPECT_EQ(events.front().rank, 2);
  const auto& entries = run.controller.log().entries();
  EXPECT_TRUE(std::any_of(entries.begin(), entries.end(), [](const Entry& entry) {
    return entry.reason.find("rank 2 is left out") != std::string::npos;
  }));
}

TEST(Membership, WhenItRecovers_ComesBack) {
  Cluster cluster{{{0.002, 0.0002}, {0.002, 0.0004}, {0.002, 0.0003}}};
  cluster.slowness = [](std::size_t rank, std::int64_t step) {
    return rank == 2 && step >= 200 && step < 1000 ? 30.0 : 1.0;
  };
  const Outcome run = simulate(cluster, 3000, 2);
  EXPECT_TRUE(run.active[150][2]);
  EXPECT_FALSE(run.active[500][2]);
  EXPECT_TRUE(run.active.back()[2]);
  EXPECT_EQ(run.active[500].size(), 3U);
  const auto back =
      std::find_if(run.active.begin() + 1000, run.active.end(), [](const auto& step) { return step[2]; });
  EXPECT_LT(back - run.active.begin(), 1000 + 2000);
  EXPECT_THAT(run.controller.log().at(back - run.active.begin()).reason,
              HasSubstr("rank 2 takes part again"));
}

TEST(Membership, MeasuringWhoIsLeftOut_CostsLittle) {
  for (const double slow : {0.03, 0.1, 0.5}) {
    const Cluster cluster{{{0.002, 0.0002}, {slow, 0.01}}};
    const Outcome run = simulate(cluster, 6000, 3);
    const auto& entries = run.controller.log().entries();
    const auto probes = std::count_if(entries.begin(), entries.end(),
                                      [](const Entry& entry) { return entry.microBatches[1] == kProbed; });
    EXPECT_GE(probes, 1) << slow;
    EXPECT_LT(run.mean(100, 6000), 1.012 * (0.001 + 0.002 + 0.0002 * kBatch)) << slow;
    for (std::size_t i = 0; i + 1 < entries.size(); ++i)
      EXPECT_TRUE(entries[i].microBatches[1] != kProbed || entries[i + 1].start == entries[i].start + 1);
  }
}

TEST(Membership, WhenOnlyTheLinkIsSlow_ATrialFindsOut) {
  Cluster cluster{{{0.002, 0.0002}, {0.002, 0.0002}, {0.002, 0.0010}}};
  cluster.tail = [](const std::vector<bool>& active) { return active[2] ? 0.030 : 0.001; };
  const Outcome run = simulate(cluster, 600, 4);
  EXPECT_FALSE(run.active.back()[2]);
  EXPECT_LT(run.mean(300, 600), 1.03 * (0.001 + 0.002 + 0.0002 * kBatch / 2));
}

TEST(Membership, ATrialThatDoesNotHelp_IsTakenBackAndNotRepeated) {
  Cluster cluster{{{0.002, 0.0002}, {0.002, 0.0002}, {0.002, 0.0010}}};
  cluster.tail = [](const std::vector<bool>&) { return 0.030; };  // whoever takes part
  const Outcome run = simulate(cluster, 1500, 5);
  EXPECT_THAT(run.active.back(), ElementsAre(true, true, true));
  EXPECT_LT(run.stepsWithout(0) + run.stepsWithout(1) + run.stepsWithout(2), 150);
}

TEST(Membership, OneIslandAlone_IsFoundThoughNoPairIsBetter) {
  Cluster cluster{{{0.002, 0.0002}, {0.002, 0.0004}, {0.002, 0.0004}}};
  cluster.tail = [](const std::vector<bool>& active) {
    return std::count(active.begin(), active.end(), true) > 1 ? 0.040 : 0.0;
  };
  const Outcome run = simulate(cluster, 600, 6);
  EXPECT_THAT(run.active.back(), ElementsAre(true, false, false));
}

TEST(Membership, WhoMayNotLeave_Stays) {
  Cluster cluster{{{0.100, 0.01}, {0.002, 0.0002}, {0.100, 0.01}}};
  cluster.mayLeave = {false, true, true};
  const Outcome run = simulate(cluster, 300, 7);
  EXPECT_EQ(run.stepsWithout(0), 0);
  cluster.mayLeave = {false, false, false};
  const Outcome all = simulate(cluster, 300, 7);
  EXPECT_EQ(all.stepsWithout(0) + all.stepsWithout(1) + all.stepsWithout(2), 0);
}

TEST(Membership, WhatWasTriedLongAgo_IsForgotten) {
  Constants constants;
  constants.remembered = 100;
  std::vector<RankLimits> ranks(3);
  for (int i = 0; i < 3; ++i) ranks[static_cast<std::size_t>(i)].island = i;
  ranks[1].mayLeave = true;
  Membership membership(ranks, constants);
  const std::vector<bool> all{true, true, true}, two{true, false, true};
  membership.record(10, all, 0.5);
  membership.record(20, two, 0.4);
  EXPECT_EQ(membership.exposed(30, all)[7].tail, 0.5);
  EXPECT_EQ(membership.exposed(30, all)[5].tail, 0.4);
  EXPECT_EQ(membership.exposed(30, all)[3].tail, 0) << "one island less, not tried";
  EXPECT_EQ(membership.exposed(30, all)[2].tail, 0) << "one island alone";
  membership.record(120, all, 0.5);
  EXPECT_EQ(membership.exposed(121, all)[5].tail, 0) << "tried 101 steps ago";
  ranks[1].mayLeave = false;
  Membership fixed(ranks, constants);
  fixed.record(10, all, 0.5);
  EXPECT_EQ(fixed.exposed(20, all).size(), 1U);
  EXPECT_EQ(fixed.exposed(20, all)[0].tail, 0.5);
}

}  // namespace
}  // namespace kaitian::schedule
