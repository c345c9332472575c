#include "schedule/sums.h"

#include <algorithm>

namespace kaitian::schedule {
namespace {

/// A set of sums 0..total.
class SumSet {
 public:
  explicit SumSet(std::int64_t total) : words_(static_cast<std::size_t>(total / 64 + 1)), total_(total) {}

  void insert(std::int64_t sum) { words_[static_cast<std::size_t>(sum / 64)] |= 1ULL << (sum % 64); }
  bool has(std::int64_t sum) const {
    return sum >= 0 && sum <= total_ && (words_[static_cast<std::size_t>(sum / 64)] >> (sum % 64) & 1U) != 0;
  }
  /// Adds every element of `other` plus `by`.
  void addShifted(const SumSet& other, std::int64_t by) {
    const auto whole = static_cast<std::size_t>(by / 64);
    const auto bits = static_cast<unsigned>(by % 64);
    for (std::size_t i = words_.size(); i-- > whole;) {
      std::uint64_t word = other.words_[i - whole] << bits;
      if (bits > 0 && i > whole) word |= other.words_[i - whole - 1] >> (64 - bits);
      words_[i] |= word;
    }
  }

 private:
  std::vector<std::uint64_t> words_;
  std::int64_t total_;
};

/// Sums of `before` plus one element of the offer. Multiples are added by doubling, not one by one.
SumSet with(const SumSet& before, const Offer& offer, std::int64_t total) {
  SumSet after = before;
  const std::int64_t high = std::min(offer.high, total);
  if (high < offer.low) return after;
  SumSet window(total);  // before + low + {0, step, ..., (covered - 1) step}
  window.addShifted(before, offer.low);
  const std::int64_t count = (high - offer.low) / offer.step + 1;
  for (std::int64_t covered = 1; covered < count;) {
    const std::int64_t more = std::min(covered, count - covered);
    const SumSet copy = window;
    window.addShifted(copy, more * offer.step);
    covered += more;
  }
  after.addShifted(window, 0);
  return after;
}

std::vector<SumSet> prefixes(const std::vector<Offer>& offers, std::int64_t total) {
  std::vector<SumSet> sums{SumSet(total)};
  sums[0].insert(0);
  for (const Offer& offer : offers) sums.push_back(with(sums.back(), offer, total));
  return sums;
}

}  // namespace

bool reachable(const std::vector<Offer>& offers, std::int64_t total) {
  return prefixes(offers, total).back().has(total);
}

std::optional<std::vector<std::int64_t>> choose(const std::vector<Offer>& offers, std::int64_t total,
                                                const std::vector<std::int64_t>& wanted) {
  const std::vector<SumSet> sums = prefixes(offers, total);
  if (!sums.back().has(total)) return std::nullopt;
  std::vector<std::int64_t> chosen(offers.size());
  std::int64_t left = total;
  for (std::size_t i = offers.size(); i-- > 0;) {
    const SumSet& before = sums[i];
    for (std::int64_t distance = 0;; ++distance) {
      const std::int64_t below = wanted[i] - distance, above = wanted[i] + distance;
      const auto fits = [&](std::int64_t items) {
        return items >= 0 && offers[i].has(items) && before.has(left - items);
      };
      if (fits(below) || fits(above)) {
        chosen[i] = fits(below) ? below : above;
        break;
      }
    }
    left -= chosen[i];
  }
  return chosen;
}

}  // namespace kaitian::schedule
