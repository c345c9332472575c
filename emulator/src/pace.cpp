#include "pace.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <mutex>
#include <thread>

namespace kaitian::emulator {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// Shorter sleeps are dominated by the wake-up; what is owed is paid together with what comes next.
constexpr nanoseconds kShortestSleep{500'000};

std::mutex mutex;
Pace settings;                            // guarded by mutex
std::atomic<double> operatorSlowness{0};  // 0: not measured; a copy of `settings` that is cheap to read
std::atomic<std::int64_t> delayMilliseconds{0};

thread_local nanoseconds owed{0};

nanoseconds threadTime() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + nanoseconds(now.tv_nsec);
}

}  // namespace

Pace pace() {
  const std::lock_guard lock(mutex);
  return settings;
}

void setPace(const Pace& wanted) {
  const std::lock_guard lock(mutex);
  settings = wanted;
  operatorSlowness = wanted.measured && wanted.slowness > 1 ? wanted.slowness : 0;
}

std::chrono::milliseconds copyDelay() { return std::chrono::milliseconds(delayMilliseconds.load()); }
void setCopyDelay(std::chrono::milliseconds delay) { delayMilliseconds = delay.count(); }

OperatorPace::OperatorPace() : slowness_(operatorSlowness.load(std::memory_order_relaxed)) {
  if (slowness_ > 0) start_ = threadTime();
}

OperatorPace::~OperatorPace() {
  if (slowness_ <= 0) return;
  const double used = static_cast<double>((threadTime() - start_).count());
  owed += nanoseconds(static_cast<std::int64_t>(used * (slowness_ - 1)));
  if (owed < kShortestSleep) return;
  const auto before = steady_clock::now();
  std::this_thread::sleep_for(owed);
  owed -= std::chrono::duration_cast<nanoseconds>(steady_clock::now() - before);
}

TransferPace::TransferPace(std::size_t bytes, double bandwidth, bool delayed) {
  if (delayed && copyDelay().count() > 0) std::this_thread::sleep_for(copyDelay());
  const Pace now = pace();
  modelled_ = now.measured;
  if (!modelled_) return;
  const double seconds = static_cast<double>(bytes) / bandwidth;
  end_ = steady_clock::now() + now.copyLatency + nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

TransferPace::~TransferPace() {
  if (modelled_) std::this_thread::sleep_until(end_);
}

}  // namespace kaitian::emulator
