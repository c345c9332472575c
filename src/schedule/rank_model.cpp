#include "kaitian/schedule/rank_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "schedule/median.h"

namespace kaitian::schedule {

RankModel::RankModel(const RankLimits& limits, std::int64_t batch, std::int64_t microBatches,
                     const Constants& constants)
    : limits_(limits), batch_(batch), prescribed_(microBatches), constants_(constants), scale_(constants) {}

std::int64_t RankModel::cap() const {
  const std::int64_t micro = std::min(limits_.microCap, batch_);
  if (!limits_.accumulates) return micro;
  return prescribed_ > 0 ? std::min(batch_, micro * prescribed_) : batch_;
}

void RankModel::record(std::int64_t share, std::int64_t pieces, double seconds) {
  if (pieces < 1) return;  // it took no part
  const std::int64_t size = std::max<std::int64_t>(1, (share + pieces / 2) / pieces);
  auto& times = times_[size];
  times.push_back(seconds / static_cast<double>(pieces));
  if (static_cast<int>(times.size()) > constants_.window) times.pop_front();
}

void RankModel::record(const std::vector<Sample>& samples) {
  for (const Sample& sample : samples) times_[sample.items] = {sample.seconds};
}

std::vector<Sample> RankModel::samples() const {
  std::vector<Sample> samples;
  for (const auto& [size, times] : times_)
    samples.push_back({size, medianOf(times), static_cast<double>(times.size())});
  return samples;
}

Status RankModel::fit() {
  const std::int64_t micro = std::min(limits_.microCap, batch_);
  Result<CostTable> one = CostTable::fit(samples(), std::max(micro, batch_));
  if (!one.ok()) return one.status();
  one_ = std::move(one).value();
  Result<Accumulated> share =
      accumulate(one_, std::max(micro, limits_.floor), cap(), limits_.floor, prescribed_);
  if (!share.ok()) return share.status();
  share_ = std::move(share).value();
  return {};
}

std::optional<double> RankModel::observe(std::int64_t share, std::int64_t pieces, const Measured& measured) {
  if (share != lastShare_) {
    lastShare_ = share;
    held_ = 0;
    fresh_.clear();
    comparing_ = scale_.count() >= constants_.refining;
  }
  const bool sane = std::isfinite(measured.compute) && measured.compute > 0 && measured.fixed >= 0;
  if (!measured.counts || !sane || ++held_ <= constants_.settling) return std::nullopt;
  constexpr double kSmoothing = 0.1;
  fixed_ += kSmoothing * (measured.fixed - fixed_);
  const std::int64_t items = std::max(share, limits_.floor);  // a share of 0 runs the smallest batch
  const double ratio = measured.compute / share_.cost.at(std::min(items, share_.cost.size()));
  return comparing_ ? compare(ratio, share, pieces) : feed(ratio);
}

std::optional<double> RankModel::feed(double ratio) {
  return scale_.add(ratio) ? std::optional(1 / scale()) : std::nullopt;
}

double RankModel::probe(double seconds) {
  const std::int64_t items = std::min(limits_.floor, share_.cost.size());
  if (std::isfinite(seconds) && seconds > 0) scale_.reset(seconds / share_.cost.at(items));
  return 1 / scale();
}

/// At a new share a ratio that differs from before is the table's error there, as long as it is not large:
/// then the device has changed.
std::optional<double> RankModel::compare(double ratio, std::int64_t share, std::int64_t pieces) {
  fresh_.push_back(ratio);
  constexpr std::size_t kSure = 3;
  const auto large = [this](double value) {
    return std::abs(std::log(value / scale())) > std::log1p(constants_.tableError);
  };
  const std::size_t n = fresh_.size();
  if (n >= kSure && std::all_of(fresh_.end() - kSure, fresh_.end(), large)) {
    comparing_ = false;
    std::optional<double> changed;
    for (const double value : fresh_)
      if (auto speed = feed(value)) changed = speed;
    return changed;
  }
  if (static_cast<int>(n) < constants_.refining) return std::nullopt;
  comparing_ = false;
  refine(median(fresh_) / scale(), share, pieces);
  return std::nullopt;
}

void RankModel::refine(double error, std::int64_t share, std::int64_t pieces) {
  if (share == 0) return;
  const std::int64_t size = std::max<std::int64_t>(1, (share + pieces / 2) / pieces);
  times_[size] = {one_.at(std::min(size, one_.size())) * error};
  (void)fit();  // with one more sample it fits as it did before
}

std::int64_t RankModel::microBatches(std::int64_t share) const {
  return share == 0 ? 1 : share_.microBatches[static_cast<std::size_t>(share - 1)];
}

RankCost RankModel::cost() const {
  RankCost cost;
  cost.compute = share_.cost;
  cost.scale = scale();
  cost.fixed = fixed_;
  cost.floor = limits_.floor;
  cost.cap = share_.cost.size();
  cost.quantum = limits_.quantum;
  cost.island = limits_.island;
  cost.mayLeave = limits_.mayLeave;
  const std::int64_t least = std::min(limits_.floor, share_.cost.size());
  cost.zero = least > 0 ? cost.scale * share_.cost.at(least) + fixed_ : fixed_;
  return cost;
}

std::vector<std::vector<std::int64_t>> variations(const std::vector<std::int64_t>& base,
                                                  const std::vector<RankModel>& ranks) {
  constexpr double kFactors[] = {0.5, 1.3, 0.75, 1.6};
  constexpr std::size_t kCount = std::size(kFactors);
  const std::int64_t batch = std::accumulate(base.begin(), base.end(), std::int64_t{0});
  std::vector<std::vector<std::int64_t>> all;
  for (std::size_t turn = 0; turn < kCount; ++turn) {
    std::vector<double> weights;
    for (std::size_t i = 0; i < base.size(); ++i)
      weights.push_back(static_cast<double>(base[i]) * kFactors[(i + turn) % kCount]);
    std::vector<std::int64_t> shares = proportional(batch, weights);
    std::int64_t surplus = 0;  // what the limits do not let their ranks take, or make them take
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const std::int64_t legal = base[i] == 0
                                     ? 0
                                     : std::clamp(shares[i], std::min(ranks[i].limits().floor, base[i]),
                                                  std::max(ranks[i].cap(), base[i]));
      surplus += shares[i] - legal;
      shares[i] = legal;
    }
    // Base itself is legal and has the right sum: going back towards it settles any surplus.
    for (std::size_t i = 0; i < shares.size() && surplus != 0; ++i) {
      const std::int64_t back = base[i] - shares[i];
      const std::int64_t moved = surplus > 0 ? std::clamp<std::int64_t>(back, 0, surplus)
                                             : std::clamp<std::int64_t>(back, surplus, 0);
      shares[i] += moved;
      surplus -= moved;
    }
    all.push_back(std::move(shares));
  }
  return all;
}

}  // namespace kaitian::schedule
