// What ranks see when one of them dies, stops, fails, leaves or talks nonsense.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <set>

#include "host/group.h"
#include "host/random_exchange.h"
#include "host/rank_group.h"

namespace kaitian::host::test {
namespace {

using std::chrono::milliseconds;

/// The message that all of `survivors` hold after `body`; a test failure if they differ.
Status commonFailure(const GroupShape& shape, const std::set<int>& survivors,
                     const std::function<void(RankContext&)>& body) {
  std::vector<Status> seen(shape.hosts.size());
  runRanks(shape, [&](RankContext& context) {
    body(context);
    if (survivors.count(context.rank) == 0) return;
    EXPECT_TRUE(context.driveThroughFailure([&] { return context.group->failed(); }))
        << "rank " << context.rank;
    seen[static_cast<std::size_t>(context.rank)] = context.group->status();
    context.driveThroughFailure([] { return false; }, milliseconds(50));
  });
  const Status first = seen[static_cast<std::size_t>(*survivors.begin())];
  for (const int r : survivors) EXPECT_EQ(seen[static_cast<std::size_t>(r)].toString(), first.toString());
  return first;
}

TEST(Failure, WhenARankDies_EverySurvivorNamesIt) {
  const Status failure = commonFailure(oneHost(4), {0, 1, 3}, [](RankContext& context) {
    if (context.rank == 2) context.group.reset();
  });
  EXPECT_EQ(failure.code(), Code::peerLost);
  EXPECT_EQ(failure.culprit(), 2);
  EXPECT_NE(failure.message().find("rank 2 (host h0, pid 102, cpu)"), std::string::npos) << failure.message();
}

TEST(Failure, WhenARankDiesInTheMiddleOfAnExchange_NothingIsReportedDone) {
  GroupShape shape = oneHost(3);
  Random random(1);
  ExchangeCase c =
      makeAllReduce(random, makeWorld(shape, {"", "", ""}).layout, 100'000, DType::f32, ReduceOp::sum);
  const Status failure = commonFailure(shape, {0, 1}, [&](RankContext& context) {
    auto exchange = context.group->exchange(c.request(context.rank, 0, 0));
    exchange->permit();
    if (context.rank != 2) exchange->giveReady(0);
    for (int i = 0; i < 10; ++i) context.group->poll();
    if (context.rank == 2) {
      context.group.reset();
      return;
    }
    EXPECT_EQ(exchange->waitingFor().empty(), false);
    context.driveThroughFailure([&] { return context.group->failed(); });
    EXPECT_FALSE(exchange->done());
    exchange->giveReady(0);
  });
  EXPECT_EQ(failure.culprit(), 2);
}

TEST(Failure, WhenARankFails_AllHoldItsReasonEvenIfItLeavesAtOnce) {
  const Status failure = commonFailure(oneHost(4), {0, 1, 2, 3}, [](RankContext& context) {
    if (context.rank != 3) return;
    context.group->fail({Code::timeout, "operation #5 took 2 s", 1});
    context.group->fail({Code::aborted, "a second reason", 0});
  });
  EXPECT_EQ(failure.toString(), Status(Code::timeout, "operation #5 took 2 s", 1).toString());
  EXPECT_EQ(failure.culprit(), 1);
}

TEST(Failure, WhenTheFailingRankIsDestroyedAtOnce_ItsReasonBeatsTheEndOfItsConnections) {
  const Status failure = commonFailure(oneHost(3), {0, 1}, [](RankContext& context) {
    if (context.rank != 2) return;
    context.group->fail({Code::aborted, "abort() was called on rank 2", 2});
    context.group.reset();
  });
  EXPECT_EQ(failure.code(), Code::aborted);
}

TEST(Failure, AfterIt_CallsAreWithoutEffect) {
  runRanks(oneHost(2), [](RankContext& context) {
    context.group->fail({Code::aborted, "stop", 0});
    Random random(1);
    std::vector<std::byte> data(8);
    ExchangeCase c = makeAllReduce(random, plan::Layout::make({0, 0}, {0, 1}), 4, DType::f32, ReduceOp::sum);
    auto exchange = context.group->exchange(c.request(context.rank, 0, 0));
    exchange->giveReady(0);
    exchange->permit();
    auto transfer = context.group->send(1 - context.rank, 0, data.data(), 8);
    transfer->ready();
    context.group->publish({});
    context.driveThroughFailure([] { return false; }, milliseconds(30));
    EXPECT_FALSE(exchange->done());
    EXPECT_FALSE(transfer->done());
    EXPECT_EQ(context.group->status().message(), "stop");
  });
}

TEST(Failure, WhenARankIsStopped_ItsSilenceGrowsAndNobodyElses) {
  GroupShape shape = oneHost(3);
  shape.heartbeat = milliseconds(20);
  std::atomic<bool> seen{false};
  runRanks(shape, [&](RankContext& context) {
    context.group->poll();
    if (context.rank == 1) {
      while (!seen) std::this_thread::yield();
    }
    const bool noticed = context.drive([&] {
      if (context.rank == 0 && context.group->silence(1) > milliseconds(400)) seen = true;
      return seen.load();
    });
    EXPECT_TRUE(noticed) << context.group->status().toString();
    if (context.rank == 0) {
      EXPECT_LT(context.group->silence(2), context.group->silence(1));
    }
    EXPECT_TRUE(
        context.drive([&] { return context.group->silence(1) < milliseconds(200) || context.rank == 1; }));
  });
}

TEST(Failure, WhenARankLeavesWhileAnotherCallsAnOperation_TheCallerIsTold) {
  const Status failure = commonFailure(oneHost(2), {0}, [](RankContext& context) {
    if (context.rank == 1) {
      context.group->close();
      return;
    }
    Signature mine;
    mine.kind = plan::Kind::allReduce;
    mine.dtype = DType::f32;
    context.group->publish(mine);
  });
  EXPECT_EQ(failure.code(), Code::peerLost);
  EXPECT_EQ(failure.culprit(), 1);
  EXPECT_NE(failure.message().find("destroyed group 'test' after 0 collectives"), std::string::npos)
      << failure.message();
}

TEST(Failure, WhenAllOthersLeave_AReceiveFromAnySourceIsTold) {
  const Status failure = commonFailure(oneHost(3), {0}, [](RankContext& context) {
    if (context.rank != 0) {
      context.group->close();
      return;
    }
    static std::byte data{};
    context.group->receive(HostGroup::kAnySource, 0, &data, 1);
  });
  EXPECT_EQ(failure.code(), Code::peerLost);
  EXPECT_NE(failure.message().find("while rank 0 waits for a message from any rank"), std::string::npos)
      << failure.message();
}

TEST(Goodbye, WhenTheSenderLeavesAtOnce_ASlowReceiverStillGetsEverything) {
  std::vector<std::byte> sent(3 << 20, std::byte{7}), received(3 << 20);
  runRanks(oneHost(2), [&](RankContext& context) {
    if (context.rank == 0) {
      auto out = context.group->send(1, 0, sent.data(), sent.size());
      out->ready();
      EXPECT_TRUE(context.drive([&] { return out->done(); }));
      return;
    }
    auto in = context.group->receive(0, 0, received.data(), received.size());
    EXPECT_TRUE(context.drive([&] {
      std::this_thread::sleep_for(milliseconds(5));
      return in->done();
    })) << context.group->status().toString();
    context.drive([] { return false; }, milliseconds(50));
    EXPECT_TRUE(context.group->status().ok()) << context.group->status().toString();
  });
  EXPECT_EQ(received, sent);
}

TEST(Records, ArePublishedToAllAndForgottenWhenRetired) {
  runRanks(oneHost(3), [](RankContext& context) {
    Signature mine;
    mine.count = static_cast<std::uint64_t>(context.rank) + 10;
    context.group->publish(mine);
    const std::byte record[] = {static_cast<std::byte>(context.rank), std::byte{9}};
    context.group->post(42, record);
    ASSERT_TRUE(context.drive([&] {
      for (int r = 0; r < 3; ++r) {
        if (context.group->signature(0, r) == nullptr || context.group->posted(42, r) == nullptr)
          return false;
      }
      return true;
    }));
    for (int r = 0; r < 3; ++r) {
      EXPECT_EQ(context.group->signature(0, r)->count, static_cast<std::uint64_t>(r) + 10);
      EXPECT_EQ(context.group->posted(42, r)->at(0), static_cast<std::byte>(r));
      EXPECT_EQ(context.group->published(r), 1U);
    }
    context.group->retire(0);
    EXPECT_EQ(context.group->signature(0, 1), nullptr);
  });
}

/// A group of two of which this test plays rank 0 by hand.
struct Puppet {
  Puppet() {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    hand = net::Socket(pair[0]);
    std::vector<net::Socket> sockets;
    sockets.emplace_back(pair[1]);
    sockets.emplace_back();
    poller = Poller::create().value();
    RankGroup::Options options;
    options.rank = 1;
    options.name = "puppet";
    options.layout = plan::Layout::make({0, 0}, {0, 1});
    options.globalRanks = {0, 1};
    options.who = {"rank 0", "rank 1"};
    group = std::make_unique<RankGroup>(options, std::move(sockets), static_cast<net::EpollPoller&>(*poller),
                                        shm::Meeting{});
  }
  void send(std::span<const std::byte> bytes) const {
    EXPECT_EQ(::send(hand.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void drive() const {
    for (int i = 0; i < 20; ++i) {
      poller->wait(Clock::now());
      group->poll();
    }
  }

  std::unique_ptr<Poller> poller;
  std::unique_ptr<RankGroup> group;
  net::Socket hand;  // closed first: a group that has failed would wait for it to read the reason
};

TEST(Frames, WhenAPeerSendsNonsense_TheGroupFailsAndNamesIt) {
  const std::uint64_t seed = newSeed();
  int failed = 0;
  for (std::uint64_t n = 0; n < 2000; ++n) {
    Random random(seed + n);
    Puppet puppet;
    std::vector<std::byte> bytes(static_cast<std::size_t>(pick(random, 24, 400)));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    // Mostly headers that are nearly right, so that what lies behind the first check is reached too.
    if (chance(random, 0.9)) {
      for (std::size_t at = 0; at + net::kHeaderBytes <= bytes.size();) {
        net::FrameHeader header{
            static_cast<net::FrameType>(pick(random, 1, 10)), static_cast<std::uint8_t>(pick(random, 0, 1)),
            static_cast<std::uint32_t>(pick(random, 0, 16)), static_cast<std::uint64_t>(pick(random, 0, 3)),
            static_cast<std::uint64_t>(pick(random, 0, 3))};
        const net::HeaderBytes encoded = encode(header);
        std::copy(encoded.begin(), encoded.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at));
        at += net::kHeaderBytes + header.bytes;
      }
    }
    puppet.send(bytes);
    puppet.drive();
    if (puppet.group->failed()) ++failed;
    puppet.group->fail({Code::aborted, "end of the test"});
  }
  EXPECT_GT(failed, 1000) << "seed " << seed;
}

TEST(Frames, WhenAPieceIsLongerThanItsMessage_IsRefusedBeforeItIsWritten) {
  Puppet puppet;
  std::vector<std::byte> data(16);
  puppet.group->receive(0, 4, data.data(), 8);
  puppet.drive();
  puppet.send(encode(net::FrameHeader{net::FrameType::message, 0, 16, 4, 0}));
  puppet.send(std::vector<std::byte>(16, std::byte{7}));
  puppet.drive();
  EXPECT_EQ(puppet.group->status().code(), Code::internal);
  EXPECT_EQ(puppet.group->status().culprit(), 0);
  EXPECT_NE(puppet.group->status().message().find("a piece of 16 bytes of message 0 with tag 4 came, but 8"),
            std::string::npos)
      << puppet.group->status().message();
  EXPECT_EQ(data, std::vector<std::byte>(16));
}

TEST(Frames, WhenTooLong_AreRefusedBeforeTheyAreRead) {
  Puppet puppet;
  puppet.send(encode(net::FrameHeader{net::FrameType::post, 0, 1 << 20, 0, 0}));
  puppet.drive();
  EXPECT_EQ(puppet.group->status().code(), Code::internal);
  EXPECT_EQ(puppet.group->status().culprit(), 0);
  EXPECT_NE(puppet.group->status().message().find("post of 1048576 bytes"), std::string::npos)
      << puppet.group->status().message();
}

TEST(Frames, DecodeGivesWhatWasEncoded) {
  const net::FrameHeader header{net::FrameType::unit, 1, 77, 0x1'0000'0001U, ~std::uint64_t{0}};
  const net::HeaderBytes encoded = encode(header);
  const auto decoded = net::decode(encoded, {128, 64});
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.value(), header);
  EXPECT_FALSE(net::decode(encoded, {64, 64}).ok());
  EXPECT_FALSE(net::decode(std::span(encoded).first(20), {128, 64}).ok());
}

TEST(Fork, WhenAChildLivesOn_ThePeerStillSeesTheDeathOfTheParent) {
  Puppet puppet;
  puppet.drive();
  int gate[2];
  ASSERT_EQ(pipe2(gate, 0), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char byte = 0;
    close(gate[1]);
    [[maybe_unused]] const auto got = read(gate[0], &byte, 1);
    _exit(0);
  }
  puppet.group.reset();
  char byte = 0;
  EXPECT_EQ(recv(puppet.hand.get(), &byte, 1, 0), 0);
  close(gate[1]);
  close(gate[0]);
}

}  // namespace
}  // namespace kaitian::host::test
