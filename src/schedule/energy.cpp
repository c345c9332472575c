#include "kaitian/schedule/energy.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "schedule/columns.h"
#include "schedule/min_plus.h"

namespace kaitian::schedule {
namespace {

std::string text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.6g", value);
  return buffer;
}

Status check(const Problem& problem, const std::vector<PowerModes>& power, const char* what) {
  const auto bad = [what](const std::string& message) {
    return Status(Code::invalidArgument, std::string(what) + ": " + message);
  };
  if (power.size() != problem.ranks.size())
    return bad("argument power: expected modes of " + std::to_string(problem.ranks.size()) +
               " ranks, found " + std::to_string(power.size()));
  for (std::size_t i = 0; i < power.size(); ++i)
    for (const PowerMode& mode : power[i]) {
      const bool sane = mode.slowness > 0 && std::isfinite(mode.slowness) && mode.activeWatts >= 0 &&
                        std::isfinite(mode.activeWatts) && mode.idleWatts >= 0 &&
                        std::isfinite(mode.idleWatts);
      if (!sane)
        return bad("rank " + std::to_string(i) + ": mode " + mode.name +
                   ": expected slowness > 0 and watts >= 0, found " + text(mode.slowness) + ", " +
                   text(mode.activeWatts) + " and " + text(mode.idleWatts));
    }
  return {};
}

int modesOf(const PowerModes& modes) { return std::max(1, static_cast<int>(modes.size())); }

int fastest(const PowerModes& modes) {
  int best = 0;
  for (int mode = 1; mode < static_cast<int>(modes.size()); ++mode)
    if (modes[static_cast<std::size_t>(mode)].slowness < modes[static_cast<std::size_t>(best)].slowness)
      best = mode;
  return best;
}

/// One rank in one mode; `active` as in Shares.
struct State {
  RankCost cost;
  PowerMode mode;
  Exposed exposed;

  State(const RankCost& rank, const PowerModes& modes, int index, const Exposed& communication)
      : cost(inMode(rank, modes, index)),
        mode(modes.empty() ? PowerMode{} : modes[static_cast<std::size_t>(index)]),
        exposed(communication) {}

  double seconds(std::int64_t items, bool active = true) const {
    return active ? secondsOf(cost, exposed, items) : 0;
  }
  double joules(std::int64_t items, double seconds, bool active = true) const {
    double busy = 0;
    if (active)
      busy = items > 0 ? cost.scale * cost.compute.at(items)
                       : std::max(0.0, secondsOf(cost, exposed, 0) - cost.fixed);
    return mode.activeWatts * busy + mode.idleWatts * (seconds - busy);
  }
};

class Programme {
 public:
  Programme(const Problem& problem, const std::vector<PowerModes>& power, double deadline)
      : problem_(problem), power_(power), deadline_(deadline) {
    for (std::size_t i = 0; i < problem.ranks.size(); ++i) pieces_.push_back(piecesOf(i));
  }

  double operations() const {
    double sum = 0;
    for (const auto& rank : pieces_)
      for (const ConvexPiece& piece : rank) sum += schedule::operations(piece, problem_.batch);
    return sum;
  }

  /// Nothing if no shares meet the deadline.
  std::optional<EnergyPlan> solve() const {
    const auto sums = static_cast<std::size_t>(problem_.batch + 1);
    std::vector<double> least(sums, HUGE_VAL);
    least[0] = 0;
    std::vector<std::vector<Choice>> choices;
    for (const auto& pieces : pieces_) {
      const std::vector<double> before = std::exchange(least, std::vector<double>(sums, HUGE_VAL));
      choices.emplace_back(sums);
      for (const ConvexPiece& piece : pieces) addPiece(before, piece, least, choices.back());
    }
    if (least.back() == HUGE_VAL) return std::nullopt;
    return planOf(choices);
  }

 private:
  /// Whether the rank is left out of the step if it has no share.
  bool leaves(std::size_t rank) const { return problem_.mayExclude && problem_.ranks[rank].mayLeave; }

  std::vector<ConvexPiece> piecesOf(std::size_t i) const {
    std::vector<ConvexPiece> pieces;
    for (int mode = 0; mode < modesOf(power_[i]); ++mode) {
      const State state(problem_.ranks[i], power_[i], mode, problem_.exposed.front());
      const bool active = !leaves(i);
      if (state.seconds(0, active) <= deadline_)
        pieces.push_back({0, 1, mode, {state.joules(0, deadline_, active)}});
      const Offer offer = Column(state.cost, state.exposed, problem_.batch).offer(deadline_);
      std::vector<double> costs;
      for (std::int64_t items = offer.low; items <= offer.high; items += offer.step)
        costs.push_back(state.joules(items, deadline_));
      for (ConvexPiece& piece : convexPieces(offer.low, offer.step, mode, costs))
        pieces.push_back(std::move(piece));
    }
    return pieces;
  }

  EnergyPlan planOf(const std::vector<std::vector<Choice>>& choices) const {
    const std::size_t n = choices.size();
    EnergyPlan plan{{std::vector<std::int64_t>(n), std::vector<bool>(n), 0}, std::vector<int>(n), 0};
    std::int64_t sum = problem_.batch;
    for (std::size_t i = n; i-- > 0;) {
      const Choice& choice = choices[i][static_cast<std::size_t>(sum)];
      plan.shares.items[i] = choice.items;
      plan.shares.active[i] = choice.items > 0 || !leaves(i);
      plan.modes[i] = choice.mode;
      sum -= choice.items;
    }
    plan.shares.seconds = secondsOf(inModes(problem_, power_, plan.modes), plan.shares);
    plan.joules = joulesOf(problem_, power_, plan.shares, plan.modes, deadline_);
    return plan;
  }

  const Problem& problem_;
  const std::vector<PowerModes>& power_;
  double deadline_;
  std::vector<std::vector<ConvexPiece>> pieces_;
};

}  // namespace

RankCost inMode(const RankCost& rank, const PowerModes& modes, int mode) {
  RankCost cost = rank;
  const double slowness = modes.empty() ? 1 : modes[static_cast<std::size_t>(mode)].slowness;
  cost.scale *= slowness;
  if (slowness != 1 && rank.zero > rank.fixed)  // the first mode's times stay, to the last bit
    cost.zero = rank.fixed + slowness * (rank.zero - rank.fixed);
  return cost;
}

Problem inModes(const Problem& problem, const std::vector<PowerModes>& power, const std::vector<int>& modes) {
  Problem changed = problem;
  for (std::size_t i = 0; i < changed.ranks.size(); ++i)
    changed.ranks[i] = inMode(problem.ranks[i], power[i], modes[i]);
  return changed;
}

double joulesOf(const Problem& problem, const std::vector<PowerModes>& power, const Shares& shares,
                const std::vector<int>& modes, double seconds) {
  double joules = 0;
  for (std::size_t i = 0; i < power.size(); ++i)
    joules += State(problem.ranks[i], power[i], modes[i], exposedOf(problem, shares))
                  .joules(shares.items[i], seconds, shares.active[i]);
  return joules;
}

Result<std::vector<int>> frugalModes(const Problem& problem, const std::vector<PowerModes>& power,
                                     const Shares& shares, double seconds) {
  if (Status status = check(problem, power, "frugalModes"); !status.ok()) return status;
  std::vector<int> chosen;
  for (std::size_t i = 0; i < power.size(); ++i) {
    int best = fastest(power[i]);
    double least = HUGE_VAL;
    for (int mode = 0; mode < modesOf(power[i]); ++mode) {
      const State state(problem.ranks[i], power[i], mode, exposedOf(problem, shares));
      if (state.seconds(shares.items[i], shares.active[i]) > seconds) continue;
      const double joules = state.joules(shares.items[i], seconds, shares.active[i]);
      if (joules >= least) continue;
      least = joules;
      best = mode;
    }
    chosen.push_back(best);
  }
  return chosen;
}

Result<EnergyPlan> leastEnergy(const Problem& problem, const std::vector<PowerModes>& power,
                               double deadline) {
  if (Status status = check(problem, power, "leastEnergy"); !status.ok()) return status;
  if (!(deadline > 0) || !std::isfinite(deadline))
    return Status(Code::invalidArgument,
                  "leastEnergy: argument deadline: expected a positive number, found " + text(deadline));
  if (problem.mayExclude && problem.exposed.size() != 1)
    return Status(Code::invalidArgument,
                  "leastEnergy: argument exposed: expected 1 entry where ranks may be left out, found " +
                      std::to_string(problem.exposed.size()));
  std::vector<int> quickest(power.size());
  std::transform(power.begin(), power.end(), quickest.begin(), fastest);
  const Result<Shares> shortest = solve(inModes(problem, power, quickest));
  if (!shortest.ok()) return shortest.status();
  if (shortest.value().seconds > deadline)
    return Status(Code::resource, "leastEnergy: argument deadline: the shortest possible step takes " +
                                      text(shortest.value().seconds) + " s, found " + text(deadline));
  Problem single = problem;
  single.exposed = {exposedOf(problem, shortest.value())};  // without exclusion all islands always take part
  const Programme programme(single, power, deadline);
  if (programme.operations() > kMostOperations)
    return Status(Code::resource, "leastEnergy: takes " + text(programme.operations()) +
                                      " operations, expected at most " + text(kMostOperations) +
                                      ": use a larger quantum or fewer cost steps");
  auto plan = programme.solve();
  if (!plan) return Status(Code::resource, "leastEnergy: no shares meet a deadline of " + text(deadline));
  return std::move(*plan);
}

}  // namespace kaitian::schedule
