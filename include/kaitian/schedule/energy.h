// The power modes and shares that use least energy, within a time that the step may take.
//
// A rank of slowness s in its mode computes s times as long as in its first one; what does not grow with its
// share (host, data, communication) stays. In a step of T seconds it uses activeWatts x busy + idleWatts x
// (T - busy) joules, busy being its computing. For given T the sum over the ranks is separable.
//
// Thread safety: pure functions over values.
#pragma once

#include <string>
#include <vector>

#include "kaitian/schedule/solver.h"

namespace kaitian::schedule {

struct PowerMode {
  std::string name;
  double slowness = 1;  // seconds of computing, against the first mode's
  double activeWatts = 0;
  double idleWatts = 0;
};

/// Modes of one rank, the one that its costs were measured in first. Empty: its power is not known; it counts
/// as 0 joules and has no other mode.
using PowerModes = std::vector<PowerMode>;

struct EnergyPlan {
  Shares shares;           // `seconds`: of the step in these modes
  std::vector<int> modes;  // [rank] index of the mode; 0 where there are none
  double joules = 0;       // of all ranks in a step that lasts the time given
};

/// Costs of a rank in one of its modes. REQUIRES: a mode with that index, or no modes and 0
RankCost inMode(const RankCost& rank, const PowerModes& modes, int mode);
Problem inModes(const Problem& problem, const std::vector<PowerModes>& power, const std::vector<int>& modes);
/// Joules of all ranks in a step that lasts `seconds`.
double joulesOf(const Problem& problem, const std::vector<PowerModes>& power, const Shares& shares,
                const std::vector<int>& modes, double seconds);

/// By rank the mode of least energy in a step that lasts `seconds` among those in which the rank is not
/// longer; its fastest one where there is none. Of equal ones the first. Code::invalidArgument names the rank
/// whose modes are not well formed.
Result<std::vector<int>> frugalModes(const Problem& problem, const std::vector<PowerModes>& power,
                                     const Shares& shares, double seconds);

/// Shares and modes of least joules in a step that lasts `deadline` seconds, no rank being longer; exact up
/// to rounding (dynamic programme over the sum of the shares). A rank's joules by items are cut into convex
/// pieces; adding one to the sums takes B log B operations (the least of each row of a Monge matrix: Aggarwal
/// et al., Geometric Applications of a Matrix-Searching Algorithm, 1987) or B x its length, if that is less.
///
/// With `mayExclude` ranks that may leave and have no share are left out; it then takes one entry of
/// `exposed`. Code::resource if no plan meets the deadline (the message gives the shortest possible time), or
/// if it would take more than kMostOperations; else as solve().
Result<EnergyPlan> leastEnergy(const Problem& problem, const std::vector<PowerModes>& power, double deadline);

/// Seconds rather than minutes. Convex costs need some 3e7 for 64 ranks, 32,768 items and a mode; costs with
/// a step per item come to ranks x B^2.
constexpr double kMostOperations = 1e10;

}  // namespace kaitian::schedule
