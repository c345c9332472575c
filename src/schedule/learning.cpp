// The controller's first steps: from options, or from steps of varied shares, to what each rank's work costs.
#include <algorithm>
#include <cmath>
#include <utility>

#include "kaitian/schedule/controller.h"

namespace kaitian::schedule {
namespace {

Status check(const ControllerOptions& options) {
  const auto bad = [](const std::string& what) { return Status(Code::invalidArgument, "schedule: " + what); };
  if (options.batch < 1) return bad("global batch: expected >= 1, found " + std::to_string(options.batch));
  if (options.ranks.empty()) return bad("ranks: expected at least one, found none");
  if (options.horizon < 0) return bad("horizon: expected >= 0, found " + std::to_string(options.horizon));
  if (!options.profile.empty() && options.profile.size() != options.ranks.size())
    return bad("profile: expected " + std::to_string(options.ranks.size()) + " ranks, found " +
               std::to_string(options.profile.size()));
  const Objective& objective = options.objective;
  if (!objective.power.empty() && objective.power.size() != options.ranks.size())
    return bad("power: expected " + std::to_string(options.ranks.size()) + " ranks, found " +
               std::to_string(objective.power.size()));
  if (!(objective.deadline >= 0) || !std::isfinite(objective.deadline))
    return bad("deadline: expected seconds > 0, found " + std::to_string(objective.deadline));
  for (std::size_t i = 0; i < options.ranks.size(); ++i) {
    const RankLimits& limits = options.ranks[i];
    if (limits.floor < 1 || limits.microCap < limits.floor || limits.quantum < 1)
      return bad("rank " + std::to_string(i) +
                 ": expected 1 <= floor <= micro-batch cap and quantum >= 1, found " +
                 std::to_string(limits.floor) + ", " + std::to_string(limits.microCap) + ", " +
                 std::to_string(limits.quantum));
    if (limits.floor > options.batch)
      return {Code::resource, "schedule: rank " + std::to_string(i) + ": the global batch of " +
                                  std::to_string(options.batch) +
                                  " is smaller than its smallest micro-batch of " +
                                  std::to_string(limits.floor)};
  }
  return {};
}

}  // namespace

Result<Controller> Controller::make(ControllerOptions options) {
  if (Status status = check(options); !status.ok()) return status;
  Controller controller(std::move(options));
  if (Status status = controller.begin(); !status.ok()) return status;
  return controller;
}

Status Controller::begin() {
  if (!options_.profile.empty()) {
    for (std::size_t i = 0; i < ranks_.size(); ++i) ranks_[i].record(options_.profile[i]);
    if (Status status = fit(); !status.ok()) return status;
    state_ = State::steady;
    Problem whole = problem();
    whole.mayExclude = false;  // nobody is left out before a step has been measured
    Result<EnergyPlan> best = bestPlan(whole, options_.objective);
    if (!best.ok()) return best.status();
    append(-1, 0, best.value().shares, "from the profile of an earlier run");
    return {};
  }
  // As if all were alike: the solver keeps to floors, caps and quanta.
  for (RankModel& rank : ranks_) rank.record({{1, 1.0, 1}});
  if (Status status = fit(); !status.ok()) return status;
  Problem alike = problem();
  alike.mayExclude = false;
  Result<Shares> even = solve(alike);
  if (!even.ok()) return even.status();
  append(-1, 0, even.value(), "even shares, to begin with");
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    ranks_[i] = RankModel(options_.ranks[i], options_.batch, options_.microBatches, options_.constants);
  return {};
}

/// Times of the first shares give rough speeds, those of their variations the tables.
void Controller::learn(std::int64_t step, const std::vector<Measured>& ranks) {
  if (std::exchange(allAgain_, false)) {
    (void)evenShares(step, "even shares, as nothing is known of those that were left out");
    return;
  }
  const Entry& entry = log_.at(step);
  const bool settled = step >= std::max(entry.start, since_) + options_.constants.settling;
  const bool whole = std::all_of(ranks.begin(), ranks.end(), [](const Measured& m) { return m.counts; });
  if (!whole || !settled) return;
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    ranks_[i].record(std::max(entry.shares[i], ranks_[i].limits().floor), entry.microBatches[i],
                     ranks[i].compute);
  if (state_ == State::first && ++counted_ >= options_.constants.learningSteps) {
    vary(step);
  } else if (state_ == State::varying && step >= learned_) {
    if (!fit().ok()) return;
    state_ = State::steady;
    (void)plan(step, "the cost of each rank's work is known");
  }
}

void Controller::vary(std::int64_t step) {
  if (!fit().ok()) return;
  state_ = State::steady;  // for the problem that is known so far
  Problem rough = problem();
  rough.mayExclude = false;
  Result<Shares> base = solve(rough);
  state_ = State::varying;
  if (!base.ok()) return;
  std::int64_t start = next(step);
  int turn = 0;
  for (const auto& shares : variations(base.value().items, ranks_)) {
    append(step, start, Shares{shares, base.value().active, 0},
           "learning what sizes cost, " + std::to_string(++turn));
    start += options_.constants.learningSteps;
  }
  learned_ = start - 1;
  append(step, start, base.value(), "learning, until what was learned holds");
}

Status Controller::evenShares(std::int64_t step, const std::string& reason) {
  Result<Controller> again = make(options_);
  if (!again.ok()) return again.status();
  Entry entry = again.value().log().entries().front();
  entry.decided = std::max(step, log_.entries().back().decided);
  entry.start = next(entry.decided);
  entry.reason = reason;
  since_ = entry.start;
  counted_ = 0;
  return append(std::move(entry));
}

Status Controller::limit(std::int64_t step, int rank, std::int64_t microCap, const std::string& holder) {
  RankModel& model = ranks_[static_cast<std::size_t>(rank)];
  if (microCap < model.limits().floor)
    return {Code::resource, "schedule: rank " + std::to_string(rank) + ": its " + holder + " holds " +
                                std::to_string(microCap) + " items, fewer than the smallest micro-batch of " +
                                std::to_string(model.limits().floor)};
  model.limitMicroBatch(microCap);
  options_.ranks[static_cast<std::size_t>(rank)].microCap = microCap;
  events_.push_back({step, rank, "cap", static_cast<double>(microCap)});
  const std::string cause =
      "rank " + std::to_string(rank) + "'s " + holder + " holds " + std::to_string(microCap) + " items";
  if (learning()) {
    // What was planned to learn from may exceed the cap: begin again within it.
    state_ = State::first;
    return evenShares(step, cause + "; even shares within it");
  }
  if (Status status = fit(); !status.ok()) return status;
  return plan(step, cause);
}

}  // namespace kaitian::schedule
