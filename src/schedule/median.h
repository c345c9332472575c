// The middle of some values.
#pragma once

#include <algorithm>
#include <vector>

namespace kaitian::schedule {

/// Of an even number of values the mean of the middle two. REQUIRES: at least one
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

/// Of the values in any container.
template <typename Values>
double medianOf(const Values& values) {
  return median({values.begin(), values.end()});
}

}  // namespace kaitian::schedule
