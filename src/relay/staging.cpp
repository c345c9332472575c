#include "relay/staging.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace kaitian::relay {

Result<BlockRef> StagingPool::take(Free& free, std::size_t bytes, bool host) {
  constexpr std::size_t kSmallest = 4096;  // a page: smaller blocks would only multiply the size classes
  const std::size_t size = std::bit_ceil(std::max(bytes, kSmallest));
  auto& blocks = free.bySize[size];
  if (blocks.empty()) return host ? device_->allocateHost(size) : device_->allocateDevice(size);
  BlockRef block = std::move(blocks.back());
  blocks.pop_back();
  free.bytes -= size;
  return block;
}

void StagingPool::give(Free& free, BlockRef block) {
  if (!block) return;
  const std::size_t size = block->bytes();
  if (free.bytes + size > kKeptBytes || !std::has_single_bit(size)) return;
  free.bytes += size;
  free.bySize[size].push_back(std::move(block));
}

void Cooling::add(std::vector<EventRef> events, std::function<void()> release) {
  if (allPast(events)) {
    release();
    return;
  }
  entries_.push_back({std::move(events), std::move(release)});
}

bool Cooling::poll() {
  bool any = false;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (!allPast(entry->events)) {
      ++entry;
      continue;
    }
    const auto release = std::move(entry->release);
    entry = entries_.erase(entry);
    release();
    any = true;
  }
  return any;
}

bool allPast(std::vector<EventRef>& events) {
  std::erase_if(events, [](const EventRef& event) { return !event || event->query(); });
  return events.empty();
}

}  // namespace kaitian::relay
