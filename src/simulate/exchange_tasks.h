// The chunks of one collective as tasks of a timeline: vendor calls, staging, units between ranks.
//
//   rank:   "vendor" (calls in order), "out" and "in" (copies between device and host memory), and two ports
//           for units to and from other ranks of its host
//   host:   two ports of its network
//
// Thread safety: none.
#pragma once

#include <string>
#include <vector>

#include "host/tickets.h"
#include "kaitian/plan/plan.h"
#include "kaitian/simulate/cluster.h"
#include "simulate/timeline.h"

namespace kaitian::simulate {

class ExchangeTasks {
 public:
  /// `ranks` of the cluster take part; ranks of plans are positions in it. `inFlight` chunks are carried at
  /// the same time. The cluster outlives it.
  ExchangeTasks(const Cluster& cluster, std::vector<int> ranks, int inFlight);

  const plan::Layout& layout() const { return layout_; }
  Status add(const plan::Plan& plan);
  /// One island's vendor library does it all.
  void addRing(std::int64_t bytes);
  Timeline& timeline() { return timeline_; }

 private:
  using Tasks = std::vector<int>;  // [rank]: the last task so far, or -1
  struct Ports {
    int out = -1, in = -1;
  };

  const Rank& rank(int r) const {
    return cluster_.ranks[static_cast<std::size_t>(ranks_[static_cast<std::size_t>(r)])];
  }
  void calls(const std::vector<plan::Step>& steps, Tasks& last);
  int call(int island, double steps, double bytes, const Tasks& last);
  Tasks stage(const std::vector<std::int64_t>& bytes, bool out, const Tasks& last);
  std::vector<std::vector<int>> exchange(const host::Schedule& schedule, const Tasks& given);
  int message(int from, int to, double bytes, int after);
  int join(std::vector<int> tasks);

  const Cluster& cluster_;
  std::vector<int> ranks_;
  plan::Layout layout_;
  std::size_t inFlight_;
  Timeline timeline_;
  std::vector<int> vendor_;             // [rank] server
  std::vector<Ports> staging_, local_;  // [rank] servers
  std::vector<Ports> network_;          // [host]
  std::vector<Tasks> ends_;             // [chunk]
  std::uint64_t turn_ = 0;
};

}  // namespace kaitian::simulate
