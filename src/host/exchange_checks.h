// Errors that both carriers of exchanges find.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "kaitian/host/host_group.h"

namespace kaitian::host {

/// A request whose addresses do not fit its plan: a fault of the caller.
Status checkRequest(const ExchangeRequest& request, int rank);

struct UnitOf {
  int rank = 0;
  std::uint64_t bytes = 0;
};
/// One rank's unit is not what the other one expects at this place.
Status otherUnit(const std::vector<int>& globalRanks, UnitOf sent, UnitOf expected, std::uint64_t sequence,
                 std::uint32_t chunk);

}  // namespace kaitian::host
