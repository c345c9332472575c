// What one thread of the host did with its time.
//
// Thread safety: a HostTime belongs to the thread that made it.
#pragma once

#include <chrono>

namespace kaitian::emulator {

struct HostTime {
  std::chrono::nanoseconds computing{0};
  std::chrono::nanoseconds queueing{0};  // ready to run, but no core was free
};

/// Of the calling thread, since it began. The queueing is 0 where Linux does not tell.
HostTime hostTime();

}  // namespace kaitian::emulator
