#include "kaitian/plan/layout.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace kaitian::plan {
namespace {

// Far above any chunk and small enough to be multiplied with an alignment without overflow.
constexpr std::int64_t kLcmLimit = std::int64_t{1} << 40;

std::vector<int> renumber(const std::vector<int>& numbers) {
  std::map<int, int> dense;
  std::vector<int> result;
  result.reserve(numbers.size());
  for (const int number : numbers) {
    result.push_back(dense.emplace(number, static_cast<int>(dense.size())).first->second);
  }
  return result;
}

std::vector<std::vector<int>> membersOf(const std::vector<int>& numbers) {
  std::vector<std::vector<int>> members(
      numbers.empty() ? 0 : static_cast<std::size_t>(*std::max_element(numbers.begin(), numbers.end())) + 1);
  for (std::size_t rank = 0; rank < numbers.size(); ++rank) {
    members[static_cast<std::size_t>(numbers[rank])].push_back(static_cast<int>(rank));
  }
  return members;
}

void mix(std::uint64_t& hash, int value) {  // FNV-1a over the four bytes of a value
  for (int shift = 0; shift < 32; shift += 8) {
    hash ^= static_cast<std::uint64_t>(value >> shift & 0xff);
    hash *= 0x100000001b3ULL;
  }
}

}  // namespace

Layout Layout::make(const std::vector<int>& host, const std::vector<int>& island) {
  Layout layout;
  layout.hostOf_ = renumber(host);
  layout.islandOf_ = renumber(island);
  layout.hostMembers_ = membersOf(layout.hostOf_);
  layout.islandMembers_ = membersOf(layout.islandOf_);
  layout.indexInIsland_.resize(host.size());
  for (auto& members : layout.islandMembers_) {
    std::stable_sort(members.begin(), members.end(),
                     [&](int a, int b) { return layout.hostOf(a) < layout.hostOf(b); });
    for (std::size_t i = 0; i < members.size(); ++i) {
      layout.indexInIsland_[static_cast<std::size_t>(members[i])] = static_cast<int>(i);
    }
    layout.islandLcm_ = std::min(kLcmLimit, std::lcm(layout.islandLcm_, std::int64_t(members.size())));
  }
  return layout;
}

std::uint64_t Layout::hash() const noexcept {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  mix(hash, worldSize());
  for (const int host : hostOf_) {
    mix(hash, host);
  }
  for (const int island : islandOf_) {
    mix(hash, island);
  }
  return hash;
}

}  // namespace kaitian::plan
