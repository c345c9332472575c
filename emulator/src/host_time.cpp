#include "host_time.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <string>

namespace kaitian::emulator {
namespace {

using std::chrono::nanoseconds;

nanoseconds read(clockid_t clock) {
  timespec now{};
  if (clock_gettime(clock, &now) != 0) return nanoseconds(0);
  return std::chrono::seconds(now.tv_sec) + nanoseconds(now.tv_nsec);
}

/// As pthread_getcpuclockid(), whose argument must be a thread that still runs when the clock is read.
clockid_t clockOf(pid_t thread) { return static_cast<clockid_t>(~static_cast<unsigned>(thread) << 3 | 6U); }

}  // namespace

nanoseconds computingTime() { return read(CLOCK_THREAD_CPUTIME_ID); }

HostThread::HostThread() {
  const auto id = static_cast<pid_t>(syscall(SYS_gettid));
  clock_ = clockOf(id);
  const std::string path = "/proc/self/task/" + std::to_string(id) + "/schedstat";
  statistics_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
}

HostThread::~HostThread() {
  if (statistics_ >= 0) close(statistics_);
}

HostTime HostThread::time() const { return {read(clock_), queueing()}; }

/// Out of "computing queueing slices", of which the first number is as old as the last tick of the kernel.
nanoseconds HostThread::queueing() const {
  char text[96];
  const ssize_t length = statistics_ < 0 ? 0 : pread(statistics_, text, sizeof text - 1, 0);
  if (length <= 0) return nanoseconds(0);
  text[length] = '\0';
  char* next = nullptr;
  std::strtoll(text, &next, 10);
  return nanoseconds(std::strtoll(next, nullptr, 10));
}

}  // namespace kaitian::emulator
