// The engines of all ranks of a host in one thread, which takes one step at a time: every schedule can be
// tried, and standing still is proof of a deadlock, because a step that is possible stays possible.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <utility>

#include "host/random_exchange.h"
#include "host/shm/board.h"
#include "host/shm/exchange.h"

namespace kaitian::host::test {
namespace {

using shm::Geometry;
using shm::Segment;
using shm::SharedEngine;

const net::GroupId kGroup{std::byte{7}};

/// Every rank's view of the segments of all.
std::vector<std::vector<Segment>> mapAll(int ranks, const Geometry& geometry) {
  std::vector<std::vector<Segment>> views(static_cast<std::size_t>(ranks));
  for (int owner = 0; owner < ranks; ++owner) {
    Segment made = Segment::create(geometry, owner, kGroup).value();
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == owner) continue;
      auto seen = Segment::map(net::Socket(dup(made.descriptor())), geometry, owner, kGroup);
      EXPECT_TRUE(seen.ok()) << seen.status().toString();
      views[static_cast<std::size_t>(rank)].push_back(std::move(seen).value());
    }
    views[static_cast<std::size_t>(owner)].push_back(std::move(made));
  }
  return views;
}

class Host {
 public:
  Host(const plan::Layout& layout, Geometry geometry, std::int64_t smallBytes,
       std::vector<ExchangeCase>& cases)
      : cases_(cases),
        started_(static_cast<std::size_t>(layout.worldSize())),
        unready_(static_cast<std::size_t>(layout.worldSize())) {
    views_ = mapAll(layout.worldSize(), geometry);
    for (int r = 0; r < layout.worldSize(); ++r) {
      engines_.push_back(std::make_unique<SharedEngine>(
          SharedEngine::Options{r, layout, {geometry.slotBytes, smallBytes}, {}},
          views_[static_cast<std::size_t>(r)]));
      steps_.push_back([this, r] { return start(r); });
      steps_.push_back([this, r] { return ready(r); });
      steps_.push_back([this, r] { return poll(r); });
    }
  }

  /// Takes the first step that is possible until none is; `random`: in random order.
  void run(Random* random) {
    for (bool moved = true; moved;) {
      if (random != nullptr) std::shuffle(steps_.begin(), steps_.end(), *random);
      moved = std::any_of(steps_.begin(), steps_.end(), [](const auto& step) { return step(); });
    }
  }

  /// Empty if everything is done, else who stands where.
  std::string unfinished() const {
    if (!failure_.ok()) return failure_.toString();
    std::string text;
    for (std::size_t r = 0; r < started_.size(); ++r) {
      for (std::size_t i = 0; i < cases_.size(); ++i) {
        if (i < started_[r].size() && started_[r][i]->done()) continue;
        text += "rank " + std::to_string(r) + " exchange " + std::to_string(i) + "; ";
      }
    }
    return text;
  }

  SharedEngine& engine(std::size_t rank) { return *engines_[rank]; }

 private:
  bool start(int rank) {
    auto& mine = started_[static_cast<std::size_t>(rank)];
    if (mine.size() == cases_.size()) return false;
    ExchangeRequest request = cases_[mine.size()].request(rank, mine.size(), 0);
    const std::size_t gives = request.gives.size();
    auto exchange = engines_[static_cast<std::size_t>(rank)]->start(std::move(request));
    if (!exchange.ok()) {
      failure_ = exchange.status();
      return false;
    }
    mine.push_back(exchange.value());
    for (std::size_t g = gives; g > 0; --g)
      unready_[static_cast<std::size_t>(rank)].push_back({mine.back(), g - 1});
    mine.back()->permit();
    return true;
  }

  bool ready(int rank) {
    auto& mine = unready_[static_cast<std::size_t>(rank)];
    if (mine.empty()) return false;
    mine.front().first->giveReady(mine.front().second);
    mine.pop_front();
    return true;
  }

  bool poll(int rank) {
    const Result<bool> moved = engines_[static_cast<std::size_t>(rank)]->poll(1);
    if (!moved.ok()) failure_ = moved.status();
    return moved.ok() && moved.value();
  }

  std::vector<ExchangeCase>& cases_;
  std::vector<std::vector<Segment>> views_;
  std::vector<std::unique_ptr<SharedEngine>> engines_;
  std::vector<std::vector<std::shared_ptr<Exchange>>> started_;
  std::vector<std::deque<std::pair<std::shared_ptr<Exchange>, std::size_t>>> unready_;
  std::vector<std::function<bool()>> steps_;
  Status failure_;
};

plan::Layout oneHostOf(std::int64_t ranks) {
  std::vector<int> islands;
  for (std::int64_t r = 0; r < ranks; ++r) islands.push_back(static_cast<int>(r));
  return plan::Layout::make(std::vector<int>(islands.size(), 0), islands);
}

void tryCases(int count, bool shuffled) {
  const std::uint64_t seed = newSeed();
  for (int n = 0; n < count; ++n) {
    Random random(seed + static_cast<std::uint64_t>(n));
    const plan::Layout layout = oneHostOf(pick(random, 1, 6));
    std::vector<ExchangeCase> cases;
    for (std::int64_t i = pick(random, 1, 4); i > 0; --i)
      cases.push_back(makeRandomExchange(random, layout, chance(random, 0.2) ? 600 : 60));
    const Geometry geometry{static_cast<std::uint32_t>(pick(random, 1, 4)), shm::kLine};
    Host host(layout, geometry, chance(random, 0.5) ? 0 : pick(random, 0, 200), cases);
    host.run(shuffled ? &random : nullptr);
    ASSERT_EQ(host.unfinished(), "") << "seed " << seed << " case " << n;
    for (ExchangeCase& c : cases) {
      for (std::size_t r = 0; r < c.ranks.size(); ++r) {
        ASSERT_EQ(c.ranks[r].taken(), c.ranks[r].expected)
            << "seed " << seed << " case " << n << " rank " << r << "\n"
            << c.describe();
      }
    }
  }
}

TEST(SharedEngine, WhenStepsComeInRandomOrder_EveryExchangeCompletesWithTheBitsOfTheSerialFold) {
  tryCases(1000, true);
}

TEST(SharedEngine, WhenRunGreedily_TicketOrderIsFreeOfDeadlock) { tryCases(1000, false); }

TEST(SharedEngine, BeforePermit_WritesNothingAndPublishesOwnGives) {
  Random random(3);
  std::vector<ExchangeCase> cases{makeAllReduce(random, oneHostOf(2), 10, DType::i32, ReduceOp::sum)};
  Host host(oneHostOf(2), {}, 16 * 1024, cases);
  const auto before = cases[0].ranks[1].taken();
  auto onA = host.engine(0).start(cases[0].request(0, 0, 0)).value();
  auto onB = host.engine(1).start(cases[0].request(1, 0, 0)).value();
  onA->giveReady(0);
  onB->giveReady(0);
  while (host.engine(0).poll(1).value()) {
  }
  while (host.engine(1).poll(1).value()) {
  }
  EXPECT_EQ(cases[0].ranks[1].taken(), before);
  EXPECT_FALSE(onB->takeReady(0));
  EXPECT_TRUE(onB->waitingFor().empty()) << "only for the permission";
  EXPECT_TRUE(host.engine(1).needs(0)) << "rank 0 has to fold";
  onB->permit();
  EXPECT_TRUE(host.engine(1).stirred());
  while (host.engine(1).poll(1).value()) {
  }
  EXPECT_EQ(cases[0].ranks[1].taken(), cases[0].ranks[1].expected);
  EXPECT_TRUE(onB->takeReady(0));
  EXPECT_TRUE(onB->done());
  EXPECT_FALSE(onA->done());
}

TEST(SharedEngine, WhileARankIsLate_TheOthersNameIt) {
  Random random(3);
  std::vector<ExchangeCase> cases{makeAllReduce(random, oneHostOf(3), 10, DType::i32, ReduceOp::sum)};
  Host host(oneHostOf(3), {}, 16 * 1024, cases);
  auto onA = host.engine(0).start(cases[0].request(0, 0, 0)).value();
  auto onB = host.engine(1).start(cases[0].request(1, 0, 0)).value();
  for (const auto& exchange : {onA, onB}) {
    exchange->giveReady(0);
    exchange->permit();
  }
  for (const std::size_t rank : {0U, 1U, 0U})
    while (host.engine(rank).poll(1).value()) {
    }
  EXPECT_EQ(onA->waitingFor(), std::vector<int>{2});
  EXPECT_TRUE(host.engine(0).needs(2));
  host.engine(0).drop();
  EXPECT_FALSE(host.engine(0).poll(1).value());
  EXPECT_TRUE(onA->waitingFor().empty());
}

TEST(Board, WhenTheSlowestReaderIsFarBehind_HasNoLine) {
  auto views = mapAll(3, {1, shm::kLine});
  shm::Board writer(0, views[0]), near(1, views[1]), far(2, views[2]);
  const std::array text{std::byte{1}, std::byte{2}};
  for (std::uint64_t n = 0; n < shm::kLines; ++n) ASSERT_TRUE(writer.write(n, text, 0));
  near.heard(0, shm::kLines);
  EXPECT_FALSE(writer.write(shm::kLines, text, 0));
  EXPECT_EQ(far.read(0, 0, 0).size(), 2U);
  EXPECT_TRUE(far.read(0, shm::kLines, 0).empty()) << "the line holds an older operation";
  far.heard(0, 1);
  EXPECT_TRUE(writer.write(shm::kLines, text, 0));
  EXPECT_TRUE(far.read(0, 0, 0).empty());
  EXPECT_EQ(near.read(0, shm::kLines, 0)[1], std::byte{2});
  EXPECT_FALSE(writer.write(1, std::vector<std::byte>(shm::Line::kMost + 1), 0)) << "too long";
}

TEST(Board, WhatWasPostedBefore_ComesFirst) {
  auto views = mapAll(2, {1, shm::kLine});
  shm::Board writer(0, views[0]), reader(1, views[1]);
  ASSERT_TRUE(writer.write(0, std::array{std::byte{1}}, 2));
  EXPECT_TRUE(reader.read(0, 0, 1).empty()) << "a record is still on its way over the connection";
  EXPECT_EQ(reader.read(0, 0, 2).size(), 1U);
}

TEST(Bell, WakesWhoeverHasArmedItOnce) {
  auto views = mapAll(2, {1, shm::kLine});
  shm::Neighbours a{std::move(views[0]), {}}, b{std::move(views[1]), {}};
  a.wakers.resize(2);
  b.wakers.emplace_back(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  b.wakers.emplace_back();
  const auto rung = [&] {
    std::uint64_t count = 0;
    return read(b.wakers[0].get(), &count, sizeof count) == sizeof count ? count : 0;
  };
  shm::Bell sleeper(0, a), mover(1, b);
  mover.ring();
  EXPECT_EQ(rung(), 0U);
  sleeper.arm();
  mover.ring();
  mover.ring();
  EXPECT_EQ(rung(), 1U);
  sleeper.arm();
  sleeper.disarm();
  mover.ring();
  EXPECT_EQ(rung(), 0U);
}

TEST(SharedEngine, WhenRanksPlannedDifferently_NamesTheRankAndTheOperation) {
  Random random(3);
  const plan::Layout layout = oneHostOf(2);
  ExchangeCase longer = makeAllReduce(random, layout, 10, DType::i32, ReduceOp::sum);
  ExchangeCase shorter = makeAllReduce(random, layout, 9, DType::i32, ReduceOp::sum);
  auto views = mapAll(2, {});
  SharedEngine a({0, layout, {}, {}}, views[0]);
  SharedEngine b({1, layout, {}, {4, 6}}, views[1]);
  auto onA = a.start(longer.request(0, 17, 0)).value();
  auto onB = b.start(shorter.request(1, 17, 0)).value();
  onA->giveReady(0);
  onB->giveReady(0);
  onB->permit();
  ASSERT_TRUE(a.poll(1).ok());
  const Status status = b.poll(1).status();
  EXPECT_EQ(status.code(), Code::mismatch);
  EXPECT_EQ(status.culprit(), 4) << "the number in the default group";
  EXPECT_NE(status.message().find("rank 4 sent another unit"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("operation #17"), std::string::npos) << status.message();
}

TEST(Segment, WhenItIsNotWhatItShouldBe_IsRefused) {
  const Geometry geometry{2, shm::kLine};
  const Segment made = Segment::create(geometry, 1, kGroup).value();
  const auto map = [&](int descriptor, const Geometry& expected, int rank, const net::GroupId& group) {
    return Segment::map(net::Socket(dup(descriptor)), expected, rank, group).status();
  };
  EXPECT_TRUE(map(made.descriptor(), geometry, 1, kGroup).ok());
  EXPECT_EQ(map(made.descriptor(), geometry, 0, kGroup).code(), Code::invalidArgument);
  EXPECT_EQ(map(made.descriptor(), geometry, 1, {}).code(), Code::invalidArgument);
  EXPECT_EQ(map(made.descriptor(), {64, 4096}, 1, kGroup).code(), Code::invalidArgument);
  const net::Socket open(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_NE(map(open.get(), geometry, 1, kGroup).message().find("its seals differ"), std::string::npos);
  EXPECT_EQ(map(-1, geometry, 1, kGroup).code(), Code::resource);
  EXPECT_NE(ftruncate(made.descriptor(), 0), 0) << "nobody can shrink it";
}

TEST(Segment, WhenFilesMayNotGrow_IsAnErrorAndNoSignal) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto made = Segment::create({}, 0, kGroup);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(made.status().code(), Code::resource);
  EXPECT_NE(made.status().message().find("ulimit -f"), std::string::npos);
}

}  // namespace
}  // namespace kaitian::host::test
