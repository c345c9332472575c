// The threads of a process and the groups that its progress thread drives.
//
// Ownership: groups register a Participant and keep the process alive; the progress thread keeps a
// participant until it is over. Thread safety: any thread, but where a comment says "progress thread".
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kaitian/relay/relay.h"
#include "relay/completion.h"
#include "relay/lane.h"
#include "relay/monitor.h"
#include "relay/staging.h"
#include "relay/thread.h"

namespace kaitian::relay {

/// A group as the progress thread sees it. All calls come from there.
class Participant {
 public:
  /// How soon turn() wants to be called again though nothing wakes the thread: device events are only seen by
  /// asking.
  enum class Urgency { none, low, high };
  struct Turn {
    bool moved = false;
    Urgency urgency = Urgency::none;
    host::Clock::time_point next = host::Clock::time_point::max();  // when to come again at the latest
    bool over = false;  // nothing is left to be done: the progress thread drops it
  };

  virtual ~Participant() = default;
  /// Moves what can be moved. Never blocks.
  virtual Turn turn() = 0;
  /// The thread is about to sleep; false if there is something to do at once.
  virtual bool rest() = 0;
};

class ProcessImpl final : public Process {
 public:
  ProcessImpl(std::shared_ptr<host::Listener> listener, std::unique_ptr<host::Poller> poller);
  ~ProcessImpl() override;

  std::shared_ptr<host::Listener> listener() override { return listener_; }
  host::Poller& poller() override { return *shared_->poller; }
  bool launch(const std::string& device, const std::function<void()>& now,
              const std::function<std::function<void()>()>& later) override;
  void complete(std::function<void()> callback) override;
  bool drain(std::chrono::milliseconds timeout) override;

  void add(std::shared_ptr<Participant> participant);
  std::shared_ptr<host::Poller> sharedPoller() const { return shared_->poller; }
  void wake() { shared_->poller->wake(); }
  Lane& lane(const std::string& device);
  Monitor& monitor() { return monitor_; }
  /// The staging memory of a device, shared by all groups on it. Progress thread.
  std::shared_ptr<StagingPool> staging(const std::shared_ptr<Device>& device);

 private:
  /// What the progress thread uses; outlives a process object that is dropped by one of its own threads.
  struct Shared {
    std::shared_ptr<host::Poller> poller;
    std::mutex mutex;
    std::vector<std::shared_ptr<Participant>> added;  // guarded by mutex
    bool driving = false;                             // guarded by mutex: participants are left
    std::atomic<bool> stopping{false};                // tells the progress thread to end
  };
  static void drive(Shared& shared);
  bool idle();

  std::shared_ptr<host::Listener> listener_;
  std::shared_ptr<Shared> shared_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Lane>> lanes_;     // guarded by mutex_
  std::map<Device*, std::weak_ptr<StagingPool>> staging_;  // progress thread
  CompletionPool completion_;
  Monitor monitor_;
  Thread progress_;
};

}  // namespace kaitian::relay
