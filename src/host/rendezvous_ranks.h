// How messages of the rendezvous name ranks and groups.
#pragma once

#include <string>
#include <vector>

#include "kaitian/host/ranks.h"
#include "kaitian/host/rendezvous.h"

namespace kaitian::host {

inline int globalRank(int rank, const RendezvousOptions& options) {
  return globalRank(options.globalRanks, rank);
}

inline std::string rankName(int rank, const RendezvousOptions& options) {
  return "rank " + std::to_string(globalRank(rank, options));
}

/// "rank 3", "ranks 3, 5"
inline std::string rankNames(const std::vector<int>& ranks, const RendezvousOptions& options) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(globalRank(ranks[i], options));
  }
  return text;
}

inline std::string groupName(const RendezvousOptions& options) {
  return options.group.empty() ? "group" : "group '" + options.group + "'";
}

}  // namespace kaitian::host
