#include <algorithm>
#include <utility>

#include "kaitian/plan/planner.h"

namespace kaitian::plan {
namespace {

using Range = std::pair<std::int64_t, std::int64_t>;

/// What is taken by any rank, as ascending ranges that do not touch.
std::vector<Range> takenRanges(const Plan& plan) {
  std::vector<Range> taken;
  for (const auto& takes : plan.takes) {
    for (const Take& take : takes) {
      taken.emplace_back(take.lo, take.hi);
    }
  }
  std::sort(taken.begin(), taken.end());
  std::vector<Range> merged;
  for (const Range& range : taken) {
    if (!merged.empty() && range.first <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, range.second);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

}  // namespace

void prune(Plan& plan) {
  const std::vector<Range> taken = takenRanges(plan);
  for (auto& gives : plan.gives) {
    std::vector<Give> kept;
    kept.reserve(gives.size());
    for (const Give& give : gives) {
      auto range = std::upper_bound(taken.begin(), taken.end(), give.lo,
                                    [](std::int64_t lo, const Range& r) { return lo < r.second; });
      for (; range != taken.end() && range->first < give.hi; ++range) {
        const std::int64_t lo = std::max(give.lo, range->first);
        kept.push_back({lo, std::min(give.hi, range->second), give.ref.at(lo - give.lo), give.scaled});
      }
    }
    gives = std::move(kept);
  }
}

}  // namespace kaitian::plan
