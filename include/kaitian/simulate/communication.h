// How long an all-reduce takes: the plans, units and owners that kaitian itself would use, laid on links.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kaitian/schedule/solver.h"
#include "kaitian/simulate/cluster.h"

namespace kaitian::simulate {

struct AllReduce {
  double seconds = 0;
  std::string busiest;  // "network of host 0, out"; empty where nothing is carried
  double busy = 0;      // seconds that it carries something
};

/// All-reduce of `bytes` (float32, sum) over these ranks; ascending. One island goes to its vendor library
/// alone, which reduces by a ring: 2 (g - 1) steps of bytes / g (Thakur, Rabenseifner, Gropp, Optimization of
/// Collective Communication Operations in MPICH, 2005). REQUIRES: check(cluster).ok(), bytes >= 1
Result<AllReduce> allReduce(const Cluster& cluster, const std::vector<int>& ranks, std::int64_t bytes);

/// All buckets one after the other, first in first out: `whole` is their sum, `tail` the last one's.
struct Communication {
  schedule::Exposed exposed;
  std::string busiest;  // of the link with most seconds over all buckets
  double busy = 0;
};
Result<Communication> communicate(const Cluster& cluster, const std::vector<int>& ranks);

}  // namespace kaitian::simulate
