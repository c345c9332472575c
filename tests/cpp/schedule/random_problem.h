// Small random problems, and their best shares found by trying all of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "kaitian/schedule/solver.h"

namespace kaitian::schedule {

class RandomProblem {
 public:
  explicit RandomProblem(std::uint64_t seed) : random_(seed) {}

  std::int64_t whole(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  double real(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }
  bool chance(double part) { return real(0, 1) < part; }

  /// Straight, curved or in steps; with plateaus, where values are equal.
  CostTable table(std::int64_t size) {
    std::vector<double> seconds;
    const double fixed = chance(0.5) ? real(0, 3) : 0, slope = real(0.05, 2),
                 power = chance(0.5) ? 1 : real(0.5, 2);
    const std::int64_t step = chance(0.4) ? whole(2, 5) : 1;
    for (std::int64_t b = 1; b <= size; ++b)
      seconds.push_back(fixed + slope * std::pow(static_cast<double>((b + step - 1) / step * step), power));
    return CostTable::of(std::move(seconds)).value();
  }

  Problem problem(bool legalities, bool exclusion) {
    Problem problem;
    problem.batch = whole(1, 12);
    const auto ranks = static_cast<std::size_t>(whole(1, 4));
    for (std::size_t i = 0; i < ranks; ++i) {
      RankCost rank;
      rank.compute = table(14);
      rank.cap = whole(chance(0.1) ? 0 : 1, 14);
      rank.scale = chance(0.5) ? real(0.3, 5) : 1;
      rank.fixed = chance(0.3) ? real(0, 1) : 0;
      rank.firstReady = chance(0.5) ? real(0, 1) : 1;
      if (legalities) {
        rank.floor = whole(1, 4);
        rank.quantum = chance(0.5) ? whole(1, 4) : 1;
      }
      if (exclusion || chance(0.3)) rank.zero = real(0, 6);
      rank.island = static_cast<int>(whole(0, 2));
      if (exclusion) rank.mayLeave = chance(0.8);
      problem.ranks.push_back(rank);
    }
    problem.mayExclude = exclusion;
    int islands = 0;
    for (const RankCost& rank : problem.ranks) islands = std::max(islands, rank.island + 1);
    problem.exposed.assign(chance(0.6) ? std::size_t{1} << islands : 1, {});
    for (Exposed& exposed : problem.exposed) exposed = {real(0, 1), real(0, 4)};
    return problem;
  }

 private:
  std::mt19937_64 random_;
};

inline bool legal(const RankCost& rank, std::int64_t items) {
  return items == 0 || (items >= rank.floor && items <= rank.cap && items % rank.quantum == 0);
}

/// Calls `visit` for every way to share out the batch among every set of active ranks.
inline void forAllShares(const Problem& problem, const std::function<void(const Shares&)>& visit) {
  const std::size_t n = problem.ranks.size();
  Shares shares{std::vector<std::int64_t>(n), std::vector<bool>(n), 0};
  const std::function<void(std::size_t, std::int64_t)> place = [&](std::size_t i, std::int64_t left) {
    if (i == n) {
      if (left == 0) visit(shares);
      return;
    }
    for (std::int64_t items = 0; items <= (shares.active[i] ? left : 0); ++items) {
      if (!legal(problem.ranks[i], items)) continue;
      shares.items[i] = items;
      place(i + 1, left - items);
    }
  };
  for (std::size_t set = problem.mayExclude ? 1 : (std::size_t{1} << n) - 1; set < std::size_t{1} << n;
       ++set) {
    bool stay = true;
    for (std::size_t i = 0; i < n; ++i) {
      shares.active[i] = (set >> i & 1U) != 0;
      stay = stay && (shares.active[i] || problem.ranks[i].mayLeave);
    }
    if (stay || !problem.mayExclude) place(0, problem.batch);
  }
}

}  // namespace kaitian::schedule
