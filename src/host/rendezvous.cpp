#include "kaitian/host/rendezvous.h"

#include <algorithm>
#include <thread>

#include "host/rendezvous_ranks.h"
#include "host/rendezvous_records.h"
#include "kaitian/core/log.h"
#include "kaitian/core/sha256.h"
#include "kaitian/core/wire.h"

namespace kaitian::host {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

/// "12.3 s"
std::string seconds(Clock::duration duration) {
  const auto tenths = (duration_cast<milliseconds>(duration).count() + 50) / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

/// One wait of one rank: for keys of other ranks, with a warning after each `warnAfter`.
class Wait {
 public:
  Wait(Store& store, const RendezvousOptions& options, Clock::time_point deadline)
      : store_(store), options_(options), deadline_(deadline) {}

  /// `missing` names those waited for, at the moment of a warning.
  template <typename Missing>
  Result<std::string> get(const std::string& key, const Missing& missing) {
    while (true) {
      Result<std::string> value = store_.get(key, std::min(deadline_, nextWarning_));
      const bool late = !value.ok() && value.status().code() == Code::timeout;
      if (!late || Clock::now() >= deadline_) return value;
      if (Clock::now() < nextWarning_) continue;  // the store came back early
      core::log(core::LogLevel::warn, globalRank(options_.rank, options_), groupName(options_),
                ": waiting for ", missing(), " for ", seconds(elapsed()));
      nextWarning_ += options_.warnAfter;
    }
  }
  Clock::duration elapsed() const { return Clock::now() - start_; }

 private:
  Store& store_;
  const RendezvousOptions& options_;
  const Clock::time_point start_ = Clock::now();
  const Clock::time_point deadline_;
  Clock::time_point nextWarning_ = start_ + options_.warnAfter;
};

Status storeFailed(const RendezvousOptions& options, const std::string& what, const Status& status) {
  return {status.code(), groupName(options) + ": " + what + ": " + status.message(), status.culprit()};
}

/// Rank 0 reads one record per other rank; the own one is handed in.
class Collector {
 public:
  using KeyOf = std::string (*)(int);
  Collector(Store& store, const RendezvousOptions& options, KeyOf keyOf, const char* step)
      : store_(store),
        options_(options),
        keyOf_(keyOf),
        step_(step),
        wait_(store, options, options.deadline) {}

  Result<std::vector<std::string>> collect(std::string mine) {
    std::vector<std::string> records = {std::move(mine)};
    for (int rank = 1; rank < options_.worldSize; ++rank) {
      const auto missing = [&] { return rankNames(missingFrom(rank), options_); };
      Result<std::string> record = wait_.get(keyOf_(rank), missing);
      if (!record.ok()) return failure(rank, record.status());
      records.push_back(std::move(record).value());
    }
    return records;
  }

 private:
  /// Ranks from `first` on whose record is not there; `first` is the one that was waited for.
  std::vector<int> missingFrom(int first) {
    std::vector<int> missing = {first};
    for (int rank = first + 1; rank < options_.worldSize; ++rank) {
      if (!store_.check(keyOf_(rank))) missing.push_back(rank);
    }
    return missing;
  }

  Status failure(int rank, const Status& status) {
    if (status.code() != Code::timeout) return storeFailed(options_, "the store failed", status);
    const std::vector<int> missing = missingFrom(rank);
    return {
        Code::timeout,
        groupName(options_) + ": " + rankNames(missing, options_) + " did not " + step_ + " within " +
            seconds(wait_.elapsed()) + " (" +
            std::to_string(options_.worldSize - static_cast<int>(missing.size())) + " of " +
            std::to_string(options_.worldSize) +
            " ranks did). Look at their logs first: did these processes start, and can they reach the store?",
        globalRank(missing.front(), options_)};
  }

  Store& store_;
  const RendezvousOptions& options_;
  KeyOf keyOf_;
  const char* step_;
  Wait wait_;
};

/// Another rank waits for what rank 0 publishes. `firstKey` tells whether rank 0 was there at all.
Result<std::string> awaitRankZero(Store& store, const RendezvousOptions& options, const char* key,
                                  const char* what) {
  Wait wait(store, options, options.deadline + options.grace);
  Result<std::string> record = wait.get(key, [&] { return rankName(0, options); });
  if (record.ok()) return record;
  if (record.status().code() != Code::timeout)
    return storeFailed(options, "the store failed", record.status());
  const std::string zero = rankName(0, options);
  const bool came = store.check(identityKey(0));
  return Status(
      Code::timeout,
      groupName(options) + ": " + zero +
          (came ? " came to the rendezvous but published no " : " did not come to the rendezvous: no ") +
          what + " within " + seconds(wait.elapsed()) +
          (came ? ". Look at its log first" : ". Did this process start, and can it reach the store?"),
      globalRank(0, options));
}

Result<std::vector<Identity>> parseAll(const std::vector<std::string>& records,
                                       const RendezvousOptions& options) {
  std::vector<Identity> ranks;
  for (int rank = 0; rank < options.worldSize; ++rank) {
    Result<Identity> identity = parseIdentity(records[static_cast<std::size_t>(rank)]);
    if (!identity.ok()) {
      return Status(Code::mismatch,
                    groupName(options) + ": " + rankName(rank, options) + " published a " +
                        identity.status().message() + ". Install the same version of kaitian on all ranks",
                    globalRank(rank, options));
    }
    ranks.push_back(std::move(identity).value());
  }
  return ranks;
}

Result<World> decide(Store& store, const Identity& mine, const RendezvousOptions& options,
                     const Validate& validate) {
  Collector collector(store, options, identityKey, "come to the rendezvous");
  Result<std::vector<std::string>> records = collector.collect(serialize(mine));
  if (!records.ok()) return records.status();
  Result<std::vector<Identity>> ranks = parseAll(records.value(), options);
  if (!ranks.ok()) return ranks.status();
  if (Status status = checkWorld(ranks.value(), options); !status.ok()) return status;
  if (validate) {
    if (Status status = validate(ranks.value()); !status.ok()) return status;
  }
  World world = worldOf(std::move(ranks).value());
  std::vector<std::byte> secret(kSecretBytes);
  if (Status status = core::randomBytes(secret); !status.ok()) return status;
  world.secret = core::textOf(secret);
  return world;
}

Result<World> lead(Store& store, const Identity& mine, const RendezvousOptions& options,
                   const Validate& validate) {
  Result<World> decision = decide(store, mine, options, validate);
  if (Status status = store.set(kDecisionKey, serializeDecision(decision)); !status.ok()) {
    return decision.ok() ? storeFailed(options, "cannot publish the decision", status) : decision.status();
  }
  return decision;
}

Result<World> follow(Store& store, const RendezvousOptions& options) {
  Result<std::string> record = awaitRankZero(store, options, kDecisionKey, "decision");
  if (!record.ok()) return record.status();
  Result<World> decision = Status(Code::internal, "not parsed");
  if (Status status = parseDecision(record.value(), options.worldSize, decision); !status.ok()) {
    return Status(
        status.code(),
        groupName(options) + ": " + rankName(0, options) + " published a " + status.message() +
            ". Install the same version of kaitian on all ranks, and start them with the same world size",
        globalRank(0, options));
  }
  return decision;
}

/// The outcome of all results: the failure of the lowest rank that has one.
Status outcomeOf(const std::vector<std::string>& records, const RendezvousOptions& options) {
  for (int rank = 0; rank < options.worldSize; ++rank) {
    Status result;
    const Status parsed = parseStatus(records[static_cast<std::size_t>(rank)], result);
    const Status& failure = parsed.ok() ? result : parsed;
    if (failure.ok()) continue;
    const int culprit = failure.culprit() == Status::kNoRank ? globalRank(rank, options) : failure.culprit();
    return {failure.code(),
            groupName(options) + ": " + rankName(rank, options) +
                " failed to set up the group: " + failure.message(),
            culprit};
  }
  return {};
}

}  // namespace

Result<World> rendezvous(Store& store, const Identity& mine, const RendezvousOptions& options,
                         const Validate& validate) {
  if (Status status = checkSizes(mine); !status.ok()) return status;
  if (Status status = store.set(identityKey(options.rank), serialize(mine)); !status.ok()) {
    return storeFailed(options, "cannot publish the identity of this rank", status);
  }
  return options.rank == 0 ? lead(store, mine, options, validate) : follow(store, options);
}

namespace {

Status publishFinal(Store& store, const RendezvousOptions& options, const Status& mine) {
  Collector collector(store, options, resultKey, "connect to the group");
  Result<std::vector<std::string>> records = collector.collect(serializeStatus(mine));
  Status outcome = records.ok() ? outcomeOf(records.value(), options) : records.status();
  if (Status status = store.set(kFinalKey, serializeStatus(outcome)); !status.ok() && outcome.ok()) {
    return storeFailed(options, "cannot publish the final decision", status);
  }
  return outcome;
}

}  // namespace

Status confirm(Store& store, const RendezvousOptions& options, const Status& mine) {
  if (options.rank == 0) return publishFinal(store, options, mine);
  if (Status status = store.set(resultKey(options.rank), serializeStatus(mine)); !status.ok()) {
    return storeFailed(options, "cannot publish the result of this rank", status);
  }
  Result<std::string> record = awaitRankZero(store, options, kFinalKey, "final decision");
  if (!record.ok()) return record.status();
  store.remove(resultKey(options.rank));
  Status outcome;
  if (Status status = parseStatus(record.value(), outcome); !status.ok()) {
    return {status.code(),
            groupName(options) + ": " + rankName(0, options) + " published a " + status.message(),
            globalRank(0, options)};
  }
  return outcome;
}

void cleanup(Store& store, const RendezvousOptions& options, Clock::time_point until) {
  if (options.rank != 0) return;
  milliseconds pause{1};
  for (int rank = 1; rank < options.worldSize; ++rank) {
    while (store.check(resultKey(rank)) && Clock::now() < until) {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, milliseconds{50});
    }
  }
  for (int rank = 0; rank < options.worldSize; ++rank) {
    store.remove(identityKey(rank));
    store.remove(resultKey(rank));
  }
  store.remove(kDecisionKey);
  store.remove(kFinalKey);
}

}  // namespace kaitian::host
