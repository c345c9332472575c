#include "kaitian/schedule/estimator.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace kaitian::schedule {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

double ScaleEstimator::scale() const {
  return std::exp(logs_.empty() ? start_ : median({logs_.begin(), logs_.end()}));
}

double ScaleEstimator::noise() const {
  constexpr double kOfNormal =
      1.4826;  // standard deviation / median absolute deviation of a normal distribution
  std::vector<double> deviations;
  const double level = std::log(scale());
  for (const double value : logs_) deviations.push_back(std::abs(value - level));
  return std::max(constants_.leastNoise, deviations.empty() ? 0 : kOfNormal * median(std::move(deviations)));
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
