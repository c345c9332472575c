// Bytes that a plan moves, per rank and link: for `kaitian info`, tables and tests. A count, no model of
// time.
//
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "kaitian/core/dtype.h"
#include "kaitian/plan/plan.h"

namespace kaitian::plan {

/// Bytes, indexed by rank. `vendor` is what the rank sends inside its island: (g - 1) shards in a
/// reduce-scatter or all-gather, (g - 1) / g of a broadcast (a pipelined ring, rounded down), what it sends
/// in a point-to-point call.
struct Traffic {
  std::vector<std::int64_t> out, in, vendor, copied;

  Traffic& operator+=(const Traffic& other);
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

Traffic trafficOf(const Plan& plan, const Layout& layout, DType dtype);

}  // namespace kaitian::plan
