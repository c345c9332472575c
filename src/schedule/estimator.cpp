#include "kaitian/schedule/estimator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "schedule/median.h"

namespace kaitian::schedule {

double ScaleEstimator::scale() const { return std::exp(logs_.empty() ? start_ : medianOf(logs_)); }

double ScaleEstimator::spread() const {
  constexpr double kOfNormal =
      1.4826;  // standard deviation / median absolute deviation of a normal distribution
  std::vector<double> deviations;
  const double level = std::log(scale());
  for (const double value : logs_) deviations.push_back(std::abs(value - level));
  return deviations.empty() ? 0 : kOfNormal * median(std::move(deviations));
}

double ScaleEstimator::noise() const { return std::max(constants_.leastNoise, spread()); }

double ScaleEstimator::uncertainty() const {
  constexpr double kOfMedian = 1.2533;  // standard error of a median / that of a mean, normal noise
  if (count() < 2) return std::numeric_limits<double>::infinity();
  return kOfMedian * spread() / std::sqrt(static_cast<double>(count()));
}

bool ScaleEstimator::add(double ratio) {
  if (!std::isfinite(ratio) || ratio <= 0) return false;
  const double value = std::log(ratio);
  bool changed = false;
  if (count() > constants_.kept) {
    const double deviation =
        std::clamp((value - std::log(scale())) / noise(), -constants_.winsor, constants_.winsor);
    above_ = std::max(0.0, above_ + deviation - constants_.slack);
    below_ = std::max(0.0, below_ - deviation - constants_.slack);
    changed = above_ > constants_.threshold || below_ > constants_.threshold;
  }
  logs_.push_back(value);
  while (count() > (changed ? constants_.kept : constants_.window)) logs_.pop_front();
  if (changed) above_ = below_ = 0;
  return changed;
}

void ScaleEstimator::reset(double scale) {
  logs_.clear();
  start_ = std::log(scale);
  above_ = below_ = 0;
}

}  // namespace kaitian::schedule
