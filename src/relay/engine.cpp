// The part of a group that the progress thread runs.
#include "relay/engine.h"

#include <algorithm>
#include <utility>

namespace kaitian::relay {

bool Engine::poll() {
  if (over_) return false;
  const auto now = host::Clock::now();
  if (now - std::exchange(lastPoll_, now) > 2 * context_->hosts.heartbeatPeriod()) awake_ = now + kWaking;
  if (context_->device && !context_->pool) context_->pool = process_.staging(context_->device);
  bool moved = takeInbox();
  if (!context_->hosts.failed()) {
    moved = publish() || moved;
    moved = context_->hosts.poll() || moved;
  }
  if (context_->hosts.status().ok()) moved = work() || moved;
  if (!context_->hosts.status().ok() && !failed_) {
    fail();
    moved = true;
  }
  if (aborting()) abortVendor();
  moved = releaseIdle() || moved;
  moved = context_->cooling.poll() || moved;
  return (closing_ && closeIfIdle()) || moved;
}

host::Clock::time_point Engine::nextPoll() const {
  if (over_) return host::Clock::time_point::max();
  if (failed_)
    return host::Clock::now() + std::chrono::milliseconds(100);  // only the vendor's calls are waited for
  auto next = std::min(context_->hosts.nextPoll(), nextCheck_);
  // Only asking tells that a call of the vendor library is over, and its tensors are kept until then.
  constexpr std::chrono::milliseconds kAsk{10};
  if (!passed_.empty()) next = std::min(next, host::Clock::now() + kAsk);
  return next;
}

Participant::Urgency Engine::urgency() const {
  if (over_) return Urgency::none;
  const auto copying = [](const auto& run) { return run->copyingOut(); };
  if (std::any_of(running_.begin(), running_.end(), copying) ||
      std::any_of(messages_.begin(), messages_.end(), copying))
    return Urgency::high;
  const bool barrierWaits = !unpublished_.empty();
  return context_->cooling.empty() && !barrierWaits && !aborting() ? Urgency::none : Urgency::low;
}

bool Engine::takeInbox() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    taken_.swap(inbox_);
    wakePending_ = false;
  }
  const bool any = !taken_.empty();
  for (auto& item : taken_) take(item);
  taken_.clear();
  return any;
}

void Engine::take(Item& item) {
  if (auto* task = std::get_if<Task>(&item)) return (*task)(*this);
  auto& note = std::get<Note>(item);
  watch(note.deadline);
  unpublished_.push_back({nullptr, std::move(note.signature)});
}

void Engine::forgetPassed() { dropElsewhere(passed_.takeEnded()); }

/// What they hold may need the GIL to go, which this thread never takes.
void Engine::dropElsewhere(std::vector<PassedCall> calls) {
  if (calls.empty()) return;
  auto held = std::make_shared<std::vector<PassedCall>>(std::move(calls));
  process_.complete([held]() mutable { held.reset(); });
}

bool Engine::publish() {
  bool moved = false;
  while (!unpublished_.empty()) {
    auto& next = unpublished_.front();
    if (next.collective) {
      if (!next.collective->publish()) break;
    } else {
      context_->hosts.publish(next.note);
      notes_.push_back(std::move(next.note));
    }
    unpublished_.pop_front();
    moved = true;
  }
  return moved;
}

/// A library has failed by itself. Soon the ranks' notes may tell why: they called different things, or one
/// died.
void Engine::checkLibrary() {
  if (!context_->vendor) return;
  const Status failure = context_->vendor->failure();
  if (failure.ok()) return;
  constexpr std::chrono::milliseconds kForReasons{200};
  const auto now = host::Clock::now();
  if (libraryFailed_ == host::Clock::time_point{}) libraryFailed_ = now;
  watch(libraryFailed_ + kForReasons);
  if (now - libraryFailed_ >= kForReasons)
    context_->fail({Code::vendor, who(rank_) + ": " + failure.message(), globalRank(rank_)});
}

bool Engine::work() {
  bool moved = compareNotes();
  forgetPassed();
  checkLibrary();
  if (!context_->hosts.status().ok()) return true;
  using Step = Result<bool> (Engine::*)();
  for (const Step step : {&Engine::compare, &Engine::planNext, &Engine::advance, &Engine::advanceMessages}) {
    auto result = (this->*step)();
    if (!result.ok()) return report(result.status());
    moved = result.value() || moved;
  }
  if (host::Clock::now() >= nextCheck_) checkDeadlines();
  return moved;
}

/// Fails the group. A library's error is often the echo of a failure elsewhere, whose reason is still on its
/// way: it gets a little time to arrive, so that all ranks tell the same.
bool Engine::report(const Status& status) {
  constexpr std::chrono::milliseconds kGrace{200};
  const auto now = host::Clock::now();
  if (status.code() == Code::vendor && reportBy_ == host::Clock::time_point::max()) reportBy_ = now + kGrace;
  if (status.code() == Code::vendor && now < reportBy_) {
    watch(reportBy_);
    return false;
  }
  context_->fail(status);
  return true;
}

Result<bool> Engine::compare() {
  bool moved = false;
  // Peers publish in call order: what comes behind an operation that some have not called cannot be complete
  // either.
  const auto all = [&](const std::shared_ptr<Collective>& collective) -> Result<bool> {
    if (collective->permitted()) return true;
    auto compared = collective->compare();
    if (!compared.ok()) return compared;
    moved = moved || compared.value();
    return collective->permitted();
  };
  for (const auto& collective : running_) {
    auto permitted = all(collective);
    if (!permitted.ok()) return permitted;
    if (!permitted.value()) return moved;
  }
  for (const auto& queued : queue_) {
    if (!queued.collective) continue;
    auto permitted = all(queued.collective);
    if (!permitted.ok()) return permitted;
    if (!permitted.value()) break;
  }
  return moved;
}

/// Operations of the vendor library alone: their signatures only serve messages.
bool Engine::compareNotes() {
  bool moved = false;
  while (!notes_.empty()) {
    std::vector<host::Signature> all;
    for (int rank = 0; rank < layout_.worldSize(); ++rank) {
      const auto* signature = context_->hosts.signature(notes_.front().sequence, rank);
      if (signature == nullptr) return moved;
      all.push_back(*signature);
    }
    if (Status status = host::compare(all, layout_, context_->config.globalRanks); !status.ok()) {
      context_->fail(status);
      return true;
    }
    context_->hosts.retire(notes_.front().sequence);
    notes_.pop_front();
    moved = true;
  }
  return moved;
}

Result<bool> Engine::planNext() {
  bool moved = activation_.poll();
  if (activation_.active() && !told_) {
    std::lock_guard<std::mutex> lock(mutex_);
    known_ = activation_.capabilities();
    ownCapabilities_ = activation_.own();
    told_ = true;
  }
  while (!queue_.empty()) {
    auto& queued = queue_.front();
    if (!queued.collective) {
      if (!planActivation(queued)) return moved;
      queue_.pop_front();
      moved = true;
      continue;
    }
    std::vector<EventRef> earlier;
    if (!queued.collective->published() || !mayStart(*queued.collective, earlier)) return moved;
    auto planned = queued.collective->plan(activation_, earlier);
    if (!planned.ok()) return planned;
    if (!planned.value()) return moved;
    running_.push_back(std::move(queued.collective));
    queue_.pop_front();
    moved = true;
  }
  return moved;
}

bool Engine::planActivation(Queued& queued) {
  activation_.start(queued.ticket);
  if (!activation_.active()) {
    const Status status = queued.call ? otherCall(*queued.call) : Status();
    if (!status.ok()) context_->fail(status);
    return false;
  }
  if (queued.ticket) context_->lane->close(queued.ticket);
  context_->finish(*queued.activation, {});
  return true;
}

/// A member publishes its communicator before its first operation, or calls something that needs none.
Status Engine::otherCall(const host::Signature& mine) const {
  for (const int rank : activation_.waitingFor()) {
    const auto* other = rank == rank_ ? nullptr : context_->hosts.signature(mine.sequence, rank);
    if (other == nullptr) continue;
    const auto called = [&](int who, const host::Signature& call) {
      return "rank " + std::to_string(globalRank(who)) + " called " + describe(call);
    };
    const bool later = rank > rank_;
    return {Code::mismatch,
            (later ? called(rank, *other) : called(rank_, mine)) + "; " +
                (later ? called(rank_, mine) : called(rank, *other)) +
                ". All ranks of a group must make the same calls in the same order",
            globalRank(rank)};
  }
  return {};
}

/// An operation on memory that an earlier one still uses comes after it, as on a stream.
bool Engine::mayStart(const Collective& collective, std::vector<EventRef>& earlier) {
  for (const auto& other : running_)
    if (collective.footprint().conflicts(other->footprint())) return false;
  std::erase_if(recent_, [](Recent& recent) { return allPast(recent.events); });
  for (const auto& recent : recent_)
    if (collective.footprint().conflicts(recent.footprint))
      earlier.insert(earlier.end(), recent.events.begin(), recent.events.end());
  return true;
}

Result<bool> Engine::advance() {
  constexpr std::size_t kInFlight = 16;  // more brings nothing: exchange.md counts no gain above 2
  bool moved = false;
  bool mayOpen = true;
  for (std::size_t i = 0; i < running_.size() && i < kInFlight && mayOpen; ++i) {
    auto advanced = running_[i]->advance(i == 0);
    if (!advanced.ok()) return advanced;
    moved = moved || advanced.value();
    mayOpen = running_[i]->opened();  // exchanges start in call order
  }
  for (auto it = running_.begin(); it != running_.end();) {
    if (!(*it)->ready()) {
      ++it;
      continue;
    }
    const auto collective = std::move(*it);
    it = running_.erase(it);
    finish(collective, {});
    moved = true;
  }
  return moved;
}

void Engine::startMessage(const std::shared_ptr<MessageRun>& message) {
  watch(message->deadline());
  messages_.push_back(message);
  if (over_ || !context_->hosts.status().ok()) return;
  if (Status status = message->start(); !status.ok()) context_->fail(status);
}

Result<bool> Engine::advanceMessages() {
  bool moved = false;
  for (auto it = messages_.begin(); it != messages_.end();) {
    auto advanced = (*it)->advance();
    if (!advanced.ok()) return advanced;
    moved = moved || advanced.value();
    if (!(*it)->ready()) {
      ++it;
      continue;
    }
    (*it)->finish({});
    (*it)->release();
    it = messages_.erase(it);
    moved = true;
  }
  return moved;
}

void Engine::finish(const std::shared_ptr<Collective>& collective, const Status& status) {
  lastFinish_ = host::Clock::now();
  if (status.ok()) context_->hosts.retire(collective->signature().sequence);
  collective->finish(status);
  if (status.ok() && !collective->events().empty())
    recent_.push_back({collective->footprint(), collective->events()});
  if (collective->idle())
    collective->release();
  else
    leaving_.push_back(collective);
}

}  // namespace kaitian::relay
