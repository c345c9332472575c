// The shares of a batch that make the step shortest, exactly.
//
// Rank i needs g_i(b) seconds for b items, never decreasing in b. Sought are b_i with sum B, each 0 or
// between the rank's floor and cap and a multiple of its quantum, that minimise max_i g_i(b_i). With floors
// and quanta of 1 the least maximum is the B-th smallest of all values g_i(k), because the B smallest, taken
// column by column, are a plan, and a plan that meets T uses only values <= T.
//
// Thread safety: pure functions over values. The result is the same for equal input on one kind of machine;
// between ranks it is decided by one and published.
#pragma once

#include <cstdint>
#include <vector>

#include "kaitian/core/status.h"
#include "kaitian/schedule/cost.h"

namespace kaitian::schedule {

/// The part of a step's communication that no computation hides, in seconds. Buckets of gradients are reduced
/// while the backward pass still runs, so a step ends max(end of backward + tail, first bucket ready + whole)
/// after its start. Two points suffice: with first-in-first-out buckets the exact time is a maximum over all
/// buckets, and the ones in between never decide alone in the affine case.
struct Exposed {
  double tail = 0;   // of the last bucket
  double whole = 0;  // of all buckets
};

/// What one rank can do and what it costs there.
struct RankCost {
  CostTable compute;         // of a share on the idle device
  double scale = 1;          // now / then: 2 when the device has become half as fast
  double fixed = 0;          // seconds per step that the scale does not touch (host, data)
  double firstReady = 1;     // part of `compute` after which the first bucket is ready
  double zero = 0;           // seconds of a step in which its share is 0; at most those of its smallest share
  std::int64_t floor = 1;    // the smallest share but 0 (2 with plain BatchNorm)
  std::int64_t cap = 0;      // the largest share; at most compute.size()
  std::int64_t quantum = 1;  // shares are multiples of it (static shapes)
  int island = 0;            // 0..islands-1
  bool mayLeave = true;      // with Problem::mayExclude: whether this rank may leave the step altogether
};

struct Problem {
  std::int64_t batch = 0;  // B
  std::vector<RankCost> ranks;
  /// By set of islands that take part (bit i: island i). One entry: the same for every set.
  std::vector<Exposed> exposed{Exposed{}};
  /// Shares that hold now: among plans of equal time the one that moves fewest items. Empty: none.
  std::vector<std::int64_t> current;
  /// Whether ranks (that may) can leave the step altogether: they then cost no time, `zero` neither, and
  /// islands of which no rank is left take no part in the communication.
  bool mayExclude = false;
};

struct Shares {
  std::vector<std::int64_t> items;  // [rank], sum = batch
  std::vector<bool> active;         // [rank]; only with mayExclude are there false ones
  double seconds = 0;               // of the step: the maximum over the ranks
};

/// Communication of the islands that take part with these shares.
const Exposed& exposedOf(const Problem& problem, const Shares& shares);
/// Seconds of a step of `rank` with `items` items.
double secondsOf(const RankCost& rank, const Exposed& exposed, std::int64_t items);
/// Seconds of a step with these shares: the largest of its active ranks'.
double secondsOf(const Problem& problem, const Shares& shares);

/// Code::invalidArgument for a problem that is not well formed (the message names the rank), Code::resource
/// when the caps, floors and quanta admit no plan (the message gives the sums).
Result<Shares> solve(const Problem& problem);

/// The paper's rule, as a baseline: shares in proportion to `speeds` (items per second, one per rank),
/// rounded by largest remainders so that they sum to B. REQUIRES: a positive sum of speeds.
std::vector<std::int64_t> proportional(std::int64_t batch, const std::vector<double>& speeds);

}  // namespace kaitian::schedule
