// How a group ends: by a failure, by shutdown() or by being dropped. Progress thread.
#include <algorithm>
#include <utility>

#include "relay/engine.h"

namespace kaitian::relay {

void Engine::fail() {
  failed_ = true;
  // Relaxed: see Context::failed.
  context_->failed.store(true, std::memory_order_relaxed);
  const Status status = context_->hosts.status();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    poison_ = status;
  }
  finishAll(status);
  constexpr std::chrono::milliseconds kGrace{500};  // a vendor call without a lost rank ends long before
  abortBy_ = host::Clock::now() + kGrace;
  abortVendor();
}

/// Aborts the library, so that calls which hang in it come back; but operations that were reported as good
/// may still run on the device, and an abort would leave wrong data behind without an error.
void Engine::abortVendor() {
  std::erase_if(recent_, [](Recent& recent) { return allPast(recent.events); });
  if (!recent_.empty() && host::Clock::now() < abortBy_) return;
  abortBy_ = host::Clock::time_point::max();
  if (context_->vendor) process_.monitor().run([vendor = context_->vendor] { vendor->abort(); });
}

void Engine::finishAll(const Status& status) {
  for (const auto& collective : std::exchange(running_, {})) finish(collective, status);
  for (const auto& queued : std::exchange(queue_, {})) {
    if (queued.collective) {
      finish(queued.collective, status);
      continue;
    }
    if (queued.ticket) context_->lane->close(queued.ticket);
    context_->finish(*queued.activation, status);
  }
  for (const auto& message : std::exchange(messages_, {})) {
    message->finish(status);
    message->release();
  }
  unpublished_.clear();
  notes_.clear();
  dropElsewhere(passed_.takeAll());
  nextCheck_ = host::Clock::time_point::max();
}

bool Engine::releaseIdle() {
  // What came in after the failure.
  if (failed_ && busy()) finishAll(context_->hosts.status());
  return std::erase_if(leaving_, [](const auto& collective) {
           if (!collective->idle()) return false;
           collective->release();
           return true;
         }) > 0;
}

bool Engine::closeIfIdle() {
  const bool inFlight = busy() || !passed_.empty();
  const bool late = inFlight && context_->hosts.status().ok() && host::Clock::now() >= closeBy_;
  if (late) context_->fail(leftInFlight());
  if (inFlight || aborting() || !leaving_.empty() || !context_->cooling.empty() || !activation_.idle())
    return late;
  end();
  return true;
}

/// The failure of a group that is closed while something is in flight.
Status Engine::leftInFlight() const {
  if (leaves_)
    return {Code::peerLost,
            "the process of " + who(rank_) + " ends while " + inFlight() + " was in flight in " + inGroup() +
                "; look at its log first",
            globalRank(rank_)};
  return {Code::timeout,
          "shutdown of " + inGroup() + ": " + inFlight() + " was still in flight; " + who(rank_) +
              " waited for it until its deadline",
          globalRank(rank_)};
}

/// The oldest operation that is not over; a collective before a message.
std::string Engine::inFlight() const {
  if (!running_.empty()) return describe(running_.front()->signature());
  for (const auto& queued : queue_) {
    if (queued.collective) return describe(queued.collective->signature());
    if (queued.call) return describe(*queued.call);
  }
  if (!messages_.empty()) return messages_.front()->describe();
  if (const auto passed = passed_.oldest()) return describe(passed->signature);
  return "an operation";
}

void Engine::end() {
  // A last note may not have gone out.
  if (context_->hosts.status().ok()) {
    publish();
    context_->hosts.close();
  }
  over_ = true;
  recent_.clear();
  std::vector<Item> late;
  Status status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    lastTraffic_ = context_->hosts.traffic();
    if (poison_.ok()) poison_ = Status(Code::aborted, inGroup() + " has been shut down");
    status = poison_;
    closed_ = true;
    late.swap(inbox_);
  }
  for (auto& item : late) take(item);
  finishAll(status);
  // Libraries and devices may need the GIL to go, which this thread never takes.
  process_.complete([vendor = std::move(context_->vendor), device = std::move(context_->device)]() mutable {
    vendor.reset();
    device.reset();
  });
  context_->pool.reset();
  context_->owned.reset();
  ended_.notify_all();
}

}  // namespace kaitian::relay
