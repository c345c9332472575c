#include "kaitian/schedule/solver.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>

#include "schedule/columns.h"

namespace kaitian::schedule {
namespace {

using Counts = std::vector<std::int64_t>;

constexpr int kMostIslands = 8;

int islandsOf(const Problem& problem) {
  int islands = 0;
  for (const RankCost& rank : problem.ranks) islands = std::max(islands, rank.island + 1);
  return islands;
}

std::string text(double value) { return std::to_string(value); }
std::string text(std::int64_t value) { return std::to_string(value); }

std::string faultOf(const RankCost& rank) {
  const auto expected = [](const char* field, const std::string& what, const std::string& found) {
    return std::string(field) + ": expected " + what + ", found " + found;
  };
  if (rank.cap < 0 || rank.cap > rank.compute.size())
    return expected("cap", "0 to " + text(rank.compute.size()) + " (the size of its cost table)",
                    text(rank.cap));
  if (rank.floor < 1) return expected("floor", ">= 1", text(rank.floor));
  if (rank.quantum < 1) return expected("quantum", ">= 1", text(rank.quantum));
  if (!(rank.scale > 0) || !std::isfinite(rank.scale))
    return expected("scale", "a positive number", text(rank.scale));
  if (!(rank.fixed >= 0) || !std::isfinite(rank.fixed))
    return expected("fixed", "seconds >= 0", text(rank.fixed));
  if (!(rank.zero >= 0) || !std::isfinite(rank.zero))
    return expected("zero", "seconds >= 0", text(rank.zero));
  if (!(rank.firstReady >= 0 && rank.firstReady <= 1))
    return expected("firstReady", "0 to 1", text(rank.firstReady));
  if (rank.island < 0) return expected("island", ">= 0", text(static_cast<std::int64_t>(rank.island)));
  return {};
}

Status check(const Problem& problem) {
  const auto bad = [](const std::string& message) {
    return Status(Code::invalidArgument, "solve: " + message);
  };
  if (problem.batch < 1) return bad("argument batch: expected >= 1, found " + text(problem.batch));
  if (problem.ranks.empty()) return bad("argument ranks: expected at least one, found none");
  for (std::size_t i = 0; i < problem.ranks.size(); ++i)
    if (const std::string fault = faultOf(problem.ranks[i]); !fault.empty())
      return bad("rank " + std::to_string(i) + ": " + fault);
  const int islands = islandsOf(problem);
  const std::size_t sets = problem.exposed.size();
  if (sets != 1 && (islands > kMostIslands || sets != std::size_t{1} << islands))
    return bad("argument exposed: expected 1 entry, or one per set of at most " +
               std::to_string(kMostIslands) + " islands, found " + std::to_string(sets) + " for " +
               std::to_string(islands) + " islands");
  if (!problem.current.empty() && problem.current.size() != problem.ranks.size())
    return bad("argument current: expected " + std::to_string(problem.ranks.size()) + " shares, found " +
               std::to_string(problem.current.size()));
  return {};
}

/// Index in `exposed` of the islands of these ranks.
std::size_t setOf(const Problem& problem, const std::vector<std::size_t>& members) {
  if (problem.exposed.size() == 1) return 0;
  std::size_t set = 0;
  for (const std::size_t rank : members) set |= std::size_t{1} << problem.ranks[rank].island;
  return set;
}

/// The shares, none above what `room` says, that move fewest items from `wanted`, on as few ranks as
/// possible.
Counts nearest(const Counts& wanted, const Counts& room, std::int64_t batch) {
  Counts items(room.size());
  for (std::size_t i = 0; i < room.size(); ++i) items[i] = std::min(wanted[i], room[i]);
  std::int64_t missing = batch - std::accumulate(items.begin(), items.end(), std::int64_t{0});
  while (missing != 0) {
    // Who can take (or give) most does.
    std::size_t best = 0;
    const auto able = [&](std::size_t i) { return missing > 0 ? room[i] - items[i] : items[i]; };
    for (std::size_t i = 1; i < room.size(); ++i)
      if (able(i) > able(best)) best = i;
    const std::int64_t moved = std::min(std::abs(missing), able(best));
    items[best] += missing > 0 ? moved : -moved;
    missing += missing > 0 ? -moved : moved;
  }
  return items;
}

/// The problem for a given set of active ranks.
class Active {
 public:
  Active(const Problem& problem, const std::vector<std::size_t>& members, const Exposed& exposed)
      : batch_(problem.batch) {
    for (const std::size_t rank : members) {
      const RankCost& cost = problem.ranks[rank];
      columns_.emplace_back(cost, exposed, batch_);
      zero_ = std::max(zero_, secondsOf(cost, exposed, 0));
      plain_ = plain_ && columns_.back().plain();
      room_ += columns_.back().high();
      if (!problem.current.empty()) current_.push_back(problem.current[rank]);
    }
  }

  bool feasible() const { return room_ >= batch_; }

  /// Shares of the members; nothing if floors and quanta admit none. REQUIRES: feasible()
  std::optional<Counts> solve() const {
    const Counts counts = smallest(columns_, batch_, current_);
    double limit = zero_;
    for (std::size_t i = 0; i < counts.size(); ++i)
      if (counts[i] > 0) limit = std::max(limit, columns_[i].value(counts[i]));
    const Counts& wanted = current_.empty() ? counts : current_;
    if (plain_) return current_.empty() ? counts : nearest(wanted, roomWithin(limit), batch_);
    return legal(limit, wanted);
  }

 private:
  Counts roomWithin(double limit) const {
    Counts room;
    for (std::size_t i = 0; i < columns_.size(); ++i)
      room.push_back(columns_[i].near(limit, std::min(current_[i], columns_[i].high())));
    return room;
  }
  std::vector<Offer> offersWithin(double limit) const {
    std::vector<Offer> offers;
    for (const Column& column : columns_) offers.push_back(column.offer(limit));
    return offers;
  }

  /// With floors or quanta: the least time of which a sum of legal shares exists; `low` is a bound below it.
  std::optional<Counts> legal(double low, const Counts& wanted) const {
    if (auto found = choose(offersWithin(low), batch_, wanted)) return found;
    double high = low;
    for (const Column& column : columns_)
      if (column.high() > 0) high = std::max(high, column.value(column.high()));
    if (!reachable(offersWithin(high), batch_)) return std::nullopt;
    for (;;) {
      const double middle = low + (high - low) / 2;
      if (middle <= low || middle >= high) break;
      (reachable(offersWithin(middle), batch_) ? high : low) = middle;
    }
    return choose(offersWithin(high), batch_, wanted);
  }

  std::int64_t batch_;
  std::vector<Column> columns_;
  Counts current_;
  double zero_ = 0;
  bool plain_ = true;
  std::int64_t room_ = 0;
};

class Solver {
 public:
  explicit Solver(const Problem& problem) : problem_(problem) {}

  std::optional<Shares> everyone() {
    std::vector<std::size_t> all(problem_.ranks.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    attempt(all);
    return best_;
  }

  std::optional<Shares> bestSubset() {
    const std::size_t sets = problem_.exposed.size();
    for (std::size_t set = sets == 1 ? 0 : 1; set < sets; ++set) {
      std::vector<std::size_t> members;
      for (std::size_t i = 0; i < problem_.ranks.size(); ++i)
        if (sets == 1 || (set >> problem_.ranks[i].island & 1U) != 0) members.push_back(i);
      if (holdsThoseWhoStay(members)) bestOf(std::move(members), problem_.exposed[set]);
    }
    return best_;
  }

 private:
  bool holdsThoseWhoStay(const std::vector<std::size_t>& members) const {
    std::size_t staying = 0;
    for (const RankCost& rank : problem_.ranks) staying += rank.mayLeave ? 0 : 1;
    for (const std::size_t rank : members) staying -= problem_.ranks[rank].mayLeave ? 0 : 1;
    return staying == 0;
  }

  /// Who is active costs at least its `zero`, and for a bound on it the most ranks are best. More of them
  /// make the batch's time shorter and the bound higher, so the best set is next to where the two meet.
  void bestOf(std::vector<std::size_t> members, const Exposed& exposed) {
    // Those who stay come first, whatever they cost.
    const auto zero = [&](std::size_t rank) { return secondsOf(problem_.ranks[rank], exposed, 0); };
    const auto order = [&](std::size_t rank) { return problem_.ranks[rank].mayLeave ? zero(rank) : -1.0; };
    std::stable_sort(members.begin(), members.end(),
                     [&](std::size_t a, std::size_t b) { return order(a) < order(b); });
    std::size_t few = 0;  // too few or best
    double least = 0;     // what those who stay cost
    for (; few < members.size() && !problem_.ranks[members[few]].mayLeave; ++few)
      least = std::max(least, zero(members[few]));
    std::size_t many = members.size();  // enough
    while (few + 1 < many) {
      const std::size_t middle = few + (many - few) / 2;
      const std::vector<std::size_t> part(members.begin(),
                                          members.begin() + static_cast<std::ptrdiff_t>(middle));
      (attempt(part) <= std::max(least, zero(members[middle - 1])) ? many : few) = middle;
    }
    attempt({members.begin(), members.begin() + static_cast<std::ptrdiff_t>(many)});
    if (few > 0) attempt({members.begin(), members.begin() + static_cast<std::ptrdiff_t>(few)});
  }

  /// Solves for these ranks and keeps the result if it is the best; its seconds.
  double attempt(std::vector<std::size_t> members) {
    std::sort(members.begin(), members.end());
    const Active active(problem_, members, problem_.exposed[setOf(problem_, members)]);
    if (!active.feasible()) return HUGE_VAL;
    const auto counts = active.solve();
    if (!counts) return HUGE_VAL;
    Shares shares{Counts(problem_.ranks.size(), 0), std::vector<bool>(problem_.ranks.size(), false), 0};
    for (std::size_t k = 0; k < members.size(); ++k) {
      shares.items[members[k]] = (*counts)[k];
      shares.active[members[k]] = true;
    }
    shares.seconds = secondsOf(problem_, shares);
    const double seconds = shares.seconds;
    if (!best_ || seconds < best_->seconds) best_ = std::move(shares);
    return seconds;
  }

  const Problem& problem_;
  std::optional<Shares> best_;
};

Status impossible(const Problem& problem) {
  std::int64_t caps = 0, floors = 0;
  for (const RankCost& rank : problem.ranks) {
    caps += rank.cap;
    floors = floors == 0 ? rank.floor : std::min(floors, rank.floor);
  }
  std::string problems = caps < problem.batch ? "the caps of all ranks sum to " + text(caps)
                                              : "no shares between floors (the smallest is " + text(floors) +
                                                    ") and caps (sum " + text(caps) +
                                                    ") that are multiples of the quanta have this sum";
  return {Code::resource, "solve: a batch of " + text(problem.batch) + " items does not fit: " + problems};
}

}  // namespace

double secondsOf(const RankCost& rank, const Exposed& exposed, std::int64_t items) {
  if (items == 0) {
    const std::int64_t least = (rank.floor + rank.quantum - 1) / rank.quantum * rank.quantum;
    return least > rank.cap ? rank.zero : std::min(rank.zero, secondsOf(rank, exposed, least));
  }
  return secondsOfShare(rank, exposed, items);
}

const Exposed& exposedOf(const Problem& problem, const Shares& shares) {
  std::vector<std::size_t> members;
  for (std::size_t i = 0; i < problem.ranks.size(); ++i)
    if (shares.active[i]) members.push_back(i);
  return problem.exposed[setOf(problem, members)];
}

double secondsOf(const Problem& problem, const Shares& shares) {
  const Exposed& exposed = exposedOf(problem, shares);
  double seconds = 0;
  for (std::size_t i = 0; i < problem.ranks.size(); ++i)
    if (shares.active[i]) seconds = std::max(seconds, secondsOf(problem.ranks[i], exposed, shares.items[i]));
  return seconds;
}

Result<Shares> solve(const Problem& problem) {
  if (Status status = check(problem); !status.ok()) return status;
  Solver solver(problem);
  auto best = problem.mayExclude ? solver.bestSubset() : solver.everyone();
  if (!best) return impossible(problem);
  return std::move(*best);
}

std::vector<std::int64_t> proportional(std::int64_t batch, const std::vector<double>& speeds) {
  const double total = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  std::vector<std::int64_t> shares;
  std::vector<std::pair<double, std::size_t>> remainders;
  std::int64_t given = 0;
  for (std::size_t i = 0; i < speeds.size(); ++i) {
    const double exact = static_cast<double>(batch) * speeds[i] / total;
    shares.push_back(static_cast<std::int64_t>(exact));
    remainders.emplace_back(static_cast<double>(shares.back()) - exact, i);
    given += shares.back();
  }
  std::sort(remainders.begin(), remainders.end());
  for (std::size_t k = 0; given < batch; ++given, k = (k + 1) % remainders.size())
    ++shares[remainders[k].second];
  return shares;
}

}  // namespace kaitian::schedule
