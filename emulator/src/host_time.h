// What a thread of the host did with its time.
#pragma once

#include <sys/types.h>

#include <chrono>

namespace kaitian::emulator {

struct HostTime {
  std::chrono::nanoseconds computing{0};
  std::chrono::nanoseconds queueing{0};  // ready to run, but no core was free
};

/// CPU time of the calling thread.
std::chrono::nanoseconds computingTime();

/// The thread that makes it. Thread safety: any thread may ask.
class HostThread {
 public:
  HostThread();
  ~HostThread();
  HostThread(const HostThread&) = delete;
  HostThread& operator=(const HostThread&) = delete;

  /// Since the thread began; zeros if it is over. The queueing is 0 where Linux does not tell.
  HostTime time() const;

 private:
  std::chrono::nanoseconds queueing() const;

  clockid_t clock_;
  int statistics_;
};

}  // namespace kaitian::emulator
