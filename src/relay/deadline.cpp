// When the time of an operation is over: who is to blame, in words.
#include <algorithm>
#include <cstdio>
#include <set>

#include "kaitian/host/ranks.h"
#include "relay/engine.h"

namespace kaitian::relay {
namespace {

constexpr std::chrono::milliseconds kForOthers{500};

std::string seconds(host::Clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace

int Engine::globalRank(int rank) const { return host::globalRank(context_->config.globalRanks, rank); }

/// "rank 3 (host b, pid 17, alpha:0)"
std::string Engine::who(int rank) const {
  const auto& all = context_->config.who;
  const auto i = static_cast<std::size_t>(rank);
  const std::string number = "rank " + std::to_string(globalRank(rank));
  return i < all.size() && !all[i].empty() ? number + " (" + all[i] + ")" : number;
}

std::string Engine::whoAll(const std::vector<int>& ranks) const {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + who(rank);
  return text;
}

std::string Engine::describe(const host::Signature& signature) const {
  return host::describe(signature, context_->config.globalRanks);
}

std::string Engine::inGroup() const { return "group \"" + context_->config.name + "\""; }

host::Clock::time_point Engine::lastProgress() const {
  host::Clock::time_point latest = lastFinish_;
  for (const auto& collective : running_) latest = std::max(latest, collective->lastProgress());
  return latest;
}

void Engine::checkDeadlines() {
  const auto now = host::Clock::now();
  if (now - lastPoll_ > 2 * context_->hosts.heartbeatPeriod()) awake_ = now + kWaking;
  if (now < awake_) {
    nextCheck_ = awake_;
    return;
  }
  // An operation that waits behind others has time as long as data of others comes in.
  const auto progress = lastProgress();
  nextCheck_ = closeBy_ > now ? closeBy_ : host::Clock::time_point::max();
  const auto check = [&](const std::shared_ptr<Collective>& collective) {
    const auto deadline = std::max(collective->deadline(), progress + collective->timeout());
    watch(deadline);
    if (now < deadline) return false;
    // Deadlines of all ranks pass together. The error of one that knows the cause is worth a moment.
    const auto patience = std::min<host::Clock::duration>(kForOthers, collective->timeout() / 10);
    if (now < deadline + patience && !knowsWhy(*collective)) {
      watch(deadline + patience);
      return false;
    }
    context_->fail(expired(*collective));
    return true;
  };
  for (const auto& collective : running_)
    if (check(collective)) return;
  for (const auto& queued : queue_) {
    if (queued.collective) {
      if (check(queued.collective)) return;
      continue;
    }
    watch(queued.deadline);
    if (now < queued.deadline) continue;
    context_->fail(expiredActivation());
    return;
  }
  if (checkPassed(now)) return;
  for (const auto& message : messages_) {
    watch(message->deadline());
    if (now < message->deadline()) continue;
    context_->fail(expired(*message));
    return;
  }
}

/// The rank that has been silent longest, if that is longer than two heartbeats: it is dead or stopped, not
/// late.
std::optional<std::pair<std::string, int>> Engine::silentRank() const {
  int silent = -1;
  auto longest = 2 * context_->hosts.heartbeatPeriod();
  for (int rank = 0; rank < layout_.worldSize(); ++rank) {
    if (rank == rank_ || context_->hosts.silence(rank) <= longest) continue;
    silent = rank;
    longest = context_->hosts.silence(rank);
  }
  if (silent < 0) return std::nullopt;
  return std::pair(who(silent) + " has not answered for " + seconds(longest), silent);
}

bool Engine::checkPassed(host::Clock::time_point now) {
  forgetPassed();
  const auto oldest = passed_.oldest();
  if (!oldest) return false;
  watch(oldest->deadline);
  if (now < oldest->deadline) return false;
  context_->fail(expired(*oldest));
  return true;
}

std::vector<int> Engine::notCalled(std::uint64_t sequence) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < layout_.worldSize(); ++rank)
    if (rank != rank_ && context_->hosts.published(rank) <= sequence) ranks.push_back(rank);
  return ranks;
}

/// "rank 3 (…) has called 11 operations, not this one"
std::string Engine::describeNotCalled(std::uint64_t sequence, const std::vector<int>& ranks) const {
  constexpr std::size_t kNamed = 4;
  std::string text;
  for (std::size_t i = 0; i < ranks.size() && i < kNamed; ++i) {
    text += (i == 0 ? "" : "; ") + who(ranks[i]);
    const std::uint64_t published = context_->hosts.published(ranks[i]);
    text += published <= sequence ? " has called " + std::to_string(published) + " operations, not this one"
                                  : " has called it";
  }
  if (ranks.size() > kNamed) text += "; and " + std::to_string(ranks.size() - kNamed) + " more";
  return text;
}

/// Why the operation does not end; `culprit` gets the rank to look at first, or stays.
std::string Engine::explain(const Collective& collective, int& culprit) const {
  if (const auto silent = silentRank()) {
    culprit = silent->second;
    return silent->first + "; look at its log first";
  }
  if (const auto missing = collective.notCalled(); !missing.empty()) {
    culprit = missing.front();
    return describeNotCalled(collective.signature().sequence, missing);
  }
  if (activation_.started() && !activation_.active()) return expiredActivation().message();
  if (collective.inVendorCall() && context_->vendor)
    return who(rank_) + " waits in a call of " + context_->vendor->name() +
           "; all ranks have called the operation, look for a rank whose vendor library hangs";
  if (const auto ranks = collective.waitingFor(); !ranks.empty() && !collective.copyingOut()) {
    culprit = ranks.front();
    return who(rank_) + " waits for data of " + whoAll(ranks);
  }
  std::string reason = who(rank_) + " waits for its own device";
  if (context_->vendor && activation_.active())
    reason += ", or for calls of " + context_->vendor->name() + " that it has been given";
  return reason;
}

/// Whether this rank knows more than that data of others has not come.
bool Engine::knowsWhy(const Collective& collective) const {
  return silentRank() || !collective.notCalled().empty() ||
         (activation_.started() && !activation_.active()) || collective.inVendorCall() ||
         collective.copyingOut() || collective.waitingFor().empty();
}

Status Engine::expired(const Collective& collective) const {
  int culprit = rank_;
  const auto waited = host::Clock::now() - collective.submitted();
  const std::string reason = explain(collective, culprit);
  return {Code::timeout,
          describe(collective.signature()) + " in " + inGroup() + " did not finish within " +
              seconds(waited) + ": " + reason + ". Hint: raise the timeout if this step is known to be slow",
          globalRank(culprit)};
}

Status Engine::expired(const PassedCall& call) const {
  int culprit = rank_;
  std::string reason;
  if (const auto silent = silentRank()) {
    culprit = silent->second;
    reason = silent->first + "; look at its log first";
  } else if (const auto missing = notCalled(call.signature.sequence); !missing.empty()) {
    culprit = missing.front();
    reason = describeNotCalled(call.signature.sequence, missing);
  } else {
    reason = who(rank_) + " waits for " + context_->vendor->name() +
             "; all ranks have called the operation, look for a rank whose vendor library or device hangs";
  }
  return {Code::timeout,
          describe(call.signature) + " in " + inGroup() + " did not finish within " +
              seconds(host::Clock::now() - call.submitted) + ": " + reason +
              ". Hint: raise the timeout if this step is known to be slow",
          globalRank(culprit)};
}

Status Engine::expired(const MessageRun& message) const {
  const auto waited = host::Clock::now() - message.submitted();
  int culprit = message.peer() >= 0 ? message.peer() : rank_;
  std::string reason = message.peer() >= 0
                           ? who(culprit) + " has not called its side, or has no room for it yet"
                           : "no rank has sent with this tag";
  if (const auto silent = silentRank()) {
    culprit = silent->second;
    reason = silent->first + "; look at its log first";
  }
  return {Code::timeout,
          message.describe() + " on " + who(rank_) + " in " + inGroup() + " did not finish within " +
              seconds(waited) + ": " + reason,
          globalRank(culprit)};
}

Status Engine::expiredActivation() const {
  if (const auto silent = silentRank())
    return {Code::timeout,
            "vendor communicators of " + inGroup() + " were not made in time: " + silent->first +
                "; look at its log first",
            globalRank(silent->second)};
  auto missing = activation_.waitingFor();
  // A library that waits for another member is not to blame.
  if (missing.size() > 1) std::erase(missing, rank_);
  const int culprit = missing.empty() ? rank_ : missing.front();
  return {Code::timeout,
          "vendor communicators of " + inGroup() + " were not made in time: " +
              (missing.empty() ? "all ranks have made theirs" : whoAll(missing) + " has not made its own"),
          globalRank(culprit)};
}

}  // namespace kaitian::relay
