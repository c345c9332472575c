#include "kaitian/schedule/controller.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>

namespace kaitian::schedule {
namespace {

std::string text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

}  // namespace

Controller::Controller(ControllerOptions options)
    : options_(std::move(options)),
      log_(static_cast<int>(options_.ranks.size()), options_.batch),
      membership_(options_.ranks, options_.constants) {
  for (const RankLimits& limits : options_.ranks)
    ranks_.emplace_back(limits, options_.batch, options_.microBatches, options_.constants);
}

Status Controller::fit() {
  for (RankModel& rank : ranks_)
    if (Status status = rank.fit(); !status.ok()) return status;
  return {};
}

Status Controller::resume(const std::vector<Entry>& entries, std::int64_t step) {
  Log log(log_.worldSize(), log_.batch());
  for (const Entry& entry : entries)
    if (Status status = log.append(entry); !status.ok()) return status;
  if (entries.empty()) return {Code::invalidArgument, "schedule: expected at least one entry, found none"};
  log_ = std::move(log);
  membership_.changed(step, log_.entries().back().active());
  entries_.clear();
  since_ = step;
  observed_ = step - 1;
  if (!learning()) return {};
  state_ = State::first;  // what was to be learned from is not in the schedule
  counted_ = 0;
  const std::vector<bool> active = log_.entries().back().active();
  // Not now: how far loaders issue ahead may not be known yet.
  allAgain_ = std::find(active.begin(), active.end(), false) != active.end();
  return {};
}

void Controller::observe(std::int64_t step, const std::vector<Measured>& ranks, double seconds) {
  if (ranks.size() != ranks_.size()) return;
  observed_ = step;
  if (state_ == State::steady)
    follow(step, ranks, seconds);
  else
    learn(step, ranks);
}

void Controller::follow(std::int64_t step, const std::vector<Measured>& ranks, double seconds) {
  const Entry& entry = log_.at(step);
  double longest = 0;
  bool whole = true;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const double before = 1 / ranks_[i].scale();
    if (!entry.active(i)) {
      if (entry.microBatches[i] == kProbed && ranks[i].counts)
        noteSpeed(step, i, before, ranks_[i].probe(ranks[i].compute));
      continue;
    }
    longest = std::max(longest, ranks[i].compute + ranks[i].fixed);
    whole = whole && ranks[i].counts;
    if (const auto speed = ranks_[i].observe(entry.shares[i], entry.microBatches[i], ranks[i]))
      noteSpeed(step, i, before, *speed);
  }
  if (whole && seconds > 0) membership_.record(step, entry.active(), std::max(0.0, seconds - longest));
  constexpr std::int64_t kRemembered = 30;
  if (step - causeStep_ > kRemembered) cause_.clear();
  decide(step);
}

void Controller::noteSpeed(std::int64_t step, std::size_t rank, double before, double now) {
  constexpr double kWorthTelling = 0.1;
  if (std::abs(now / before - 1) < kWorthTelling) return;
  events_.push_back({step, static_cast<int>(rank), now < before ? "slowed" : "recovered", now});
  causeStep_ = step;
  cause_ += (cause_.empty() ? "" : ", ") +
            ("rank " + std::to_string(rank) + " " + events_.back().kind + " to " + text("%.2fx", now));
}

Problem Controller::problem() const {
  Problem problem;
  problem.batch = options_.batch;
  for (const RankModel& rank : ranks_) problem.ranks.push_back(rank.cost());
  problem.mayExclude = membership_.mayExclude();
  if (log_.entries().empty()) return problem;
  const Entry& last = log_.entries().back();
  problem.exposed = membership_.exposed(std::max(observed_, last.decided), last.active());
  problem.current = last.shares;
  return problem;
}

std::vector<double> Controller::standalone() const {
  std::vector<double> speeds;
  for (const RankModel& rank : ranks_) {
    const RankCost cost = rank.cost();
    double best = 0;
    for (std::int64_t items = 1; items <= cost.cap; ++items)
      best = std::max(best, static_cast<double>(items) / secondsOf(cost, {}, items));
    speeds.push_back(best);
  }
  return speeds;
}

double Controller::predict(const std::vector<std::int64_t>& shares, const std::vector<bool>& active) const {
  if (learning()) return 0;
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    if (shares[i] > ranks_[i].cap()) return 0;
  return modesFor({shares, active.empty() ? std::vector<bool>(shares.size(), true) : active, 0})
      .shares.seconds;
}

EnergyPlan Controller::modesFor(const Shares& shares) const {
  if (learning()) return {shares, std::vector<int>(shares.items.size(), 0), 0};
  return inBestModes(problem(), options_.objective, shares);
}

/// A change disturbs a few steps, whose cost is spread over as many steps as the schedule may be expected to
/// hold: as long as the present one has. What is less than the scales are known by is no gain. Who takes part
/// changes for a large gain only, as what it costs is known less well.
double Controller::gainWanted(std::int64_t held, const std::vector<bool>& active, bool sameRanks) const {
  const Constants& constants = options_.constants;
  if (!sameRanks) return constants.gain;
  double least = constants.leastGain;
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    if (active[i]) least = std::max(least, constants.sureGain * ranks_[i].uncertainty());
  const double spread = constants.gain * constants.dwell / static_cast<double>(held);
  return std::min(constants.gain, std::max(least, spread));
}

void Controller::decide(std::int64_t step) {
  const std::int64_t last = log_.entries().back().start;
  if (step < last || next(step) < last + options_.constants.dwell) return;
  // Least energy takes much longer to find than the shortest step.
  if (options_.objective.energy() && step % options_.constants.dwell != 0) return;
  const Result<EnergyPlan> best = bestPlan(problem(), options_.objective);
  if (!best.ok()) return;
  const Entry& present = log_.entries().back();
  const EnergyPlan now = modesFor({present.shares, present.active(), 0});
  const bool known = predict(present.shares, present.active()) > 0;
  const std::vector<bool>& active = now.shares.active;
  const double wanted = gainWanted(next(step) - last, active, best.value().shares.active == active);
  if (known && !better(options_.objective, best.value(), now, wanted)) {
    probe(step);
    return;
  }
  const std::string changed = changes(step, best.value().shares.active);
  const std::string cause = cause_ + (cause_.empty() || changed.empty() ? "" : ", ") + changed;
  adopt(step, best.value().shares, cause.empty() ? "rebalanced" : cause);
  cause_.clear();
}

/// Measures a rank that is left out, if it is time to: one step, for which the others wait at most.
void Controller::probe(std::int64_t step) {
  const Entry& present = log_.entries().back();
  const double now = predict(present.shares, present.active());
  std::vector<double> slowness;
  for (const RankModel& rank : ranks_) slowness.push_back(now > 0 ? rank.cost().zero / now : 0);
  const int rank = membership_.due(step, slowness);
  if (rank < 0) return;
  membership_.probed(step, rank);
  Entry once = present, after = present;
  once.decided = after.decided = step;
  once.start = next(step);
  after.start = once.start + 1;
  once.microBatches[static_cast<std::size_t>(rank)] = kProbed;
  once.reason = "rank " + std::to_string(rank) + ", left out, is measured by itself";
  after.reason = "as before rank " + std::to_string(rank) + " was measured";
  (void)append(std::move(once));
  (void)append(std::move(after));
}

/// Who leaves and who comes back, in words, as events, and for the measuring of those who are out.
std::string Controller::changes(std::int64_t step, const std::vector<bool>& active) {
  std::string words;
  const std::vector<bool> before = log_.entries().back().active();
  for (std::size_t i = 0; i < active.size(); ++i) {
    if (active[i] == before[i]) continue;
    events_.push_back(
        {step, static_cast<int>(i), active[i] ? "readmitted" : "excluded", 1 / ranks_[i].scale()});
    words += (words.empty() ? "" : ", ") + ("rank " + std::to_string(i)) +
             (active[i] ? " takes part again" : " is left out");
  }
  membership_.changed(step, active);
  return words;
}

void Controller::adopt(std::int64_t step, const Shares& best, const std::string& cause) {
  const Entry& present = log_.entries().back();
  const double now = predict(present.shares, present.active());
  append(step, next(step), best,
         cause + ": " + text("%.1f ms", now * 1e3) + " -> " + text("%.1f ms", best.seconds * 1e3));
}

Status Controller::plan(std::int64_t step, const std::string& cause) {
  const Result<EnergyPlan> best = bestPlan(problem(), options_.objective);
  if (!best.ok()) return best.status();
  const std::string changed = changes(step, best.value().shares.active);
  adopt(step, best.value().shares, changed.empty() ? cause : cause + ", " + changed);
  return {};
}

Status Controller::append(Entry entry) {
  if (Status status = log_.append(entry); !status.ok()) return status;
  entries_.push_back(std::move(entry));
  return {};
}

std::vector<Entry> Controller::takeEntries() {
  std::vector<Entry> taken;
  for (Entry& entry : std::exchange(entries_, {})) {
    while (!taken.empty() && taken.back().start >= entry.start) taken.pop_back();  // superseded
    taken.push_back(std::move(entry));
  }
  return taken;
}

std::vector<Event> Controller::takeEvents() { return std::exchange(events_, {}); }

void Controller::append(std::int64_t decided, std::int64_t start, const Shares& shares, std::string reason) {
  Entry entry;
  entry.decided = decided;
  entry.start = start;
  entry.shares = shares.items;
  for (std::size_t i = 0; i < shares.items.size(); ++i)
    entry.microBatches.push_back(shares.active[i] ? ranks_[i].microBatches(shares.items[i]) : kLeftOut);
  entry.predicted = state_ == State::steady ? predict(shares.items, shares.active) : 0;
  entry.reason = std::move(reason);
  (void)append(std::move(entry));  // well formed: shares of a solved problem, starts in order
}

}  // namespace kaitian::schedule
