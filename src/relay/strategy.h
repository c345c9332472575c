// Which path an operation takes: by the relay alone, or with the vendor libraries of some islands. Pure: the
// same on every rank, because every argument is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kaitian/relay/relay.h"

namespace kaitian::relay {

/// An operation as far as its path depends on it.
struct Work {
  plan::Kind kind = plan::Kind::barrier;
  DType dtype = DType::bytes;
  ReduceOp op = ReduceOp::none;
  std::int64_t bytes = 0;  // of the whole virtual vector
};

/// The reduction that a vendor library does for `op`: SUM for AVG (the fold divides), else the same.
ReduceOp vendorOp(ReduceOp op) noexcept;

/// The type in which `capabilities` can move elements of `dtype`: itself, or single bytes; false if neither.
bool movable(const Capabilities& capabilities, DType dtype, DType& as) noexcept;

/// Why the relay alone carries the operation whatever the vendor libraries can do; empty if it does not have
/// to.
std::string relayReason(const Work& work, const plan::Layout& layout, const GroupConfig& config);

/// Whether a library of these capabilities can do what the plan of `work` asks of an island.
bool serves(const Capabilities& capabilities, const Work& work) noexcept;

/// `onDevice[i]`: members of island i pass device tensors. `capabilities[i]`: of the library of island i.
Path choose(const Work& work, const plan::Layout& layout, const std::vector<bool>& onDevice,
            const std::vector<Capabilities>& capabilities, const GroupConfig& config);

}  // namespace kaitian::relay
