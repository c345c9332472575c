// The threads that run `done` callbacks. One that is free to run, and one for each callback that waits for
// another operation.
//
// Ownership: owns its threads. Thread safety: any thread.
#pragma once

#include <functional>
#include <memory>

namespace kaitian::relay {

class CompletionPool {
 public:
  CompletionPool();
  /// Runs what is queued, then ends. A callback that does not come back is left behind after a few seconds.
  ~CompletionPool();
  CompletionPool(const CompletionPool&) = delete;
  CompletionPool& operator=(const CompletionPool&) = delete;

  void run(std::function<void()> callback);
  /// The calling thread begins or has ended something that may wait for a later callback: meanwhile another
  /// thread runs what is queued. Waits may nest. No effect on threads that are not of a pool.
  static void waits(bool begins);
  /// Nothing is queued, and what ran is gone with all that it held.
  bool idle() const;

 private:
  struct State;
  static void work(const std::shared_ptr<State>& state);
  static void grow(const std::shared_ptr<State>& state);
  std::shared_ptr<State> state_;
};

}  // namespace kaitian::relay
