#include "clock.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>

#include "host_time.h"

namespace kaitian::emulator {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// Shorter sleeps are dominated by the wake-up: the clock may be this far ahead of real time.
constexpr nanoseconds kShortestSleep = 100us;
// Between two operators the host may compute this long behind the queue of a real device.
constexpr nanoseconds kHidden = 5ms;
// More than this is not paid off: steps that were much faster than the model would be as wrong as the slow
// ones.
constexpr nanoseconds kLargestLag = 500ms;
// Forgiven lag that is not worth a warning: a process is slow in its first steps, whatever the pace.
constexpr nanoseconds kWarmUp = 500ms;
constexpr double kTolerated = 0.05;

std::atomic<bool> nominal{false};
std::atomic<nanoseconds> lag{0ns};
std::atomic<nanoseconds> forgiven{0ns};
std::atomic<TimePoint> began{TimePoint{}};
std::atomic<bool> warned{false};

struct Host {
  HostThread thread;
  HostTime atContact;  // guarded by Contact::mutex
};
thread_local std::shared_ptr<Host> host;

/// The last one of a host with the device, in real time.
struct Contact {
  std::mutex mutex;
  TimePoint at;
  std::shared_ptr<Host> by;
};
Contact& lastContact() {
  static auto* const instance = new Contact;
  return *instance;
}

void contactNow(TimePoint now) {
  Contact& last = lastContact();
  const std::lock_guard lock(last.mutex);
  host->atContact = host->thread.time();
  last.at = now;
  last.by = host;
}

HostTime sinceContact(const Host& one) {
  const HostTime now = one.thread.time();
  // A thread that is over has no time any more.
  return {std::max(now.computing - one.atContact.computing, nanoseconds(0)),
          std::max(now.queueing - one.atContact.queueing, nanoseconds(0))};
}

/// Of the time since the last contact, how much the model leaves out. If another thread was the host until
/// then, as backward follows forward, this one waited for it, and both may have been busy since.
nanoseconds hiddenSinceContact(TimePoint now) {
  Contact& last = lastContact();
  const std::lock_guard lock(last.mutex);
  HostTime busy = sinceContact(*host);
  if (last.by && last.by != host) {
    const HostTime before = sinceContact(*last.by);
    busy.computing += before.computing;
    busy.queueing += before.queueing;
  }
  return std::clamp<nanoseconds>(std::min(busy.computing, kHidden) + busy.queueing, 0ns,
                                 std::max<nanoseconds>(now - last.at, 0ns));
}

void warnIfHopeless(TimePoint now) {
  const nanoseconds lost = forgiven.load();
  const double part = static_cast<double>(lost.count()) / static_cast<double>((now - began.load()).count());
  if (lost < kWarmUp || part < kTolerated || warned.exchange(true)) return;
  std::fprintf(stderr,
               "kaitian_emulator: warning: real work takes longer than the nominal pace allows (%.1f s lost, "
               "%.0f %% of"
               " the time): speeds are wrong; use a larger slowness, fewer devices or an idle machine\n",
               std::chrono::duration<double>(lost).count(), part * 100);
}

void setLag(nanoseconds wanted, TimePoint now) {
  lag = std::min(wanted, kLargestLag);
  if (wanted <= kLargestLag) return;
  forgiven = forgiven.load() + (wanted - kLargestLag);
  warnIfHopeless(now);
}

}  // namespace

void runDeviceClock(bool wanted) {
  const auto now = steady_clock::now();
  nominal = wanted;
  lag = 0ns;
  forgiven = 0ns;
  began = now;
  Contact& last = lastContact();
  const std::lock_guard lock(last.mutex);
  last.at = now;
  last.by = nullptr;
}

bool modelsTime() noexcept { return nominal.load(std::memory_order_relaxed); }

TimePoint deviceNow() { return steady_clock::now() - (nominal ? lag.load() : 0ns); }

TimePoint issueTime() {
  if (!nominal || !host) return deviceNow();
  const auto now = steady_clock::now();
  setLag(lag.load() + hiddenSinceContact(now), now);
  contactNow(now);
  return now - lag.load();
}

void finishOnHost(TimePoint end) {
  // The default slack of the kernel is half of the shortest sleep.
  if (!host) {
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    host = std::make_shared<Host>();
  }
  if (end - steady_clock::now() > kShortestSleep) std::this_thread::sleep_until(end);
  const auto now = steady_clock::now();
  setLag(now - end, now);
  contactNow(now);
}

void finishWait(TimePoint begin, TimePoint end) {
  if (!nominal || !host) return;
  const auto now = steady_clock::now();
  setLag(now - std::max(begin, end), now);
  contactNow(now);
}

void sleepUntil(TimePoint end) {
  if (end > steady_clock::now()) std::this_thread::sleep_until(end);
}

ClockReport clockReport() { return {lag.load(), forgiven.load()}; }

}  // namespace kaitian::emulator
