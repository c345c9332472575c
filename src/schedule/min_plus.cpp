#include "schedule/min_plus.h"

#include <algorithm>
#include <cmath>

namespace kaitian::schedule {
namespace {

/// The sums of one remainder by the step. Entry (row, column) = before[column] + cost of row - column units;
/// as the costs are convex the column of the least one never falls with the row.
class Rows {
 public:
  Rows(const std::vector<double>& before, const ConvexPiece& piece, std::vector<double>& least,
       std::vector<Choice>& choices, std::int64_t remainder)
      : before_(before), piece_(piece), least_(least), choices_(choices), remainder_(remainder) {}

  /// Rows [begin, end), whose best columns lie in [low, high].
  void search(std::int64_t begin, std::int64_t end, std::int64_t low, std::int64_t high) {
    if (begin >= end) return;
    const std::int64_t row = begin + (end - begin) / 2;
    const std::int64_t nearest = row - piece_.first / piece_.step;  // column of the fewest items
    const std::int64_t furthest = nearest - static_cast<std::int64_t>(piece_.costs.size()) + 1;
    std::int64_t best = -1;
    double cost = HUGE_VAL;
    for (std::int64_t column = std::max(low, furthest); column <= std::min(high, nearest); ++column) {
      const double candidate = before_[at(column)] + piece_.costs[static_cast<std::size_t>(nearest - column)];
      if (candidate >= cost) continue;
      cost = candidate;
      best = column;
    }
    if (best >= 0 && cost < least_[at(row)]) {
      least_[at(row)] = cost;
      choices_[at(row)] = {static_cast<std::int32_t>((row - best) * piece_.step), piece_.mode};
    }
    search(begin, row, low, best < 0 ? high : best);
    search(row + 1, end, best < 0 ? low : best, high);
  }

 private:
  std::size_t at(std::int64_t unit) const {
    return static_cast<std::size_t>(remainder_ + unit * piece_.step);
  }

  const std::vector<double>& before_;
  const ConvexPiece& piece_;
  std::vector<double>& least_;
  std::vector<Choice>& choices_;
  std::int64_t remainder_;
};

}  // namespace

std::vector<ConvexPiece> convexPieces(std::int64_t first, std::int64_t step, int mode,
                                      const std::vector<double>& costs) {
  constexpr double kRounding = 1e-12;  // of the costs, by which a straight line's increments may seem to fall
  std::vector<ConvexPiece> pieces;
  double steepest = -HUGE_VAL;
  for (std::size_t k = 0; k < costs.size(); ++k) {
    const double increment = k > 0 ? costs[k] - costs[k - 1] : HUGE_VAL;
    const bool follows = !pieces.empty() && (pieces.back().costs.size() == 1 ||
                                             increment >= steepest - kRounding * std::abs(costs[k]));
    if (!follows) {
      pieces.push_back({first + static_cast<std::int64_t>(k) * step, step, mode, {}});
      steepest = -HUGE_VAL;
    } else {
      steepest = std::max(steepest, increment);
    }
    pieces.back().costs.push_back(costs[k]);
  }
  return pieces;
}

double operations(const ConvexPiece& piece, std::int64_t total) {
  const auto sums = static_cast<double>(total + 1);
  return sums * (1 + std::min(static_cast<double>(piece.costs.size()), std::log2(sums) + 1));
}

void addPiece(const std::vector<double>& before, const ConvexPiece& piece, std::vector<double>& least,
              std::vector<Choice>& choices) {
  const auto sums = static_cast<std::int64_t>(before.size());
  for (std::int64_t remainder = 0; remainder < std::min(piece.step, sums); ++remainder) {
    const std::int64_t units = (sums - remainder + piece.step - 1) / piece.step;
    Rows(before, piece, least, choices, remainder).search(0, units, 0, units - 1);
  }
}

}  // namespace kaitian::schedule
