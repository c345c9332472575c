// A named thread whose end can be waited for with a bound, also by itself.
//
// Thread safety: start() and stop() by the owner.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

namespace kaitian::relay {

class Thread {
 public:
  Thread() = default;
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  ~Thread();

  /// `name` as the system shows it, at most 15 characters. What `body` uses must live until it returns.
  void start(const char* name, std::function<void()> body);
  /// Joins, for at most `grace`; a thread that is still in a call of a vendor library, or that is the caller
  /// itself, is left to end alone. True if it has ended. REQUIRES: the body has been told to end.
  bool stop(std::chrono::milliseconds grace);

 private:
  struct End;
  std::shared_ptr<End> end_;
  std::thread thread_;
};

}  // namespace kaitian::relay
