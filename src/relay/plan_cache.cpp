#include "relay/plan_cache.h"

#include <algorithm>
#include <utility>

namespace kaitian::relay {

Cut::Cut(plan::Collective collective, std::vector<plan::Strategy> strategy, const plan::Layout& layout,
         std::int64_t chunkBytes)
    : collective_(std::move(collective)), strategy_(std::move(strategy)), layout_(layout) {
  auto spans = plan::spansOf(collective_, layout.worldSize());
  if (!spans.ok()) {
    status_ = spans.status();
    return;
  }
  spans_ = std::move(spans).value();
  const auto elementBytes = static_cast<std::int64_t>(sizeOf(collective_.dtype));
  // Shards begin at multiples of 64 bytes: a cache line, and what vendor libraries and copy engines want.
  constexpr std::int64_t kShardBytes = 64;
  chunks_ = plan::chunksOf(spans_, layout,
                           {.chunkElements = std::max<std::int64_t>(1, chunkBytes / elementBytes),
                            .alignment = std::max<std::int64_t>(1, kShardBytes / elementBytes),
                            .strategy = strategy_});
  plans_.resize(chunks_.size());
}

std::shared_ptr<const plan::Plan> Cut::plan(std::size_t chunk) {
  auto& plan = plans_[chunk];
  if (!plan)
    plan =
        std::make_shared<const plan::Plan>(plan::planChunk(spans_, chunks_[chunk], layout_, collective_.op));
  return plan;
}

std::shared_ptr<Cut> PlanCache::get(const plan::Collective& collective,
                                    const std::vector<plan::Strategy>& strategy) {
  constexpr std::size_t kKept = 64;  // a step of DDP calls a few dozen different sizes
  const auto found = std::find_if(recent_.begin(), recent_.end(),
                                  [&](const auto& cut) { return cut->matches(collective, strategy); });
  std::shared_ptr<Cut> cut;
  if (found != recent_.end()) {
    cut = *found;
    recent_.erase(found);
  } else {
    cut = std::make_shared<Cut>(collective, strategy, layout_, chunkBytes_);
  }
  recent_.push_front(cut);
  if (recent_.size() > kKept) recent_.pop_back();
  return cut;
}

}  // namespace kaitian::relay
