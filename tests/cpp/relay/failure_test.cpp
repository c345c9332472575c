// What happens when a rank, a library or a device does not do what it should.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "kaitian/core/log.h"
#include "relay/call.h"

namespace kaitian::relay::test {
namespace {

using plan::Kind;
using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

Case sum(std::int64_t count) { return Case(Kind::allReduce, DType::f32, ReduceOp::sum, {count}); }

Status outcome(const OperationRef& operation) {
  if (!operation->wait(host::Clock::now() + std::chrono::seconds(30)))
    return {Code::internal, "not finished"};
  return operation->status();
}

/// A shape whose ranks wait for each other before they leave, so that none is lost while others still look.
RelayShape failing(const std::string& devices) {
  RelayShape shape = shapeOf(devices);
  shape.shutdown = false;
  return shape;
}

TEST(Mismatch, OfCounts_IsTheSameErrorOnAllRanks) {
  const RelayShape shape = failing("a,b,a,cpu");
  std::latch left(shape.worldSize());
  runRelay(shape, [&](RelayRank& rank) {
    Call call(sum(rank.rank == 3 ? 90 : 100), rank);
    const Status status = outcome(call.submit(rank.group()));
    EXPECT_EQ(status.code(), Code::mismatch);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 3 called all_reduce #0 float32[90] SUM"),
                                        HasSubstr("rank 0 called all_reduce #0 float32[100] SUM")));
    left.arrive_and_wait();
  });
}

TEST(Mismatch, InsideAnIsland_EndsTheVendorCall) {
  const RelayShape shape = failing("a,a,cpu");
  std::latch left(shape.worldSize());
  runRelay(shape, [&](RelayRank& rank) {
    Call first(sum(1024), rank);
    first.submit(rank.group());
    EXPECT_EQ(first.check(), "");
    const Case other(Kind::broadcast, DType::f32, ReduceOp::none, {1024}, 0);
    Call call(rank.rank == 1 ? other : sum(1024), rank);
    EXPECT_EQ(outcome(call.submit(rank.group())).code(), Code::mismatch);
    left.arrive_and_wait();
    if (rank.device) rank.device->faults().take();  // the library has seen the difference as well
  });
}

TEST(Timeout, WhenARankDoesNotCall_NamesIt) {
  const RelayShape shape = failing("a,b,a,cpu");
  std::latch left(shape.worldSize());
  runRelay(shape, [&](RelayRank& rank) {
    Call first(sum(10), rank);
    first.submit(rank.group());
    EXPECT_EQ(first.check(), "");
    if (rank.rank != 2) {
      Call call(sum(10), rank);
      const Status status = outcome(call.submit(rank.group(), milliseconds(400)));
      EXPECT_EQ(status.code(), Code::timeout);
      EXPECT_EQ(status.culprit(), 2);
      EXPECT_THAT(status.message(),
                  AllOf(HasSubstr("all_reduce #1 float32[10] SUM in group \"g0\""),
                        HasSubstr("rank 2 (host h0, pid 102, a) has called 1 operations, not this one")));
      Call later(sum(10), rank);
      const auto operation = later.submit(rank.group());
      EXPECT_TRUE(operation->finished());
      EXPECT_EQ(operation->status().message(), status.message());
    }
    left.arrive_and_wait();
  });
}

TEST(Timeout, WhileOperationsBeforeItFinish_DoesNotPass) {
  constexpr milliseconds kStep{500}, kTimeout{1'500};
  constexpr int kCalls = 4;  // the last one finishes after its own deadline
  runRelay(shapeOf("cpu,cpu"), [&](RelayRank& rank) {
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < kCalls; ++i) {
      if (rank.rank == 1) std::this_thread::sleep_for(kStep);
      calls.push_back(std::make_unique<Call>(sum(10), rank));
      calls.back()->submit(rank.group(), kTimeout);
    }
    for (const auto& call : calls) EXPECT_EQ(call->check(), "");
  });
}

TEST(Timeout, OfAReceive_NamesThePeer) {
  const RelayShape shape = failing("a,cpu");
  std::latch left(shape.worldSize());
  runRelay(shape, [&](RelayRank& rank) {
    if (rank.rank == 1) {
      std::byte data[8];
      MessageRequest request;
      request.peer = 0;
      request.buffer = {data, 8};
      request.timeout = milliseconds(300);
      const Status status = outcome(rank.group().submit(std::move(request)));
      EXPECT_EQ(status.code(), Code::timeout);
      EXPECT_THAT(status.message(), AllOf(HasSubstr("receive of 8 bytes from rank 0"), HasSubstr("pid 100")));
    }
    left.arrive_and_wait();
  });
}

TEST(Death, InTheMiddle_EndsAllOthers) {
  const RelayShape shape = failing("a,b,a,cpu");
  std::latch began(shape.worldSize());
  runRelay(shape, [&](RelayRank& rank) {
    Call first(sum(2000), rank);
    EXPECT_TRUE(outcome(first.submit(rank.group())).ok());
    began.arrive_and_wait();
    if (rank.rank == 3) return;  // goes with an operation of the others in flight
    Call call(sum(2000), rank);
    EXPECT_FALSE(outcome(call.submit(rank.group())).ok());
    EXPECT_EQ(first.check(), "") << "what was reported as good stays good";
  });
}

TEST(VendorHang, AtACall_IsAbortedAtTheDeadline) {
  RelayShape shape = failing("a,a,cpu");
  shape.adjust = [](int rank, FakeVendorOptions& options) {
    if (rank == 1) options.hangAt = 1;
  };
  for (const bool synchronous : {false, true}) {
    shape.vendor.claims.synchronous = synchronous;
    std::latch left(shape.worldSize());
    runRelay(shape, [&](RelayRank& rank) {
      Call call(sum(1024), rank);
      const Status status = outcome(call.submit(rank.group(), milliseconds(500)));
      EXPECT_EQ(status.code(), Code::timeout) << status.toString();
      left.arrive_and_wait();
    });
  }
}

TEST(VendorConnect, ThatFails_IsTheSameErrorOnAllRanks) {
  RelayShape shape = failing("a,a,cpu");
  shape.adjust = [](int rank, FakeVendorOptions& options) { options.failConnect = rank == 1; };
  std::latch left(shape.worldSize());
  runRelay(shape, [&](RelayRank& rank) {
    Call call(sum(1024), rank);
    const Status status = outcome(call.submit(rank.group()));
    EXPECT_EQ(status.code(), Code::vendor);
    EXPECT_THAT(status.message(), HasSubstr("no route to the other members"));
    left.arrive_and_wait();
  });
}

TEST(VendorConnect, ThatOneMemberDoesNotBegin_NamesThatMember) {
  const RelayShape shape = failing("a,a,cpu");
  std::latch left(shape.worldSize());
  runRelay(shape, [&](RelayRank& rank) {
    if (rank.rank == 0) {
      const Status status = rank.group().activate(milliseconds(300)).status();
      EXPECT_EQ(status.code(), Code::timeout);
      EXPECT_EQ(status.culprit(), 1);
      EXPECT_THAT(status.message(), HasSubstr("in time: rank 1 (host h0, pid 101, a) has not made its own"));
    }
    left.arrive_and_wait();
  });
}

TEST(VendorLies, AreFoundOnceAndRelayed) {
  RelayShape shape = shapeOf("a,a,cpu,b,b");
  shape.config.verify = {true, false, true};
  shape.adjust = [](int rank, FakeVendorOptions& options) {
    if (rank < 2) options.lies = {{ReduceOp::sum, DType::f32}};
  };
  std::mutex mutex;
  std::vector<std::string> warnings;
  core::Log::process().setSink([&](core::LogLevel, std::string_view line) {
    std::lock_guard<std::mutex> lock(mutex);
    warnings.emplace_back(line);
  });
  runRelay(shape, [&](RelayRank& rank) {
    for (const DType dtype : {DType::f32, DType::i32}) {
      Call call(Case(Kind::allReduce, dtype, ReduceOp::sum, {1024}), rank);
      call.submit(rank.group());
      EXPECT_EQ(call.check(), "");
    }
    const auto capabilities = rank.group().activate(std::chrono::seconds(5));
    ASSERT_TRUE(capabilities.ok());
    EXPECT_FALSE(capabilities.value()[0].canReduce(ReduceOp::sum, DType::f32));
    EXPECT_TRUE(capabilities.value()[2].canReduce(ReduceOp::sum, DType::f32));
  });
  core::Log::process().setSink({});
  ASSERT_EQ(warnings.size(), 2U) << "one for each member";
  EXPECT_THAT(warnings[0], AllOf(HasSubstr("fakeccl"), HasSubstr("SUM float32")));
}

TEST(VendorLies, AboutFactorsOfMembers_AreFound) {
  RelayShape shape = shapeOf("a,a,cpu");
  shape.config.verify = {true, false};
  shape.vendor.oneFactor = true;
  core::Log::process().setSink([](core::LogLevel, std::string_view) {});
  runRelay(shape, [&](RelayRank& rank) {
    const auto capabilities = rank.group().activate(std::chrono::seconds(20));
    ASSERT_TRUE(capabilities.ok());
    EXPECT_FALSE(capabilities.value()[0].canReduce(ReduceOp::premulSum, DType::f32));
    EXPECT_TRUE(capabilities.value()[0].canReduce(ReduceOp::sum, DType::f32));
  });
  core::Log::process().setSink({});
}

TEST(VendorGaps, OfOneMember_HoldForItsIsland) {
  for (const int lacking : {0, 2}) {
    RelayShape shape = shapeOf("a,cpu,a");
    shape.adjust = [lacking](int rank, FakeVendorOptions& options) {
      if (rank == lacking) options.claims.reduce[static_cast<int>(ReduceOp::sum)] = 0;
    };
    runCases(shape, {sum(1024), Case(Kind::allReduce, DType::f32, ReduceOp::max, {1024})});
    runRelay(shape, [](RelayRank& rank) {
      const auto capabilities = rank.group().activate(std::chrono::seconds(20));
      ASSERT_TRUE(capabilities.ok());
      EXPECT_FALSE(capabilities.value()[0].canReduce(ReduceOp::sum, DType::f32));
      EXPECT_TRUE(capabilities.value()[0].canReduce(ReduceOp::max, DType::f32));
    });
  }
}

TEST(Abort, WithOperationsInFlight_EndsThemEverywhere) {
  const RelayShape shape = failing("a,b,a,cpu");
  std::latch left(shape.worldSize());
  runRelay(shape, [&](RelayRank& rank) {
    if (rank.rank == 1) {
      rank.group().abort("enough");
      EXPECT_EQ(rank.group().status().code(), Code::aborted);
    } else {
      Call call(sum(1024), rank);
      const Status status = outcome(call.submit(rank.group()));
      EXPECT_EQ(status.code(), Code::aborted);
      EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 1 (host h0, pid 101, b)"), HasSubstr("enough")));
    }
    left.arrive_and_wait();
  });
}

TEST(Leave, WithAnUnmatchedReceive_NamesItAndTheRankWithoutDelay) {
  RelayShape shape = failing("a,cpu");
  shape.config.globalRanks = {5, 7};
  std::latch left(shape.worldSize());
  runRelay(shape, [&](RelayRank& rank) {
    Call call(sum(1024), rank);
    std::byte data[8];
    MessageRequest request;
    request.peer = 0;
    request.buffer = {data, 8};
    const auto begun = host::Clock::now();
    const auto operation =
        rank.rank == 0 ? call.submit(rank.group()) : rank.group().submit(std::move(request));
    if (rank.rank == 1) {
      EXPECT_EQ(rank.group().leave(milliseconds(100)).code(), Code::peerLost);
    }
    const Status status = outcome(operation);
    EXPECT_LT(host::Clock::now() - begun, std::chrono::seconds(2)) << "no heartbeat is waited for";
    EXPECT_EQ(status.code(), Code::peerLost);
    EXPECT_EQ(status.culprit(), 7);
    EXPECT_THAT(status.message(),
                HasSubstr("the process of rank 7 (host h0, pid 101, cpu) ends while receive of "
                          "8 bytes from rank 5, tag 0 was in flight in group \"g0\""));
    left.arrive_and_wait();
  });
}

TEST(Shutdown, WithAnUnmatchedReceive_FailsAtItsDeadline) {
  const RelayShape shape = failing("a,cpu");
  std::latch left(shape.worldSize());
  runRelay(shape, [&](RelayRank& rank) {
    if (rank.rank == 1) {
      std::byte data[8];
      MessageRequest request;
      request.peer = 0;
      request.buffer = {data, 8};
      const auto operation = rank.group().submit(std::move(request));
      EXPECT_EQ(rank.group().shutdown(milliseconds(300)).code(), Code::timeout);
      EXPECT_THAT(outcome(operation).message(),
                  HasSubstr("receive of 8 bytes from rank 0, tag 0 was still in flight; rank 1"));
    }
    left.arrive_and_wait();
  });
}

TEST(Shutdown, CalledTwice_IsTheSameAsOnce) {
  runRelay(shapeOf("a,a,cpu"), [](RelayRank& rank) {
    Call call(sum(1024), rank);
    call.submit(rank.group());
    EXPECT_EQ(call.check(), "");
    EXPECT_TRUE(rank.group().shutdown(std::chrono::seconds(10)).ok());
    EXPECT_TRUE(rank.group().shutdown(std::chrono::seconds(10)).ok());
    Call late(sum(1024), rank);
    EXPECT_EQ(outcome(late.submit(rank.group())).code(), Code::aborted);
  });
}

TEST(Shutdown, WhenOperationsStayInFlight_FailsAtItsDeadline) {
  const RelayShape shape = failing("cpu,cpu");
  std::latch left(shape.worldSize());
  runRelay(shape, [&](RelayRank& rank) {
    if (rank.rank == 0) {
      Call call(sum(10), rank);
      const auto operation = call.submit(rank.group(), std::chrono::seconds(60));
      const auto begun = host::Clock::now();
      const Status status = rank.group().shutdown(milliseconds(300));
      EXPECT_LT(host::Clock::now() - begun, std::chrono::seconds(20));
      EXPECT_EQ(status.code(), Code::timeout) << status.toString();
      EXPECT_TRUE(operation->finished());
      EXPECT_THAT(operation->status().message(),
                  HasSubstr("all_reduce #0 float32[10] SUM was still in flight; rank 0"));
    }
    left.arrive_and_wait();
  });
}

TEST(KeepAlive, IsReleasedAfterTheOperation_AndDoneRunsOnce) {
  RelayShape shape = shapeOf("a,a,cpu");
  std::atomic<int> done{0}, released{0};
  runRelay(shape, [&](RelayRank& rank) {
    for (int i = 0; i < 3; ++i) {
      Request request;
      std::vector<float> data(300, 1.0F);
      request.collective = {Kind::allReduce, DType::f32, ReduceOp::sum, 0, {300}, false};
      request.outputs = {{reinterpret_cast<std::byte*>(data.data()), 300}};
      request.done = [&done] { ++done; };
      request.keepAlive =
          std::shared_ptr<void>(&released, [](void* counter) { ++*static_cast<std::atomic<int>*>(counter); });
      EXPECT_TRUE(outcome(rank.group().submit(std::move(request))).ok());
      EXPECT_EQ(data[299], 3.0F);
    }
  });
  EXPECT_EQ(done, 9);
  EXPECT_EQ(released, 9);
}

int entriesOf(const char* folder) {
  DIR* opened = opendir(folder);
  int entries = 0;
  while (readdir(opened) != nullptr) ++entries;
  closedir(opened);
  return entries;
}

TEST(Cycles, OfCreationAndDestruction_LeaveNothingBehind) {
  const RelayShape shape = shapeOf("a,a,cpu");
  const auto once = [&] {
    runRelay(shape, [](RelayRank& rank) {
      Call call(sum(700), rank);
      call.submit(rank.group());
      EXPECT_EQ(call.check(), "");
    });
  };
  const auto settled = [](const char* folder, int atMost) {
    const auto until = host::Clock::now() + std::chrono::seconds(10);  // detached threads end a little later
    while (entriesOf(folder) > atMost && host::Clock::now() < until)
      std::this_thread::sleep_for(milliseconds(5));
    return entriesOf(folder);
  };
  once();
  const int threads = settled("/proc/self/task", 3), descriptors = entriesOf("/proc/self/fd");
  constexpr int kCycles = 200;
  for (int i = 0; i < kCycles; ++i) once();
  EXPECT_LE(settled("/proc/self/task", threads), threads);
  EXPECT_LE(settled("/proc/self/fd", descriptors), descriptors);
}

}  // namespace
}  // namespace kaitian::relay::test
