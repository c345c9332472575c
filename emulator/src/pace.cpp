#include "pace.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "host_time.h"
#include "speed.h"
#include "stream.h"

namespace kaitian::emulator {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// Shorter sleeps are dominated by the wake-up; what is owed is paid together with what comes next.
constexpr nanoseconds kShortestSleep{500'000};

std::mutex mutex;
Pace settings;  // guarded by mutex
// A copy of `settings` that is cheap to read.
std::atomic<PaceKind> currentKind{PaceKind::kOff};
std::atomic<double> slowness{1};
std::atomic<double> fixedSeconds{0}, secondsPerFlop{0}, secondsPerByte{0};
std::atomic<std::int64_t> step{1};

std::atomic<nanoseconds> busy{nanoseconds(0)};
std::atomic<std::int64_t> delayMilliseconds{0};

thread_local nanoseconds owed{0};

nanoseconds inNanoseconds(double seconds) { return nanoseconds(static_cast<std::int64_t>(seconds * 1e9)); }

void addBusy(nanoseconds time) {
  nanoseconds before = busy.load();
  while (!busy.compare_exchange_weak(before, before + time)) {
  }
}

nanoseconds nominalTime(const Work& work, TimePoint start) {
  const double seconds = fixedSeconds + work.flops * secondsPerFlop + work.bytes * secondsPerByte;
  return inNanoseconds(seconds * slowness * slowdown(start));
}

}  // namespace

Pace pace() {
  const std::lock_guard lock(mutex);
  return settings;
}

void setPace(const Pace& wanted) {
  const std::lock_guard lock(mutex);
  settings = wanted;
  currentKind = wanted.kind;
  slowness = wanted.slowness;
  fixedSeconds = wanted.fixedSeconds;
  secondsPerFlop = 1 / wanted.flopRate;
  secondsPerByte = 1 / wanted.byteRate;
  step = wanted.staircase;
  runDeviceClock(wanted.kind == PaceKind::kNominal);
}

bool countsWork() noexcept { return currentKind.load(std::memory_order_relaxed) == PaceKind::kNominal; }
std::int64_t staircase() noexcept { return step.load(std::memory_order_relaxed); }
nanoseconds busyTime() noexcept { return busy.load(); }

std::chrono::milliseconds copyDelay() { return std::chrono::milliseconds(delayMilliseconds.load()); }
void setCopyDelay(std::chrono::milliseconds delay) { delayMilliseconds = delay.count(); }

OperatorPace::OperatorPace(Stream& stream) : stream_(stream), kind_(currentKind.load()), onHost_(true) {
  if (kind_ == PaceKind::kNominal) start_ = std::max(stream.clock(), issueTime());
  if (kind_ == PaceKind::kMeasured) used_ = computingTime();
}

OperatorPace::OperatorPace(Stream& stream, TimePoint issued, const Work& work)
    : stream_(stream), kind_(currentKind.load()), onHost_(false), work_(work) {
  if (kind_ == PaceKind::kNominal) start_ = std::max(stream.clock(), issued);
  if (kind_ == PaceKind::kMeasured) used_ = computingTime();
}

OperatorPace::~OperatorPace() {
  if (kind_ == PaceKind::kMeasured) finishMeasured();
  if (kind_ == PaceKind::kNominal) finishNominal();
}

void OperatorPace::finishMeasured() {
  const nanoseconds used = computingTime() - used_;
  const double factor = std::max(1.0, slowness * slowdown(deviceNow()));
  const nanoseconds rest(static_cast<std::int64_t>(static_cast<double>(used.count()) * (factor - 1)));
  addBusy(used + rest);
  owed += rest;
  if (owed < kShortestSleep) return;
  const auto before = steady_clock::now();
  std::this_thread::sleep_for(owed);
  owed -= std::chrono::duration_cast<nanoseconds>(steady_clock::now() - before);
}

void OperatorPace::finishNominal() {
  const nanoseconds time = nominalTime(work_, start_);
  const TimePoint end = start_ + time;
  addBusy(time);
  stream_.reachOnClock(end);
  if (onHost_) {
    finishOnHost(end);
  } else {
    sleepUntil(end);
  }
}

TransferPace::TransferPace(Stream& stream, TimePoint issued, std::size_t bytes, Kind kind)
    : stream_(stream), kind_(kind) {
  const bool copy = kind == Kind::kCopy;
  const auto delay = copy ? copyDelay() : std::chrono::milliseconds(0);
  const Pace now = pace();
  modelled_ = now.kind != PaceKind::kOff;
  const TimePoint start = countsWork() ? std::max(stream.clock(), issued) : steady_clock::now();
  const double bandwidth = copy ? now.copyBandwidth : now.linkBandwidth;
  end_ = start + delay + now.copyLatency + inNanoseconds(static_cast<double>(bytes) / bandwidth);
  if (delay.count() > 0) std::this_thread::sleep_for(delay);
}

TransferPace::~TransferPace() {
  if (!modelled_) return;
  if (countsWork()) {
    if (kind_ == Kind::kCollective) end_ = std::max(end_, deviceNow());
    stream_.reachOnClock(end_);
  }
  sleepUntil(end_);
}

}  // namespace kaitian::emulator
