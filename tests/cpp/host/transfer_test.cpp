// Point-to-point messages between ranks over TCP.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "host/random_exchange.h"
#include "host/rank_group.h"

namespace kaitian::host::test {
namespace {

std::vector<std::byte> pattern(std::size_t bytes, int seed) {
  std::vector<std::byte> data(bytes);
  Random random(static_cast<std::uint64_t>(seed));
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  return data;
}

/// All transfers of a rank, started in random order with the order inside each (peer, tag) kept.
struct Batch {
  struct Item {
    std::shared_ptr<Transfer> transfer;
    std::vector<std::byte> data, expected;
  };
  std::vector<std::unique_ptr<Item>> items;

  bool done() const {
    return std::all_of(items.begin(), items.end(), [](const auto& i) { return i->transfer->done(); });
  }
};

std::size_t sizeOfMessage(int from, int to, std::uint32_t tag, int n) {
  constexpr std::size_t kSizes[] = {0, 1, 17, 1000, 300'000};
  return kSizes[static_cast<std::size_t>(from * 7 + to * 3 + static_cast<int>(tag) + n) % std::size(kSizes)];
}

TEST(Transfer, WhenBatchesComeInHostileOrdersBesideExchanges_EveryMessageArrives) {
  const std::uint64_t seed = newSeed();
  GroupShape shape = oneHost(4);
  shape.window = 1;
  shape.unitBytes = 4096;
  Random random(seed);
  const plan::Layout layout = makeWorld(shape, std::vector<std::string>(4)).layout;
  std::vector<ExchangeCase> cases;
  for (int i = 0; i < 4; ++i)
    cases.push_back(makeAllReduce(random, layout, 20'000, DType::i32, ReduceOp::sum));
  runRanks(shape, [&](RankContext& context) {
    Random mine(seed + static_cast<std::uint64_t>(context.rank));
    struct Key {
      bool send;
      int peer;
      std::uint32_t tag;
    };
    std::vector<Key> keys;
    for (int peer = 0; peer < 4; ++peer) {
      for (const std::uint32_t tag : {0U, 5U}) {
        for (int n = 0; n < 3; ++n) {
          keys.push_back({true, peer, tag});
          keys.push_back({false, peer, tag});
        }
      }
    }
    std::shuffle(keys.begin(), keys.end(), mine);
    std::map<std::pair<int, std::uint32_t>, int> sent, received;
    Batch batch;
    std::vector<std::shared_ptr<Exchange>> exchanges;
    for (std::size_t k = 0; k < keys.size(); ++k) {
      if (k % 12 == 0) {
        auto request = cases[k / 12].request(context.rank, k / 12, 0);
        exchanges.push_back(context.group->exchange(std::move(request)));
        exchanges.back()->permit();
        exchanges.back()->giveReady(0);
      }
      const Key& key = keys[k];
      auto item = std::make_unique<Batch::Item>();
      int& n = (key.send ? sent : received)[{key.peer, key.tag}];
      const int from = key.send ? context.rank : key.peer, to = key.send ? key.peer : context.rank;
      const std::size_t bytes = sizeOfMessage(from, to, key.tag, n);
      item->expected = pattern(bytes, from * 1000 + to * 100 + static_cast<int>(key.tag) * 10 + n);
      ++n;
      if (key.send) {
        item->data = item->expected;
        item->transfer = context.group->send(key.peer, key.tag, item->data.data(), bytes);
        item->transfer->ready();
      } else {
        item->data.resize(bytes);
        item->transfer = context.group->receive(key.peer, key.tag, item->data.data(), bytes);
      }
      batch.items.push_back(std::move(item));
      if (chance(mine, 0.3)) context.group->poll();
    }
    const bool all = context.drive([&] {
      return batch.done() &&
             std::all_of(exchanges.begin(), exchanges.end(), [](auto& e) { return e->done(); });
    });
    EXPECT_TRUE(all) << "rank " << context.rank << ": " << context.group->status().toString();
    for (const auto& item : batch.items) EXPECT_EQ(item->data, item->expected);
  });
  for (ExchangeCase& c : cases) {
    for (auto& memory : c.ranks) EXPECT_EQ(memory.taken(), memory.expected);
  }
}

TEST(Transfer, WhenReceivedFromAnySource_TellsTheSenderAndKeepsItsOrder) {
  runRanks(oneHost(3), [](RankContext& context) {
    constexpr int kEach = 5;
    std::vector<std::shared_ptr<Transfer>> transfers;
    std::vector<int> data(2 * kEach);
    if (context.rank == 0) {
      for (int& slot : data) {
        transfers.push_back(
            context.group->receive(HostGroup::kAnySource, 9, reinterpret_cast<std::byte*>(&slot), 4));
      }
    } else {
      for (int n = 0; n < kEach; ++n) {
        data[static_cast<std::size_t>(n)] = context.rank * 100 + n;
        transfers.push_back(context.group->send(
            0, 9, reinterpret_cast<const std::byte*>(&data[static_cast<std::size_t>(n)]), 4));
        transfers.back()->ready();
      }
    }
    ASSERT_TRUE(context.drive([&] {
      return std::all_of(transfers.begin(), transfers.end(), [](auto& t) { return t->done(); });
    })) << context.group->status().toString();
    if (context.rank != 0) return;
    std::map<int, int> next;
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      const int from = transfers[i]->peer();
      EXPECT_EQ(data[i], from * 100 + next[from]++);
    }
    EXPECT_EQ(next, (std::map<int, int>{{1, kEach}, {2, kEach}}));
  });
}

TEST(Transfer, WhenASpecificReceiveFollowsOneFromAnySource_DoesNotOvertakeIt) {
  runRanks(oneHost(2), [](RankContext& context) {
    int first = 1, second = 2;
    auto* a = reinterpret_cast<std::byte*>(&first);
    auto* b = reinterpret_cast<std::byte*>(&second);
    std::shared_ptr<Transfer> one, two;
    if (context.rank == 0) {
      one = context.group->receive(HostGroup::kAnySource, 0, a, 4);
      two = context.group->receive(1, 0, b, 4);
      first = second = 0;
    } else {
      one = context.group->send(0, 0, a, 4);
      two = context.group->send(0, 0, b, 4);
      two->ready();
      one->ready();
    }
    ASSERT_TRUE(context.drive([&] { return one->done() && two->done(); }));
    EXPECT_EQ(first, 1);
    EXPECT_EQ(second, 2);
  });
}

TEST(Transfer, WhenSentToOneself_Arrives) {
  runRanks(oneHost(1), [](RankContext& context) {
    const auto sent = pattern(1000, 1);
    std::vector<std::byte> received(1000);
    auto in = context.group->receive(HostGroup::kAnySource, 3, received.data(), received.size());
    auto out = context.group->send(0, 3, sent.data(), sent.size());
    EXPECT_FALSE(in->done());
    out->ready();
    ASSERT_TRUE(context.drive([&] { return in->done() && out->done(); }));
    EXPECT_EQ(received, sent);
    EXPECT_EQ(in->peer(), 0);
  });
}

TEST(Transfer, WhenSizesDiffer_EveryRankNamesBothSizes) {
  std::vector<std::string> messages(3);
  runRanks(oneHost(3), [&](RankContext& context) {
    std::vector<std::byte> data(64);
    std::shared_ptr<Transfer> transfer;
    if (context.rank == 0) {
      transfer = context.group->send(1, 4, data.data(), 12);
      transfer->ready();
    }
    if (context.rank == 1) transfer = context.group->receive(0, 4, data.data(), 16);
    context.driveThroughFailure([&] { return context.group->failed(); });
    EXPECT_EQ(context.group->status().code(), Code::mismatch);
    messages[static_cast<std::size_t>(context.rank)] = context.group->status().message();
    if (transfer) {
      EXPECT_FALSE(transfer->done());
    }
  });
  EXPECT_NE(messages[0].find("rank 0 sends 12 bytes to rank 1, which receives 16 bytes"), std::string::npos)
      << messages[0];
  EXPECT_EQ(messages[1], messages[0]);
  EXPECT_EQ(messages[2], messages[0]);
}

}  // namespace
}  // namespace kaitian::host::test
