// Ranks of a group as messages name them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace kaitian::host {

/// Number of a group's rank in the default group, which is the one that users know. `globalRanks` [rank of
/// the group]; a rank beyond it has the same number in both.
inline int globalRank(std::span<const int> globalRanks, int rank) {
  const auto i = static_cast<std::size_t>(rank);
  return i < globalRanks.size() ? globalRanks[i] : rank;
}

/// "rank 3", numbered as users know it.
inline std::string rankName(std::span<const int> globalRanks, int rank) {
  return "rank " + std::to_string(globalRank(globalRanks, rank));
}

}  // namespace kaitian::host
