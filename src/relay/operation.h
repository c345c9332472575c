// What the caller of an operation holds: its outcome.
//
// Ownership: shared by the caller and the group. Thread safety: any thread; finish() once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "kaitian/relay/relay.h"

namespace kaitian::relay {

class Engine;

class OperationState final : public Operation {
 public:
  /// `driver`: the group, if who waits may drive it.
  OperationState(std::uint64_t sequence, std::function<void()> done, std::weak_ptr<Engine> driver = {})
      : sequence_(sequence), done_(std::move(done)), driver_(std::move(driver)) {}

  std::uint64_t sequence() const override { return sequence_; }
  bool finished() const override { return finished_.load(std::memory_order_acquire); }
  bool completed() const override;
  bool wait(host::Clock::time_point until) override;
  Status status() const override { return status_; }
  std::vector<EventRef> events() const override { return events_; }
  int source() const override { return source_; }

  /// Ends the operation and returns its callback, which the caller gives to a completion thread.
  std::function<void()> finish(Status status, std::vector<EventRef> events, int source);

 private:
  const std::uint64_t sequence_;
  std::function<void()> done_;
  const std::weak_ptr<Engine> driver_;
  // Published by finished_ (release) to whoever reads it (acquire); constant from then on.
  Status status_;
  std::vector<EventRef> events_;
  int source_ = -1;
  std::atomic<bool> finished_{false};
  std::mutex mutex_;
  std::condition_variable reached_;
};

}  // namespace kaitian::relay
