// Executes plans in one process, over ranks whose memory lies in this one: no devices, no transport. For
// tests of plans with real data, and for simulations.
//
// Everything that plan.h leaves open is drawn from the seed: the order of chunks, of ranks, of local steps
// against the exchange, of takes against gives (in pieces), and when each member of a vendor call reads and
// writes.
//
// Ownership: buffers belong to the caller. Thread safety: pure but for the buffers.
// Errors: Code::internal where a plan reaches outside a buffer, takes what nobody gives, gives twice without
// a fold, or has steps of another layout. A plan that is wrong otherwise gives wrong data; see checker.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kaitian/core/dtype.h"
#include "kaitian/core/status.h"
#include "kaitian/plan/plan.h"

namespace kaitian::plan {

/// The tensors of one rank, sized as shapeOf() says. In place: spans of one space lie inside spans of the
/// other.
struct RankBuffers {
  std::vector<std::span<std::byte>> inputs, outputs;
  Scale scale;  // PREMUL_SUM only
};

Status execute(DType dtype, const Layout& layout, std::span<const Plan> plans,
               std::span<const RankBuffers> ranks, std::uint64_t seed);

}  // namespace kaitian::plan
