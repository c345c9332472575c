// Every collective on every kind of layout, against its plain definition.
#include <gtest/gtest.h>

#include <algorithm>

#include "relay/call.h"

namespace kaitian::relay::test {
namespace {

using plan::Kind;

const char* const kLayouts[] = {"cpu,cpu", "a,a", "a,cpu", "a,b,a,cpu", "b,b,g,a,a", "g,cpu,cpu,cpu,b"};

std::vector<std::int64_t> blocks(std::int64_t count, int worldSize, int groups = 1) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(worldSize * groups), count);
}

/// Blocks of unlike sizes, some empty.
std::vector<std::int64_t> unequal(std::int64_t count, std::size_t n) {
  std::vector<std::int64_t> counts;
  for (std::size_t i = 0; i < n; ++i)
    counts.push_back(count * static_cast<std::int64_t>((i * 5 + 1) % 4) / 2);
  return counts;
}

std::vector<Case> everyKind(std::int64_t count, int w, DType dtype = DType::f32) {
  const auto pairs = static_cast<std::size_t>(w) * static_cast<std::size_t>(w);
  std::vector<Case> cases = {
      Case(Kind::allReduce, dtype, ReduceOp::sum, {count}),
      Case(Kind::reduce, dtype, ReduceOp::sum, {count}, w - 1),
      Case(Kind::broadcast, dtype, ReduceOp::none, {count}, w - 1),
      Case(Kind::allGather, dtype, ReduceOp::none, blocks(count, w)),
      Case(Kind::gather, dtype, ReduceOp::none, blocks(count, w), 0),
      Case(Kind::reduceScatter, dtype, ReduceOp::sum, blocks(count, w)),
      Case(Kind::scatter, dtype, ReduceOp::none, blocks(count, w), w - 1),
      Case(Kind::allToAll, dtype, ReduceOp::none, std::vector<std::int64_t>(pairs, count)),
      Case(Kind::barrier, DType::bytes, ReduceOp::none, {}),
  };
  for (std::size_t i = 0; i < cases.size(); ++i) cases[i].salt = static_cast<int>(i);
  return cases;
}

class EveryLayout : public testing::TestWithParam<const char*> {};

TEST_P(EveryLayout, WithAnySize_GivesWhatTheDefinitionSays) {
  const RelayShape shape = shapeOf(GetParam());
  std::vector<Case> cases;
  for (const std::int64_t count : {0, 1, 3, 63, 64, 500, 2501})
    for (auto& c : everyKind(count, shape.worldSize())) cases.push_back(c);
  runCases(shape, cases);
}

TEST_P(EveryLayout, WithUnequalBlocksAndLists_GivesWhatTheDefinitionSays) {
  const RelayShape shape = shapeOf(GetParam());
  const int w = shape.worldSize();
  const auto n = static_cast<std::size_t>(w);
  std::vector<Case> cases;
  for (const bool lists : {false, true}) {
    for (const std::int64_t count : {6, 700}) {
      cases.emplace_back(Kind::allGather, DType::i32, ReduceOp::none, unequal(count, n));
      cases.emplace_back(Kind::allGather, DType::i32, ReduceOp::none, unequal(count, 3 * n));
      cases.emplace_back(Kind::reduceScatter, DType::i32, ReduceOp::sum, unequal(count, n));
      cases.emplace_back(Kind::reduceScatter, DType::i32, ReduceOp::sum, unequal(count, 2 * n));
      cases.emplace_back(Kind::gather, DType::i32, ReduceOp::none, unequal(count, n), w - 1);
      cases.emplace_back(Kind::scatter, DType::i32, ReduceOp::none, unequal(count, n), 0);
      cases.emplace_back(Kind::allToAll, DType::i32, ReduceOp::none, unequal(count, n * n));
    }
    for (auto& c : cases) c.collective.lists = lists;
    runCases(shape, cases);
  }
}

TEST_P(EveryLayout, WithSplitSizes_SendsEachPairItsOwn) {
  const RelayShape shape = shapeOf(GetParam());
  const auto n = static_cast<std::size_t>(shape.worldSize());
  std::vector<Case> cases;
  for (const std::int64_t count : {0, 5, 900}) {
    cases.emplace_back(Kind::allToAll, DType::f64, ReduceOp::none, unequal(count, n * n));
    cases.back().splits = true;
  }
  runCases(shape, cases);
}

TEST_P(EveryLayout, WithCoalescedTensors_TreatsThemAsOneVector) {
  const RelayShape shape = shapeOf(GetParam());
  const std::vector<std::int64_t> counts = {1, 0, 700, 33, 64, 1200};
  runCases(shape, {Case(Kind::allReduce, DType::f32, ReduceOp::sum, counts),
                   Case(Kind::allReduce, DType::f32, ReduceOp::max, counts),
                   Case(Kind::broadcast, DType::f32, ReduceOp::none, counts, shape.worldSize() - 1),
                   Case(Kind::reduce, DType::f32, ReduceOp::sum, counts, 0)});
}

TEST_P(EveryLayout, InPlace_GivesTheSame) {
  const RelayShape shape = shapeOf(GetParam());
  std::vector<Case> cases;
  for (const std::int64_t count : {1, 40, 1500}) {
    for (const bool lists : {false, true}) {
      cases.emplace_back(Kind::allGather, DType::f32, ReduceOp::none, blocks(count, shape.worldSize()));
      cases.back().collective.lists = lists;
      cases.emplace_back(Kind::reduceScatter, DType::f32, ReduceOp::sum, blocks(count, shape.worldSize()));
      cases.back().collective.lists = lists;
    }
  }
  for (auto& c : cases) c.inPlace = true;
  runCases(shape, cases);
}

TEST_P(EveryLayout, WithEveryTypeAndOperation_IsExact) {
  const RelayShape shape = shapeOf(GetParam());
  std::vector<Case> cases;
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (const std::int64_t count : {5, 600}) {
      cases.emplace_back(Kind::broadcast, dtype, ReduceOp::none, std::vector<std::int64_t>{count}, 0);
      for (int o = 1; o < kReduceOpCount; ++o) {
        const auto op = static_cast<ReduceOp>(o);
        if (isDefined(op, dtype))
          cases.emplace_back(Kind::allReduce, dtype, op, std::vector<std::int64_t>{count});
      }
    }
  }
  runCases(shape, cases);
}

INSTANTIATE_TEST_SUITE_P(Layouts, EveryLayout, testing::ValuesIn(kLayouts), [](const auto& layout) {
  std::string name = layout.param;
  std::replace(name.begin(), name.end(), ',', '_');
  return name;
});

TEST(TwoHosts, WithIslandsAcrossThem_GiveWhatTheDefinitionSays) {
  RelayShape shape = shapeOf("a,b,a,cpu,b");
  shape.hosts = {0, 1, 1, 0, 0};
  std::vector<Case> cases;
  for (const std::int64_t count : {1, 64, 2501})
    for (auto& c : everyKind(count, shape.worldSize())) cases.push_back(c);
  runCases(shape, cases);
}

TEST(HostTensors, OfOneIslandInAMixedGroup_AreRelayed) {
  RelayShape shape = shapeOf("a,a,b,b,cpu");
  std::vector<Case> cases;
  for (auto& c : everyKind(900, shape.worldSize())) {
    c.onHost = {true, true, false, false, false};
    cases.push_back(c);
    c.onHost = {true, true, true, true, true};
    cases.push_back(c);
    c.onHost.clear();
    cases.push_back(c);
  }
  runCases(shape, cases);
}

TEST(ManyInFlight, WithoutWaiting_AreAllRight) {
  RelayShape shape = shapeOf("a,b,a,cpu");
  runRelay(shape, [](RelayRank& rank) {
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < 60; ++i) {
      Case c(Kind::allReduce, DType::f32, ReduceOp::sum, {1 + (i * 37) % 1500});
      c.salt = i;
      calls.push_back(std::make_unique<Call>(c, rank));
      calls.back()->submit(rank.group());
    }
    for (const auto& call : calls) EXPECT_EQ(call->check(), "");
  });
}

TEST(TwoGroups, OnTheSameDevices_RunAtTheSameTime) {
  RelayShape shape = shapeOf("a,a,b,cpu");
  shape.groups = 2;
  runRelay(shape, [](RelayRank& rank) {
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < 20; ++i) {
      Case c(i % 3 == 0 ? Kind::broadcast : Kind::allReduce, DType::f32,
             i % 3 == 0 ? ReduceOp::none : ReduceOp::sum, {1 + (i * 131) % 1500});
      c.salt = i;
      calls.push_back(std::make_unique<Call>(c, rank));
      calls.back()->submit(*rank.groups[static_cast<std::size_t>(i % 2)]);
    }
    for (const auto& call : calls) EXPECT_EQ(call->check(), "");
  });
}

TEST(SynchronousVendor, OnlyBlocksTheLaunchThread) {
  RelayShape shape = shapeOf("a,a,b,cpu,b");
  shape.vendor.claims.synchronous = true;
  runCases(shape, everyKind(1501, shape.worldSize()));
}

TEST(SlowDevice, InRandomOrder_GivesTheSame) {
  RelayShape shape = shapeOf("a,b,a,cpu,b");
  shape.device.slowest = std::chrono::microseconds(1500);
  shape.device.userDelay = std::chrono::microseconds(500);
  std::vector<Case> cases;
  for (const std::int64_t count : {10, 1501})
    for (auto& c : everyKind(count, shape.worldSize())) cases.push_back(c);
  runCases(shape, cases);
}

}  // namespace
}  // namespace kaitian::relay::test
