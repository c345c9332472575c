// Exchanges between ranks over TCP, local sockets and shared memory, bit for bit against a serial oracle.
#include <gtest/gtest.h>

#include <deque>
#include <thread>

#include "host/random_exchange.h"
#include "host/rank_group.h"

namespace kaitian::host::test {
namespace {

plan::Layout layoutOfShape(const GroupShape& shape) {
  return makeWorld(shape, std::vector<std::string>(shape.hosts.size())).layout;
}

/// Starts all exchanges in order, makes gives ready and permits at random moments, at most `inFlight` at a
/// time.
void runExchanges(RankContext& context, std::vector<ExchangeCase>& cases, std::uint64_t firstSequence,
                  std::size_t inFlight, std::uint64_t seed) {
  Random random(seed + static_cast<std::uint64_t>(context.rank));
  std::deque<std::shared_ptr<Exchange>> open;
  std::size_t next = 0;
  const auto start = [&] {
    ExchangeRequest request = cases[next].request(context.rank, firstSequence + next / 2, next % 2);
    const std::size_t gives = request.gives.size();
    auto exchange = context.group->exchange(std::move(request));
    const bool early = chance(random, 0.5);
    if (early) exchange->permit();
    for (std::size_t g = 0; g < gives; ++g) {
      exchange->giveReady(g);
      if (chance(random, 0.3)) context.group->poll();
    }
    if (!early) exchange->permit();
    open.push_back(std::move(exchange));
    ++next;
  };
  const auto step = [&] {
    do {
      while (!open.empty() && open.front()->done()) open.pop_front();
      if (next < cases.size() && open.size() < inFlight) start();
      if (chance(random, 0.2)) std::this_thread::yield();
    } while (next < cases.size() && (open.size() < inFlight || open.front()->done()));
    return open.empty();
  };
  ASSERT_TRUE(context.drive(step)) << "rank " << context.rank
                                   << " stands still: " << context.group->status().toString();
}

void expectSame(std::vector<ExchangeCase>& cases, std::uint64_t seed) {
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (std::size_t r = 0; r < cases[i].ranks.size(); ++r) {
      EXPECT_EQ(cases[i].ranks[r].taken(), cases[i].ranks[r].expected)
          << "seed " << seed << ", exchange " << i << ", rank " << r << "\n"
          << cases[i].describe();
    }
  }
}

TEST(Exchange, WhenEveryRankGivesAndTakesAll_FoldsInRankOrder) {
  for (const int ranks : {1, 2, 3, 4}) {
    const GroupShape shape = oneHost(ranks);
    Random random(7);
    std::vector<ExchangeCase> cases;
    for (const std::int64_t count : {0, 1, 3, 1000, 5000, 70'001}) {
      cases.push_back(makeAllReduce(random, layoutOfShape(shape), count, DType::f32, ReduceOp::sum));
    }
    runRanks(shape, [&](RankContext& context) { runExchanges(context, cases, 0, 3, 11); });
    expectSame(cases, 7);
  }
}

struct Variant {
  int ranks;
  std::vector<int> hosts;
  std::int64_t unitBytes, smallBytes;
  int window;
  bool local = true, sharedMemory = true;
};

class RandomExchanges : public testing::TestWithParam<Variant> {};

TEST_P(RandomExchanges, GiveTheBitsOfTheSerialFold) {
  const Variant v = GetParam();
  GroupShape shape = oneHost(v.ranks);
  if (!v.hosts.empty()) shape.hosts = v.hosts;
  shape.unitBytes = v.unitBytes;
  shape.smallBytes = v.smallBytes;
  shape.window = v.window;
  shape.slots = std::max(2, v.window);
  shape.local = v.local;
  shape.sharedMemory = v.sharedMemory;
  const std::uint64_t seed = newSeed();
  Random random(seed);
  std::vector<ExchangeCase> cases;
  for (int i = 0; i < 60; ++i) {
    cases.push_back(makeRandomExchange(random, layoutOfShape(shape), chance(random, 0.2) ? 6000 : 400));
  }
  runRanks(shape, [&](RankContext& context) { runExchanges(context, cases, 0xffff'fff0U, 8, seed); });
  expectSame(cases, seed);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, RandomExchanges,
    testing::Values(Variant{1, {}, 128 * 1024, 16 * 1024, 8}, Variant{2, {}, 128 * 1024, 16 * 1024, 8},
                    Variant{2, {}, 128 * 1024, 16 * 1024, 8, false, false},
                    Variant{3, {}, 64, 0, 1, true, false}, Variant{3, {}, 64, 0, 1},
                    Variant{5, {}, 16, 100, 2}, Variant{8, {}, 512, 256, 1, false},
                    Variant{2, {0, 1}, 64, 0, 1}, Variant{3, {}, 256, 512, 2},
                    Variant{5, {0, 1, 0, 1, 2}, 128, 0, 1}, Variant{5, {0, 0, 0, 1, 1}, 1024, 4096, 3},
                    Variant{8, {1, 0, 1, 0, 1, 0, 1, 2}, 512, 256, 1}, Variant{8, {}, 4096, 16 * 1024, 8}));

}  // namespace
}  // namespace kaitian::host::test
