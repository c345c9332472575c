// The clock of the device at the pace `nominal`. An emulated device computes on busy cores, so its work takes
// longer or shorter than the model says; and what the host does between two operators would hide behind the
// queue of a real device. Both go into a lag: the device's clock is that far behind real time, and later work
// pays it off by sleeping less. Durations on this clock are exact, and so is the average of what one sees on
// a wall clock.
//
// At other paces the clock is the real one. Ownership: one clock per process. Thread safety: any thread; only
// threads that run operators ("hosts") change the lag.
#pragma once

#include <chrono>
#include <cstdint>

namespace kaitian::emulator {

using TimePoint = std::chrono::steady_clock::time_point;

/// Starts the clock at real time, or makes it the real one.
void runDeviceClock(bool nominal);

/// Whether the clock is the model's.
bool modelsTime() noexcept;

/// The time on the device's clock.
TimePoint deviceNow();
/// As deviceNow() for a thread that hands work to the device: what it computed or waited for a core since the
/// host's last contact with the device does not count, what it slept or waited for anything else does.
TimePoint issueTime();
/// This thread has done work that ends at `end` on the device's clock: sleeps until then, or lags behind.
void finishOnHost(TimePoint end);
/// This thread, which called issueTime() at `begin`, has waited for work that ended at `end` on the device's
/// clock.
void finishWait(TimePoint begin, TimePoint end);
void sleepUntil(TimePoint end);

struct ClockReport {
  std::chrono::nanoseconds lag{0};
  std::chrono::nanoseconds forgiven{0};  // lag that was too large to be paid off
};
ClockReport clockReport();

}  // namespace kaitian::emulator
