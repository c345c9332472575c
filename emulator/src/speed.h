// How much slower than at full speed the device is right now: by a power mode, and by events such as
// throttling.
//
// Ownership: one per process. Thread safety: any thread; a change holds for work that starts later.
#pragma once

#include <vector>

#include "clock.h"

namespace kaitian::emulator {

struct SpeedChange {
  TimePoint at;  // on the device's clock
  double factor = 1;
};

/// Durations at `at` are this many times those at full speed.
double slowdown(TimePoint at);
/// Of full speed, > 0.
void setSpeed(double factor);
double speed();
void setModeSlowness(double factor);
/// Replaces the changes to come.
void scheduleSpeeds(std::vector<SpeedChange> changes);

}  // namespace kaitian::emulator
