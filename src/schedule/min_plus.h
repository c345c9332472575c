// Least costs of sums, one rank after the other.
#pragma once

#include <cstdint>
#include <vector>

namespace kaitian::schedule {

/// Costs of `first`, first + step, first + 2 step, ... items; increments never fall (up to rounding).
struct ConvexPiece {
  std::int64_t first = 0;  // a multiple of step
  std::int64_t step = 1;
  int mode = 0;
  std::vector<double> costs;
};

/// Cuts costs into as few pieces as are convex, in order.
std::vector<ConvexPiece> convexPieces(std::int64_t first, std::int64_t step, int mode,
                                      const std::vector<double>& costs);

/// What the rank that was added last takes where the sum is s.
struct Choice {
  std::int32_t items = 0;
  std::int32_t mode = 0;
};

/// Upper bound of the operations of addPiece for sums 0..total.
double operations(const ConvexPiece& piece, std::int64_t total);

/// least[s] = min(least[s], before[s - b] + cost of b items) for all b of the piece; `choices` follow.
void addPiece(const std::vector<double>& before, const ConvexPiece& piece, std::vector<double>& least,
              std::vector<Choice>& choices);

}  // namespace kaitian::schedule
