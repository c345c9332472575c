// Each wait of one queue of the device for another, left out alone: the data must go wrong, or the library
// must see its source overwritten. So none of them is superfluous, and none is missing on this device.
#include <gtest/gtest.h>

#include "relay/call.h"

namespace kaitian::relay::test {
namespace {

using plan::Kind;

struct Wait {
  const char* name;
  Queue consumer, producer;
  Case call;
  Queue slow;  // the queue of the event that is not waited for
  const char* devices = "a,cpu,a,b";
  std::int64_t chunkBytes = 2048;
  int slowTail = -1;  // rank whose library uses its source for long
};

/// Whether anything was wrong on any rank. Nothing here fails the test itself.
bool goesWrong(const Wait& wait, bool drop) {
  RelayShape shape = shapeOf(wait.devices, 256, wait.chunkBytes);
  shape.adjust = [&wait](int rank, FakeVendorOptions& options) {
    if (rank == wait.slowTail) options.tail = std::chrono::milliseconds(700);
  };
  shape.device.delay[static_cast<std::size_t>(wait.slow)] = std::chrono::milliseconds(30);
  std::atomic<bool> wrong{false};
  runRelay(shape, [&](RelayRank& rank) {
    // Communicators are made before, so that they do not hide what is late.
    Call first(Case(Kind::allReduce, DType::f32, ReduceOp::sum, {1024}), rank);
    first.submit(rank.group());
    EXPECT_EQ(first.check(), "");
    if (drop && rank.device) rank.device->dropWaits(wait.consumer, wait.producer);
    Call call(wait.call, rank);
    call.submit(rank.group());
    if (!call.check().empty()) wrong = true;
    if (rank.device && !rank.device->faults().take().empty()) wrong = true;
  });
  return wrong;
}

class EveryWait : public testing::TestWithParam<Wait> {};

TEST_P(EveryWait, WhenLeftOut_GivesWrongData) {
  EXPECT_FALSE(goesWrong(GetParam(), false)) << "without damage";
  EXPECT_TRUE(goesWrong(GetParam(), true)) << "the wait could be deleted and nothing would notice";
}

const Case kLargeSum(Kind::allReduce, DType::f32, ReduceOp::sum, {512});
const Case kSmallSum(Kind::allReduce, DType::f32, ReduceOp::sum, {16});
const Case kSmallBroadcast(Kind::broadcast, DType::f32, ReduceOp::none, {16}, 1);

/// Blocks larger than the units of the exchange, in one chunk: rank 1 takes its block from the shard that
/// rank 0 gives, while its own library still reads the block: in place. What rank 1 gives comes behind it.
Case reduceScatterInPlace() {
  Case c(Kind::reduceScatter, DType::f32, ReduceOp::sum, std::vector<std::int64_t>(4, 65536));
  c.inPlace = true;
  return c;
}

INSTANTIATE_TEST_SUITE_P(
    Waits, EveryWait,
    testing::Values(Wait{"caller_before_vendor", Queue::vendor, Queue::user, kLargeSum, Queue::user},
                    Wait{"caller_before_out", Queue::out, Queue::user, kSmallSum, Queue::user},
                    Wait{"caller_before_in", Queue::in, Queue::user, kSmallBroadcast, Queue::user},
                    Wait{"pre_before_out", Queue::out, Queue::vendor, kLargeSum, Queue::vendor},
                    Wait{"in_before_post", Queue::vendor, Queue::in, kLargeSum, Queue::in},
                    Wait{"pre_before_in", Queue::in, Queue::vendor, reduceScatterInPlace(), Queue::vendor,
                         "a,a,cpu,b", std::int64_t{4} << 20, 1}),
    [](const auto& wait) { return std::string(wait.param.name); });

}  // namespace
}  // namespace kaitian::relay::test
