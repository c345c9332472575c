// What is known of one rank: cost of micro-batches as profiled, how much slower it is now, what it spends
// beside.
//
// Thread safety: not synchronised.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "kaitian/schedule/estimator.h"
#include "kaitian/schedule/solver.h"

namespace kaitian::schedule {

/// What holds for a rank whatever its speed.
struct RankLimits {
  std::int64_t floor = 1;     // the smallest micro-batch (2 with plain BatchNorm)
  std::int64_t microCap = 1;  // the largest micro-batch that its memory holds
  std::int64_t quantum = 1;   // shares are multiples of it
  bool accumulates = true;    // whether its share may be more than one micro-batch
  int island = 0;             // ranks of one vendor library; 0, 1, ...
  bool mayLeave = false;      // whether it may be left out of steps
};

/// Times of one rank in one step, in seconds.
struct Measured {
  double compute = 0;  // what grows with its share: forward and backward, without waiting inside collectives,
                       // and data and copies that nothing hid
  double fixed = 0;    // what does not: optimizer, the caller's own work
  bool counts = false;  // false: nothing was measured (first steps after a restart, a skipped step)
};

class RankModel {
 public:
  RankModel(const RankLimits& limits, std::int64_t batch, std::int64_t microBatches,
            const Constants& constants);

  const RankLimits& limits() const { return limits_; }
  void limitMicroBatch(std::int64_t microCap) { limits_.microCap = microCap; }
  /// The largest share that it can take.
  std::int64_t cap() const;

  /// Learning: `pieces` micro-batches of together `share` items took `seconds`.
  void record(std::int64_t share, std::int64_t pieces, double seconds);
  void record(const std::vector<Sample>& samples);
  /// Median seconds per size of micro-batch, at scale 1.
  std::vector<Sample> samples() const;
  /// Makes the cost table from what was recorded. REQUIRES: something was
  Status fit();

  /// Following: a step with that share. Returns the speed now / when profiled if the rank has changed just
  /// now.
  std::optional<double> observe(std::int64_t share, std::int64_t pieces, const Measured& measured);
  double scale() const { return scale_.scale(); }
  /// By what part scale() may be wrong, see ScaleEstimator.
  double uncertainty() const { return scale_.uncertainty(); }
  /// Its smallest batch took so long while it was left out. Returns the speed now / when profiled.
  double probe(double seconds);

  /// Into how many micro-batches a share is cut best. REQUIRES: fitted
  std::int64_t microBatches(std::int64_t share) const;
  /// REQUIRES: fitted
  RankCost cost() const;

 private:
  std::optional<double> feed(double ratio);
  std::optional<double> compare(double ratio, std::int64_t share, std::int64_t pieces);
  void refine(double error, std::int64_t share, std::int64_t pieces);

  RankLimits limits_;
  std::int64_t batch_, prescribed_;
  Constants constants_;
  std::map<std::int64_t, std::deque<double>> times_;  // micro-batch -> recent seconds at scale 1
  CostTable one_;
  Accumulated share_;
  ScaleEstimator scale_;
  double fixed_ = 0;
  std::int64_t lastShare_ = -1;
  int held_ = 0;  // measurements with the same share
  bool comparing_ = false;
  std::vector<double> fresh_;  // ratios at a share that is new, compared with the scale before it
};

/// Shares to learn from: every rank in turn takes less and more than `base`, while the sum stays. Each lies
/// between floor and cap of its rank, or at base.
std::vector<std::vector<std::int64_t>> variations(const std::vector<std::int64_t>& base,
                                                  const std::vector<RankModel>& ranks);

}  // namespace kaitian::schedule
