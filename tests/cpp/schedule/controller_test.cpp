#include "kaitian/schedule/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

namespace kaitian::schedule {
namespace {

using ::testing::HasSubstr;

/// Ranks whose true cost is fixed + perItem x items, and what happens to them.
struct Cluster {
  struct Device {
    double fixed, perItem;
  };
  std::vector<Device> devices;
  std::int64_t batch = 256;
  std::function<double(int rank, std::int64_t step)> slowness = [](int, std::int64_t) { return 1.0; };
  double noise = 0.03, outliers = 0.01;

  double seconds(std::size_t rank, std::int64_t items, std::int64_t step, std::int64_t pieces = 1) const {
    return slowness(static_cast<int>(rank), step) * (devices[rank].fixed * static_cast<double>(pieces) +
                                                     devices[rank].perItem * static_cast<double>(items));
  }
  double oracle(std::int64_t step) const {
    Problem problem;
    problem.batch = batch;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      std::vector<double> table;
      for (std::int64_t b = 1; b <= batch; ++b) table.push_back(seconds(i, b, step));
      RankCost rank;
      rank.compute = CostTable::of(std::move(table)).value();
      rank.cap = batch;
      problem.ranks.push_back(rank);
    }
    return solve(problem).value().seconds;
  }
};

struct Outcome {
  Controller controller;
  std::vector<double> regret;  // [step] noise-free time / best possible time - 1
  double mean(std::int64_t from, std::int64_t to) const {
    return std::accumulate(regret.begin() + from, regret.begin() + to, 0.0) / static_cast<double>(to - from);
  }
};

ControllerOptions optionsFor(const Cluster& cluster, std::int64_t horizon) {
  ControllerOptions options;
  options.batch = cluster.batch;
  options.horizon = horizon;
  for (std::size_t i = 0; i < cluster.devices.size(); ++i)
    options.ranks.push_back({1, cluster.batch, 1, true, 0});
  return options;
}

Outcome simulate(const Cluster& cluster, Controller controller, std::int64_t steps, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> noise(0, 1);
  std::uniform_real_distribution<double> part(0, 1);
  std::vector<double> regret;
  for (std::int64_t step = 0; step < steps; ++step) {
    const Entry entry = controller.log().at(step);
    std::vector<Measured> measured;
    double longest = 0, exact = 0;
    for (std::size_t i = 0; i < cluster.devices.size(); ++i) {
      const double time =
          cluster.seconds(i, std::max<std::int64_t>(entry.shares[i], 1), step, entry.microBatches[i]);
      exact = std::max(exact, time);
      measured.push_back(
          {time * std::exp(cluster.noise * noise(random)) * (part(random) < cluster.outliers ? 3 : 1), 0,
           true});
      longest = std::max(longest, measured.back().compute);
    }
    regret.push_back(exact / cluster.oracle(step) - 1);
    controller.observe(step, measured, longest + 0.001);
  }
  return {std::move(controller), std::move(regret)};
}

Outcome simulate(const Cluster& cluster, std::int64_t steps, unsigned seed, std::int64_t horizon = 4) {
  return simulate(cluster, Controller::make(optionsFor(cluster, horizon)).value(), steps, seed);
}

const std::vector<Cluster::Device> kUnlike{{0.010, 0.0010}, {0.020, 0.0005}, {0.005, 0.004}, {0.040, 0.0002}};

TEST(Controller, WhenNothingChanges_FindsTheBestShares) {
  const Cluster cluster{kUnlike};
  for (unsigned seed = 0; seed < 10; ++seed) {
    const Outcome run = simulate(cluster, 400, seed);
    EXPECT_FALSE(run.controller.learning());
    EXPECT_LT(run.mean(60, 400), 0.02) << "seed " << seed;
    EXPECT_LT(run.controller.log().entries().size(), 16U) << "flaps";
  }
}

TEST(Controller, WhenNothingChangesForLong_TakesSmallGainsTooAndSettles) {
  constexpr unsigned kSeeds = 20;
  double regret = 0;
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    const Outcome run = simulate({.devices = kUnlike}, 1500, seed);
    regret += run.mean(500, 1500) / kSeeds;
    EXPECT_LT(run.controller.log().entries().size(), 20U) << "flaps, seed " << seed;
  }
  EXPECT_LT(regret, 0.0075);  // 0.009 if only gains of 3 % were taken
}

TEST(Controller, WhenStepsAreMissing_LearnsFromTheOthers) {
  const Cluster cluster{kUnlike};
  Controller controller = Controller::make(optionsFor(cluster, 4)).value();
  for (std::int64_t step = 0; step < 200; ++step) {
    const Entry entry = controller.log().at(step);
    std::vector<Measured> measured;
    for (std::size_t i = 0; i < cluster.devices.size(); ++i)
      measured.push_back({cluster.seconds(i, entry.shares[i], step), 0, step % 3 != 0});
    controller.observe(step, measured, 0.1);
  }
  EXPECT_FALSE(controller.learning()) << "an epoch of three steps has no three that count in a row";
}

TEST(Controller, WhenResumedWithARankLeftOutAndNothingKnown_MeasuresAllAgain) {
  const Cluster cluster{kUnlike};
  for (const std::int64_t out : {kLeftOut, kProbed}) {
    ControllerOptions options = optionsFor(cluster, 4);
    options.ranks[2].mayLeave = true;
    Controller controller = Controller::make(options).value();
    ASSERT_TRUE(controller
                    .resume({{-1, 0, {64, 64, 64, 64}, {1, 1, 1, 1}, 0, ""},
                             {40, 50, {86, 85, 0, 85}, {1, 1, out, 1}, 0, ""}},
                            60)
                    .ok());
    controller.setHorizon(6);  // a loader is made
    controller.observe(58, std::vector<Measured>(4), 0);
    const std::vector<Entry> entries = controller.takeEntries();
    ASSERT_EQ(entries.size(), 1U);
    EXPECT_EQ(entries[0].start, 65);
    EXPECT_EQ(entries[0].active(), std::vector<bool>(4, true));
    for (std::int64_t step = 60; step < 120; ++step) {
      const Entry entry = controller.log().at(step);
      std::vector<Measured> measured;
      for (std::size_t i = 0; i < 4; ++i)
        measured.push_back(
            {cluster.seconds(i, std::max<std::int64_t>(1, entry.shares[i]), step), 0, entry.active(i)});
      controller.observe(step, measured, 0.1);
    }
    EXPECT_FALSE(controller.learning());
  }
}

TEST(Controller, WhenManyCapsChangeAtOnce_TellsTheLastPlanOnly) {
  ControllerOptions options;
  options.batch = 256;
  options.horizon = 4;
  options.ranks.assign(16, {1, 256, 1, true, 0});
  Controller controller = Controller::make(options).value();
  EXPECT_EQ(controller.takeEntries().size(), 1U);
  for (int rank = 0; rank < 16; ++rank) ASSERT_TRUE(controller.limit(0, rank, 8, "memory").ok());
  EXPECT_EQ(controller.takeEntries().size(), 1U);
}

TEST(Controller, WhenADeviceIsThrottled_FollowsWithLittleRegret) {
  Cluster cluster{kUnlike};
  cluster.slowness = [](int rank, std::int64_t step) {
    if (rank == 3 && step >= 500 && step < 1000) return 1.8;
    return rank == 0 && step >= 1200 ? 1.67 : 1.0;
  };
  double after = 0;
  for (unsigned seed = 0; seed < 10; ++seed) {
    Outcome run = simulate(cluster, 1600, seed);
    EXPECT_LT(run.mean(60, 1600), 0.03) << "seed " << seed;
    after += run.mean(500 + 4 + 15, 600) / 10;
    const std::vector<Event> events = run.controller.takeEvents();
    const auto throttled =
        std::find_if(events.begin(), events.end(), [](const Event& event) { return event.step >= 500; });
    ASSERT_NE(throttled, events.end());
    EXPECT_EQ(throttled->rank, 3);
    EXPECT_EQ(throttled->kind, "slowed");
    EXPECT_NEAR(throttled->factor, 1 / 1.8, 0.1);
    EXPECT_LE(throttled->step, 506);
    EXPECT_LT(throttled - events.begin(), 4) << "changes that were none";
    EXPECT_TRUE(run.controller.takeEvents().empty());
  }
  EXPECT_LT(after, 0.03) << "reaction";
}

TEST(Controller, SaysWhyTheSharesChange) {
  Cluster cluster{kUnlike};
  cluster.slowness = [](int rank, std::int64_t step) { return rank == 3 && step >= 200 ? 2.0 : 1.0; };
  const Outcome run = simulate(cluster, 300, 1);
  EXPECT_THAT(run.controller.log().at(212).reason, HasSubstr("rank 3 slowed to 0.5"));
  EXPECT_THAT(run.controller.log().at(0).reason, HasSubstr("even shares"));
}

TEST(Controller, DecidesNoEarlierThanTheHorizonAllows) {
  const Outcome run = simulate(Cluster{kUnlike}, 300, 3, 7);
  for (const Entry& entry : run.controller.log().entries())
    EXPECT_TRUE(entry.decided < 0 || entry.start >= entry.decided + 8);
}

TEST(Controller, WithAProfile_BeginsWithTheBestShares) {
  const Cluster cluster{kUnlike};
  const Outcome first = simulate(cluster, 200, 1);
  ControllerOptions options = optionsFor(cluster, 4);
  for (const RankModel& rank : first.controller.ranks()) options.profile.push_back(rank.samples());
  const Outcome second = simulate(cluster, Controller::make(options).value(), 100, 2);
  EXPECT_LT(second.mean(0, 100), 0.03);
  EXPECT_FALSE(second.controller.learning());
}

TEST(Controller, WhenMemoryIsSmall_CutsSharesIntoMicroBatches) {
  Cluster cluster{{{0.001, 0.0001}, {0.001, 0.0010}}};
  ControllerOptions options = optionsFor(cluster, 1);
  options.ranks[0].microCap = 32;
  const Outcome run = simulate(cluster, Controller::make(options).value(), 200, 1);
  const Entry& last = run.controller.log().entries().back();
  EXPECT_GT(last.shares[0], 200);
  EXPECT_EQ(last.microBatches[0], (last.shares[0] + 31) / 32);
  EXPECT_EQ(last.microBatches[1], 1);
}

TEST(Controller, WhenMemoryRunsOut_PlansWithinTheNewCap) {
  const Cluster cluster{kUnlike};
  for (const std::int64_t steps : {3, 10, 200}) {
    ControllerOptions options = optionsFor(cluster, 2);
    for (RankLimits& limits : options.ranks) limits.accumulates = false;
    Controller controller = simulate(cluster, Controller::make(options).value(), steps, 1).controller;
    ASSERT_TRUE(controller.limit(steps, 3, 40).ok());
    EXPECT_LE(controller.log().at(steps + 3).shares[3], 40) << steps;
    for (const Entry& entry : controller.log().entries())
      EXPECT_TRUE(entry.start <= steps + 2 || entry.shares[3] <= 40);
    EXPECT_EQ(controller.takeEvents().back().kind, "cap");
    EXPECT_EQ(controller.predict({0, 0, 0, 256}), 0) << "beyond the cap";
    const Outcome run = simulate(cluster, controller, 100, 2);
    for (const Entry& entry : run.controller.log().entries())
      EXPECT_TRUE(entry.start <= steps + 2 || entry.shares[3] <= 40);
    EXPECT_EQ(controller.limit(steps, 3, 0).code(), Code::resource);
  }
}

TEST(Controller, WhenAClockJumpsOrARankSkips_KeepsItsShares) {
  const Cluster cluster{kUnlike};
  Outcome run = simulate(cluster, 200, 1);
  const std::vector<std::int64_t> shares = run.controller.log().at(1000).shares;
  std::vector<Measured> odd(4, Measured{0.1, 0, true});
  odd[0] = {-5, 0, true};
  odd[1] = {1e9, 0, true};
  odd[2] = {std::nan(""), std::nan(""), true};
  odd[3].counts = false;
  for (int i = 0; i < 2; ++i) run.controller.observe(200 + i, odd, -3);
  odd[1].counts = false;
  run.controller.observe(202, odd, std::nan(""));
  EXPECT_EQ(run.controller.log().at(1000).shares, shares);
}

TEST(Controller, WhenOptionsAreBad_NamesThem) {
  ControllerOptions options;
  EXPECT_THAT(Controller::make(options).status().message(),
              HasSubstr("global batch: expected >= 1, found 0"));
  options.batch = 2;
  EXPECT_THAT(Controller::make(options).status().message(), HasSubstr("ranks: expected at least one"));
  options.ranks.assign(3, {2, 1, 1, true, 0});
  EXPECT_THAT(Controller::make(options).status().message(),
              HasSubstr("rank 0: expected 1 <= floor <= micro-batch cap"));
  options.ranks.assign(3, {2, 2, 1, true, 0});
  EXPECT_TRUE(Controller::make(options).ok());  // one rank works, two have nothing
  options.batch = 1;
  EXPECT_EQ(Controller::make(options).status().code(), Code::resource);
  options.ranks.assign(3, {1, 4, 1, false, 0});
  options.batch = 13;
  EXPECT_EQ(Controller::make(options).status().code(), Code::resource);
  options.batch = 12;
  options.profile.resize(2);
  EXPECT_THAT(Controller::make(options).status().message(), HasSubstr("profile: expected 3 ranks, found 2"));
}

}  // namespace
}  // namespace kaitian::schedule
