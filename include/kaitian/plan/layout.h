// Who is where: the hosts and islands of a group. A value; the same on every rank.
//
// A host is a set of ranks that can map the same memory. An island is a set of ranks that one vendor library
// can serve; a CPU rank is an island of one. An island may span hosts, and ranks may be interleaved anyhow.
#pragma once

#include <cstdint>
#include <vector>

#include "kaitian/core/status.h"

namespace kaitian::plan {

class Layout {
 public:
  Layout() = default;
  /// `host[r]` and `island[r]` are the host and island of rank r; numbers are dense from 0 in order of their
  /// first rank (make() renumbers any others). REQUIRES: equal sizes, at least one rank.
  static Layout make(const std::vector<int>& host, const std::vector<int>& island);

  int worldSize() const noexcept { return static_cast<int>(hostOf_.size()); }
  int hostOf(int rank) const { return hostOf_[static_cast<std::size_t>(rank)]; }
  int islandOf(int rank) const { return islandOf_[static_cast<std::size_t>(rank)]; }

  int hosts() const noexcept { return static_cast<int>(hostMembers_.size()); }
  int islands() const noexcept { return static_cast<int>(islandMembers_.size()); }
  /// Ranks of a host in rank order.
  const std::vector<int>& hostMembers(int host) const { return hostMembers_[static_cast<std::size_t>(host)]; }
  /// Ranks of an island in (host, rank) order: the order of its vendor communicator and of its shards. With
  /// any other order shards of one range would lie on different hosts and cross the network for nothing.
  const std::vector<int>& islandMembers(int island) const {
    return islandMembers_[static_cast<std::size_t>(island)];
  }
  /// Position of a rank among the members of its island.
  int indexInIsland(int rank) const { return indexInIsland_[static_cast<std::size_t>(rank)]; }

  /// Least common multiple of the island sizes.
  std::int64_t islandLcm() const noexcept { return islandLcm_; }
  /// A hash of hosts and islands for comparing layouts between ranks.
  std::uint64_t hash() const noexcept;

  friend bool operator==(const Layout&, const Layout&) = default;

 private:
  std::vector<int> hostOf_, islandOf_, indexInIsland_;
  std::vector<std::vector<int>> hostMembers_, islandMembers_;
  std::int64_t islandLcm_ = 1;
};

}  // namespace kaitian::plan
