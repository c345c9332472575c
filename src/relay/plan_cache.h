// Plans of collectives that were called before: a training loop calls the same ones in every step.
//
// Ownership: shared by cache and operations. Thread safety: none, progress thread only.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "kaitian/plan/planner.h"
#include "kaitian/relay/relay.h"

namespace kaitian::relay {

/// A collective cut into chunks; the plan of a chunk is made when it is first asked for.
class Cut {
 public:
  Cut(plan::Collective collective, std::vector<plan::Strategy> strategy, const plan::Layout& layout,
      std::int64_t chunkBytes);

  const Status& status() const { return status_; }
  std::size_t chunks() const { return chunks_.size(); }
  std::shared_ptr<const plan::Plan> plan(std::size_t chunk);
  bool matches(const plan::Collective& collective, const std::vector<plan::Strategy>& strategy) const {
    return collective_ == collective && strategy_ == strategy;
  }

 private:
  const plan::Collective collective_;
  const std::vector<plan::Strategy> strategy_;
  const plan::Layout& layout_;
  Status status_;
  std::vector<plan::Span> spans_;
  std::vector<plan::Chunk> chunks_;
  std::vector<std::shared_ptr<const plan::Plan>> plans_;  // null until asked for
};

class PlanCache {
 public:
  PlanCache(const plan::Layout& layout, std::int64_t chunkBytes) : layout_(layout), chunkBytes_(chunkBytes) {}
  std::shared_ptr<Cut> get(const plan::Collective& collective, const std::vector<plan::Strategy>& strategy);

 private:
  const plan::Layout& layout_;
  const std::int64_t chunkBytes_;
  std::deque<std::shared_ptr<Cut>> recent_;  // last used first
};

}  // namespace kaitian::relay
