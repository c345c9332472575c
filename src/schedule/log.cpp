#include "kaitian/schedule/log.h"

#include <algorithm>
#include <numeric>

namespace kaitian::schedule {
namespace {

std::string faultOf(const Entry& entry, int worldSize, std::int64_t batch) {
  const auto world = static_cast<std::size_t>(worldSize);
  if (entry.shares.size() != world || entry.microBatches.size() != world)
    return "expected shares and micro-batches of " + std::to_string(world) + " ranks, found " +
           std::to_string(entry.shares.size()) + " and " + std::to_string(entry.microBatches.size());
  for (std::size_t i = 0; i < world; ++i) {
    if (entry.shares[i] < 0)
      return "rank " + std::to_string(i) + ": expected a share >= 0, found " +
             std::to_string(entry.shares[i]);
    const bool out = entry.microBatches[i] == kLeftOut || entry.microBatches[i] == kProbed;
    if (out && entry.shares[i] == 0) continue;
    if (entry.microBatches[i] < 1 || entry.microBatches[i] > std::max<std::int64_t>(entry.shares[i], 1))
      return "rank " + std::to_string(i) + ": expected 1 to " +
             std::to_string(std::max<std::int64_t>(entry.shares[i], 1)) + " micro-batches, found " +
             std::to_string(entry.microBatches[i]);
  }
  const std::int64_t sum = std::accumulate(entry.shares.begin(), entry.shares.end(), std::int64_t{0});
  if (sum != batch)
    return "expected shares that sum to the global batch " + std::to_string(batch) + ", found " +
           std::to_string(sum);
  return {};
}

}  // namespace

std::vector<bool> Entry::active() const {
  std::vector<bool> found;
  for (std::size_t i = 0; i < microBatches.size(); ++i) found.push_back(active(i));
  return found;
}

Status Log::append(Entry entry) {
  std::string fault = faultOf(entry, worldSize_, batch_);
  const std::int64_t last = entries_.empty() ? -1 : entries_.back().decided;
  if (fault.empty() && entry.decided < last)
    fault = "expected a decision after step " + std::to_string(last) + " or later, found " +
            std::to_string(entry.decided);
  if (fault.empty() && (entries_.empty() ? entry.start != 0 : entry.start <= entry.decided))
    fault = "expected start " + (entries_.empty() ? std::string("0") : "> " + std::to_string(entry.decided)) +
            ", found " + std::to_string(entry.start);
  if (!fault.empty())
    return {Code::invalidArgument, "schedule: entry " + std::to_string(entries_.size()) + ": " + fault};
  while (!entries_.empty() && entries_.back().start >= entry.start) entries_.pop_back();
  entries_.push_back(std::move(entry));
  return {};
}

const Entry& Log::at(std::int64_t step) const {
  const auto after = std::upper_bound(entries_.begin(), entries_.end(), step,
                                      [](std::int64_t s, const Entry& entry) { return s < entry.start; });
  return *(after - 1);
}

}  // namespace kaitian::schedule
