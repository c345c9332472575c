#include "kaitian/schedule/cost.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

namespace kaitian::schedule {
namespace {

/// Neighbouring sizes that share one mean.
struct Pool {
  double mean = 0;
  double weight = 0;
  std::size_t count = 0;
};

/// Means by size, made non-decreasing.
std::vector<double> isotonic(const std::vector<Pool>& points) {
  std::vector<Pool> pools;
  for (const Pool& point : points) {
    pools.push_back(point);
    while (pools.size() > 1 && pools[pools.size() - 2].mean > pools.back().mean) {
      const Pool last = pools.back();
      pools.pop_back();
      Pool& kept = pools.back();
      kept.mean = (kept.mean * kept.weight + last.mean * last.weight) / (kept.weight + last.weight);
      kept.weight += last.weight;
      kept.count += last.count;
    }
  }
  std::vector<double> means;
  for (const Pool& pool : pools) means.insert(means.end(), pool.count, pool.mean);
  return means;
}

/// The line through two points at `items`.
double line(double x0, double y0, double x1, double y1, double items) {
  return y0 + (y1 - y0) * (items - x0) / (x1 - x0);
}

/// Seconds per item next to what was measured: the slope between two sizes, but never flatter than the whole
/// curve. Sizes that happened to take the same time must not make larger ones free, nor smaller ones useless.
double slopeBeside(const std::vector<double>& sizes, const std::vector<double>& times, std::size_t k) {
  const double whole = (times.back() - times.front()) / (sizes.back() - sizes.front());
  return std::max(whole, (times[k + 1] - times[k]) / (sizes[k + 1] - sizes[k]));
}

/// Straight lines through (sizes[k], times[k]).
std::vector<double> interpolate(const std::vector<double>& sizes, const std::vector<double>& times,
                                std::int64_t size) {
  std::vector<double> seconds(static_cast<std::size_t>(size));
  const std::size_t n = sizes.size();
  const double below = n > 1 ? slopeBeside(sizes, times, 0) : 0;
  double beyond = n > 1 ? slopeBeside(sizes, times, n - 2) : 0;
  if (beyond <= 0) beyond = times.back() / sizes.back();
  std::size_t k = 0;
  for (std::int64_t b = 1; b <= size; ++b) {
    const auto items = static_cast<double>(b);
    double time = 0;
    while (k + 2 < n && items > sizes[k + 1]) ++k;
    if (n == 1) {
      time = times[0] * items / sizes[0];
    } else if (items < sizes[0]) {  // never less than proportional, which a concave line would undercut
      time = std::max(times[0] - below * (sizes[0] - items), times[0] * items / sizes[0]);
    } else if (items > sizes.back()) {
      time = times.back() + beyond * (items - sizes.back());
    } else {
      time = line(sizes[k], times[k], sizes[k + 1], times[k + 1], items);
    }
    seconds[static_cast<std::size_t>(b - 1)] = time;
  }
  return seconds;
}

}  // namespace

Result<CostTable> CostTable::fit(std::span<const Sample> samples, std::int64_t size) {
  if (samples.empty())
    return Status(Code::invalidArgument, "cost table: argument samples: expected at least one, found none");
  if (size < 1)
    return Status(Code::invalidArgument,
                  "cost table: argument size: expected >= 1, found " + std::to_string(size));
  std::map<std::int64_t, Pool> bySize;
  for (const Sample& sample : samples) {
    if (sample.items < 1 || !std::isfinite(sample.seconds) || sample.seconds <= 0 || !(sample.weight > 0))
      return Status(
          Code::invalidArgument,
          "cost table: argument samples: expected items >= 1, a positive time and a positive weight, found " +
              std::to_string(sample.items) + " items in " + std::to_string(sample.seconds) + " s, weight " +
              std::to_string(sample.weight));
    Pool& pool = bySize[sample.items];
    pool.mean = (pool.mean * pool.weight + sample.seconds * sample.weight) / (pool.weight + sample.weight);
    pool.weight += sample.weight;
    pool.count = 1;
  }
  std::vector<double> sizes;
  std::vector<Pool> points;
  for (const auto& [items, pool] : bySize) {
    sizes.push_back(static_cast<double>(items));
    points.push_back(pool);
  }
  return CostTable(interpolate(sizes, isotonic(points), size));
}

Result<CostTable> CostTable::of(std::vector<double> seconds) {
  double last = 0;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    if (!std::isfinite(seconds[i]) || seconds[i] < last)
      return Status(Code::invalidArgument, "cost table: argument seconds[" + std::to_string(i) +
                                               "]: expected a finite time >= " + std::to_string(last) +
                                               ", found " + std::to_string(seconds[i]));
    last = seconds[i];
  }
  return CostTable(std::move(seconds));
}

Result<Accumulated> accumulate(const CostTable& one, std::int64_t cap, std::int64_t size, std::int64_t floor,
                               std::int64_t microBatches) {
  if (floor < 1 || cap < floor || cap > one.size())
    return Status(Code::invalidArgument,
                  "micro-batches: expected 1 <= floor <= cap <= " + std::to_string(one.size()) +
                      " (sizes that were measured), found floor " + std::to_string(floor) + ", cap " +
                      std::to_string(cap));
  // A few micro-batches more than needed may win where costs are steps; many more never do, as each has its
  // fixed cost.
  constexpr std::int64_t kMore = 3;
  constexpr double kBetter = 0.97;  // less is noise of measurement
  std::vector<double> seconds;
  std::vector<std::int64_t> counts;
  for (std::int64_t b = 1; b <= size; ++b) {
    const auto cost = [&](std::int64_t k) {
      const std::int64_t share = std::max(b, k * floor);
      if ((share + k - 1) / k > cap) return HUGE_VAL;
      const double small = share / k > 0 ? one.at(share / k) : 0;
      const std::int64_t larger = share % k;
      return static_cast<double>(k - larger) * small +
             (larger > 0 ? static_cast<double>(larger) * one.at(share / k + 1) : 0);
    };
    std::int64_t best = microBatches > 0 ? microBatches : (b + cap - 1) / cap;
    if (microBatches <= 0) {
      const std::int64_t most = std::max(best, std::min(best + kMore, b / floor));
      for (std::int64_t k = best + 1; k <= most; ++k)
        if (cost(k) < kBetter * cost(best)) best = k;
    }
    const double time = cost(best);
    if (time == HUGE_VAL) break;  // a prescribed number of micro-batches holds no more
    seconds.push_back(seconds.empty() ? time : std::max(time, seconds.back()));
    counts.push_back(best);
  }
  Result<CostTable> table = CostTable::of(std::move(seconds));
  if (!table.ok()) return table.status();
  return Accumulated{std::move(table).value(), std::move(counts)};
}

}  // namespace kaitian::schedule
