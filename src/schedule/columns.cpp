#include "schedule/columns.h"

#include <cmath>
#include <numeric>

namespace kaitian::schedule {
namespace {

using Counts = std::vector<std::int64_t>;

std::int64_t sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// Takes the next smallest value until there are `batch`.
void fill(const std::vector<Column>& columns, std::int64_t batch, Counts& counts) {
  std::vector<double> next(columns.size());
  const auto look = [&](std::size_t i) {
    next[i] = counts[i] < columns[i].high() ? columns[i].value(counts[i] + 1) : HUGE_VAL;
  };
  for (std::size_t i = 0; i < columns.size(); ++i) look(i);
  for (std::int64_t left = batch - sum(counts); left > 0; --left) {
    const auto i = static_cast<std::size_t>(std::min_element(next.begin(), next.end()) - next.begin());
    ++counts[i];
    look(i);
  }
}

/// Values between which the batch-th smallest lies, with the number of values up to each per column.
struct Range {
  double low = 0, high = 0;
  Counts below, above;
};

/// Shares that sum to the batch bound the range: their largest value is enough, and below their smallest
/// there are too few.
Range rangeAround(const std::vector<Column>& columns, std::int64_t batch, Counts guess) {
  const std::size_t n = columns.size();
  guess.resize(n, 0);
  for (std::size_t i = 0; i < n; ++i) guess[i] = std::min(guess[i], columns[i].high());
  const bool whole = sum(guess) == batch;
  Range range{0, 0, Counts(n, 0), Counts(n)};
  if (whole) range.low = HUGE_VAL;
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t items = whole ? guess[i] : columns[i].high();
    if (columns[i].high() == 0) continue;
    if (items > 0) range.high = std::max(range.high, columns[i].value(items));
    if (whole) range.low = std::min(range.low, columns[i].value(std::max<std::int64_t>(items, 1)));
  }
  if (whole) range.low = std::nextafter(range.low, 0);
  for (std::size_t i = 0; i < n; ++i) {
    range.above[i] = whole ? columns[i].near(range.high, guess[i]) : columns[i].high();
    if (whole) range.below[i] = columns[i].near(range.low, guess[i]);
  }
  return range;
}

}  // namespace

Counts smallest(const std::vector<Column>& columns, std::int64_t batch, const Counts& guess) {
  auto [low, high, below, above] = rangeAround(columns, batch, guess);
  // Halves the range of values until so few lie in it that they can be taken one by one.
  Counts counts(columns.size());
  constexpr std::int64_t kFew = 64;
  while (sum(above) - sum(below) > kFew) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) break;  // what is left has one value
    for (std::size_t i = 0; i < columns.size(); ++i)
      counts[i] = columns[i].within(middle, below[i], above[i]);
    if (sum(counts) >= batch) {
      high = middle;
      above.swap(counts);
    } else {
      low = middle;
      below.swap(counts);
    }
  }
  fill(columns, batch, below);
  return below;
}

}  // namespace kaitian::schedule
