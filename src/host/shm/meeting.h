// How the ranks of a host come to map each other's memory.
//
// Over the connection that each pair has, each sends its card: the descriptors of its segment and of what
// wakes it, if it has both. Each maps what comes, and tells all whether it has mapped everything. So either
// all ranks share memory or none does, and all know.
//
// Thread safety: none. It waits, with a deadline.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/shm/segment.h"
#include "kaitian/host/host_group.h"

namespace kaitian::host::shm {

struct Neighbours {
  std::vector<Segment> segments;    // [rank], the own one included
  std::vector<net::Socket> wakers;  // [rank] eventfd; none for the own rank
};

struct Meeting {
  std::optional<Neighbours> neighbours;  // all have mapped all
  std::string reason;                    // why not, for people; empty if nobody wanted to
};

struct MeetingOptions {
  int rank = 0;
  Geometry geometry;
  net::GroupId group{};
  Clock::time_point deadline;
};

/// `sockets[r]` is connected to rank r, all of this host; `event` wakes this rank. Errors: a connection ends,
/// or the deadline is there.
Result<Meeting> meet(const std::vector<net::Socket>& sockets, int event, const MeetingOptions& options);

}  // namespace kaitian::host::shm
