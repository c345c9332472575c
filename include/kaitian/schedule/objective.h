// What a schedule is to be good for: the shortest step, or least joules within a deadline.
//
// Thread safety: pure functions over values.
#pragma once

#include <vector>

#include "kaitian/schedule/energy.h"

namespace kaitian::schedule {

struct Objective {
  std::vector<PowerModes> power;  // [rank], or nothing where nobody's power is known
  double deadline = 0;            // seconds; > 0: least joules within it, 0: the shortest step

  bool energy() const { return deadline > 0; }
};

/// Part of the step that ranks in a slower mode leave free, as times scatter: else they would make it longer.
constexpr double kModeReserve = 0.02;

/// These shares in their best modes; `joules` of a step as long as these modes make it. With the energy
/// objective the plan may be later than the deadline; it is then the fastest one.
EnergyPlan inBestModes(const Problem& problem, const Objective& objective, const Shares& shares);

/// The best shares and modes. Where the energy objective's deadline cannot be met, the shortest step. Idle
/// ranks use energy too, so that a step as long as the deadline may use more than a shorter one: besides it
/// some shorter times are tried, evenly from the shortest one. Errors: as solve().
Result<EnergyPlan> bestPlan(const Problem& problem, const Objective& objective);

/// Whether a plan is worth changing to: by that part of the time, or of the joules where both meet the
/// deadline.
bool better(const Objective& objective, const EnergyPlan& plan, const EnergyPlan& now, double gain);

}  // namespace kaitian::schedule
