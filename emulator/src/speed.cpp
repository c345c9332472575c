#include "speed.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace kaitian::emulator {
namespace {

std::atomic<double> current{1};
std::atomic<double> modeSlowness{1};
std::mutex mutex;
std::vector<SpeedChange> changes;                     // guarded by mutex; the next one is the last
std::atomic<TimePoint> nextChange{TimePoint::max()};  // that of changes.back(), cheap to read

void apply(TimePoint at) {
  const std::lock_guard lock(mutex);
  while (!changes.empty() && changes.back().at <= at) {
    current = changes.back().factor;
    changes.pop_back();
  }
  nextChange = changes.empty() ? TimePoint::max() : changes.back().at;
}

}  // namespace

double slowdown(TimePoint at) {
  if (at >= nextChange.load()) apply(at);
  return modeSlowness.load() / current.load();
}

void setSpeed(double factor) { current = factor; }

double speed() {
  slowdown(deviceNow());
  return current.load();
}

void setModeSlowness(double factor) { modeSlowness = factor; }

void scheduleSpeeds(std::vector<SpeedChange> wanted) {
  std::sort(wanted.begin(), wanted.end(), [](const auto& a, const auto& b) { return a.at > b.at; });
  const std::lock_guard lock(mutex);
  changes = std::move(wanted);
  nextChange = changes.empty() ? TimePoint::max() : changes.back().at;
}

}  // namespace kaitian::emulator
