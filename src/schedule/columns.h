// The costs of the active ranks as columns of values g_i(1), g_i(2), ...: where the B-th smallest of all
// lies.
#pragma once

#include <algorithm>
#include <vector>

#include "kaitian/schedule/solver.h"
#include "schedule/sums.h"

namespace kaitian::schedule {

/// secondsOf for items >= 1. Inline, as solving does little else.
inline double secondsOfShare(const RankCost& rank, const Exposed& exposed, std::int64_t items) {
  const double compute = rank.scale * rank.compute.at(items);
  return rank.fixed + std::max(compute + exposed.tail, rank.firstReady * compute + exposed.whole);
}

/// Values of one active rank. Items below the smallest legal share cost as much as that share.
class Column {
 public:
  Column(const RankCost& rank, const Exposed& exposed, std::int64_t batch)
      : rank_(&rank),
        exposed_(exposed),
        step_(rank.quantum),
        low_((std::max<std::int64_t>(rank.floor, 1) + rank.quantum - 1) / rank.quantum * rank.quantum),
        high_(std::min(rank.cap, batch) / rank.quantum * rank.quantum) {
    if (high_ < low_) high_ = 0;
  }

  std::int64_t high() const { return high_; }
  bool plain() const { return low_ == 1 && step_ == 1; }
  double value(std::int64_t items) const {
    if (step_ > 1) items = (items + step_ - 1) / step_ * step_;
    return secondsOfShare(*rank_, exposed_, std::max(low_, items));
  }
  /// The most items of value <= limit, known to lie in [from, to]; legal, as values are those of legal
  /// shares.
  std::int64_t within(double limit, std::int64_t from, std::int64_t to) const {
    while (from < to) {
      const std::int64_t middle = from + (to - from + 1) / 2;
      if (value(middle) <= limit)
        from = middle;
      else
        to = middle - 1;
    }
    return from;
  }
  /// The same in all of the column, for an answer that is near `guess`. REQUIRES: 0 <= guess <= high()
  std::int64_t near(double limit, std::int64_t guess) const {
    std::int64_t from = guess, to = guess;
    for (std::int64_t step = 1; from > 0 && value(from) > limit; step *= 4) {
      to = from - 1;
      from = std::max<std::int64_t>(0, from - step);
    }
    if (from < guess) return within(limit, from, to);
    for (std::int64_t step = 1; to < high_ && value(to + 1) <= limit; step *= 4) {
      from = to + 1;
      to = std::min(high_, to + step);
    }
    return within(limit, from, to);
  }
  Offer offer(double limit) const { return {low_, within(limit, 0, high_), step_}; }

 private:
  const RankCost* rank_;
  Exposed exposed_;
  std::int64_t step_, low_, high_;
};

/// The `batch` smallest values, as a number per column; of equal ones those of the first columns. `guess` (or
/// empty) makes it faster the nearer it is. REQUIRES: the columns hold that many.
std::vector<std::int64_t> smallest(const std::vector<Column>& columns, std::int64_t batch,
                                   const std::vector<std::int64_t>& guess);

}  // namespace kaitian::schedule
