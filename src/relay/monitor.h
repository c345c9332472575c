// The thread that does what may block for groups that have failed: aborting vendor communicators, so that
// calls which hang in them come back.
//
// Ownership: owns its thread, started by the first task. Thread safety: any thread.
#pragma once

#include <functional>
#include <memory>

namespace kaitian::relay {

class Monitor {
 public:
  Monitor();
  /// Runs what is queued, then ends.
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  void run(std::function<void()> task);
  /// Nothing is queued, and what ran is gone with all that it held.
  bool idle() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace kaitian::relay
