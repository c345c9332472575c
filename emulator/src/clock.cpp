#include "clock.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <optional>
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
std::atomic<TimePoint> lastContact{TimePoint{}};  // of any host with the device, in real time
std::atomic<bool> warned{false};

/// What a thread did until its own last contact.
struct Host {
  TimePoint contact;
  HostTime time;
};
thread_local std::optional<Host> host;

void contactNow(TimePoint now) {
  host = Host{now, hostTime()};
  lastContact = now;
}

/// Of the time since the host's last contact, how much the model leaves out. Another thread may have been the
/// host until then; this one was waiting for it.
nanoseconds hiddenSinceContact(TimePoint now) {
  const nanoseconds gap = std::max(nanoseconds(now - lastContact.load()), 0ns);
  const HostTime time = hostTime();
  const nanoseconds computed = time.computing - host->time.computing;
  const nanoseconds waited = now - host->contact - computed - (time.queueing - host->time.queueing);
  const nanoseconds waitedForOthers = lastContact.load() - host->contact;
  const nanoseconds idle = std::clamp<nanoseconds>(waited - waitedForOthers, 0ns, gap);
  const nanoseconds visible = std::max<nanoseconds>(std::min(computed, gap - idle) - kHidden, 0ns);
  return gap - idle - visible;
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
  lastContact = now;
  host.reset();
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
  if (!host) prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
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
