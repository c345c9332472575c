#include "kaitian/host/rendezvous.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <thread>

#include "host/memory_store.h"
#include "host/rendezvous_records.h"
#include "kaitian/core/log.h"

namespace kaitian::host {
namespace {

using namespace std::chrono_literals;

Identity cpu(const std::string& host = "h0") {
  Identity identity;
  identity.version = "0.1.0";
  identity.torch = "2.13.0+cpu";
  identity.host = host;
  identity.hostname = "node-" + host;
  identity.pid = 42;
  identity.deviceType = "cpu";
  identity.model = "a processor";
  identity.settings = "chunk=1";
  identity.address = "127.0.0.1:1234";
  return identity;
}

Identity device(const std::string& type, int index, const std::string& host = "h0") {
  Identity identity = cpu(host);
  identity.deviceType = type;
  identity.deviceIndex = index;
  identity.vendor = type + " inc";
  identity.library = type + "ccl";
  identity.libraryVersion = "1.4.2";
  identity.memory = 1 << 30;
  return identity;
}

/// Ranks as threads over one store.
class Ranks {
 public:
  explicit Ranks(std::vector<Identity> identities) : identities_(std::move(identities)) {}

  Ranks& without(std::set<int> missing) {
    missing_ = std::move(missing);
    return *this;
  }
  Ranks& validate(Validate validate) {
    validate_ = std::move(validate);
    return *this;
  }
  Ranks& timeout(std::chrono::milliseconds timeout) {
    timeout_ = timeout;
    return *this;
  }

  RendezvousOptions options(int rank) const {
    RendezvousOptions options;
    options.rank = rank;
    options.worldSize = static_cast<int>(identities_.size());
    options.group = "dp";
    options.deadline = Clock::now() + timeout_;
    options.grace = 5s;
    return options;
  }
  template <typename Body>
  void each(const Body& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < static_cast<int>(identities_.size()); ++rank) {
      if (missing_.count(rank) == 0) threads.emplace_back([&body, rank] { body(rank); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  std::vector<Result<World>> meet() {
    std::vector<Result<World>> worlds(identities_.size(), Status(Code::internal, "missing"));
    each([&](int rank) {
      const auto index = static_cast<std::size_t>(rank);
      worlds[index] = rendezvous(store, identities_[index], options(rank), validate_);
    });
    return worlds;
  }
  /// The error of the rendezvous, after checking that all ranks that came have the same.
  Status refusal() {
    const std::vector<Result<World>> worlds = meet();
    Status first;
    for (std::size_t rank = 0; rank < worlds.size(); ++rank) {
      if (missing_.count(static_cast<int>(rank)) > 0) continue;
      const Status status = worlds[rank].status();
      EXPECT_FALSE(status.ok()) << "rank " << rank;
      if (first.ok()) first = status;
      EXPECT_EQ(status.message(), first.message()) << "rank " << rank;
      EXPECT_EQ(status.code(), first.code()) << "rank " << rank;
      EXPECT_EQ(status.culprit(), first.culprit()) << "rank " << rank;
    }
    return first;
  }

  MemoryStore store;

 private:
  std::vector<Identity> identities_;
  std::set<int> missing_;
  Validate validate_;
  std::chrono::milliseconds timeout_{20s};
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Rendezvous, WhenAllRanksCome_GivesAllTheSameWorld) {
  const std::vector<std::vector<Identity>> cases = {
      {cpu()},
      {cpu(), cpu()},
      {device("alpha", 0), cpu()},
      {device("alpha", 0), device("beta", 0), device("alpha", 1), cpu()},
      {device("beta", 0), device("beta", 1), device("gamma", 0), device("alpha", 0), device("alpha", 1)},
      {cpu("a"), device("alpha", 0, "b"), cpu("b"), device("alpha", 0, "a"), cpu("c"), cpu("a")},
  };
  for (const std::vector<Identity>& identities : cases) {
    Ranks ranks(identities);
    const std::vector<Result<World>> worlds = ranks.meet();
    for (const Result<World>& world : worlds) {
      ASSERT_TRUE(world.ok()) << world.status().toString();
      EXPECT_EQ(world.value().ranks, identities);
      EXPECT_EQ(world.value().layout, layoutOf(identities));
      EXPECT_EQ(world.value().secret, worlds[0].value().secret);
      EXPECT_EQ(world.value().secret.size(), 32U);
      EXPECT_EQ(world.value().verify, worlds[0].value().verify);
    }
  }
}

TEST(Rendezvous, WhenTwoGroupsMeet_GivesThemDifferentSecrets) {
  Ranks one({cpu(), cpu()}), other({cpu(), cpu()});
  EXPECT_NE(one.meet()[0].value().secret, other.meet()[0].value().secret);
}

TEST(Rendezvous, WhenItSucceeds_CostsFourStoreOperationsPerRank) {
  Ranks ranks({cpu(), cpu(), cpu(), cpu()});
  ranks.each([&](int rank) {
    ASSERT_TRUE(rendezvous(ranks.store, cpu(), ranks.options(rank), {}).ok());
    ASSERT_TRUE(confirm(ranks.store, ranks.options(rank), {}).ok());
  });
  // 3 ranks: identity, decision, result, final. Rank 0 reads two records of each and sets identity, decision,
  // final.
  EXPECT_EQ(ranks.store.operations(), 3 * 4 + 3 * 2 + 3);
}

TEST(Rendezvous, WhenRanksDoNotCome_NamesThemOnAllRanks) {
  const Status status = Ranks({cpu(), cpu(), cpu(), cpu()}).without({1, 3}).timeout(100ms).refusal();
  EXPECT_EQ(status.code(), Code::timeout);
  EXPECT_EQ(status.culprit(), 1);
  EXPECT_TRUE(contains(status.message(),
                       "group 'dp': ranks 1, 3 did not come to the rendezvous within 0.1 s (2 of 4"))
      << status.message();
}

TEST(Rendezvous, WhenRanksHaveOtherGlobalNumbers_NamesThose) {
  MemoryStore store;
  RendezvousOptions options;
  options.worldSize = 2;
  options.globalRanks = {4, 6};
  options.deadline = Clock::now() + 50ms;
  const Status status = rendezvous(store, cpu(), options, {}).status();
  EXPECT_TRUE(contains(status.message(), "rank 6 did not come")) << status.message();
  EXPECT_EQ(status.culprit(), 6);
}

TEST(Rendezvous, WhenRankZeroDoesNotCome_TheOthersSaySo) {
  Ranks ranks({cpu(), cpu(), cpu()});
  ranks.without({0});
  ranks.each([&](int rank) {
    RendezvousOptions options = ranks.options(rank);
    options.deadline = Clock::now() + 50ms;
    options.grace = 50ms;
    const Status status = rendezvous(ranks.store, cpu(), options, {}).status();
    EXPECT_EQ(status.code(), Code::timeout);
    EXPECT_EQ(status.culprit(), 0);
    EXPECT_TRUE(contains(status.message(), "rank 0 did not come to the rendezvous")) << status.message();
  });
}

TEST(Rendezvous, WhenRankZeroComesButDecidesNothing_TheOthersPointToItsLog) {
  MemoryStore store;
  ASSERT_TRUE(store.set(identityKey(0), serialize(cpu())).ok());
  RendezvousOptions options;
  options.rank = 1;
  options.worldSize = 2;
  options.deadline = Clock::now();
  options.grace = 50ms;
  const Status status = rendezvous(store, cpu(), options, {}).status();
  EXPECT_TRUE(contains(status.message(), "rank 0 came to the rendezvous but published no decision"))
      << status.message();
}

TEST(Rendezvous, WhenRanksAreLate_WarnsWithTheirNumbers) {
  std::mutex mutex;
  std::vector<std::string> lines;
  core::Log::process().setSink([&](core::LogLevel, std::string_view line) {
    const std::scoped_lock lock(mutex);
    lines.emplace_back(line);
  });
  Ranks ranks({cpu(), cpu(), cpu()});
  ranks.without({1, 2});
  ranks.each([&](int rank) {
    RendezvousOptions options = ranks.options(rank);
    options.deadline = Clock::now() + 250ms;
    options.warnAfter = 100ms;
    EXPECT_FALSE(rendezvous(ranks.store, cpu(), options, {}).ok());
  });
  core::Log::process().setSink({});
  ASSERT_GE(lines.size(), 1U);
  EXPECT_LE(lines.size(), 2U);
  EXPECT_TRUE(contains(lines[0], "rank 0 WARN group 'dp': waiting for ranks 1, 2 for 0.1 s")) << lines[0];
}

TEST(Rendezvous, WhenTheStoreBreaks_SaysSoAtOnce) {
  MemoryStore store;
  store.breakDown();
  RendezvousOptions options;
  options.worldSize = 2;
  options.deadline = Clock::now() + 1h;
  const Status status = rendezvous(store, cpu(), options, {}).status();
  EXPECT_EQ(status.code(), Code::peerLost);
  EXPECT_TRUE(contains(status.message(), "the store is gone")) << status.message();
}

TEST(Rendezvous, WhenTheProtocolDiffers_NamesBothVersions) {
  Identity other = cpu();
  other.protocol = 9;
  const Status status = Ranks({cpu(), cpu(), other}).refusal();
  EXPECT_EQ(status.code(), Code::mismatch);
  EXPECT_EQ(status.culprit(), 2);
  EXPECT_TRUE(contains(status.message(), "rank 2 has protocol version '9', rank 0 (node-h0, pid 42) has '" +
                                             std::to_string(kProtocolVersion) + "'"))
      << status.message();
}

TEST(Rendezvous, WhenVersionsOrSettingsDiffer_NamesRankFieldAndBothValues) {
  Identity version = cpu(), torch = cpu(), settings = cpu();
  version.version = "0.2.0";
  torch.torch = "2.11.0";
  settings.settings = "chunk=2";
  EXPECT_TRUE(
      contains(Ranks({cpu(), version}).refusal().message(),
               "rank 1 (node-h0, pid 42) has kaitian version '0.2.0', rank 0 (node-h0, pid 42) has '0.1.0'"));
  EXPECT_TRUE(contains(Ranks({cpu(), torch}).refusal().message(), "torch version '2.11.0'"));
  EXPECT_TRUE(
      contains(Ranks({cpu(), cpu(), settings}).refusal().message(), "rank 2 (node-h0, pid 42) has settings"));
}

TEST(Rendezvous, WhenOnlyTheTorchPatchDiffers_IsFine) {
  Identity other = cpu();
  other.torch = "2.13.1+cu126";
  EXPECT_TRUE(Ranks({cpu(), other}).meet()[1].ok());
}

TEST(Rendezvous, WhenADeviceIsUsedTwice_NamesBothRanks) {
  const Status status = Ranks({cpu(), device("alpha", 0), device("alpha", 1), device("alpha", 0)}).refusal();
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_EQ(status.culprit(), 3);
  EXPECT_TRUE(contains(status.message(),
                       "rank 3 (node-h0, pid 42) and rank 1 (node-h0, pid 42) both have device "
                       "alpha:0 on host 'h0'"))
      << status.message();
}

TEST(Rendezvous, WhenDevicesAreOnOtherHostsOrCpus_MayHaveEqualNumbers) {
  EXPECT_TRUE(
      Ranks({device("alpha", 0), device("alpha", 0, "h1"), cpu(), cpu(), device("beta", 0)}).meet()[4].ok());
}

TEST(Rendezvous, WhenTheCallerRefuses_AllRanksFailWithItsReason) {
  Ranks ranks({cpu(), cpu(), cpu()});
  ranks.validate([](const std::vector<Identity>& identities) {
    return Status(Code::unsupported, "no more than 2 ranks, found " + std::to_string(identities.size()), 2);
  });
  const Status status = ranks.refusal();
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_EQ(status.message(), "no more than 2 ranks, found 3");
  EXPECT_EQ(status.culprit(), 2);
}

TEST(Rendezvous, WhenAnIdentityIsMalformed_NamesItsRankOnAllRanks) {
  for (const std::string& record : {std::string(), std::string("nonsense"), std::string(1'000'000, 'x'),
                                    serialize(cpu()) + "x", serialize(cpu()).substr(0, 40)}) {
    Ranks ranks({cpu(), cpu(), cpu()});
    ASSERT_TRUE(ranks.store.set(identityKey(2), record).ok());
    ranks.without({2});
    const Status status = ranks.refusal();
    EXPECT_EQ(status.code(), Code::mismatch);
    EXPECT_EQ(status.culprit(), 2);
    EXPECT_TRUE(contains(status.message(), "rank 2 published a malformed identity record"))
        << status.message();
  }
}

TEST(Rendezvous, WhenTheDecisionIsMalformed_TheRankRefusesIt) {
  Result<World> world = worldOf({cpu(), cpu()});
  world.value().secret = std::string(32, 's');
  const std::string whole = serializeDecision(world);
  const std::string cut = whole.substr(0, whole.size() - 1);
  world.value().ranks.push_back(cpu());
  const std::string otherSize = serializeDecision(world);
  for (const std::string& record : {std::string(), std::string("nonsense"), cut, otherSize}) {
    MemoryStore store;
    ASSERT_TRUE(store.set(kDecisionKey, record).ok());
    RendezvousOptions options;
    options.rank = 1;
    options.worldSize = 2;
    options.deadline = Clock::now() + 10s;
    const Status status = rendezvous(store, cpu(), options, {}).status();
    EXPECT_EQ(status.code(), Code::invalidArgument);
    EXPECT_TRUE(contains(status.message(), "rank 0 published a malformed decision")) << status.message();
  }
}

TEST(Rendezvous, WhenTheOwnIdentityIsTooLong_IsRefusedWithTheField) {
  MemoryStore store;
  Identity identity = cpu();
  identity.settings = std::string(257, 'x');
  const Status status = rendezvous(store, identity, {}, {}).status();
  EXPECT_EQ(status.code(), Code::invalidArgument);
  EXPECT_TRUE(contains(status.message(), "settings has 257 bytes, at most 256")) << status.message();
}

TEST(Confirm, WhenAllRanksAreConnected_IsOkAndCleanupLeavesNoKey) {
  Ranks ranks({cpu(), cpu(), cpu(), cpu()});
  ranks.each([&](int rank) {
    ASSERT_TRUE(rendezvous(ranks.store, cpu(), ranks.options(rank), {}).ok());
    EXPECT_TRUE(confirm(ranks.store, ranks.options(rank), {}).ok());
    cleanup(ranks.store, ranks.options(rank), Clock::now() + 20s);
  });
  EXPECT_EQ(ranks.store.keys(), std::set<std::string>{});
}

TEST(Confirm, WhenRanksFailToConnect_AllGetTheFailureOfTheLowest) {
  Ranks ranks({cpu(), cpu(), cpu(), cpu()});
  std::vector<Status> outcomes(4);
  ranks.each([&](int rank) {
    const Status mine = rank >= 2 ? Status(Code::peerLost, "no route to " + std::to_string(rank)) : Status();
    outcomes[static_cast<std::size_t>(rank)] = confirm(ranks.store, ranks.options(rank), mine);
  });
  for (const Status& outcome : outcomes) {
    EXPECT_EQ(outcome.code(), Code::peerLost);
    EXPECT_EQ(outcome.culprit(), 2);
    EXPECT_EQ(outcome.message(), "group 'dp': rank 2 failed to set up the group: no route to 2");
  }
}

TEST(Confirm, WhenRankZeroItselfFails_AllGetItsFailure) {
  Ranks ranks({cpu(), cpu()});
  ranks.each([&](int rank) {
    const Status mine = rank == 0 ? Status(Code::timeout, "rank 1 did not answer", 1) : Status();
    const Status outcome = confirm(ranks.store, ranks.options(rank), mine);
    EXPECT_EQ(outcome.code(), Code::timeout);
    EXPECT_EQ(outcome.culprit(), 1);
  });
}

TEST(Confirm, WhenARankDies_TheOthersNameIt) {
  Ranks ranks({cpu(), cpu(), cpu()});
  ranks.without({1}).timeout(100ms);
  ranks.each([&](int rank) {
    const Status outcome = confirm(ranks.store, ranks.options(rank), {});
    EXPECT_EQ(outcome.code(), Code::timeout);
    EXPECT_EQ(outcome.culprit(), 1);
    EXPECT_TRUE(contains(outcome.message(), "rank 1 did not connect to the group")) << outcome.message();
  });
}

TEST(Confirm, WhenAResultIsMalformed_NamesItsRank) {
  Ranks ranks({cpu(), cpu(), cpu()});
  ASSERT_TRUE(ranks.store.set(resultKey(1), "nonsense").ok());
  ranks.without({1});
  ranks.each([&](int rank) {
    const Status outcome = confirm(ranks.store, ranks.options(rank), {});
    EXPECT_EQ(outcome.culprit(), 1);
    EXPECT_TRUE(contains(outcome.message(), "rank 1 failed to set up the group: malformed result record"));
  });
}

TEST(Cleanup, WhenARankHasNotReadTheFinalDecision_WaitsForIt) {
  MemoryStore store;
  Ranks ranks({cpu(), cpu()});
  ASSERT_TRUE(store.set(resultKey(1), serializeStatus({})).ok());
  ASSERT_TRUE(confirm(store, ranks.options(0), {}).ok());
  cleanup(store, ranks.options(1), Clock::now());
  EXPECT_EQ(store.keys(), (std::set<std::string>{kFinalKey, resultKey(1)}));
  std::thread late([&] { EXPECT_TRUE(confirm(store, ranks.options(1), {}).ok()); });
  cleanup(store, ranks.options(0), Clock::now() + 20s);
  late.join();
  EXPECT_EQ(store.keys(), std::set<std::string>{});
}

TEST(Layout, WhenLibrariesAreAlike_MakesOneIslandAcrossHosts) {
  Identity newer = device("alpha", 2);
  newer.libraryVersion = "2.0";
  Identity none = device("alpha", 3);
  none.library = "";
  const plan::Layout layout =
      layoutOf({device("alpha", 0), cpu(), device("alpha", 0, "h1"), device("beta", 0), newer, none, none});
  EXPECT_EQ(layout, plan::Layout::make({0, 0, 1, 0, 0, 0, 0}, {0, 1, 0, 2, 3, 4, 5}));
}

TEST(World, WhenAnyMemberIsNotVerifiedAlike_VerifiesTheIsland) {
  const auto verify = [](std::vector<std::string> capabilities) {
    std::vector<Identity> ranks = {cpu()};
    for (std::size_t i = 0; i < capabilities.size(); ++i) {
      ranks.push_back(device("alpha", static_cast<int>(i)));
      ranks.back().capabilities = capabilities[i];
    }
    return worldOf(ranks).verify;
  };
  EXPECT_EQ(verify({"", ""}), (std::vector{false, true}));
  EXPECT_EQ(verify({"x", ""}), (std::vector{false, true}));
  EXPECT_EQ(verify({"x", "y"}), (std::vector{false, true}));
  EXPECT_EQ(verify({"x", "x"}), (std::vector{false, false}));
  EXPECT_EQ(verify({""}), (std::vector{false, false})) << "an island of one makes no communicator";
}

TEST(IdentityRecord, WhenSerialized_ParsesToTheSameValue) {
  Identity identity = device("alpha", 3, "häuschen");
  identity.settings = std::string(256, '\0');
  identity.pid = -5;
  const Result<Identity> parsed = parseIdentity(serialize(identity));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed.value(), identity);
}

TEST(IdentityRecord, WhenTheProtocolIsAnother_StillGivesItsVersion) {
  Identity identity = cpu();
  identity.protocol = kProtocolVersion + 1;
  const std::string record = serialize(identity);
  const Result<Identity> parsed = parseIdentity(record.substr(0, record.size() - 3));
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed.value().protocol, kProtocolVersion + 1);
  EXPECT_EQ(parsed.value().version, "0.1.0");
}

/// Random bytes, or `record` with a few bytes changed, cut or added.
std::string mutate(std::string record, std::mt19937_64& random) {
  if (random() % 4 == 0) {
    record.resize(random() % 200);
    for (char& c : record) c = static_cast<char>(random());
  }
  for (std::uint64_t change = random() % 4; change > 0 && !record.empty(); --change) {
    record[random() % record.size()] = static_cast<char>(random());
  }
  if (random() % 8 == 0) record.resize(random() % (record.size() + 8));
  return record;
}

TEST(Records, WhenBytesAreRandomOrMutated_GiveAValueOrARefusalAndNothingElse) {
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const std::string identity = serialize(device("alpha", 1));
  Result<World> world = worldOf({cpu(), device("alpha", 0), device("alpha", 1)});
  world.value().secret = std::string(32, 's');
  const std::string decision = serializeDecision(world);
  const std::string refusal = serializeDecision(Status(Code::mismatch, "no", 2));
  for (int i = 0; i < 60'000; ++i) {
    const std::string bytes = mutate(identity, random);
    const Result<Identity> parsed = parseIdentity(bytes);
    if (parsed.ok() && parsed.value().protocol == kProtocolVersion) {
      ASSERT_EQ(serialize(parsed.value()), bytes);
    }
    ASSERT_TRUE(parsed.ok() || parsed.status().code() == Code::invalidArgument);

    const std::string bytesOfDecision = mutate(i % 4 == 0 ? refusal : decision, random);
    Result<World> parsedWorld = Status(Code::internal, "not parsed");
    if (parseDecision(bytesOfDecision, 3, parsedWorld).ok() && parsedWorld.ok()) {
      ASSERT_EQ(parsedWorld.value().ranks.size(), 3U);
      ASSERT_EQ(parsedWorld.value().layout.worldSize(), 3);
    }
    Status status;
    static_cast<void>(
        parseStatus(mutate(serializeStatus(Status(Code::timeout, "late", 1)), random), status).ok());
  }
}

}  // namespace
}  // namespace kaitian::host
