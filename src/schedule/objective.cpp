#include "kaitian/schedule/objective.h"

namespace kaitian::schedule {
namespace {

constexpr int kTimes = 5;  // from the shortest one to the deadline

std::vector<PowerModes> powerOf(const Problem& problem, const Objective& objective) {
  return objective.power.empty() ? std::vector<PowerModes>(problem.ranks.size()) : objective.power;
}

EnergyPlan inModesFor(const Problem& problem, const std::vector<PowerModes>& power, const Shares& shares,
                      double seconds) {
  EnergyPlan plan{shares, std::vector<int>(shares.items.size(), 0), 0};
  if (auto modes = frugalModes(problem, power, shares, seconds); modes.ok())
    plan.modes = std::move(modes).value();
  plan.shares.seconds = secondsOf(inModes(problem, power, plan.modes), shares);
  plan.joules = joulesOf(problem, power, shares, plan.modes, plan.shares.seconds);
  return plan;
}

/// Times to try, the deadline last. REQUIRES: shortest <= deadline
std::vector<double> timesBetween(double shortest, double deadline) {
  std::vector<double> times(kTimes);
  for (std::size_t k = 0; k < times.size(); ++k)
    times[k] = shortest + (deadline - shortest) * static_cast<double>(k) / (kTimes - 1);
  times.back() = deadline;
  return times;
}

/// Communication where nobody knows who will be left out: that of those who take part in the shortest step.
Problem forSetOf(const Problem& problem, const Shares& shares) {
  Problem single = problem;
  single.exposed = {exposedOf(problem, shares)};
  for (std::size_t i = 0; i < single.ranks.size(); ++i)
    if (!shares.active[i]) single.ranks[i].cap = 0;
  return single;
}

}  // namespace

EnergyPlan inBestModes(const Problem& problem, const Objective& objective, const Shares& shares) {
  const std::vector<PowerModes> power = powerOf(problem, objective);
  const double shortest = secondsOf(problem, shares);
  if (!objective.energy() || shortest > objective.deadline)
    return inModesFor(problem, power, shares, shortest * (1 - kModeReserve));
  EnergyPlan best = inModesFor(problem, power, shares, objective.deadline);
  for (const double seconds : timesBetween(shortest, objective.deadline))
    if (EnergyPlan plan = inModesFor(problem, power, shares, seconds); plan.joules < best.joules)
      best = std::move(plan);
  return best;
}

Result<EnergyPlan> bestPlan(const Problem& problem, const Objective& objective) {
  const Result<Shares> shortest = solve(problem);
  if (!shortest.ok()) return shortest.status();
  EnergyPlan best = inBestModes(problem, objective, shortest.value());
  if (!objective.energy() || shortest.value().seconds > objective.deadline) return best;
  const Problem single = forSetOf(problem, shortest.value());
  for (const double seconds : timesBetween(shortest.value().seconds, objective.deadline)) {
    const Result<EnergyPlan> found = leastEnergy(single, powerOf(problem, objective), seconds);
    if (!found.ok()) continue;  // too large a problem: the shortest step's shares, in frugal modes
    EnergyPlan plan = inBestModes(problem, objective, found.value().shares);
    if (plan.shares.seconds <= objective.deadline && plan.joules < best.joules) best = std::move(plan);
  }
  return best;
}

bool better(const Objective& objective, const EnergyPlan& plan, const EnergyPlan& now, double gain) {
  const bool late = now.shares.seconds > objective.deadline;
  if (!objective.energy() || (late && plan.shares.seconds > objective.deadline))
    return plan.shares.seconds < now.shares.seconds * (1 - gain);
  return late || plan.joules < now.joules * (1 - gain);
}

}  // namespace kaitian::schedule
