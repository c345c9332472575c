// Which sums can be made of one offer per rank: for floors that do not all fit and for unlike quanta.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace kaitian::schedule {

/// What a rank may take: nothing, or low, low + step, ..., high.
struct Offer {
  std::int64_t low = 1, high = 0, step = 1;  // high < low: nothing only

  bool has(std::int64_t items) const {
    return items == 0 || (items >= low && items <= high && (items - low) % step == 0);
  }
};

/// One number per rank with sum `total`, each as near to `wanted` as the ranks before it leave possible;
/// nothing if no choice has this sum. Exact: O(offers x log(total) x total / 64).
std::optional<std::vector<std::int64_t>> choose(const std::vector<Offer>& offers, std::int64_t total,
                                                const std::vector<std::int64_t>& wanted);
bool reachable(const std::vector<Offer>& offers, std::int64_t total);

}  // namespace kaitian::schedule
