#include "kaitian/schedule/membership.h"

#include <algorithm>
#include <bit>

#include "schedule/median.h"

namespace kaitian::schedule {

Membership::Membership(const std::vector<RankLimits>& ranks, const Constants& constants)
    : constants_(constants), seen_(ranks.size(), -1) {
  for (const RankLimits& rank : ranks) {
    mayExclude_ = mayExclude_ || rank.mayLeave;
    count_ = std::max(count_, rank.island + 1);
  }
  if (!mayExclude_ || count_ > kMostIslands) count_ = 1;
  for (const RankLimits& rank : ranks) islands_.push_back(count_ == 1 ? 0 : rank.island);
}

unsigned Membership::setOf(const std::vector<bool>& active) const {
  unsigned set = 0;
  for (std::size_t i = 0; i < active.size(); ++i)
    if (active[i]) set |= 1U << islands_[i];
  return set;
}

void Membership::record(std::int64_t step, const std::vector<bool>& active, double tail) {
  Tails& tails = tails_[setOf(active)];
  if (step - tails.step > constants_.remembered) tails.recent.clear();
  tails.recent.push_back(tail);
  tails.step = step;
  if (static_cast<int>(tails.recent.size()) > constants_.window) tails.recent.pop_front();
}

const Membership::Tails* Membership::known(unsigned set, std::int64_t step) const {
  const auto found = tails_.find(set);
  if (found == tails_.end() || step - found->second.step > constants_.remembered) return nullptr;
  return &found->second;
}

std::vector<Exposed> Membership::exposed(std::int64_t step, const std::vector<bool>& active) const {
  const unsigned now = setOf(active);
  const Tails* present = known(now, step);
  const double usual = present != nullptr ? medianOf(present->recent) : 0;
  if (count_ == 1) return {{usual, usual}};
  std::vector<Exposed> exposed;
  for (unsigned set = 0; set < 1U << count_; ++set) {
    const Tails* tails = known(set, step);
    const bool near = std::popcount(set ^ now) == 1 || std::popcount(set) == 1;
    const double tail = tails != nullptr ? medianOf(tails->recent) : near && set != now ? 0 : usual;
    exposed.push_back({tail, tail});
  }
  return exposed;
}

void Membership::changed(std::int64_t step, const std::vector<bool>& active) {
  for (std::size_t i = 0; i < active.size(); ++i)
    if (active[i])
      seen_[i] = -1;
    else if (seen_[i] < 0)
      seen_[i] = std::max<std::int64_t>(step, 0);
}

int Membership::due(std::int64_t step, const std::vector<double>& slowness) const {
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    if (seen_[i] < 0) continue;
    // The others wait for it only as far as it takes longer than they do.
    const double cost = std::max(0.0, slowness[i] - 1);
    if (static_cast<double>(step - seen_[i]) >=
        std::max(static_cast<double>(constants_.probing), cost / constants_.probeCost))
      return static_cast<int>(i);
  }
  return -1;
}

}  // namespace kaitian::schedule
