// The exchange engines of all ranks in one thread, joined by a carrier that does one step at a time: every
// schedule can be tried, and standing still is proof of a deadlock, because a step that is possible stays
// possible.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "host/exchange.h"
#include "host/random_exchange.h"

namespace kaitian::host::test {
namespace {

class World {
 public:
  World(const plan::Layout& layout, Cutting cutting, int window, std::vector<ExchangeCase>& cases)
      : cases_(cases), started_(static_cast<std::size_t>(layout.worldSize())) {
    for (int r = 0; r < layout.worldSize(); ++r) {
      engines_.push_back(
          std::make_unique<ExchangeEngine>(ExchangeEngine::Options{r, layout, cutting, window, {}},
                                           [this](const Status& s) { failure_ = s; }));
    }
    for (int r = 0; r < layout.worldSize(); ++r) {
      steps_.push_back([this, r] { return start(r); });
      steps_.push_back([this, r] { return engines_[at(r)]->combine(1); });
      for (int to = 0; to < layout.worldSize(); ++to) {
        if (to == r) continue;
        steps_.push_back([this, r, to] { return move(r, to); });
        steps_.push_back([this, r, to] { return credit(r, to); });
      }
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

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  bool start(int rank) {
    auto& mine = started_[at(rank)];
    if (mine.size() == cases_.size()) return false;
    ExchangeRequest request = cases_[mine.size()].request(rank, mine.size(), 0);
    const std::size_t gives = request.gives.size();
    auto exchange = engines_[at(rank)]->start(std::move(request));
    if (!exchange.ok()) {
      failure_ = exchange.status();
      return false;
    }
    mine.push_back(exchange.value());
    for (std::size_t g = gives; g > 0; --g) mine.back()->giveReady(g - 1);
    mine.back()->permit();
    return true;
  }

  bool move(int from, int to) {
    OutUnit unit;
    if (!engines_[at(from)]->nextUnit(to, unit)) return false;
    Result<std::byte*> place = engines_[at(to)]->unitPlace(from, unit);
    if (!place.ok()) {
      failure_ = place.status();
      return false;
    }
    std::memcpy(place.value(), unit.data, unit.bytes);
    if (Status s = engines_[at(to)]->unitArrived(from, unit.phase); !s.ok()) failure_ = s;
    engines_[at(from)]->unitSent(to, unit.phase);
    return true;
  }

  bool credit(int from, int to) {
    Credit credit;
    if (!engines_[at(from)]->nextCredit(to, credit)) return false;
    if (Status s = engines_[at(to)]->creditArrived(from, credit); !s.ok()) failure_ = s;
    return true;
  }

  std::vector<ExchangeCase>& cases_;
  std::vector<std::unique_ptr<ExchangeEngine>> engines_;
  std::vector<std::vector<std::shared_ptr<Exchange>>> started_;
  std::vector<std::function<bool()>> steps_;
  Status failure_;
};

plan::Layout randomLayout(Random& random) {
  std::vector<int> hosts, islands;
  const std::int64_t ranks = pick(random, 1, 6);
  for (std::int64_t r = 0; r < ranks; ++r) {
    hosts.push_back(static_cast<int>(pick(random, 0, 2)));
    islands.push_back(static_cast<int>(r));
  }
  return plan::Layout::make(hosts, islands);
}

void tryCases(int count, bool shuffled) {
  const std::uint64_t seed = newSeed();
  for (int n = 0; n < count; ++n) {
    Random random(seed + static_cast<std::uint64_t>(n));
    const plan::Layout layout = randomLayout(random);
    std::vector<ExchangeCase> cases;
    for (std::int64_t i = pick(random, 1, 3); i > 0; --i)
      cases.push_back(makeRandomExchange(random, layout, 60));
    const Cutting cutting{pick(random, 16, 64), chance(random, 0.5) ? 0 : pick(random, 0, 200)};
    World world(layout, cutting, static_cast<int>(pick(random, 1, 3)), cases);
    world.run(shuffled ? &random : nullptr);
    ASSERT_EQ(world.unfinished(), "") << "seed " << seed << " case " << n;
    for (ExchangeCase& c : cases) {
      for (std::size_t r = 0; r < c.ranks.size(); ++r) {
        ASSERT_EQ(c.ranks[r].taken(), c.ranks[r].expected)
            << "seed " << seed << " case " << n << " rank " << r << "\n"
            << c.describe();
      }
    }
  }
}

TEST(ExchangeEngine, WhenStepsComeInRandomOrder_EveryExchangeCompletesWithTheBitsOfTheSerialFold) {
  tryCases(1500, true);
}

TEST(ExchangeEngine, WhenRunGreedily_TicketOrderIsFreeOfDeadlock) { tryCases(1500, false); }

TEST(ExchangeEngine, BeforePermit_WritesNothingAndSendsOwnGives) {
  Random random(3);
  const plan::Layout layout = plan::Layout::make({0, 0}, {0, 1});
  ExchangeCase c = makeAllReduce(random, layout, 10, DType::i32, ReduceOp::sum);
  ExchangeEngine a({0, layout, {}, 8, {}}, [](const Status&) {});
  ExchangeEngine b({1, layout, {}, 8, {}}, [](const Status&) {});
  const auto before = c.ranks[1].taken();
  auto onA = a.start(c.request(0, 0, 0)).value();
  auto onB = b.start(c.request(1, 0, 0)).value();
  onA->giveReady(0);
  onB->giveReady(0);
  OutUnit unit;
  ASSERT_TRUE(a.nextUnit(1, unit));
  std::memcpy(b.unitPlace(0, unit).value(), unit.data, unit.bytes);
  ASSERT_TRUE(b.unitArrived(0, unit.phase).ok());
  a.unitSent(1, unit.phase);
  ASSERT_TRUE(b.nextUnit(0, unit));
  b.unitSent(0, unit.phase);
  EXPECT_FALSE(b.combine(10));
  EXPECT_EQ(c.ranks[1].taken(), before);
  EXPECT_FALSE(onB->takeReady(0));
  onB->permit();
  EXPECT_TRUE(b.combine(10));
  EXPECT_EQ(c.ranks[1].taken(), c.ranks[1].expected);
  EXPECT_TRUE(onB->takeReady(0));
  EXPECT_TRUE(onB->done());
  EXPECT_FALSE(onA->done());
  EXPECT_EQ(onA->waitingFor(), std::vector<int>{1});
}

TEST(ExchangeEngine, WhenRanksPlannedDifferently_NamesTheRankAndTheOperation) {
  Random random(3);
  const plan::Layout layout = plan::Layout::make({0, 0}, {0, 1});
  ExchangeCase longer = makeAllReduce(random, layout, 10, DType::i32, ReduceOp::sum);
  ExchangeCase shorter = makeAllReduce(random, layout, 9, DType::i32, ReduceOp::sum);
  Status reported;
  ExchangeEngine a({0, layout, {}, 8, {}}, [](const Status&) {});
  ExchangeEngine b({1, layout, {}, 8, {4, 6}}, [&](const Status& s) { reported = s; });
  auto onA = a.start(longer.request(0, 17, 0)).value();
  auto onB = b.start(shorter.request(1, 17, 0)).value();
  onA->giveReady(0);
  OutUnit unit;
  ASSERT_TRUE(a.nextUnit(1, unit));
  ASSERT_TRUE(b.unitPlace(0, unit).ok());
  ASSERT_TRUE(b.unitArrived(0, unit.phase).ok());
  onB->permit();
  EXPECT_EQ(reported.code(), Code::mismatch);
  EXPECT_EQ(reported.culprit(), 4) << "the number in the default group";
  EXPECT_NE(reported.message().find("rank 4 sent another unit"), std::string::npos) << reported.message();
  EXPECT_NE(reported.message().find("than rank 6 expects"), std::string::npos) << reported.message();
  EXPECT_NE(reported.message().find("operation #17"), std::string::npos) << reported.message();
}

TEST(ExchangeEngine, WhenAPeerIgnoresItsWindow_IsReported) {
  const plan::Layout layout = plan::Layout::make({0, 0}, {0, 1});
  ExchangeEngine b({1, layout, {}, 2, {4, 6}}, [](const Status&) {});
  for (std::uint64_t n = 0; n < 2; ++n) {
    ASSERT_TRUE(b.unitPlace(0, {Phase::contribution, n, 0, nullptr, 8}).ok());
    ASSERT_TRUE(b.unitArrived(0, Phase::contribution).ok());
  }
  const auto place = b.unitPlace(0, {Phase::contribution, 2, 0, nullptr, 8});
  EXPECT_EQ(place.status().code(), Code::internal);
  EXPECT_EQ(place.status().culprit(), 4);
  EXPECT_EQ(place.status().message().find("rank 4 broke the protocol"), 0U) << place.status().message();
  EXPECT_EQ(b.creditArrived(0, {Phase::result, 1}).code(), Code::internal);
}

}  // namespace
}  // namespace kaitian::host::test
