// What a rank's work costs: seconds for 1, 2, 3, ... items, never decreasing.
//
// Thread safety: values; copies share their numbers, which nobody changes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kaitian/core/status.h"

namespace kaitian::schedule {

/// A measurement: the time that a number of items took.
struct Sample {
  std::int64_t items = 0;
  double seconds = 0;
  double weight = 1;  // how many measurements it stands for
};

class CostTable {
 public:
  CostTable() = default;

  /// Isotonic regression of the samples (weighted least squares by pooling adjacent violators: Barlow et al.,
  /// Statistical Inference under Order Restrictions, 1972), straight lines between them, and outside the
  /// slope next to there or the whole curve's, whichever is steeper, but below the smallest size no less than
  /// in proportion. With samples of one size only the time is taken as proportional to the items.
  /// Code::invalidArgument for no sample, items < 1, a time that is not finite and positive, or size < 1.
  static Result<CostTable> fit(std::span<const Sample> samples, std::int64_t size);
  /// seconds[b - 1] is the time of b items. Code::invalidArgument unless finite, not negative,
  /// non-decreasing.
  static Result<CostTable> of(std::vector<double> seconds);

  /// The largest number of items that it knows; 0 for an empty table.
  std::int64_t size() const { return seconds_ ? static_cast<std::int64_t>(seconds_->size()) : 0; }
  /// Seconds for `items`. REQUIRES: 1 <= items <= size()
  double at(std::int64_t items) const { return (*seconds_)[static_cast<std::size_t>(items - 1)]; }

 private:
  explicit CostTable(std::vector<double> seconds)
      : seconds_(std::make_shared<const std::vector<double>>(std::move(seconds))) {}

  std::shared_ptr<const std::vector<double>> seconds_;
};

/// Shares cut into micro-batches, for devices whose memory or whose patience ends before their share does.
struct Accumulated {
  CostTable cost;  // of a share
  std::vector<std::int64_t>
      microBatches;  // [share - 1]: into how many it is cut, evenly (sizes differ by one)
};

/// The cheapest even cut of every share of 1..size items into micro-batches of `floor`..`cap` items, each of
/// which costs what `one` says. `microBatches` > 0 prescribes their number (as FSDP needs it, where ranks
/// take equally many); shares below microBatches x floor then cost as much as that many items do. Where the
/// cut would make more items cheaper than fewer, the dearer one of them counts. REQUIRES: 1 <= floor <= cap
/// <= one.size()
Result<Accumulated> accumulate(const CostTable& one, std::int64_t cap, std::int64_t size,
                               std::int64_t floor = 1, std::int64_t microBatches = 0);

}  // namespace kaitian::schedule
