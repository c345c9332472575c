// The parts of the relay that stand alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "relay/completion.h"
#include "relay/fake_vendor.h"
#include "relay/lane.h"
#include "relay/monitor.h"
#include "relay/strategy.h"

namespace kaitian::relay::test {
namespace {

using plan::Kind;
using plan::Strategy;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Lane, WithTicketsServedOutOfTurn_RunsTasksInTheirOrder) {
  Lane lane;
  std::vector<int> order;
  std::latch ran(4);
  const auto first = lane.reserve(), second = lane.reserve();
  const auto task = [&](int i) {
    return [&, i] {
      order.push_back(i);
      ran.count_down();
    };
  };
  lane.add(second, task(3));
  lane.add(first, task(1));
  lane.close(second);
  EXPECT_FALSE(lane.launch(task(0), [&] { return task(4); })) << "the lane is not empty";
  lane.add(first, task(2));
  lane.close(first);
  ran.wait();
  EXPECT_THAT(order, ElementsAre(1, 2, 3, 4));
}

TEST(Lane, WhenEmpty_RunsOnTheCaller) {
  Lane lane;
  std::thread::id ranOn;
  EXPECT_TRUE(lane.launch([&] { ranOn = std::this_thread::get_id(); }, [] { return Lane::Task(); }));
  EXPECT_EQ(ranOn, std::this_thread::get_id());
  std::latch ran(1);
  const auto ticket = lane.reserve();
  const Lane::Task task = [&] {
    ranOn = std::this_thread::get_id();
    ran.count_down();
  };
  EXPECT_FALSE(lane.launch([] {}, [&] { return task; })) << "an earlier call has the lane";
  lane.close(ticket);
  ran.wait();
  EXPECT_NE(ranOn, std::this_thread::get_id());
}

TEST(CompletionPool, WhenACallbackWaitsForAnother_Grows) {
  CompletionPool pool;
  std::latch inner(1), outer(1);
  pool.run([&] {
    pool.run([&] { inner.count_down(); });
    CompletionPool::waits(true);
    inner.wait();
    CompletionPool::waits(false);
    outer.count_down();
  });
  outer.wait();
}

/// Runs what it is given on another thread, and returns when that has returned but not yet been dropped.
template <typename Run>
void expectIdleOnlyOnceDropped(const Run& run, const std::function<bool()>& idle) {
  EXPECT_TRUE(idle());
  std::latch ran(1), dropped(1);
  struct Held {
    std::latch& until;
    explicit Held(std::latch& latch) : until(latch) {}
    ~Held() { until.wait(); }
  };
  auto held = std::make_shared<Held>(dropped);
  run([&ran, held = std::move(held)] { ran.count_down(); });
  ran.wait();
  EXPECT_FALSE(idle()) << "what the task holds is not gone";
  dropped.count_down();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!idle() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_TRUE(idle());
}

TEST(Threads, UntilWhatTheyRanIsDropped_AreNotIdle) {
  using Task = std::function<void()>;
  CompletionPool pool;
  expectIdleOnlyOnceDropped([&](Task task) { pool.run(std::move(task)); }, [&] { return pool.idle(); });
  Monitor monitor;
  expectIdleOnlyOnceDropped([&](Task task) { monitor.run(std::move(task)); }, [&] { return monitor.idle(); });
  Lane lane;
  expectIdleOnlyOnceDropped([&](Task task) { lane.post(std::move(task)); }, [&] { return lane.idle(); });
  const auto inOrder = [&](Task task) {
    const auto ticket = lane.reserve();
    lane.add(ticket, std::move(task));
    lane.close(ticket);
  };
  expectIdleOnlyOnceDropped(inOrder, [&] { return lane.idle(); });
}

TEST(Capabilities, AsText_AreTheSameWhenReadBack) {
  Capabilities some = everything();
  some.synchronous = true;
  some.reduce[3] = 0x5a;
  const auto read = parseCapabilities(serialize(some));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read.value(), some);
  for (const char* bad : {"", "c1", "c2 1", "c1 0 0 0 0 0 0 0 0 0 0 0 0 0", "c1 g"})
    EXPECT_FALSE(parseCapabilities(bad).ok()) << bad;
}

TEST(Capabilities, OfTwoMembers_AreWhatBothCanDo) {
  Capabilities one = everything(), other = everything();
  one.reduce[2] = 0b0110;
  other.reduce[2] = 0b0011;
  one.move = 0b1100;
  other.move = 0b0101;
  other.pointToPoint = false;
  other.synchronous = true;
  for (const Capabilities& both : {common(one, other), common(other, one)}) {
    EXPECT_EQ(both.reduce[2], 0b0010U);
    EXPECT_EQ(both.reduce[1], everything().reduce[1]);
    EXPECT_EQ(both.move, 0b0100U);
    EXPECT_FALSE(both.pointToPoint);
    EXPECT_TRUE(both.synchronous) << "a caller may wait where one of them does";
  }
}

class Choice : public testing::Test {
 protected:
  Path path(const Work& work, std::vector<bool> onDevice = {true, false, true}) {
    return choose(work, layout, onDevice, capabilities, config);
  }
  const plan::Layout layout = plan::Layout::make({0, 0, 0, 0, 0}, {0, 0, 1, 2, 2});
  std::vector<Capabilities> capabilities{everything(), {}, everything()};
  GroupConfig config;
};
constexpr std::int64_t kLarge = 1 << 20;

TEST_F(Choice, ForLargeReductions_UsesTheVendorInIslandsOfSeveral) {
  EXPECT_THAT(path({Kind::allReduce, DType::f32, ReduceOp::sum, kLarge}).strategy,
              ElementsAre(Strategy::vendor, Strategy::relay, Strategy::vendor));
}

TEST_F(Choice, ForSmallOrDeterministicOnes_Relays) {
  EXPECT_THAT(path({Kind::allReduce, DType::f32, ReduceOp::sum, config.directBytes}).strategy,
              ElementsAre(Strategy::relay, Strategy::relay, Strategy::relay));
  config.deterministic = true;
  const Path chosen = path({Kind::allReduce, DType::f32, ReduceOp::sum, kLarge});
  EXPECT_EQ(chosen.strategy[0], Strategy::relay);
  EXPECT_THAT(chosen.reason, HasSubstr("deterministic"));
}

TEST_F(Choice, ForAveragesThatMayOverflow_Relays) {
  for (const DType dtype : {DType::f16, DType::i32, DType::c32})
    EXPECT_EQ(path({Kind::allReduce, dtype, ReduceOp::avg, kLarge}).strategy[0], Strategy::relay)
        << toString(dtype);
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64})
    EXPECT_EQ(path({Kind::allReduce, dtype, ReduceOp::avg, kLarge}).strategy[0], Strategy::vendor)
        << toString(dtype);
}

TEST_F(Choice, WithoutTheOperationOrOnHostTensors_RelaysThatIsland) {
  capabilities[2].reduce[static_cast<int>(ReduceOp::sum)] = 0;
  EXPECT_THAT(path({Kind::allReduce, DType::f32, ReduceOp::avg, kLarge}).strategy,
              ElementsAre(Strategy::vendor, Strategy::relay, Strategy::relay));
  EXPECT_THAT(path({Kind::allReduce, DType::f32, ReduceOp::max, kLarge}, {false, false, true}).strategy,
              ElementsAre(Strategy::relay, Strategy::relay, Strategy::vendor));
}

TEST_F(Choice, ForTypesThatOnlyMove_CarriesThemAsBytes) {
  capabilities[0].move = 1U << static_cast<int>(DType::u8);
  EXPECT_EQ(path({Kind::broadcast, DType::c128, ReduceOp::none, kLarge}).strategy[0], Strategy::vendor);
  capabilities[0].pointToPoint = false;
  EXPECT_EQ(path({Kind::allToAll, DType::f32, ReduceOp::none, kLarge}).strategy[0], Strategy::relay);
}

}  // namespace
}  // namespace kaitian::relay::test
