#include "relay/strategy.h"

namespace kaitian::relay {
namespace {

bool isInteger(DType dtype) { return dtype <= DType::i64; }

/// A vendor SUM of these may overflow where the average does not; the relay accumulates wider.
bool sumOverflows(DType dtype) { return isInteger(dtype) || dtype == DType::f16 || dtype == DType::c32; }

bool usesMessages(plan::Kind kind) {
  return kind == plan::Kind::gather || kind == plan::Kind::scatter || kind == plan::Kind::allToAll;
}

std::string sizeOfBytes(std::int64_t bytes) { return std::to_string(bytes) + " bytes"; }

}  // namespace

ReduceOp vendorOp(ReduceOp op) noexcept { return op == ReduceOp::avg ? ReduceOp::sum : op; }

bool movable(const Capabilities& capabilities, DType dtype, DType& as) noexcept {
  for (const DType candidate : {dtype, DType::u8, DType::bytes}) {
    if (!capabilities.canMove(candidate)) continue;
    as = candidate;
    return true;
  }
  return false;
}

std::string relayReason(const Work& work, const plan::Layout& layout, const GroupConfig& config) {
  if (work.kind == plan::Kind::barrier) return "no data";
  if (layout.islands() == layout.worldSize()) return "no two ranks share a vendor library";
  if (config.deterministic) return "deterministic: bytes depend on inputs and layout alone";
  if (work.bytes <= config.directBytes)
    return sizeOfBytes(work.bytes) + ", at most " + sizeOfBytes(config.directBytes) +
           ": every rank stages directly";
  if (work.op == ReduceOp::avg && sumOverflows(work.dtype))
    return std::string("a vendor SUM of ") + toString(work.dtype) + " may overflow where AVG does not";
  return {};
}

bool serves(const Capabilities& capabilities, const Work& work) noexcept {
  DType as = work.dtype;
  if (!movable(capabilities, work.dtype, as)) return false;
  if (usesMessages(work.kind)) return capabilities.pointToPoint;
  return work.op == ReduceOp::none || capabilities.canReduce(vendorOp(work.op), work.dtype);
}

Path choose(const Work& work, const plan::Layout& layout, const std::vector<bool>& onDevice,
            const std::vector<Capabilities>& capabilities, const GroupConfig& config) {
  Path path;
  path.strategy.assign(static_cast<std::size_t>(layout.islands()), plan::Strategy::relay);
  path.reason = relayReason(work, layout, config);
  if (!path.reason.empty()) return path;
  for (int island = 0; island < layout.islands(); ++island) {
    const auto i = static_cast<std::size_t>(island);
    const std::size_t members = layout.islandMembers(island).size();
    if (members < 2) continue;
    path.reason += (path.reason.empty() ? "island " : "; island ") + std::to_string(island) + ": ";
    if (!onDevice[i]) {
      path.reason += "host tensors";
    } else if (!serves(capabilities[i], work)) {
      path.reason += std::string("its vendor library has no ") +
                     (work.op == ReduceOp::none ? "movement" : toString(vendorOp(work.op))) + " of " +
                     toString(work.dtype);
    } else {
      path.strategy[i] = plan::Strategy::vendor;
      path.reason += "vendor library";
    }
  }
  return path;
}

}  // namespace kaitian::relay
