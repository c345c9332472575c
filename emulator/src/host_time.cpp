#include "host_time.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>

namespace kaitian::emulator {
namespace {

using std::chrono::nanoseconds;

/// An open /proc/thread-self/schedstat: "computing queueing slices". The first number is as old as the last
/// tick of the kernel, so only the second is used.
class SchedStat {
 public:
  SchedStat() : file_(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}
  ~SchedStat() {
    if (file_ >= 0) close(file_);
  }
  SchedStat(const SchedStat&) = delete;
  SchedStat& operator=(const SchedStat&) = delete;

  nanoseconds queueing() const {
    char text[96];
    const ssize_t length = file_ < 0 ? 0 : pread(file_, text, sizeof text - 1, 0);
    if (length <= 0) return nanoseconds(0);
    text[length] = '\0';
    char* next = nullptr;
    std::strtoll(text, &next, 10);
    return nanoseconds(std::strtoll(next, nullptr, 10));
  }

 private:
  int file_;
};

}  // namespace

HostTime hostTime() {
  static thread_local const SchedStat statistics;
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return {std::chrono::seconds(now.tv_sec) + nanoseconds(now.tv_nsec), statistics.queueing()};
}

}  // namespace kaitian::emulator
