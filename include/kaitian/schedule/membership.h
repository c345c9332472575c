// Who takes part: what the communication of a set of islands costs, as far as it was tried, and when ranks
// that are left out are measured again.
//
// Thread safety: not synchronised.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "kaitian/schedule/estimator.h"
#include "kaitian/schedule/log.h"
#include "kaitian/schedule/rank_model.h"
#include "kaitian/schedule/solver.h"

namespace kaitian::schedule {

class Membership {
 public:
  Membership(const std::vector<RankLimits>& ranks, const Constants& constants);

  /// Whether any rank may be left out.
  bool mayExclude() const { return mayExclude_; }

  /// A step with these ranks spent `tail` seconds on communication that nothing hid.
  void record(std::int64_t step, const std::vector<bool>& active, double tail);
  /// For Problem::exposed: by set of islands where ranks may be left out, else one for all. A set that was
  /// not tried yet and differs from the present one by one island, or is one island alone, is taken to cost
  /// nothing: so it is tried when it could be the best at all, and known afterwards (optimism in the face of
  /// uncertainty: Lai and Robbins 1985). Other sets are taken to cost what the present one does.
  std::vector<Exposed> exposed(std::int64_t step, const std::vector<bool>& active) const;

  /// Notes that a decision after `step` leaves out who is not active from now on.
  void changed(std::int64_t step, const std::vector<bool>& active);
  /// A rank that is left out and should be measured now, or -1. `slowness`: [rank] seconds of its smallest
  /// batch over those of a step.
  int due(std::int64_t step, const std::vector<double>& slowness) const;
  void probed(std::int64_t step, int rank) { seen_[static_cast<std::size_t>(rank)] = step; }

 private:
  struct Tails {
    std::deque<double> recent;  // seconds
    std::int64_t step = 0;      // of the last one
  };
  static constexpr int kMostIslands = 8;  // as the solver

  unsigned setOf(const std::vector<bool>& active) const;
  const Tails* known(unsigned set, std::int64_t step) const;

  std::vector<int> islands_;  // [rank]; all 0 where sets are not told apart
  int count_ = 1;             // of islands
  bool mayExclude_ = false;
  Constants constants_;
  std::map<unsigned, Tails> tails_;
  std::vector<std::int64_t> seen_;  // [rank] step of its last measurement; -1: it takes part
};

}  // namespace kaitian::schedule
