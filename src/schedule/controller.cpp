#include "kaitian/schedule/controller.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include "schedule/median.h"

namespace kaitian::schedule {
namespace {

std::string text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

Status check(const ControllerOptions& options) {
  const auto bad = [](const std::string& what) { return Status(Code::invalidArgument, "schedule: " + what); };
  if (options.batch < 1) return bad("global batch: expected >= 1, found " + std::to_string(options.batch));
  if (options.ranks.empty()) return bad("ranks: expected at least one, found none");
  if (options.horizon < 0) return bad("horizon: expected >= 0, found " + std::to_string(options.horizon));
  if (!options.profile.empty() && options.profile.size() != options.ranks.size())
    return bad("profile: expected " + std::to_string(options.ranks.size()) + " ranks, found " +
               std::to_string(options.profile.size()));
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

Controller::Controller(ControllerOptions options)
    : options_(std::move(options)), log_(static_cast<int>(options_.ranks.size()), options_.batch) {
  for (const RankLimits& limits : options_.ranks)
    ranks_.emplace_back(limits, options_.batch, options_.microBatches, options_.constants);
}

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
    Result<Shares> best = solve(problem());
    if (!best.ok()) return best.status();
    append(-1, 0, best.value().items, "from the profile of an earlier run");
    return {};
  }
  // As if all were alike: the solver keeps to floors, caps and quanta.
  for (RankModel& rank : ranks_) rank.record({{1, 1.0, 1}});
  if (Status status = fit(); !status.ok()) return status;
  Result<Shares> even = solve(problem());
  if (!even.ok()) return even.status();
  append(-1, 0, even.value().items, "even shares, to begin with");
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    ranks_[i] = RankModel(options_.ranks[i], options_.batch, options_.microBatches, options_.constants);
  return {};
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
  entries_.clear();
  since_ = step;
  if (state_ == State::varying) state_ = State::first;  // what was to be learned from is not in the schedule
  return {};
}

void Controller::observe(std::int64_t step, const std::vector<Measured>& ranks, double seconds) {
  if (ranks.size() != ranks_.size()) return;
  if (state_ == State::steady)
    follow(step, ranks, seconds);
  else
    learn(step, ranks);
}

/// Times of the first shares give rough speeds, those of their variations the tables.
void Controller::learn(std::int64_t step, const std::vector<Measured>& ranks) {
  const Entry& entry = log_.at(step);
  const bool settled = step >= std::max(entry.start, since_) + options_.constants.settling;
  const bool whole = std::all_of(ranks.begin(), ranks.end(), [](const Measured& m) { return m.counts; });
  if (!whole) {
    if (state_ == State::first) since_ = std::max(since_, step + 1);
    return;
  }
  if (!settled) return;
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    ranks_[i].record(std::max(entry.shares[i], ranks_[i].limits().floor), entry.microBatches[i],
                     ranks[i].compute);
  if (state_ == State::first && step >= since_ + options_.constants.learningSteps - 1) {
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
  Result<Shares> base = solve(rough);
  state_ = State::varying;
  if (!base.ok()) return;
  std::int64_t start = next(step);
  int turn = 0;
  for (const auto& shares : variations(base.value().items, ranks_)) {
    append(step, start, shares, "learning what sizes cost, " + std::to_string(++turn));
    start += options_.constants.learningSteps;
  }
  learned_ = start - 1;
  append(step, start, base.value().items, "learning, until what was learned holds");
}

void Controller::follow(std::int64_t step, const std::vector<Measured>& ranks, double seconds) {
  const Entry& entry = log_.at(step);
  double longest = 0;
  bool whole = true;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    longest = std::max(longest, ranks[i].compute + ranks[i].fixed);
    whole = whole && ranks[i].counts;
    const double before = ranks_[i].scale();
    const auto speed = ranks_[i].observe(entry.shares[i], entry.microBatches[i], ranks[i]);
    constexpr double kWorthTelling = 0.1;
    if (!speed || std::abs(*speed * before - 1) < kWorthTelling) continue;
    events_.push_back({step, static_cast<int>(i), *speed * before < 1 ? "slowed" : "recovered", *speed});
    causeStep_ = step;
    cause_ += (cause_.empty() ? "" : ", ") +
              ("rank " + std::to_string(i) + " " + events_.back().kind + " to " + text("%.2fx", *speed));
  }
  if (whole && seconds > 0) tails_.push_back(std::max(0.0, seconds - longest));
  if (static_cast<int>(tails_.size()) > options_.constants.window) tails_.pop_front();
  constexpr std::int64_t kRemembered = 30;
  if (step - causeStep_ > kRemembered) cause_.clear();
  decide(step);
}

Problem Controller::problem() const {
  Problem problem;
  problem.batch = options_.batch;
  for (const RankModel& rank : ranks_) problem.ranks.push_back(rank.cost());
  const double tail = tails_.empty() ? 0 : medianOf(tails_);
  problem.exposed = {{tail, tail}};
  if (!log_.entries().empty()) problem.current = log_.entries().back().shares;
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

double Controller::predict(const std::vector<std::int64_t>& shares) const {
  if (learning()) return 0;
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    if (shares[i] > ranks_[i].cap()) return 0;
  return secondsOf(problem(), Shares{shares, std::vector<bool>(shares.size(), true), 0});
}

void Controller::decide(std::int64_t step) {
  const std::int64_t last = log_.entries().back().start;
  if (step < last || next(step) < last + options_.constants.dwell) return;
  const Result<Shares> best = solve(problem());
  if (!best.ok()) return;
  const double now = predict(log_.entries().back().shares);
  if (now > 0 && best.value().seconds >= now * (1 - options_.constants.gain)) return;
  append(step, next(step), best.value().items,
         (cause_.empty() ? "rebalanced" : cause_) + ": " + text("%.1f ms", now * 1e3) + " -> " +
             text("%.1f ms", best.value().seconds * 1e3));
  cause_.clear();
}

Status Controller::plan(std::int64_t step, const std::string& cause) {
  const Result<Shares> best = solve(problem());
  if (!best.ok()) return best.status();
  const double now = predict(log_.entries().back().shares);
  append(step, next(step), best.value().items,
         cause + ": " + text("%.1f ms", now * 1e3) + " -> " + text("%.1f ms", best.value().seconds * 1e3));
  return {};
}

Status Controller::limit(std::int64_t step, int rank, std::int64_t microCap) {
  RankModel& model = ranks_[static_cast<std::size_t>(rank)];
  if (microCap < model.limits().floor)
    return {Code::resource, "schedule: rank " + std::to_string(rank) + ": its memory holds " +
                                std::to_string(microCap) + " items, fewer than the smallest micro-batch of " +
                                std::to_string(model.limits().floor)};
  model.limitMicroBatch(microCap);
  options_.ranks[static_cast<std::size_t>(rank)].microCap = microCap;
  events_.push_back({step, rank, "cap", static_cast<double>(microCap)});
  const std::string cause =
      "rank " + std::to_string(rank) + "'s memory holds " + std::to_string(microCap) + " items";
  if (learning()) {
    // What was planned to learn from may exceed the cap: begin again from even shares within it.
    Result<Controller> again = make(options_);
    if (!again.ok()) return again.status();
    Entry entry = again.value().log().entries().front();
    entry.decided = step;
    entry.start = next(step);
    entry.reason = cause + "; even shares within it";
    if (Status status = append(std::move(entry)); !status.ok()) return status;
    state_ = State::first;
    since_ = next(step);
    return {};
  }
  if (Status status = fit(); !status.ok()) return status;
  return plan(step, cause);
}

Status Controller::append(Entry entry) {
  if (Status status = log_.append(entry); !status.ok()) return status;
  entries_.push_back(std::move(entry));
  return {};
}

std::vector<Entry> Controller::takeEntries() { return std::exchange(entries_, {}); }

std::vector<Event> Controller::takeEvents() { return std::exchange(events_, {}); }

void Controller::append(std::int64_t decided, std::int64_t start, const std::vector<std::int64_t>& shares,
                        std::string reason) {
  Entry entry;
  entry.decided = decided;
  entry.start = start;
  entry.shares = shares;
  for (std::size_t i = 0; i < shares.size(); ++i)
    entry.microBatches.push_back(ranks_[i].microBatches(shares[i]));
  entry.predicted = state_ == State::steady ? predict(shares) : 0;
  entry.reason = std::move(reason);
  (void)append(std::move(entry));  // well formed: shares of a solved problem, starts in order
}

}  // namespace kaitian::schedule
