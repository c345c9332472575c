#include "kaitian/simulate/run.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

namespace kaitian::simulate {
namespace {

constexpr double kSettled = 0.03;

/// Normal deviates by Box and Muller over SplitMix64 (Steele, Lea, Flood, 2014); the standard library's
/// differ from one implementation to the next.
class Noise {
 public:
  explicit Noise(std::uint64_t seed) : state_(seed) {}
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  double uniform() {  // (0, 1]
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    return (static_cast<double>((z ^ (z >> 31U)) >> 11U) + 1) * 0x1.0p-53;
  }
  std::uint64_t state_;
};

Status check(const Simulator& simulator, const RunOptions& options) {
  const auto bad = [](const std::string& what) { return Status(Code::invalidArgument, "run: " + what); };
  if (options.steps < 1) return bad("steps: expected >= 1, found " + std::to_string(options.steps));
  if (!(options.noise >= 0) || !std::isfinite(options.noise))
    return bad("noise: expected >= 0, found " + std::to_string(options.noise));
  const std::size_t ranks = simulator.problem().ranks.size();
  std::int64_t last = 0;
  for (std::size_t i = 0; i < options.changes.size(); ++i) {
    const SpeedChange& change = options.changes[i];
    const std::string name = "events[" + std::to_string(i) + "]: ";
    if (change.rank < 0 || static_cast<std::size_t>(change.rank) >= ranks)
      return bad(name + "rank: expected 0 to " + std::to_string(ranks - 1) + ", found " +
                 std::to_string(change.rank));
    if (!(change.speed > 0) || !std::isfinite(change.speed))
      return bad(name + "speed: expected above 0, found " + std::to_string(change.speed));
    if (change.step < last)
      return bad(name + "step: expected " + std::to_string(last) + " or later, found " +
                 std::to_string(change.step));
    last = change.step;
  }
  return {};
}

Result<schedule::Controller> controllerFor(const Simulator& simulator, const RunOptions& options) {
  const Cluster& cluster = simulator.cluster();
  schedule::ControllerOptions control;
  control.batch = cluster.batch;
  control.horizon = options.horizon;
  control.microBatches = cluster.microBatches;
  for (std::size_t i = 0; i < cluster.ranks.size(); ++i) {
    const Rank& rank = cluster.ranks[i];
    const std::int64_t memory = rank.memory == 0 ? cluster.batch : rank.memory;
    control.ranks.push_back(
        {rank.floor, memory, rank.quantum, rank.accumulates, simulator.problem().ranks[i].island});
  }
  return schedule::Controller::make(std::move(control));
}

/// The cluster at the speeds of a step.
class Now {
 public:
  Now(const Simulator& simulator, const std::vector<SpeedChange>& changes)
      : simulator_(simulator), changes_(changes), speeds_(simulator.problem().ranks.size(), 1.0) {}

  Status moveTo(std::int64_t step) {
    bool changed = step == 0;
    for (; next_ < changes_.size() && changes_[next_].step <= step; ++next_, changed = true)
      speeds_[static_cast<std::size_t>(changes_[next_].rank)] = changes_[next_].speed;
    if (!changed) return {};
    schedule::Problem problem = simulator_.problem();
    for (std::size_t i = 0; i < speeds_.size(); ++i) problem.ranks[i].scale /= speeds_[i];
    const auto best = solve(problem);
    if (!best.ok()) return best.status();
    best_ = best.value().seconds;
    return {};
  }
  double best() const { return best_; }
  double compute(std::size_t rank, const schedule::Entry& entry) const {
    return simulator_.computeSeconds(static_cast<int>(rank), entry.shares[rank], entry.microBatches[rank]) /
           speeds_[rank];
  }
  /// Seconds of a step in which the ranks compute so long.
  double seconds(const std::vector<double>& compute) const {
    const schedule::Problem& problem = simulator_.problem();
    const schedule::Exposed& exposed = problem.exposed.back();  // of all islands
    double seconds = 0;
    for (std::size_t i = 0; i < compute.size(); ++i)
      seconds = std::max(seconds, problem.ranks[i].fixed +
                                      std::max(compute[i] + exposed.tail,
                                               problem.ranks[i].firstReady * compute[i] + exposed.whole));
    return seconds;
  }

 private:
  const Simulator& simulator_;
  const std::vector<SpeedChange>& changes_;
  std::vector<double> speeds_;
  std::size_t next_ = 0;
  double best_ = 0;
};

std::vector<Reaction> reactionsOf(const Run& run, const std::vector<SpeedChange>& changes) {
  std::vector<Reaction> reactions;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    Reaction reaction{changes[i], -1};
    auto end = static_cast<std::int64_t>(run.steps.size());
    if (i + 1 < changes.size()) end = std::min(end, changes[i + 1].step);
    for (std::int64_t s = changes[i].step; s < end && reaction.steps < 0; ++s) {
      const RunStep& step = run.steps[static_cast<std::size_t>(s)];
      if (step.seconds <= step.best * (1 + kSettled)) reaction.steps = s - changes[i].step;
    }
    reactions.push_back(reaction);
  }
  return reactions;
}

}  // namespace

Result<Run> run(const Simulator& simulator, const RunOptions& options) {
  if (Status status = check(simulator, options); !status.ok()) return status;
  Result<schedule::Controller> made = controllerFor(simulator, options);
  if (!made.ok()) return made.status();
  schedule::Controller& controller = made.value();
  Noise noise(options.seed);
  Now now(simulator, options.changes);
  Run run;
  double total = 0, best = 0;
  for (std::int64_t step = 0; step < options.steps; ++step) {
    if (Status status = now.moveTo(step); !status.ok()) return status;
    const schedule::Entry entry = controller.log().at(step);
    std::vector<double> exact, noisy;
    std::vector<schedule::Measured> measured;
    for (std::size_t i = 0; i < entry.shares.size(); ++i) {
      exact.push_back(now.compute(i, entry));
      noisy.push_back(exact[i] * (options.noise > 0 ? std::exp(options.noise * noise.normal()) : 1));
      measured.push_back({noisy[i], simulator.problem().ranks[i].fixed, true});
    }
    run.steps.push_back({entry.shares, now.seconds(exact), now.best()});
    total += run.steps.back().seconds;
    best += now.best();
    controller.observe(step, measured, now.seconds(noisy));
  }
  run.schedule = controller.log().entries();
  run.events = controller.takeEvents();
  run.regret = total / best - 1;
  run.reactions = reactionsOf(run, options.changes);
  return run;
}

}  // namespace kaitian::simulate
